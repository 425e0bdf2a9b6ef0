package checkpointdb

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// appendBlobs appends a checkpoint with these contents as its files, and puts
// them into the bucket.
func appendBlobs(t *testing.T, s *Store, bucket *blob.Bucket, w Writer, id, head CheckpointID, contents ...string) {
	t.Helper()
	c := Checkpoint{ID: id, ThreadID: w.ThreadID, ParentCheckpointID: head, CreatedAt: time.Now(), Reason: ReasonAutomatic}
	for _, text := range contents {
		must(t, bucket.WriteAll(context.Background(), string(testKey(text)), []byte(text), nil))
		c.Files = append(c.Files, Entry{Path: text, Kind: KindFile, BlobKey: testKey(text), Size: int64(len(text))})
	}
	must(t, s.Append(context.Background(), w, c, head))
}

func existing(t *testing.T, bucket *blob.Bucket, contents ...string) string {
	t.Helper()
	var there []string
	for _, text := range contents {
		ok, err := bucket.Exists(context.Background(), string(testKey(text)))
		must(t, err)
		if ok {
			there = append(there, text)
		}
	}
	return strings.Join(there, " ")
}

func TestQuickSweep(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx := context.Background()
		bucket := memblob.OpenBucket(nil)
		defer bucket.Close()
		lease, err := s.AcquireWriter(ctx, "t")
		must(t, err)
		appendBlobs(t, s, bucket, lease.Writer, "1", "", "old", "both")
		appendBlobs(t, s, bucket, lease.Writer, "2", "1", "both", "new")
		must(t, bucket.WriteAll(ctx, string(testKey("stranger")), nil, nil))
		must(t, bucket.WriteAll(ctx, string(testKey("pinned")), nil, nil))
		protect(t, s, lease.Writer, testKey("pinned"))
		must(t, s.DeleteHead(ctx, lease.Writer, "2"))

		opts := SweepOptions{Quick: true, OlderThan: time.Minute}
		report, err := Sweep(ctx, s, bucket, &opts)
		must(t, err)
		if report.Scanned != 1 || report.TooYoung != 1 || report.Deleted != 0 {
			t.Errorf("at once: %+v", report)
		}
		time.Sleep(time.Minute + time.Nanosecond)
		opts.DryRun = true
		dry, err := Sweep(ctx, s, bucket, &opts)
		must(t, err)
		opts.DryRun = false
		wet, err := Sweep(ctx, s, bucket, &opts)
		must(t, err)
		if dry.Deleted != 1 || wet.Deleted != 1 || dry.Scanned != wet.Scanned {
			t.Errorf("dry run %+v, sweep %+v", dry, wet)
		}
		if got := existing(t, bucket, "old", "both", "new", "stranger", "pinned"); got != "old both stranger pinned" {
			t.Errorf("left in the bucket: %s", got)
		}
		// The pin dies with its lease, and is garbage from when a sweep sees it.
		must(t, s.Release(ctx, lease.Writer))
		if report, err = Sweep(ctx, s, bucket, &opts); err != nil || report.TooYoung != 1 {
			t.Errorf("%+v, %v", report, err)
		}
		time.Sleep(time.Minute + time.Nanosecond)
		if report, err = Sweep(ctx, s, bucket, &opts); err != nil || report.Deleted != 1 {
			t.Errorf("%+v, %v", report, err)
		}
		// A blob that somebody else deleted is forgotten.
		lease, err = s.AcquireWriter(ctx, "t")
		must(t, err)
		must(t, s.DeleteThread(ctx, lease.Writer))
		must(t, bucket.Delete(ctx, string(testKey("old"))))
		time.Sleep(time.Minute + time.Nanosecond)
		if report, err = Sweep(ctx, s, bucket, &opts); err != nil || report.Deleted != 1 || report.Gone != 1 {
			t.Errorf("%+v, %v", report, err)
		}
		stats, err := s.Stats(ctx)
		must(t, err)
		if stats.Garbage != 0 || stats.Pins != 0 {
			t.Errorf("left: %+v", stats)
		}
		if got := existing(t, bucket, "old", "both", "new", "stranger", "pinned"); got != "stranger" {
			t.Errorf("left in the bucket: %s", got)
		}
	})
}

