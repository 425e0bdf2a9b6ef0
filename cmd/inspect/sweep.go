package main

import (
	"context"
	"fmt"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) sweepCommand() *cobra.Command {
	var bucket, olderThan string
	var opts checkpointdb.SweepOptions
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete blobs that no checkpoint uses",
		Long: `Sweep deletes the blobs of the bucket that no checkpoint uses, nothing protects and
that are old enough, and says how many. It looks below sandbox-files/sha256/ and
sandbox-artifacts/sha256/ only. The bucket, or the prefix that --blobs names in it,
must belong to this store alone.

A quick sweep goes by what the store knows to have lost its last checkpoint, not
by the bucket's listing: it is done at once, and does not find what was uploaded
and never used.

JSON:

    {"dryRun", "scanned", "kept", "tooYoung", "deleted", "deletedBytes", "gone",
     "failed", "foreign", "foreignKeys": [], "failures": [{"key", "error"}]}

where foreign objects have names that no checkpoint can use, and gone are those
that somebody else had deleted. Of keys and failures there are 1000 at most.`,
		Example: `  inspect sweep --dry-run --db agents.db --blobs ./blobs
  inspect sweep --quick --older-than 1h --db agents.db --blobs ./blobs`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	blobsFlag(cmd, &bucket)
	flags := cmd.Flags()
	flags.StringVar(&olderThan, "older-than", "24h", "delete only what is older than `AGE`, such as 36h or 30d")
	flags.BoolVar(&opts.Quick, "quick", false, "go by the store's own list of garbage")
	flags.BoolVar(&opts.DeleteForeign, "delete-foreign", false, "delete also what has no name of a blob")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "only count what would be deleted")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) (err error) {
		if opts.OlderThan, err = parseAge(olderThan); err != nil {
			return usageError("--older-than " + err.Error())
		}
		return a.sweep(ctx, bucket, opts)
	})
	return cmd
}

type sweepJSON struct {
	DryRun       bool               `json:"dryRun"`
	Scanned      int64              `json:"scanned"`
	Kept         int64              `json:"kept"`
	TooYoung     int64              `json:"tooYoung"`
	Deleted      int64              `json:"deleted"`
	DeletedBytes int64              `json:"deletedBytes"`
	Gone         int64              `json:"gone"`
	Failed       int64              `json:"failed"`
	Foreign      int64              `json:"foreign"`
	ForeignKeys  []string           `json:"foreignKeys"`
	Failures     []sweepFailureJSON `json:"failures"`
}

type sweepFailureJSON struct {
	Key   string `json:"key"`
	Error string `json:"error"`
}

// sweep prints the report also when the sweep could not do all.
func (a *app) sweep(ctx context.Context, bucket string, opts checkpointdb.SweepOptions) error {
	sweep, done, err := a.sweeper(ctx, bucket, opts.DryRun)
	if err != nil {
		return err
	}
	defer done()
	opts.Clock = now
	bar := a.counter(ctx, "sweeping", 0)
	opts.Progress = func(r checkpointdb.SweepReport) { bar.set(r.Scanned, 0) }
	report, err := sweep(ctx, &opts)
	bar.done()
	if err != nil && report.Scanned == 0 {
		return err
	}
	if printErr := a.printSweep(report, opts.Quick); printErr != nil {
		return printErr
	}
	return err
}

type sweepFunc func(ctx context.Context, opts *checkpointdb.SweepOptions) (checkpointdb.SweepReport, error)

// sweeper needs no owner for a dry run: it changes nothing.
func (a *app) sweeper(ctx context.Context, bucket string, dryRun bool) (sweepFunc, func(), error) {
	if !dryRun {
		owner, done, err := a.openOwner(ctx, ownerOptions{bucket: bucket, wants: true})
		if err != nil {
			return nil, nil, err
		}
		return owner.Sweep, done, nil
	}
	store, closeStore, err := a.openStore(ctx)
	if err != nil {
		return nil, nil, err
	}
	b, err := a.openBucket(ctx, bucket)
	if err != nil {
		closeStore()
		return nil, nil, err
	}
	return openedHere{store, b}.Sweep, func() { b.Close(); closeStore() }, nil
}

func (a *app) printSweep(r checkpointdb.SweepReport, quick bool) error {
	if a.json {
		out := sweepJSON{
			r.DryRun, r.Scanned, r.Kept, r.TooYoung, r.Deleted, r.DeletedBytes, r.Gone, r.Failed, r.Foreign,
			append([]string{}, r.ForeignKeys...), []sweepFailureJSON{},
		}
		for _, f := range r.Failures {
			out.Failures = append(out.Failures, sweepFailureJSON{f.Key, f.Err.Error()})
		}
		return a.printJSON(out)
	}
	what, deleted := "objects", "Deleted"
	if quick {
		what = "blobs that lost their last use"
	}
	if r.DryRun {
		deleted = "Would delete"
	}
	sum := fmt.Sprintf("%d, %s", r.Deleted, a.size(r.DeletedBytes))
	if quick {
		sum = fmt.Sprint(r.Deleted) // whose sizes it did not ask for
	}
	a.field("Scanned", fmt.Sprintf("%d %s", r.Scanned, what))
	a.field("Kept", r.Kept)
	a.field("Too young", r.TooYoung)
	a.field(deleted, sum)
	a.field("Gone already", r.Gone)
	a.field("Failed", r.Failed)
	a.field("Foreign", r.Foreign)
	for _, key := range r.ForeignKeys {
		a.note("foreign: %s", safe(key))
	}
	for _, f := range r.Failures {
		a.note("not deleted: %s: %v", safe(f.Key), f.Err)
	}
	return nil
}
