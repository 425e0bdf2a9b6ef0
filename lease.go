package checkpointdb

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// leaseRow is a row of writers. See bucketlayout.go for its encoding.
type leaseRow struct {
	fence   Fence
	expires time.Time
	token   string
}

func (l leaseRow) encode() []byte {
	b := binary.AppendUvarint([]byte{rowVersion}, uint64(l.fence))
	return append(appendTime(b, l.expires), l.token...)
}

func parseLeaseRow(v []byte) (leaseRow, error) {
	r := reader{rest: v}
	version := r.byte()
	l := leaseRow{fence: Fence(r.uvarint()), expires: r.time(), token: string(r.rest)}
	if r.bad || version != rowVersion || l.token == "" {
		return leaseRow{}, errRow
	}
	return l, nil
}

// info is the lease as others may see it.
func (l leaseRow) info(thread ThreadID, now time.Time) LeaseInfo {
	return LeaseInfo{ThreadID: thread, Fence: l.fence, ExpiresAt: l.expires, Current: now.Before(l.expires)}
}

// getLease returns the lease row of a thread, expired or not; ok is false when
// there is none.
func getLease(tx *bolt.Tx, n threadNumber) (l leaseRow, ok bool, err error) {
	v := tx.Bucket(bucketWriters).Get(n.key())
	if v == nil {
		return leaseRow{}, false, nil
	}
	l, err = parseLeaseRow(v)
	if err != nil {
		return leaseRow{}, false, damagedAt(bucketWriters, n.key(), err)
	}
	return l, true, nil
}

func getFence(tx *bolt.Tx, n threadNumber) (Fence, error) {
	v := tx.Bucket(bucketFences).Get(n.key())
	if v == nil {
		return 0, nil
	}
	fence, err := parseU64(v)
	if err != nil {
		return 0, damagedAt(bucketFences, n.key(), err)
	}
	return Fence(fence), nil
}

// matches tells whether w holds this lease, expired or not. The token is a
// secret, so comparing takes the same time wherever it differs.
func (l leaseRow) matches(w Writer) bool {
	return l.fence == w.Fence && subtle.ConstantTimeCompare([]byte(l.token), []byte(w.OwnerToken)) == 1
}

// currentWriter checks that w is a writer of the thread and current, and returns
// the thread's number, 0 when there is no such thread, also beside an error.
func currentWriter(tx *bolt.Tx, w Writer, thread ThreadID, now time.Time) (threadNumber, error) {
	if w.ThreadID != thread {
		return 0, &Error{Code: ErrWriterLost, Message: fmt.Sprintf("the writer is of thread %q, not of %q", w.ThreadID, thread)}
	}
	n, err := getThread(tx, thread)
	if err != nil {
		return 0, err
	}
	lost := &WriterLostError{ThreadID: thread, Held: w.Fence}
	if n == 0 {
		return 0, &Error{Code: ErrWriterLost, Err: lost}
	}
	l, ok, err := getLease(tx, n)
	if err != nil {
		return n, err
	}
	if ok && l.matches(w) && now.Before(l.expires) {
		return n, nil
	}
	if lost.Last, err = getFence(tx, n); err != nil {
		return n, err
	}
	return n, &Error{Code: ErrWriterLost, Err: lost}
}

// AcquireWriter implements [CheckpointStore].
func (s *Store) AcquireWriter(ctx context.Context, thread ThreadID) (lease Lease, err error) {
	const op = "acquire writer"
	if err := thread.Validate(); err != nil {
		return Lease{}, withOp(op, err)
	}
	err = s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := getThread(tx, thread)
		if err != nil {
			return err
		}
		l, held, err := getLease(tx, n)
		if err != nil {
			return err
		}
		if held && now.Before(l.expires) {
			return &Error{Code: ErrWriterConflict, Err: &WriterConflictError{ThreadID: thread, Fence: l.fence, ExpiresAt: l.expires}}
		}
		fence, err := getFence(tx, n)
		if err != nil {
			return err
		}
		if n, err = createThread(tx, thread); err != nil {
			return err
		}
		l = leaseRow{fence: fence + 1, expires: s.expiry(now), token: rand.Text()}
		if err := tx.Bucket(bucketFences).Put(n.key(), u64(uint64(l.fence))); err != nil {
			return err
		}
		lease = s.lease(thread, l)
		return tx.Bucket(bucketWriters).Put(n.key(), l.encode())
	})
	return lease, err
}

// Renew implements [CheckpointStore].
func (s *Store) Renew(ctx context.Context, w Writer) (lease Lease, err error) {
	const op = "renew"
	if err := w.ThreadID.Validate(); err != nil {
		return Lease{}, withOp(op, err)
	}
	err = s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			return err
		}
		l := leaseRow{fence: w.Fence, expires: s.expiry(now), token: w.OwnerToken}
		lease = s.lease(w.ThreadID, l)
		return tx.Bucket(bucketWriters).Put(n.key(), l.encode())
	})
	if err != nil {
		return Lease{}, err
	}
	return lease, nil
}

