package checkpointdb_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"checkpointdb"
)

// TestModel makes random calls on memstore and on the bbolt store. Both must
// give the same answers, and show the same threads after every call. A failure
// prints its seed, and the shortest run that fails.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t, rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":                  m.compare,
			"acquire":           m.acquire,
			"renew":             m.renew,
			"release":           m.release,
			"append":            m.append,
			"append again":      m.append, // often, or chains stay short
			"append once more":  m.append,
			"append anything":   m.appendAnything,
			"deleteHead":        m.deleteHead,
			"deleteCheckpoints": m.deleteCheckpoints,
			"prune":             m.prune,
			"fork":              m.fork,
			"get":               m.get,
			"saveThread":        m.saveThread,
			"upsertInstance":    m.upsertInstance,
			"deleteInstance":    m.deleteInstance,
			"getInstance":       m.getInstance,
			"deleteThread":      m.deleteThread,
			"advance":           m.advance,
			"reopen":            m.reopen,
		})
	})
}

// Few ids, so that they meet; the last of each is invalid.
var (
	modelThreads     = []checkpointdb.ThreadID{"t1", "t10", "a\x00b", "\xff"}
	modelCheckpoints = []checkpointdb.CheckpointID{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "a/b", "\uffff", "\U0001f600", ""}
	modelKeys        = []string{"k", "k\x00", ""}
)

const modelLease = 10 * time.Millisecond

// machine holds the two stores. Index 0 is memstore, 1 is bbolt.
type machine struct {
	ctx     context.Context
	clock   *testClock
	config  storeConfig
	stores  [2]fullStore
	writers [][2]checkpointdb.Writer // one lease of each store, in the order they were acquired
}

func newMachine(t *testing.T, rt *rapid.T) *machine {
	m := &machine{ctx: t.Context(), clock: &testClock{now: time.UnixMilli(1000)}}
	m.config = storeConfig{
		path:          filepath.Join(t.TempDir(), "store.db"),
		clock:         m.clock.Now,
		leaseDuration: modelLease,
	}
	for i, kind := range storeKinds {
		m.stores[i] = kind.open(rt, m.config)
	}
	return m
}

// answersEqual leaves out owner tokens, which are random.
var answersEqual = gocmp.Options{
	cmpopts.EquateEmpty(),
	cmpopts.IgnoreFields(checkpointdb.Writer{}, "OwnerToken"),
	gocmp.Transformer("text", func(m json.RawMessage) string { return string(m) }),
}

// both makes a call on both stores and compares the answers. It returns
// memstore's.
func both[R any](m *machine, t *rapid.T, what string, call func(i int, s fullStore) (R, error)) (R, error) {
	t.Helper()
	var got [2]R
	var errs [2]error
	for i, s := range m.stores {
		got[i], errs[i] = call(i, s)
	}
	if diff := gocmp.Diff(newFailure(errs[0]), newFailure(errs[1])); diff != "" {
		t.Fatalf("%s: memstore says %v, bbolt %v (-memstore +bbolt)\n%s", what, errs[0], errs[1], diff)
	}
	if diff := gocmp.Diff(got[0], got[1], answersEqual); diff != "" {
		t.Fatalf("%s (-memstore +bbolt)\n%s", what, diff)
	}
	return got[0], errs[0]
}

// bothDo is both for a call without a result.
func bothDo(m *machine, t *rapid.T, what string, call func(i int, s fullStore) error) error {
	t.Helper()
	_, err := both(m, t, what, func(i int, s fullStore) (struct{}, error) { return struct{}{}, call(i, s) })
	return err
}

// failure is what two stores must agree on in an error: its class, and the facts
// that come with it. The words are each store's own.
type failure struct {
	Failed   bool
	Code     checkpointdb.Code
	Conflict *checkpointdb.WriterConflictError
	Lost     *checkpointdb.WriterLostError
	Stale    *checkpointdb.StaleHeadError
	Entry    *checkpointdb.InvalidEntryError
}

func newFailure(err error) failure {
	f := failure{Failed: err != nil, Code: checkpointdb.CodeOf(err)}
	errors.As(err, &f.Conflict)
	errors.As(err, &f.Lost)
	errors.As(err, &f.Stale)
	errors.As(err, &f.Entry)
	return f
}

