package checkpointdb

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/salvage"
)

// contentsOf is all that a repair has to keep, but fences.
type contentsOf struct {
	Heads       map[ThreadID]CheckpointID
	Chains      map[ThreadID][]Checkpoint
	Sources     map[CheckpointID]CheckpointID
	Transcripts map[ThreadID][]json.RawMessage
	Instances   map[string]Instance
	References  map[BlobKey]int64
	Garbage     map[BlobKey]bool
	Rows        int // of transcripts
	StoreID     string
	CreatedAt   string
}

func readContents(t *testing.T, s *Store) contentsOf {
	t.Helper()
	ctx := context.Background()
	all := contentsOf{
		map[ThreadID]CheckpointID{}, map[ThreadID][]Checkpoint{}, map[CheckpointID]CheckpointID{}, map[ThreadID][]json.RawMessage{},
		map[string]Instance{}, map[BlobKey]int64{}, map[BlobKey]bool{}, 0, "", "",
	}
	for _, thread := range threadsOf(t, s) {
		var err error
		all.Heads[thread], err = s.Head(ctx, thread)
		must(t, err)
		all.Transcripts[thread], err = s.LoadThread(ctx, thread)
		must(t, err)
		for c, err := range s.List(ctx, thread) {
			must(t, err)
			all.Chains[thread] = append(all.Chains[thread], c)
		}
	}
	must(t, s.view(func(tx *bolt.Tx) error {
		return errors.Join(
			tx.Bucket(bucketInstances).ForEach(func(k, v []byte) (err error) {
				all.Instances[string(k)], err = parseInstance(k, v)
				return err
			}),
			tx.Bucket(bucketGarbage).ForEach(func(k, v []byte) error {
				all.Garbage[blobID(k).key()] = true
				return nil
			}),
			tx.Bucket(bucketCheckpoints).ForEach(func(k, v []byte) error {
				h, _, err := parseHeader(v)
				all.Sources[h.id] = h.source
				return err
			}),
		)
	}))
	for ref, err := range s.BlobReferences(ctx) {
		must(t, err)
		all.References[ref.Key] = ref.Count
	}
	stats, err := s.Stats(ctx)
	must(t, err)
	all.Rows, all.StoreID, all.CreatedAt = stats.Transcripts, stats.StoreID, stats.CreatedAt.String()
	return all
}

func readFences(t *testing.T, s *Store) map[ThreadID]Fence {
	t.Helper()
	fences := map[ThreadID]Fence{}
	must(t, s.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketThreads).ForEach(func(k, v []byte) error {
			n, err := parseU64(v)
			if err == nil {
				fences[ThreadID(k)], err = getFence(tx, threadNumber(n))
			}
			return err
		})
	}))
	return fences
}

// makeDamaged writes the store of fillForDamage to path, and returns what it holds,
// not to be changed, and the ids that it does not hold any more.
func makeDamaged(t *testing.T, path string) (want contentsOf, fences map[ThreadID]Fence, deleted map[CheckpointID]bool) {
	t.Helper()
	if forDamage.data == nil {
		s := openTest(t, nil)
		forDamage.deleted = fillForDamage(t, s)
		forDamage.contents, forDamage.fences = readContents(t, s), readFences(t, s)
		must(t, s.Check(context.Background()))
		must(t, s.Close())
		var err error
		forDamage.data, err = os.ReadFile(s.Path())
		must(t, err)
	}
	must(t, os.WriteFile(path, forDamage.data, 0o600))
	return forDamage.contents, forDamage.fences, forDamage.deleted
}

// forDamage is the same for all tests, which takes a while to make.
var forDamage struct {
	data     []byte
	contents contentsOf
	fences   map[ThreadID]Fence
	deleted  map[CheckpointID]bool
}

// wantEqual spends the time for a difference only where there is one.
func wantEqual(t *testing.T, what string, want, got any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

// rewriteFile rewrites the file at path.
func rewriteFile(t *testing.T, path string, how func(data []byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, how(data), 0o600))
}

// emptyReport is the report of a repair that had nothing to repair.
func emptyReport(want contentsOf) RepairReport {
	report := newReport()
	report.Threads, report.Instances = len(want.Heads), len(want.Instances)
	for _, chain := range want.Chains {
		report.Kept += len(chain)
	}
	report.Transcripts = want.Rows
	return report
}

