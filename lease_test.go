package checkpointdb

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// inBubble runs fn with a store in a synctest bubble, where time passes only
// when everybody waits.
func inBubble(t *testing.T, fn func(t *testing.T, s *Store)) {
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) { fn(t, openTestAt(t, path, nil)) })
}

func TestWithLeaseRenewsAndReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx := context.Background()
		err := WithLease(ctx, s, "t", func(ctx context.Context, w Writer) error {
			time.Sleep(10 * time.Minute) // five terms
			if _, err := s.AcquireWriter(ctx, "t"); !errors.Is(err, ErrWriterConflict) {
				t.Errorf("a second writer got in: %v", err)
			}
			return s.Append(ctx, w, testCheckpoint("t", 0, ""), "")
		})
		must(t, err)
		if lease, err := s.AcquireWriter(ctx, "t"); err != nil || lease.Fence != 2 {
			t.Errorf("after release: fence %d, %v", lease.Fence, err)
		}
	})
}

func TestWithLeaseCancelsWithCause(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx := context.Background()
		var began time.Time
		err := WithLease(ctx, s, "t", func(ctx context.Context, w Writer) error {
			must(t, s.Release(ctx, w)) // somebody broke the lease
			began = time.Now()
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, ErrWriterLost) {
				t.Errorf("cause %v", cause)
			}
			return ctx.Err()
		})
		if !errors.Is(err, ErrWriterLost) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 45*time.Second {
			t.Errorf("it was noticed after %s, not at the next renewal", took)
		}
	})
}

// unreachable is a store whose renewals fail.
type unreachable struct{ *Store }

func (unreachable) Renew(context.Context, Writer) (Lease, error) {
	return Lease{}, errors.New("no route to the store")
}

func TestWithLeaseGivesUpBeforeTheTermEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		began := time.Now()
		err := WithLease(context.Background(), unreachable{s}, "t", func(ctx context.Context, w Writer) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, ErrWriterLost) || !strings.Contains(err.Error(), "no route") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < 90*time.Second || took >= 120*time.Second {
			t.Errorf("gave up after %s", took)
		}
	})
}

func TestWithLeaseReturnsWhatFnReturns(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		want := errors.New("fn's own")
		if err := WithLease(context.Background(), s, "t", func(context.Context, Writer) error { return want }); err != want {
			t.Errorf("got %v", err)
		}
		func() {
			defer func() { recover() }()
			_ = WithLease(context.Background(), s, "t", func(context.Context, Writer) error { panic("fn's own") })
		}()
		ctx, cancel := context.WithCancel(context.Background())
		err := WithLease(ctx, s, "t", func(ctx context.Context, w Writer) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrWriterLost) {
			t.Errorf("got %v", err)
		}
		// Released after an error, a panic and a cancelled context alike.
		if lease, err := s.AcquireWriter(context.Background(), "t"); err != nil || lease.Fence != 4 {
			t.Errorf("fence %d, %v", lease.Fence, err)
		}
	})
}

// TestCase14RenewalAndReleaseCross: whatever a renewal in flight does, a
// released lease stays released.
func TestCase14RenewalAndReleaseCross(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "test.db")
	s, err := Open(path, nil)
	must(t, err)
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	for i := range rounds {
		lease, err := s.AcquireWriter(ctx, "t")
		must(t, err)
		var renewed error
		var wg sync.WaitGroup
		wg.Go(func() { _, renewed = s.Renew(ctx, lease.Writer) })
		must(t, s.Release(ctx, lease.Writer))
		next, err := s.AcquireWriter(ctx, "t")
		if err != nil {
			t.Fatalf("round %d: the next writer did not get in: %v", i, err)
		}
		wg.Wait()
		if renewed != nil && !errors.Is(renewed, ErrWriterLost) {
			t.Fatalf("round %d: renew: %v", i, renewed)
		}
		must(t, s.Release(ctx, next.Writer))
	}
	must(t, s.Check(ctx))
	must(t, s.Close())
}

// TestCase12LateWriter: deleting a thread keeps its fence, so an old writer
// stays lost and numbering goes on.
func TestCase12LateWriter(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	var w Writer
	for range 3 {
		lease, err := s.AcquireWriter(ctx, "t")
		must(t, err)
		if w = lease.Writer; w.Fence < 3 {
			must(t, s.Release(ctx, w))
		}
	}
	must(t, s.Append(ctx, w, testCheckpoint("t", 0, ""), ""))
	must(t, s.SaveThread(ctx, "t", nil))
	must(t, s.DeleteThread(ctx, w))
	must(t, s.DeleteThread(ctx, w)) // may be repeated
	if err := s.Append(ctx, w, testCheckpoint("t", 1, ""), ""); !errors.Is(err, ErrWriterLost) {
		t.Errorf("late append: %v", err)
	}
	for c, err := range s.List(ctx, "t") {
		t.Errorf("%v is still there, %v", c.ID, err)
	}
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	if lease.Fence != 4 {
		t.Errorf("fence %d, want 4", lease.Fence)
	}
	if err := s.DeleteThread(ctx, w); !errors.Is(err, ErrWriterLost) {
		t.Errorf("the old writer may still delete: %v", err)
	}
}