// compare looks at everything that both stores show.
func (m *machine) compare(t *rapid.T) {
	for _, thread := range modelThreads {
		_, _ = both(m, t, fmt.Sprintf("Head(%q)", thread), func(_ int, s fullStore) (checkpointdb.CheckpointID, error) {
			return s.Head(m.ctx, thread)
		})
		_, _ = both(m, t, fmt.Sprintf("List(%q)", thread), func(_ int, s fullStore) ([]checkpointdb.Checkpoint, error) {
			return collect(s.List(m.ctx, thread))
		})
		_, _ = both(m, t, fmt.Sprintf("LoadThread(%q)", thread), func(_ int, s fullStore) ([]json.RawMessage, error) {
			return s.LoadThread(m.ctx, thread)
		})
	}
	_, _ = both(m, t, "BlobReferences", func(_ int, s fullStore) ([]checkpointdb.BlobReference, error) {
		return collect(s.BlobReferences(m.ctx))
	})
}

// listed returns the checkpoints of a thread, of which there may be none.
func (m *machine) listed(thread checkpointdb.ThreadID) []checkpointdb.Checkpoint {
	all, _ := collect(m.stores[0].List(m.ctx, thread))
	return all
}

func (m *machine) headOf(thread checkpointdb.ThreadID) checkpointdb.CheckpointID {
	head, _ := m.stores[0].Head(m.ctx, thread)
	return head
}

func drawThread(t *rapid.T, label string) checkpointdb.ThreadID {
	return rapid.SampledFrom(modelThreads).Draw(t, label)
}

func drawID(t *rapid.T, label string) checkpointdb.CheckpointID {
	return rapid.SampledFrom(modelCheckpoints).Draw(t, label)
}

// often is true three times of four.
func often(t *rapid.T, label string) bool { return rapid.IntRange(0, 3).Draw(t, label) > 0 }

// drawWriter returns a writer of both stores: mostly a late one, since those are
// current, and sometimes one that never was.
func (m *machine) drawWriter(t *rapid.T) [2]checkpointdb.Writer {
	if len(m.writers) == 0 || !often(t, "a lease's") {
		w := checkpointdb.Writer{ThreadID: drawThread(t, "writer's thread"), Fence: checkpointdb.Fence(rapid.IntRange(0, 3).Draw(t, "fence"))}
		return [2]checkpointdb.Writer{w, w}
	}
	age := rapid.IntRange(0, min(len(m.writers), 6)-1).Draw(t, "writer's age")
	pair := m.writers[len(m.writers)-1-age]
	if !often(t, "unchanged") {
		thread := drawThread(t, "writer's thread")
		pair[0].ThreadID, pair[1].ThreadID = thread, thread
	}
	return pair
}

// currentWriter returns a writer of a thread on both stores, and takes the lease
// if need be. It is not current if the lease is lost in a way the list of
// writers does not show, which is fine as well.
func (m *machine) currentWriter(t *rapid.T, thread checkpointdb.ThreadID) [2]checkpointdb.Writer {
	if err := m.acquireThread(t, thread); errors.Is(err, checkpointdb.ErrInvalidID) {
		return [2]checkpointdb.Writer{{ThreadID: thread}, {ThreadID: thread}}
	}
	i := len(m.writers) - 1
	for m.writers[i][0].ThreadID != thread {
		i--
	}
	return m.writers[i]
}

func (m *machine) acquireThread(t *rapid.T, thread checkpointdb.ThreadID) error {
	var pair [2]checkpointdb.Writer
	_, err := both(m, t, fmt.Sprintf("AcquireWriter(%q)", thread), func(i int, s fullStore) (checkpointdb.Lease, error) {
		l, err := s.AcquireWriter(m.ctx, thread)
		pair[i] = l.Writer
		return l, err
	})
	if err == nil {
		m.writers = append(m.writers, pair)
	}
	return err
}

func (m *machine) acquire(t *rapid.T) { _ = m.acquireThread(t, drawThread(t, "thread")) }

func (m *machine) renew(t *rapid.T) {
	w := m.drawWriter(t)
	_, _ = both(m, t, "Renew", func(i int, s fullStore) (checkpointdb.Lease, error) { return s.Renew(m.ctx, w[i]) })
}