func TestRepairSoundStore(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
	want, fences, _ := makeDamaged(t, from)
	must(t, os.WriteFile(to+".tmp", []byte("of a killed run"), 0o600))
	before, err := os.ReadFile(from)
	must(t, err)
	var done, total int64
	report, err := Repair(ctx, from, to, &RepairOptions{Progress: func(d, n int64) {
		if d <= done || d > n {
			t.Errorf("progress goes from %d to %d of %d", done, d, n)
		}
		done, total = d, n
	}})
	must(t, err)
	if done == 0 || done != total {
		t.Errorf("progress ended at %d of %d", done, total)
	}
	sound := emptyReport(want)
	sound.DroppedLeases, sound.DroppedPins = report.DroppedLeases, report.DroppedPins
	wantEqual(t, "report", sound, report)
	if report.DroppedLeases == 0 {
		t.Error("no lease was dropped")
	}
	s := openTestAt(t, to, nil)
	wantEqual(t, "contents", want, readContents(t, s))
	wantEqual(t, "fences", fences, readFences(t, s))
	if after, err := os.ReadFile(from); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the damaged file was changed (%v)", err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); !slices.Equal(names, []string{from, to}) {
		t.Errorf("there are %q", names)
	}
	if info, err := os.Stat(to); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	// It goes on as if nothing had been.
	lease, err := s.AcquireWriter(ctx, "long")
	must(t, err)
	if lease.Fence <= fences["long"] {
		t.Errorf("fence %d is not above %d", lease.Fence, fences["long"])
	}
	c := testCheckpoint("long", 60, want.Heads["long"])
	must(t, s.Append(ctx, lease.Writer, c, want.Heads["long"]))
	must(t, s.DeleteHead(ctx, lease.Writer, c.ID))
	other, err := s.AcquireWriter(ctx, "headless")
	must(t, err)
	must(t, s.Append(ctx, other.Writer, testCheckpoint("headless", 70, ""), ""))
}

// TestRepairWithoutMetas: what the lost first pages named is found again, and
// nothing comes back that was deleted.
func TestRepairWithoutMetas(t *testing.T) {
	for _, test := range []struct {
		name  string
		which func(newest int) []int // pages to clear
	}{
		{"both", func(int) []int { return []int{0, 1} }},
		{"the newest", func(newest int) []int { return []int{newest} }},
		{"the older", func(newest int) []int { return []int{1 - newest} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
			want, fences, _ := makeDamaged(t, from)
			rewriteFile(t, from, func(data []byte) []byte {
				metas, _ := salvage.FindMetas(bytes.NewReader(data))
				page := int(metas[0].PageSize)
				for _, i := range test.which(int(metas[0].TxID % 2)) {
					clear(data[i*page : (i+1)*page])
				}
				return data
			})
			report, err := Repair(context.Background(), from, to, nil)
			must(t, err)
			sound := emptyReport(want)
			sound.DroppedLeases, sound.DroppedPins = report.DroppedLeases, report.DroppedPins
			wantEqual(t, "report", sound, report)
			s := openTestAt(t, to, nil)
			wantEqual(t, "contents", want, readContents(t, s))
			wantEqual(t, "fences", fences, readFences(t, s))
		})
	}
}

// pagesOf returns the pages of the trees of some buckets.
func pagesOf(t *testing.T, data []byte, buckets ...string) (off []int, pageSize int) {
	t.Helper()
	r := bytes.NewReader(data)
	metas, _ := salvage.FindMetas(r)
	f := salvage.New(r, r.Size(), metas[0].PageSize)
	all, err := f.Walk(context.Background(), metas[0].Root, metas[0].Pages, func(name string) bool { return slices.Contains(buckets, name) }, nil)
	must(t, err)
	none, err := f.Walk(context.Background(), metas[0].Root, metas[0].Pages, func(string) bool { return false }, nil)
	must(t, err)
	for id := uint64(2); id < metas[0].Pages; id++ {
		if all.Reached.Has(id) && !none.Reached.Has(id) {
			off = append(off, int(id)*int(metas[0].PageSize))
		}
	}
	return off, int(metas[0].PageSize)
}

