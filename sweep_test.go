package checkpointdb_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/internal/faultblob"
	"checkpointdb/memstore"

	"go.uber.org/goleak"
	"gocloud.dev/blob"
)

// forEachSweepStore runs a test on the bbolt store, which marks what a sweep
// deletes, and on one that can't.
func forEachSweepStore(t *testing.T, f func(*testing.T, checkpointdb.CheckpointStore)) {
	t.Run("bbolt", func(t *testing.T) {
		defer goleak.VerifyNone(t)
		s, err := checkpointdb.Open(filepath.Join(t.TempDir(), "test.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Check(context.Background()); err != nil {
				t.Error(err)
			}
			s.Close()
		}()
		f(t, s)
	})
	t.Run("memstore", func(t *testing.T) {
		defer goleak.VerifyNone(t)
		s, err := memstore.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		f(t, s)
	})
}

func blobFile(text string) checkpointdb.BlobKey {
	return checkpointdb.FileKey(sha256.Sum256([]byte(text)))
}

func blobArtifact(text string) checkpointdb.BlobKey {
	return checkpointdb.ArtifactKey(sha256.Sum256([]byte(text)))
}

// commit makes a thread of one checkpoint that uses the keys.
func commit(ctx context.Context, store checkpointdb.CheckpointStore, thread checkpointdb.ThreadID, keys ...checkpointdb.BlobKey) error {
	lease, err := store.AcquireWriter(ctx, thread)
	if err != nil {
		return err
	}
	defer store.Release(context.WithoutCancel(ctx), lease.Writer)
	at := time.UnixMilli(1)
	c := checkpointdb.Checkpoint{
		ID: checkpointdb.CheckpointID("checkpoint of " + thread), ThreadID: thread, CreatedAt: at, Reason: checkpointdb.ReasonAutomatic,
	}
	for i, key := range keys {
		if strings.HasPrefix(string(key), checkpointdb.FileKeyPrefix) {
			c.Files = append(c.Files, checkpointdb.Entry{Path: fmt.Sprint(i), Kind: checkpointdb.KindFile, BlobKey: key})
		} else {
			c.Artifacts = append(c.Artifacts, checkpointdb.Artifact{
				ArtifactID: fmt.Sprint(i), Name: "name", MimeType: "text/plain", BlobKey: key, CreatedAt: at,
			})
		}
	}
	return store.Append(ctx, lease.Writer, c, "")
}

func mustCommit(t *testing.T, store checkpointdb.CheckpointStore, thread checkpointdb.ThreadID, keys ...checkpointdb.BlobKey) {
	t.Helper()
	if err := commit(t.Context(), store, thread, keys...); err != nil {
		t.Fatal(err)
	}
}

func upload[K ~string](t *testing.T, b *blob.Bucket, content string, keys ...K) {
	t.Helper()
	for _, key := range keys {
		if err := b.WriteAll(t.Context(), string(key), []byte(content), nil); err != nil {
			t.Fatal(err)
		}
	}
}

