package storetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/memstore"
	"checkpointdb/storetest"
)

// wrongEnv makes TestWrongStores run the wrong stores, which fails.
const wrongEnv = "STORETEST_WRONG"

// TestWrongStores runs each wrong store through the cases that it must fail, in
// a child process, and looks whether it did. Each case of the suites must be
// failed by some wrong store: one that nobody can fail proves nothing.
func TestWrongStores(t *testing.T) {
	if os.Getenv(wrongEnv) != "" {
		for _, w := range wrongStores {
			for _, name := range strings.Fields(w.fails) {
				t.Run(w.name+"/"+name, func(t *testing.T) { storetest.RunOnly(t, name, &wrongHarness{wrong: w}) })
			}
		}
		return
	}

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongStores$", "-test.v", "-test.short")
	child.Env = append(os.Environ(), wrongEnv+"=1")
	output, err := child.CombinedOutput()
	if child.ProcessState.ExitCode() != 1 {
		t.Fatalf("child process: %v\n%s", err, output)
	}
	failed := map[string]bool{}
	for line := range strings.Lines(string(output)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestWrongStores/"); ok {
			name, _, _ = strings.Cut(name, " ")
			failed[name] = true
		}
	}
	proven := map[string]bool{}
	for _, w := range wrongStores {
		for _, name := range strings.Fields(w.fails) {
			proven[name] = true
			if !failed[w.name+"/"+name] {
				t.Errorf("wrong store %s passes %s", w.name, name)
			}
		}
	}
	for _, name := range storetest.CaseNames() {
		if !proven[name] {
			t.Errorf("no wrong store is there to fail %s", name)
		}
	}
}

// TestRightStore runs the same harness with nothing spoiled.
func TestRightStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		return &wrongHarness{wrong: wrongStore{spoil: func(*store, *rightStore) {}}}
	}, nil)
}

type (
	threadID     = checkpointdb.ThreadID
	checkpointID = checkpointdb.CheckpointID
	checkpoint   = checkpointdb.Checkpoint
	writer       = checkpointdb.Writer
	lease        = checkpointdb.Lease
	reference    = checkpointdb.BlobReference
	forkRequest  = checkpointdb.ForkRequest
	prunePolicy  = checkpointdb.PrunePolicy
	instance     = checkpointdb.Instance
	messages     = []json.RawMessage
)

// wrongStore breaks a promise.
type wrongStore struct {
	name  string
	fails string // the cases that must notice
	spoil func(s *store, right *rightStore)
}

// rightStore is what a wrong store is made of. Its clock can be put off.
type rightStore struct {
	*memstore.Store
	settings storetest.Settings
	off      time.Duration
}

func newRightStore(o storetest.Settings) (*rightStore, error) {
	right := &rightStore{settings: o}
	var err error
	right.Store, err = memstore.New(&memstore.Options{
		Clock:         func() time.Time { return o.Clock().Add(right.off) },
		LeaseDuration: o.LeaseDuration,
		RenewAfter:    o.RenewAfter,
	})
	return right, err
}

// wrongHarness keeps its store when it is closed, so that a store in memory
// keeps its data.
type wrongHarness struct {
	wrong wrongStore
	store *store
}

func (h *wrongHarness) Open(o storetest.Settings) (checkpointdb.CheckpointStore, error) {
	if h.store != nil {
		h.store.reopened()
		return h.store, nil
	}
	right, err := newRightStore(o)
	if err != nil {
		return nil, err
	}
	h.store = newStore(right)
	h.wrong.spoil(h.store, right)
	return h.store, nil
}

func (h *wrongHarness) Close() error { return nil }

// store is a store whose methods can be replaced one by one.
type store struct {
	get               func(context.Context, checkpointID) (checkpoint, error)
	list              func(context.Context, threadID) iter.Seq2[checkpoint, error]
	head              func(context.Context, threadID) (checkpointID, error)
	append            func(context.Context, writer, checkpoint, checkpointID) error
	deleteHead        func(context.Context, writer, checkpointID) error
	acquire           func(context.Context, threadID) (lease, error)
	renew             func(context.Context, writer) (lease, error)
	release           func(context.Context, writer) error
	references        func(context.Context) iter.Seq2[reference, error]
	fork              func(context.Context, writer, forkRequest) (checkpoint, error)
	deleteCheckpoints func(context.Context, writer, int) ([]checkpointID, error)
	prune             func(context.Context, writer, prunePolicy) ([]checkpointID, error)
	getInstance       func(context.Context, string) (instance, error)
	upsertInstance    func(context.Context, instance) error
	deleteInstance    func(context.Context, string) error
	load              func(context.Context, threadID) (messages, error)
	save              func(context.Context, threadID, messages) error
	deleteThread      func(context.Context, writer) error
	reopened          func() // what happens between Close and Open
}

func newStore(s *rightStore) *store {
	return &store{
		s.Get, s.List, s.Head, s.Append, s.DeleteHead, s.AcquireWriter, s.Renew, s.Release, s.BlobReferences,
		s.Fork, s.DeleteCheckpoints, s.Prune, s.GetInstance, s.UpsertInstance, s.DeleteInstance,
		s.LoadThread, s.SaveThread, s.DeleteThread, func() {},
	}
}

