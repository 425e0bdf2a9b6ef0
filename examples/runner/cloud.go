//go:build cloud

package main

// With -tags cloud, -blobs also takes the URLs of cloud buckets. Without it no SDK
// of a cloud is compiled or downloaded.
import _ "checkpointdb/buckets/cloud"
