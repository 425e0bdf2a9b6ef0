package checkpointdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"gocloud.dev/blob"
)

const (
	defaultQuickEvery = 10 * time.Minute
	defaultFullEvery  = 24 * time.Hour
)

// SweeperOptions configure a [Sweeper]. The zero value, like a nil pointer, is a
// good default.
type SweeperOptions struct {
	// QuickEvery is how long after the end of a sweep the next quick one starts,
	// give or take a tenth. Zero: 10 min.
	QuickEvery time.Duration
	// FullEvery is how long after a full sweep the next sweep is a full one
	// again; the first sweep is quick. Zero: 24 h.
	FullEvery time.Duration
	// Sweep configures the sweeps themselves; Quick and DryRun must not be set.
	Sweep SweepOptions
	// Logger receives a line for each sweep that deleted something or failed.
	// Nil: nothing is logged.
	Logger *slog.Logger
}

// SweepRun is a sweep that a [Sweeper] has ended.
type SweepRun struct {
	Began, Ended time.Time
	Quick        bool
	Report       SweepReport
	Err          error
}

// Sweeper sweeps a store's bucket in the background, quick mostly and in full now
// and then. It never overlaps with itself. Captures may go on meanwhile when they
// protect their blobs, see [Store.Protect].
type Sweeper struct {
	store  *Store
	bucket *blob.Bucket
	opts   SweeperOptions

	mu      sync.Mutex // guards what follows
	running bool
	last    SweepRun
}

// NewSweeper returns a sweeper that does nothing until Run. It takes neither the
// store nor the bucket over: the caller closes both, after Run has returned. The
// error matches [ErrInvalidOptions] and names every contradiction.
func NewSweeper(store *Store, bucket *blob.Bucket, options *SweeperOptions) (*Sweeper, error) {
	var o SweeperOptions
	if options != nil {
		o = *options
	}
	var faults []error
	if o.QuickEvery < 0 {
		faults = append(faults, fmt.Errorf("QuickEvery %s is negative", o.QuickEvery))
	}
	if o.FullEvery < 0 {
		faults = append(faults, fmt.Errorf("FullEvery %s is negative", o.FullEvery))
	}
	if o.Sweep.Quick || o.Sweep.DryRun {
		faults = append(faults, errors.New("Sweep.Quick and Sweep.DryRun are the sweeper's own to set"))
	}
	if _, err := o.Sweep.withDefaults(); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, &Error{Code: ErrInvalidOptions, Op: "new sweeper", Err: errors.Join(faults...)}
	}
	if o.QuickEvery == 0 {
		o.QuickEvery = defaultQuickEvery
	}
	if o.FullEvery == 0 {
		o.FullEvery = defaultFullEvery
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Sweeper{store: store, bucket: bucket, opts: o}, nil
}

// Run sweeps until ctx ends, and returns soon after with its cause. A sweep that
// fails is logged and does not end it. A second Run beside a first fails at once
// with [ErrInvalidArgument].
func (s *Sweeper) Run(ctx context.Context) error {
	s.mu.Lock()
	running := s.running
	s.running = true
	s.mu.Unlock()
	if running {
		return &Error{Code: ErrInvalidArgument, Op: "sweeper", Message: "it is running already"}
	}
	defer func() {
		s.mu.Lock()
		s.running = false
		s.mu.Unlock()
	}()
	full := time.Now()
	for {
		// Many processes that were started at once should not sweep at once.
		pause := s.opts.QuickEvery + time.Duration((rand.Float64()-0.5)/5*float64(s.opts.QuickEvery))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		opts := s.opts.Sweep
		opts.Quick = time.Since(full) < s.opts.FullEvery
		opts.DeleteForeign = opts.DeleteForeign && !opts.Quick
		run := SweepRun{Began: time.Now(), Quick: opts.Quick}
		run.Report, run.Err = Sweep(ctx, s.store, s.bucket, &opts)
		run.Ended = time.Now()
		if !opts.Quick {
			full = run.Ended
		}
		s.log(ctx, run)
		s.mu.Lock()
		s.last = run
		s.mu.Unlock()
	}
}

func (s *Sweeper) log(ctx context.Context, run SweepRun) {
	level := slog.LevelInfo
	switch {
	case run.Err != nil && ctx.Err() == nil:
		level = slog.LevelWarn
	case run.Report.Deleted == 0:
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.Bool("quick", run.Quick), slog.Duration("took", run.Ended.Sub(run.Began)),
		slog.Int64("scanned", run.Report.Scanned), slog.Int64("deleted", run.Report.Deleted),
		slog.Int64("bytes", run.Report.DeletedBytes), slog.Int64("failed", run.Report.Failed),
	}
	if run.Err != nil {
		attrs = append(attrs, slog.Any("error", run.Err))
	}
	s.opts.Logger.LogAttrs(ctx, level, "checkpointdb: swept", attrs...)
}

// Last returns the sweep that ended last; ok is false when none has.
func (s *Sweeper) Last() (run SweepRun, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, !s.last.Ended.IsZero()
}
