// Package memstore is the contract of checkpointdb in memory: every rule, no
// persistence. It serves tests of programs that embed a store, and it is the
// model that the bbolt store is compared with. So it is written to be read:
// nothing is cached, nothing is counted, and what can be worked out from the
// checkpoints is worked out when it is asked for.
package memstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"checkpointdb"
)

// Options configures a [Store]. The zero value is a good choice.
type Options struct {
	// Clock tells what now is, for leases and for PrunePolicy.KeepYounger. Nil
	// is time.Now.
	Clock func() time.Time
	// LeaseDuration is how long a lease lasts. Zero is 120 s.
	LeaseDuration time.Duration
	// RenewAfter is when a holder should renew, counted from when it acquired
	// or renewed; it lies before the expiry. Zero is 3/8 of the duration, which
	// makes 45 s of 120 s.
	RenewAfter time.Duration
}

// Store keeps checkpoints in memory. All methods are safe for concurrent use.
// A Store needs no closing.
type Store struct {
	clock         func() time.Time
	leaseDuration time.Duration
	renewAfter    time.Duration

	mu          sync.Mutex // guards everything below
	threads     map[checkpointdb.ThreadID]*thread
	checkpoints map[checkpointdb.CheckpointID]*checkpointdb.Checkpoint // those of all threads; never changed in place
	instances   map[string]checkpointdb.Instance
}

// thread is the state of one thread. The first lease or transcript makes it,
// and it stays for good, because its fence must never go down.
type thread struct {
	chain      []*checkpointdb.Checkpoint // in the order of their appends
	head       *checkpointdb.Checkpoint   // the last of chain, or nil
	fence      checkpointdb.Fence         // of the last lease given
	lease      *lease                     // the last lease, nil once it was released
	transcript *[]json.RawMessage         // nil when none was saved, which is not the same as empty
}

type lease struct {
	token     string
	expiresAt time.Time
}

var (
	_ checkpointdb.CheckpointStore = (*Store)(nil)
	_ checkpointdb.Forker          = (*Store)(nil)
	_ checkpointdb.Pruner          = (*Store)(nil)
	_ checkpointdb.PolicyPruner    = (*Store)(nil)
	_ checkpointdb.InstanceStore   = (*Store)(nil)
	_ checkpointdb.Transcripts     = (*Store)(nil)
	_ checkpointdb.ThreadDeleter   = (*Store)(nil)
)

// New returns an empty store. Nil options are the zero Options, and o is not
// kept. The error matches checkpointdb.ErrInvalidOptions and names every
// contradiction.
func New(o *Options) (*Store, error) {
	if o == nil {
		o = &Options{}
	}
	duration := cmp.Or(o.LeaseDuration, 120*time.Second)
	var wrong []string
	if o.LeaseDuration < 0 {
		wrong = append(wrong, fmt.Sprintf("LeaseDuration %s is negative", o.LeaseDuration))
	}
	if o.RenewAfter < 0 {
		wrong = append(wrong, fmt.Sprintf("RenewAfter %s is negative", o.RenewAfter))
	}
	if o.RenewAfter > 0 && duration > 0 && o.RenewAfter >= duration {
		wrong = append(wrong, fmt.Sprintf("RenewAfter %s is not before the end of a lease of %s", o.RenewAfter, duration))
	}
	if wrong != nil {
		return nil, &checkpointdb.Error{Code: checkpointdb.ErrInvalidOptions, Op: "new", Message: strings.Join(wrong, "; ")}
	}
	s := &Store{
		clock:         o.Clock,
		leaseDuration: duration,
		renewAfter:    cmp.Or(o.RenewAfter, duration/8*3), // dividing first cannot overflow
		threads:       map[checkpointdb.ThreadID]*thread{},
		checkpoints:   map[checkpointdb.CheckpointID]*checkpointdb.Checkpoint{},
		instances:     map[string]checkpointdb.Instance{},
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	return s, nil
}

// do runs one operation: not at all when ctx is done, else alone, and puts its
// name into the error.
func (s *Store) do(ctx context.Context, op string, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := f()
	if e, ok := err.(*checkpointdb.Error); ok {
		e.Op = op
	}
	return err
}

// createThread returns the state of a thread, new if need be.
func (s *Store) createThread(id checkpointdb.ThreadID) *thread {
	if s.threads[id] == nil {
		s.threads[id] = &thread{}
	}
	return s.threads[id]
}

// fail returns an error of the class with a message.
func fail(code checkpointdb.Code, format string, args ...any) error {
	return &checkpointdb.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// failWith returns an error of the class with a typed detail that speaks for
// itself.
func failWith(code checkpointdb.Code, detail error) error {
	return &checkpointdb.Error{Code: code, Err: detail}
}
