package checkpointdb

import (
	"context"
	"time"

	bolt "go.etcd.io/bbolt"
)

// PrunePolicy says which checkpoints of a thread to keep. A checkpoint is kept
// when any rule keeps it; the head is always kept. A policy without a rule is
// refused rather than read as "keep nothing".
type PrunePolicy struct {
	// KeepLast keeps this many of the newest on the chain, the head included.
	// The chain decides what is newest, not CreatedAt. Zero: no such rule.
	KeepLast int
	// KeepYounger keeps what was created less than this before now; a time in
	// the future is young. Zero: no such rule.
	KeepYounger time.Duration
	// KeepNamed keeps checkpoints of reason named.
	KeepNamed bool
	// DryRun returns what would be deleted and changes nothing.
	DryRun bool
}

// PolicyPruner is the optional capability to shorten a chain by policy.
type PolicyPruner interface {
	// Prune deletes the checkpoints of w's thread that the policy does not keep
	// and returns their ids, oldest on the chain first. Survivors keep their
	// parent id, so a gap shows; a head whose parent is gone leaves no head when
	// it is deleted. Checks: id valid, policy valid ([ErrInvalidArgument]), w
	// current.
	Prune(ctx context.Context, w Writer, policy PrunePolicy) ([]CheckpointID, error)
}

// Validate returns nil, or an error that matches [ErrInvalidArgument].
func (p PrunePolicy) Validate() error {
	switch {
	case p.KeepLast < 0:
		return &Error{Code: ErrInvalidArgument, Message: "prune: KeepLast is negative"}
	case p.KeepYounger < 0:
		return &Error{Code: ErrInvalidArgument, Message: "prune: KeepYounger is negative"}
	case p.KeepLast == 0 && p.KeepYounger == 0 && !p.KeepNamed:
		return &Error{Code: ErrInvalidArgument, Message: "prune: the policy has no rule, which would keep only the head; say so with KeepLast 1"}
	}
	return nil
}

// Keeps tells whether the policy keeps a checkpoint. age counts on the chain: 0
// is the newest checkpoint of the thread, 1 the one before it, and so on. That
// the head stays is for the store to see to.
func (p PrunePolicy) Keeps(age int, createdAt time.Time, reason Reason, now time.Time) bool {
	return age < p.KeepLast ||
		p.KeepYounger > 0 && createdAt.After(now.Add(-p.KeepYounger)) ||
		p.KeepNamed && reason == ReasonNamed
}

// validateKeep is the check of DeleteCheckpoints.
func validateKeep(keep int) error {
	if keep < 1 {
		return &Error{Code: ErrInvalidArgument, Message: "DeleteCheckpoints: keep is below 1; the head always stays"}
	}
	return nil
}

// DeleteCheckpoints implements [Pruner].
func (s *Store) DeleteCheckpoints(ctx context.Context, w Writer, keep int) ([]CheckpointID, error) {
	const op = "delete checkpoints"
	if err := w.ThreadID.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	if err := validateKeep(keep); err != nil {
		return nil, withOp(op, err)
	}
	return s.prune(ctx, op, w, PrunePolicy{KeepLast: keep})
}

// Prune implements [PolicyPruner].
func (s *Store) Prune(ctx context.Context, w Writer, policy PrunePolicy) ([]CheckpointID, error) {
	const op = "prune"
	if err := w.ThreadID.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	if err := policy.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	return s.prune(ctx, op, w, policy)
}

func (s *Store) prune(ctx context.Context, op string, w Writer, policy PrunePolicy) (deleted []CheckpointID, err error) {
	err = s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		deleted = nil
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		kept, gone, err := planPrune(tx, n, h, policy, now)
		if err != nil {
			return err
		}
		deleted = idsOf(gone)
		if policy.DryRun || len(gone) == 0 {
			return nil
		}
		return s.deleteRows(tx, n, h, kept, gone, now)
	})
	return deleted, err
}

// planPrune parts the checkpoints of a thread in two, oldest on the chain first.
func planPrune(tx *bolt.Tx, n threadNumber, h headRow, policy PrunePolicy, now time.Time) (kept, gone []row, err error) {
	rows, err := listRows(tx, n)
	for i, r := range rows {
		if r.pos == h.head || policy.Keeps(len(rows)-1-i, r.createdAt, r.reason, now) {
			kept = append(kept, r)
		} else {
			gone = append(gone, r)
		}
	}
	return kept, gone, err
}

func idsOf(rows []row) (ids []CheckpointID) {
	for _, r := range rows {
		ids = append(ids, r.id)
	}
	return ids
}

// PlanPrune returns what Prune would delete, without a lease and without changing
// anything; a read-only store can tell it too. Checks: id valid, policy valid
// ([ErrInvalidArgument]), thread exists ([ErrThreadNotFound]).
func (s *Store) PlanPrune(ctx context.Context, thread ThreadID, policy PrunePolicy) (ids []CheckpointID, err error) {
	const op = "plan prune"
	if err := thread.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	if err := policy.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	now := s.opts.Clock()
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		n, err := knownThread(tx, thread)
		if err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		_, gone, err := planPrune(tx, n, h, policy, now)
		ids = idsOf(gone)
		return err
	})
	return ids, err
}
