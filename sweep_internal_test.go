package checkpointdb

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"checkpointdb/internal/faultblob"

	bolt "go.etcd.io/bbolt"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"
)

// These tests look at the protocol between a sweep and its store, and at
// listings that no real bucket gives. What a sweep does to real stores and
// buckets is in sweep_test.go.

func numberedKey(prefix string, i int) BlobKey {
	var d Digest
	binary.BigEndian.PutUint64(d[len(d)-8:], uint64(i))
	return BlobKey(prefix + hex.EncodeToString(d[:]))
}

// scriptedStore is a claimer that yields what it is told and logs what it is
// asked. Only BlobReferences and the claimer's methods may be called.
type scriptedStore struct {
	CheckpointStore
	references iter.Seq[BlobKey]
	inUse      []BlobKey // by the time of the claim
	onClaim    func()
	claimErr   error
	settleErr  error

	mu   sync.Mutex // guards log
	log  []string
	gone []BlobKey
	kept []BlobKey
}

func (s *scriptedStore) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *scriptedStore) BlobReferences(context.Context) iter.Seq2[BlobReference, error] {
	return func(yield func(BlobReference, error) bool) {
		if s.references == nil {
			return
		}
		for key := range s.references {
			if !yield(BlobReference{key, 1}, nil) {
				return
			}
		}
	}
}

func (s *scriptedStore) claimUnused(_ context.Context, keys []BlobKey) ([]BlobKey, error) {
	s.note("claim %v", short(keys...))
	if s.onClaim != nil {
		s.onClaim()
	}
	if s.claimErr != nil {
		return nil, s.claimErr
	}
	return s.previewUnused(context.Background(), keys)
}

func (s *scriptedStore) previewUnused(_ context.Context, keys []BlobKey) ([]BlobKey, error) {
	var claimed []BlobKey
	for _, key := range keys {
		if !slices.Contains(s.inUse, key) {
			claimed = append(claimed, key)
		}
	}
	return claimed, nil
}

func (s *scriptedStore) settleDeleted(ctx context.Context, gone, kept []BlobKey) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.note("settle gone %v kept %v", short(gone...), short(kept...))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone, s.kept = append(s.gone, gone...), append(s.kept, kept...)
	return s.settleErr
}

// short abbreviates numbered keys to a letter and the number.
func short[K ~string](keys ...K) []string {
	var names []string
	for _, key := range keys {
		name := string(key)
		for prefix, letter := range map[string]string{ArtifactKeyPrefix: "a", FileKeyPrefix: "f"} {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				if _, err := ParseBlobKey(name); err == nil {
					rest = strings.TrimLeft(rest, "0")
				}
				name = letter + rest
			}
		}
		names = append(names, name)
	}
	return names
}

func put(t testing.TB, b *blob.Bucket, keys ...BlobKey) {
	t.Helper()
	for _, key := range keys {
		must(t, b.WriteAll(t.Context(), string(key), []byte("content"), nil))
	}
}

// later is a clock that makes all that exists two days old.
func later() time.Time { return time.Now().Add(48 * time.Hour) }

func sweepOptions(t testing.TB, o *SweepOptions) SweepOptions {
	t.Helper()
	opts, err := o.withDefaults()
	must(t, err)
	return opts
}

// The whole protocol as a script: what is asked of bucket and store, in which
// order. Pages and batches are small so that there are several.
func TestSweepOrder(t *testing.T) {
	store := &scriptedStore{
		references: slices.Values([]BlobKey{numberedKey(ArtifactKeyPrefix, 2), numberedKey(FileKeyPrefix, 3), numberedKey(FileKeyPrefix, 9)}),
		inUse:      []BlobKey{numberedKey(FileKeyPrefix, 4)},
	}
	mem := memblob.OpenBucket(nil)
	for i := 1; i <= 3; i++ {
		put(t, mem, numberedKey(ArtifactKeyPrefix, i))
	}
	for i := 1; i <= 7; i++ {
		put(t, mem, numberedKey(FileKeyPrefix, i))
	}
	put(t, mem, FileKeyPrefix+"README")
	bucket := faultblob.Wrap(mem, func(_ context.Context, call faultblob.Call, do func() error) error {
		store.note("%s %s", call.Kind, short(call.Key)[0])
		return do()
	})
	defer bucket.Close()

	s := newSweep(store, bucket, sweepOptions(t, &SweepOptions{Clock: later, Concurrency: 1, DeleteForeign: true}))
	s.objects.pageSize, s.batchSize = 3, 4
	must(t, s.run(t.Context()))
	want := `list a
list f
claim [a1 a3 f1 f2]
delete a1
delete a3
delete f1
delete f2
settle gone [a1 a3 f1 f2] kept []
list f
list f
claim [f4 f5 f6 f7]
delete f5
delete f6
delete f7
settle gone [f5 f6 f7] kept []
delete fREADME`
	if got := strings.Join(store.log, "\n"); got != want {
		t.Errorf("calls:\n%s\n\nwant:\n%s", got, want)
	}
	wantReport := "Scanned:11 Kept:3 TooYoung:0 Deleted:8 DeletedBytes:56 Gone:0 Failed:0 Foreign:1"
	if got := fmt.Sprintf("%+v", s.report); !strings.Contains(got, wantReport) {
		t.Errorf("report %s, want %s", got, wantReport)
	}
}

