package checkpointdb_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/workspace"
)

// TestSoak runs writers that capture, append, undo, prune and lose their leases,
// beside sweeps that never rest and know no age limit, on one store and one local
// directory, in real time. Then it restores every checkpoint that is left.
func TestSoak(t *testing.T) {
	span := 3 * time.Second
	if testing.Short() {
		span = 500 * time.Millisecond
	}
	for _, err := range soak(t, span, true) {
		t.Error(err)
	}
}

// TestSoakNeedsPins shows that the soak can fail: without pins it soon leaves a
// checkpoint that cannot be restored.
func TestSoakNeedsPins(t *testing.T) {
	for round := range 60 { // it takes one or two
		if lost := soak(t, 500*time.Millisecond, false); len(lost) > 0 {
			t.Logf("round %d: %v", round, lost[0])
			return
		}
	}
	t.Error("without pins nothing was lost")
}

// soak returns what could not be restored in the end.
func soak(t *testing.T, span time.Duration, pins bool) (lost []error) {
	ctx := context.Background()
	dir := t.TempDir()
	store, err := checkpointdb.Open(filepath.Join(dir, "test.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.SkipSync() // the disk would set the pace, not the races
	bucket, err := buckets.Open(ctx, filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()

	const writers = 6
	end := time.Now().Add(span)
	var writing, sweeping sync.WaitGroup
	for n := range writers {
		writing.Go(func() {
			w := &soakWriter{store: store, thread: checkpointdb.ThreadID(fmt.Sprint("thread-", n)), dir: filepath.Join(dir, fmt.Sprint("workspace-", n)), r: rand.New(rand.NewPCG(uint64(n), 1))}
			for time.Now().Before(end) {
				if err := w.turn(ctx, pins, func(ctx context.Context, opts *workspace.CaptureOptions) (workspace.Captured, error) {
					return workspace.Capture(ctx, w.dir, bucket, opts)
				}); err != nil && pins { // without, captures fail on what vanishes under them
					t.Errorf("%s: %v", w.thread, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	var swept atomic.Int64
	for _, quick := range []bool{true, false} {
		sweeping.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				report, err := checkpointdb.Sweep(ctx, store, bucket, &checkpointdb.SweepOptions{
					Quick: quick, OlderThan: 1, Clock: func() time.Time { return time.Now().Add(time.Hour) },
				})
				if err != nil {
					t.Errorf("sweep: %v", err)
					return
				}
				swept.Add(report.Deleted)
			}
		})
	}
	writing.Wait()
	close(done)
	sweeping.Wait()

	if err := store.Check(ctx); err != nil {
		t.Error(err)
	}
	restored := 0
	for n := range writers {
		for c, err := range store.List(ctx, checkpointdb.ThreadID(fmt.Sprint("thread-", n))) {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := workspace.Restore(ctx, bucket, c, filepath.Join(dir, "restored", fmt.Sprint(restored)), nil); err != nil {
				lost = append(lost, fmt.Errorf("%s: %w", c.ID, err))
			}
			restored++
		}
	}
	if pins && (restored == 0 || swept.Load() == 0) {
		t.Errorf("%d checkpoints restored, %d blobs swept: nothing met", restored, swept.Load())
	}
	t.Logf("%d checkpoints restored, %d blobs swept", restored, swept.Load())
	return lost
}

// soakWriter is one thread with its workspace.
type soakWriter struct {
	store  *checkpointdb.Store
	thread checkpointdb.ThreadID
	dir    string
	r      *rand.Rand
	n      int
}

// turn changes the workspace, saves it, and sometimes undoes, prunes, or lets
// somebody break its lease on the way.
func (w *soakWriter) turn(ctx context.Context, pins bool, capture func(context.Context, *workspace.CaptureOptions) (workspace.Captured, error)) error {
	// Few contents for all threads, so that what one drops another takes up.
	for range 3 {
		name := filepath.Join(w.dir, fmt.Sprint("file-", w.r.IntN(6)))
		if err := os.MkdirAll(w.dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(name, fmt.Append(nil, "content ", w.r.IntN(12)), 0o600); err != nil {
			return err
		}
	}
	err := checkpointdb.WithLease(ctx, w.store, w.thread, func(ctx context.Context, writer checkpointdb.Writer) error {
		var opts workspace.CaptureOptions
		if pins {
			opts.Protect = checkpointdb.ProtectFor(w.store, writer)
		}
		captured, err := capture(ctx, &opts)
		if err != nil {
			return err
		}
		// A runner has other things to do, too. Without pins a sweep has the time to
		// come by, so that it does not take luck to show what that costs.
		pause := time.Duration(w.r.IntN(20)) * time.Millisecond
		if !pins {
			pause = 100 * time.Millisecond
		}
		time.Sleep(pause)
		if w.r.IntN(8) == 0 { // the lease is broken by an operator
			if err := w.store.Release(ctx, writer); err != nil {
				return err
			}
		}
		head, err := w.store.Head(ctx, w.thread)
		if err != nil {
			return err
		}
		w.n++
		c := checkpointdb.Checkpoint{
			ID: checkpointdb.CheckpointID(fmt.Sprint(w.thread, "#", w.n)), ThreadID: w.thread, ParentCheckpointID: head,
			CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic, Files: captured.Files,
		}
		if err := w.store.Append(ctx, writer, c, head); err != nil {
			return err
		}
		switch w.r.IntN(5) {
		case 0, 1:
			return w.store.DeleteHead(ctx, writer, c.ID)
		case 2:
			_, err := w.store.DeleteCheckpoints(ctx, writer, 2)
			return err
		}
		return nil
	})
	if errors.Is(err, checkpointdb.ErrWriterLost) {
		return nil
	}
	return err
}
