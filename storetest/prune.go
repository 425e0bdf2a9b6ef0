package storetest

import (
	"fmt"
	"time"

	"checkpointdb"
)

// keepLast calls DeleteCheckpoints and checks what it deleted.
func (e *env) keepLast(w checkpointdb.Writer, keep int, want ...checkpointdb.CheckpointID) {
	e.Helper()
	gone, err := capability[checkpointdb.Pruner](e).DeleteCheckpoints(e.Context(), w, keep)
	if err != nil {
		e.Fatalf("DeleteCheckpoints(%d): %v", keep, err)
	}
	e.wantEqual(fmt.Sprintf("deleted by DeleteCheckpoints(%d)", keep), gone, want)
}

// prune calls Prune, first as a dry run, and checks what it deleted.
func (e *env) prune(w checkpointdb.Writer, policy checkpointdb.PrunePolicy, want ...checkpointdb.CheckpointID) {
	e.Helper()
	pruner := capability[checkpointdb.PolicyPruner](e)
	before := e.look()
	dry := policy
	dry.DryRun = true
	gone, err := pruner.Prune(e.Context(), w, dry)
	if err != nil {
		e.Fatalf("Prune(%+v): %v", dry, err)
	}
	e.wantEqual("to be deleted by Prune", gone, want)
	e.wantEqual("the store after a dry run", e.look(), before)
	gone, err = pruner.Prune(e.Context(), w, policy)
	if err != nil {
		e.Fatalf("Prune(%+v): %v", policy, err)
	}
	e.wantEqual("deleted by Prune", gone, want)
}

// withGap makes a thread of the checkpoints old and head, whose parent was
// pruned. The parent's id is "pruned".
func (e *env) withGap(w checkpointdb.Writer) {
	e.Helper()
	capability[checkpointdb.PolicyPruner](e)
	old := e.checkpoint(w.ThreadID, "old", "")
	old.Reason = checkpointdb.ReasonNamed
	e.append(w, old)
	e.chain(w, "pruned", "head")
	e.prune(w, checkpointdb.PrunePolicy{KeepNamed: true}, "pruned")
}

// headless makes a thread of the checkpoint old, without a head.
func (e *env) headless(w checkpointdb.Writer) {
	e.Helper()
	e.withGap(w)
	e.deleteHead(w, "head")
}

