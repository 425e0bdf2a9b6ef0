package faultblob

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"checkpointdb/internal/passblob"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/drivertest"
	"gocloud.dev/blob/memblob"
)

func passOn(_ context.Context, _ Call, do func() error) error { return do() }

// A hook that passes everything on changes nothing: the wrapper is a driver as
// good as the one below it.
func TestConformance(t *testing.T) {
	drivertest.RunConformanceTests(t, func(context.Context, *testing.T) (drivertest.Harness, error) {
		return harness{}, nil
	}, nil)
}

type harness struct{}

func (harness) MakeDriver(context.Context) (driver.Bucket, error) {
	return &bucket{Bucket: passblob.Bucket{B: memblob.OpenBucket(nil)}, hook: passOn}, nil
}

func (harness) MakeDriverForNonexistentBucket(context.Context) (driver.Bucket, error) {
	return nil, nil
}
func (harness) HTTPClient() *http.Client         { return nil }
func (harness) SupportsCopy() bool               { return true }
func (harness) SupportsNonSlashDelimiters() bool { return true }
func (harness) SkipDownloadAt() bool             { return true }
func (harness) Close()                           {}

func TestFailNth(t *testing.T) {
	broken := errors.New("broken")
	var calls []Call
	record := func(_ context.Context, call Call, do func() error) error {
		calls = append(calls, call)
		return do()
	}
	for n, kind := range []Kind{Write, Commit, Attributes, Delete} {
		fail, failed := FailNth(n+1, broken)
		calls = nil
		b := Wrap(memblob.OpenBucket(nil), Chain(record, fail))
		err := writeAndDelete(t.Context(), b)
		if !errors.Is(err, broken) || !failed() {
			t.Errorf("call %d: error %v, failed %v", n+1, err, failed())
		}
		if len(calls) != n+1 || calls[n] != (Call{kind, "key"}) {
			t.Errorf("call %d: calls %v, want the last to be %s", n+1, calls, kind)
		}
		there, err := b.Exists(t.Context(), "key")
		if want := kind == Attributes || kind == Delete; err != nil || there != want {
			t.Errorf("call %d: object there is %v, want %v (%v)", n+1, there, want, err)
		}
		b.Close()
	}
}

func writeAndDelete(ctx context.Context, b *blob.Bucket) error {
	w, err := b.NewWriter(ctx, "key", &blob.WriterOptions{ContentType: "text/plain"})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if _, err := b.Attributes(ctx, "key"); err != nil {
		return err
	}
	return b.Delete(ctx, "key")
}
