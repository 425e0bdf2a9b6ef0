package checkpointdb_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"checkpointdb"
	"checkpointdb/internal/faultblob"
	"checkpointdb/workspace"
)

// The proof that captures and sweeps may run at the same time. Actors stop
// before every transaction and every call of the bucket, and a scheduler decides
// who goes on. It tries every order with up to a few changes of actor that
// nothing forces (after Musuvathi and Qadeer, "Iterative Context Bounding for
// Systematic Testing of Multithreaded Programs", PLDI 2007), and random orders
// beyond that. The rule: a committed checkpoint restores, at every moment.

// ticket is a goroutine of an actor that waits to go on.
type ticket struct {
	actor, what string
	go_         chan struct{}
}

// schedule is one order, and who waits in it.
type schedule struct {
	mu      sync.Mutex // guards waiting
	waiting []*ticket

	prefix []int // choices to repeat
	taken  []choice
	random *rand.Rand // makes the choices behind prefix; nil: the first is taken
	trace  []string
}

// choice is what was picked among how many, and how many of them would have been
// a change of actor that nothing forced.
type choice struct{ picked, options, free int }

func (s *schedule) stop(actor, what string) {
	t := &ticket{actor, what, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, t)
	s.mu.Unlock()
	<-t.go_
}

// run lets the actors go on, one at a time, until all have ended. It must run in
// a synctest bubble with them. Where all wait for something else than a turn,
// time passes.
func (s *schedule) run(ended func() bool) {
	last := ""
	for idle := 0; ; {
		synctest.Wait()
		s.mu.Lock()
		// Those of the last actor come first: going on with it is free.
		slices.SortFunc(s.waiting, func(a, b *ticket) int {
			if (a.actor == last) != (b.actor == last) {
				if a.actor == last {
					return -1
				}
				return 1
			}
			return cmp.Or(strings.Compare(a.actor, b.actor), strings.Compare(a.what, b.what))
		})
		if len(s.waiting) == 0 {
			s.mu.Unlock()
			if idle++; ended() || idle > 100 { // the bubble reports who is left
				return
			}
			time.Sleep(time.Minute)
			continue
		}
		idle = 0
		free := 0
		for _, t := range s.waiting {
			if t.actor == last {
				free++
			}
		}
		if free == 0 {
			free = len(s.waiting) // somebody else has to go on
		}
		picked := 0
		switch n := len(s.taken); {
		case n < len(s.prefix):
			picked = s.prefix[n]
		case s.random != nil:
			picked = s.random.IntN(len(s.waiting))
		}
		s.taken = append(s.taken, choice{picked, len(s.waiting), free})
		t := s.waiting[picked]
		s.waiting = slices.Delete(s.waiting, picked, picked+1)
		s.mu.Unlock()
		last = t.actor
		s.trace = append(s.trace, t.actor+": "+t.what)
		close(t.go_)
	}
}

// nextPrefix returns the choices that lead to the next order with at most so
// many changes of actor that nothing forced; ok is false after the last.
func nextPrefix(taken []choice, changes int) (prefix []int, ok bool) {
	spent := make([]int, len(taken)+1)
	for i, c := range taken {
		spent[i+1] = spent[i]
		if c.picked >= c.free {
			spent[i+1]++
		}
	}
	for i := len(taken) - 1; i >= 0; i-- {
		next := taken[i].picked + 1
		if next >= taken[i].options || next >= taken[i].free && spent[i]+1 > changes {
			continue
		}
		for _, c := range taken[:i] {
			prefix = append(prefix, c.picked)
		}
		return append(prefix, next), true
	}
	return nil, false
}

// world is a store, a bucket, and actors that meet there.
type world struct {
	t        *testing.T
	dirs     map[string]string // directories to capture, by name; made once
	store    *checkpointdb.Store
	bucket   *blob.Bucket
	schedule *schedule
	noPins   bool
	broken   []string // what broke the rule
}

func content(text string) checkpointdb.BlobKey {
	return checkpointdb.FileKey(sha256.Sum256([]byte(text)))
}

// as returns the store and the bucket as an actor sees them: with a stop before
// each step.
func (w *world) as(actor string) (*checkpointdb.SteppedStore, *blob.Bucket) {
	stop := func(what string) { w.schedule.stop(actor, what) }
	bucket := faultblob.Wrap(w.bucket, func(_ context.Context, call faultblob.Call, do func() error) error {
		key := call.Key
		if len(key) > 60 {
			key = key[len(key)-64 : len(key)-56] // enough of the digest
		}
		stop(string(call.Kind) + " " + key)
		return do()
	})
	return &checkpointdb.SteppedStore{Store: w.store, Step: stop, NoPins: w.noPins}, bucket
}

