package checkpointdb

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gocloud.dev/blob"

	"checkpointdb/internal/retry"
)

// candidate is an object that should be deleted.
type candidate struct {
	key     string
	size    int64
	foreign bool
}

// flush deletes the candidates that are still unused.
func (s *sweep) flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	var keys []BlobKey
	for _, c := range s.batch {
		if !c.foreign {
			keys = append(keys, BlobKey(c.key))
		}
	}
	claimed := keys
	if len(keys) > 0 {
		claim := s.claims.claimUnused
		if s.opts.DryRun {
			claim = s.claims.previewUnused
		}
		var err error
		if claimed, err = claim(ctx, keys); err != nil {
			return storeError(err, "claiming unused blobs")
		}
		s.report.Kept += int64(len(keys) - len(claimed))
	}
	// Both are in the order of the listing.
	rest := claimed
	batch := slices.DeleteFunc(s.batch, func(c candidate) bool {
		if c.foreign {
			return false
		}
		if len(rest) > 0 && string(rest[0]) == c.key {
			rest = rest[1:]
			return false
		}
		return true
	})
	if s.opts.DryRun {
		for _, c := range batch {
			s.count(outcome{candidate: c})
		}
		s.batch = s.batch[:0]
		return nil
	}
	s.batch = nil // s.delete may leave goroutines behind that hold the array
	if err := s.delete(ctx, batch, claimed); err != nil {
		return err
	}
	s.progress()
	return nil
}

// outcome is what became of a deletion.
type outcome struct {
	candidate
	err error
}

// delete deletes the batch, counts what became of it, and returns when all is
// settled or a moment after ctx ended.
func (s *sweep) delete(ctx context.Context, batch []candidate, claimed []BlobKey) error {
	if len(batch) == 0 {
		return nil
	}
	d := &deletion{
		bucket:   s.objects.bucket,
		claims:   s.claims,
		batch:    batch,
		claimed:  claimed,
		outcomes: make(chan outcome, len(batch)), // so that nobody waits to be heard
		settled:  make(chan error, 1),
	}
	go d.run(ctx, min(s.opts.Concurrency, len(batch)))

	done := ctx.Done()
	var giveUp <-chan time.Time
	for {
		select {
		case o := <-d.outcomes:
			s.count(o)
			continue
		case <-done:
			done, giveUp = nil, time.After(patience)
			continue
		case <-giveUp:
		case err := <-d.settled:
			s.countAll(d.outcomes)
			if err != nil {
				return storeError(err, "settling deleted blobs")
			}
			if err := ctx.Err(); err != nil {
				return incomplete(err, "")
			}
			return nil
		}
		s.countAll(d.outcomes)
		ended := d.ended.Load() // before begun, of which it is never ahead
		return incomplete(ctx.Err(), "the bucket has not answered %d deletions, which go on", d.begun.Load()-ended)
	}
}

// countAll counts the outcomes that are there.
func (s *sweep) countAll(outcomes <-chan outcome) {
	for {
		select {
		case o := <-outcomes:
			s.count(o)
		default:
			return
		}
	}
}

func (s *sweep) count(o outcome) {
	switch {
	case o.err == nil:
		s.report.Deleted++
		s.report.DeletedBytes += o.size
	case isGone(o.err):
		s.report.Gone++
	default:
		s.report.Failed++
		if len(s.report.Failures) < maxSweepDetails {
			s.report.Failures = append(s.report.Failures, SweepFailure{o.key, o.err})
		}
	}
}

// deletion deletes the objects of one batch and settles the claim on them. It
// shares nothing with its sweep but what is safe to share, because it outlives
// the sweep when the bucket does not answer: the claim must hold until the last
// deletion has ended, or a checkpoint could begin to use an object that is about
// to go.
type deletion struct {
	bucket   *blob.Bucket
	claims   claimer
	batch    []candidate
	claimed  []BlobKey // those of the batch that are claimed
	outcomes chan outcome
	settled  chan error
	begun    atomic.Int64
	ended    atomic.Int64
}

func (d *deletion) run(ctx context.Context, workers int) {
	gone := make([]bool, len(d.batch))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(d.batch)) {
					return
				}
				d.begun.Add(1)
				c := d.batch[i]
				err := retry.Do(ctx, func(ctx context.Context) error { return d.bucket.Delete(ctx, c.key) })
				gone[i] = err == nil || isGone(err)
				d.outcomes <- outcome{c, err}
				d.ended.Add(1)
			}
		})
	}
	wg.Wait()
	d.settled <- d.settle(ctx, gone)
}

func (d *deletion) settle(ctx context.Context, gone []bool) error {
	if len(d.claimed) == 0 {
		return nil
	}
	var deleted, kept []BlobKey
	for i, c := range d.batch {
		switch {
		case c.foreign:
		case gone[i]:
			deleted = append(deleted, BlobKey(c.key))
		default:
			kept = append(kept, BlobKey(c.key))
		}
	}
	// A claim that is never settled would refuse these blobs to every writer, so
	// this is done whatever became of ctx.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return d.claims.settleDeleted(ctx, deleted, kept)
}

// settleTimeout only bounds how long a broken store can keep a goroutine.
const settleTimeout = time.Minute
