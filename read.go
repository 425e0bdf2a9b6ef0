package checkpointdb

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// Get implements [CheckpointStore].
func (s *Store) Get(ctx context.Context, id CheckpointID) (Checkpoint, error) {
	if err := id.Validate(); err != nil {
		return Checkpoint{}, withOp("get", err)
	}
	var v *version
	err := s.read(ctx, "get", func(tx *bolt.Tx) error {
		p, ok, err := getPlace(tx, id)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Code: ErrCheckpointNotFound, Message: fmt.Sprintf("no checkpoint %q", id)}
		}
		v, err = loadVersion(tx, p, nil)
		return err
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return v.checkpoint()
}

// Head implements [CheckpointStore].
func (s *Store) Head(ctx context.Context, thread ThreadID) (id CheckpointID, err error) {
	if err := thread.Validate(); err != nil {
		return "", withOp("head", err)
	}
	err = s.read(ctx, "head", func(tx *bolt.Tx) error {
		n, err := getThread(tx, thread)
		if n == 0 || err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		id, err = headID(tx, n, h)
		return err
	})
	return id, err
}

// List implements [CheckpointStore]. It reads the ids and times in one short
// transaction and then each checkpoint in its own.
func (s *Store) List(ctx context.Context, thread ThreadID) iter.Seq2[Checkpoint, error] {
	return func(yield func(Checkpoint, error) bool) {
		if err := thread.Validate(); err != nil {
			yield(Checkpoint{}, withOp("list", err))
			return
		}
		rows, err := s.rowsOf(ctx, "list", thread)
		if err != nil {
			yield(Checkpoint{}, err)
			return
		}
		slices.SortFunc(rows, func(a, b row) int {
			if c := a.createdAt.Compare(b.createdAt); c != 0 {
				return c
			}
			return strings.Compare(string(a.id), string(b.id))
		})
		for v, err := range s.versions(ctx, "list", rows) {
			var c Checkpoint
			if err == nil {
				c, err = v.checkpoint()
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// versions reads the checkpoints of a thread at rows, each in a transaction of
// its own, and passes over those that were deleted since. It is quickest in the
// order of the chain.
func (s *Store) versions(ctx context.Context, op string, rows []row) iter.Seq2[*version, error] {
	return func(yield func(*version, error) bool) {
		var v *version
		for _, r := range rows {
			before := v
			err := s.read(ctx, op, func(tx *bolt.Tx) error {
				v = nil
				p, ok, err := getPlace(tx, r.id)
				if err != nil || !ok || p != r.place {
					return err // deleted since
				}
				if before != nil {
					// A place names the same checkpoint for ever only while the
					// thread lives.
					if at, ok, err := getPlace(tx, before.id); err != nil || !ok || at != before.place {
						before = nil
					}
				}
				v, err = loadVersion(tx, p, before)
				return err
			})
			if err == nil && v == nil {
				continue
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// rowsOf returns the rows of a thread in the order of the chain, none for an
// unknown thread.
func (s *Store) rowsOf(ctx context.Context, op string, thread ThreadID) (rows []row, err error) {
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		n, err := getThread(tx, thread)
		if n == 0 || err != nil {
			return err
		}
		rows, err = listRows(tx, n)
		return err
	})
	return rows, err
}