// What is deleted is settled as gone, the rest as kept, whatever fails.
func TestSweepSettles(t *testing.T) {
	broken := errors.New("broken")
	keys := []BlobKey{numberedKey(FileKeyPrefix, 1), numberedKey(FileKeyPrefix, 2), numberedKey(FileKeyPrefix, 3)}
	run := func(store *scriptedStore, hook faultblob.Hook, ctx context.Context) (SweepReport, error) {
		mem := memblob.OpenBucket(nil)
		put(t, mem, keys...)
		bucket := faultblob.Wrap(mem, hook)
		defer bucket.Close()
		return Sweep(ctx, store, bucket, &SweepOptions{Clock: later, Concurrency: 1})
	}
	passOn := func(_ context.Context, _ faultblob.Call, do func() error) error { return do() }

	t.Run("a deletion fails", func(t *testing.T) {
		store := &scriptedStore{}
		_, err := run(store, func(_ context.Context, call faultblob.Call, do func() error) error {
			if call.Key == string(keys[1]) {
				return broken
			}
			return do()
		}, t.Context())
		if !errors.Is(err, ErrSweepIncomplete) || !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
		if !slices.Equal(store.gone, []BlobKey{keys[0], keys[2]}) || !slices.Equal(store.kept, keys[1:2]) {
			t.Errorf("gone %v, kept %v", short(store.gone...), short(store.kept...))
		}
	})
	t.Run("cancelled between two deletions", func(t *testing.T) {
		store := &scriptedStore{}
		ctx, cancel := context.WithCancel(t.Context())
		report, err := run(store, func(_ context.Context, call faultblob.Call, do func() error) error {
			if call.Kind == faultblob.Delete {
				cancel()
			}
			return do()
		}, ctx)
		if !errors.Is(err, ErrSweepIncomplete) || !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if report.Deleted != 1 || report.Failed != 0 || !slices.Equal(store.gone, keys[:1]) || !slices.Equal(store.kept, keys[1:]) {
			t.Errorf("report %+v, gone %v, kept %v", report, short(store.gone...), short(store.kept...))
		}
	})
	t.Run("cancelled by the claim", func(t *testing.T) {
		// As a commit does that is already under way.
		ctx, cancel := context.WithCancel(t.Context())
		store := &scriptedStore{onClaim: cancel}
		report, err := run(store, passOn, ctx)
		if !errors.Is(err, context.Canceled) || report.Deleted != 0 || store.gone != nil || !slices.Equal(store.kept, keys) {
			t.Errorf("error %v, report %+v, calls %v", err, report, store.log)
		}
	})
	t.Run("the claim fails", func(t *testing.T) {
		store := &scriptedStore{claimErr: &Error{Code: ErrReadOnly}}
		report, err := run(store, passOn, t.Context())
		if CodeOf(err) != ErrReadOnly || report.Deleted != 0 || store.gone != nil || store.kept != nil {
			t.Errorf("error %v, report %+v, calls %v", err, report, store.log)
		}
	})
	t.Run("settling fails", func(t *testing.T) {
		store := &scriptedStore{settleErr: broken}
		report, err := run(store, passOn, t.Context())
		if !errors.Is(err, ErrSweepIncomplete) || !errors.Is(err, broken) || report.Deleted != 3 {
			t.Errorf("error %v, report %+v", err, report)
		}
	})
}

