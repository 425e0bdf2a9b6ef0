package checkpointdb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"gocloud.dev/blob"
)

const (
	defaultOlderThan        = 24 * time.Hour
	defaultSweepConcurrency = 16
)

// SweepOptions configure [Sweep]. The zero value, like a nil pointer, gives the
// safest sweep there is.
type SweepOptions struct {
	// OlderThan is the age from which on an unused object is deleted. It
	// protects what was uploaded for a checkpoint that is still to be appended,
	// so it must be longer than the longest capture. Zero: 24 h. For no limit
	// say 1 ns.
	OlderThan time.Duration
	// Quick looks only at the blobs of which the store knows that they lost
	// their last checkpoint or pin, instead of listing the bucket. Its cost
	// follows the garbage and not the bucket; it does not find what was uploaded
	// without [Store.Protect] and never used, nor foreign objects, and it does
	// not know sizes. It takes a [*Store], and measures OlderThan from when the
	// blob became garbage.
	Quick bool
	// DryRun reports what a sweep would delete and changes nothing.
	DryRun bool
	// DeleteForeign also deletes objects whose names no checkpoint can use, by
	// the same age. On a local directory these can be temporary files of uploads:
	// of killed ones, where the next upload did not remove them (package buckets
	// does, on systems with flock); with an OlderThan shorter than an upload takes,
	// those of running uploads too, which then fail.
	DeleteForeign bool
	// Concurrency is how many deletions run at a time. Zero: 16.
	Concurrency int
	// Progress, if set, is called every now and then with what the report holds
	// so far, and with the final one. It runs on the goroutine that called
	// Sweep, which waits for it, and may call the store.
	Progress func(SweepReport)
	// Clock is what the age of objects is measured against, read once when the
	// sweep starts. An object whose modification time lies after it is never
	// old. Nil: time.Now.
	Clock func() time.Time
}

// withDefaults returns a filled-in copy, or an error that names every
// contradiction.
func (o *SweepOptions) withDefaults() (SweepOptions, error) {
	var opts SweepOptions
	if o != nil {
		opts = *o
	}
	var faults []error
	if opts.OlderThan < 0 {
		faults = append(faults, fmt.Errorf("option OlderThan %s is negative; for no age limit say 1ns", opts.OlderThan))
	}
	if opts.Concurrency < 0 {
		faults = append(faults, fmt.Errorf("option Concurrency %d is negative", opts.Concurrency))
	}
	if len(faults) > 0 {
		return SweepOptions{}, &Error{Code: ErrInvalidOptions, Op: "sweep", Err: errors.Join(faults...)}
	}
	if opts.OlderThan == 0 {
		opts.OlderThan = defaultOlderThan
	}
	if opts.Concurrency == 0 {
		opts.Concurrency = defaultSweepConcurrency
	}
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	return opts, nil
}

// SweepReport says what a sweep found and did. Each object that it came to is
// counted as Scanned and once more as what became of it: Kept, TooYoung,
// Deleted, Gone or Failed, and a foreign one that it was not asked to delete as
// Foreign alone. A dry run counts as Deleted what a sweep would delete.
type SweepReport struct {
	DryRun       bool
	Scanned      int64 // objects below the two prefixes; garbage rows in a quick sweep
	Kept         int64 // in use by a checkpoint, protected, or in the hands of another sweep
	TooYoung     int64 // unused, but not older than OlderThan
	Deleted      int64 // deleted by this sweep
	DeletedBytes int64 // their sizes, as they were listed; a quick sweep lists none
	Gone         int64 // to be deleted, but somebody else had done so
	Failed       int64 // to be deleted, but the bucket gave an error; maybe deleted, maybe not
	Foreign      int64 // objects whose names no checkpoint can use, whatever became of them

	ForeignKeys []string       // the first 1000 of them, as listed
	Failures    []SweepFailure // the first 1000 of those that Failed counts
}

// maxSweepDetails bounds each list of a report, and so its memory.
const maxSweepDetails = 1000

// SweepFailure is an object that could not be deleted. Err is the bucket's.
type SweepFailure struct {
	Key string
	Err error
}

