package checkpointdb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/salvage"
)

// fillForDamage makes a store of some 600 kB with all that a repair has to deal
// with: chains with gaps, a thread that survives without a head, forks, deleted
// heads and threads, records that fill pages, small rows and long ones. It returns
// the ids that were deleted again.
func fillForDamage(t *testing.T, s *Store) (deleted map[CheckpointID]bool) {
	t.Helper()
	ctx := context.Background()
	s.SkipSync()
	deleted = map[CheckpointID]bool{}
	writers := map[ThreadID]Writer{}
	grow := func(thread ThreadID, from, to, files int) {
		t.Helper()
		if writers[thread].ThreadID == "" {
			lease, err := s.AcquireWriter(ctx, thread)
			must(t, err)
			writers[thread] = lease.Writer
		}
		head, err := s.Head(ctx, thread)
		must(t, err)
		for i := from; i < to; i++ {
			c := testCheckpoint(thread, i, head)
			c.ID = CheckpointID(fmt.Sprintf("%s/%d", thread, i))
			for n := range files {
				c.Files = append(c.Files, Entry{Path: fmt.Sprintf("more/%04d", n), Kind: KindFile, Size: int64(n), BlobKey: testKey(fmt.Sprint(thread, n, i/3*(1-min(1, n%10))))})
			}
			must(t, s.Append(ctx, writers[thread], c, head))
			head = c.ID
		}
	}
	prune := func(thread ThreadID, policy PrunePolicy) {
		t.Helper()
		gone, err := s.Prune(ctx, writers[thread], policy)
		must(t, err)
		for _, id := range gone {
			deleted[id] = true
		}
	}
	dropHead := func(thread ThreadID) {
		t.Helper()
		head, err := s.Head(ctx, thread)
		must(t, err)
		must(t, s.DeleteHead(ctx, writers[thread], head))
		deleted[head] = true
	}
	grow("long", 0, 22, 0)
	grow("wide", 0, 5, 250)
	grow("pruned", 0, 21, 5)
	prune("pruned", PrunePolicy{KeepLast: 3, KeepNamed: true})
	grow("headless", 0, 8, 20)
	prune("headless", PrunePolicy{KeepLast: 1, KeepNamed: true})
	dropHead("headless")
	grow("undone", 0, 6, 10)
	dropHead("undone")
	grow("gone", 0, 4, 10)
	for i := range 4 {
		deleted[CheckpointID(fmt.Sprint("gone/", i))] = true
	}
	must(t, s.DeleteThread(ctx, writers["gone"]))
	for i := range 3 {
		thread := ThreadID(fmt.Sprint("fork ", i))
		lease, err := s.AcquireWriter(ctx, thread)
		must(t, err)
		writers[thread] = lease.Writer
		_, err = s.Fork(ctx, lease.Writer, ForkRequest{
			SourceThreadID: "long", SourceCheckpointID: CheckpointID(fmt.Sprint("long/", 8*i+5)),
			DestinationThreadID: thread, DestinationCheckpointID: CheckpointID(thread), CreatedAt: testTime(100 + i),
		})
		must(t, err)
		grow(thread, 40, 44, 0)
	}
	for i := range 20 {
		must(t, s.UpsertInstance(ctx, Instance{Key: fmt.Sprint("instance ", i), Provider: "p", ProviderSandboxID: strings.Repeat("sb", 30*i), ThreadID: "long", UpdatedAt: testTime(i)}))
		must(t, s.SaveThread(ctx, ThreadID(fmt.Sprint("only a transcript ", i)), []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"text":%q}`, strings.Repeat("t", 70*i)))}))
	}
	grow("long", 22, 36, 0)
	must(t, s.Release(ctx, writers["undone"]))
	return deleted
}

// soundStore is what a store held before it was damaged.
type soundStore struct {
	data     []byte
	pageSize int
	meta     salvage.Meta
	contents map[CheckpointID]Checkpoint
	needs    map[CheckpointID][]salvage.Extent
	deleted  map[CheckpointID]bool
}

func readSound(t *testing.T, path string) *soundStore {
	t.Helper()
	ctx := context.Background()
	sound := &soundStore{contents: map[CheckpointID]Checkpoint{}, needs: map[CheckpointID][]salvage.Extent{}}
	var err error
	sound.data, err = os.ReadFile(path)
	must(t, err)
	s, err := Open(path, &Options{ReadOnly: true})
	must(t, err)
	defer s.Close()
	file := bytes.NewReader(sound.data)
	metas, _ := salvage.FindMetas(file)
	f := salvage.New(file, file.Size(), metas[0].PageSize)
	sound.pageSize, sound.meta = int(metas[0].PageSize), metas[0]
	sound.data = sound.data[:metas[0].Pages*uint64(metas[0].PageSize)] // behind that is nothing to damage
	c, err := gather(ctx, f, metas, func(int64) {})
	must(t, err)
	byPlace := map[place]*whole{}
	for _, w := range c.records {
		byPlace[w.place] = w
	}
	for _, w := range c.records {
		sound.contents[w.id], err = s.Get(ctx, w.id)
		must(t, err)
		raw, err := f.Read(w.at)
		must(t, err)
		top, err := parseRecord(raw)
		must(t, err)
		for kind := range sections {
			at, rec := w, top
			sound.needs[w.id] = append(sound.needs[w.id], at.at)
			for rec.sections[kind].depth > 0 {
				at = byPlace[place{at.place.thread, rec.base}]
				raw, err := f.Read(at.at)
				must(t, err)
				rec, err = parseRecord(raw)
				must(t, err)
				sound.needs[w.id] = append(sound.needs[w.id], at.at)
			}
		}
	}
	return sound
}

// damage returns the i-th damaged copy, and which parts of it are damaged.
func (sound *soundStore) damage(i int) (copied []byte, what string, damaged []salvage.Extent) {
	r := rand.New(rand.NewPCG(4, uint64(i)))
	copied = bytes.Clone(sound.data)
	page := sound.pageSize
	over := func(off, n int) []byte {
		damaged = append(damaged, salvage.Extent{Off: int64(off), Len: int64(n)})
		return copied[off : off+n]
	}
	kind := i % 10
	if kind > 6 && i%3 > 0 {
		kind -= 6
	}
	switch kind {
	case 0:
		n := r.IntN(len(copied))
		over(n, len(copied)-n)
		return copied[:n], fmt.Sprint("cut to ", n), damaged
	case 1, 2, 3:
		for range 1 + r.IntN(4) {
			p := r.IntN(len(copied) / page)
			clear(over(p*page, page))
			what += fmt.Sprintf("page %d zeroed ", p)
		}
	case 4, 5, 6:
		for range 1 + r.IntN(16) {
			off := r.IntN(len(copied))
			over(off, 1)[0] ^= byte(1 + r.IntN(255))
			what += fmt.Sprintf("byte %d flipped ", off)
		}
	case 7:
		off := r.IntN(len(copied) - 4096)
		fillRandom(over(off, 4096), uint64(i))
		what = fmt.Sprintf("random bytes from %d on ", off)
	case 8:
		clear(over(0, 2*page))
		what = "metas zeroed "
		if i%2 == 0 {
			p := r.IntN(len(copied) / page)
			clear(over(p*page, page))
			what += fmt.Sprintf("page %d zeroed ", p)
		}
	case 9:
		clear(over(int(sound.meta.Freelist)*page, page))
		off := r.IntN(len(copied))
		over(off, 1)[0] ^= byte(1 + r.IntN(255))
		what = fmt.Sprintf("freelist page %d zeroed byte %d flipped ", sound.meta.Freelist, off)
	}
	return copied, what, damaged
}

// isTouched tells whether the damage lies on what a checkpoint needs.
func (sound *soundStore) isTouched(id CheckpointID, damaged []salvage.Extent) bool {
	for _, need := range sound.needs[id] {
		for _, d := range damaged {
			if need.Off < d.End() && d.Off < need.End() {
				return true
			}
		}
	}
	return false
}

const (
	damageEnv     = "CHECKPOINTDB_TEST_DAMAGED_COPIES"
	damagedCopies = 1000
)

// TestDamagedCopies damages a store in a thousand ways. Each copy is checked,
// which names the damage or finds none, without a crash, a hang or a change; and
// repaired, which keeps whatever checkpoint was not touched. Child processes do
// it, so that a fault shows whose it was.
func TestDamagedCopies(t *testing.T) {
	if spec := os.Getenv(damageEnv); spec != "" {
		checkCopies(t, spec)
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "sound.db")
	s, err := Open(path, nil)
	must(t, err)
	deleted := fillForDamage(t, s)
	must(t, s.Check(context.Background()))
	must(t, s.Close())
	list, err := json.Marshal(deleted)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "deleted.json"), list, 0o600))

	n, children := damagedCopies, 4
	if testing.Short() {
		n = damagedCopies / 10
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for child := range children {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDamagedCopies$")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%d:%d", damageEnv, dir, n*child/children, n*(child+1)/children))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("child %d ended with %v:\n%s", child, err, out)
			}
		})
	}
	wg.Wait()
}

func checkCopies(t *testing.T, spec string) {
	parts := strings.Split(spec, ":")
	dir := strings.Join(parts[:len(parts)-2], ":")
	from, err := strconv.Atoi(parts[len(parts)-2])
	must(t, err)
	to, err := strconv.Atoi(parts[len(parts)-1])
	must(t, err)
	debug.SetGCPercent(400)
	sound := readSound(t, filepath.Join(dir, "sound.db"))
	list, err := os.ReadFile(filepath.Join(dir, "deleted.json"))
	must(t, err)
	must(t, json.Unmarshal(list, &sound.deleted))
	for i := from; i < to; i++ {
		sound.checkCopy(t, i)
	}
}

func (sound *soundStore) checkCopy(t *testing.T, i int) {
	t.Helper()
	ctx := context.Background()
	copied, what, damaged := sound.damage(i)
	dir := t.TempDir()
	path, repaired := filepath.Join(dir, "copy.db"), filepath.Join(dir, "repaired.db")
	must(t, os.WriteFile(path, copied, 0o600))
	old := time.Unix(1_600_000_000, 0)
	must(t, os.Chtimes(path, old, old))
	watchdog := time.AfterFunc(30*time.Second, func() { panic(fmt.Sprintf("copy %d (%s) hangs", i, what)) })
	defer watchdog.Stop()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("copy %d (%s): %s", i, what, fmt.Sprintf(format, args...))
	}
	unchanged := func(by string) {
		t.Helper()
		now, err := os.ReadFile(path)
		must(t, err)
		info, err := os.Stat(path)
		must(t, err)
		if !bytes.Equal(now, copied) || !info.ModTime().Equal(old) {
			fail("%s has changed the file", by)
		}
	}

	err := func() error {
		s, err := Open(path, &Options{ReadOnly: true})
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Check(ctx)
	}()
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNotAStore) && !errors.Is(err, ErrUnknownFormat) {
		fail("check gives %v", err)
	}
	unchanged("check")

	report, err := Repair(ctx, path, repaired, nil)
	unchanged("repair")
	untouched := []CheckpointID{}
	for id := range sound.contents {
		if !sound.isTouched(id, damaged) {
			untouched = append(untouched, id)
		}
	}
	if errors.Is(err, ErrNotAStore) && len(untouched) == 0 {
		return
	}
	if err != nil {
		fail("repair gives %v", err)
		return
	}
	s, err := Open(repaired, &Options{ReadOnly: true})
	if err != nil {
		fail("%v", err)
		return
	}
	defer s.Close()
	accounted := map[CheckpointID]bool{}
	for _, lost := range report.Lost {
		accounted[lost.ID] = true
	}
	kept := map[CheckpointID]bool{}
	for _, thread := range threadsOf(t, s) {
		for c, err := range s.List(ctx, thread) {
			if err != nil {
				fail("list %q: %v", thread, err)
				break
			}
			kept[c.ID] = true
			accounted[c.ID] = true
			original, there := sound.contents[c.ID]
			if !there && !slices.Contains(report.Unsure, c.ID) {
				fail("checkpoint %q is back from the dead, and not listed as unsure", c.ID)
			}
			if there && !reflect.DeepEqual(c, original) {
				fail("checkpoint %q has changed", c.ID)
			}
		}
	}
	if len(kept) != report.Kept {
		fail("%d checkpoints are there, %d reported", len(kept), report.Kept)
	}
	for _, id := range untouched {
		if !kept[id] {
			fail("%q was untouched, and is not there", id)
		}
	}
	for id := range sound.contents {
		if !accounted[id] && !slices.Contains(report.Incomplete, "ids") {
			fail("%q is neither kept nor listed as lost", id)
		}
	}
	if t.Failed() {
		text, _ := json.MarshalIndent(report, "", " ")
		t.Logf("%s", text)
	}
}

func threadsOf(t *testing.T, s *Store) (threads []ThreadID) {
	t.Helper()
	must(t, s.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketThreads).ForEach(func(k, _ []byte) error {
			threads = append(threads, ThreadID(k))
			return nil
		})
	}))
	return threads
}
