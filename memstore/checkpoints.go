package memstore

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"time"

	"checkpointdb"
)

// Get implements checkpointdb.CheckpointStore.
func (s *Store) Get(ctx context.Context, id checkpointdb.CheckpointID) (c checkpointdb.Checkpoint, err error) {
	err = s.do(ctx, "get", func() error {
		if err := id.Validate(); err != nil {
			return err
		}
		found := s.checkpoints[id]
		if found == nil {
			return fail(checkpointdb.ErrCheckpointNotFound, "no checkpoint %q", id)
		}
		c = found.Clone()
		return nil
	})
	return c, err
}

// List implements checkpointdb.CheckpointStore.
func (s *Store) List(ctx context.Context, id checkpointdb.ThreadID) iter.Seq2[checkpointdb.Checkpoint, error] {
	return func(yield func(checkpointdb.Checkpoint, error) bool) {
		var all []*checkpointdb.Checkpoint
		err := s.do(ctx, "list", func() error {
			if err := id.Validate(); err != nil {
				return err
			}
			if t := s.threads[id]; t != nil {
				all = slices.Clone(t.chain)
			}
			return nil
		})
		slices.SortFunc(all, func(a, b *checkpointdb.Checkpoint) int {
			return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
		for _, c := range all {
			deleted := false
			err = s.do(ctx, "list", func() error {
				// Compared as pointers, because a deleted checkpoint's id may
				// be in use again.
				deleted = s.checkpoints[c.ID] != c
				return nil
			})
			if err != nil {
				break
			}
			if !deleted && !yield(c.Clone(), nil) {
				return
			}
		}
		if err != nil {
			yield(checkpointdb.Checkpoint{}, err)
		}
	}
}

// Head implements checkpointdb.CheckpointStore.
func (s *Store) Head(ctx context.Context, id checkpointdb.ThreadID) (head checkpointdb.CheckpointID, err error) {
	err = s.do(ctx, "head", func() error {
		if err := id.Validate(); err != nil {
			return err
		}
		head = s.threads[id].headID()
		return nil
	})
	return head, err
}

// Append implements checkpointdb.CheckpointStore.
func (s *Store) Append(ctx context.Context, w checkpointdb.Writer, c checkpointdb.Checkpoint, expectedHead checkpointdb.CheckpointID) error {
	return s.do(ctx, "append", func() error {
		if err := cmp.Or(c.ValidateIDs(), w.ThreadID.Validate(), validateOptional(expectedHead)); err != nil {
			return err
		}
		if err := c.Validate(); err != nil {
			return err
		}
		t, err := s.current(w, c.ThreadID)
		if err != nil {
			return err
		}
		if s.checkpoints[c.ID] != nil {
			return fail(checkpointdb.ErrDuplicateID, "checkpoint %q exists in thread %q", c.ID, s.checkpoints[c.ID].ThreadID)
		}
		if t.headID() != expectedHead {
			return failWith(checkpointdb.ErrStaleHead, &checkpointdb.StaleHeadError{
				ThreadID: c.ThreadID, Expected: expectedHead, Actual: t.headID(),
			})
		}
		if c.ParentCheckpointID != expectedHead {
			return fail(checkpointdb.ErrParentMismatch, "parent of checkpoint %q is %q, the expected head is %q", c.ID, c.ParentCheckpointID, expectedHead)
		}
		s.add(t, c)
		return nil
	})
}

// DeleteHead implements checkpointdb.CheckpointStore.
func (s *Store) DeleteHead(ctx context.Context, w checkpointdb.Writer, id checkpointdb.CheckpointID) error {
	return s.do(ctx, "delete head", func() error {
		if err := cmp.Or(w.ThreadID.Validate(), id.Validate()); err != nil {
			return err
		}
		t, err := s.current(w, w.ThreadID)
		if err != nil {
			return err
		}
		if t.headID() != id {
			return fail(checkpointdb.ErrNotHead, "head of thread %q is %q, not %q", w.ThreadID, t.headID(), id)
		}
		delete(s.checkpoints, id)
		parent := t.head.ParentCheckpointID
		t.chain, t.head = t.chain[:len(t.chain)-1], nil
		// Unless it was pruned, the parent is the one before on the chain. An
		// older survivor is not made the head in its place.
		if n := len(t.chain); n > 0 && t.chain[n-1].ID == parent {
			t.head = t.chain[n-1]
		}
		return nil
	})
}

// BlobReferences implements checkpointdb.CheckpointStore.
func (s *Store) BlobReferences(ctx context.Context) iter.Seq2[checkpointdb.BlobReference, error] {
	return func(yield func(checkpointdb.BlobReference, error) bool) {
		counts := map[checkpointdb.BlobKey]int64{}
		err := s.do(ctx, "blob references", func() error {
			for _, c := range s.checkpoints {
				for _, key := range c.BlobKeys() {
					counts[key]++
				}
			}
			return nil
		})
		all := make([]checkpointdb.BlobReference, 0, len(counts))
		for key, count := range counts {
			all = append(all, checkpointdb.BlobReference{Key: key, Count: count})
		}
		slices.SortFunc(all, func(a, b checkpointdb.BlobReference) int {
			return strings.Compare(string(a.Key), string(b.Key))
		})
		for _, r := range all {
			if err = ctx.Err(); err != nil {
				break
			}
			if !yield(r, nil) {
				return
			}
		}
		if err != nil {
			yield(checkpointdb.BlobReference{}, err)
		}
	}
}

// Fork implements checkpointdb.Forker.
func (s *Store) Fork(ctx context.Context, w checkpointdb.Writer, req checkpointdb.ForkRequest) (c checkpointdb.Checkpoint, err error) {
	err = s.do(ctx, "fork", func() error {
		if err := cmp.Or(
			req.SourceThreadID.Validate(), req.SourceCheckpointID.Validate(),
			req.DestinationThreadID.Validate(), req.DestinationCheckpointID.Validate(),
			w.ThreadID.Validate(),
		); err != nil {
			return err
		}
		if err := checkpointdb.ValidateTime("createdAt", req.CreatedAt); err != nil {
			return err
		}
		if req.SourceThreadID == req.DestinationThreadID {
			return fail(checkpointdb.ErrForkSourceThreadMismatch, "source and destination are both thread %q", req.SourceThreadID)
		}
		source := s.checkpoints[req.SourceCheckpointID]
		if source == nil {
			return fail(checkpointdb.ErrForkSourceNotFound, "no checkpoint %q", req.SourceCheckpointID)
		}
		if source.ThreadID != req.SourceThreadID {
			return fail(checkpointdb.ErrForkSourceThreadMismatch, "checkpoint %q is of thread %q, not %q", source.ID, source.ThreadID, req.SourceThreadID)
		}
		t, err := s.current(w, req.DestinationThreadID)
		if err != nil {
			return err
		}
		if !t.isEmpty() {
			return fail(checkpointdb.ErrForkDestinationNotEmpty, "thread %q has checkpoints or a transcript", req.DestinationThreadID)
		}
		if used := s.checkpoints[req.DestinationCheckpointID]; used != nil {
			return fail(checkpointdb.ErrForkDestinationNotEmpty, "checkpoint %q exists in thread %q", used.ID, used.ThreadID)
		}
		root := source.Clone()
		root.ID, root.ThreadID, root.CreatedAt = req.DestinationCheckpointID, req.DestinationThreadID, req.CreatedAt
		root.ParentCheckpointID, root.Label, root.SourceRunID = "", "", ""
		root.Reason = checkpointdb.ReasonForkRoot
		s.add(t, root)
		t.save(root.Conversation)
		c = t.head.Clone()
		return nil
	})
	return c, err
}

// DeleteCheckpoints implements checkpointdb.Pruner.
func (s *Store) DeleteCheckpoints(ctx context.Context, w checkpointdb.Writer, keep int) (gone []checkpointdb.CheckpointID, err error) {
	err = s.do(ctx, "delete checkpoints", func() error {
		if err := w.ThreadID.Validate(); err != nil {
			return err
		}
		if keep < 1 {
			return fail(checkpointdb.ErrInvalidArgument, "keep is %d, and the head always stays", keep)
		}
		t, err := s.current(w, w.ThreadID)
		if err != nil {
			return err
		}
		gone = s.prune(t, checkpointdb.PrunePolicy{KeepLast: keep}, time.Time{})
		return nil
	})
	return gone, err
}

// Prune implements checkpointdb.PolicyPruner.
func (s *Store) Prune(ctx context.Context, w checkpointdb.Writer, policy checkpointdb.PrunePolicy) (gone []checkpointdb.CheckpointID, err error) {
	err = s.do(ctx, "prune", func() error {
		if err := w.ThreadID.Validate(); err != nil {
			return err
		}
		if err := policy.Validate(); err != nil {
			return err
		}
		t, err := s.current(w, w.ThreadID)
		if err != nil {
			return err
		}
		gone = s.prune(t, policy, s.clock())
		return nil
	})
	return gone, err
}

// prune deletes what the policy does not keep. In a thread without a head the
// newest survivor has age 0, and nothing stays unless a rule keeps it.
func (s *Store) prune(t *thread, policy checkpointdb.PrunePolicy, now time.Time) (gone []checkpointdb.CheckpointID) {
	var kept []*checkpointdb.Checkpoint
	for i, c := range t.chain {
		age := len(t.chain) - 1 - i
		if c == t.head || policy.Keeps(age, c.CreatedAt, c.Reason, now) {
			kept = append(kept, c)
		} else {
			gone = append(gone, c.ID)
		}
	}
	if !policy.DryRun {
		t.chain = kept
		for _, id := range gone {
			delete(s.checkpoints, id)
		}
	}
	return gone
}

// add makes a copy of c the head of its thread.
func (s *Store) add(t *thread, c checkpointdb.Checkpoint) {
	c = c.Clone()
	c.CreatedAt = c.CreatedAt.UTC()
	for i := range c.Artifacts {
		c.Artifacts[i].CreatedAt = c.Artifacts[i].CreatedAt.UTC()
	}
	t.chain, t.head = append(t.chain, &c), &c
	s.checkpoints[c.ID] = &c
}

func (t *thread) headID() checkpointdb.CheckpointID {
	if t == nil || t.head == nil {
		return ""
	}
	return t.head.ID
}

// isEmpty tells whether the thread has no state that a fork would meet.
func (t *thread) isEmpty() bool { return len(t.chain) == 0 && t.transcript == nil }

// save keeps a copy of messages as the transcript.
func (t *thread) save(messages []json.RawMessage) {
	messages = cloneMessages(messages)
	t.transcript = &messages
}

func cloneMessages(messages []json.RawMessage) []json.RawMessage {
	return checkpointdb.Checkpoint{Conversation: messages}.Clone().Conversation
}

// validateOptional takes "", which stands for none.
func validateOptional(id checkpointdb.CheckpointID) error {
	if id == "" {
		return nil
	}
	return id.Validate()
}