func openMem(t *testing.T) *blob.Bucket {
	t.Helper()
	b, err := buckets.Open(t.Context(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func openLocal(t *testing.T) (b *blob.Bucket, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "blobs")
	b, err := buckets.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return b, dir
}

// age sets how old a local object is.
func age[K ~string](t *testing.T, dir string, old time.Duration, keys ...K) {
	t.Helper()
	for _, key := range keys {
		at := time.Now().Add(-old)
		if err := os.Chtimes(filepath.Join(dir, filepath.FromSlash(string(key))), at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// listing returns all keys of the bucket and their sizes.
func listing(t *testing.T, b *blob.Bucket) map[string]int64 {
	t.Helper()
	objects := map[string]int64{}
	for it := b.List(nil); ; {
		object, err := it.Next(context.Background())
		if err == io.EOF {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects[object.Key] = object.Size
	}
}

// wantCounts compares the numbers of two reports.
func wantCounts(t *testing.T, what string, got, want checkpointdb.SweepReport) {
	t.Helper()
	got.ForeignKeys, got.Failures, want.ForeignKeys, want.Failures = nil, nil, nil, nil
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: report\n%s, want\n%s", what, g, w)
	}
}

// twoDaysOn is a clock that makes everything two days older than it is.
func twoDaysOn() time.Time { return time.Now().Add(48 * time.Hour) }

// Every kind of object there is, of every age, used or not: the plan of a dry
// run, that the sweep does the same, and that a second one finds nothing to do.
func TestSweep(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		bucket, dir := openLocal(t)
		defer bucket.Close()
		const day = 24 * time.Hour
		foreign := checkpointdb.FileKeyPrefix + "README"
		objects := []struct {
			key       string
			old       time.Duration
			used      bool
			deleted   bool
			isForeign bool
		}{
			{string(blobFile("used")), 3 * day, true, false, false},
			{string(blobFile("unused, old")), 3 * day, false, true, false},
			{string(blobFile("unused, old too")), day + time.Hour, false, true, false},
			{string(blobFile("unused, young")), time.Hour, false, false, false},
			{string(blobFile("unused, from the future")), -3 * day, false, false, false},
			{string(blobArtifact("used")), 3 * day, true, false, false},
			{string(blobArtifact("unused, old")), 3 * day, false, true, false},
			{string(blobArtifact("unused, young")), 0, false, false, false},
			// One digest under both prefixes is two blobs.
			{string(blobFile("both")), 3 * day, true, false, false},
			{string(blobArtifact("both")), 3 * day, false, true, false},
			{foreign, 3 * day, false, false, true},
			// Beyond the prefixes.
			{"sandbox-files/other", 3 * day, false, false, false},
			{"sandbox-files/md5/" + strings.Repeat("0", 64), 3 * day, false, false, false},
			{"zzz", 3 * day, false, false, false},
		}
		var used []checkpointdb.BlobKey
		want := listing(t, bucket)
		for _, o := range objects {
			upload(t, bucket, "12345", o.key)
			age(t, dir, o.old, o.key)
			if o.used {
				used = append(used, checkpointdb.BlobKey(o.key))
			}
			if !o.deleted {
				want[o.key] = 5
			}
		}
		mustCommit(t, store, "thread", append(used, blobFile("used, but missing"))...)

		plan, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		wantCounts(t, "dry run", plan, checkpointdb.SweepReport{
			DryRun: true, Scanned: 11, Kept: 3, TooYoung: 3, Deleted: 4, DeletedBytes: 20, Foreign: 1,
		})
		if n := len(listing(t, bucket)); n != len(objects) {
			t.Errorf("a dry run left %d of %d objects", n, len(objects))
		}
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		plan.DryRun = false
		wantCounts(t, "sweep", report, plan)
		if !slices.Equal(report.ForeignKeys, []string{foreign}) || len(report.Failures) != 0 {
			t.Errorf("foreign keys %q, failures %v", report.ForeignKeys, report.Failures)
		}
		if got := listing(t, bucket); !maps.Equal(got, want) {
			t.Errorf("left are %v, want %v", got, want)
		}
		report, err = checkpointdb.Sweep(t.Context(), store, bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantCounts(t, "second sweep", report, checkpointdb.SweepReport{Scanned: 7, Kept: 3, TooYoung: 3, Foreign: 1})
	})
}

// What goes with a thread's checkpoints becomes sweepable, and what another
// thread shares stays.
func TestSweepAfterDeleteHead(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		bucket := openMem(t)
		defer bucket.Close()
		shared, own := blobFile("shared"), blobFile("own")
		upload(t, bucket, "x", shared, own)
		mustCommit(t, store, "one", shared, own)
		mustCommit(t, store, "two", shared)
		opts := &checkpointdb.SweepOptions{Clock: twoDaysOn}
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, opts)
		if err != nil || report.Deleted != 0 || report.Kept != 2 {
			t.Fatalf("report %+v, %v", report, err)
		}
		lease, err := store.AcquireWriter(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		if err := store.DeleteHead(t.Context(), lease.Writer, "checkpoint of one"); err != nil {
			t.Fatal(err)
		}
		report, err = checkpointdb.Sweep(t.Context(), store, bucket, opts)
		if err != nil || report.Deleted != 1 || report.Kept != 1 {
			t.Errorf("report %+v, %v", report, err)
		}
		if got := listing(t, bucket); !maps.Equal(got, map[string]int64{string(shared): 1}) {
			t.Errorf("left are %v", got)
		}
	})
}

func TestSweepOptions(t *testing.T) {
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	bucket := openMem(t)
	defer bucket.Close()
	_, err = checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{OlderThan: -1, Concurrency: -2})
	if !errors.Is(err, checkpointdb.ErrInvalidOptions) || !strings.Contains(err.Error(), "OlderThan") || !strings.Contains(err.Error(), "Concurrency") {
		t.Errorf("error %v, want one that names both options", err)
	}

	key := blobFile("a day old")
	upload(t, bucket, "x", key)
	in := func(d time.Duration) func() time.Time {
		return func() time.Time { return time.Now().Add(d) }
	}
	for _, c := range []struct {
		name    string
		opts    checkpointdb.SweepOptions
		deletes bool
	}{
		{"zero value, 23 h", checkpointdb.SweepOptions{Clock: in(23 * time.Hour)}, false},
		{"zero value, 25 h", checkpointdb.SweepOptions{Clock: in(25 * time.Hour)}, true},
		{"1 ns", checkpointdb.SweepOptions{OlderThan: 1}, true},
		{"1 ns, clock behind", checkpointdb.SweepOptions{OlderThan: 1, Clock: in(-time.Hour)}, false},
		{"longer than time", checkpointdb.SweepOptions{OlderThan: 1<<63 - 1}, false},
	} {
		c.opts.DryRun = true
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &c.opts)
		if err != nil || (report.Deleted == 1) != c.deletes {
			t.Errorf("%s: deleted %d, %v", c.name, report.Deleted, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := checkpointdb.Sweep(ctx, store, bucket, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before it began: %v", err)
	}
}

// Progress runs on the caller's goroutine, may call the store, counts up, and
// ends with the report itself.
func TestSweepProgress(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		bucket := openMem(t)
		defer bucket.Close()
		for i := range 2500 {
			upload(t, bucket, "x", blobFile(fmt.Sprint(i)))
		}
		var last checkpointdb.SweepReport // unguarded: the race detector tells if another goroutine writes it
		calls := 0
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{
			Clock: twoDaysOn,
			Progress: func(r checkpointdb.SweepReport) {
				if r.Scanned < last.Scanned || r.Deleted < last.Deleted {
					t.Errorf("counts go down: %+v after %+v", r, last)
				}
				last = r
				calls++
				if err := commit(t.Context(), store, checkpointdb.ThreadID(fmt.Sprint("thread ", calls)), blobFile("new")); err != nil {
					t.Error(err)
				}
			},
		})
		if err != nil || report.Deleted != 2500 || calls < 2 {
			t.Errorf("%d calls, report %+v, %v", calls, report, err)
		}
		wantCounts(t, "last call", last, report)
	})
}

