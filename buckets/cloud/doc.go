// Package cloud links the drivers of S3, Cloudflare R2, GCS and Azure, so that
// buckets.Open takes their URLs:
//
//	import _ "checkpointdb/buckets/cloud"
//
// It makes a binary about 50 MB larger, which is why it is a package of its own.
//
// # URLs and credentials
//
//	s3://BUCKET?region=us-east-1
//
// Amazon S3. Credentials are those of the AWS SDK: AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY, a profile (?profile=), or the role of the machine.
//
//	s3://BUCKET?endpoint=https://HOST&region=us-east-1&use_path_style=true&request_checksum_calculation=when_required&response_checksum_validation=when_required
//
// A store that speaks S3. The last two parameters are for those that refuse the
// checksums which the SDK adds by itself; an error of buckets.WriteDurable that
// comes from that names them.
//
//	r2://ACCOUNT/BUCKET
//
// Cloudflare R2: the same with endpoint, region, addressing and checksums as R2
// needs them. ACCOUNT is the account id, with the jurisdiction if the bucket has
// one, ACCOUNT.eu. Credentials are those of an R2 API token, given as to S3.
//
//	gs://BUCKET
//
// Google Cloud Storage. Credentials are Google's application default ones:
// GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, or the
// account of the machine.
//
//	azblob://CONTAINER
//
// Azure Blob Storage. AZURE_STORAGE_ACCOUNT names the account; credentials are
// AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_STORAGE_CONNECTION_STRING, or
// those of the Azure SDK, an identity of the machine or of the az tool.
//
// Every URL takes ?prefix=team/one/, put before each key, so that several stores
// can share a bucket. Other parameters are those of the driver in
// gocloud.dev/blob. The bucket must exist, and the credentials must allow to read,
// write, delete and list.
//
// # What a bucket should be set to
//
// Uploads that are cut off leave nothing under their key, but a killed process
// can leave parts of an upload that nobody sees and that are paid for: let the
// bucket abort multipart uploads that are some days old. Nothing here needs
// versions of objects; where they are on, what a sweep deletes still takes room.
package cloud
