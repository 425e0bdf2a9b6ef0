package storetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"checkpointdb"
)

const (
	leaseDuration = time.Minute
	renewAfter    = 20 * time.Second
)

// env is what a case works with: an open store, and the clock that it follows.
// Helpers fail the test by themselves; those that other goroutines may call say
// so.
type env struct {
	*testing.T
	store   checkpointdb.CheckpointStore
	harness Harness
	options Options

	mu      sync.Mutex                     // guards everything below
	time    time.Time                      // what the store's clock shows
	made    int                            // number of checkpoints that checkpoint has built
	threads map[checkpointdb.ThreadID]bool // threads that the case has touched
}

func newEnv(t *testing.T, h Harness, o Options) *env {
	t.Helper()
	e := &env{
		T: t, harness: h, options: o,
		time:    time.Date(2026, 2, 3, 4, 5, 6, 789012345, time.UTC),
		threads: map[checkpointdb.ThreadID]bool{},
	}
	e.open()
	return e
}

func (e *env) open() {
	e.Helper()
	store, err := e.harness.Open(Settings{Clock: e.now, LeaseDuration: leaseDuration, RenewAfter: renewAfter})
	if err != nil {
		e.Fatalf("Open: %v", err)
	}
	e.store = store
}

func (e *env) close() {
	e.Helper()
	if e.store == nil {
		return
	}
	e.store = nil
	if err := e.harness.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
}

// reopen closes the store and opens it again over the same data.
func (e *env) reopen() {
	e.Helper()
	if e.options.Volatile != "" {
		e.Skipf("not reopened: %s", e.options.Volatile)
	}
	e.selfCheck()
	e.close()
	e.open()
}

// capability returns an optional part of the store, or skips the case. The
// value is good until the store is reopened.
func capability[T any](e *env) T {
	e.Helper()
	part, ok := e.store.(T)
	if !ok {
		e.Skipf("the store is no %s", reflect.TypeFor[T]())
	}
	return part
}

// now is the store's clock. It may be called from any goroutine.
func (e *env) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.time
}

// setNow moves the store's clock.
func (e *env) setNow(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.time = t
}

func (e *env) advance(d time.Duration) { e.setNow(e.now().Add(d)) }

// touch notes a thread for verify and refused. It may be called from any
// goroutine.
func (e *env) touch(thread checkpointdb.ThreadID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.threads[thread] = true
}

func (e *env) touched() []checkpointdb.ThreadID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.threads))
}

// acquire takes the lease of a thread.
func (e *env) acquire(thread checkpointdb.ThreadID) checkpointdb.Writer {
	e.Helper()
	return e.acquireLease(thread).Writer
}

func (e *env) acquireLease(thread checkpointdb.ThreadID) checkpointdb.Lease {
	e.Helper()
	l, err := e.store.AcquireWriter(e.Context(), thread)
	if err != nil {
		e.Fatalf("AcquireWriter(%.80q): %v", thread, err)
	}
	e.touch(thread)
	return l
}

func (e *env) release(w checkpointdb.Writer) {
	e.Helper()
	if err := e.store.Release(e.Context(), w); err != nil {
		e.Fatalf("Release(%.80q, fence %d): %v", w.ThreadID, w.Fence, err)
	}
}

