package checkpointdb

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Group commit. One bbolt commit costs one or two syncs of the disk however much
// it writes, so changes that arrive while one is on its way share the next. The
// first to arrive leads: it runs all that wait in one transaction, hands the lead
// to the first of those that came meanwhile, and nobody ever waits for a timer.

// change is one operation on its way into a transaction.
type change struct {
	// fn makes all its checks before its first write, so that one that fails
	// with an *Error leaves a shared transaction as it found it. It may run
	// again, in another transaction, and then sets its results anew.
	fn   func(tx *bolt.Tx, now time.Time) error
	err  error
	done chan struct{} // closed when err is final
	lead chan struct{} // receives the lead
}

type committer struct {
	mu      sync.Mutex // guards what follows
	waiting []*change
	busy    bool // whether somebody leads
}

// maxGroup bounds how much one transaction holds in memory.
const maxGroup = 256

// update runs fn in a write transaction, perhaps together with others, and
// returns when it is committed or has failed. now is the clock just before the
// transaction. A ctx that ends while fn still waits for its turn takes it back.
func (s *Store) update(ctx context.Context, op string, fn func(tx *bolt.Tx, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.opts.ReadOnly {
		return &Error{Code: ErrReadOnly, Op: op, Message: s.path + " is open read-only"}
	}
	c := &change{fn: fn, done: make(chan struct{}), lead: make(chan struct{}, 1)}
	q := &s.commit
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	if q.busy {
		q.mu.Unlock()
		select {
		case <-c.done:
			return withOp(op, s.inFile(c.err))
		case <-c.lead:
		case <-ctx.Done():
			if q.withdraw(c) {
				return ctx.Err()
			}
			select { // it is in a transaction, or leads
			case <-c.done:
				return withOp(op, s.inFile(c.err))
			case <-c.lead:
			}
		}
		q.mu.Lock()
	}
	q.busy = true
	n := min(len(q.waiting), maxGroup)
	group := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	q.mu.Unlock()

	s.runGroup(group)

	q.mu.Lock()
	if len(q.waiting) > 0 {
		q.waiting[0].lead <- struct{}{}
	} else {
		q.waiting, q.busy = nil, false
	}
	q.mu.Unlock()
	for _, each := range group {
		close(each.done)
	}
	return withOp(op, s.inFile(c.err))
}

// withdraw takes a waiting change back; false when it is too late.
func (q *committer) withdraw(c *change) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, each := range q.waiting {
		if each != c {
			continue
		}
		if len(c.lead) > 0 {
			return false // it was handed the lead and must take it
		}
		q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
		return true
	}
	return false
}

// runGroup sets the err of every change in the group.
func (s *Store) runGroup(group []*change) {
	s.mu.Lock()
	closed, failed := s.closed, s.failed
	s.mu.Unlock()
	if closed || failed != nil {
		for _, c := range group {
			if closed {
				c.err = s.closedError()
			} else {
				c.err = &Error{Code: ErrFailed, Message: s.path + " takes no more changes since a commit failed; close it and open it again", Err: failed}
			}
		}
		return
	}
	err := s.commitGroup(group)
	var broken *brokenChange
	if !errors.As(err, &broken) {
		return
	}
	// A change failed half way, which only a damaged row makes it do. Nothing of
	// the group was committed: run each alone, so that it fails alone.
	for i := range group {
		if err := s.commitGroup(group[i : i+1]); errors.As(err, &broken) {
			group[i].err = broken.err
		}
	}
}

// brokenChange is an error that a change may have met after its first write.
type brokenChange struct{ err error }

func (e *brokenChange) Error() string { return e.err.Error() }

// commitGroup runs the changes in one transaction. Unless it returns a
// brokenChange, it has set the err of each.
func (s *Store) commitGroup(group []*change) error {
	now := s.opts.Clock()
	s.marked = nil
	err := s.guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			for _, c := range group {
				c.err = c.fn(tx, now)
				if e, clean := c.err.(*Error); c.err != nil && (!clean || e.Code == ErrDamaged) {
					return &brokenChange{c.err}
				}
			}
			return nil
		})
	})
	if err == nil {
		return nil
	}
	// What the transaction changed in memory goes with it.
	s.heads.clear()
	for _, id := range s.marked {
		s.unmark(id)
	}
	var broken *brokenChange
	if errors.As(err, &broken) {
		return broken
	}
	sound := leavesFileSound(err)
	if !sound {
		s.fail(err)
	}
	for _, c := range group {
		switch {
		case c.err != nil:
		case sound:
			c.err = err
		default:
			c.err = &Error{Code: ErrFailed, Message: s.path + ": commit failed", Err: err}
		}
	}
	return nil
}

func (s *Store) fail(err error) {
	s.opts.Logger.Error("checkpointdb: commit failed, no more changes are taken", "path", s.path, "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
}

// leavesFileSound tells whether a failed commit is known to have changed
// nothing: when the disk was full or a limit was reached before anything was
// synced. After a failed sync the kernel may have dropped dirty pages and call
// them clean, so what later reads return says nothing about the disk (see
// "fsyncgate", and Rebello et al., USENIX ATC 2020).
func leavesFileSound(err error) bool {
	var write *fs.PathError
	if errors.As(err, &write) && write.Op == "write" {
		return errors.Is(err, syscall.ENOSPC) || isQuota(err)
	}
	// bbolt reports a failed Truncate as text alone.
	return err != nil && strings.HasPrefix(err.Error(), "file resize error")
}