// TestRepairWithoutIndexes loses all that is not a record, which has to do: every
// checkpoint is kept, in its order, and what was deleted is marked as unsure.
func TestRepairWithoutIndexes(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
	want, fences, deleted := makeDamaged(t, from)
	records := 0
	rewriteFile(t, from, func(data []byte) []byte {
		r := bytes.NewReader(data)
		metas, _ := salvage.FindMetas(r)
		f := salvage.New(r, r.Size(), metas[0].PageSize)
		keep := make([]bool, len(data))
		_, err := f.Walk(ctx, metas[0].Root, metas[0].Pages, func(name string) bool { return name == string(bucketCheckpoints) }, func(row salvage.Row) bool {
			records++
			for i := row.Value.Off; i < row.Value.End(); i++ {
				keep[i] = true
			}
			return true
		})
		must(t, err)
		for i := range data {
			if !keep[i] {
				data[i] = 0xEE
			}
		}
		return data
	})
	report, err := Repair(ctx, from, to, nil)
	must(t, err)
	if report.Kept != records || len(report.Unsure) != records || len(report.Lost) > 0 || len(report.Incomplete) != len(allBuckets) {
		t.Errorf("of %d: %+v", records, report)
	}
	s := openTestAt(t, to, nil)
	got := readContents(t, s)
	// A thread that had no head has its newest checkpoint as such.
	want.Heads = maps.Clone(want.Heads)
	want.Heads["headless"] = want.Chains["headless"][len(want.Chains["headless"])-1].ID
	for thread := range want.Heads {
		if len(want.Chains[thread]) == 0 {
			delete(want.Heads, thread)
		}
	}
	wantEqual(t, "heads", want.Heads, got.Heads)
	wantEqual(t, "chains", want.Chains, got.Chains)
	wantEqual(t, "sources", want.Sources, got.Sources)
	for id := range got.Sources {
		if deleted[id] {
			t.Errorf("%q was deleted", id)
		}
	}
	for thread, fence := range readFences(t, s) {
		if fence != LostFence || fence <= fences[thread] {
			t.Errorf("fence of %q is %d", thread, fence)
		}
	}
	if len(report.LostFences) != len(want.Heads) {
		t.Errorf("lost fences are %q", report.LostFences)
	}
}

// TestRepairLostBuckets loses one bucket at a time, and nothing else goes with it.
func TestRepairLostBuckets(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	sound := filepath.Join(dir, "sound.db")
	want, fences, _ := makeDamaged(t, sound)
	data, err := os.ReadFile(sound)
	must(t, err)
	for _, bucket := range []string{"ids", "checkpoints", "refcounts", "transcripts", "instances"} {
		t.Run(bucket, func(t *testing.T) {
			copied := bytes.Clone(data)
			off, page := pagesOf(t, copied, bucket)
			if len(off) == 0 {
				t.Fatal("the bucket has no page of its own")
			}
			for _, off := range off {
				if bucket != "checkpoints" {
					fillRandom(copied[off:off+page], 3)
				} else if binary.LittleEndian.Uint64(copied[off:]) == uint64(off/page) { // no record lies there
					fillRandom(copied[off:off+24], 3)
				}
			}
			from, to := filepath.Join(dir, bucket+".from"), filepath.Join(dir, bucket+".to")
			must(t, os.WriteFile(from, copied, 0o600))
			report, err := Repair(ctx, from, to, nil)
			must(t, err)
			s := openTestAt(t, to, nil)
			got := readContents(t, s)
			want := want
			switch bucket {
			case "transcripts":
				got.Transcripts, want.Transcripts, got.Rows = nil, nil, want.Rows
			case "instances":
				got.Instances, want.Instances = nil, nil
			}
			wantEqual(t, "contents", want, got)
			wantEqual(t, "fences", fences, readFences(t, s))
			if !slices.Contains(report.Incomplete, bucket) {
				t.Errorf("incomplete are %q", report.Incomplete)
			}
			if bucket == "ids" && len(report.Unsure)+len(report.Lost) > 0 { // for the tree has the records
				t.Errorf("%+v", report)
			}
		})
	}
}

