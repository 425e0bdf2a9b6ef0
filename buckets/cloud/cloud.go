package cloud

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"

	"checkpointdb/internal/retry"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob"
	_ "gocloud.dev/blob/gcsblob"
	"gocloud.dev/blob/s3blob"
	"google.golang.org/api/googleapi"
)

func init() {
	blob.DefaultURLMux().RegisterBucket("r2", r2Opener{})
	retry.Status = status
}

// r2Opener opens Cloudflare R2 with the driver of S3.
type r2Opener struct{}

func (r2Opener) OpenBucketURL(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	return new(s3blob.URLOpener).OpenBucketURL(ctx, asS3(u))
}

// asS3 returns the s3 URL that an r2 URL stands for. Parameters that the r2 URL
// has itself take precedence.
func asS3(u *url.URL) *url.URL {
	q := u.Query()
	for param, value := range map[string]string{
		"endpoint":       "https://" + u.Host + ".r2.cloudflarestorage.com",
		"region":         "auto",
		"use_path_style": "true",
		// R2 refuses to write with the checksums that the SDK adds by itself.
		"request_checksum_calculation": "when_required",
		"response_checksum_validation": "when_required",
	} {
		q.Set(param, cmp.Or(q.Get(param), value))
	}
	return &url.URL{Scheme: s3blob.Scheme, Host: strings.Trim(u.Path, "/"), RawQuery: q.Encode()}
}

// status returns the HTTP status of an error of GCS or Azure, 0 for others.
func status(err error) int {
	if e, ok := errors.AsType[*googleapi.Error](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return e.StatusCode
	}
	return 0
}
