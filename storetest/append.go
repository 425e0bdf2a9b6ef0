package storetest

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"checkpointdb"
)

// appendCall is the arguments of one Append.
type appendCall struct {
	w            checkpointdb.Writer
	c            checkpointdb.Checkpoint
	expectedHead checkpointdb.CheckpointID
}

func (e *env) appendAs(call appendCall) error {
	return e.store.Append(e.Context(), call.w, call.c, call.expectedHead)
}

var appendCases = []testCase{
	{"ExtendsChain", "Append adds the checkpoint and makes it the head of its thread.", func(e *env) {
		w := e.acquire("t")
		e.wantHead("t", "")
		var all []checkpointdb.Checkpoint
		for _, id := range []checkpointdb.CheckpointID{"c1", "c2", "c3"} {
			all = append(all, e.chain(w, id)...)
			e.wantHead("t", id)
			e.wantEqual("list", e.list("t"), all)
		}
	}},

	{"Order", "Append checks ids, then the checkpoint, the writer, that the id is unused, the head, the parent; the first check that fails decides the error.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		good := func() appendCall { return appendCall{w, e.checkpoint("t", "c3", "c2"), "c2"} }
		refusedInOrder(e, "Append", good, e.appendAs,
			violation[appendCall]{checkpointdb.ErrInvalidID, "", func(a *appendCall) { a.c.ID = "" }},
			violation[appendCall]{checkpointdb.ErrInvalidEntry, "createdAt", func(a *appendCall) { a.c.CreatedAt = time.Time{} }},
			violation[appendCall]{checkpointdb.ErrInvalidEntry, "reason", func(a *appendCall) { a.c.Reason = "" }},
			violation[appendCall]{checkpointdb.ErrInvalidEntry, "label", func(a *appendCall) { a.c.Label = "\xff" }},
			violation[appendCall]{checkpointdb.ErrInvalidEntry, "files", func(a *appendCall) { a.c.Files = []checkpointdb.Entry{{}} }},
			violation[appendCall]{checkpointdb.ErrInvalidEntry, "conversation", func(a *appendCall) { a.c.Conversation = []json.RawMessage{nil} }},
			violation[appendCall]{checkpointdb.ErrInvalidEntry, "artifacts", func(a *appendCall) { a.c.Artifacts = []checkpointdb.Artifact{{}} }},
			violation[appendCall]{checkpointdb.ErrWriterLost, "", func(a *appendCall) { a.w.Fence++ }},
			violation[appendCall]{checkpointdb.ErrDuplicateID, "", func(a *appendCall) { a.c.ID = "c1" }},
			violation[appendCall]{checkpointdb.ErrStaleHead, "", func(a *appendCall) { a.expectedHead = "c1" }},
			violation[appendCall]{checkpointdb.ErrParentMismatch, "", func(a *appendCall) { a.c.ParentCheckpointID = "other" }},
		)
		e.wantHead("t", "c3")
	}},

	{"IDsFirst", "Every id of an Append is checked before anything else, the expected head and the parent included.", func(e *env) {
		w := e.acquire("t")
		good := func() appendCall { return appendCall{w, e.checkpoint("t", "c", ""), ""} }
		for _, breakID := range []func(*appendCall){
			func(a *appendCall) { a.c.ID = "\xff" },
			func(a *appendCall) { a.c.ThreadID = "\xff" },
			func(a *appendCall) { a.c.ParentCheckpointID = "\xff" },
			func(a *appendCall) { a.expectedHead = "\xff" },
		} {
			refusedInOrder(e, "Append", good, func(a appendCall) error {
				err := e.appendAs(a)
				if err == nil { // the good call, which each round makes again
					e.deleteHead(w, "c")
				}
				return err
			},
				violation[appendCall]{checkpointdb.ErrInvalidID, "", breakID},
				violation[appendCall]{checkpointdb.ErrInvalidEntry, "createdAt", func(a *appendCall) { a.c.CreatedAt = time.Time{} }},
				violation[appendCall]{checkpointdb.ErrWriterLost, "", func(a *appendCall) { a.w.OwnerToken += "x" }},
			)
		}
	}},

	{"CreatedAt", "CreatedAt is not the zero time and within 8.64e15 ms of 1970, or Append fails with ErrInvalidEntry.", func(e *env) {
		w := e.acquire("t")
		limit := time.UnixMilli(8.64e15)
		for _, bad := range []time.Time{{}, limit.Add(1), time.UnixMilli(-8.64e15).Add(-1)} {
			c := e.checkpoint("t", "c", "")
			c.CreatedAt = bad
			e.refusedEntry(w, c, "createdAt", -1)
		}
		parent := checkpointdb.CheckpointID("")
		for i, good := range []time.Time{limit, time.UnixMilli(-8.64e15), time.UnixMilli(0)} {
			c := e.checkpoint("t", checkpointdb.CheckpointID(rune('a'+i)), parent)
			c.CreatedAt = good
			e.append(w, c)
			parent = c.ID
		}
		e.wantList("t", "b", "c", "a")
	}},

	{"Texts", "The reason is one of three, label and run id are well-formed Unicode, or Append fails with ErrInvalidEntry.", func(e *env) {
		w := e.acquire("t")
		for field, spoil := range map[string]func(*checkpointdb.Checkpoint){
			"reason":      func(c *checkpointdb.Checkpoint) { c.Reason = "Named" },
			"label":       func(c *checkpointdb.Checkpoint) { c.Label = "\xed\xa0\x80" },
			"sourceRunId": func(c *checkpointdb.Checkpoint) { c.SourceRunID = "a\xff" },
		} {
			c := e.checkpoint("t", "c", "")
			spoil(&c)
			e.refusedEntry(w, c, field, -1)
		}
		parent := checkpointdb.CheckpointID("")
		for _, reason := range []checkpointdb.Reason{checkpointdb.ReasonAutomatic, checkpointdb.ReasonNamed, checkpointdb.ReasonForkRoot} {
			c := e.checkpoint("t", checkpointdb.CheckpointID(reason), parent)
			c.Reason, c.Label, c.SourceRunID = reason, "über\x00 <&>", "run"
			e.append(w, c)
			e.wantEqual("checkpoint", e.get(c.ID), c)
			parent = c.ID
		}
	}},

	{"Files", "Every entry keeps the rules for paths, kinds, keys and sizes, or Append fails with ErrInvalidEntry and says where.", func(e *env) {
		w := e.acquire("t")
		entry := func(change func(*checkpointdb.Entry)) checkpointdb.Entry {
			f := file("a", "a")
			change(&f)
			return f
		}
		dir := func(path string) checkpointdb.Entry {
			return checkpointdb.Entry{Path: path, Kind: checkpointdb.KindDir}
		}
		link := func(path, target string) checkpointdb.Entry {
			return checkpointdb.Entry{Path: path, Kind: checkpointdb.KindSymlink, Target: target}
		}
		upper := checkpointdb.BlobKey(checkpointdb.FileKeyPrefix + strings.Repeat("A", 64))
		bad := []checkpointdb.Entry{
			entry(func(f *checkpointdb.Entry) { f.Kind = "" }),
			entry(func(f *checkpointdb.Entry) { f.Kind = "socket" }),
			entry(func(f *checkpointdb.Entry) { f.BlobKey = "" }),
			entry(func(f *checkpointdb.Entry) { f.BlobKey = upper }),
			entry(func(f *checkpointdb.Entry) { f.BlobKey = f.BlobKey[:len(f.BlobKey)-1] }),
			entry(func(f *checkpointdb.Entry) { f.BlobKey += "0" }),
			entry(func(f *checkpointdb.Entry) { f.BlobKey = artifact("a", "a").BlobKey }),
			entry(func(f *checkpointdb.Entry) { f.Size = -1 }),
			entry(func(f *checkpointdb.Entry) { f.Size = checkpointdb.MaxSize + 1 }),
			entry(func(f *checkpointdb.Entry) { f.Target = "b" }),
			entry(func(f *checkpointdb.Entry) { f.Kind = checkpointdb.KindDir }),
			{Path: "a", Kind: checkpointdb.KindDir, Size: 1},
			{Path: "a", Kind: checkpointdb.KindDir, Executable: true},
			{Path: "a", Kind: checkpointdb.KindDir, Target: "b"},
			{Path: "a", Kind: checkpointdb.KindSymlink, Target: "b", Size: 1},
			{Path: "a", Kind: checkpointdb.KindSymlink, Target: "b", BlobKey: file("a", "a").BlobKey},
			link("a", ""), link("a", "b\x00"), link("a", "\xff"),
		}
		for _, path := range []string{
			"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "a/..", "./a", "../a", "a/../b", `a\b`, `\`, "a\x00", "C:", "c:/a", "\xff", "\xed\xa0\x80",
		} {
			bad = append(bad, dir(path))
		}
		for _, b := range bad {
			c := e.checkpoint("t", "c", "")
			c.Files = append(c.Files, b)
			e.refusedEntry(w, c, "files", len(c.Files)-1)
		}
		for _, pair := range [][2]checkpointdb.Entry{ // the second is wrong because of the first
			{dir("a"), dir("a")},
			{file("a", "1"), file("a", "2")},
			{dir("a"), link("a", "b")},
			{file("a", "1"), file("a/b", "2")},
			{file("a", "1"), dir("a/b/c")},
			{link("a", "b"), dir("a/b")},
		} {
			between := []checkpointdb.Entry{file("a-b", "3"), file("a.b", "4"), dir("b"), file("b/a", "5")}
			c := e.checkpoint("t", "c", "")
			c.Files = append(append([]checkpointdb.Entry{pair[0]}, between...), pair[1])
			e.refusedEntry(w, c, "files", len(c.Files)-1)
			c.Files[0], c.Files[len(c.Files)-1] = pair[1], pair[0]
			e.refused(checkpointdb.ErrInvalidEntry, "Append with the files the other way round", func() error {
				return e.store.Append(e.Context(), w, c, "")
			})
		}
		c := e.checkpoint("t", "c", "")
		c.Files = []checkpointdb.Entry{
			file("z/a", "1"), dir("z"), file("a", "1"), file("a b", "1"), file("a.b/c", "1"), dir("..."), dir("a-"),
			dir("c:d"), dir("1:"), dir("é"), dir("e\u0301"), dir("\n\x1b"), dir("\uffff"), dir("\U0001f600"), dir("\ufffd"),
			link("l", "/etc/passwd"), link("m", "../.."), link("n", `\`),
			{Path: "x", Kind: checkpointdb.KindFile, BlobKey: file("x", "x").BlobKey, Size: checkpointdb.MaxSize, Executable: true},
		}
		e.append(w, c)
		e.wantEqual("checkpoint", e.get("c"), c)
	}},

	{"Artifacts", "Every artifact has an id, a name, a MIME type, a size, an artifact key and a time, or Append fails with ErrInvalidEntry and says where.", func(e *env) {
		w := e.acquire("t")
		for _, spoil := range []func(*checkpointdb.Artifact){
			func(a *checkpointdb.Artifact) { a.ArtifactID = "" },
			func(a *checkpointdb.Artifact) { a.ArtifactID = "\xed\xa0\x80" },
			func(a *checkpointdb.Artifact) { a.Name = "" },
			func(a *checkpointdb.Artifact) { a.Name = "\xff" },
			func(a *checkpointdb.Artifact) { a.MimeType = "" },
			func(a *checkpointdb.Artifact) { a.MimeType = "\xff" },
			func(a *checkpointdb.Artifact) { a.Size = -1 },
			func(a *checkpointdb.Artifact) { a.Size = checkpointdb.MaxSize + 1 },
			func(a *checkpointdb.Artifact) { a.BlobKey = "" },
			func(a *checkpointdb.Artifact) { a.BlobKey = file("a", "a").BlobKey },
			func(a *checkpointdb.Artifact) { a.BlobKey = a.BlobKey[:len(a.BlobKey)-1] + "G" },
			func(a *checkpointdb.Artifact) { a.CreatedAt = time.Time{} },
		} {
			a := artifact("a", "a")
			spoil(&a)
			c := e.checkpoint("t", "c", "")
			c.Artifacts = append(c.Artifacts, a)
			e.refusedEntry(w, c, "artifacts", len(c.Artifacts)-1)
		}
		c := e.checkpoint("t", "c", "")
		// Nothing makes an artifact id unique.
		c.Artifacts = []checkpointdb.Artifact{artifact("b", "1"), artifact("a", "2"), artifact("b", "1")}
		e.append(w, c)
		e.wantEqual("checkpoint", e.get("c"), c)
	}},

	{"Conversation", "Every message is one JSON value in well-formed UTF-8, or Append fails with ErrInvalidEntry and says where.", func(e *env) {
		w := e.acquire("t")
		for _, bad := range badMessages {
			c := e.checkpoint("t", "c", "")
			c.Conversation = append(c.Conversation, json.RawMessage(bad))
			e.refusedEntry(w, c, "conversation", len(c.Conversation)-1)
		}
	}},

	{"OtherThread", "A writer of one thread cannot write another.", func(e *env) {
		w, other := e.acquire("t"), e.acquire("other")
		e.refused(checkpointdb.ErrWriterLost, "Append by another thread's writer", func() error {
			return e.store.Append(e.Context(), other, e.checkpoint("t", "c", ""), "")
		})
		// Both threads have fence 1, so only the thread tells the two apart.
		forged := w
		forged.ThreadID = "other"
		e.refused(checkpointdb.ErrWriterLost, "Append by a writer moved to another thread", func() error {
			return e.store.Append(e.Context(), forged, e.checkpoint("other", "c", ""), "")
		})
	}},

	{"Fence", "A writer whose fence is not that of the lease is lost, whatever its token.", func(e *env) {
		w := e.acquire("t")
		for _, fence := range []checkpointdb.Fence{0, 2, 1 << 63} {
			forged := w
			forged.Fence = fence
			e.refusedWriter(forged, w.Fence)
		}
	}},

	{"Token", "A writer whose token is not that of the lease is lost, whatever its fence.", func(e *env) {
		w := e.acquire("t")
		for _, token := range []string{"", w.OwnerToken + "x", strings.ToLower(w.OwnerToken) + "\x00", w.OwnerToken[:1]} {
			forged := w
			forged.OwnerToken = token
			e.refusedWriter(forged, w.Fence)
		}
	}},

	{"NoLease", "Without a lease there is no writer.", func(e *env) {
		e.touch("t")
		e.refusedWriter(checkpointdb.Writer{ThreadID: "t"}, 0)
		e.refusedWriter(checkpointdb.Writer{ThreadID: "t", OwnerToken: "x", Fence: 1}, 0)
		w := e.acquire("t")
		e.release(w)
		e.refusedWriter(w, w.Fence)
		e.refusedWriter(checkpointdb.Writer{ThreadID: "t"}, w.Fence)
		e.refusedWriter(checkpointdb.Writer{ThreadID: "t", Fence: w.Fence}, w.Fence)
	}},

	{"DuplicateID", "An id is used once in all threads, and is free again when its checkpoint is deleted.", func(e *env) {
		w, other := e.acquire("t"), e.acquire("other")
		e.chain(w, "c1", "c2")
		for _, id := range []checkpointdb.CheckpointID{"c1", "c2"} {
			e.refused(checkpointdb.ErrDuplicateID, "Append of a used id to its thread", func() error {
				return e.store.Append(e.Context(), w, e.checkpoint("t", id, "c2"), "c2")
			})
			e.refused(checkpointdb.ErrDuplicateID, "Append of a used id to another thread", func() error {
				return e.store.Append(e.Context(), other, e.checkpoint("other", id, ""), "")
			})
		}
		e.deleteHead(w, "c2")
		e.chain(other, "c2")
		e.wantList("t", "c1")
		e.wantList("other", "c2")
	}},

	{"DuplicateBeforeStale", "A used id is reported before a stale head.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		e.refused(checkpointdb.ErrDuplicateID, "Append of the first checkpoint once more", func() error {
			return e.store.Append(e.Context(), w, e.checkpoint("t", "c1", ""), "")
		})
	}},

	{"StaleHead", "Append fails with ErrStaleHead, with both heads, unless the head is the expected one; no head is expected as \"\".", func(e *env) {
		w := e.acquire("t")
		stale := func(expected, actual checkpointdb.CheckpointID) {
			e.Helper()
			err := e.refused(checkpointdb.ErrStaleHead, "Append", func() error {
				return e.store.Append(e.Context(), w, e.checkpoint("t", "new", expected), expected)
			})
			want := &checkpointdb.StaleHeadError{ThreadID: "t", Expected: expected, Actual: actual}
			e.wantEqual("detail", detail[*checkpointdb.StaleHeadError](e, err), want)
		}
		stale("c1", "")
		e.chain(w, "c1", "c2")
		stale("c1", "c2")
		stale("", "c2")
		stale("c3", "c2")
		e.chain(e.acquire("other"), "other")
		stale("other", "c2")
	}},

	{"ParentMismatch", "The parent of a new checkpoint is the expected head, or Append fails with ErrParentMismatch.", func(e *env) {
		w := e.acquire("t")
		mismatch := func(parent, head checkpointdb.CheckpointID) {
			e.Helper()
			e.refused(checkpointdb.ErrParentMismatch, "Append", func() error {
				return e.store.Append(e.Context(), w, e.checkpoint("t", "new", parent), head)
			})
		}
		mismatch("c1", "")
		mismatch("new", "")
		e.chain(w, "c1", "c2")
		mismatch("c1", "c2")
		mismatch("", "c2")
		mismatch("new", "c2")
	}},
}

// refusedEntry appends to an empty thread what must be refused because of one
// field, or of one item of it.
func (e *env) refusedEntry(w checkpointdb.Writer, c checkpointdb.Checkpoint, field string, index int) {
	e.Helper()
	err := e.refused(checkpointdb.ErrInvalidEntry, "Append with a bad item in "+field, func() error {
		return e.store.Append(e.Context(), w, c, "")
	})
	if err == nil { // so that the next one meets an empty thread again
		if err := e.store.DeleteHead(e.Context(), w, c.ID); err != nil {
			e.Fatalf("DeleteHead of what should have been refused: %v", err)
		}
		return
	}
	if at := detail[*checkpointdb.InvalidEntryError](e, err); at.Field != field || at.Index != index {
		e.Errorf("the error is about item %d of %s (%v), want item %d of %s", at.Index, at.Field, err, index, field)
	}
}

// refusedWriter checks that nothing can be written with w, the last fence of
// whose thread is given.
func (e *env) refusedWriter(w checkpointdb.Writer, last checkpointdb.Fence) {
	e.Helper()
	head := e.head(w.ThreadID)
	calls := map[string]func() error{
		"Append":     func() error { return e.store.Append(e.Context(), w, e.checkpoint(w.ThreadID, "new", head), head) },
		"DeleteHead": func() error { return e.store.DeleteHead(e.Context(), w, "c1") },
		"Renew":      func() error { _, err := e.store.Renew(e.Context(), w); return err },
	}
	if p, ok := e.store.(checkpointdb.Pruner); ok {
		calls["DeleteCheckpoints"] = func() error { _, err := p.DeleteCheckpoints(e.Context(), w, 1); return err }
	}
	if p, ok := e.store.(checkpointdb.PolicyPruner); ok {
		calls["Prune"] = func() error {
			_, err := p.Prune(e.Context(), w, checkpointdb.PrunePolicy{KeepLast: 1})
			return err
		}
	}
	for method, call := range calls {
		err := e.refused(checkpointdb.ErrWriterLost, method, call)
		if lost := (*checkpointdb.WriterLostError)(nil); errors.As(err, &lost) {
			e.wantEqual(method+": detail", lost, &checkpointdb.WriterLostError{ThreadID: w.ThreadID, Held: w.Fence, Last: last})
		} else if err != nil {
			e.Errorf("%s: error %v carries no %T", method, err, lost)
		}
	}
}

var badMessages = []string{"", " ", "{", "{}{}", "nul", "'a'", "01", "[1,]", "\"\n\"", "\"\xff\"", `"\ud8"`, "\xef\xbb\xbf{}", "NaN"}