func (m *machine) release(t *rapid.T) {
	w := m.drawWriter(t)
	_ = bothDo(m, t, "Release", func(i int, s fullStore) error { return s.Release(m.ctx, w[i]) })
}

// append makes an Append that succeeds unless its id is in use.
func (m *machine) append(t *rapid.T) {
	thread := modelThreads[rapid.IntRange(0, len(modelThreads)-2).Draw(t, "thread")]
	w := m.currentWriter(t, thread)
	head := m.headOf(thread)
	c := m.drawCheckpoint(t, thread, head)
	c.ID = modelCheckpoints[rapid.IntRange(0, len(modelCheckpoints)-2).Draw(t, "id")]
	_ = bothDo(m, t, "Append", func(i int, s fullStore) error { return s.Append(m.ctx, w[i], c.Clone(), head) })
}

// appendAnything makes an Append that may break any rule, and several at once.
func (m *machine) appendAnything(t *rapid.T) {
	w := m.drawWriter(t)
	c := m.drawCheckpoint(t, drawThread(t, "thread"), drawID(t, "parent"))
	c.ID = drawID(t, "id")
	if often(t, "of the writer's thread") {
		c.ThreadID = w[0].ThreadID
	}
	expected := drawID(t, "expected head")
	if often(t, "at the head") {
		expected = m.headOf(c.ThreadID)
	}
	if often(t, "parent is expected") {
		c.ParentCheckpointID = expected
	}
	if !often(t, "valid") {
		rapid.SampledFrom(spoilers).Draw(t, "spoiler").spoil(&c)
	}
	_ = bothDo(m, t, "Append", func(i int, s fullStore) error { return s.Append(m.ctx, w[i], c.Clone(), expected) })
}

// spoiler makes a checkpoint invalid.
type spoiler struct {
	name  string
	spoil func(*checkpointdb.Checkpoint)
}

func (s spoiler) String() string { return s.name }

var spoilers = []spoiler{
	{"long id", func(c *checkpointdb.Checkpoint) {
		c.ID = checkpointdb.CheckpointID(strings.Repeat("a", checkpointdb.MaxIDBytes+1))
	}},
	{"parent", func(c *checkpointdb.Checkpoint) { c.ParentCheckpointID = "\xff" }},
	{"time", func(c *checkpointdb.Checkpoint) { c.CreatedAt = time.Time{} }},
	{"reason", func(c *checkpointdb.Checkpoint) { c.Reason = "because" }},
	{"label", func(c *checkpointdb.Checkpoint) { c.Label = "\xff" }},
	{"path", func(c *checkpointdb.Checkpoint) { c.Files = append(c.Files, checkpointdb.Entry{Path: "../x"}) }},
	{"two of one path", func(c *checkpointdb.Checkpoint) { c.Files = append(c.Files, c.Files...) }},
	{"message", func(c *checkpointdb.Checkpoint) { c.Conversation = append(c.Conversation, json.RawMessage("{")) }},
	{"artifact", func(c *checkpointdb.Checkpoint) { c.Artifacts = append(c.Artifacts, checkpointdb.Artifact{}) }},
}