// A bucket that does not heed the context: the sweep goes, its claim stays until
// the bucket answers.
func TestSweepLeavesUnansweredDeletionsClaimed(t *testing.T) {
	store := &scriptedStore{}
	mem := memblob.OpenBucket(nil)
	put(t, mem, numberedKey(FileKeyPrefix, 1), numberedKey(FileKeyPrefix, 2))
	answer := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	bucket := faultblob.Wrap(mem, func(_ context.Context, call faultblob.Call, do func() error) error {
		if call.Kind == faultblob.Delete {
			cancel()
			<-answer
		}
		return do()
	})
	report, err := Sweep(ctx, store, bucket, &SweepOptions{Clock: later})
	if !errors.Is(err, ErrSweepIncomplete) || !errors.Is(err, context.Canceled) || report.Deleted+report.Failed != 0 {
		t.Errorf("error %v, report %+v", err, report)
	}
	if len(store.gone)+len(store.kept) != 0 {
		t.Errorf("settled before the bucket answered: %v", store.log)
	}
	close(answer)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		store.mu.Lock()
		settled := len(store.gone) + len(store.kept)
		store.mu.Unlock()
		if settled == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never settled")
		}
	}
	must(t, bucket.Close())
}

// syntheticBucket lists objects that do not exist, one page after the other.
type syntheticBucket struct {
	driver.Bucket
	pages   func(prefix string, page int) (keys []string, more bool, err error)
	ageless bool // whether it gives no modification times
	calls   atomic.Int64
	dead    atomic.Int64 // deletions
}

func (b *syntheticBucket) As(any) bool                            { return false }
func (b *syntheticBucket) ErrorAs(error, any) bool                { return false }
func (b *syntheticBucket) Close() error                           { return nil }
func (b *syntheticBucket) ErrorCode(err error) gcerrors.ErrorCode { return gcerrors.Code(err) }

func (b *syntheticBucket) Delete(context.Context, string, *driver.DeleteOptions) error {
	b.dead.Add(1)
	return nil
}

func (b *syntheticBucket) ListPaged(_ context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	b.calls.Add(1)
	number := 0
	if len(opts.PageToken) > 0 {
		fmt.Sscan(string(opts.PageToken), &number)
	}
	keys, more, err := b.pages(opts.Prefix, number)
	if err != nil {
		return nil, err
	}
	page, at := &driver.ListPage{}, time.Unix(1, 0)
	if b.ageless {
		at = time.Time{}
	}
	for _, key := range keys {
		page.Objects = append(page.Objects, &driver.ListObject{Key: key, Size: 1, ModTime: at})
	}
	if more {
		page.NextPageToken = fmt.Append(nil, number+1)
	}
	return page, nil
}

// fixedPages lists the given pages of file keys.
func fixedPages(pages ...[]string) func(string, int) ([]string, bool, error) {
	return func(prefix string, number int) ([]string, bool, error) {
		if prefix != FileKeyPrefix {
			return nil, false, nil
		}
		return pages[number], number+1 < len(pages), nil
	}
}

func fileKeys(numbers ...int) []string {
	var keys []string
	for _, i := range numbers {
		keys = append(keys, string(numberedKey(FileKeyPrefix, i)))
	}
	return keys
}

// A listing that is out of order ends the sweep, for the references it needs
// may have been passed. Foreign names in the way and keys that show twice do
// not.
func TestSweepListingOrder(t *testing.T) {
	references := func() iter.Seq[BlobKey] {
		return slices.Values([]BlobKey{numberedKey(FileKeyPrefix, 2), numberedKey(FileKeyPrefix, 4)})
	}
	t.Run("descending", func(t *testing.T) {
		store, drv := &scriptedStore{references: references()}, &syntheticBucket{pages: fixedPages(fileKeys(1, 3, 5, 4, 6))}
		report, err := Sweep(t.Context(), store, blob.NewBucket(drv), nil)
		if !errors.Is(err, ErrSweepIncomplete) || drv.dead.Load() != 0 || report.Scanned != 3 {
			t.Errorf("error %v, %d deletions, report %+v", err, drv.dead.Load(), report)
		}
	})
	t.Run("descending between pages", func(t *testing.T) {
		store, drv := &scriptedStore{references: references()}, &syntheticBucket{pages: fixedPages(fileKeys(3, 5), fileKeys(4))}
		_, err := Sweep(t.Context(), store, blob.NewBucket(drv), nil)
		if !errors.Is(err, ErrSweepIncomplete) || drv.dead.Load() != 0 {
			t.Errorf("error %v, %d deletions", err, drv.dead.Load())
		}
	})
	t.Run("foreign names anywhere, keys twice", func(t *testing.T) {
		keys := fileKeys(1, 2, 2, 3, 3, 4)
		keys = slices.Insert(keys, 3, FileKeyPrefix+"zzz", FileKeyPrefix, FileKeyPrefix+"0")
		store, drv := &scriptedStore{references: references()}, &syntheticBucket{pages: fixedPages(keys, fileKeys(4, 5))}
		report, err := Sweep(t.Context(), store, blob.NewBucket(drv), nil)
		if err != nil || !slices.Equal(short(store.gone...), []string{"f1", "f3", "f5"}) {
			t.Errorf("error %v, gone %v", err, short(store.gone...))
		}
		if report.Scanned != 8 || report.Foreign != 3 || report.Kept != 2 || report.Deleted != 3 {
			t.Errorf("report %+v", report)
		}
	})
	t.Run("references out of order", func(t *testing.T) {
		store := &scriptedStore{references: slices.Values([]BlobKey{numberedKey(FileKeyPrefix, 4), numberedKey(FileKeyPrefix, 2)})}
		drv := &syntheticBucket{pages: fixedPages(fileKeys(1, 3, 5, 6))}
		_, err := Sweep(t.Context(), store, blob.NewBucket(drv), nil)
		if !errors.Is(err, ErrSweepIncomplete) || drv.dead.Load() != 0 {
			t.Errorf("error %v, %d deletions", err, drv.dead.Load())
		}
	})
}

