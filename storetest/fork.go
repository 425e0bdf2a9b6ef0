package storetest

import (
	"encoding/json"
	"time"

	"checkpointdb"
)

// forkCall is the arguments of one Fork.
type forkCall struct {
	w   checkpointdb.Writer
	req checkpointdb.ForkRequest
}

// fork makes a call that may fail.
func (e *env) fork(c forkCall) error {
	_, err := capability[checkpointdb.Forker](e).Fork(e.Context(), c.w, c.req)
	return err
}

// mustFork starts thread to from a checkpoint of thread from, as id.
func (e *env) mustFork(from checkpointdb.ThreadID, source checkpointdb.CheckpointID, to checkpointdb.ThreadID, id checkpointdb.CheckpointID) (checkpointdb.Writer, checkpointdb.Checkpoint) {
	e.Helper()
	forker := capability[checkpointdb.Forker](e)
	w := e.acquire(to)
	c, err := forker.Fork(e.Context(), w, forkRequest(from, source, to, id))
	if err != nil {
		e.Fatalf("Fork of %q: %v", source, err)
	}
	return w, c
}

func forkRequest(from checkpointdb.ThreadID, source checkpointdb.CheckpointID, to checkpointdb.ThreadID, id checkpointdb.CheckpointID) checkpointdb.ForkRequest {
	return checkpointdb.ForkRequest{
		SourceThreadID: from, SourceCheckpointID: source,
		DestinationThreadID: to, DestinationCheckpointID: id,
		CreatedAt: time.Unix(1, 500_001).UTC(),
	}
}

