package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// failure is an error as the SDK of S3 makes them.
type failure struct {
	status int
	code   string
}

func (e failure) Error() string       { return fmt.Sprintf("status %d, code %s", e.status, e.code) }
func (e failure) HTTPStatusCode() int { return e.status }
func (e failure) ErrorCode() string   { return e.code }

func TestDo(t *testing.T) {
	busy := failure{503, "SlowDown"}
	for _, c := range []struct {
		name     string
		failures int   // that come before success
		err      error // of these
		tries    int
		want     error
		from, to time.Duration
	}{
		{"at once", 0, busy, 1, nil, 0, 0},
		{"for good", 1, fs.ErrPermission, 1, fs.ErrPermission, 0, 0},
		{"once", 1, busy, 2, nil, firstPause / 2, 3 * firstPause / 2},
		{"a while", 4, busy, 5, nil, 15 * firstPause / 2, 45 * firstPause / 2},
		{"for ever", 1000, busy, tries, busy, time.Minute, 4 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, calls := time.Now(), 0
				err := Do(t.Context(), func(context.Context) error {
					if calls++; calls <= c.failures {
						return fmt.Errorf("writing: %w", c.err)
					}
					return nil
				})
				if !errors.Is(err, c.want) || calls != c.tries {
					t.Errorf("after %d calls: %v; want %d and %v", calls, err, c.tries, c.want)
				}
				if took := time.Since(begin); took < c.from || took > c.to {
					t.Errorf("took %s, want between %s and %s", took, c.from, c.to)
				}
				if calls == tries && !strings.Contains(err.Error(), "tried 12 times") {
					t.Errorf("error %v does not tell how hard it tried", err)
				}
			})
		})
	}
}

// No two that were refused together come back together.
func TestDoSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, at := time.Now(), map[time.Duration]bool{}
		for range 10 {
			calls := 0
			before := time.Now()
			_ = Do(t.Context(), func(context.Context) error {
				if calls++; calls == 1 {
					return failure{429, "TooManyRequests"}
				}
				at[time.Since(before)] = true
				return nil
			})
		}
		if len(at) < 5 {
			t.Errorf("ten pauses in %s had %d different lengths", time.Since(begin), len(at))
		}
	})
}

func TestDoEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := failure{429, "TooManyRequests"}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		err := Do(ctx, func(context.Context) error { return busy })
		if !errors.Is(err, busy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the store and that of the context", err)
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestTemporary(t *testing.T) {
	hidden := errors.New("hidden")
	Status = func(err error) int {
		if errors.Is(err, hidden) {
			return 503
		}
		return 0
	}
	defer func() { Status = nil }()
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.ErrShortWrite, false},
		{failure{400, "InvalidRequest"}, false},
		{failure{400, "RequestTimeout"}, true},
		{failure{403, "AccessDenied"}, false},
		{failure{404, "NoSuchKey"}, false},
		{failure{408, ""}, true},
		{failure{409, "ConditionalRequestConflict"}, true},
		{failure{409, "BucketAlreadyExists"}, false},
		{failure{410, ""}, true},
		{failure{412, "PreconditionFailed"}, false},
		{failure{429, ""}, true},
		{failure{500, "InternalError"}, true},
		{failure{501, "NotImplemented"}, false},
		{failure{503, "SlowDown"}, true},
		{fmt.Errorf("wrapped: %w", hidden), true},
		{fmt.Errorf("wrapped: %w", refused), true},
		{context.Canceled, false},
		{context.DeadlineExceeded, false},
		{fmt.Errorf("%w: %w", context.Canceled, refused), false},
	} {
		if got := Temporary(c.err); got != c.want {
			t.Errorf("%v: temporary is %v", c.err, got)
		}
	}
}
