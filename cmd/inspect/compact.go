package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) compactCommand() *cobra.Command {
	var inPlace, dryRun bool
	cmd := &cobra.Command{
		Use:   "compact [FILE]",
		Short: "Write the store without its free pages",
		Long: `Compact writes a copy of the store without its free pages to a new file, also while
another program has the store open and serves it. With --in-place the copy takes
the place of the file, in one step and once it is on the disk. Then nobody may
have the file open; what a program wrote meanwhile would be lost.

It says how much room it needs, and looks first whether there is as much.

JSON:

    {"file", "before", "after", "dryRun"}

in bytes; with --dry-run, after is an estimate.`,
		Example: `  inspect compact --dry-run --in-place --db agents.db
  inspect compact --in-place --db agents.db
  inspect compact small.db --db agents.db`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstOnly(1, completeFile),
	}
	cmd.Flags().BoolVar(&inPlace, "in-place", false, "replace the file itself")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print how much would be gained")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		if inPlace == (len(args) > 0) {
			return usageError("give a new FILE, or --in-place")
		}
		to, err := a.file()
		if err != nil {
			return err
		}
		if !inPlace {
			to = args[0]
		}
		var report checkpointdb.CompactReport
		switch {
		case dryRun:
			report, err = a.planCompact(ctx, to, inPlace)
		case inPlace:
			report, err = a.compactInPlace(ctx, to)
		default:
			report, err = a.compactTo(ctx, to)
		}
		if err != nil {
			return err
		}
		return a.printCompact(to, report, dryRun)
	})
	return cmd
}

func (a *app) planCompact(ctx context.Context, to string, inPlace bool) (checkpointdb.CompactReport, error) {
	if _, err := os.Lstat(to); err == nil && !inPlace {
		return checkpointdb.CompactReport{}, &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
	}
	store, done, err := a.openStore(ctx)
	if err != nil {
		return checkpointdb.CompactReport{}, err
	}
	defer done()
	stats, err := store.Stats(ctx)
	return checkpointdb.CompactReport{Before: stats.FileBytes, After: int64(stats.Pages-stats.FreePages) * int64(stats.PageBytes)}, err
}

func (a *app) compactInPlace(ctx context.Context, path string) (checkpointdb.CompactReport, error) {
	bar := a.progress(ctx, "compacting", 0)
	defer bar.done()
	var report checkpointdb.CompactReport
	err := a.whenFree(ctx, "stop that program, or compact to a new FILE meanwhile", func() (err error) {
		report, err = checkpointdb.CompactFile(ctx, path, &checkpointdb.CompactOptions{Progress: bar.set, LockTimeout: time.Millisecond})
		return err
	})
	return report, err
}

func (a *app) compactTo(ctx context.Context, to string) (checkpointdb.CompactReport, error) {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return checkpointdb.CompactReport{}, err
	}
	defer done()
	bar := a.progress(ctx, "compacting", 0)
	defer bar.done()
	return store.Compact(ctx, to, &checkpointdb.CompactOptions{Progress: bar.set})
}

func (a *app) printCompact(to string, r checkpointdb.CompactReport, dryRun bool) error {
	if a.json {
		return a.printJSON(struct {
			File string `json:"file"`
			checkpointdb.CompactReport
			DryRun bool `json:"dryRun"`
		}{to, r, dryRun})
	}
	verb := "has"
	if dryRun {
		verb = "would have about"
	}
	_, err := fmt.Fprintf(a.stdout, "%s %s %s, of %s before\n", safe(to), verb, a.size(r.After), a.size(r.Before))
	return err
}
