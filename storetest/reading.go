package storetest

import (
	"fmt"
	"slices"
	"time"

	"checkpointdb"
)

var getCases = []testCase{
	{"Missing", "Get of an id that no checkpoint has fails with ErrCheckpointNotFound.", func(e *env) {
		missing := func(id checkpointdb.CheckpointID) {
			e.Helper()
			_, err := e.store.Get(e.Context(), id)
			e.wantCode(fmt.Sprintf("Get(%q)", id), err, checkpointdb.ErrCheckpointNotFound)
		}
		missing("c1")
		e.chain(e.acquire("t"), "c1")
		missing("c")
		missing("c11")
		missing("t")
	}},

	{"Whole", "A checkpoint comes back as it was appended, with the order of its files, messages and artifacts.", func(e *env) {
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		c.Reason, c.Label, c.SourceRunID = checkpointdb.ReasonNamed, "before the change", "run-1"
		c.Files = []checkpointdb.Entry{
			file("z", "1"),
			{Path: "bin/run", Kind: checkpointdb.KindFile, BlobKey: file("", "2").BlobKey, Size: 2, Executable: true},
			{Path: "empty", Kind: checkpointdb.KindDir},
			{Path: "a", Kind: checkpointdb.KindSymlink, Target: "../outside"},
			file("b", "1"),
		}
		c.Conversation = append(c.Conversation, c.Conversation[0], []byte(`"again"`))
		c.Artifacts = []checkpointdb.Artifact{artifact("z", "1"), artifact("a", "2")}
		e.append(w, c)
		e.wantEqual("Get", e.get("c1"), c)
		e.wantEqual("List", e.list("t"), []checkpointdb.Checkpoint{c})

		bare := checkpointdb.Checkpoint{
			ID: "c2", ThreadID: "t", ParentCheckpointID: "c1",
			CreatedAt: time.UnixMilli(0), Reason: checkpointdb.ReasonAutomatic,
		}
		e.append(w, bare)
		e.wantEqual("Get of a checkpoint with nothing in it", e.get("c2"), bare)
		e.wantEqual("Get of the one before", e.get("c1"), c)
	}},
}

var listCases = []testCase{
	{"CreatedAtThenID", "List yields the checkpoints of a thread by CreatedAt, and those of one time by the bytes of their id.", func(e *env) {
		w := e.acquire("t")
		appendAt := func(id checkpointdb.CheckpointID, ms int64) {
			e.Helper()
			c := e.checkpoint("t", id, e.head("t"))
			c.CreatedAt = time.UnixMilli(ms)
			e.append(w, c)
		}
		appendAt("b", 5)
		appendAt("z", 3)
		appendAt("a", 5)
		appendAt("aa", 5)
		appendAt("B", 5)
		appendAt("m", -7)
		appendAt("\x00", 9)
		e.wantList("t", "m", "z", "B", "a", "aa", "b", "\x00")
	}},

	{"IDBytes", "Ids of one time are ordered by their bytes in UTF-8, not by UTF-16 units and not by any language's rules.", func(e *env) {
		w := e.acquire("t")
		// In UTF-16 the last two start with D800 and D83D, below FF61 and FFFF.
		want := []checkpointdb.CheckpointID{"\x00", "10", "9", "A", "Z", "a", "e\u0301", "é", "\uff61", "\uffff", "\U00010000", "\U0001f600"}
		for _, i := range []int{9, 11, 0, 10, 3, 8, 2, 7, 1, 6, 4, 5} {
			c := e.checkpoint("t", want[i], e.head("t"))
			c.CreatedAt = time.UnixMilli(1)
			e.append(w, c)
		}
		e.wantList("t", want...)
	}},

	{"HeadIsNotLast", "The order of List is not that of the chain: the head is what was appended last.", func(e *env) {
		w := e.acquire("t")
		for i, id := range []checkpointdb.CheckpointID{"9", "10", "11"} {
			c := e.checkpoint("t", id, e.head("t"))
			c.CreatedAt = time.UnixMilli([]int64{3, 2, 2}[i])
			e.append(w, c)
		}
		e.wantHead("t", "11")
		e.wantList("t", "10", "11", "9")
		e.deleteHead(w, "11")
		e.wantHead("t", "10")
	}},

	{"Unknown", "List of an unknown thread yields nothing, and so does one whose checkpoints are gone.", func(e *env) {
		e.wantList("t")
		w := e.acquire("t")
		e.wantList("t")
		e.chain(w, "c1")
		e.wantList("t1")
		e.deleteHead(w, "c1")
		e.wantList("t")
		e.wantHead("unknown", "")
	}},

	{"Threads", "List and Head show their own thread alone.", func(e *env) {
		a, b := e.acquire("a"), e.acquire("b")
		e.chain(a, "a1")
		e.chain(b, "b1")
		e.chain(a, "a2")
		e.wantList("a", "a1", "a2")
		e.wantList("b", "b1")
		e.wantHead("a", "a2")
		e.wantHead("b", "b1")
	}},

	{"CallsStore", "The body of a List loop may call the store, writes included, and may stop at any time.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2", "c3")
		turns := 0
		for c, err := range e.store.List(e.Context(), "t") {
			if err != nil {
				e.Fatalf("List: %v", err)
			}
			turns++
			e.wantEqual("Get within List", e.get(c.ID), c)
			e.references()
			e.list("t")
			e.chain(w, checkpointdb.CheckpointID(fmt.Sprintf("new%d", turns)))
			if turns == 2 {
				break
			}
		}
		e.chain(w, "after")
		e.wantList("t", "c1", "c2", "c3", "new1", "new2", "after")
	}},

	{"IDsTakenAtStart", "What is appended after a List loop has started is not yielded.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		var got []checkpointdb.CheckpointID
		for c, err := range e.store.List(e.Context(), "t") {
			if err != nil {
				e.Fatalf("List: %v", err)
			}
			got = append(got, c.ID)
			if len(got) == 1 {
				e.chain(w, "c3")
			}
		}
		e.wantEqual("listed", got, []checkpointdb.CheckpointID{"c1", "c2"})
	}},

	{"DeletedBeforeTurn", "A checkpoint that is deleted before its turn in a List loop is left out, even when its id is in use again.", func(e *env) {
		w, other := e.acquire("t"), e.acquire("other")
		e.chain(w, "c1", "c2", "c3", "c4")
		var got []checkpointdb.CheckpointID
		for c, err := range e.store.List(e.Context(), "t") {
			if err != nil {
				e.Fatalf("List: %v", err)
			}
			got = append(got, c.ID)
			if len(got) == 1 {
				e.deleteHead(w, "c4")
				e.deleteHead(w, "c3")
				e.chain(other, "c3")
			}
		}
		e.wantEqual("listed", got, []checkpointdb.CheckpointID{"c1", "c2"})
	}},
}