// Release implements [CheckpointStore].
func (s *Store) Release(ctx context.Context, w Writer) error {
	const op = "release"
	if err := w.ThreadID.Validate(); err != nil {
		return withOp(op, err)
	}
	return s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := getThread(tx, w.ThreadID)
		if n == 0 || err != nil {
			return err
		}
		l, ok, err := getLease(tx, n)
		if !ok || err != nil || !l.matches(w) {
			return err
		}
		return tx.Bucket(bucketWriters).Delete(n.key())
	})
}

// BreakLease ends the lease of a thread, whoever holds it, and returns what it
// was. The holder is fenced off: its next write or renewal fails with
// [ErrWriterLost], its pins protect nothing any more, and the thread can be leased
// anew at once. It is for an operator who knows that the holder is dead, or wants
// it to stop. Durable when it returns. Checks: id valid, thread exists
// ([ErrThreadNotFound]), it has a lease ([ErrNoLease]); an expired one that
// nobody took will do.
func (s *Store) BreakLease(ctx context.Context, thread ThreadID) (broken LeaseInfo, err error) {
	const op = "break lease"
	if err := thread.Validate(); err != nil {
		return LeaseInfo{}, withOp(op, err)
	}
	err = s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := knownThread(tx, thread)
		if err != nil {
			return err
		}
		l, ok, err := getLease(tx, n)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Code: ErrNoLease, Message: fmt.Sprintf("thread %q has no lease", thread)}
		}
		broken = l.info(thread, now)
		return tx.Bucket(bucketWriters).Delete(n.key())
	})
	if err != nil {
		return LeaseInfo{}, err
	}
	return broken, nil
}

func (s *Store) expiry(now time.Time) time.Time {
	return now.Add(s.opts.LeaseDuration).Round(0).UTC()
}

func (s *Store) lease(thread ThreadID, l leaseRow) Lease {
	return Lease{
		Writer:    Writer{ThreadID: thread, OwnerToken: l.token, Fence: l.fence},
		ExpiresAt: l.expires, RenewAfter: s.opts.RenewAfter,
	}
}

// releaseTimeout bounds how long WithLease waits to give a lease back. What is
// not released expires by itself.
const releaseTimeout = 10 * time.Second

// WithLease acquires the lease of a thread from any store, runs fn, and releases
// the lease when fn returns or panics. Meanwhile it renews in the background,
// after every Lease.RenewAfter. When the lease is lost, or no renewal has
// succeeded for twice that time, the context of fn is cancelled with a cause that
// matches [ErrWriterLost]. Whatever fn writes after the lease was lost is refused
// by its fence. fn runs on the caller's goroutine.
//
// The error of acquiring is returned as it is. Otherwise the error is fn's; where
// that only says that the context was cancelled, and the lease was lost, it is
// the cause. No goroutine is left when WithLease returns.
func WithLease(ctx context.Context, store CheckpointStore, thread ThreadID, fn func(context.Context, Writer) error) error {
	acquired := time.Now() // before the call: the store's term may have begun at any time in it
	lease, err := store.AcquireWriter(ctx, thread)
	if err != nil {
		return err
	}
	leased, cancel := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := keepLease(renewing, store, lease, acquired); err != nil {
			cancel(err)
		}
	}()
	defer func() {
		// Renewal ends before Release begins, so that no late renewal can follow.
		stop()
		<-stopped
		cancel(nil)
		release, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer done()
		_ = store.Release(release, lease.Writer) // a lease that stays expires
	}()
	err = fn(leased, lease.Writer)
	if cause := context.Cause(leased); errors.Is(err, context.Canceled) && errors.Is(cause, ErrWriterLost) {
		return cause
	}
	return err
}

// keepLease renews until ctx ends (nil), or the lease is lost. renewed is when
// the call that gave the lease began: a holder gives up by its own monotonic
// clock, well before others may take the lease by the store's.
func keepLease(ctx context.Context, store CheckpointStore, lease Lease, renewed time.Time) error {
	wait := lease.RenewAfter
	for {
		timer := time.NewTimer(time.Until(renewed.Add(wait)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		began := time.Now()
		next, err := store.Renew(ctx, lease.Writer)
		switch {
		case err == nil:
			lease, renewed, wait = next, began, next.RenewAfter
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrWriterLost):
			return err
		case time.Since(renewed) > 2*lease.RenewAfter:
			return &Error{Code: ErrWriterLost, Op: "renew", Message: fmt.Sprintf("the lease of thread %q could not be renewed in time", lease.ThreadID), Err: err}
		default:
			wait += max(lease.RenewAfter/10, time.Millisecond) // a passing failure: try again soon
		}
	}
}