// drawCheckpoint makes a valid checkpoint but for its ids. Its content is like
// that of a real next turn: the parent's with a few changes.
func (m *machine) drawCheckpoint(t *rapid.T, thread checkpointdb.ThreadID, parent checkpointdb.CheckpointID) checkpointdb.Checkpoint {
	base, _ := m.stores[0].Get(m.ctx, parent)
	if !often(t, "from the parent") {
		base = checkpointdb.Checkpoint{}
	}
	c := checkpointdb.Checkpoint{
		ThreadID: thread, ParentCheckpointID: parent,
		CreatedAt: m.clock.Now().Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "age")) * time.Millisecond),
		Reason: rapid.SampledFrom([]checkpointdb.Reason{
			checkpointdb.ReasonAutomatic, checkpointdb.ReasonNamed, checkpointdb.ReasonForkRoot,
		}).Draw(t, "reason"),
		Label:        rapid.SampledFrom([]string{"", "label", "<\x00>"}).Draw(t, "label"),
		SourceRunID:  rapid.SampledFrom([]string{"", "run"}).Draw(t, "run"),
		Files:        base.Files,
		Conversation: base.Conversation,
		Artifacts:    base.Artifacts,
	}
	if len(c.Files) == 0 && !often(t, "small") {
		for i := range 100 {
			c.Files = append(c.Files, drawnFile(fmt.Sprint("many/", i), i))
		}
	}
	for range rapid.IntRange(0, 4).Draw(t, "changed files") {
		c.Files = drawChange(t, c.Files)
	}
	for range rapid.IntRange(0, 2).Draw(t, "messages") {
		text := rapid.SampledFrom([]string{`{"role":"user"}`, "1e400", ` [ 9007199254740993 ] `, `"\ud800"`, `"` + strings.Repeat("long ", 200) + `"`}).Draw(t, "message")
		c.Conversation = append(c.Conversation, json.RawMessage(text))
	}
	if len(c.Conversation) > 0 && !often(t, "keep the conversation") {
		c.Conversation = c.Conversation[rapid.IntRange(0, len(c.Conversation)).Draw(t, "cut"):]
	}
	if !often(t, "same artifacts") {
		c.Artifacts = nil
		for range rapid.IntRange(0, 2).Draw(t, "artifacts") {
			n := rapid.IntRange(0, 3).Draw(t, "artifact")
			c.Artifacts = append(c.Artifacts, checkpointdb.Artifact{
				ArtifactID: fmt.Sprint(n), Name: "n", MimeType: "m", Size: int64(n),
				BlobKey: checkpointdb.ArtifactKey(sha256.Sum256([]byte{byte(n)})), CreatedAt: c.CreatedAt,
			})
		}
	}
	return c
}

// drawChange adds, changes, moves or removes one file.
func drawChange(t *rapid.T, files []checkpointdb.Entry) []checkpointdb.Entry {
	path := fmt.Sprint("f", rapid.IntRange(0, 7).Draw(t, "path"))
	if len(files) > 0 && often(t, "one that is there") {
		path = files[rapid.IntRange(0, len(files)-1).Draw(t, "which")].Path
	}
	files = slices.DeleteFunc(slices.Clone(files), func(e checkpointdb.Entry) bool { return e.Path == path })
	entry := drawnFile(path, rapid.IntRange(0, 9).Draw(t, "content"))
	switch rapid.IntRange(0, 5).Draw(t, "kind of change") {
	case 0:
		return files
	case 1:
		entry = checkpointdb.Entry{Path: path, Kind: checkpointdb.KindDir}
	case 2:
		entry = checkpointdb.Entry{Path: path, Kind: checkpointdb.KindSymlink, Target: "t"}
	case 3:
		entry.Executable = true
	}
	return slices.Insert(files, rapid.IntRange(0, len(files)).Draw(t, "at"), entry)
}

func drawnFile(path string, content int) checkpointdb.Entry {
	return checkpointdb.Entry{
		Path: path, Kind: checkpointdb.KindFile, Size: int64(content),
		BlobKey: checkpointdb.FileKey(sha256.Sum256([]byte{byte(content)})),
	}
}

func (m *machine) deleteHead(t *rapid.T) {
	w := m.drawWriter(t)
	id := drawID(t, "id")
	if often(t, "the head") {
		id = m.headOf(w[0].ThreadID)
	}
	_ = bothDo(m, t, "DeleteHead", func(i int, s fullStore) error { return s.DeleteHead(m.ctx, w[i], id) })
}

func (m *machine) deleteCheckpoints(t *rapid.T) {
	w := m.drawWriter(t)
	keep := rapid.IntRange(0, 5).Draw(t, "keep")
	_, _ = both(m, t, "DeleteCheckpoints", func(i int, s fullStore) ([]checkpointdb.CheckpointID, error) {
		return s.DeleteCheckpoints(m.ctx, w[i], keep)
	})
}

