package storetest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"checkpointdb"
)

// invalidIDs are texts that are no id, whatever it is the id of.
var invalidIDs = map[string]string{
	"empty":               "",
	"one byte too long":   strings.Repeat("a", checkpointdb.MaxIDBytes+1),
	"40,000 bytes":        strings.Repeat("a", 40000),
	"too long in bytes":   strings.Repeat("é", checkpointdb.MaxIDBytes/2+1), // not in characters
	"a byte that is none": "a\xff",
	"a lone surrogate":    "\xed\xa0\x80",
}

var idCases = []testCase{
	{"Thread", "A thread id is non-empty, well-formed Unicode of at most 32,768 bytes, or the call fails with ErrInvalidID.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c")
		for what, id := range invalidIDs {
			thread := checkpointdb.ThreadID(id)
			ofThread := w
			ofThread.ThreadID = thread
			moved := e.checkpoint(thread, "c2", "c")
			for method, call := range map[string]func() error{
				"List":          func() error { _, err := collect(e.store.List(e.Context(), thread)); return err },
				"Head":          func() error { _, err := e.store.Head(e.Context(), thread); return err },
				"AcquireWriter": func() error { _, err := e.store.AcquireWriter(e.Context(), thread); return err },
				"Renew":         func() error { _, err := e.store.Renew(e.Context(), ofThread); return err },
				"Release":       func() error { return e.store.Release(e.Context(), ofThread) },
				"DeleteHead":    func() error { return e.store.DeleteHead(e.Context(), ofThread, "c") },
				"Append":        func() error { return e.store.Append(e.Context(), ofThread, moved, "c") },
			} {
				e.refused(checkpointdb.ErrInvalidID, method+" with a thread id: "+what, call)
			}
		}
	}},

	{"Checkpoint", "A checkpoint id is non-empty, well-formed Unicode of at most 32,768 bytes, or the call fails with ErrInvalidID.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c")
		for what, text := range invalidIDs {
			id := checkpointdb.CheckpointID(text)
			c := e.checkpoint("t", id, "c")
			for method, call := range map[string]func() error{
				"Get":        func() error { _, err := e.store.Get(e.Context(), id); return err },
				"DeleteHead": func() error { return e.store.DeleteHead(e.Context(), w, id) },
				"Append":     func() error { return e.store.Append(e.Context(), w, c, "c") },
			} {
				e.refused(checkpointdb.ErrInvalidID, method+" with a checkpoint id: "+what, call)
			}
			if id == "" {
				continue // as a parent or an expected head: none
			}
			e.refused(checkpointdb.ErrInvalidID, "Append with a parent id: "+what, func() error {
				return e.store.Append(e.Context(), w, e.checkpoint("t", "c2", id), "c")
			})
			e.refused(checkpointdb.ErrInvalidID, "Append with an expected head: "+what, func() error {
				return e.store.Append(e.Context(), w, e.checkpoint("t", "c2", "c"), id)
			})
		}
	}},

	{"Lengths", "An id of any length up to 32,768 bytes works in every call.", func(e *env) {
		for _, n := range []int{1, 16000, 32700, checkpointdb.MaxIDBytes} {
			text := strings.Repeat("x", n)
			everyCall(e, checkpointdb.ThreadID(text), checkpointdb.CheckpointID(text))
		}
		text := strings.Repeat("é", checkpointdb.MaxIDBytes/2)
		everyCall(e, checkpointdb.ThreadID(text), checkpointdb.CheckpointID(text))
	}},

	{"AnyUnicode", "NUL, '/' and every other character have no special meaning in an id: two ids never meet.", func(e *env) {
		// All texts are prefixes of others, and many pairs give one text when
		// they are joined, with or without a separator between them.
		texts := map[string]bool{"t1": true, "t10": true, "a": true, "a\x00b": true, "a/b": true}
		alphabet := []rune("a0/:|\x00\u00ff\uffff\U0010ffff")
		random := rand.New(rand.NewPCG(41, 41))
		for len(texts) < 40 {
			text := make([]rune, 1+random.IntN(3))
			for i := range text {
				text[i] = alphabet[random.IntN(len(alphabet))]
			}
			texts[string(text)] = true
		}
		// Thread and checkpoint ids are of one pool. A checkpoint's id is its
		// thread's without the last character, plus that character doubled.
		ids := map[checkpointdb.ThreadID]checkpointdb.CheckpointID{}
		writers := map[checkpointdb.ThreadID]checkpointdb.Writer{}
		for text := range texts {
			thread := checkpointdb.ThreadID(text)
			writers[thread], ids[thread] = e.acquire(thread), checkpointdb.CheckpointID(text)
			if fence := writers[thread].Fence; fence != 1 {
				e.Errorf("the first lease of thread %q has fence %d", text, fence)
			}
			e.chain(writers[thread], ids[thread])
		}
		for thread, id := range ids {
			e.wantList(thread, id)
			e.wantHead(thread, id)
		}
		for thread, id := range ids {
			e.deleteHead(writers[thread], id)
			e.release(writers[thread])
			delete(ids, thread)
			e.wantList(thread)
			for other, id := range ids {
				e.wantHead(other, id)
				if _, err := e.store.Renew(e.Context(), writers[other]); err != nil {
					e.Errorf("Renew of thread %q after the release of %q: %v", other, thread, err)
				}
			}
		}
	}},

	{"NoSeparator", "Thread a with checkpoint b/c and thread a/b with checkpoint c never meet, whatever the separator.", func(e *env) {
		for _, separator := range []string{"", "/", ":", "|", "\x00", "\u00ff", "\uffff"} {
			a := checkpointdb.ThreadID("a" + separator)
			ab := checkpointdb.ThreadID("a" + separator + "b" + separator)
			bc := checkpointdb.CheckpointID("b" + separator + "c" + separator)
			c := checkpointdb.CheckpointID("c" + separator)
			first, second := e.acquire(a), e.acquire(ab)
			e.chain(first, bc)
			e.chain(second, c)
			e.wantList(a, bc)
			e.wantList(ab, c)
			e.deleteHead(first, bc)
			e.wantList(a)
			e.wantList(ab, c)
			e.deleteHead(second, c)
			e.release(first)
			e.release(second)
		}
	}},
}