func (s *store) Get(ctx context.Context, id checkpointID) (checkpoint, error) { return s.get(ctx, id) }
func (s *store) List(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
	return s.list(ctx, t)
}
func (s *store) Head(ctx context.Context, t threadID) (checkpointID, error) { return s.head(ctx, t) }
func (s *store) Append(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
	return s.append(ctx, w, c, expected)
}
func (s *store) DeleteHead(ctx context.Context, w writer, id checkpointID) error {
	return s.deleteHead(ctx, w, id)
}
func (s *store) AcquireWriter(ctx context.Context, t threadID) (lease, error) {
	return s.acquire(ctx, t)
}
func (s *store) Renew(ctx context.Context, w writer) (lease, error) { return s.renew(ctx, w) }
func (s *store) Release(ctx context.Context, w writer) error        { return s.release(ctx, w) }
func (s *store) BlobReferences(ctx context.Context) iter.Seq2[reference, error] {
	return s.references(ctx)
}
func (s *store) Fork(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
	return s.fork(ctx, w, r)
}
func (s *store) DeleteCheckpoints(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
	return s.deleteCheckpoints(ctx, w, keep)
}
func (s *store) Prune(ctx context.Context, w writer, p prunePolicy) ([]checkpointID, error) {
	return s.prune(ctx, w, p)
}
func (s *store) GetInstance(ctx context.Context, key string) (instance, error) {
	return s.getInstance(ctx, key)
}
func (s *store) UpsertInstance(ctx context.Context, in instance) error {
	return s.upsertInstance(ctx, in)
}
func (s *store) DeleteInstance(ctx context.Context, key string) error {
	return s.deleteInstance(ctx, key)
}
func (s *store) LoadThread(ctx context.Context, t threadID) (messages, error) { return s.load(ctx, t) }
func (s *store) SaveThread(ctx context.Context, t threadID, m messages) error {
	return s.save(ctx, t, m)
}
func (s *store) DeleteThread(ctx context.Context, w writer) error { return s.deleteThread(ctx, w) }

// The rest is what wrong stores have in common.

func failure(code checkpointdb.Code) error { return &checkpointdb.Error{Code: code} }

// forgive turns an error of this code into success.
func forgive(err error, code checkpointdb.Code) error {
	if errors.Is(err, code) {
		return nil
	}
	return err
}

// onRead changes every checkpoint that comes back.
func (s *store) onRead(change func(*checkpoint)) {
	get, list := s.get, s.list
	s.get = func(ctx context.Context, id checkpointID) (checkpoint, error) {
		c, err := get(ctx, id)
		change(&c)
		return c, err
	}
	s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
		return func(yield func(checkpoint, error) bool) {
			for c, err := range list(ctx, t) {
				change(&c)
				if !yield(c, err) {
					return
				}
			}
		}
	}
}

// onAppend changes what is appended.
func (s *store) onAppend(change func(c *checkpoint, expected *checkpointID)) {
	inner := s.append
	s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
		change(&c, &expected)
		return inner(ctx, w, c, expected)
	}
}

// onWriter changes every writer that is passed in.
func (s *store) onWriter(change func(w *writer)) {
	inner := *s
	s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
		change(&w)
		return inner.append(ctx, w, c, expected)
	}
	s.deleteHead = func(ctx context.Context, w writer, id checkpointID) error {
		change(&w)
		return inner.deleteHead(ctx, w, id)
	}
	s.renew = func(ctx context.Context, w writer) (lease, error) {
		change(&w)
		return inner.renew(ctx, w)
	}
	s.release = func(ctx context.Context, w writer) error {
		change(&w)
		return inner.release(ctx, w)
	}
	s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
		change(&w)
		return inner.fork(ctx, w, r)
	}
	s.deleteThread = func(ctx context.Context, w writer) error {
		change(&w)
		return inner.deleteThread(ctx, w)
	}
}

// holders notes the last lease of every thread.
func (s *store) holders() map[threadID]writer {
	last := map[threadID]writer{}
	acquire := s.acquire
	s.acquire = func(ctx context.Context, t threadID) (lease, error) {
		l, err := acquire(ctx, t)
		if err == nil {
			last[t] = l.Writer
		}
		return l, err
	}
	return last
}

// restartFences makes fences start again at 1 whenever restart is called for a
// thread.
func (s *store) restartFences() (restart func(threadID)) {
	given, hidden := s.holders(), map[threadID]checkpointdb.Fence{}
	acquire := s.acquire
	s.acquire = func(ctx context.Context, t threadID) (lease, error) {
		l, err := acquire(ctx, t)
		l.Fence -= hidden[t]
		return l, err
	}
	s.onWriter(func(w *writer) { w.Fence += hidden[w.ThreadID] })
	return func(t threadID) { hidden[t] = given[t].Fence }
}

// recount makes BlobReferences count with a function of all checkpoints of each
// thread.
func (s *store) recount(count func(of []checkpoint, counts map[checkpointdb.BlobKey]int64)) {
	threads := s.holders()
	s.references = func(ctx context.Context) iter.Seq2[reference, error] {
		counts := map[checkpointdb.BlobKey]int64{}
		for t := range threads {
			count(all(s.list(ctx, t)), counts)
		}
		var refs []reference
		for _, key := range slices.Sorted(maps.Keys(counts)) {
			refs = append(refs, reference{Key: key, Count: counts[key]})
		}
		return each(refs)
	}
}

// all reads an iterator to its end and leaves out errors.
func all[T any](seq iter.Seq2[T, error]) (items []T) {
	for item, err := range seq {
		if err == nil {
			items = append(items, item)
		}
	}
	return items
}

func each[T any](items []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// respell decodes and encodes messages, as if their bytes did not matter.
func respell(m messages) (out messages) {
	for _, message := range m {
		var value any
		if json.Unmarshal(message, &value) == nil {
			message, _ = json.Marshal(value)
		}
		out = append(out, message)
	}
	return out
}
