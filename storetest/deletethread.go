package storetest

import (
	"encoding/json"

	"checkpointdb"
)

func (e *env) deleteThread(w checkpointdb.Writer) {
	e.Helper()
	if err := capability[checkpointdb.ThreadDeleter](e).DeleteThread(e.Context(), w); err != nil {
		e.Fatalf("DeleteThread(%.80q): %v", w.ThreadID, err)
	}
}

func (e *env) deleteThreadLost(w checkpointdb.Writer) {
	e.Helper()
	e.refused(checkpointdb.ErrWriterLost, "DeleteThread", func() error {
		return capability[checkpointdb.ThreadDeleter](e).DeleteThread(e.Context(), w)
	})
}

var deleteThreadCases = []testCase{
	{"RemovesAll", "DeleteThread removes the checkpoints, head, reference counts, transcript and lease of its thread, and of no other.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		w, other := e.acquire("t"), e.acquire("other")
		e.chain(w, "c1", "c2", "c3")
		kept := e.chain(other, "o1")
		if _, ok := e.store.(checkpointdb.Transcripts); ok {
			e.save("t", "1")
			e.save("other", "2")
		}
		if _, ok := e.store.(checkpointdb.InstanceStore); ok {
			e.upsert(instance("k"))
		}
		e.deleteThread(w)
		e.wantHead("t", "")
		e.wantList("t")
		for _, id := range []checkpointdb.CheckpointID{"c1", "c2", "c3"} {
			_, err := e.store.Get(e.Context(), id)
			e.wantCode("Get of a checkpoint of a deleted thread", err, checkpointdb.ErrCheckpointNotFound)
		}
		e.wantReferencesOf(kept[0])
		if _, ok := e.store.(checkpointdb.Transcripts); ok {
			e.wantMessages("transcript", e.load("t"), nil)
			e.wantMessages("other transcript", e.load("other"), []json.RawMessage{json.RawMessage("2")})
		}
		if _, ok := e.store.(checkpointdb.InstanceStore); ok {
			e.wantInstance(instance("k"))
		}
		e.chain(other, "c2") // the ids are free
		again := e.acquire("t")
		e.chain(again, "c1")
	}},

	{"FenceStays", "The fence outlives the thread: a late writer stays lost, and the next lease has a larger fence.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		for range 2 {
			e.release(e.acquire("t"))
		}
		w := e.acquire("t")
		e.chain(w, "c1")
		e.deleteThread(w)
		e.refusedWriter(w, 3)
		e.wantList("t")
		next := e.acquire("t")
		if next.Fence != 4 {
			e.Errorf("the lease after three of a deleted thread has fence %d", next.Fence)
		}
		e.refusedWriter(w, 4)
	}},

	{"Repeat", "DeleteThread may be repeated with the same writer, until somebody else takes the lease.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		w := e.acquire("t")
		e.chain(w, "c1")
		e.deleteThread(w)
		e.deleteThread(w)
		e.advance(10 * leaseDuration)
		e.deleteThread(w)
		next := e.acquire("t")
		e.deleteThreadLost(w)
		e.chain(next, "c2")
		e.deleteThreadLost(w)
		e.wantList("t", "c2")
		e.deleteThread(next)
		e.deleteThreadLost(w)
		e.deleteThread(next)
	}},

	{"RepeatMeetsState", "A repeat never deletes anything: once the thread has a transcript again, the writer is lost.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		capability[checkpointdb.Transcripts](e)
		w := e.acquire("t")
		e.chain(w, "c1")
		e.deleteThread(w)
		e.save("t", "1")
		e.deleteThreadLost(w)
		e.wantMessages("transcript", e.load("t"), []json.RawMessage{json.RawMessage("1")})
		next := e.acquire("t")
		e.deleteThread(next)
		e.wantMessages("transcript", e.load("t"), nil)
	}},

	{"WriterLost", "Only the current writer deletes a thread.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		e.touch("t")
		e.deleteThreadLost(checkpointdb.Writer{ThreadID: "t"})
		e.deleteThreadLost(checkpointdb.Writer{ThreadID: "t", Fence: 1})
		l := e.acquireLease("t")
		e.chain(l.Writer, "c1")
		for _, forge := range []func(*checkpointdb.Writer){
			func(w *checkpointdb.Writer) { w.Fence++ },
			func(w *checkpointdb.Writer) { w.Fence-- },
			func(w *checkpointdb.Writer) { w.OwnerToken = "" },
		} {
			forged := l.Writer
			forge(&forged)
			e.deleteThreadLost(forged)
		}
		e.setNow(l.ExpiresAt)
		e.deleteThreadLost(l.Writer)
		w := e.acquire("t")
		e.release(w)
		e.deleteThreadLost(w) // released, and the thread has state
		e.wantList("t", "c1")
	}},

	{"ID", "The thread id is valid, or DeleteThread fails with ErrInvalidID.", func(e *env) {
		deleter := capability[checkpointdb.ThreadDeleter](e)
		for what, id := range invalidIDs {
			err := deleter.DeleteThread(e.Context(), checkpointdb.Writer{ThreadID: checkpointdb.ThreadID(id)})
			e.wantCode("DeleteThread with a thread id: "+what, err, checkpointdb.ErrInvalidID)
		}
	}},

	{"WithGaps", "DeleteThread removes what a prune has left, with a head or without one.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		w := e.acquire("t")
		e.withGap(w)
		e.deleteThread(w)
		e.wantList("t")
		w = e.acquire("t")
		e.headless(w)
		e.deleteThread(w)
		e.wantList("t")
		e.wantNoReferences()
		e.chain(e.acquire("t"), "old", "pruned", "head")
	}},

	{"Large", "DeleteThread uncounts every key of a thread of large checkpoints, and no key of another.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		w, other := e.acquire("t"), e.acquire("other")
		e.append(w, e.large("t", "c1", ""))
		e.append(w, e.large("t", "c2", "c1"))
		kept := e.large("other", "o1", "")
		e.append(other, kept)
		e.deleteThread(w)
		e.wantReferencesOf(kept)
		e.deleteThread(other)
		e.wantNoReferences()
	}},

	{"ThenFork", "A deleted thread is empty: a fork may enter it.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		e.chain(e.acquire("source"), "s1")
		w, _ := e.mustFork("source", "s1", "t", "root")
		e.chain(w, "c1")
		e.deleteThread(w)
		e.mustFork("source", "s1", "t", "root")
		e.wantList("t", "root")
	}},

	{"Reopen", "A deleted thread stays deleted after closing and opening again, its fence stays, and a repeat still succeeds.", func(e *env) {
		capability[checkpointdb.ThreadDeleter](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		e.deleteThread(w)
		e.reopen()
		e.wantList("t")
		e.wantNoReferences()
		e.deleteThread(w)
		if next := e.acquire("t"); next.Fence != 2 {
			e.Errorf("the lease after that of a deleted thread has fence %d", next.Fence)
		}
	}},
}
