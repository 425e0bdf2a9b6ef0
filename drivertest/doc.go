// Package drivertest runs the blob suite against servers that play the clouds, on
// loopback: versitygw for S3 and R2, fake-gcs-server for GCS, both in process, and
// Azurite for Azure, a child process that needs Node. It is a module of its own
// because these servers are heavy, so that no user of checkpointdb downloads them.
//
// There is nothing here but tests: go test ./...
package drivertest