// TestQuickSweepManyBatches walks more garbage than fits into one claim.
func TestQuickSweepManyBatches(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	c := Checkpoint{ID: "c", ThreadID: "t", CreatedAt: testTime(1), Reason: ReasonNamed, Files: manyFiles(2*claimBatch + 10)}
	for _, e := range c.Files[5:] { // five are not there
		must(t, bucket.WriteAll(ctx, string(e.BlobKey), nil, &blob.WriterOptions{ContentType: "x"}))
	}
	must(t, s.Append(ctx, lease.Writer, c, ""))
	must(t, s.DeleteHead(ctx, lease.Writer, "c"))
	report, err := Sweep(ctx, s, bucket, &SweepOptions{Quick: true, OlderThan: 1})
	must(t, err)
	if report.Deleted != int64(len(c.Files))-5 || report.Gone != 5 {
		t.Errorf("%+v", report)
	}
}

func TestQuickSweepNeedsOurStore(t *testing.T) {
	s := openTest(t, nil)
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	if _, err := Sweep(context.Background(), struct{ CheckpointStore }{s}, bucket, &SweepOptions{Quick: true}); !errors.Is(err, ErrInvalidOptions) {
		t.Errorf("got %v", err)
	}
}

func TestSweeper(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		ctx, cancel := context.WithCancel(context.Background())
		bucket := memblob.OpenBucket(nil)
		defer bucket.Close()
		var log bytes.Buffer
		sweeper, err := NewSweeper(s, bucket, &SweeperOptions{
			Sweep: SweepOptions{OlderThan: time.Hour}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		must(t, err)
		if _, ok := sweeper.Last(); ok {
			t.Error("a sweep before the first")
		}
		ended := make(chan error)
		go func() { ended <- sweeper.Run(ctx) }()
		synctest.Wait()
		if err := sweeper.Run(ctx); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("a second Run: %v", err)
		}
		lease, err := s.AcquireWriter(ctx, "t")
		must(t, err)
		appendBlobs(t, s, bucket, lease.Writer, "1", "", "one")
		must(t, s.DeleteHead(ctx, lease.Writer, "1"))
		must(t, bucket.WriteAll(ctx, string(testKey("stranger")), nil, nil))
		time.Sleep(50 * time.Minute)
		run, ok := sweeper.Last()
		if !ok || !run.Quick || run.Err != nil || time.Since(run.Began) > 11*time.Minute {
			t.Errorf("last run %+v", run)
		}
		if got := existing(t, bucket, "one", "stranger"); got != "one stranger" {
			t.Errorf("too early, left is %q", got)
		}
		time.Sleep(30 * time.Minute)
		if got := existing(t, bucket, "one", "stranger"); got != "stranger" {
			t.Errorf("after 80 minutes, left is %q", got)
		}
		time.Sleep(24 * time.Hour)
		if got := existing(t, bucket, "one", "stranger"); got != "" {
			t.Errorf("after a full sweep, left is %q", got)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 2 {
			t.Errorf("%d lines were logged, want one for each sweep that deleted something:\n%s", lines, &log)
		}
	})
}

func TestSweeperRefusesContradictions(t *testing.T) {
	_, err := NewSweeper(nil, nil, &SweeperOptions{QuickEvery: -1, Sweep: SweepOptions{Quick: true, Concurrency: -2}})
	if !errors.Is(err, ErrInvalidOptions) {
		t.Fatal(err)
	}
	for _, part := range []string{"QuickEvery", "Sweep.Quick", "Concurrency"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}
