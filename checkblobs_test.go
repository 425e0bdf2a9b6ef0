package checkpointdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/internal/faultblob"
	"checkpointdb/internal/storeopen"

	"go.uber.org/goleak"
	"gocloud.dev/blob"
)

// saveContents makes a thread of one checkpoint with these contents, the first
// as an artifact and the others as files, uploads them, and returns their keys.
func saveContents(t *testing.T, s *checkpointdb.Store, b *blob.Bucket, thread checkpointdb.ThreadID, contents ...string) (keys []checkpointdb.BlobKey) {
	t.Helper()
	ctx := t.Context()
	c := checkpointdb.Checkpoint{
		ID: checkpointdb.CheckpointID("checkpoint of " + thread), ThreadID: thread,
		CreatedAt: time.UnixMilli(1), Reason: checkpointdb.ReasonAutomatic,
	}
	for i, text := range contents {
		key := blobFile(text)
		if i == 0 {
			key = blobArtifact(text)
			c.Artifacts = []checkpointdb.Artifact{{
				ArtifactID: "a", Name: "a", MimeType: "text/plain", BlobKey: key, Size: int64(len(text)), CreatedAt: c.CreatedAt,
			}}
		} else {
			c.Files = append(c.Files, checkpointdb.Entry{
				Path: fmt.Sprintf("%06d", i), Kind: checkpointdb.KindFile, BlobKey: key, Size: int64(len(text)),
			})
		}
		upload(t, b, text, key)
		keys = append(keys, key)
	}
	lease, err := s.AcquireWriter(ctx, thread)
	if err == nil {
		err = errors.Join(s.Append(ctx, lease.Writer, c, ""), s.Release(ctx, lease.Writer))
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func numbered(n int) (contents []string) {
	for i := range n {
		contents = append(contents, fmt.Sprint("content ", i))
	}
	return contents
}

func openDirBucket(t *testing.T) *blob.Bucket {
	t.Helper()
	b, err := buckets.Open(t.Context(), filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func through(_ context.Context, _ faultblob.Call, do func() error) error { return do() }

func TestCheckBlobs(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *blob.Bucket{
		"directory":   openDirBucket,
		"memory":      openMem,
		"small pages": func(t *testing.T) *blob.Bucket { return faultblob.WrapPaged(openMem(t), through, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			ctx := t.Context()
			bucket := open(t)
			defer bucket.Close()
			s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
			defer s.Close()
			keys := saveContents(t, s, bucket, "t", numbered(20)...)
			saveContents(t, s, bucket, "other", numbered(10)...) // of the same blobs
			upload(t, bucket, "unused", blobFile("unused"))
			upload(t, bucket, "foreign", checkpointdb.FileKeyPrefix+"foreign", "elsewhere")

			data := &checkpointdb.CheckBlobsOptions{ReadData: true, Concurrency: 3}
			for _, opts := range []*checkpointdb.CheckBlobsOptions{nil, data} {
				report, err := checkpointdb.CheckBlobs(ctx, s, bucket, opts)
				if err != nil || !report.Sound() || report.Checked.Blobs != 20 {
					t.Errorf("of a sound bucket: %+v, %v", report, err)
				}
				if text, err := json.Marshal(report); err != nil || !strings.Contains(string(text), `"faults":[]`) {
					t.Errorf("%s, %v", text, err)
				}
			}

			missing, short, damaged := keys[0], keys[11], keys[15]
			if err := bucket.Delete(ctx, string(missing)); err != nil {
				t.Fatal(err)
			}
			upload(t, bucket, "cont", short)
			upload(t, bucket, "c0ntent 15", damaged)
			uses := func(threads ...checkpointdb.ThreadID) (uses []checkpointdb.BlobUse) {
				for _, thread := range threads {
					id := checkpointdb.CheckpointID("checkpoint of " + thread)
					uses = append(uses, checkpointdb.BlobUse{ThreadID: thread, First: id, Last: id, Checkpoints: 1, AtHead: true})
				}
				return uses
			}
			want := []checkpointdb.BlobFault{
				{Key: missing, Problem: checkpointdb.BlobMissing, Size: 9, Uses: uses("t", "other")},
				{Key: short, Problem: checkpointdb.BlobWrongSize, Size: 10, Found: 4, Uses: uses("t")},
				{Key: damaged, Problem: checkpointdb.BlobDamaged, Size: 10, Found: 10, Uses: uses("t")},
			}
			for _, f := range want {
				for i := range f.Uses {
					f.Uses[i].Size = f.Size
				}
			}
			byKey := func(a, b checkpointdb.BlobFault) int { return strings.Compare(string(a.Key), string(b.Key)) }
			for _, c := range []struct {
				opts *checkpointdb.CheckBlobsOptions
				want []checkpointdb.BlobFault
			}{{nil, want[:2]}, {data, want}} {
				report, err := checkpointdb.CheckBlobs(ctx, s, bucket, c.opts)
				if err != nil || report.Sound() || report.Missing != 1 || report.WrongSize != 1 || report.Damaged != int64(len(c.want)-2) || report.Checked.Blobs != 20 {
					t.Errorf("report %+v, %v", report, err)
				}
				want := slices.SortedFunc(slices.Values(c.want), byKey)
				if got := report.Faults; fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("faults\n\t%+v, want\n\t%+v", got, want)
				}
			}
		})
	}
}

// A report lists a bounded number of faults and counts all.
func TestCheckBlobsManyFaults(t *testing.T) {
	s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
	bucket := openMem(t)
	defer bucket.Close()
	saveContents(t, s, bucket, "t", numbered(1200)...)
	empty := openMem(t)
	defer empty.Close()
	told := map[checkpointdb.BlobKey]bool{}
	report, err := checkpointdb.CheckBlobs(t.Context(), s, empty, &checkpointdb.CheckBlobsOptions{
		Faulty: func(f checkpointdb.BlobFault) { told[f.Key] = true },
	})
	if err != nil || report.Missing != 1200 || report.Checked.Blobs != 1200 || len(report.Faults) != 1000 || len(told) != 1200 {
		t.Errorf("%d missing of %+v, %d listed, %d told: %v", report.Missing, report.Checked, len(report.Faults), len(told), err)
	}
	if !slices.IsSortedFunc(report.Faults, func(a, b checkpointdb.BlobFault) int { return strings.Compare(string(a.Key), string(b.Key)) }) {
		t.Error("the list is out of order")
	}
}

func TestCheckBlobsProgress(t *testing.T) {
	s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
	slow := faultblob.Wrap(openMem(t), func(_ context.Context, call faultblob.Call, do func() error) error {
		if call.Kind == faultblob.Read {
			time.Sleep(30 * time.Millisecond)
		}
		return do()
	})
	defer slow.Close()
	saveContents(t, s, slow, "t", numbered(20)...)
	const bytes = 10*9 + 10*10
	calls, last := 0, checkpointdb.BlobTotals{}
	_, err := checkpointdb.CheckBlobs(t.Context(), s, slow, &checkpointdb.CheckBlobsOptions{
		ReadData: true, Concurrency: 1,
		Progress: func(done, total checkpointdb.BlobTotals) {
			if (total != checkpointdb.BlobTotals{Blobs: 20, Bytes: bytes}) || done.Blobs < last.Blobs || done.Bytes < last.Bytes {
				t.Errorf("from %v to %v of %v", last, done, total)
			}
			if _, err := s.AcquireWriter(t.Context(), checkpointdb.ThreadID(fmt.Sprint("callback", calls))); err != nil {
				t.Error(err)
			}
			calls, last = calls+1, done
		},
	})
	if err != nil || calls < 3 || (last != checkpointdb.BlobTotals{Blobs: 20, Bytes: bytes}) {
		t.Errorf("%d calls up to %v, %v", calls, last, err)
	}
}

// Each call to the bucket fails in turn. That is no fault of a blob, and it is
// never swallowed.
func TestCheckBlobsBucketFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx := t.Context()
	s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
	defer s.Close()
	bucket := openMem(t)
	defer bucket.Close()
	keys := saveContents(t, s, bucket, "t", numbered(6)...)
	if err := bucket.Delete(ctx, string(keys[3])); err != nil {
		t.Fatal(err)
	}
	denied := errors.New("denied")
	for _, data := range []bool{false, true} {
		for n := 1; ; n++ {
			hook, met := faultblob.FailNth(n, denied)
			failing := faultblob.WrapPaged(bucket, hook, 3)
			report, err := checkpointdb.CheckBlobs(ctx, s, failing, &checkpointdb.CheckBlobsOptions{ReadData: data, Concurrency: 2})
			if !met() {
				if err != nil || report.Missing != 1 {
					t.Errorf("without a failure: %+v, %v", report, err)
				}
				break
			}
			if !errors.Is(err, denied) || report.WrongSize+report.Damaged > 0 {
				t.Errorf("data %t, call %d fails: %+v, %v", data, n, report, err)
			}
		}
	}
}

// A sector that cannot be read is a fault of its blob, and the check goes on.
func TestCheckBlobsUnreadable(t *testing.T) {
	s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
	inner := openMem(t)
	keys := saveContents(t, s, inner, "t", numbered(6)...)
	bucket := faultblob.Wrap(inner, func(_ context.Context, call faultblob.Call, do func() error) error {
		if call.Kind == faultblob.Read && call.Key == string(keys[2]) {
			return &fs.PathError{Op: "read", Path: call.Key, Err: syscall.EIO}
		}
		return do()
	})
	defer bucket.Close()
	report, err := checkpointdb.CheckBlobs(t.Context(), s, bucket, &checkpointdb.CheckBlobsOptions{ReadData: true})
	if err != nil || report.Damaged != 1 || report.Checked.Blobs != 6 || report.Faults[0].Key != keys[2] {
		t.Errorf("%+v, %v", report, err)
	}
}

// What changes while the check runs is no fault: a blob that loses its last use
// and goes, and one that comes back. A busy bucket is waited for.
func TestCheckBlobsBesideChanges(t *testing.T) {
	ctx := t.Context()
	s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
	inner := openMem(t)
	going := saveContents(t, s, inner, "going", "artifact", "going")[1]
	back := saveContents(t, s, inner, "staying", "artifact", "back")[1]
	busy := saveContents(t, s, inner, "staying too", "artifact", "busy")[1]
	for _, key := range []checkpointdb.BlobKey{going, back} {
		if err := inner.Delete(ctx, string(key)); err != nil {
			t.Fatal(err)
		}
	}
	var goingLooks, backLooks, busyLooks atomic.Int64
	bucket := faultblob.Wrap(inner, func(ctx context.Context, call faultblob.Call, do func() error) error {
		if call.Key == string(busy) && call.Kind == faultblob.Read && busyLooks.Add(1) == 1 {
			return slowDown{}
		}
		err := do()
		switch {
		case call.Kind != faultblob.Attributes && call.Kind != faultblob.Read:
		case call.Key == string(going):
			goingLooks.Add(1)
			lease, err := s.AcquireWriter(ctx, "going")
			if err == nil {
				err = s.DeleteThread(ctx, lease.Writer)
			}
			if err != nil {
				t.Error(err)
			}
		case call.Key == string(back):
			backLooks.Add(1)
			if err := inner.WriteAll(ctx, call.Key, []byte("back"), nil); err != nil {
				t.Error(err)
			}
		}
		return err
	})
	defer bucket.Close()
	report, err := checkpointdb.CheckBlobs(ctx, s, bucket, &checkpointdb.CheckBlobsOptions{ReadData: true})
	if err != nil || !report.Sound() || goingLooks.Load() != 1 || backLooks.Load() != 2 || busyLooks.Load() != 2 {
		t.Errorf("%+v, %v; %d, %d and %d looks", report, err, goingLooks.Load(), backLooks.Load(), busyLooks.Load())
	}
}

func TestCheckBlobsEnds(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := storeopen.Open(t, filepath.Join(t.TempDir(), "test.db"), nil)
	defer s.Close()
	inner := openMem(t)
	saveContents(t, s, inner, "t", numbered(50)...)
	ctx, cancel := context.WithCancel(t.Context())
	var reads atomic.Int64
	bucket := faultblob.Wrap(inner, func(_ context.Context, call faultblob.Call, do func() error) error {
		if call.Kind == faultblob.Read && reads.Add(1) == 10 {
			cancel()
		}
		return do()
	})
	defer bucket.Close()
	report, err := checkpointdb.CheckBlobs(ctx, s, bucket, &checkpointdb.CheckBlobsOptions{ReadData: true, Concurrency: 2})
	if !errors.Is(err, context.Canceled) || report.Checked.Blobs == 0 || report.Checked.Blobs > 15 || !report.Sound() {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := checkpointdb.CheckBlobs(ctx, s, bucket, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := checkpointdb.CheckBlobs(t.Context(), s, bucket, &checkpointdb.CheckBlobsOptions{Concurrency: -1}); !errors.Is(err, checkpointdb.ErrInvalidOptions) {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpointdb.CheckBlobs(t.Context(), s, bucket, nil); !errors.Is(err, checkpointdb.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// slowDown is a bucket's answer that it is busy.
type slowDown struct{}

func (slowDown) Error() string       { return "slow down" }
func (slowDown) HTTPStatusCode() int { return 503 }