func (m *machine) prune(t *rapid.T) {
	w := m.drawWriter(t)
	policy := checkpointdb.PrunePolicy{
		KeepLast:    rapid.IntRange(-1, 3).Draw(t, "last"),
		KeepYounger: time.Duration(rapid.IntRange(-1, 8).Draw(t, "younger")) * time.Millisecond,
		KeepNamed:   rapid.Bool().Draw(t, "named"),
		DryRun:      !often(t, "for real"),
	}
	_, _ = both(m, t, "Prune", func(i int, s fullStore) ([]checkpointdb.CheckpointID, error) {
		return s.Prune(m.ctx, w[i], policy)
	})
}

func (m *machine) fork(t *rapid.T) {
	source, destination := drawThread(t, "source"), drawThread(t, "destination")
	w := m.drawWriter(t)
	if often(t, "with a lease") {
		w = m.currentWriter(t, destination)
	}
	req := checkpointdb.ForkRequest{
		SourceThreadID: source, SourceCheckpointID: drawID(t, "source id"),
		DestinationThreadID: destination, DestinationCheckpointID: drawID(t, "destination id"),
		CreatedAt: m.clock.Now(),
	}
	if all := m.listed(source); len(all) > 0 && often(t, "one of the source") {
		req.SourceCheckpointID = rapid.SampledFrom(all).Draw(t, "fork of").ID
	}
	if !often(t, "with a time") {
		req.CreatedAt = time.Time{}
	}
	_, _ = both(m, t, "Fork", func(i int, s fullStore) (checkpointdb.Checkpoint, error) { return s.Fork(m.ctx, w[i], req) })
}

func (m *machine) get(t *rapid.T) {
	id := drawID(t, "id")
	_, _ = both(m, t, fmt.Sprintf("Get(%q)", id), func(_ int, s fullStore) (checkpointdb.Checkpoint, error) { return s.Get(m.ctx, id) })
}

func (m *machine) saveThread(t *rapid.T) {
	thread := drawThread(t, "thread")
	var messages []json.RawMessage
	for range rapid.IntRange(0, 2).Draw(t, "messages") {
		messages = append(messages, json.RawMessage(rapid.SampledFrom([]string{"1", ` "\ud800" `, "{"}).Draw(t, "message")))
	}
	_ = bothDo(m, t, "SaveThread", func(_ int, s fullStore) error { return s.SaveThread(m.ctx, thread, messages) })
}

func (m *machine) upsertInstance(t *rapid.T) {
	in := checkpointdb.Instance{
		Key: rapid.SampledFrom(modelKeys).Draw(t, "key"), ThreadID: drawThread(t, "thread"),
		Provider:    rapid.SampledFrom([]string{"", "p", "\xff"}).Draw(t, "provider"),
		LatestRunID: rapid.SampledFrom([]string{"", "run"}).Draw(t, "run"),
		UpdatedAt:   m.clock.Now(),
	}
	_ = bothDo(m, t, "UpsertInstance", func(_ int, s fullStore) error { return s.UpsertInstance(m.ctx, in) })
}

func (m *machine) deleteInstance(t *rapid.T) {
	key := rapid.SampledFrom(modelKeys).Draw(t, "key")
	_ = bothDo(m, t, "DeleteInstance", func(_ int, s fullStore) error { return s.DeleteInstance(m.ctx, key) })
}

func (m *machine) getInstance(t *rapid.T) {
	key := rapid.SampledFrom(modelKeys).Draw(t, "key")
	_, _ = both(m, t, "GetInstance", func(_ int, s fullStore) (checkpointdb.Instance, error) { return s.GetInstance(m.ctx, key) })
}

func (m *machine) deleteThread(t *rapid.T) {
	w := m.drawWriter(t)
	_ = bothDo(m, t, "DeleteThread", func(i int, s fullStore) error { return s.DeleteThread(m.ctx, w[i]) })
}

// advance moves the clock, often to the very end of a lease that was acquired
// just before.
func (m *machine) advance(t *rapid.T) {
	by := rapid.SampledFrom([]time.Duration{1, time.Millisecond, modelLease - 1, modelLease, 2 * modelLease}).Draw(t, "by")
	m.clock.Set(m.clock.Now().Add(by))
}

// reopen checks the bbolt store, closes it and opens it again.
func (m *machine) reopen(t *rapid.T) {
	closeStore(t, m.stores[1])
	m.stores[1] = storeKinds[1].open(t, m.config)
}
