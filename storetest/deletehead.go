package storetest

import (
	"fmt"

	"checkpointdb"
)

var deleteHeadCases = []testCase{
	{"MovesToParent", "DeleteHead removes the head and makes its parent the head; after the root there is none.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2", "c3")
		e.deleteHead(w, "c3")
		e.wantHead("t", "c2")
		e.wantList("t", "c1", "c2")
		e.deleteHead(w, "c2")
		e.wantHead("t", "c1")
		e.deleteHead(w, "c1")
		e.wantHead("t", "")
		e.wantList("t")
		_, err := e.store.Get(e.Context(), "c1")
		e.wantCode("Get of a deleted checkpoint", err, checkpointdb.ErrCheckpointNotFound)
		e.chain(w, "c1") // as a root, and under a used id
		e.wantHead("t", "c1")
	}},

	{"Order", "DeleteHead checks ids, then the writer, then that the id is the head.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		type call struct {
			w  checkpointdb.Writer
			id checkpointdb.CheckpointID
		}
		refusedInOrder(e, "DeleteHead", func() call { return call{w, "c2"} },
			func(c call) error { return e.store.DeleteHead(e.Context(), c.w, c.id) },
			violation[call]{checkpointdb.ErrInvalidID, "", func(c *call) { c.w.ThreadID = "" }},
			violation[call]{checkpointdb.ErrWriterLost, "", func(c *call) { c.w.OwnerToken = "" }},
			violation[call]{checkpointdb.ErrNotHead, "", func(c *call) { c.id = "c1" }},
		)
		e.refused(checkpointdb.ErrInvalidID, "DeleteHead of no id by no writer", func() error {
			return e.store.DeleteHead(e.Context(), checkpointdb.Writer{ThreadID: "t"}, "")
		})
	}},

	{"NotHead", "Only the head can be deleted.", func(e *env) {
		w, other := e.acquire("t"), e.acquire("other")
		notHead := func(id checkpointdb.CheckpointID) {
			e.Helper()
			e.refused(checkpointdb.ErrNotHead, "DeleteHead", func() error { return e.store.DeleteHead(e.Context(), w, id) })
		}
		notHead("c1")
		e.chain(w, "c1", "c2")
		e.chain(other, "other")
		notHead("c1")
		notHead("other")
		notHead("none")
	}},

	{"Large", "DeleteHead uncounts every key of a checkpoint of thousands of files, and no key of another.", func(e *env) {
		w, other := e.acquire("t"), e.acquire("other")
		// Alone, on a smaller one, and beside another thread.
		e.append(w, e.large("t", "c1", ""))
		e.deleteHead(w, "c1")
		e.wantNoReferences()
		kept := e.chain(w, "c2")[0]
		e.append(w, e.large("t", "c1", "c2"))
		e.deleteHead(w, "c1")
		e.wantHead("t", "c2")
		e.wantReferencesOf(kept)
		e.append(other, e.large("other", "o1", ""))
		e.append(w, e.large("t", "c1", "c2"))
		e.wantCount(file("", "c1 17").BlobKey, 1)
		e.wantCount(file("", "shared 17").BlobKey, 2)
		e.deleteHead(other, "o1")
		e.wantCount(file("", "o1 17").BlobKey, 0)
		e.wantCount(file("", "shared 17").BlobKey, 1)
	}},
}

// large builds a checkpoint of 2,000 files, half of which all large ones have.
func (e *env) large(thread checkpointdb.ThreadID, id, parent checkpointdb.CheckpointID) checkpointdb.Checkpoint {
	c := e.checkpoint(thread, id, parent)
	for i := range 1000 {
		c.Files = append(c.Files,
			file(fmt.Sprint("own/", i), fmt.Sprint(id, " ", i)),
			file(fmt.Sprint("shared/", i), fmt.Sprint("shared ", i)))
	}
	return c
}
