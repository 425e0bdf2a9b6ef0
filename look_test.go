package checkpointdb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func collect[T any](t testing.TB, seq iter.Seq2[T, error]) (all []T) {
	t.Helper()
	for v, err := range seq {
		must(t, err)
		all = append(all, v)
	}
	return all
}

// TestThreads looks at what fillStore made.
func TestThreads(t *testing.T) {
	now := testTime(1000)
	s := openTest(t, &Options{Clock: func() time.Time { return now }})
	fillStore(t, s)
	ctx := context.Background()
	now = now.Add(time.Minute)
	lease, err := s.AcquireWriter(ctx, "later")
	must(t, err)
	now = now.Add(90 * time.Second) // after which the older leases have expired
	got := collect(t, s.Threads(ctx))
	want := []ThreadInfo{
		{ID: "a thread", Head: "cp-10", HeadCreatedAt: testTime(10), Checkpoints: 5, LastFence: 1,
			Lease: &LeaseInfo{ThreadID: "a thread", Fence: 1, ExpiresAt: testTime(1000).Add(120 * time.Second)}},
		{ID: "another\x00thread", Head: "a fork", HeadCreatedAt: testTime(99), Checkpoints: 1, LastFence: 1, Transcript: true,
			Lease: &LeaseInfo{ThreadID: "another\x00thread", Fence: 1, ExpiresAt: testTime(1000).Add(120 * time.Second)}},
		{ID: "later", LastFence: 1, Lease: &LeaseInfo{ThreadID: "later", Fence: 1, ExpiresAt: lease.ExpiresAt, Current: true}},
		{ID: "only a transcript", Transcript: true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestThreadsInBatches wants every thread once, over several transactions.
func TestThreadsInBatches(t *testing.T) {
	s := openTest(t, nil)
	s.SkipSync()
	ctx := context.Background()
	var want []ThreadID
	for i := range 2*threadBatch + 1 {
		id := ThreadID(fmt.Sprintf("%04d", i))
		want = append(want, id)
		must(t, s.SaveThread(ctx, id, nil))
	}
	var got []ThreadID
	for _, info := range collect(t, s.Threads(ctx)) {
		got = append(got, info.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestLog compares the log with what the checkpoints themselves say, over
// batches, gaps and a fork.
func TestLog(t *testing.T) {
	s := openTest(t, nil)
	s.SkipSync()
	ctx := context.Background()
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	head := CheckpointID("")
	for i := range 3*logBatch + 7 {
		c := testCheckpoint("t", i, head)
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	_, err = s.Prune(ctx, lease.Writer, PrunePolicy{KeepLast: 2 * logBatch, KeepNamed: true})
	must(t, err)
	all := collect(t, s.List(ctx, "t")) // by time, which here is the chain
	got := collect(t, s.Log(ctx, "t", nil))
	if len(got) != len(all) || len(got) <= 2*logBatch {
		t.Fatalf("%d checkpoints in the log, %d in the list", len(got), len(all))
	}
	for i, info := range got {
		c, before := all[len(all)-1-i], Checkpoint{}
		if j := len(all) - 2 - i; j >= 0 {
			before = all[j]
		}
		want := CheckpointInfo{
			ID: c.ID, ThreadID: "t", ParentCheckpointID: c.ParentCheckpointID, CreatedAt: c.CreatedAt, Reason: c.Reason,
			Label: c.Label, SourceRunID: c.SourceRunID, Head: i == 0,
			Files: len(c.Files), Messages: len(c.Conversation), Artifacts: len(c.Artifacts), RecordBytes: info.RecordBytes,
		}
		known := before.BlobKeys()
		seen := map[BlobKey]bool{}
		add := func(key BlobKey, size int64) {
			want.Bytes += size
			if _, ok := slices.BinarySearch(known, key); key != "" && !ok && !seen[key] {
				want.NewBytes += size
				seen[key] = true
			}
		}
		for _, e := range c.Files {
			add(e.BlobKey, e.Size)
		}
		for _, a := range c.Artifacts {
			add(a.BlobKey, a.Size)
		}
		for _, change := range Changes(before, c) {
			switch change.Kind {
			case ChangeAdded:
				want.Added++
			case ChangeChanged:
				want.Changed++
			case ChangeRemoved:
				want.Removed++
			}
		}
		if d := cmp.Diff(want, info); d != "" {
			t.Fatalf("%s (-want +got):\n%s", c.ID, d)
		}
		if info.RecordBytes == 0 {
			t.Errorf("%s takes no room", c.ID)
		}
		if alone, err := s.Info(ctx, c.ID); err != nil || alone != info {
			t.Errorf("by itself %s is %+v, %v; want %+v", c.ID, alone, err, info)
		}
	}

	ids := func(opts *LogOptions) (ids []CheckpointID) {
		for _, info := range collect(t, s.Log(ctx, "t", opts)) {
			ids = append(ids, info.ID)
		}
		return ids
	}
	if got := ids(&LogOptions{Limit: logBatch + 1}); len(got) != logBatch+1 || got[0] != head {
		t.Errorf("with a limit: %q", got)
	}
	var want []CheckpointID
	for i := len(all) - 1; i >= 0; i-- {
		for _, change := range Changes(append([]Checkpoint{{}}, all...)[i], all[i]) {
			if change.Path == "dir-0/file-00" {
				want = append(want, all[i].ID)
			}
		}
	}
	if got := ids(&LogOptions{Path: "dir-0/file-00"}); !slices.Equal(got, want) || len(want) < 5 || len(want) == len(all) {
		t.Errorf("of a path: %q, want %q", got, want)
	}
	if got := ids(&LogOptions{Path: "dir-0/file-00", Limit: 2}); !slices.Equal(got, want[:2]) {
		t.Errorf("two of a path: %q, want %q", got, want[:2])
	}
	if got := ids(&LogOptions{Path: "dir-0"}); len(got) <= len(want) {
		t.Errorf("of a directory: %q", got)
	}
	if got := ids(&LogOptions{Path: "dir"}); len(got) != 0 {
		t.Errorf("of the beginning of a name: %q", got)
	}
}

// TestLogTellsForks: a fork knows its source, also when that is gone.
func TestLogTellsForks(t *testing.T) {
	s := openTest(t, nil)
	fillStore(t, s)
	ctx := context.Background()
	got := collect(t, s.Log(ctx, "another\x00thread", nil))
	if len(got) != 1 || got[0].ForkedFrom != "cp-10" || got[0].ParentCheckpointID != "" || !got[0].Head {
		t.Errorf("got %+v", got)
	}
	if infos := collect(t, s.Log(ctx, "only a transcript", nil)); len(infos) != 0 {
		t.Errorf("a thread without checkpoints has the log %+v", infos)
	}
}

func TestLookingRefuses(t *testing.T) {
	s := openTest(t, nil)
	fillStore(t, s)
	ctx := context.Background()
	last := func(seq iter.Seq2[CheckpointInfo, error]) (last error) {
		for _, err := range seq {
			last = err
		}
		return last
	}
	_, errInfo := s.Info(ctx, "nobody's")
	_, errUses := s.BlobUses(ctx, "sandbox-files/sha256/short")
	_, errPlan := s.PlanPrune(ctx, "nobody", PrunePolicy{KeepLast: 1})
	_, errPolicy := s.PlanPrune(ctx, "a thread", PrunePolicy{})
	_, errBreak := s.BreakLease(ctx, "nobody")
	_, errNone := s.BreakLease(ctx, "only a transcript")
	for _, test := range []struct{ got, want error }{
		{last(s.Log(ctx, "nobody", nil)), ErrThreadNotFound},
		{last(s.Log(ctx, "", nil)), ErrInvalidID},
		{errInfo, ErrCheckpointNotFound},
		{last(s.Log(ctx, "a thread", &LogOptions{Limit: -1})), ErrInvalidArgument},
		{errUses, ErrInvalidEntry},
		{errPlan, ErrThreadNotFound},
		{errPolicy, ErrInvalidArgument},
		{errBreak, ErrThreadNotFound},
		{errNone, ErrNoLease},
	} {
		if !errors.Is(test.got, test.want) {
			t.Errorf("got %v, want %v", test.got, test.want)
		}
	}
}

// TestBlobsAndUses recounts what Blobs, BlobUses and Usage say from checkpoints.
func TestBlobsAndUses(t *testing.T) {
	s := openTest(t, nil)
	fillStore(t, s)
	ctx := context.Background()
	type blobOf struct {
		size    int64
		threads map[ThreadID]int
	}
	want := map[BlobKey]*blobOf{}
	logical := map[ThreadID]int64{}
	for _, thread := range []ThreadID{"a thread", "another\x00thread"} {
		for _, c := range collect(t, s.List(ctx, thread)) {
			sizes := map[BlobKey]int64{}
			for _, e := range c.Files {
				sizes[e.BlobKey] = e.Size
			}
			for _, a := range c.Artifacts {
				sizes[a.BlobKey] = a.Size
			}
			delete(sizes, "")
			for key, size := range sizes {
				if want[key] == nil {
					want[key] = &blobOf{size, map[ThreadID]int{}}
				}
				want[key].threads[thread]++
				logical[thread] += size
			}
		}
	}
	sums := map[ThreadID]*ThreadUsage{}
	for _, id := range []ThreadID{"a thread", "another\x00thread", "only a transcript"} {
		sums[id] = &ThreadUsage{ThreadID: id, LogicalBytes: logical[id]}
	}
	total := int64(0)
	found := 0
	for _, b := range collect(t, s.Blobs(ctx)) {
		w := want[b.Key]
		if w == nil {
			t.Fatalf("%s is in no checkpoint", b.Key)
		}
		references := 0
		for thread, n := range w.threads {
			references += n
			sums[thread].Blobs++
			if len(w.threads) == 1 {
				sums[thread].OwnBytes += w.size
			} else {
				sums[thread].SharedBytes += w.size
			}
		}
		total += w.size
		found++
		if d := cmp.Diff(BlobInfo{Key: b.Key, Size: w.size, References: int64(references), Threads: len(w.threads)}, b); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		uses, err := s.BlobUses(ctx, b.Key)
		must(t, err)
		inUses := map[ThreadID]int{}
		for _, u := range uses {
			inUses[u.ThreadID] += int(u.Checkpoints)
			for _, id := range []CheckpointID{u.First, u.Last} {
				c, err := s.Get(ctx, id)
				must(t, err)
				if _, ok := slices.BinarySearch(c.BlobKeys(), b.Key); !ok || c.ThreadID != u.ThreadID || u.Size != w.size {
					t.Errorf("%s is used as %+v, but not by %s", b.Key, u, id)
				}
			}
			if head, err := s.Head(ctx, u.ThreadID); err != nil || u.AtHead != (head == u.Last) {
				t.Errorf("%+v: the head is %q, %v", u, head, err)
			}
		}
		if d := cmp.Diff(w.threads, inUses); d != "" {
			t.Errorf("uses of %s (-want +got):\n%s", b.Key, d)
		}
	}
	if found != len(want) || found == 0 {
		t.Errorf("%d blobs, want %d", found, len(want))
	}
	usage, err := s.Usage(ctx, &UsageOptions{Growth: true})
	must(t, err)
	if usage.Blobs != int64(found) || usage.Bytes != total || len(usage.Threads) != 3 {
		t.Errorf("%d blobs of %d bytes, want %d of %d", usage.Blobs, usage.Bytes, found, total)
	}
	for _, got := range usage.Threads {
		grown := int64(0)
		for _, g := range got.Growth {
			c, err := s.Get(ctx, g.CheckpointID)
			must(t, err)
			if !c.CreatedAt.Equal(g.CreatedAt) {
				t.Errorf("%s is of %s, not %s", c.ID, c.CreatedAt, g.CreatedAt)
			}
			grown += g.Bytes
		}
		if grown != got.OwnBytes+got.SharedBytes {
			t.Errorf("%q grew by %d bytes and has %d", got.ThreadID, grown, got.OwnBytes+got.SharedBytes)
		}
		got.Growth = nil
		if d := cmp.Diff(*sums[got.ThreadID], got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	quick, err := s.Usage(ctx, nil)
	must(t, err)
	for i := range usage.Threads {
		usage.Threads[i].Growth = nil
	}
	if d := cmp.Diff(usage, quick); d != "" {
		t.Errorf("without growth (-want +got):\n%s", d)
	}
	if uses, err := s.BlobUses(ctx, testKey("nobody's")); err != nil || len(uses) != 0 {
		t.Errorf("uses of an unknown blob: %v, %v", uses, err)
	}
}

// TestBlobOfZeros: an id of zeros is a key like any other.
func TestBlobOfZeros(t *testing.T) {
	s := openTest(t, nil)
	ctx := context.Background()
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	key := ArtifactKey(Digest{})
	must(t, s.Append(ctx, lease.Writer, Checkpoint{ID: "1", ThreadID: "t", CreatedAt: testTime(1), Reason: ReasonAutomatic,
		Artifacts: []Artifact{{ArtifactID: "a", Name: "a", MimeType: "x/y", Size: 3, BlobKey: key, CreatedAt: testTime(1)}}}, ""))
	if got, want := collect(t, s.Blobs(ctx)), []BlobInfo{{Key: key, Size: 3, References: 1, Threads: 1}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestChanges tells what happened to paths, whatever the order of the entries.
func TestChanges(t *testing.T) {
	file := func(path, text string) Entry {
		return Entry{Path: path, Kind: KindFile, BlobKey: testKey(text), Size: 1}
	}
	from := Checkpoint{Files: []Entry{file("b", "1"), file("same", "1"), file("turns", "1"), {Path: "gone", Kind: KindDir}}}
	to := Checkpoint{Files: []Entry{file("same", "1"), {Path: "turns", Kind: KindDir}, file("b", "2"), file("a", "1")}}
	want := []Change{
		{Path: "a", Kind: ChangeAdded, To: &to.Files[3]},
		{Path: "b", Kind: ChangeChanged, From: &from.Files[0], To: &to.Files[2]},
		{Path: "gone", Kind: ChangeRemoved, From: &from.Files[3]},
		{Path: "turns", Kind: ChangeChanged, From: &from.Files[2], To: &to.Files[1]},
	}
	if d := cmp.Diff(want, Changes(from, to)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := Changes(from, from); len(got) != 0 {
		t.Errorf("a checkpoint differs from itself: %v", got)
	}
}

// TestPlanPrune: what is planned is what is pruned, and planning needs no lease
// and no writable file.
func TestPlanPrune(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := openTestAt(t, path, nil)
	fillStore(t, s)
	ctx := context.Background()
	policy := PrunePolicy{KeepLast: 2, KeepNamed: true}
	plan, err := s.PlanPrune(ctx, "a thread", policy)
	must(t, err)
	must(t, s.Close())
	readOnly := openTestAt(t, path, &Options{ReadOnly: true})
	again, err := readOnly.PlanPrune(ctx, "a thread", policy)
	must(t, err)
	must(t, readOnly.Close())
	s = openTestAt(t, path, &Options{Clock: func() time.Time { return time.Now().Add(time.Hour) }})
	lease, err := s.AcquireWriter(ctx, "a thread")
	must(t, err)
	done, err := s.Prune(ctx, lease.Writer, policy)
	must(t, err)
	if !slices.Equal(plan, done) || !slices.Equal(again, done) || len(done) == 0 {
		t.Errorf("planned %q and %q, pruned %q", plan, again, done)
	}
}

// TestBreakLease: the holder is fenced off, and the next lease is a later one.
func TestBreakLease(t *testing.T) {
	s := openTest(t, nil)
	ctx := context.Background()
	held, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	protect(t, s, held.Writer, testKey("pinned"))
	broken, err := s.BreakLease(ctx, "t")
	must(t, err)
	if want := (LeaseInfo{ThreadID: "t", Fence: 1, ExpiresAt: held.ExpiresAt, Current: true}); broken != want {
		t.Errorf("broke %+v, want %+v", broken, want)
	}
	if err := s.Append(ctx, held.Writer, testCheckpoint("t", 1, ""), ""); !errors.Is(err, ErrWriterLost) {
		t.Errorf("the holder of a broken lease appends: %v", err)
	}
	next, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	if next.Fence != 2 {
		t.Errorf("the next fence is %d", next.Fence)
	}
	if _, err := s.Renew(ctx, held.Writer); !errors.Is(err, ErrWriterLost) {
		t.Errorf("the holder of a broken lease renews: %v", err)
	}
}

// TestStatsOfBuckets: every page is a bucket's, free, or one of the first three.
func TestStatsOfBuckets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := openTestAt(t, path, nil)
	fillStore(t, s)
	ctx := context.Background()
	got, err := s.Stats(ctx)
	must(t, err)
	names := []string{}
	sum := 0
	for _, b := range got.Buckets {
		names = append(names, b.Name)
		sum += b.Pages
		if b.Used > int64(b.Pages*got.PageBytes) && b.Pages > 0 {
			t.Errorf("%+v is fuller than full", b)
		}
	}
	if len(names) != len(allBuckets) || !slices.IsSorted(names) {
		t.Errorf("buckets %q", names)
	}
	if sum+got.FreePages+3 != got.Pages || got.FreePages < 0 || int64(got.Pages*got.PageBytes) > got.FileBytes {
		t.Errorf("%d pages of buckets and %d free ones of %d, in %d bytes", sum, got.FreePages, got.Pages, got.FileBytes)
	}
	must(t, s.Close())
	readOnly := openTestAt(t, path, &Options{ReadOnly: true})
	again, err := readOnly.Stats(ctx)
	must(t, err)
	if d := cmp.Diff(got, again); d != "" {
		t.Errorf("opened read-only (-want +got):\n%s", d)
	}
}
