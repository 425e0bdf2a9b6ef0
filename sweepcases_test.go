package checkpointdb_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"checkpointdb"
	"checkpointdb/internal/faultblob"
	"checkpointdb/internal/storeopen"
	"checkpointdb/workspace"
)

// Cases of captures that meet sweeps, in time that passes at will.

// stage is a store, a bucket and a workspace with one file of content "x".
type stage struct {
	t      *testing.T
	store  *checkpointdb.Store
	bucket *blob.Bucket
	dir    string
	index  string
}

func onStage(t *testing.T, play func(*stage)) {
	t.Helper()
	dir := t.TempDir()
	s := &stage{dir: filepath.Join(dir, "workspace"), index: filepath.Join(dir, "index")}
	s.ok(t, os.Mkdir(s.dir, 0o700))
	s.ok(t, os.WriteFile(filepath.Join(s.dir, "file"), []byte("x"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		s.t = t
		s.store = storeopen.Open(t, filepath.Join(dir, "test.db"), nil)
		s.bucket = memblob.OpenBucket(nil)
		defer s.bucket.Close()
		play(s)
	})
}

func (s *stage) ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *stage) orphan() {
	s.t.Helper()
	s.ok(s.t, s.bucket.WriteAll(context.Background(), string(content("x")), []byte("x"), nil))
}

func (s *stage) acquire() checkpointdb.Writer {
	s.t.Helper()
	lease, err := s.store.AcquireWriter(context.Background(), "t")
	s.ok(s.t, err)
	return lease.Writer
}

func (s *stage) capture(w checkpointdb.Writer) []checkpointdb.Entry {
	s.t.Helper()
	captured, err := workspace.Capture(context.Background(), s.dir, s.bucket, &workspace.CaptureOptions{
		Protect: checkpointdb.ProtectFor(s.store, w), Index: s.index,
	})
	s.ok(s.t, err)
	return captured.Files
}

func (s *stage) append(w checkpointdb.Writer, id checkpointdb.CheckpointID, files []checkpointdb.Entry) error {
	return s.store.Append(context.Background(), w, checkpointdb.Checkpoint{
		ID: id, ThreadID: "t", CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic, Files: files,
	}, "")
}

func (s *stage) sweep(bucket *blob.Bucket, quick bool, clock func() time.Time) checkpointdb.SweepReport {
	s.t.Helper()
	report, err := checkpointdb.Sweep(context.Background(), s.store, bucket, &checkpointdb.SweepOptions{Quick: quick, Clock: clock})
	s.ok(s.t, err)
	return report
}

// restores is the right outcome of all of these.
func (s *stage) restores(id checkpointdb.CheckpointID) {
	s.t.Helper()
	c, err := s.store.Get(context.Background(), id)
	s.ok(s.t, err)
	_, err = workspace.Restore(context.Background(), s.bucket, c, filepath.Join(s.t.TempDir(), "restored"), nil)
	s.ok(s.t, err)
}