// TestRepairLosesOne damages a record of a chain: those that build on it go too,
// each is named, and the head goes back to the newest that is left.
func TestRepairLosesOne(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
	s := openTestAt(t, from, nil)
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	head := CheckpointID("")
	for i := range 8 {
		c := testCheckpoint("t", i, head)
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	must(t, s.Close())
	sound := readSound(t, from)
	needs := sound.needs["cp-6"][0]
	rewriteFile(t, from, func(data []byte) []byte {
		raw := bytes.Clone(data[needs.Off:needs.End()])
		for at := bytes.Index(data, raw); at >= 0; at = bytes.Index(data, raw) {
			data[at+len(raw)-5] ^= 1 // copies in free pages too, which would do
		}
		return data
	})
	report, err := Repair(ctx, from, to, nil)
	must(t, err)
	want := newReport()
	want.Kept, want.Threads, want.DroppedLeases = 6, 1, 1
	want.Heads = []RepairedHead{{"t", "cp-5"}}
	want.Incomplete = []string{"checkpoints"}
	for _, id := range []CheckpointID{"cp-6", "cp-7"} {
		if !sound.isTouched(id, []salvage.Extent{{Off: needs.End() - 5, Len: 1}}) {
			want.Kept++
			want.Heads[0].Head = id
			continue
		}
		want.Lost = append(want.Lost, LostCheckpoint{ID: id, ThreadID: "t"})
	}
	for i := range report.Lost {
		if report.Lost[i].Problem == "" {
			t.Error("a loss without a reason")
		}
		report.Lost[i].Problem = ""
	}
	wantEqual(t, "report", want, report)
	openTestAt(t, to, nil)
}

func TestRepairOldFormats(t *testing.T) {
	for format := 1; format <= formatVersion; format++ {
		for _, how := range []string{"sound", "without metas and freelist"} {
			t.Run(fmt.Sprint(format, " ", how), func(t *testing.T) {
				packed, err := os.Open(fmt.Sprintf("testdata/format-%d.db.gz", format))
				must(t, err)
				defer packed.Close()
				unpacked, err := gzip.NewReader(packed)
				must(t, err)
				data, err := io.ReadAll(unpacked)
				must(t, err)
				dir := t.TempDir()
				from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
				must(t, os.WriteFile(from, data, 0o600))
				if how != "sound" {
					rewriteFile(t, from, func(data []byte) []byte {
						metas, _ := salvage.FindMetas(bytes.NewReader(data))
						clear(data[:2*metas[0].PageSize])
						clear(data[int64(metas[0].Freelist)*metas[0].PageSize:][:16])
						return data
					})
				}
				_, err = Repair(context.Background(), from, to, nil)
				must(t, err)
				migrated := openTestAt(t, filepath.Join(dir, "migrated.db"), nil)
				must(t, migrated.Close())
				must(t, os.WriteFile(migrated.Path(), data, 0o600))
				migrated = openTestAt(t, migrated.Path(), nil)
				wantEqual(t, "contents", readContents(t, migrated), readContents(t, openTestAt(t, to, nil)))
			})
		}
	}
}

func TestRepairRefuses(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
	s := openTestAt(t, from, nil)
	fillStore(t, s)
	refused := func(from, to string, want error) {
		t.Helper()
		_, err := Repair(ctx, from, to, nil)
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		} else if !strings.Contains(err.Error(), from) && !strings.Contains(err.Error(), to) {
			t.Errorf("%v names no file", err)
		}
	}
	if runtime.GOOS != "windows" {
		refused(from, to, ErrInUse)
	}
	must(t, s.Close())
	refused(from, from, ErrInvalidArgument)
	must(t, os.Link(from, to+".tmp"))
	refused(from, to, ErrInvalidArgument)
	refused(to+".tmp", to, ErrInvalidArgument)
	must(t, os.Remove(to+".tmp"))
	refused(dir, to, ErrNotAStore)
	refused(filepath.Join(dir, "none.db"), to, fs.ErrNotExist)
	refused(from, filepath.Join(dir, "none", "to.db"), fs.ErrNotExist)
	for name, data := range map[string][]byte{"empty": nil, "text": bytes.Repeat([]byte("\x01\x02 text "), 9999)} {
		other := filepath.Join(dir, name)
		must(t, os.WriteFile(other, data, 0o600))
		refused(other, to, ErrNotAStore)
	}
	later := filepath.Join(dir, "later.db")
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(later, data, 0o600))
	db, err := bolt.Open(later, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, u64(formatVersion+1)) }))
	must(t, db.Close())
	refused(later, to, ErrUnknownFormat)
	must(t, os.WriteFile(to, []byte("precious"), 0o600))
	refused(from, to, fs.ErrExist)
	if data, err := os.ReadFile(to); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
	must(t, os.Remove(to))

	canceled, cancel := context.WithCancel(ctx)
	_, err = Repair(canceled, from, to, &RepairOptions{Progress: func(done, total int64) {
		if done > total/2 {
			cancel() // in the middle of the building
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if names, _ := filepath.Glob(to + "*"); names != nil {
		t.Errorf("there are %q", names)
	}
}

// TestOrderChain builds chains out of records that know little of their places.
func TestOrderChain(t *testing.T) {
	record := func(id, parent string, at int, pos position, from origin) *whole {
		return &whole{id: CheckpointID(id), parent: CheckpointID(parent), createdAt: testTime(at), isLinked: parent != "", place: place{1, pos}, from: from}
	}
	for _, test := range []struct {
		name    string
		records []*whole
		last    string
		want    string
		leftOut string
	}{
		{"parents alone", []*whole{record("c", "b", 1, 0, 2), record("a", "", 9, 0, 2), record("b", "a", 3, 0, 2)}, "", "a b c", ""},
		{"gaps by time", []*whole{record("f", "e", 5, 0, 2), record("b", "", 1, 0, 2), record("d", "c", 3, 0, 2)}, "", "b d f", ""},
		{"gaps by position", []*whole{record("f", "e", 1, 6, 0), record("b", "", 5, 2, 0), record("d", "c", 3, 4, 0)}, "", "b d f", ""},
		{"one without position", []*whole{record("f", "e", 5, 6, 0), record("b", "", 1, 2, 0), record("d", "c", 3, 0, 2)}, "", "b d f", ""},
		{"two children", []*whole{record("a", "", 1, 1, 0), record("gone", "a", 2, 0, 2), record("b", "a", 3, 2, 0)}, "", "gone a b", ""},
		{"two children and theirs", []*whole{record("a", "", 1, 0, 2), record("x", "a", 2, 0, 2), record("y", "x", 3, 0, 2), record("b", "a", 4, 0, 2)}, "", "x y a b", ""},
		{"behind the head", []*whole{record("a", "", 1, 1, 0), record("b", "a", 2, 2, 0), record("gone", "b", 3, 0, 2)}, "b", "gone a b", ""},
		{"an id used again", []*whole{record("b", "a", 2, 2, 0), record("c", "b", 3, 3, 0), record("a", "c", 4, 4, 0)}, "a", "b c a", ""},
		{"a circle", []*whole{record("b", "a", 2, 0, 2), record("a", "b", 4, 0, 2)}, "", "a b", ""},
		{"its own parent", []*whole{record("a", "a", 2, 0, 2)}, "", "a", ""},
		{"contradiction", []*whole{
			record("a", "q", 1, 0, 2), record("p", "a", 2, 0, 2), record("p2", "p", 3, 0, 2),
			record("b", "p", 1, 0, 2), record("q", "b", 2, 0, 2), record("q2", "q", 3, 0, 2),
		}, "", "b q q2", "a p p2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := slices.IndexFunc(test.records, func(w *whole) bool { return string(w.id) == test.last })
			var last *whole
			if at >= 0 {
				last = test.records[at]
			}
			names := func(all []*whole) string {
				var ids []string
				for _, w := range all {
					ids = append(ids, string(w.id))
				}
				return strings.Join(ids, " ")
			}
			for range len(test.records) { // whatever order they come in
				test.records = append(test.records[1:], test.records[0])
				ordered, leftOut := orderChain(test.records, last)
				if names(ordered) != test.want || names(leftOut) != test.leftOut {
					t.Errorf("got %q, left out %q", names(ordered), names(leftOut))
				}
			}
		})
	}
}

func TestReportHasNoNull(t *testing.T) {
	text, err := json.Marshal(newReport())
	must(t, err)
	if strings.Contains(string(text), "null") {
		t.Errorf("%s", text)
	}
	var fields map[string]any
	must(t, json.Unmarshal(text, &fields))
	if len(slices.Collect(maps.Keys(fields))) != 13 {
		t.Errorf("%s", text)
	}
}

// TestCase1Repair repairs the four copies of case 1 of a store of 1 MiB.
func TestCase1Repair(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from := filepath.Join(dir, "good.db")
	s := openTestAt(t, from, nil)
	s.SkipSync()
	fillStore(t, s)
	lease, err := s.AcquireWriter(ctx, "bulk")
	must(t, err)
	head := CheckpointID("")
	for i := range 15 {
		c := testCheckpoint("bulk", i, head)
		c.ID = CheckpointID(fmt.Sprint("bulk-", i))
		noise := make([]byte, 70_000)
		fillRandom(noise, uint64(i))
		c.Conversation = append(c.Conversation, json.RawMessage(fmt.Sprintf(`"%x"`, noise)))
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	must(t, s.Close())
	sound := readSound(t, from)
	if len(sound.data) < 1<<20 {
		t.Fatalf("the store has %d bytes", len(sound.data))
	}
	page := sound.pageSize
	for _, damage := range []struct {
		name     string
		off, end int
	}{
		{"cut to half", len(sound.data) / 2, len(sound.data)},
		{"metas zeroed", 0, 2 * page},
		{"freelist header zeroed", int(sound.meta.Freelist) * page, int(sound.meta.Freelist)*page + 16},
		{"random bytes in the middle", len(sound.data) / 2, len(sound.data)/2 + 4096},
	} {
		t.Run(damage.name, func(t *testing.T) {
			copied, to := filepath.Join(dir, damage.name), filepath.Join(dir, damage.name+".repaired")
			data := bytes.Clone(sound.data)
			if damage.end == len(data) {
				data = data[:damage.off]
			} else if damage.end-damage.off == 4096 {
				fillRandom(data[damage.off:damage.end], 5)
			} else {
				clear(data[damage.off:damage.end])
			}
			must(t, os.WriteFile(copied, data, 0o600))
			report, err := Repair(ctx, copied, to, nil)
			must(t, err)
			s := openTestAt(t, to, nil)
			for id, want := range sound.contents {
				if sound.isTouched(id, []salvage.Extent{{Off: int64(damage.off), Len: int64(damage.end - damage.off)}}) {
					continue
				}
				got, err := s.Get(ctx, id)
				must(t, err)
				wantEqual(t, string(id), want, got)
			}
			if whole := damage.off == 0 || damage.end-damage.off == 16; whole && (report.Kept != len(sound.contents) || len(report.Unsure) > 0) {
				t.Errorf("of %d: %+v", len(sound.contents), report)
			}
		})
	}
}

// TestCheckOfCircles: a page that leads back to itself is named, not followed,
// wherever it is: bbolt would follow it until the stack is full, and nothing can
// catch that.
func TestCheckOfCircles(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	sound := filepath.Join(dir, "sound.db")
	makeDamaged(t, sound)
	data, err := os.ReadFile(sound)
	must(t, err)
	metas, _ := salvage.FindMetas(bytes.NewReader(data))
	page := int(metas[0].PageSize)
	circles := 0
	for id := 2; id < int(metas[0].Pages); id++ {
		p := data[id*page : (id+1)*page]
		if binary.LittleEndian.Uint64(p) != uint64(id) || binary.LittleEndian.Uint16(p[8:]) != 1 {
			continue // no branch
		}
		copied := bytes.Clone(data)
		binary.LittleEndian.PutUint64(copied[id*page+16+8:], uint64(id))
		path := filepath.Join(dir, fmt.Sprint(id))
		must(t, os.WriteFile(path, copied, 0o600))
		for _, readOnly := range []bool{true, false} {
			s, err := Open(path, &Options{ReadOnly: readOnly})
			if err == nil {
				err = s.Check(ctx)
				must(t, s.Close())
			}
			if err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("page %d: %v", id, err)
			} else if err != nil && strings.Contains(err.Error(), "more than once") {
				circles++
			}
		}
	}
	if circles < 2 {
		t.Errorf("found %d circles", circles)
	}
}

// TestNoFreelist: bbolt can be told to keep no list of free pages, as others that
// copy a file may do.
func TestNoFreelist(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
	want, _, _ := makeDamaged(t, from)
	db, err := bolt.Open(from, 0o600, &bolt.Options{NoFreelistSync: true})
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, u64(formatVersion)) }))
	must(t, db.Close())
	s, err := Open(from, &Options{ReadOnly: true})
	must(t, err)
	must(t, s.Check(context.Background()))
	must(t, s.Close())
	_, err = Repair(context.Background(), from, to, nil)
	must(t, err)
	wantEqual(t, "contents", want, readContents(t, openTestAt(t, to, nil)))
}