// An object of unknown age is not old.
func TestSweepUnknownAge(t *testing.T) {
	drv := &syntheticBucket{pages: fixedPages(fileKeys(1)), ageless: true}
	report, err := Sweep(t.Context(), &scriptedStore{}, blob.NewBucket(drv), &SweepOptions{OlderThan: 1})
	if err != nil || report.TooYoung != 1 || drv.dead.Load() != 0 {
		t.Errorf("report %+v, %v", report, err)
	}
}

// A page that fails with NotFound, because a file vanished while a directory was
// walked, is asked for again; for ever it is not.
func TestSweepListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 5
		drv := &syntheticBucket{}
		drv.pages = func(prefix string, number int) ([]string, bool, error) {
			if prefix == FileKeyPrefix && number == 1 && failures > 0 {
				failures--
				return nil, false, notFound(t)
			}
			return fixedPages(fileKeys(1, 2), fileKeys(3))(prefix, number)
		}
		store := &scriptedStore{}
		if report, err := Sweep(t.Context(), store, blob.NewBucket(drv), nil); err != nil || report.Deleted != 3 || failures != 0 {
			t.Errorf("error %v, report %+v, %d failures left", err, report, failures)
		}

		drv = &syntheticBucket{pages: func(string, int) ([]string, bool, error) { return nil, false, notFound(t) }}
		start := time.Now()
		_, err := Sweep(t.Context(), store, blob.NewBucket(drv), nil)
		if !errors.Is(err, ErrSweepIncomplete) || gcerrors.Code(err) != gcerrors.NotFound {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took > 10*time.Second || drv.calls.Load() != listTries {
			t.Errorf("a bucket that is not there took %s and %d calls", took, drv.calls.Load())
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err = Sweep(ctx, store, blob.NewBucket(drv), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("cancelled after %s, want 1s", took)
		}
	})
}

func notFound(t *testing.T) error {
	mem := memblob.OpenBucket(nil)
	defer mem.Close()
	_, err := mem.ReadAll(t.Context(), "missing")
	return err
}

// A deletion that this store claims is refused to other sweeps and to writers
// until it is settled, and leaves no garbage row behind.
func TestSweepClaims(t *testing.T) {
	s := openTest(t, nil)
	ctx := t.Context()
	keys := []BlobKey{testKey("a"), testKey("b"), testKey("c")}
	slices.Sort(keys)
	claimed, err := s.claimUnused(ctx, keys[:2])
	if err != nil || !slices.Equal(claimed, keys[:2]) {
		t.Fatal(claimed, err)
	}
	again, err := s.claimUnused(ctx, keys)
	if err != nil || !slices.Equal(again, keys[2:]) {
		t.Errorf("a second sweep claims %v, %v, want only what the first has not", again, err)
	}

	lease, err := s.AcquireWriter(ctx, "thread")
	must(t, err)
	c := Checkpoint{
		ID: "cp", ThreadID: "thread", CreatedAt: testTime(1), Reason: ReasonAutomatic,
		Files: []Entry{{Path: "file", Kind: KindFile, BlobKey: keys[0]}},
	}
	var detail *BlobError
	if err := s.Append(ctx, lease.Writer, c, ""); !errors.Is(err, ErrBlobBeingDeleted) || !errors.As(err, &detail) || detail.Key != keys[0] {
		t.Errorf("append of a claimed key: %v", err)
	}
	must(t, s.settleDeleted(ctx, keys[1:2], keys[:1]))
	must(t, s.settleDeleted(ctx, keys[2:], nil))
	must(t, s.Append(ctx, lease.Writer, c, ""))
	if claimed, err = s.claimUnused(ctx, keys[:1]); err != nil || len(claimed) != 0 {
		t.Errorf("a key in use is claimed: %v, %v", claimed, err)
	}
	must(t, s.view(func(tx *bolt.Tx) error {
		if n := tx.Bucket(bucketGarbage).Stats().KeyN; n != 0 {
			t.Errorf("%d garbage rows are left, want none", n)
		}
		return nil
	}))
}