// Case 20: one key that is gone, one that can't be deleted and one that can.
func TestSweepOneBadKey(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		keys := []checkpointdb.BlobKey{blobFile("1"), blobFile("2"), blobFile("3")}
		slices.Sort(keys)
		denied := errors.New("denied for ever")
		mem := openMem(t)
		upload(t, mem, "1", keys[0])
		upload(t, mem, "22", keys[1])
		upload(t, mem, "333", keys[2])
		bucket := faultblob.Wrap(mem, func(ctx context.Context, call faultblob.Call, do func() error) error {
			switch {
			case call.Kind != faultblob.Delete:
			case call.Key == string(keys[0]):
				if err := mem.Delete(ctx, call.Key); err != nil { // somebody else is faster
					t.Error(err)
				}
			case call.Key == string(keys[1]):
				return denied
			}
			return do()
		})
		defer bucket.Close()
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
		if !errors.Is(err, checkpointdb.ErrSweepIncomplete) || !errors.Is(err, denied) || !strings.Contains(err.Error(), "1 of 3") {
			t.Errorf("error %v", err)
		}
		wantCounts(t, "sweep", report, checkpointdb.SweepReport{Scanned: 3, Deleted: 1, DeletedBytes: 3, Gone: 1, Failed: 1})
		if len(report.Failures) != 1 || report.Failures[0].Key != string(keys[1]) || !errors.Is(report.Failures[0].Err, denied) {
			t.Errorf("failures %v", report.Failures)
		}
		// What failed is not lost to the next sweep, and can be used.
		report, err = checkpointdb.Sweep(t.Context(), store, mem, &checkpointdb.SweepOptions{Clock: twoDaysOn, DryRun: true})
		if err != nil || report.Deleted != 1 {
			t.Errorf("next sweep: report %+v, %v", report, err)
		}
		mustCommit(t, store, "thread", keys[1])
	})
}

