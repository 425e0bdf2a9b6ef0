package blobsuite

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"checkpointdb/buckets"
)

// Strict stands before a server of S3 and refuses what Cloudflare R2 and others
// refuse: checksum headers, trailers, and bodies in signed chunks. The status is
// 501, as of R2, or 400, as of Backblaze B2; the texts are like theirs.
func Strict(status int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refused := ""
		for name, values := range r.Header {
			lower := strings.ToLower(name)
			switch value := strings.Join(values, ","); {
			case strings.HasPrefix(lower, "x-amz-checksum-"), strings.HasPrefix(lower, "x-amz-sdk-checksum-"), lower == "x-amz-trailer",
				lower == "content-encoding" && strings.Contains(value, "aws-chunked"):
				refused = fmt.Sprintf("Header '%s' with value '%s'", lower, value)
			case lower == "x-amz-content-sha256" && strings.HasPrefix(value, "STREAMING-"):
				refused = value
			}
		}
		if len(r.Trailer) > 0 {
			refused = "Header 'trailer'"
		}
		if refused == "" {
			next.ServeHTTP(w, r)
			return
		}
		code, message := "NotImplemented", refused+" not implemented"
		if status == http.StatusBadRequest {
			code, message = "InvalidArgument", "Unsupported: "+refused
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, message)
	})
}

// WantHint fails unless a write into the bucket at a URL, whose server is strict,
// fails with an error that says what to do.
func WantHint(t testing.TB, rawURL string) {
	t.Helper()
	b, err := buckets.Open(t.Context(), rawURL)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, size := range sizes {
		err := buckets.WriteDurable(t.Context(), b, key("refused"), int64(size), bytes.NewReader(content(size)))
		if err == nil {
			t.Errorf("%d bytes: written", size)
			continue
		}
		for _, part := range []string{"r2://account/bucket", "request_checksum_calculation=when_required"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%d bytes: error %q does not name %s", size, err, part)
			}
		}
		if buckets.IsTemporary(err) {
			t.Errorf("%d bytes: %v is taken for temporary", size, err)
		}
	}
}