// millions lists n artifacts and n files, of which the references use all but
// each stride-th.
func millions(n, stride int) (*scriptedStore, *syntheticBucket) {
	const size = 1000
	drv := &syntheticBucket{}
	drv.pages = func(prefix string, number int) ([]string, bool, error) {
		keys := make([]string, 0, size)
		for i := number * size; i < min(n, (number+1)*size); i++ {
			keys = append(keys, string(numberedKey(prefix, i)))
		}
		return keys, (number+1)*size < n, nil
	}
	store := &scriptedStore{references: func(yield func(BlobKey) bool) {
		for _, prefix := range []string{ArtifactKeyPrefix, FileKeyPrefix} {
			for i := range n {
				if i%stride != 0 && !yield(numberedKey(prefix, i)) {
					return
				}
			}
		}
	}}
	return store, drv
}

// A sweep of a million objects needs no more memory than one of a page.
func TestSweepMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("lists a million objects")
	}
	const n, stride = 500_000, 100
	store, drv := millions(n, stride)
	bucket := blob.NewBucket(drv)
	defer bucket.Close()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	before, most := stats.HeapAlloc, uint64(0)
	report, err := Sweep(t.Context(), store, bucket, &SweepOptions{Progress: func(SweepReport) {
		runtime.ReadMemStats(&stats)
		most = max(most, stats.HeapAlloc)
	}})
	if err != nil || report.Scanned != 2*n || report.Deleted != 2*n/stride || drv.dead.Load() != 2*n/stride {
		t.Errorf("error %v, %d deletions, report %+v", err, drv.dead.Load(), report)
	}
	if grown := int64(most - before); grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB, want at most 64", grown>>20)
	}
}

func BenchmarkSweepListing(b *testing.B) {
	const n = 500_000
	for b.Loop() {
		store, drv := millions(n, 1000)
		if _, err := Sweep(b.Context(), store, blob.NewBucket(drv), &SweepOptions{DryRun: true}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(2*n*b.N)/b.Elapsed().Seconds(), "keys/s")
}

// BenchmarkSweepMillionInMemory sweeps a bucket in memory that holds 1,000,000
// objects, of which a store uses 990,000. heap-B is how far what is in use rose
// above what the bucket takes.
func BenchmarkSweepMillionInMemory(b *testing.B) {
	ctx := b.Context()
	s, err := Open(filepath.Join(b.TempDir(), "bench.db"), nil)
	must(b, err)
	defer s.Close()
	s.SkipSync()
	seed(b, s, 990_000)
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	put := func(key BlobKey) {
		must(b, bucket.WriteAll(ctx, string(key), nil, &blob.WriterOptions{ContentType: "x"}))
	}
	for ref, err := range s.BlobReferences(ctx) {
		must(b, err)
		put(ref.Key)
	}
	for b.Loop() {
		b.StopTimer()
		for i := range 10_000 {
			put(testKey(fmt.Sprint("orphan ", i)))
		}
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		before, most := stats.HeapAlloc, stats.HeapAlloc
		calls := 0
		b.StartTimer()
		report, err := Sweep(ctx, s, bucket, &SweepOptions{
			OlderThan: 1, Clock: func() time.Time { return time.Now().Add(time.Hour) },
			Progress: func(SweepReport) {
				if calls++; calls%10 == 0 {
					b.StopTimer()
					runtime.GC()
					runtime.ReadMemStats(&stats)
					most = max(most, stats.HeapAlloc)
					b.StartTimer()
				}
			},
		})
		must(b, err)
		if report.Deleted != 10_000 || report.Kept != 990_000 {
			b.Fatalf("%+v", report)
		}
		b.ReportMetric(float64(most-before), "heap-B")
	}
}