// Case 20: the listing fails on its third page, after objects were deleted.
func TestSweepListingFails(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		const artifacts, files = 1200, 500
		broken := errors.New("broken page")
		mem := openMem(t)
		for i := range artifacts {
			upload(t, mem, "xx", blobArtifact(fmt.Sprint(i)))
		}
		for i := range files {
			upload(t, mem, "xx", blobFile(fmt.Sprint(i)))
		}
		pages := 0
		bucket := faultblob.WrapPaged(mem, func(_ context.Context, call faultblob.Call, do func() error) error {
			if call.Kind == faultblob.List && call.Key == checkpointdb.FileKeyPrefix {
				if pages++; pages == 3 {
					return broken
				}
			}
			return do()
		}, 100)
		defer bucket.Close()
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
		if !errors.Is(err, checkpointdb.ErrSweepIncomplete) || !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
		if left := int64(len(listing(t, mem))); report.Deleted != artifacts+files-left || report.DeletedBytes != 2*report.Deleted || report.Failed != 0 {
			t.Errorf("report %+v with %d objects left", report, left)
		}
		report, err = checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
		if left := len(listing(t, mem)); err != nil || left != 0 {
			t.Errorf("next sweep: report %+v, %d left, %v", report, left, err)
		}
	})
}

// Case 20: two sweeps of one local directory at the same time. Each object is
// counted as deleted by one of them.
func TestSweepTwiceAtOnce(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		one, dir := openLocal(t)
		defer one.Close()
		two, err := buckets.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer two.Close()
		const unused, used = 3000, 300
		var keys []checkpointdb.BlobKey
		for i := range unused + used {
			key := blobFile(fmt.Sprint(i))
			upload(t, one, "xx", key)
			if i < used {
				keys = append(keys, key)
			}
		}
		mustCommit(t, store, "thread", keys...)
		var reports [2]checkpointdb.SweepReport
		var wg sync.WaitGroup
		for i, bucket := range []*blob.Bucket{one, two} {
			wg.Go(func() {
				var err error
				reports[i], err = checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
				if err != nil {
					t.Errorf("sweep %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if sum := reports[0].Deleted + reports[1].Deleted; sum != unused {
			t.Errorf("both deleted %d, want %d: %+v, %+v", sum, unused, reports[0], reports[1])
		}
		left := listing(t, one)
		for _, key := range keys {
			if _, ok := left[string(key)]; !ok {
				t.Errorf("%s is in use and gone", key)
			}
		}
		if len(left) != used {
			t.Errorf("%d objects are left, want %d", len(left), used)
		}
	})
}

// Case 21: a bucket that stalls holds up neither writers nor the sweep's caller,
// and the next sweep finds all in order. With a driver that heeds its context
// and one that does not.
func TestSweepStalledBucket(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		for _, kind := range []faultblob.Kind{faultblob.List, faultblob.Delete} {
			t.Run(fmt.Sprintf("%s, driver heeds context %v", kind, heeds), func(t *testing.T) {
				forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
					mem := openMem(t)
					unused := []checkpointdb.BlobKey{blobFile("1"), blobFile("2"), blobFile("3")}
					upload(t, mem, "x", unused...)
					stalled, answer := make(chan struct{}, 100), make(chan struct{})
					var calls atomic.Int64 // under way; a WaitGroup must not be added to while it is waited for
					bucket := faultblob.Wrap(mem, func(ctx context.Context, call faultblob.Call, do func() error) error {
						calls.Add(1)
						defer calls.Add(-1)
						if call.Kind == kind {
							stalled <- struct{}{}
							if heeds {
								<-ctx.Done()
								return ctx.Err()
							}
							<-answer
						}
						return do()
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					opts := &checkpointdb.SweepOptions{Clock: twoDaysOn}
					swept := make(chan error, 1)
					go func() {
						_, err := checkpointdb.Sweep(ctx, store, bucket, opts)
						swept <- err
					}()
					<-stalled

					start := time.Now()
					mustCommit(t, store, "thread", blobFile("other"))
					if took := time.Since(start); took > time.Second {
						t.Errorf("an append beside a stalled bucket took %s", took)
					}
					if _, marks := store.(*checkpointdb.Store); marks && kind == faultblob.Delete {
						if err := commit(t.Context(), store, "thread 2", unused[0]); !errors.Is(err, checkpointdb.ErrBlobBeingDeleted) {
							t.Errorf("append of a blob that is being deleted: %v", err)
						}
					}
					start = time.Now()
					cancel()
					err := <-swept
					if took := time.Since(start); !errors.Is(err, context.Canceled) || took > time.Second {
						t.Errorf("cancelled sweep returned after %s with %v", took, err)
					}

					close(answer)
					for calls.Load() > 0 {
						time.Sleep(time.Millisecond)
					}
					// The mark of a deletion that the sweep left behind goes soon after.
					for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
						_, err := checkpointdb.Sweep(t.Context(), store, mem, opts)
						if err != nil {
							t.Fatalf("next sweep: %v", err)
						}
						if len(listing(t, mem)) == 0 || time.Now().After(deadline) {
							break
						}
					}
					if left := listing(t, mem); len(left) != 0 {
						t.Errorf("left are %v", left)
					}
					for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
						err := commit(t.Context(), store, "thread 3", unused...)
						if err == nil {
							break
						}
						if !errors.Is(err, checkpointdb.ErrBlobBeingDeleted) || time.Now().After(deadline) {
							t.Fatalf("append after the sweeps: %v", err)
						}
					}
					if err := bucket.Close(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A checkpoint that is appended after the listing and before the deletion keeps
// its blobs.
func TestSweepRechecks(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		mem := openMem(t)
		orphan, other := blobFile("orphan"), blobFile("other")
		upload(t, mem, "x", orphan, other)
		bucket := faultblob.Wrap(mem, func(_ context.Context, call faultblob.Call, do func() error) error {
			err := do()
			if call.Kind == faultblob.List && call.Key == checkpointdb.FileKeyPrefix {
				mustCommit(t, store, "thread", orphan)
			}
			return err
		})
		defer bucket.Close()
		// The references are read from the start on when the listing of
		// artifacts is compared, so that the new one comes too late for that.
		upload(t, mem, "x", blobArtifact("an artifact"))
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
		if err != nil {
			t.Fatal(err)
		}
		wantCounts(t, "sweep", report, checkpointdb.SweepReport{Scanned: 3, Kept: 1, Deleted: 2, DeletedBytes: 2})
		if got := listing(t, mem); !maps.Equal(got, map[string]int64{string(orphan): 1}) {
			t.Errorf("left are %v, want the appended one", got)
		}
	})
}

// Case 26: keys below the prefixes that are no blobs, and those that only look
// as if they were below.
func TestSweepForeignKeys(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	foreign := []string{
		checkpointdb.ArtifactKeyPrefix + "deep/" + digest,
		checkpointdb.FileKeyPrefix, // as consoles make directories
		checkpointdb.FileKeyPrefix + strings.ToUpper(digest),
		checkpointdb.FileKeyPrefix + "README",
		checkpointdb.FileKeyPrefix + digest + ".17f.tmp",
		checkpointdb.FileKeyPrefix + digest[1:],
	}
	outside := []string{"sandbox-files/", "sandbox-files/sha256", "sandbox-files/sha256-" + digest, digest}
	empty := blobFile("")
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		for _, emptyIsUsed := range []bool{false, true} {
			bucket := openMem(t)
			defer bucket.Close()
			upload(t, bucket, "", foreign...)
			upload(t, bucket, "", outside...)
			upload(t, bucket, "", empty)
			want := listing(t, bucket)
			if emptyIsUsed {
				mustCommit(t, store, "thread", empty)
			} else {
				delete(want, string(empty))
			}
			report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
			if err != nil || report.Foreign != int64(len(foreign)) || !slices.Equal(report.ForeignKeys, foreign) {
				t.Errorf("foreign keys %q, want %q (%v)", report.ForeignKeys, foreign, err)
			}
			if got := listing(t, bucket); !maps.Equal(got, want) {
				t.Errorf("left are %v, want %v", got, want)
			}

			// When asked for, by the same age.
			young, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{DeleteForeign: true})
			if err != nil || young.TooYoung != int64(len(foreign)) || len(listing(t, bucket)) != len(want) {
				t.Errorf("young foreign keys: report %+v, %v", young, err)
			}
			old, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn, DeleteForeign: true})
			if err != nil || old.Foreign != int64(len(foreign)) || old.Deleted != old.Foreign {
				t.Errorf("old foreign keys: report %+v, %v", old, err)
			}
			for _, key := range foreign {
				delete(want, key)
			}
			if got := listing(t, bucket); !maps.Equal(got, want) {
				t.Errorf("left are %v, want %v", got, want)
			}
		}
	})
}

