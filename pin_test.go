package checkpointdb

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// claim claims the keys and lets go of them again at once.
func claim(t *testing.T, s *Store, keys ...BlobKey) []BlobKey {
	t.Helper()
	claimed, err := s.claimUnused(context.Background(), keys)
	must(t, err)
	must(t, s.settleDeleted(context.Background(), nil, claimed))
	return claimed
}

func protect(t *testing.T, s *Store, w Writer, keys ...BlobKey) []BlobKey {
	t.Helper()
	unused, err := s.Protect(context.Background(), w, keys)
	must(t, err)
	return unused
}

func TestPinsEndWithTheirLease(t *testing.T) {
	key, other := testKey("pinned"), testKey("other")
	for name, end := range map[string]func(t *testing.T, s *Store, l Lease){
		"released": func(t *testing.T, s *Store, l Lease) { must(t, s.Release(context.Background(), l.Writer)) },
		"expired":  func(t *testing.T, s *Store, l Lease) { time.Sleep(time.Until(l.ExpiresAt)) },
		"taken over": func(t *testing.T, s *Store, l Lease) {
			time.Sleep(time.Until(l.ExpiresAt))
			_, err := s.AcquireWriter(context.Background(), l.ThreadID)
			must(t, err)
		},
		"deleted thread": func(t *testing.T, s *Store, l Lease) { must(t, s.DeleteThread(context.Background(), l.Writer)) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *Store) {
				ctx := context.Background()
				lease, err := s.AcquireWriter(ctx, "t")
				must(t, err)
				protect(t, s, lease.Writer, key, key)
				if got := claim(t, s, key, other); !slices.Equal(got, []BlobKey{other}) {
					t.Errorf("while the lease lasts, a sweep may delete %q", got)
				}
				time.Sleep(time.Until(lease.ExpiresAt) - time.Nanosecond)
				if got := claim(t, s, key); len(got) > 0 {
					t.Error("the pin ended before its lease")
				}
				end(t, s, lease)
				must(t, s.retirePins(ctx))
				stats, err := s.Stats(ctx)
				must(t, err)
				if stats.Pins != 0 || stats.Garbage != 2 {
					t.Errorf("%d pins, %d garbage", stats.Pins, stats.Garbage)
				}
				if got := claim(t, s, key); len(got) != 1 {
					t.Error("the pin outlived its lease")
				}
			})
		})
	}
}

func TestProtectChecks(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx := context.Background()
		lease, err := s.AcquireWriter(ctx, "t")
		must(t, err)
		if _, err := s.Protect(ctx, lease.Writer, []BlobKey{"sandbox-files/x"}); !errors.Is(err, ErrInvalidEntry) {
			t.Errorf("bad key: %v", err)
		}
		if _, err := s.Protect(ctx, Writer{}, nil); !errors.Is(err, ErrInvalidID) {
			t.Errorf("no thread: %v", err)
		}
		w := lease.Writer
		w.Fence++
		if _, err := s.Protect(ctx, w, nil); !errors.Is(err, ErrWriterLost) {
			t.Errorf("another fence: %v", err)
		}
		time.Sleep(time.Until(lease.ExpiresAt))
		if _, err := s.Protect(ctx, lease.Writer, nil); !errors.Is(err, ErrWriterLost) {
			t.Errorf("at the expiry: %v", err)
		}
	})
}

func TestAppendTurnsPinsIntoRuns(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	c := testCheckpoint("t", 0, "")
	protect(t, s, lease.Writer, append(c.BlobKeys(), testKey("never used"))...)
	must(t, s.Append(ctx, lease.Writer, c, ""))
	stats, err := s.Stats(ctx)
	must(t, err)
	if stats.Pins != 1 {
		t.Errorf("%d pins are left, want the one that was never used", stats.Pins)
	}
	// What the head uses needs no pin.
	if unused := protect(t, s, lease.Writer, append(c.BlobKeys(), testKey("never used"))...); !slices.Equal(unused, []BlobKey{testKey("never used")}) {
		t.Errorf("unused: %q", unused)
	}
	if stats, err = s.Stats(ctx); err != nil || stats.Pins != 1 {
		t.Errorf("%d pins, %v", stats.Pins, err)
	}
}

func TestProtectWaitsForADeletion(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx := context.Background()
		key := testKey("going")
		lease, err := s.AcquireWriter(ctx, "t")
		must(t, err)
		claimed, err := s.claimUnused(ctx, []BlobKey{key})
		must(t, err)
		if again, err := s.claimUnused(ctx, []BlobKey{key}); err != nil || len(again) > 0 {
			t.Errorf("two sweeps delete %q, %v", again, err)
		}
		c := Checkpoint{ID: "c", ThreadID: "t", CreatedAt: testTime(1), Reason: ReasonNamed,
			Files: []Entry{{Path: "f", Kind: KindFile, BlobKey: key}}}
		var busy *BlobError
		if err := s.Append(ctx, lease.Writer, c, ""); !errors.Is(err, ErrBlobBeingDeleted) || !errors.As(err, &busy) || busy.Key != key {
			t.Errorf("append without a pin: %v", err)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := s.Protect(short, lease.Writer, []BlobKey{key}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("protect with a deadline: %v", err)
		}
		protected := make(chan error, 1)
		go func() { _, err := s.Protect(ctx, lease.Writer, []BlobKey{key}); protected <- err }()
		synctest.Wait()
		select {
		case err := <-protected:
			t.Fatalf("protect did not wait: %v", err)
		default:
		}
		must(t, s.settleDeleted(ctx, claimed, nil))
		must(t, <-protected)
		must(t, s.Append(ctx, lease.Writer, c, "")) // the capture has uploaded it anew
		if got := claim(t, s, key); len(got) > 0 {
			t.Error("a blob in use may be deleted")
		}
	})
}

// TestFailedTransactionDropsItsMarks: a claim whose transaction is rolled back
// must not refuse its blobs for ever.
func TestFailedTransactionDropsItsMarks(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	release := hold(t, s)
	key := testKey("k")
	broken := errors.New("broken")
	done := make(chan error, 2)
	go func() {
		claimed, err := s.claimUnused(ctx, []BlobKey{key})
		if err == nil && len(claimed) == 1 {
			err = s.settleDeleted(ctx, claimed, nil)
		}
		done <- err
	}()
	go func() { done <- s.update(ctx, "break", breakHalfWay(broken)) }()
	waitFor(t, "the queue", func() bool { return s.commit.length() == 2 })
	release()
	for range 2 {
		if err := <-done; err != nil && !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	if got := claim(t, s, key); len(got) != 1 {
		t.Error("the mark was left behind")
	}
}
