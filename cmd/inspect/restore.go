package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"checkpointdb"
	"checkpointdb/workspace"

	"github.com/spf13/cobra"
)

func (a *app) restoreCommand() *cobra.Command {
	var thread, bucket string
	var opts workspace.RestoreOptions
	cmd := &cobra.Command{
		Use:   "restore [CHECKPOINT] DIR",
		Short: "Restore the workspace of a checkpoint",
		Long: `Restore writes the files of a checkpoint into a directory, which is made when it is
missing. It only adds, and changes nothing when something is in the way; with
--rewind it makes the directory equal to the checkpoint, and replaces and removes
what is there. Every file is verified before it takes its place. When a restore
was interrupted, the same one again finishes it. The store is only read, and its
threads stay as they are.

JSON:

    {"checkpointId", "written": [], "replaced": [], "removed": [], "unchanged",
     "bytes", "dryRun"}

with paths in the lists.`,
		Example: `  inspect restore cp-17 ./rescued --db agents.db --blobs ./blobs
  inspect restore --thread main ./rescued --db agents.db --blobs ./blobs
  inspect restore cp-17 ./work --rewind --dry-run --db agents.db --blobs ./blobs`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeRestore(),
	}
	a.threadFlag(cmd, &thread)
	blobsFlag(cmd, &bucket)
	cmd.Flags().BoolVar(&opts.Rewind, "rewind", false, "replace and remove what is there")
	cmd.Flags().StringArrayVar(&opts.Paths, "path", nil, "restore only this `PATH` and what is beneath it; may be repeated")
	cmd.Flags().BoolVar(&opts.DryRun, "dry-run", false, "only print what would be changed")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		id, dir := "", args[len(args)-1]
		if len(args) == 2 {
			id = args[0]
		}
		if err := either(id, thread); err != nil {
			return err
		}
		return a.restore(ctx, id, thread, dir, bucket, opts)
	})
	return cmd
}

// completeRestore suggests checkpoints and then directories.
func (a *app) completeRestore() cobra.CompletionFunc {
	checkpoints := a.completeCheckpoint()
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 && !cmd.Flags().Changed("thread") {
			return checkpoints(cmd, args, begun)
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
}

type restoreJSON struct {
	ID        checkpointdb.CheckpointID `json:"checkpointId"`
	Written   []string                  `json:"written"`
	Replaced  []string                  `json:"replaced"`
	Removed   []string                  `json:"removed"`
	Unchanged int                       `json:"unchanged"`
	Bytes     int64                     `json:"bytes"`
	DryRun    bool                      `json:"dryRun"`
}

func (a *app) restore(ctx context.Context, id, thread, dir, bucket string, opts workspace.RestoreOptions) error {
	c, from, done, err := a.withBlobs(ctx, id, thread, bucket)
	if err != nil {
		return err
	}
	defer done()
	path, err := a.file()
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	opts.Own = []string{path, checkpointdb.LiveSocket(path)}
	bar := a.progress(ctx, "restoring", 0)
	opts.Progress = func(p workspace.RestoreProgress) { bar.set(p.Bytes, p.TotalBytes) }
	report, err := workspace.Restore(ctx, from, c, dir, &opts)
	bar.done()
	if errors.Is(err, workspace.ErrTargetNotEmpty) {
		return fmt.Errorf("%w; --rewind replaces and removes what is there", err)
	}
	if err != nil {
		return err
	}
	if a.json {
		list := func(paths []string) []string { return append([]string{}, paths...) }
		return a.printJSON(restoreJSON{c.ID, list(report.Written), list(report.Replaced), list(report.Removed), report.Unchanged, report.Bytes, opts.DryRun})
	}
	for _, change := range []struct {
		mark  string
		paths []string
	}{{"A", report.Written}, {"M", report.Replaced}, {"D", report.Removed}} {
		for _, p := range change.paths {
			fmt.Fprintf(a.stdout, "%s %s\n", change.mark, safe(p))
		}
	}
	verb := "restored"
	if opts.DryRun {
		verb = "would restore"
	}
	a.did(opts.DryRun, "%s %q: %d written, %d replaced, %d removed, %d unchanged, %s", verb, string(c.ID),
		len(report.Written), len(report.Replaced), len(report.Removed), report.Unchanged, a.size(report.Bytes))
	return nil
}