// Case 26: a sweep without an age limit beside an upload into a local directory.
func TestSweepBesideUpload(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		bucket, _ := openLocal(t)
		defer bucket.Close()
		content := strings.Repeat("content ", 1<<17)
		key := blobFile(content)
		reader := &pausingReader{r: strings.NewReader(content), pause: func() {
			time.Sleep(2 * time.Millisecond) // beyond the resolution of file times
			report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{OlderThan: 1})
			if err != nil || report.Foreign != 1 || report.Deleted != 0 {
				t.Errorf("sweep beside the upload: report %+v, %v", report, err)
			}
		}}
		if err := buckets.WriteDurable(t.Context(), bucket, string(key), int64(len(content)), reader); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, store, "thread", key)
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{OlderThan: 1, DeleteForeign: true})
		if err != nil || report.Foreign != 0 || report.Kept != 1 {
			t.Errorf("sweep after the upload: report %+v, %v", report, err)
		}
		if got, err := bucket.ReadAll(t.Context(), string(key)); err != nil || string(got) != content {
			t.Errorf("uploaded %d bytes, read %d: %v", len(content), len(got), err)
		}
	})
}

// pausingReader calls pause once, in the middle.
type pausingReader struct {
	r     io.Reader
	reads int
	pause func()
}

func (r *pausingReader) Read(p []byte) (int, error) {
	if r.reads++; r.reads == 3 {
		r.pause()
	}
	return r.r.Read(p)
}

