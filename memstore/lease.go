package memstore

import (
	"context"
	"crypto/rand"

	"checkpointdb"
)

// AcquireWriter implements checkpointdb.CheckpointStore.
func (s *Store) AcquireWriter(ctx context.Context, id checkpointdb.ThreadID) (l checkpointdb.Lease, err error) {
	err = s.do(ctx, "acquire", func() error {
		if err := id.Validate(); err != nil {
			return err
		}
		t := s.createThread(id)
		if t.lease != nil && s.clock().Before(t.lease.expiresAt) {
			return failWith(checkpointdb.ErrWriterConflict, &checkpointdb.WriterConflictError{
				ThreadID: id, Fence: t.fence, ExpiresAt: t.lease.expiresAt,
			})
		}
		t.fence++
		t.lease = &lease{token: rand.Text()}
		l = s.extend(t, checkpointdb.Writer{ThreadID: id, OwnerToken: t.lease.token, Fence: t.fence})
		return nil
	})
	return l, err
}

// Renew implements checkpointdb.CheckpointStore.
func (s *Store) Renew(ctx context.Context, w checkpointdb.Writer) (l checkpointdb.Lease, err error) {
	err = s.do(ctx, "renew", func() error {
		if err := w.ThreadID.Validate(); err != nil {
			return err
		}
		t, err := s.current(w, w.ThreadID)
		if err != nil {
			return err
		}
		l = s.extend(t, w)
		return nil
	})
	return l, err
}

// Release implements checkpointdb.CheckpointStore.
func (s *Store) Release(ctx context.Context, w checkpointdb.Writer) error {
	return s.do(ctx, "release", func() error {
		if err := w.ThreadID.Validate(); err != nil {
			return err
		}
		if t := s.threads[w.ThreadID]; t.heldBy(w) {
			t.lease = nil
		}
		return nil
	})
}

// extend lets the thread's lease last from now on.
func (s *Store) extend(t *thread, w checkpointdb.Writer) checkpointdb.Lease {
	// In UTC a time carries no monotonic reading, so that the lease lives by
	// the wall clock, as in a store that writes it to disk.
	t.lease.expiresAt = s.clock().UTC().Add(s.leaseDuration)
	return checkpointdb.Lease{Writer: w, ExpiresAt: t.lease.expiresAt, RenewAfter: s.renewAfter}
}

// current returns the thread if w may write it at this moment.
func (s *Store) current(w checkpointdb.Writer, id checkpointdb.ThreadID) (*thread, error) {
	if w.ThreadID != id {
		// Without detail: the fences of two threads do not compare.
		return nil, fail(checkpointdb.ErrWriterLost, "the writer is of thread %q, not of %q", w.ThreadID, id)
	}
	t := s.threads[id]
	if t.heldBy(w) && s.clock().Before(t.lease.expiresAt) {
		return t, nil
	}
	lost := &checkpointdb.WriterLostError{ThreadID: id, Held: w.Fence}
	if t != nil {
		lost.Last = t.fence
	}
	return nil, failWith(checkpointdb.ErrWriterLost, lost)
}

// heldBy tells whether the last lease is w's, expired or not.
func (t *thread) heldBy(w checkpointdb.Writer) bool {
	return t != nil && t.lease != nil && t.lease.token == w.OwnerToken && t.fence == w.Fence
}