// TestCase15ReusedContent: a capture finds old content in the bucket and takes
// it over, while sweeps would delete it.
func TestCase15ReusedContent(t *testing.T) {
	t.Run("captured, swept, appended", func(t *testing.T) {
		onStage(t, func(s *stage) {
			s.orphan()
			time.Sleep(48 * time.Hour)
			w := s.acquire()
			files := s.capture(w)
			if report := s.sweep(s.bucket, false, nil); report.Kept != 1 || report.Deleted != 0 {
				t.Errorf("%+v", report)
			}
			s.sweep(s.bucket, true, nil)
			s.ok(t, s.append(w, "c", files))
			s.restores("c")
		})
	})
	t.Run("appended after the listing", func(t *testing.T) {
		onStage(t, func(s *stage) {
			s.orphan()
			time.Sleep(48 * time.Hour)
			w := s.acquire()
			files := []checkpointdb.Entry{{Path: "file", Kind: checkpointdb.KindFile, BlobKey: content("x"), Size: 1}} // without a pin
			listed := faultblob.Wrap(s.bucket, func(_ context.Context, call faultblob.Call, do func() error) error {
				err := do()
				if call.Kind == faultblob.List && call.Key == checkpointdb.FileKeyPrefix {
					s.ok(t, s.append(w, "c", files))
				}
				return err
			})
			if report := s.sweep(listed, false, nil); report.Kept != 1 || report.Deleted != 0 {
				t.Errorf("%+v", report)
			}
			s.restores("c")
		})
	})
	t.Run("appended while it is being deleted", func(t *testing.T) {
		onStage(t, func(s *stage) {
			s.orphan()
			time.Sleep(48 * time.Hour)
			w := s.acquire()
			files := []checkpointdb.Entry{{Path: "file", Kind: checkpointdb.KindFile, BlobKey: content("x"), Size: 1}}
			deleting := faultblob.Wrap(s.bucket, func(_ context.Context, call faultblob.Call, do func() error) error {
				if call.Kind == faultblob.Delete {
					if err := s.append(w, "c", files); !errors.Is(err, checkpointdb.ErrBlobBeingDeleted) {
						t.Errorf("append: %v", err)
					}
				}
				return do()
			})
			if report := s.sweep(deleting, false, nil); report.Deleted != 1 {
				t.Errorf("%+v", report)
			}
			if _, err := s.store.Get(context.Background(), "c"); !errors.Is(err, checkpointdb.ErrCheckpointNotFound) {
				t.Errorf("get: %v", err)
			}
		})
	})
	t.Run("a capture longer than the age limit", func(t *testing.T) {
		onStage(t, func(s *stage) {
			w := s.acquire()
			files := s.capture(w)
			for range 60 { // an hour each, with the lease kept alive
				for range 60 {
					time.Sleep(time.Minute)
					_, err := s.store.Renew(context.Background(), w)
					s.ok(t, err)
				}
				s.sweep(s.bucket, false, nil)
				s.sweep(s.bucket, true, nil)
			}
			s.ok(t, s.append(w, "c", files))
			s.restores("c")
		})
	})
}

// TestCase16UploadedAgain: what a capture remembers of the last one must not make
// it believe that the bucket still has it.
func TestCase16UploadedAgain(t *testing.T) {
	onStage(t, func(s *stage) {
		w := s.acquire()
		s.ok(t, s.append(w, "c", s.capture(w)))
		s.ok(t, s.store.DeleteHead(context.Background(), w, "c"))
		time.Sleep(25 * time.Hour)
		if report := s.sweep(s.bucket, true, nil); report.Deleted != 1 {
			t.Fatalf("%+v", report)
		}
		w = s.acquire()
		s.ok(t, s.append(w, "again", s.capture(w)))
		s.restores("again")
	})
}

// TestCase19AnotherClock: the bucket's clock is a week behind the host's, or
// ahead of it. What is protected does not depend on clocks, and what seems to be
// of the future is not old.
func TestCase19AnotherClock(t *testing.T) {
	week := 7 * 24 * time.Hour
	onStage(t, func(s *stage) {
		w := s.acquire()
		files := s.capture(w)
		ahead := func() time.Time { return time.Now().Add(week) }
		for _, quick := range []bool{false, true} {
			if report := s.sweep(s.bucket, quick, ahead); report.Deleted != 0 {
				t.Errorf("quick %t: %+v", quick, report)
			}
		}
		s.ok(t, s.append(w, "c", files))
		s.restores("c")
	})
	onStage(t, func(s *stage) {
		s.orphan()
		time.Sleep(48 * time.Hour)
		behind := func() time.Time { return time.Now().Add(-week) }
		if report := s.sweep(s.bucket, false, behind); report.TooYoung != 1 || report.Deleted != 0 {
			t.Errorf("%+v", report)
		}
	})
}