// Every call of the bucket fails once, the first, the second and so on, before
// it had an effect or after. The sweep says so, deletes nothing that is in use
// (which the guard watches), and the next one finishes its work.
func TestSweepFaults(t *testing.T) {
	broken := errors.New("broken")
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after the effect %v", after), func(t *testing.T) {
			forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
				used := []checkpointdb.BlobKey{blobFile("used 1"), blobFile("used 2"), blobArtifact("used 3")}
				unused := []checkpointdb.BlobKey{blobFile("unused 1"), blobFile("unused 2"), blobArtifact("unused 3")}
				mustCommit(t, store, "thread", used...)
				guard := func(_ context.Context, call faultblob.Call, do func() error) error {
					if call.Kind == faultblob.Delete && slices.Contains(used, checkpointdb.BlobKey(call.Key)) {
						t.Errorf("%s is in use and was to be deleted", call.Key)
					}
					return do()
				}
				opts := &checkpointdb.SweepOptions{Clock: twoDaysOn, DeleteForeign: true}
				for n := 1; ; n++ {
					mem := openMem(t)
					upload(t, mem, "x", used...)
					upload(t, mem, "x", unused...)
					upload(t, mem, "x", checkpointdb.FileKeyPrefix+"foreign")
					var calls atomic.Int64
					failed := false
					fail := func(_ context.Context, _ faultblob.Call, do func() error) error {
						if calls.Add(1) != int64(n) {
							return do()
						}
						failed = true
						if after {
							if err := do(); err != nil {
								t.Error(err)
							}
						}
						return broken
					}
					bucket := faultblob.Wrap(mem, faultblob.Chain(guard, fail))
					report, err := checkpointdb.Sweep(t.Context(), store, bucket, opts)
					switch {
					case failed && (!errors.Is(err, checkpointdb.ErrSweepIncomplete) || !errors.Is(err, broken)):
						t.Errorf("call %d failed and the sweep returned %v", n, err)
					case !failed && err != nil:
						t.Errorf("no call failed and the sweep returned %v", err)
					}
					if left := int64(len(listing(t, mem))); after && report.Failed == 1 {
						// Whether a deletion that failed has happened is not known.
						if report.Deleted != 6-left {
							t.Errorf("call %d: report %+v, %d objects left", n, report, left)
						}
					} else if report.Deleted != 7-left {
						t.Errorf("call %d: report %+v, %d objects left", n, report, left)
					}
					if _, err := checkpointdb.Sweep(t.Context(), store, faultblob.Wrap(mem, guard), opts); err != nil {
						t.Errorf("sweep after the failure of call %d: %v", n, err)
					}
					left := slices.Sorted(maps.Keys(listing(t, mem)))
					var want []string
					for _, key := range used {
						want = append(want, string(key))
					}
					slices.Sort(want)
					if !slices.Equal(left, want) {
						t.Errorf("after the failure of call %d and another sweep are left %q, want %q", n, left, want)
					}
					bucket.Close()
					if !failed {
						if n < 7 {
							t.Errorf("only %d calls were made to fail", n-1)
						}
						return
					}
				}
			})
		})
	}
}