// Sweep deletes the objects of the bucket that no checkpoint of the store uses
// and that are older than opts.OlderThan. It looks below [FileKeyPrefix] and
// [ArtifactKeyPrefix] only and touches nothing else. store must hold all the
// checkpoints whose blobs are in the bucket.
//
// It reads the bucket's sorted listing beside the store's sorted references, in
// memory that does not grow with either, save for a local directory that was not
// opened by package buckets, which is listed in one piece. A bucket that is busy
// is waited for. No transaction is open while it talks to the bucket, so a slow
// bucket holds nobody up. An object that cannot be deleted does not stop it; a
// listing that fails, or that is not in order, does, before anything more is
// deleted.
//
// The report counts all that is known to have happened, whatever the error.
// Errors: [ErrInvalidOptions]; [ErrSweepIncomplete], which wraps the first
// failure or the error of ctx; and those of the store that have a class. When ctx ends, Sweep returns soon, even when the bucket
// does not answer: a deletion that it leaves behind in that case goes on until
// the bucket answers, and is not counted.
//
// With a [*Store] every object is checked again, in a transaction, just before
// it is deleted, and from then until it is gone an Append of a checkpoint that
// would use it fails with [ErrBlobBeingDeleted]. That leaves one gap: a capture
// finds an unused object in the bucket and takes it for uploaded, and a sweep
// deletes it before the Append. Age does not close it, for the object may be old;
// [Store.Protect] before looking does. Without it, let no capture be under way
// during a sweep. Other stores are read a second time shortly before objects are
// deleted, but can't hold an Append back: let nothing be captured or appended
// during a sweep of theirs.
//
// Any number of sweeps may run at the same time. A dry run is content with a
// read-only store.
func Sweep(ctx context.Context, store CheckpointStore, bucket *blob.Bucket, opts *SweepOptions) (SweepReport, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return SweepReport{}, err
	}
	s := newSweep(store, bucket, o)
	if o.Quick {
		err = s.runQuick(ctx)
	} else {
		err = s.run(ctx)
	}
	s.progress()
	return s.report, err
}

// How many objects are claimed and deleted at a time. A claim of the first kind
// is a transaction and should be short; one of the second kind reads all
// references of a store and should be rare.
const (
	claimBatch   = 1000
	recheckBatch = 65536
)

// progressEvery is how many objects are scanned between two calls of Progress.
const progressEvery = 10_000

// claimer is the capability of a store to stand between a sweep and its own
// writers.
type claimer interface {
	// previewUnused returns what claimUnused would, and claims nothing.
	previewUnused(ctx context.Context, keys []BlobKey) ([]BlobKey, error)
	// claimUnused returns those of keys, in their order, that no checkpoint uses,
	// nothing protects and no other sweep has claimed. Until they are settled no
	// checkpoint can begin to use them. On an error none is claimed.
	claimUnused(ctx context.Context, keys []BlobKey) ([]BlobKey, error)
	// settleDeleted ends a claim: gone are deleted, kept are not, or not for
	// sure.
	settleDeleted(ctx context.Context, gone, kept []BlobKey) error
}

// garbageKeeper is the capability of a store that a quick sweep needs.
type garbageKeeper interface {
	claimer
	listGarbage(ctx context.Context, after BlobKey, limit int) ([]garbageRow, error)
	retirePins(ctx context.Context) error
}

// rechecker serves stores that are no claimers: it reads their references again.
type rechecker struct{ store CheckpointStore }

// claimUnused takes the keys in ascending order.
func (r rechecker) claimUnused(ctx context.Context, keys []BlobKey) (unused []BlobKey, err error) {
	refs := readReferencesOf(ctx, r.store)
	defer refs.stop()
	for _, key := range keys {
		used, err := refs.use(key)
		if err != nil {
			return nil, err
		}
		if !used {
			unused = append(unused, key)
		}
	}
	return unused, nil
}

func (r rechecker) previewUnused(ctx context.Context, keys []BlobKey) ([]BlobKey, error) {
	return r.claimUnused(ctx, keys)
}

func (rechecker) settleDeleted(context.Context, []BlobKey, []BlobKey) error { return nil }

// referenceReader looks keys up in the references of a store, in one pass.
type referenceReader struct {
	next func() (BlobReference, error, bool)
	stop func()
	key  BlobKey // the reference that was read last
	end  bool    // whether there are no more
}

func readReferencesOf(ctx context.Context, store CheckpointStore) *referenceReader {
	r := &referenceReader{}
	r.next, r.stop = iter.Pull2(store.BlobReferences(ctx))
	return r
}

// use tells whether a checkpoint uses key. Keys must be asked for in ascending
// order.
func (r *referenceReader) use(key BlobKey) (bool, error) {
	for !r.end && r.key < key {
		ref, err, ok := r.next()
		switch {
		case !ok:
			r.end = true
		case err != nil:
			return false, err
		case ref.Key <= r.key:
			return false, fmt.Errorf("the store lists the reference to %q after that to %q", ref.Key, r.key)
		default:
			r.key = ref.Key
		}
	}
	return !r.end && r.key == key, nil
}

// sweep is one run. Only the goroutine that called Sweep touches its mutable
// fields.
type sweep struct {
	opts      SweepOptions
	cutoff    time.Time // what was modified before it is old
	store     CheckpointStore
	claims    claimer
	batchSize int
	objects   lister

	refs   *referenceReader
	last   BlobKey     // the well-formed key that was listed last
	batch  []candidate // to be deleted, in the order of the listing
	report SweepReport
}