var deleteCheckpointsCases = []testCase{
	{"KeepsNewest", "DeleteCheckpoints keeps the head and the keep-1 newest before it on the chain, and returns the ids of the others, oldest first.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		all := e.chain(w, "c5", "c4", "c3", "c2", "c1")
		e.keepLast(w, 3, "c5", "c4")
		e.wantEqual("list", e.list("t"), all[2:])
		e.wantHead("t", "c1")
		e.keepLast(w, 3)
		e.keepLast(w, 1, "c3", "c2")
		e.wantEqual("list", e.list("t"), all[4:])
		_, err := e.store.Get(e.Context(), "c2")
		e.wantCode("Get of a deleted checkpoint", err, checkpointdb.ErrCheckpointNotFound)
		e.chain(w, "c5", "c2") // the ids are free
		e.wantHead("t", "c2")
	}},

	{"ChainNotTime", "The chain decides what is newest, not CreatedAt and not the id.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		for i, id := range []checkpointdb.CheckpointID{"9", "10", "11", "8"} {
			c := e.checkpoint("t", id, e.head("t"))
			c.CreatedAt = time.UnixMilli([]int64{4, 2, 2, 1}[i])
			e.append(w, c)
		}
		e.keepLast(w, 2, "9", "10")
		e.wantList("t", "8", "11")
		e.keepLast(w, 1, "11")
		e.wantHead("t", "8")
	}},

	{"Many", "DeleteCheckpoints of 501 down to 1 deletes exactly 500.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		var ids []checkpointdb.CheckpointID
		for i := range 501 {
			ids = append(ids, checkpointdb.CheckpointID(fmt.Sprint("c", i)))
		}
		all := e.chain(w, ids...)
		e.keepLast(w, 1, ids[:500]...)
		e.wantEqual("list", e.list("t"), all[500:])
		for _, key := range all[500].BlobKeys() {
			e.wantCount(key, 1)
		}
	}},

	{"MoreThanThere", "DeleteCheckpoints that is to keep more than there is deletes nothing.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		e.keepLast(w, 1)
		e.chain(w, "c1", "c2")
		e.keepLast(w, 2)
		e.keepLast(w, 1<<30)
		e.wantList("t", "c1", "c2")
	}},

	{"Order", "DeleteCheckpoints checks the id, then that keep is at least 1, then the writer.", func(e *env) {
		pruner := capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		type call struct {
			w    checkpointdb.Writer
			keep int
		}
		refusedInOrder(e, "DeleteCheckpoints", func() call { return call{w, 1} },
			func(c call) error { _, err := pruner.DeleteCheckpoints(e.Context(), c.w, c.keep); return err },
			violation[call]{checkpointdb.ErrInvalidID, "", func(c *call) { c.w.ThreadID = "\xff" }},
			violation[call]{checkpointdb.ErrInvalidArgument, "", func(c *call) { c.keep = 0 }},
			violation[call]{checkpointdb.ErrWriterLost, "", func(c *call) { c.w.OwnerToken = "" }},
		)
		e.refused(checkpointdb.ErrInvalidArgument, "DeleteCheckpoints of -1", func() error {
			_, err := pruner.DeleteCheckpoints(e.Context(), w, -1)
			return err
		})
	}},

	{"OtherThreads", "DeleteCheckpoints leaves other threads alone, a fork of what it deletes included.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		all := e.chain(w, "c1", "c2", "c3")
		e.chain(e.acquire("other"), "o1", "o2", "o3")
		_, root := e.mustFork("t", "c2", "fork", "root")
		e.keepLast(w, 1, "c1", "c2")
		e.wantList("other", "o1", "o2", "o3")
		e.wantEqual("fork", e.get("root"), root)
		e.wantEqual("survivor", e.get("c3"), all[2])
		e.wantCount(file("", "c2").BlobKey, 1)
	}},

	{"HeadOverGap", "DeleteHead of a head whose parent was pruned leaves the thread without a head, and the next append starts from none.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2", "c3")
		e.keepLast(w, 1, "c1", "c2")
		if parent := e.get("c3").ParentCheckpointID; parent != "c2" {
			e.Errorf("the survivor's parent is %q, want %q as before", parent, "c2")
		}
		e.deleteHead(w, "c3")
		e.wantHead("t", "")
		e.wantList("t")
		e.refused(checkpointdb.ErrStaleHead, "Append that expects the pruned parent", func() error {
			return e.store.Append(e.Context(), w, e.checkpoint("t", "c4", "c2"), "c2")
		})
		e.chain(w, "c4", "c2")
		e.wantList("t", "c4", "c2")
		e.deleteHead(w, "c2")
		e.wantHead("t", "c4")
	}},

	{"GapIDUsedAgain", "A pruned parent's id that is in use again, in another thread, is not that parent.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		e.keepLast(w, 1, "c1")
		e.chain(e.acquire("other"), "c1")
		e.deleteHead(w, "c2")
		e.wantHead("t", "")
		e.wantHead("other", "c1")
		e.chain(w, "c3")
	}},

	{"Reopen", "What DeleteCheckpoints deleted stays deleted after closing and opening again.", func(e *env) {
		capability[checkpointdb.Pruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2", "c3", "c4")
		e.keepLast(w, 2, "c1", "c2")
		before := e.look()
		e.reopen()
		e.wantEqual("the store", e.look(), before)
		e.deleteHead(w, "c4")
		e.deleteHead(w, "c3")
		e.wantHead("t", "")
		e.wantNoReferences()
	}},
}