// A listing of many pages, each of which the bucket cuts short.
func TestSweepManyPages(t *testing.T) {
	forEachSweepStore(t, func(t *testing.T, store checkpointdb.CheckpointStore) {
		mem := openMem(t)
		var used []checkpointdb.BlobKey
		for i := range 95 {
			file, artifact := blobFile(fmt.Sprint(i)), blobArtifact(fmt.Sprint(i))
			upload(t, mem, "x", file, artifact)
			if i%3 == 0 {
				used = append(used, file, artifact)
			}
		}
		mustCommit(t, store, "thread", used...)
		var pages atomic.Int64
		bucket := faultblob.WrapPaged(mem, func(_ context.Context, call faultblob.Call, do func() error) error {
			if call.Kind == faultblob.List {
				pages.Add(1)
			}
			return do()
		}, 10)
		defer bucket.Close()
		report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
		if err != nil || pages.Load() != 20 {
			t.Errorf("%d pages, %v", pages.Load(), err)
		}
		wantCounts(t, "sweep", report, checkpointdb.SweepReport{Scanned: 190, Kept: int64(len(used)), Deleted: 126, DeletedBytes: 126})
		left := listing(t, mem)
		for _, key := range used {
			if _, ok := left[string(key)]; !ok {
				t.Errorf("%s is in use and gone", key)
			}
		}
	})
}

// A store that fails to list its references deletes nothing.
func TestSweepStoreFails(t *testing.T) {
	s, err := checkpointdb.Open(filepath.Join(t.TempDir(), "test.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	bucket := openMem(t)
	defer bucket.Close()
	upload(t, bucket, "x", blobFile("unused"))
	s.Close()
	report, err := checkpointdb.Sweep(t.Context(), s, bucket, &checkpointdb.SweepOptions{Clock: twoDaysOn})
	if checkpointdb.CodeOf(err) != checkpointdb.ErrClosed || report.Deleted != 0 || len(listing(t, bucket)) != 1 {
		t.Errorf("sweep of a closed store: report %+v, %v", report, err)
	}
}

func ExampleSweep() {
	ctx := context.Background()
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := buckets.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()
	// No checkpoint uses this blob.
	key := checkpointdb.FileKey(sha256.Sum256([]byte("hello")))
	if err := buckets.WriteDurable(ctx, bucket, string(key), 5, strings.NewReader("hello")); err != nil {
		log.Fatal(err)
	}

	report, err := checkpointdb.Sweep(ctx, store, bucket, nil)
	fmt.Println(report.Deleted, report.TooYoung, err)

	nextWeek := func() time.Time { return time.Now().Add(7 * 24 * time.Hour) }
	report, err = checkpointdb.Sweep(ctx, store, bucket, &checkpointdb.SweepOptions{Clock: nextWeek})
	fmt.Println(report.Deleted, report.TooYoung, err)
	// Output:
	// 0 1 <nil>
	// 1 0 <nil>
}
