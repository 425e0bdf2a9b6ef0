package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the store to a new file",
		Long: `Backup writes a consistent copy of the store to a new file, which opens as a store
by itself, also while another program has the store open and serves it. That
program's changes do not wait for it. FILE appears when it is whole and on the
disk; it must not exist, and only its owner can read it. Blobs are not part of
it: copy the bucket after the backup, or keep sweeps from deleting what the
backup needs.

JSON:

    {"file", "bytes"}`,
		Example:           `  inspect backup /backups/agents-$(date +%F).db --db agents.db`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(1, completeFile),
		RunE:              a.do(func(ctx context.Context, args []string) error { return a.backup(ctx, args[0]) }),
	}
}

func (a *app) backup(ctx context.Context, to string) error {
	path, err := a.file()
	if err != nil {
		return err
	}
	bar := a.progress(ctx, "backup", 0)
	defer bar.done()
	opts := &checkpointdb.BackupOptions{Progress: bar.set}
	open := func(wait time.Duration) (*checkpointdb.Store, error) { return openReadOnly(path, wait) }
	store, err := open(0)
	if errors.Is(err, checkpointdb.ErrInUse) {
		// Straight from the program that has it open, without a copy in between.
		remote, err := checkpointdb.Attach(ctx, path)
		if err == nil {
			defer remote.Close()
			return a.backedUp(bar, to, remote.BackupFile(ctx, to, opts))
		}
		if !errors.Is(err, checkpointdb.ErrNotLive) {
			return err
		}
		store, err = a.waitFor(ctx, open)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	defer store.Close()
	return a.backedUp(bar, to, store.BackupFile(ctx, to, opts))
}

func (a *app) backedUp(bar *progress, to string, err error) error {
	bar.done()
	if err != nil {
		return err
	}
	info, err := os.Stat(to)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			File  string `json:"file"`
			Bytes int64  `json:"bytes"`
		}{to, info.Size()})
	}
	_, err = fmt.Fprintf(a.stdout, "backed up %s to %s\n", a.size(info.Size()), safe(to))
	return err
}
