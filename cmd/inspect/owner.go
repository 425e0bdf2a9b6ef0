package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"checkpointdb"

	"gocloud.dev/blob"
)

// owner is a store that may be changed: one that inspect has opened itself, or,
// while another program has the file open, that program.
type owner interface {
	Prune(ctx context.Context, thread checkpointdb.ThreadID, policy checkpointdb.PrunePolicy) ([]checkpointdb.CheckpointID, error)
	DeleteThread(ctx context.Context, thread checkpointdb.ThreadID) (checkpoints int, err error)
	BreakLease(ctx context.Context, thread checkpointdb.ThreadID) (checkpointdb.LeaseInfo, error)
	Sweep(ctx context.Context, opts *checkpointdb.SweepOptions) (checkpointdb.SweepReport, error)
	Import(ctx context.Context, r io.Reader, opts *checkpointdb.ImportOptions) (checkpointdb.TransferReport, error)
}

var _ owner = (*checkpointdb.Remote)(nil)

// openedHere is a store in this process, as an owner.
type openedHere struct {
	store  *checkpointdb.Store
	bucket *blob.Bucket // nil where the command needs none
}

func (o openedHere) Prune(ctx context.Context, thread checkpointdb.ThreadID, policy checkpointdb.PrunePolicy) ([]checkpointdb.CheckpointID, error) {
	return checkpointdb.PruneThread(ctx, o.store, thread, policy)
}

func (o openedHere) DeleteThread(ctx context.Context, thread checkpointdb.ThreadID) (int, error) {
	return checkpointdb.DropThread(ctx, o.store, thread)
}

func (o openedHere) BreakLease(ctx context.Context, thread checkpointdb.ThreadID) (checkpointdb.LeaseInfo, error) {
	return o.store.BreakLease(ctx, thread)
}

func (o openedHere) Sweep(ctx context.Context, opts *checkpointdb.SweepOptions) (checkpointdb.SweepReport, error) {
	return checkpointdb.Sweep(ctx, o.store, o.bucket, opts)
}

func (o openedHere) Import(ctx context.Context, r io.Reader, opts *checkpointdb.ImportOptions) (checkpointdb.TransferReport, error) {
	with := *opts
	with.Bucket = o.bucket
	return o.store.Import(ctx, r, &with)
}

// ownerOptions say what a changing command needs.
type ownerOptions struct {
	bucket   string // --blobs
	wants    bool   // whether the command works with a bucket at all
	optional bool   // whether it can do without one
	create   bool   // whether to make a store where there is none
	dryRun   bool   // whether nothing will be changed, so that the file is opened read-only
}

// openOwner opens the store for a command that changes it. Where another program
// has it open and serves it, that program makes the change, with its own bucket.
// The caller calls done.
func (a *app) openOwner(ctx context.Context, o ownerOptions) (_ owner, done func(), err error) {
	path, err := a.file()
	if err != nil {
		return nil, nil, err
	}
	_, err = os.Stat(path)
	isNew := o.create && errors.Is(err, os.ErrNotExist)
	if err != nil && !isNew {
		return nil, nil, err // which Open would make
	}
	open := func(wait time.Duration) (*checkpointdb.Store, error) {
		if o.dryRun {
			return openReadOnly(path, wait)
		}
		return checkpointdb.Open(path, &checkpointdb.Options{
			LockTimeout: max(wait, time.Millisecond), Clock: now, Logger: slog.New(slog.NewTextHandler(a.stderr, nil)),
		})
	}
	if isNew { // and would be made for nothing if there were no such bucket
		bucket, err := a.bucketFor(ctx, o)
		if err != nil {
			return nil, nil, err
		}
		closeBucket(bucket)
	}
	store, err := open(0)
	if errors.Is(err, checkpointdb.ErrInUse) {
		var remote *checkpointdb.Remote
		if remote, err = checkpointdb.Attach(ctx, path); err == nil {
			does := "makes the change"
			if o.dryRun {
				does = "answers"
			}
			a.note("%s is in use; the program that has it open %s", safe(path), does)
			if o.wants && o.bucket != "" {
				a.note("--blobs does not count then: that program uses its own bucket")
			}
			return remote, func() { remote.Close() }, nil
		}
		if !errors.Is(err, checkpointdb.ErrNotLive) {
			return nil, nil, err
		}
		store, err = a.waitFor(ctx, open)
	}
	if err != nil {
		return nil, nil, err
	}
	bucket, err := a.bucketFor(ctx, o)
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	return openedHere{store, bucket}, func() { closeBucket(bucket); store.Close() }, nil
}

// bucketFor opens the bucket of a command, nil when it needs none.
func (a *app) bucketFor(ctx context.Context, o ownerOptions) (*blob.Bucket, error) {
	if !o.wants || o.optional && o.bucket == "" && os.Getenv("CHECKPOINTDB_BLOBS") == "" {
		return nil, nil
	}
	return a.openBucket(ctx, o.bucket)
}

func closeBucket(b *blob.Bucket) {
	if b != nil {
		b.Close()
	}
}

// whenFree calls f until the file is not in use, for as long as --wait says. Then
// the error also says what to do.
func (a *app) whenFree(ctx context.Context, advice string, f func() error) error {
	for end := time.Now().Add(a.wait); ; {
		err := f()
		if !errors.Is(err, checkpointdb.ErrInUse) {
			return err
		}
		left := time.Until(end)
		if left <= 0 {
			if a.wait > 0 { // the error only knows of the last try
				advice = fmt.Sprintf("tried for %s; %s", a.wait, advice)
			}
			return fmt.Errorf("%w; %s", err, advice)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, 50*time.Millisecond)):
		}
	}
}

// adviseLeased adds to the error of a thread that is leased what to do.
func adviseLeased(err error) error {
	if errors.Is(err, checkpointdb.ErrWriterConflict) {
		return fmt.Errorf("%w; wait for it, or end the lease with inspect leases break", err)
	}
	return err
}

// warnLeased says that a dry run promises what somebody's lease would prevent.
func (a *app) warnLeased(lease *checkpointdb.LeaseInfo) {
	if lease != nil && lease.Current {
		a.note("somebody holds the lease of thread %s until %s; without --dry-run it is refused until then", safe(string(lease.ThreadID)), a.time(lease.ExpiresAt))
	}
}

// did says on stderr what a changing command did, or would do.
func (a *app) did(dryRun bool, format string, args ...any) {
	if dryRun {
		format = "dry run, nothing was changed: " + format
	}
	_ = a.stdout.Flush() // what was done comes first; the error stays, for the last flush
	a.note("%s", fmt.Sprintf(format, args...))
}
