package storetest

import (
	"checkpointdb"
)

var reopenCases = []testCase{
	{"Checkpoints", "What was acknowledged is there after closing and opening again: checkpoints, heads, references, and what was deleted stays deleted.", func(e *env) {
		w, other := e.acquire("t"), e.acquire("other")
		e.chain(w, "c1", "c2", "c3")
		c := e.checkpoint("t", "hard", "c3")
		c.Conversation = hardMessages
		e.append(w, c)
		e.chain(other, "o1", "o2")
		e.deleteHead(other, "o2")
		before := e.look()
		e.reopen()
		e.wantEqual("the store", e.look(), before)
		e.wantMessages("conversation", e.get("hard").Conversation, hardMessages)
		e.chain(w, "c4")
		e.deleteHead(other, "o1")
		e.reopen()
		e.wantList("t", "c1", "c2", "c3", "hard", "c4")
		e.wantHead("t", "c4")
		e.wantHead("other", "")
		e.wantCount(file("", "common").BlobKey, 5)
	}},

	{"Lease", "A lease outlives closing and opening: its writer writes on, nobody else can take it, and it expires when it would have.", func(e *env) {
		l := e.acquireLease("t")
		e.reopen()
		e.chain(l.Writer, "c1")
		err := e.refused(checkpointdb.ErrWriterConflict, "AcquireWriter after opening again", func() error {
			_, err := e.store.AcquireWriter(e.Context(), "t")
			return err
		})
		want := &checkpointdb.WriterConflictError{ThreadID: "t", Fence: l.Fence, ExpiresAt: l.ExpiresAt}
		e.wantEqual("detail", detail[*checkpointdb.WriterConflictError](e, err), want)
		e.setNow(l.ExpiresAt)
		e.reopen()
		e.refusedWriter(l.Writer, 1)
		e.acquire("t")
	}},

	{"Fence", "The fence does not start again when the store is opened again.", func(e *env) {
		w := e.acquire("t")
		e.release(w)
		e.reopen()
		e.refusedWriter(w, 1)
		if w := e.acquire("t"); w.Fence != 2 {
			e.Errorf("the second lease has fence %d", w.Fence)
		}
	}},

	{"ReturnedStays", "What came back stays as it is when the store is closed.", func(e *env) {
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		c.Conversation = hardMessages
		e.append(w, c)
		got, listed, references := e.get("c1"), e.list("t"), e.references()
		e.reopen()
		e.chain(w, "c2", "c3")
		e.wantEqual("Get from before", got, c)
		e.wantEqual("List from before", listed, []checkpointdb.Checkpoint{c})
		for i, key := range c.BlobKeys() {
			e.wantEqual("BlobReferences from before", references[i], checkpointdb.BlobReference{Key: key, Count: 1})
		}
	}},
}