// everyCall uses a thread id and a checkpoint id wherever an id can stand.
func everyCall(e *env, thread checkpointdb.ThreadID, id checkpointdb.CheckpointID) {
	e.Helper()
	must := func(method string, err error) {
		e.Helper()
		if err != nil {
			e.Fatalf("%s with ids of %d bytes: %v", method, len(id), err)
		}
	}
	w := e.acquire(thread)
	_, err := e.store.Renew(e.Context(), w)
	must("Renew", err)
	e.chain(w, id)
	e.wantHead(thread, id)
	e.wantList(thread, id)
	e.wantEqual("thread of the checkpoint", e.get(id).ThreadID, thread)
	e.deleteHead(w, id)
	e.chain(w, id)
	e.chain(w, "after") // its parent is id
	e.wantEqual("parent", e.get("after").ParentCheckpointID, id)
	e.deleteHead(w, "after")

	if f, ok := e.store.(checkpointdb.Forker); ok {
		other := e.acquire("fork")
		_, err := f.Fork(e.Context(), other, checkpointdb.ForkRequest{
			SourceThreadID: thread, SourceCheckpointID: id,
			DestinationThreadID: "fork", DestinationCheckpointID: "root", CreatedAt: time.UnixMilli(1),
		})
		must("Fork from", err)
		e.deleteHead(other, "root")
		e.release(other)
		if d, ok := e.store.(checkpointdb.ThreadDeleter); ok {
			other := e.acquire("fork")
			must("DeleteThread", d.DeleteThread(e.Context(), other))
		}
	}
	if p, ok := e.store.(checkpointdb.Pruner); ok {
		e.chain(w, "newest")
		gone, err := p.DeleteCheckpoints(e.Context(), w, 1)
		must("DeleteCheckpoints", err)
		e.wantEqual("DeleteCheckpoints", gone, []checkpointdb.CheckpointID{id})
		e.deleteHead(w, "newest")
	} else {
		e.deleteHead(w, id)
	}
	if t, ok := e.store.(checkpointdb.Transcripts); ok {
		must("SaveThread", t.SaveThread(e.Context(), thread, []json.RawMessage{json.RawMessage(`1`)}))
		messages, err := t.LoadThread(e.Context(), thread)
		must("LoadThread", err)
		e.wantEqual("transcript", messages, []json.RawMessage{json.RawMessage(`1`)})
	}
	if s, ok := e.store.(checkpointdb.InstanceStore); ok {
		in := checkpointdb.Instance{Key: string(id), ThreadID: thread, UpdatedAt: time.UnixMilli(1)}
		must("UpsertInstance", s.UpsertInstance(e.Context(), in))
		got, err := s.GetInstance(e.Context(), in.Key)
		must("GetInstance", err)
		e.wantEqual(fmt.Sprintf("instance under a key of %d bytes", len(in.Key)), got, in)
		must("DeleteInstance", s.DeleteInstance(e.Context(), in.Key))
	}
	if d, ok := e.store.(checkpointdb.ThreadDeleter); ok {
		must("DeleteThread", d.DeleteThread(e.Context(), w))
	}
	e.release(w)
}
