package checkpointdb

import (
	"context"

	bolt "go.etcd.io/bbolt"
)

// PruneThread prunes a thread for somebody who is not its writer, such as an
// operator: it takes the lease, prunes, and gives the lease back. It returns the
// ids of what was deleted, oldest on the chain first. A dry run takes no lease,
// and is content with a read-only store. What it deleted is durably deleted when
// it returns. Safe from many goroutines.
//
// Errors: those of [PrunePolicy.Validate]; [ErrThreadNotFound], where
// AcquireWriter would make the thread; [ErrWriterConflict] at once while
// somebody holds the lease; [ErrWriterLost] when the lease was broken meanwhile.
func PruneThread(ctx context.Context, s *Store, thread ThreadID, policy PrunePolicy) ([]CheckpointID, error) {
	const op = "prune thread"
	if err := policy.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	if err := s.mustHaveThread(ctx, op, thread); err != nil {
		return nil, err
	}
	if policy.DryRun {
		return s.PlanPrune(ctx, thread, policy)
	}
	var deleted []CheckpointID
	err := WithLease(ctx, s, thread, func(ctx context.Context, w Writer) (err error) {
		deleted, err = s.Prune(ctx, w, policy)
		return err
	})
	if err != nil {
		return nil, err
	}
	return deleted, nil
}

// DropThread deletes a thread for somebody who is not its writer: it takes the
// lease and does what [Store.DeleteThread] does, durably. It returns how many
// checkpoints the thread had; 0 also for a thread that was deleted before. Safe
// from many goroutines.
//
// Errors: [ErrThreadNotFound], where AcquireWriter would make the thread;
// [ErrWriterConflict] at once while somebody holds the lease; [ErrWriterLost]
// when the lease was broken meanwhile.
func DropThread(ctx context.Context, s *Store, thread ThreadID) (checkpoints int, err error) {
	const op = "drop thread"
	if err := s.mustHaveThread(ctx, op, thread); err != nil {
		return 0, err
	}
	err = WithLease(ctx, s, thread, func(ctx context.Context, w Writer) error {
		// Only the holder of the lease can change the number.
		if err := s.read(ctx, op, func(tx *bolt.Tx) error {
			n, err := knownThread(tx, thread)
			if err != nil {
				return err
			}
			rows, err := listRows(tx, n)
			checkpoints = len(rows)
			return err
		}); err != nil {
			return err
		}
		return s.DeleteThread(ctx, w)
	})
	if err != nil {
		return 0, err
	}
	return checkpoints, nil
}

// mustHaveThread returns nil, or why there is no such thread. A thread that was
// deleted is still known, by its fence.
func (s *Store) mustHaveThread(ctx context.Context, op string, thread ThreadID) error {
	if err := thread.Validate(); err != nil {
		return withOp(op, err)
	}
	return s.read(ctx, op, func(tx *bolt.Tx) error {
		_, err := knownThread(tx, thread)
		return err
	})
}
