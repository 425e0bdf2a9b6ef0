package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"checkpointdb/buckets"
	"checkpointdb/internal/blobsuite"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.uber.org/goleak"
	"gocloud.dev/blob"
	"google.golang.org/api/googleapi"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The SDKs keep connections, which end with the servers.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// fakeS3 starts a server of S3 with an empty bucket named "bucket", behind a
// front if there is one, and returns its URL.
func fakeS3(t *testing.T, front func(http.Handler) http.Handler) string {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	handler := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	if front != nil {
		handler = front(handler)
	}
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestS3(t *testing.T) {
	endpoint := fakeS3(t, nil)
	blobsuite.Run(t, "s3://bucket?region=us-east-1&use_path_style=true&response_checksum_validation=when_required&endpoint="+endpoint, 3001)
	blobsuite.Missing(t, "s3://missing?region=us-east-1&use_path_style=true&endpoint="+endpoint)
}

func TestR2(t *testing.T) {
	endpoint := fakeS3(t, func(h http.Handler) http.Handler { return blobsuite.Strict(http.StatusNotImplemented, h) })
	blobsuite.Run(t, "r2://account/bucket?endpoint="+endpoint, 300)
	blobsuite.Missing(t, "r2://account/missing?endpoint="+endpoint)
}

// A plain s3 URL of a store that refuses checksums says what to change.
func TestChecksumsRefused(t *testing.T) {
	for _, status := range []int{http.StatusNotImplemented, http.StatusBadRequest} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			endpoint := fakeS3(t, func(h http.Handler) http.Handler { return blobsuite.Strict(status, h) })
			blobsuite.WantHint(t, "s3://bucket?region=auto&use_path_style=true&endpoint="+endpoint)
		})
	}
}

func TestR2URL(t *testing.T) {
	for raw, want := range map[string]map[string]string{
		"r2://account/bucket": {
			"endpoint": "https://account.r2.cloudflarestorage.com", "region": "auto", "use_path_style": "true",
			"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required",
		},
		"r2://account.eu/bucket/?region=weur&profile=p": {
			"endpoint": "https://account.eu.r2.cloudflarestorage.com", "region": "weur", "use_path_style": "true", "profile": "p",
			"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required",
		},
		"r2://account/bucket?endpoint=http://localhost:1&use_path_style=false": {
			"endpoint": "http://localhost:1", "region": "auto", "use_path_style": "false",
			"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required",
		},
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		s3 := asS3(u)
		got := map[string]string{}
		for param := range s3.Query() {
			got[param] = s3.Query().Get(param)
		}
		if diff := cmp.Diff(want, got); diff != "" || s3.Scheme != "s3" || s3.Host != "bucket" {
			t.Errorf("%s: %s (-want +got):\n%s", raw, s3, diff)
		}
	}
}

// refuse answers the first n writes with a status.
func refuse(n int64, status int, code string, puts *atomic.Int64) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut || puts.Add(1) > n {
				next.ServeHTTP(w, r)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>Reduce your rate of requests.</Message></Error>", code)
		})
	}
}

func write(ctx context.Context, b *blob.Bucket) error {
	return buckets.WriteDurable(ctx, b, "key", 4, strings.NewReader("text"))
}

// What the SDK gives up on, or never tries again, is waited for.
func TestRetry(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		n      int64
	}{
		{http.StatusTooManyRequests, "TooManyRequests", 3},
		{http.StatusServiceUnavailable, "SlowDown", 4},
		{http.StatusConflict, "ConditionalRequestConflict", 1},
	} {
		t.Run(c.code, func(t *testing.T) {
			var puts atomic.Int64
			b := openFake(t, fakeS3(t, refuse(c.n, c.status, c.code, &puts)))
			if err := buckets.Retry(t.Context(), func(ctx context.Context) error { return write(ctx, b) }); err != nil {
				t.Fatal(err)
			}
			if got, err := b.ReadAll(t.Context(), "key"); err != nil || string(got) != "text" {
				t.Errorf("read %q, %v", got, err)
			}
			if puts.Load() != c.n+1 {
				t.Errorf("%d writes, want %d", puts.Load(), c.n+1)
			}
		})
	}
}

// A store that takes one write of a key in a while, as GCS and R2 do, gets those
// of all who have the same content.
func TestRateLimit(t *testing.T) {
	const pause = 300 * time.Millisecond
	var mu sync.Mutex
	last := map[string]time.Time{}
	limited := 0
	b := openFake(t, fakeS3(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			soon := r.Method == http.MethodPut && time.Since(last[r.URL.Path]) < pause
			if soon {
				limited++
			} else if r.Method == http.MethodPut {
				last[r.URL.Path] = time.Now()
			}
			mu.Unlock()
			if soon {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := buckets.Retry(t.Context(), func(ctx context.Context) error { return write(ctx, b) }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if limited == 0 {
		t.Error("nobody was refused, which proves nothing")
	}
}

func TestRetryEndsWithContext(t *testing.T) {
	var puts atomic.Int64
	endpoint := fakeS3(t, refuse(1000, http.StatusTooManyRequests, "TooManyRequests", &puts))
	b := openFake(t, endpoint)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	err := buckets.Retry(ctx, func(ctx context.Context) error { return write(ctx, b) })
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 5*time.Second {
		t.Errorf("after %s and %d writes: %v", time.Since(begin), puts.Load(), err)
	}
}

func openFake(t *testing.T, endpoint string) *blob.Bucket {
	t.Helper()
	b, err := buckets.Open(t.Context(), "r2://account/bucket?endpoint="+endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestIsTemporary(t *testing.T) {
	for status, want := range map[int]bool{400: false, 403: false, 404: false, 409: false, 412: false, 429: true, 500: true, 503: true} {
		for _, err := range []error{&googleapi.Error{Code: status}, &azcore.ResponseError{StatusCode: status}} {
			if got := buckets.IsTemporary(fmt.Errorf("wrapped: %w", err)); got != want {
				t.Errorf("%T with status %d: temporary is %v", err, status, got)
			}
		}
	}
}