// verify holds the rule against every committed checkpoint.
func (w *world) verify(when string, threads ...checkpointdb.ThreadID) {
	ctx := context.Background()
	for _, thread := range threads {
		for c, err := range w.store.List(ctx, thread) {
			if err != nil {
				w.broken = append(w.broken, fmt.Sprintf("%s: %v", when, err))
				continue
			}
			for _, e := range c.Files {
				got, err := w.bucket.ReadAll(ctx, string(e.BlobKey))
				if err != nil || checkpointdb.FileKey(sha256.Sum256(got)) != e.BlobKey {
					w.broken = append(w.broken, fmt.Sprintf("%s: %s of %s cannot be restored: %v", when, e.Path, c.ID, err))
				}
			}
		}
	}
}

var threads = []checkpointdb.ThreadID{"one", "two", "old"}

// capture is what a runner does at the end of a turn.
func (w *world) capture(actor string, thread checkpointdb.ThreadID, dir string) {
	ctx := context.Background()
	store, bucket := w.as(actor)
	lease, err := store.AcquireWriter(ctx, thread)
	if err != nil {
		return // somebody else has it
	}
	captured, err := workspace.Capture(ctx, w.dirs[dir], bucket, &workspace.CaptureOptions{
		Protect: checkpointdb.ProtectFor(store, lease.Writer),
	})
	if err == nil {
		head, _ := w.store.Head(ctx, thread)
		err = store.Append(ctx, lease.Writer, checkpointdb.Checkpoint{
			ID: checkpointdb.CheckpointID(actor), ThreadID: thread, ParentCheckpointID: head,
			CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic, Files: captured.Files,
		}, head)
	}
	w.verify("after "+actor, threads...)
	if err != nil && !errors.Is(err, checkpointdb.ErrWriterLost) && !errors.Is(err, checkpointdb.ErrBlobBeingDeleted) {
		w.broken = append(w.broken, fmt.Sprintf("%s: %v", actor, err))
	}
	if err := store.Release(ctx, lease.Writer); err != nil {
		w.broken = append(w.broken, fmt.Sprintf("%s: %v", actor, err))
	}
}

func (w *world) sweep(actor string, quick bool) {
	store, bucket := w.as(actor)
	_, err := checkpointdb.Sweep(context.Background(), store, bucket, &checkpointdb.SweepOptions{
		Quick: quick, OlderThan: 1, Concurrency: 1,
		Clock: func() time.Time { return time.Now().Add(time.Hour) }, // everything is old
	})
	if err != nil {
		w.broken = append(w.broken, fmt.Sprintf("%s: %v", actor, err))
	}
}

// scenarios are who meets whom. In the beginning the bucket has the content
// "orphan", which is garbage, and thread "old" has two checkpoints, of "kept",
// and of "kept" and "dropped".
var scenarios = map[string]map[string]func(w *world, actor string){
	"capture beside a quick sweep": {
		"capture": func(w *world, actor string) { w.capture(actor, "one", "orphan") },
		"sweep":   func(w *world, actor string) { w.sweep(actor, true) },
	},
	"capture beside a full sweep": {
		"capture": func(w *world, actor string) { w.capture(actor, "one", "orphan") },
		"sweep":   func(w *world, actor string) { w.sweep(actor, false) },
	},
	"capture of what a head drops": {
		"capture": func(w *world, actor string) { w.capture(actor, "one", "dropped") },
		"sweep":   func(w *world, actor string) { w.sweep(actor, true) },
		"undo": func(w *world, actor string) {
			store, _ := w.as(actor)
			lease, err := store.AcquireWriter(context.Background(), "old")
			if err == nil {
				err = store.DeleteHead(context.Background(), lease.Writer, "old-2")
			}
			if err != nil {
				w.broken = append(w.broken, err.Error())
			}
		},
	},
	"capture that loses its lease": {
		"capture": func(w *world, actor string) { w.capture(actor, "one", "orphan") },
		"sweep":   func(w *world, actor string) { w.sweep(actor, true) },
		"thief": func(w *world, actor string) {
			w.schedule.stop(actor, "wait for the lease to end")
			time.Sleep(3 * time.Minute)
			w.capture(actor, "one", "dropped")
		},
	},
	"two captures and a prune": {
		"capture 1": func(w *world, actor string) { w.capture(actor, "one", "dropped") },
		"capture 2": func(w *world, actor string) { w.capture(actor, "two", "orphan") },
		"prune": func(w *world, actor string) {
			store, _ := w.as(actor)
			lease, err := store.AcquireWriter(context.Background(), "old")
			if err == nil {
				_, err = store.Prune(context.Background(), lease.Writer, checkpointdb.PrunePolicy{KeepLast: 1})
			}
			if err != nil {
				w.broken = append(w.broken, err.Error())
			}
		},
		"sweep": func(w *world, actor string) { w.sweep(actor, false) },
	},
}

