package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"

	"checkpointdb/internal/passblob"
)

var errInjected = errors.New("injected fault")

// spy is a bucket driver that passes everything on to a real bucket and counts
// the operations by name: attributes, open, read, create, write, close. When the
// count of all reaches failAt, that one fails instead.
type spy struct {
	passblob.Bucket

	mu     sync.Mutex // guards the fields below
	total  int
	counts map[string]int
	puts   map[string]int // by key
	failAt int
	failed string // the operation that failed, "" for none
}

// newSpy returns the bucket to use and what watches it.
func newSpy(t testing.TB, inner *blob.Bucket) (*blob.Bucket, *spy) {
	s := &spy{Bucket: passblob.Bucket{B: inner}}
	s.reset(0)
	bucket := blob.NewBucket(s)
	t.Cleanup(func() { bucket.Close() })
	return bucket, s
}

// reset starts counting anew and lets operation number failAt fail; 0 for none.
func (s *spy) reset(failAt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total, s.counts, s.puts = 0, map[string]int{}, map[string]int{}
	s.failAt, s.failed = failAt, ""
}

func (s *spy) before(op, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	s.counts[op]++
	if op == "create" {
		s.puts[key]++
	}
	if s.total == s.failAt {
		s.failed = op
		return fmt.Errorf("%s %s: %w", op, key, errInjected)
	}
	return nil
}

func (s *spy) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	if err := s.before("attributes", key); err != nil {
		return nil, err
	}
	return s.Bucket.Attributes(ctx, key)
}

func (s *spy) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	if err := s.before("open", key); err != nil {
		return nil, err
	}
	r, err := s.Bucket.NewRangeReader(ctx, key, offset, length, opts)
	if err != nil {
		return nil, err
	}
	return &spyReader{r, s, key}, nil
}

type spyReader struct {
	driver.Reader
	spy *spy
	key string
}

func (r *spyReader) Read(p []byte) (int, error) {
	if err := r.spy.before("read", r.key); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (s *spy) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (driver.Writer, error) {
	if err := s.before("create", key); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := s.Bucket.NewTypedWriter(ctx, key, contentType, opts)
	if err != nil {
		cancel()
		return nil, err
	}
	return &spyWriter{w, cancel, s, key}, nil
}

type spyWriter struct {
	driver.Writer
	cancel context.CancelFunc
	spy    *spy
	key    string
}

func (w *spyWriter) Write(p []byte) (int, error) {
	if err := w.spy.before("write", w.key); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

func (w *spyWriter) Close() error {
	defer w.cancel()
	if err := w.spy.before("close", w.key); err != nil {
		w.cancel() // so that closing drops what was written
		w.Writer.Close()
		return err
	}
	return w.Writer.Close()
}