var pruneCases = []testCase{
	{"KeepLast", "KeepLast keeps this many of the newest on the chain, the head included.", func(e *env) {
		w := e.acquire("t")
		for i, id := range []checkpointdb.CheckpointID{"c1", "c2", "c3", "c4"} {
			c := e.checkpoint("t", id, e.head("t"))
			c.CreatedAt = time.UnixMilli(int64(100 - i)) // against the chain
			e.append(w, c)
		}
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 3}, "c1")
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 9})
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 1}, "c2", "c3")
		e.wantList("t", "c4")
		e.wantHead("t", "c4")
	}},

	{"KeepYounger", "KeepYounger keeps what was created less than this before now; a time in the future is young.", func(e *env) {
		w := e.acquire("t")
		const hour = time.Hour
		for _, c := range []struct {
			id  checkpointdb.CheckpointID
			age time.Duration
		}{{"old", 9 * hour}, {"future", -24 * hour}, {"just", hour}, {"almost", hour - 1}, {"over", hour + 1}, {"head", 100 * hour}} {
			made := e.checkpoint("t", c.id, e.head("t"))
			made.CreatedAt = e.now().Add(-c.age)
			e.append(w, made)
		}
		e.prune(w, checkpointdb.PrunePolicy{KeepYounger: 200 * hour})
		e.prune(w, checkpointdb.PrunePolicy{KeepYounger: hour}, "old", "just", "over")
		e.wantList("t", "head", "almost", "future")
		e.advance(leaseDuration - 1)
		e.prune(w, checkpointdb.PrunePolicy{KeepYounger: 1}, "almost")
	}},

	{"KeepNamed", "KeepNamed keeps checkpoints of reason named, and no others.", func(e *env) {
		w := e.acquire("t")
		for i, reason := range []checkpointdb.Reason{
			checkpointdb.ReasonForkRoot, checkpointdb.ReasonNamed, checkpointdb.ReasonAutomatic, checkpointdb.ReasonNamed, checkpointdb.ReasonAutomatic,
		} {
			c := e.checkpoint("t", checkpointdb.CheckpointID(fmt.Sprint("c", i)), e.head("t"))
			c.Reason = reason
			if reason != checkpointdb.ReasonNamed {
				c.Label = "named" // the reason counts, not the label
			}
			e.append(w, c)
		}
		e.prune(w, checkpointdb.PrunePolicy{KeepNamed: true}, "c0", "c2")
		e.wantList("t", "c1", "c3", "c4")
		e.wantHead("t", "c4")
	}},

	{"AnyRule", "A checkpoint is kept when any rule of the policy keeps it.", func(e *env) {
		w := e.acquire("t")
		for i, id := range []checkpointdb.CheckpointID{"none", "named", "young", "last", "head"} {
			c := e.checkpoint("t", id, e.head("t"))
			if id == "named" {
				c.Reason = checkpointdb.ReasonNamed
			}
			if id == "young" {
				c.CreatedAt = e.now().Add(-time.Duration(i))
			}
			e.append(w, c)
		}
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 2, KeepYounger: time.Second, KeepNamed: true}, "none")
		e.prune(w, checkpointdb.PrunePolicy{KeepYounger: time.Second, KeepNamed: true}, "last")
		e.wantList("t", "named", "head", "young")
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 2, KeepNamed: true})
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 1, KeepYounger: time.Second}, "named")
	}},

	{"HeadStays", "The head always stays, even if no rule keeps it.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		e.prune(w, checkpointdb.PrunePolicy{KeepYounger: 1}, "c1")
		e.prune(w, checkpointdb.PrunePolicy{KeepNamed: true})
		e.wantHead("t", "c2")
		e.wantList("t", "c2")
	}},

	{"NoRule", "A policy without a rule, or with a negative one, is refused with ErrInvalidArgument.", func(e *env) {
		pruner := capability[checkpointdb.PolicyPruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		for _, policy := range []checkpointdb.PrunePolicy{
			{}, {DryRun: true}, {KeepLast: -1}, {KeepYounger: -1}, {KeepLast: -1, KeepNamed: true}, {KeepYounger: -1, KeepLast: 1},
		} {
			e.refused(checkpointdb.ErrInvalidArgument, fmt.Sprintf("Prune(%+v)", policy), func() error {
				_, err := pruner.Prune(e.Context(), w, policy)
				return err
			})
		}
	}},

	{"Order", "Prune checks the id, then the policy, then the writer; a dry run checks no less.", func(e *env) {
		pruner := capability[checkpointdb.PolicyPruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2")
		type call struct {
			w      checkpointdb.Writer
			policy checkpointdb.PrunePolicy
		}
		for _, dry := range []bool{true, false} {
			refusedInOrder(e, "Prune", func() call { return call{w, checkpointdb.PrunePolicy{KeepLast: 1, DryRun: dry}} },
				func(c call) error { _, err := pruner.Prune(e.Context(), c.w, c.policy); return err },
				violation[call]{checkpointdb.ErrInvalidID, "", func(c *call) { c.w.ThreadID = "" }},
				violation[call]{checkpointdb.ErrInvalidArgument, "", func(c *call) { c.policy.KeepLast = 0 }},
				violation[call]{checkpointdb.ErrWriterLost, "", func(c *call) { c.w.Fence++ }},
			)
		}
	}},

	{"DryRun", "A dry run returns what would be deleted, and changes nothing.", func(e *env) {
		pruner := capability[checkpointdb.PolicyPruner](e)
		w := e.acquire("t")
		e.chain(w, "c1", "c2", "c3")
		before := e.look()
		for range 2 {
			gone, err := pruner.Prune(e.Context(), w, checkpointdb.PrunePolicy{KeepLast: 1, DryRun: true})
			if err != nil {
				e.Fatalf("Prune: %v", err)
			}
			e.wantEqual("to be deleted", gone, []checkpointdb.CheckpointID{"c1", "c2"})
			e.wantEqual("the store", e.look(), before)
		}
	}},

	{"Gaps", "Survivors around a gap stay whole: listed, got and counted, with the parent ids they had.", func(e *env) {
		capability[checkpointdb.PolicyPruner](e)
		w := e.acquire("t")
		var all []checkpointdb.Checkpoint
		for i := range 9 {
			c := e.checkpoint("t", checkpointdb.CheckpointID(fmt.Sprint("c", i)), e.head("t"))
			c.Files = append(c.Files, file(fmt.Sprint("since", i/3), fmt.Sprint(i/3)))
			if i%2 == 1 {
				c.Reason = checkpointdb.ReasonNamed
			}
			e.append(w, c)
			all = append(all, c)
		}
		e.prune(w, checkpointdb.PrunePolicy{KeepNamed: true, KeepLast: 2}, "c0", "c2", "c4", "c6")
		e.wantEqual("list", e.list("t"), []checkpointdb.Checkpoint{all[1], all[3], all[5], all[7], all[8]})
		for i, count := range []int64{1, 2, 2} { // of c1; c3, c5; c7, c8
			e.wantCount(file("", fmt.Sprint(i)).BlobKey, count)
		}
		e.chain(w, "c9")
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 3}, "c1", "c3", "c5")
		e.deleteHead(w, "c9")
		e.deleteHead(w, "c8")
		e.wantHead("t", "c7")
		e.deleteHead(w, "c7")
		e.wantHead("t", "")
		e.wantList("t")
	}},

	{"Headless", "DeleteHead over a gap leaves no head even when older checkpoints survive; they stay listed and counted, and the next append has no parent.", func(e *env) {
		w := e.acquire("t")
		e.headless(w)
		e.wantHead("t", "")
		e.wantList("t", "old")
		e.wantCount(file("", "old").BlobKey, 1)
		e.refused(checkpointdb.ErrNotHead, "DeleteHead of the survivor", func() error {
			return e.store.DeleteHead(e.Context(), w, "old")
		})
		e.refused(checkpointdb.ErrStaleHead, "Append to the survivor", func() error {
			return e.store.Append(e.Context(), w, e.checkpoint("t", "new", "old"), "old")
		})
		e.chain(w, "new1", "new2")
		e.wantList("t", "old", "new1", "new2")
		e.deleteHead(w, "new2")
		e.wantHead("t", "new1")
		e.deleteHead(w, "new1")
		e.wantHead("t", "")
		e.wantList("t", "old")
	}},

	{"HeadlessLarge", "Whatever goes, a survivor's keys stay counted, and none that only the others used.", func(e *env) {
		capability[checkpointdb.PolicyPruner](e)
		w := e.acquire("t")
		old := e.large("t", "old", "")
		old.Reason = checkpointdb.ReasonNamed
		e.append(w, old)
		e.append(w, e.large("t", "pruned", "old"))
		e.append(w, e.large("t", "head", "pruned"))
		e.prune(w, checkpointdb.PrunePolicy{KeepNamed: true}, "pruned")
		e.wantCount(file("", "shared 17").BlobKey, 2)
		e.wantCount(file("", "pruned 17").BlobKey, 0)
		e.deleteHead(w, "head")
		e.wantHead("t", "")
		e.wantReferencesOf(old)
		e.append(w, e.large("t", "new", ""))
		e.wantCount(file("", "shared 17").BlobKey, 2)
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 1}, "old")
		e.wantCount(file("", "shared 17").BlobKey, 1)
		e.wantCount(file("", "old 17").BlobKey, 0)
	}},

	{"HeadlessChain", "In a thread without a head the survivors are the chain: the newest of them is the first that KeepLast keeps.", func(e *env) {
		w := e.acquire("t")
		for _, id := range []checkpointdb.CheckpointID{"old1", "old2", "old3"} {
			c := e.checkpoint("t", id, e.head("t"))
			c.Reason = checkpointdb.ReasonNamed
			e.append(w, c)
		}
		e.chain(w, "pruned", "head")
		e.prune(w, checkpointdb.PrunePolicy{KeepNamed: true}, "pruned")
		e.deleteHead(w, "head")
		e.wantHead("t", "")
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 2}, "old1")
		if _, ok := e.store.(checkpointdb.Pruner); ok {
			e.keepLast(w, 2)
			e.keepLast(w, 1, "old2")
		} else {
			e.prune(w, checkpointdb.PrunePolicy{KeepLast: 1}, "old2")
		}
		e.wantHead("t", "")
		e.wantList("t", "old3")
		e.chain(w, "new")
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 2})
		e.prune(w, checkpointdb.PrunePolicy{KeepLast: 1}, "old3")
		e.wantHead("t", "new")
	}},

	{"HeadlessToNothing", "In a thread without a head nothing stays unless a rule keeps it.", func(e *env) {
		w := e.acquire("t")
		e.headless(w)
		e.prune(w, checkpointdb.PrunePolicy{KeepYounger: 1}, "old")
		e.wantList("t")
		e.chain(w, "old")
	}},

	{"HeadlessFork", "A thread with checkpoints and no head is not empty: Fork refuses it, and its checkpoints can be forked.", func(e *env) {
		capability[checkpointdb.Forker](e)
		w := e.acquire("t")
		e.headless(w)
		e.chain(e.acquire("source"), "s1")
		e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork", func() error {
			return e.fork(forkCall{w, forkRequest("source", "s1", "t", "root")})
		})
		e.mustFork("t", "old", "fork", "root")
	}},

	{"GapIDUsedAgain", "A pruned parent's id that is in use again is not that parent.", func(e *env) {
		w := e.acquire("t")
		e.withGap(w)
		e.chain(e.acquire("other"), "pruned")
		e.deleteHead(w, "head")
		e.wantHead("t", "")
		e.wantList("t", "old")
	}},

	{"Reopen", "Gaps, and a thread without a head, are the same after closing and opening again.", func(e *env) {
		gap := e.acquire("gap")
		e.withGap(gap)
		before := e.look()
		e.reopen()
		e.wantEqual("the store", e.look(), before)
		e.deleteHead(gap, "head")
		before = e.look()
		e.reopen()
		e.wantEqual("the store", e.look(), before)
		e.chain(gap, "new")
		e.reopen()
		e.wantList("gap", "old", "new")
		e.deleteHead(gap, "new")
		e.wantHead("gap", "")
		e.wantList("gap", "old")
	}},
}
