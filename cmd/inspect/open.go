package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	_ "checkpointdb/buckets/cloud"

	"github.com/spf13/cobra"
	"gocloud.dev/blob"
)

// file returns the path of the store that is asked about.
func (a *app) file() (string, error) {
	if a.wait < 0 {
		return "", usageError("--wait is negative")
	}
	if a.db != "" {
		return a.db, nil
	}
	if path := os.Getenv("CHECKPOINTDB_FILE"); path != "" {
		return path, nil
	}
	return "", usageError("no store is given; use --db FILE")
}

// openStore opens the store for a command that looks: read-only, or as a copy
// when another program has the file open and serves one. The caller calls done.
func (a *app) openStore(ctx context.Context) (store *checkpointdb.Store, done func(), err error) {
	path, err := a.file()
	if err != nil {
		return nil, nil, err
	}
	open := func(wait time.Duration) (*checkpointdb.Store, error) { return openReadOnly(path, wait) }
	store, err = open(0)
	if errors.Is(err, checkpointdb.ErrInUse) {
		if store, done, err := a.openCopy(ctx, path); !errors.Is(err, checkpointdb.ErrNotLive) {
			return store, done, err
		}
		store, err = a.waitFor(ctx, open)
	}
	if err != nil {
		return nil, nil, err
	}
	return store, func() { store.Close() }, nil
}

// waitFor opens a store that nobody serves when it is free. Open itself cannot be
// interrupted.
func (a *app) waitFor(ctx context.Context, open func(wait time.Duration) (*checkpointdb.Store, error)) (*checkpointdb.Store, error) {
	var store *checkpointdb.Store
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		store, err = open(a.wait)
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-opened:
	}
	if errors.Is(err, checkpointdb.ErrInUse) {
		err = fmt.Errorf("%w; stop that program, or let it open the store with Options.Live, which inspect can ask", err)
	}
	return store, err
}

func openReadOnly(path string, wait time.Duration) (*checkpointdb.Store, error) {
	return checkpointdb.Open(path, &checkpointdb.Options{
		ReadOnly:    true,
		LockTimeout: max(wait, time.Millisecond), // zero would mean the default
		Clock:       now,
	})
}

// openCopy fetches a copy of the store from the program that has it open, and
// opens that. The error matches ErrNotLive when no program serves one.
func (a *app) openCopy(ctx context.Context, path string) (*checkpointdb.Store, func(), error) {
	remote, err := checkpointdb.Attach(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	defer remote.Close()
	tmp, err := os.CreateTemp("", "checkpointdb-inspect-*.tmp") // mode 0600
	if err != nil {
		return nil, nil, err
	}
	// It goes as soon as it is open, where the system allows that, so that not even
	// a killed process leaves it behind.
	remove := func() { os.Remove(tmp.Name()) }
	taken := now()
	bar := a.progress(ctx, "copying", 0)
	err = remote.Backup(ctx, io.MultiWriter(tmp, bar))
	bar.done()
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	var store *checkpointdb.Store
	if err == nil {
		store, err = openReadOnly(tmp.Name(), 0)
	}
	remove()
	if err != nil {
		return nil, nil, err
	}
	a.copied = true
	a.note("%s is in use; answering from a copy taken at %s", safe(path), a.time(taken))
	return store, func() { store.Close(); remove() }, nil
}

// blobsFlag gives a command the flag --blobs.
func blobsFlag(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "blobs", "", "the bucket with the bytes, a directory or `URL`; else CHECKPOINTDB_BLOBS")
}

// openBucket opens what --blobs says.
func (a *app) openBucket(ctx context.Context, from string) (*blob.Bucket, error) {
	if from == "" {
		from = os.Getenv("CHECKPOINTDB_BLOBS")
	}
	if from == "" {
		return nil, usageError("no bucket is given; use --blobs URL")
	}
	if dir := localDir(from); dir != "" {
		if _, err := os.Stat(dir); err != nil {
			return nil, err // which Open would make
		}
	}
	bucket, err := buckets.Open(ctx, from)
	if errors.Is(err, checkpointdb.ErrInvalidArgument) {
		return nil, usageError(err.Error())
	}
	return bucket, err
}

// localDir returns the directory that a bucket is, "" for one of another kind.
func localDir(bucket string) string {
	u, err := url.Parse(bucket)
	switch {
	case err != nil, len(u.Scheme) < 2: // one letter is a drive
		return bucket
	case u.Scheme != "file":
		return ""
	case u.Host == "." || os.PathSeparator != '/':
		return filepath.FromSlash(strings.TrimPrefix(u.Path, "/"))
	}
	return u.Path
}