var referenceCases = []testCase{
	{"Counts", "A key's count is the number of checkpoints that use it, over all threads.", func(e *env) {
		a, b := e.acquire("a"), e.acquire("b")
		shared, plot := file("", "common").BlobKey, artifact("", "common").BlobKey
		e.wantNoReferences()
		e.chain(a, "a1", "a2")
		e.chain(b, "b1")
		e.wantCount(shared, 3)
		e.wantCount(plot, 3)
		e.wantCount(file("", "a1").BlobKey, 1)
		e.deleteHead(a, "a2")
		e.wantCount(shared, 2)
		e.deleteHead(b, "b1")
		e.wantCount(shared, 1)
	}},

	{"Forgotten", "A key whose last use goes is no longer listed.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		e.deleteHead(w, "c2")
		for _, r := range e.references() {
			if r.Key == file("", "c2").BlobKey || r.Count < 1 {
				e.Errorf("listed %s with %d references", r.Key, r.Count)
			}
		}
		e.deleteHead(w, "c1")
		e.wantNoReferences()
	}},

	{"TwiceInOne", "A checkpoint that uses one key twice counts once.", func(e *env) {
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		c.Files = []checkpointdb.Entry{file("a", "x"), file("b", "x"), file("c", "y"), file("d", "x")}
		c.Artifacts = []checkpointdb.Artifact{artifact("a", "x"), artifact("a", "x")}
		e.append(w, c)
		for _, key := range []checkpointdb.BlobKey{c.Files[0].BlobKey, c.Files[2].BlobKey, c.Artifacts[0].BlobKey} {
			e.wantCount(key, 1)
		}
		next := e.checkpoint("t", "c2", "c1") // keeps one of the three uses
		next.Files, next.Artifacts = c.Files[3:], nil
		e.append(w, next)
		e.wantCount(c.Files[0].BlobKey, 2)
		e.wantCount(c.Artifacts[0].BlobKey, 1)
	}},

	{"ComesAndGoes", "A key counts in the checkpoints that use it, wherever on the chain they are.", func(e *env) {
		w := e.acquire("t")
		uses := []bool{true, false, true, true, false, false, true}
		key := file("", "x").BlobKey
		want := int64(0)
		for i, use := range uses {
			c := e.checkpoint("t", checkpointdb.CheckpointID(rune('a'+i)), e.head("t"))
			c.Files = []checkpointdb.Entry{file("other", "y")}
			if use {
				c.Files = append(c.Files, file("x", "x"))
				want++
			}
			e.append(w, c)
			e.wantCount(key, want)
		}
		for i := range slices.Backward(uses) {
			e.deleteHead(w, checkpointdb.CheckpointID(rune('a'+i)))
			if uses[i] {
				want--
			}
			e.wantCount(key, want)
		}
	}},

	{"Order", "BlobReferences yields keys by their bytes, each once: artifacts, then files.", func(e *env) {
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		for i := range 50 {
			text := fmt.Sprint(i)
			c.Files = append(c.Files, file("many/"+text, text))
			c.Artifacts = append(c.Artifacts, artifact(text, text))
		}
		e.append(w, c)
		all := e.references()
		for i := 1; i < len(all); i++ {
			if all[i-1].Key >= all[i].Key {
				e.Errorf("%s stands before %s", all[i-1].Key, all[i].Key)
			}
		}
		if len(all) != len(c.BlobKeys()) {
			e.Errorf("listed %d keys, want %d", len(all), len(c.BlobKeys()))
		}
	}},

	{"CallsStore", "The body of a BlobReferences loop may call the store, writes included, and may stop at any time.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		last := checkpointdb.BlobKey("")
		turns := 0
		for r, err := range e.store.BlobReferences(e.Context()) {
			if err != nil {
				e.Fatalf("BlobReferences: %v", err)
			}
			if r.Key <= last || r.Count < 1 {
				e.Errorf("%s with %d references came after %s", r.Key, r.Count, last)
			}
			last = r.Key
			if turns++; turns <= 20 { // a new key may come in for ever
				e.chain(w, checkpointdb.CheckpointID(fmt.Sprint("new", turns)))
			}
			e.list("t")
			e.references()
		}
		for range e.store.BlobReferences(e.Context()) {
			break
		}
		e.chain(w, "after")
	}},
}