// checkpoint builds a valid checkpoint. It has a file and an artifact in common
// with all others, and a file of its own; it is created a second after the one
// that was built before it. It may be called from any goroutine.
func (e *env) checkpoint(thread checkpointdb.ThreadID, id, parent checkpointdb.CheckpointID) checkpointdb.Checkpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made++
	return checkpointdb.Checkpoint{
		ID:                 id,
		ThreadID:           thread,
		ParentCheckpointID: parent,
		CreatedAt:          time.Date(2026, 1, 1, 0, 0, e.made, 0, time.UTC),
		Reason:             checkpointdb.ReasonAutomatic,
		Files: []checkpointdb.Entry{
			file("common.txt", "common"),
			file("own.txt", string(id)),
		},
		Conversation: []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"turn":%d}`, e.made))},
		Artifacts:    []checkpointdb.Artifact{artifact("plot", "common")},
	}
}

// file returns a file whose content is known by a name: one name, one key.
func file(path, content string) checkpointdb.Entry {
	return checkpointdb.Entry{
		Path: path, Kind: checkpointdb.KindFile,
		BlobKey: checkpointdb.FileKey(sha256.Sum256([]byte(content))), Size: int64(len(content)),
	}
}

func artifact(id, content string) checkpointdb.Artifact {
	return checkpointdb.Artifact{
		ArtifactID: id, Name: id + ".png", MimeType: "image/png", Size: int64(len(content)),
		BlobKey:   checkpointdb.ArtifactKey(sha256.Sum256([]byte(content))),
		CreatedAt: time.UnixMilli(1).UTC(),
	}
}

// append adds c to its thread with its parent as the expected head.
func (e *env) append(w checkpointdb.Writer, c checkpointdb.Checkpoint) {
	e.Helper()
	if err := e.store.Append(e.Context(), w, c, c.ParentCheckpointID); err != nil {
		e.Fatalf("Append(%.80q) after %.80q: %v", c.ID, c.ParentCheckpointID, err)
	}
}

// chain appends new checkpoints one after the other, starting at the head.
func (e *env) chain(w checkpointdb.Writer, ids ...checkpointdb.CheckpointID) []checkpointdb.Checkpoint {
	e.Helper()
	parent := e.head(w.ThreadID)
	var all []checkpointdb.Checkpoint
	for _, id := range ids {
		c := e.checkpoint(w.ThreadID, id, parent)
		e.append(w, c)
		all, parent = append(all, c), id
	}
	return all
}

func (e *env) deleteHead(w checkpointdb.Writer, id checkpointdb.CheckpointID) {
	e.Helper()
	if err := e.store.DeleteHead(e.Context(), w, id); err != nil {
		e.Fatalf("DeleteHead(%.80q): %v", id, err)
	}
}

func (e *env) get(id checkpointdb.CheckpointID) checkpointdb.Checkpoint {
	e.Helper()
	c, err := e.store.Get(e.Context(), id)
	if err != nil {
		e.Fatalf("Get(%.80q): %v", id, err)
	}
	return c
}

func (e *env) head(thread checkpointdb.ThreadID) checkpointdb.CheckpointID {
	e.Helper()
	head, err := e.store.Head(e.Context(), thread)
	if err != nil {
		e.Fatalf("Head(%.80q): %v", thread, err)
	}
	return head
}

func (e *env) list(thread checkpointdb.ThreadID) []checkpointdb.Checkpoint {
	e.Helper()
	all, err := collect(e.store.List(e.Context(), thread))
	if err != nil {
		e.Fatalf("List(%.80q): %v", thread, err)
	}
	return all
}

func (e *env) references() []checkpointdb.BlobReference {
	e.Helper()
	all, err := collect(e.store.BlobReferences(e.Context()))
	if err != nil {
		e.Fatalf("BlobReferences: %v", err)
	}
	return all
}

// count returns the references of one key, 0 when it is not listed.
func (e *env) count(key checkpointdb.BlobKey) int64 {
	e.Helper()
	for _, r := range e.references() {
		if r.Key == key {
			return r.Count
		}
	}
	return 0
}

func (e *env) wantHead(thread checkpointdb.ThreadID, want checkpointdb.CheckpointID) {
	e.Helper()
	if got := e.head(thread); got != want {
		e.Errorf("head of thread %.80q is %.80q, want %.80q", thread, got, want)
	}
}

// wantList checks the ids of a thread, in the order of List.
func (e *env) wantList(thread checkpointdb.ThreadID, want ...checkpointdb.CheckpointID) {
	e.Helper()
	e.wantEqual(fmt.Sprintf("list of thread %.80q", thread), idsOf(e.list(thread)), want)
}

func (e *env) wantCount(key checkpointdb.BlobKey, want int64) {
	e.Helper()
	if got := e.count(key); got != want {
		e.Errorf("%s has %d references, want %d", key, got, want)
	}
}

func (e *env) wantNoReferences() {
	e.Helper()
	if all := e.references(); len(all) > 0 {
		e.Errorf("there are references: %v", all)
	}
}

// wantReferencesOf checks that the keys of one checkpoint are all there is.
func (e *env) wantReferencesOf(c checkpointdb.Checkpoint) {
	e.Helper()
	var want []checkpointdb.BlobReference
	for _, key := range c.BlobKeys() {
		want = append(want, checkpointdb.BlobReference{Key: key, Count: 1})
	}
	e.wantEqual("references", e.references(), want)
}

// equality makes a nil list equal to an empty one, and compares messages as
// texts: byte by byte takes minutes for the long ones.
var equality = gocmp.Options{
	cmpopts.EquateEmpty(),
	gocmp.Transformer("text", func(m json.RawMessage) string { return string(m) }),
}

// wantEqual compares two values; a nil list and an empty one are equal, and so
// are two times of one moment.
func (e *env) wantEqual(what string, got, want any) {
	e.Helper()
	if diff := gocmp.Diff(want, got, equality); diff != "" {
		e.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantCode checks the class of an error.
func (e *env) wantCode(what string, err error, code checkpointdb.Code) {
	e.Helper()
	if !errors.Is(err, code) {
		e.Errorf("%s: got error %v, want %s", what, err, code)
	}
}

// refused makes a call that must fail with this class, and checks that it has
// changed nothing that can be seen in any touched thread.
func (e *env) refused(code checkpointdb.Code, what string, call func() error) error {
	e.Helper()
	before := e.look()
	err := call()
	e.wantCode(what, err, code)
	e.wantEqual(what+" failed and changed the store", e.look(), before)
	return err
}

// detail returns the typed detail of an error.
func detail[T error](e *env, err error) (d T) {
	e.Helper()
	if !errors.As(err, &d) {
		e.Fatalf("error %v carries no %T", err, d)
	}
	return d
}

// view is everything that a store shows of the touched threads, leases aside.
type view struct {
	Heads       map[checkpointdb.ThreadID]checkpointdb.CheckpointID
	Checkpoints map[checkpointdb.ThreadID][]checkpointdb.Checkpoint
	Transcripts map[checkpointdb.ThreadID][]json.RawMessage
	References  []checkpointdb.BlobReference
}

func (e *env) look() view {
	e.Helper()
	v := view{
		Heads:       map[checkpointdb.ThreadID]checkpointdb.CheckpointID{},
		Checkpoints: map[checkpointdb.ThreadID][]checkpointdb.Checkpoint{},
		Transcripts: map[checkpointdb.ThreadID][]json.RawMessage{},
		References:  e.references(),
	}
	for _, thread := range e.touched() {
		v.Heads[thread] = e.head(thread)
		v.Checkpoints[thread] = e.list(thread)
		if t, ok := e.store.(checkpointdb.Transcripts); ok {
			messages, err := t.LoadThread(e.Context(), thread)
			if err != nil {
				e.Fatalf("LoadThread(%.80q): %v", thread, err)
			}
			v.Transcripts[thread] = messages
		}
	}
	return v
}

// verify checks what must hold in any store at any time, over all threads that
// the case has touched.
func (e *env) verify() {
	e.Helper()
	e.selfCheck()
	v := e.look()
	counts := map[checkpointdb.BlobKey]int64{}
	for thread, all := range v.Checkpoints {
		byOrder := func(a, b checkpointdb.Checkpoint) int {
			return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
		}
		if !slices.IsSortedFunc(all, byOrder) {
			e.Errorf("at the end, List(%.80q) is not by CreatedAt and id: %.80q", thread, idsOf(all))
		}
		for _, c := range all {
			if c.ThreadID != thread {
				e.Errorf("at the end, List(%.80q) has checkpoint %.80q of thread %.80q", thread, c.ID, c.ThreadID)
			}
			e.wantEqual(fmt.Sprintf("at the end, Get(%.80q) and List", c.ID), e.get(c.ID), c)
			for _, key := range c.BlobKeys() {
				counts[key]++
			}
		}
		if head := v.Heads[thread]; head != "" && !slices.Contains(idsOf(all), head) {
			e.Errorf("at the end, the head %.80q of thread %.80q is not listed", head, thread)
		}
	}
	var want []checkpointdb.BlobReference
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		want = append(want, checkpointdb.BlobReference{Key: key, Count: counts[key]})
	}
	e.wantEqual("at the end, BlobReferences and a recount from all checkpoints", v.References, want)
}

// selfCheck lets the store check itself, if it can.
func (e *env) selfCheck() {
	e.Helper()
	if c, ok := e.store.(checker); ok {
		if err := c.Check(context.WithoutCancel(e.Context())); err != nil {
			e.Errorf("Check: %v", err)
		}
	}
}

// collect reads an iterator to its end. An error must be yielded once and last.
func collect[T any](seq iter.Seq2[T, error]) (all []T, err error) {
	for item, itemErr := range seq {
		if err != nil {
			return all, fmt.Errorf("yielded something after the error %w", err)
		}
		if err = itemErr; err == nil {
			all = append(all, item)
		}
	}
	return all, err
}

func idsOf(all []checkpointdb.Checkpoint) []checkpointdb.CheckpointID {
	ids := make([]checkpointdb.CheckpointID, len(all))
	for i, c := range all {
		ids[i] = c.ID
	}
	return ids
}

// violation breaks one check of a call.
type violation[C any] struct {
	code  checkpointdb.Code
	field string // of an ErrInvalidEntry; "" where it does not matter
	apply func(*C)
}

// refusedInOrder proves that a method makes its checks, and in which order. The
// violations stand in the order of the checks. Each is tried alone, and then
// together with all that come after it, which must give the same answer.
// Finally the good call must succeed.
func refusedInOrder[C any](e *env, what string, good func() C, call func(C) error, violations ...violation[C]) {
	e.Helper()
	for i, first := range violations {
		for _, last := range []int{i, len(violations) - 1} {
			c := good()
			for j := last; j >= i; j-- {
				violations[j].apply(&c)
			}
			tried := fmt.Sprintf("%s breaking checks %d to %d", what, i+1, last+1)
			err := e.refused(first.code, tried, func() error { return call(c) })
			if first.field == "" {
				continue
			}
			if at := detail[*checkpointdb.InvalidEntryError](e, err); at.Field != first.field {
				e.Errorf("%s: the error is about %s, want %s", tried, at.Field, first.field)
			}
		}
	}
	if err := call(good()); err != nil {
		e.Errorf("%s breaking no check: %v", what, err)
	}
}
