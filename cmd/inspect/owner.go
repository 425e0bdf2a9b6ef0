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
}

// openOwner opens the store for a command that changes it. Where another program
// has it open and serves it, that program makes the change, with its own bucket.
// The caller calls done.
func (a *app) openOwner(ctx context.Context, o ownerOptions) (_ owner, done func(), err error) {
	path, err := a.file()
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(path); err != nil && !(o.create && errors.Is(err, os.ErrNotExist)) {
		return nil, nil, err // which Open would make
	}
	open := func(wait time.Duration) (*checkpointdb.Store, error) {
		return checkpointdb.Open(path, &checkpointdb.Options{
			LockTimeout: max(wait, time.Millisecond), Clock: now, Logger: slog.New(slog.NewTextHandler(a.stderr, nil)),
		})
	}
	store, err := open(0)
	if errors.Is(err, checkpointdb.ErrInUse) {
		var remote *checkpointdb.Remote
		if remote, err = checkpointdb.Attach(ctx, path); err == nil {
			a.note("%s is in use; the program that has it open makes the change", path)
			if o.wants && o.bucket != "" {
				a.note("--blobs does not count then, that program uses its own bucket")
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
	here := openedHere{store: store}
	done = func() { store.Close() }
	if o.wants {
		here.bucket, err = a.openBucket(ctx, o.bucket)
		if _, usage := errors.AsType[usageError](err); usage && o.optional && o.bucket == "" && os.Getenv("CHECKPOINTDB_BLOBS") == "" {
			return here, done, nil
		}
		if err != nil {
			done()
			return nil, nil, err
		}
		done = func() { here.bucket.Close(); store.Close() }
	}
	return here, done, nil
}

// did says on stderr what a changing command did, or would do.
func (a *app) did(dryRun bool, format string, args ...any) {
	if dryRun {
		format = "dry run, nothing was changed: " + format
	}
	a.note("%s", fmt.Sprintf(format, args...))
}
