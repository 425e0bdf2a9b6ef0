package buckets

import (
	"errors"
	"net/http"
	"strings"
)

// checksumHint is what to do about a store that refusesChecksum finds.
const checksumHint = "; this store refuses the checksums that the SDK of S3 adds to what it writes: " +
	"open Cloudflare R2 as r2://account/bucket, and for others add " +
	"request_checksum_calculation=when_required&response_checksum_validation=when_required to the s3 URL"

// hint returns what may help against the error of a write, to be put after its
// text, "" when nothing is known.
func hint(err error) string {
	if refusesChecksum(err) {
		return checksumHint
	}
	return ""
}

// refusesChecksum recognizes a store that speaks S3 as it was before 2025 and
// refuses the checksum headers, trailers or chunks of today's SDK. None of them
// says so in a way that helps: R2 answers 501 NotImplemented and names the header
// or the form of the payload, Backblaze 400 InvalidArgument and the header, older
// MinIO and Ceph 400 XAmzContentSHA256Mismatch.
func refusesChecksum(err error) bool {
	answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err)
	if !ok {
		return false
	}
	api, ok := errors.AsType[interface {
		error
		ErrorCode() string
		ErrorMessage() string
	}](err)
	if !ok {
		return false
	}
	text := strings.ToLower(api.ErrorCode() + " " + api.ErrorMessage())
	switch answer.HTTPStatusCode() {
	case http.StatusNotImplemented:
		return true // nothing else that a write sends can be unknown to a store
	case http.StatusBadRequest:
		for _, word := range []string{"checksum", "trailer", "aws-chunked", "streaming-", "xamzcontentsha256mismatch"} {
			if strings.Contains(text, word) {
				return true
			}
		}
	}
	return false
}