var forkCases = []testCase{
	{"Copies", "Fork stores one checkpoint of reason fork-root with the source's files, conversation and artifacts, without parent, label and run id, and returns it.", func(e *env) {
		capability[checkpointdb.Forker](e)
		w := e.acquire("t")
		e.chain(w, "c1")
		source := e.checkpoint("t", "c2", "c1")
		source.Reason, source.Label, source.SourceRunID = checkpointdb.ReasonNamed, "label", "run"
		source.Conversation = append(source.Conversation, hardMessages...)
		e.append(w, source)
		e.chain(w, "c3")

		want := source.Clone()
		want.ID, want.ThreadID, want.ParentCheckpointID = "root", "fork", ""
		want.CreatedAt, want.Reason, want.Label, want.SourceRunID = time.Unix(1, 500_001), checkpointdb.ReasonForkRoot, "", ""
		_, got := e.mustFork("t", "c2", "fork", "root")
		e.wantEqual("returned", got, want)
		if got.CreatedAt.Location() != time.UTC {
			e.Errorf("returned CreatedAt is in %v, want UTC", got.CreatedAt.Location())
		}
		got.Files[0].Path = "spoiled"
		got.Conversation[0][0] = 'X'
		e.wantEqual("stored", e.get("root"), want)
		e.wantList("fork", "root")
		e.wantEqual("source", e.get("c2"), source)
		e.wantList("t", "c1", "c2", "c3")
	}},

	{"SetsHead", "The new checkpoint is the head of the new thread.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1")
		w, _ := e.mustFork("t", "c1", "fork", "root")
		e.wantHead("fork", "root")
		e.wantHead("t", "c1")
		e.chain(w, "f1")
		e.wantHead("fork", "f1")
	}},

	{"StoresCheckpoint", "The new checkpoint can be got and listed.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1")
		e.mustFork("t", "c1", "fork", "root")
		e.wantList("fork", "root")
		if _, err := e.store.Get(e.Context(), "root"); err != nil {
			e.Errorf("Get: %v", err)
		}
	}},

	{"CountsReferences", "The new checkpoint counts its keys, like any other.", func(e *env) {
		capability[checkpointdb.Forker](e)
		source := e.acquire("t")
		all := e.chain(source, "c1")
		w, _ := e.mustFork("t", "c1", "fork", "root")
		for _, key := range all[0].BlobKeys() {
			e.wantCount(key, 2)
		}
		e.deleteHead(source, "c1")
		for _, key := range all[0].BlobKeys() {
			e.wantCount(key, 1)
		}
		e.deleteHead(w, "root")
		e.wantNoReferences()
	}},

	{"SavesTranscript", "The transcript of the new thread is the source's conversation, byte for byte; that of the source's thread plays no part.", func(e *env) {
		capability[checkpointdb.Forker](e)
		transcripts := capability[checkpointdb.Transcripts](e)
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		c.Conversation = hardMessages
		e.append(w, c)
		if err := transcripts.SaveThread(e.Context(), "t", []json.RawMessage{json.RawMessage(`"later"`)}); err != nil {
			e.Fatalf("SaveThread: %v", err)
		}
		e.mustFork("t", "c1", "fork", "root")
		e.wantMessages("transcript of the fork", e.load("fork"), hardMessages)
		e.wantMessages("transcript of the source", e.load("t"), []json.RawMessage{json.RawMessage(`"later"`)})
	}},

	{"Independent", "Source and fork live on their own: what one thread appends or deletes, the other does not see.", func(e *env) {
		capability[checkpointdb.Forker](e)
		source := e.acquire("t")
		e.chain(source, "c1", "c2")
		w, root := e.mustFork("t", "c1", "fork", "root")
		e.chain(w, "f1", "f2")
		e.deleteHead(source, "c2")
		e.deleteHead(source, "c1")
		e.wantEqual("root", e.get("root"), root)
		e.wantList("fork", "root", "f1", "f2")
		e.deleteHead(w, "f2")
		e.deleteHead(w, "f1")
		e.wantHead("fork", "root")
		_, second := e.mustFork("fork", "root", "again", "root2") // a fork can be forked
		e.wantEqual("files of the second fork", second.Files, root.Files)
	}},

	{"Order", "Fork checks ids, the time, that the threads differ, that the source exists and is of the source thread, the writer, and that the destination is empty.", func(e *env) {
		capability[checkpointdb.Forker](e)
		source, full, other := e.acquire("t"), e.acquire("full"), e.acquire("other")
		e.chain(source, "c1")
		e.chain(full, "full1")
		e.chain(other, "other1")
		w := e.acquire("fork")
		good := func() forkCall { return forkCall{w, forkRequest("t", "c1", "fork", "root")} }
		refusedInOrder(e, "Fork", good, e.fork,
			violation[forkCall]{checkpointdb.ErrInvalidID, "", func(c *forkCall) { c.req.DestinationCheckpointID = "" }},
			violation[forkCall]{checkpointdb.ErrInvalidEntry, "createdAt", func(c *forkCall) { c.req.CreatedAt = time.Time{} }},
			violation[forkCall]{checkpointdb.ErrForkSourceThreadMismatch, "", func(c *forkCall) { c.req.SourceThreadID = c.req.DestinationThreadID }},
			violation[forkCall]{checkpointdb.ErrForkSourceNotFound, "", func(c *forkCall) { c.req.SourceCheckpointID = "none" }},
			violation[forkCall]{checkpointdb.ErrForkSourceThreadMismatch, "", func(c *forkCall) { c.req.SourceThreadID = "other" }},
			violation[forkCall]{checkpointdb.ErrWriterLost, "", func(c *forkCall) { c.w.Fence++ }},
			violation[forkCall]{checkpointdb.ErrForkDestinationNotEmpty, "", func(c *forkCall) {
				c.req.DestinationThreadID, c.w.ThreadID = "full", "full"
				c.w.OwnerToken = full.OwnerToken
			}},
		)
	}},

	{"IDs", "Every id of a Fork is valid, or it fails with ErrInvalidID.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1")
		w := e.acquire("fork")
		for what, id := range invalidIDs {
			for field, spoil := range map[string]func(*forkCall){
				"source thread":          func(c *forkCall) { c.req.SourceThreadID = checkpointdb.ThreadID(id) },
				"source checkpoint":      func(c *forkCall) { c.req.SourceCheckpointID = checkpointdb.CheckpointID(id) },
				"destination thread":     func(c *forkCall) { c.req.DestinationThreadID = checkpointdb.ThreadID(id) },
				"destination checkpoint": func(c *forkCall) { c.req.DestinationCheckpointID = checkpointdb.CheckpointID(id) },
			} {
				c := forkCall{w, forkRequest("t", "c1", "fork", "root")}
				spoil(&c)
				c.req.CreatedAt = time.Time{} // checked only after all ids
				e.refused(checkpointdb.ErrInvalidID, "Fork with a "+field+" id: "+what, func() error { return e.fork(c) })
			}
		}
	}},

	{"CreatedAt", "CreatedAt is a valid time, or Fork fails with ErrInvalidEntry.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1")
		w := e.acquire("fork")
		for _, bad := range []time.Time{{}, time.UnixMilli(8.64e15).Add(1)} {
			c := forkCall{w, forkRequest("t", "c1", "fork", "root")}
			c.req.CreatedAt = bad
			e.refused(checkpointdb.ErrInvalidEntry, "Fork", func() error { return e.fork(c) })
		}
	}},

	{"Source", "The source exists and is of the source thread, and that is not the new one.", func(e *env) {
		capability[checkpointdb.Forker](e)
		source := e.acquire("t")
		e.chain(source, "c1", "gone")
		e.deleteHead(source, "gone")
		e.chain(e.acquire("other"), "other1")
		w := e.acquire("fork")
		for _, c := range []struct {
			source checkpointdb.CheckpointID
			thread checkpointdb.ThreadID
			code   checkpointdb.Code
		}{
			{"none", "t", checkpointdb.ErrForkSourceNotFound},
			{"gone", "t", checkpointdb.ErrForkSourceNotFound},
			{"c1", "other", checkpointdb.ErrForkSourceThreadMismatch},
			{"other1", "t", checkpointdb.ErrForkSourceThreadMismatch},
			{"c1", "unknown", checkpointdb.ErrForkSourceThreadMismatch},
			{"c1", "fork", checkpointdb.ErrForkSourceThreadMismatch},
		} {
			e.refused(c.code, "Fork", func() error { return e.fork(forkCall{w, forkRequest(c.thread, c.source, "fork", "root")}) })
		}
		e.refused(checkpointdb.ErrForkSourceThreadMismatch, "Fork of a thread into itself", func() error {
			return e.fork(forkCall{source, forkRequest("t", "c1", "t", "root")})
		})
	}},

	{"Writer", "The writer of a Fork is the new thread's, and current.", func(e *env) {
		capability[checkpointdb.Forker](e)
		source := e.acquire("t")
		e.chain(source, "c1")
		lost := func(what string, w checkpointdb.Writer) {
			e.Helper()
			e.refused(checkpointdb.ErrWriterLost, "Fork by "+what, func() error {
				return e.fork(forkCall{w, forkRequest("t", "c1", "fork", "root")})
			})
		}
		e.touch("fork")
		lost("no writer", checkpointdb.Writer{ThreadID: "fork"})
		lost("the source's writer", source)
		l := e.acquireLease("fork")
		moved := source
		moved.ThreadID = "fork"
		lost("the source's writer, moved", moved)
		forged := l.Writer
		forged.Fence++
		lost("a writer of another fence", forged)
		e.setNow(l.ExpiresAt)
		lost("an expired writer", l.Writer)
		e.mustFork("t", "c1", "fork", "root")
	}},

	{"DestinationHasCheckpoints", "Fork refuses a thread that has checkpoints, even one that has no transcript.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1")
		w := e.acquire("full")
		e.chain(w, "full1")
		into := func() error { return e.fork(forkCall{w, forkRequest("t", "c1", "full", "root")}) }
		e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork", into)
		e.deleteHead(w, "full1")
		if err := into(); err != nil {
			e.Errorf("Fork into the thread once its checkpoints are gone: %v", err)
		}
		e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork once more", func() error {
			return e.fork(forkCall{w, forkRequest("t", "c1", "full", "root2")})
		})
	}},

	{"DestinationHasTranscript", "Fork refuses a thread that has a transcript, even an empty one.", func(e *env) {
		capability[checkpointdb.Forker](e)
		transcripts := capability[checkpointdb.Transcripts](e)
		e.chain(e.acquire("t"), "c1")
		for thread, messages := range map[checkpointdb.ThreadID][]json.RawMessage{
			"nil":   nil,
			"empty": {},
			"full":  {json.RawMessage(`1`)},
		} {
			e.touch(thread)
			if err := transcripts.SaveThread(e.Context(), thread, messages); err != nil {
				e.Fatalf("SaveThread: %v", err)
			}
			w := e.acquire(thread)
			e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork into a thread with transcript "+string(thread), func() error {
				return e.fork(forkCall{w, forkRequest("t", "c1", thread, "root")})
			})
		}
	}},

	{"TranscriptStays", "A thread whose forked checkpoints are gone still has its transcript, and is not empty.", func(e *env) {
		capability[checkpointdb.Forker](e)
		capability[checkpointdb.Transcripts](e)
		c := e.chain(e.acquire("t"), "c1")[0]
		w, _ := e.mustFork("t", "c1", "fork", "root")
		e.deleteHead(w, "root")
		e.wantMessages("transcript", e.load("fork"), c.Conversation)
		e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork once more", func() error {
			return e.fork(forkCall{w, forkRequest("t", "c1", "fork", "root")})
		})
		e.chain(w, "f1")
		e.wantHead("fork", "f1")
	}},

	{"DestinationIDUsed", "The new id is unused in every thread, or Fork fails with ErrForkDestinationNotEmpty.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1", "c2")
		e.chain(e.acquire("other"), "other1")
		w := e.acquire("fork")
		for _, used := range []checkpointdb.CheckpointID{"c1", "c2", "other1"} {
			e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork under a used id", func() error {
				return e.fork(forkCall{w, forkRequest("t", "c1", "fork", used)})
			})
		}
	}},

	{"RefusedLeavesNothing", "A Fork that is refused leaves nothing: the thread is still empty, no transcript included, and can be forked into.", func(e *env) {
		capability[checkpointdb.Forker](e)
		e.chain(e.acquire("t"), "c1")
		w := e.acquire("fork")
		lost := w
		lost.Fence++
		e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork under a used id", func() error {
			return e.fork(forkCall{w, forkRequest("t", "c1", "fork", "c1")})
		})
		e.refused(checkpointdb.ErrWriterLost, "Fork by a lost writer", func() error {
			return e.fork(forkCall{lost, forkRequest("t", "c1", "fork", "root")})
		})
		if err := e.fork(forkCall{w, forkRequest("t", "c1", "fork", "root")}); err != nil {
			e.Errorf("Fork after refused ones: %v", err)
		}
	}},

	{"Reopen", "A fork is there after closing and opening again, whole.", func(e *env) {
		capability[checkpointdb.Forker](e)
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		c.Conversation = hardMessages
		e.append(w, c)
		fork, root := e.mustFork("t", "c1", "fork", "root")
		before := e.look()
		e.reopen()
		e.wantEqual("the store", e.look(), before)
		e.wantEqual("root", e.get("root"), root)
		e.chain(fork, "f1")
	}},
}