func newSweep(store CheckpointStore, bucket *blob.Bucket, opts SweepOptions) *sweep {
	s := &sweep{
		opts:    opts,
		cutoff:  opts.Clock().Add(-opts.OlderThan),
		store:   store,
		objects: newLister(bucket),
		report:  SweepReport{DryRun: opts.DryRun},
	}
	if own, ok := store.(claimer); ok {
		s.claims, s.batchSize = own, claimBatch
	} else {
		s.claims, s.batchSize = rechecker{store}, recheckBatch
	}
	return s
}

func (s *sweep) run(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return incomplete(err, "")
	}
	s.refs = readReferencesOf(ctx, s.store)
	defer s.refs.stop()
	for object, err := range s.objects.all(ctx) {
		if err != nil {
			return incomplete(err, "")
		}
		if err := s.consider(ctx, object); err != nil {
			return err
		}
	}
	return s.finish(ctx)
}

// runQuick walks the store's garbage instead of the bucket.
func (s *sweep) runQuick(ctx context.Context) error {
	own, ok := s.store.(garbageKeeper)
	if !ok {
		return &Error{Code: ErrInvalidOptions, Op: "sweep", Message: fmt.Sprintf("a %T keeps no list of its garbage, which a Quick sweep goes by", s.store)}
	}
	if !s.opts.DryRun {
		if err := own.retirePins(ctx); err != nil {
			return storeError(err, "retiring pins")
		}
	}
	for after := BlobKey(""); ; {
		rows, err := own.listGarbage(ctx, after, claimBatch)
		if err != nil {
			return storeError(err, "listing garbage")
		}
		if len(rows) == 0 {
			return s.finish(ctx)
		}
		for _, row := range rows {
			after = row.key
			s.scanned()
			if err := s.judge(ctx, candidate{key: string(row.key)}, row.since); err != nil {
				return err
			}
		}
	}
}

// finish deletes what is left of the candidates and says whether all went well.
func (s *sweep) finish(ctx context.Context) error {
	if err := s.flush(ctx); err != nil {
		return err
	}
	if n := s.report.Failed; n > 0 {
		first := s.report.Failures[0]
		return incomplete(first.Err, "%d of %d objects could not be deleted, the first is %q",
			n, n+s.report.Deleted+s.report.Gone, first.Key)
	}
	return nil
}

// consider decides about an object of the listing.
func (s *sweep) consider(ctx context.Context, object *blob.ListObject) error {
	key := BlobKey(object.Key)
	_, wellFormed := key.Digest()
	if wellFormed {
		switch {
		case key == s.last:
			// A file that is replaced while its directory is read can show twice.
			return nil
		case key < s.last:
			// Going on would take keys for unused whose references were passed.
			return incomplete(nil, "the bucket lists %q after %q", key, s.last)
		}
		s.last = key
	}
	s.scanned()
	if wellFormed {
		used, err := s.refs.use(key)
		if err != nil {
			return storeError(err, "reading references")
		}
		if used {
			s.report.Kept++
			return nil
		}
	} else {
		s.report.Foreign++
		if len(s.report.ForeignKeys) < maxSweepDetails {
			s.report.ForeignKeys = append(s.report.ForeignKeys, object.Key)
		}
		if !s.opts.DeleteForeign {
			return nil
		}
	}
	return s.judge(ctx, candidate{object.Key, object.Size, !wellFormed}, object.ModTime)
}

func (s *sweep) scanned() {
	s.report.Scanned++
	if s.report.Scanned%progressEvery == 0 {
		s.progress()
	}
}

// judge makes a candidate of an object that nobody is known to use and that has
// been as it is since a moment.
func (s *sweep) judge(ctx context.Context, c candidate, since time.Time) error {
	if since.IsZero() || !since.Before(s.cutoff) {
		s.report.TooYoung++
		return nil
	}
	s.batch = append(s.batch, c)
	if len(s.batch) == s.batchSize {
		return s.flush(ctx)
	}
	return nil
}

func (s *sweep) progress() {
	if s.opts.Progress == nil {
		return
	}
	// What is appended later lies beyond the length of these.
	report := s.report
	report.ForeignKeys = slices.Clip(report.ForeignKeys)
	report.Failures = slices.Clip(report.Failures)
	s.opts.Progress(report)
}

// incomplete returns the error of a sweep that did not do all it should; cause
// may be nil.
func incomplete(cause error, format string, args ...any) error {
	return &Error{Code: ErrSweepIncomplete, Op: "sweep", Message: fmt.Sprintf(format, args...), Err: cause}
}

// storeError is incomplete, save that an error that has a class keeps it.
func storeError(err error, doing string) error {
	if CodeOf(err) != "" {
		return withOp("sweep", err)
	}
	return incomplete(err, "%s", doing)
}