// play runs a scenario in one order and returns what broke the rule.
func play(t *testing.T, actors map[string]func(*world, string), dirs map[string]string, s *schedule, noPins bool) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	defer os.Remove(path)
	w := &world{t: t, dirs: dirs, schedule: s, noPins: noPins}
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var err error
		if w.store, err = checkpointdb.Open(path, nil); err != nil {
			t.Fatal(err)
		}
		defer w.store.Close()
		w.store.SkipSync()
		w.bucket = memblob.OpenBucket(nil)
		defer w.bucket.Close()
		w.prepare(t)
		time.Sleep(time.Second)
		var all sync.WaitGroup
		var running atomic.Int32
		running.Store(int32(len(actors)))
		for name, actor := range actors {
			all.Go(func() {
				defer running.Add(-1)
				actor(w, name)
			})
		}
		s.run(func() bool { return running.Load() == 0 })
		all.Wait()
		w.verify("in the end", threads...)
		if err := w.store.Check(ctx); err != nil {
			w.broken = append(w.broken, err.Error())
		}
	})
	return w.broken
}

func (w *world) prepare(t *testing.T) {
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"orphan", "kept", "dropped"} {
		must(w.bucket.WriteAll(ctx, string(content(text)), []byte(text), nil))
	}
	lease, err := w.store.AcquireWriter(ctx, "old")
	must(err)
	file := func(text string) checkpointdb.Entry {
		return checkpointdb.Entry{Path: text, Kind: checkpointdb.KindFile, BlobKey: content(text), Size: int64(len(text))}
	}
	head := checkpointdb.CheckpointID("")
	for i, files := range [][]checkpointdb.Entry{{file("kept")}, {file("dropped"), file("kept")}, {file("kept"), file("orphan")}} {
		c := checkpointdb.Checkpoint{
			ID: checkpointdb.CheckpointID(fmt.Sprint("old-", i+1)), ThreadID: "old", ParentCheckpointID: head,
			CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic, Files: files,
		}
		must(w.store.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	must(w.store.DeleteHead(ctx, lease.Writer, "old-3"))
	must(w.store.Release(ctx, lease.Writer))
}

func captureDirs(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	for _, text := range []string{"orphan", "dropped"} {
		dirs[text] = t.TempDir()
		for name, data := range map[string]string{"old": text, "new": "new in " + text} {
			if err := os.WriteFile(filepath.Join(dirs[text], name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dirs
}

// explore plays a scenario in every order with at most so many unforced changes
// of actor, then in so many random ones. It returns how many orders it tried, and
// the first that broke the rule.
func explore(t *testing.T, actors map[string]func(*world, string), changes, random int, noPins bool) (tried int, broken, trace []string) {
	t.Helper()
	dirs := captureDirs(t)
	var prefix []int
	for ok := true; ok; tried++ {
		s := &schedule{prefix: prefix}
		if broken = play(t, actors, dirs, s, noPins); broken != nil {
			return tried + 1, broken, s.trace
		}
		prefix, ok = nextPrefix(s.taken, changes)
	}
	for i := range random {
		s := &schedule{random: rand.New(rand.NewPCG(uint64(i), 1))}
		tried++
		if broken = play(t, actors, dirs, s, noPins); broken != nil {
			return tried, broken, s.trace
		}
	}
	return tried, nil, nil
}

// TestInterleavings is the proof; see the top of this file.
func TestInterleavings(t *testing.T) {
	changes, random := 1, 60
	if testing.Short() {
		random = 10
	}
	if os.Getenv("CHECKPOINTDB_INTERLEAVINGS") != "" { // some minutes
		changes, random = 2, 2000
	}
	for name, actors := range scenarios {
		t.Run(name, func(t *testing.T) {
			changes := changes
			if len(actors) > 3 {
				changes-- // whom a change goes to multiplies the orders
			}
			tried, broken, trace := explore(t, actors, changes, random, false)
			if broken != nil {
				t.Fatalf("order %d broke the rule:\n\t%s\nin this order:\n\t%s", tried, strings.Join(broken, "\n\t"), strings.Join(trace, "\n\t"))
			}
			t.Logf("%d orders", tried)
		})
	}
}

// TestInterleavingsNeedPins shows that the proof can fail: without pins it finds
// an order in which a committed checkpoint has lost its bytes.
func TestInterleavingsNeedPins(t *testing.T) {
	for _, name := range []string{"capture beside a quick sweep", "capture beside a full sweep"} {
		t.Run(name, func(t *testing.T) {
			tried, broken, trace := explore(t, scenarios[name], 1, 0, true)
			if broken == nil || !strings.Contains(strings.Join(broken, "\n"), "cannot be restored") {
				t.Fatalf("%d orders without pins, and nothing was lost", tried)
			}
			t.Logf("order %d: %s\n\t%s", tried, broken[0], strings.Join(trace, "\n\t"))
		})
	}
}
