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
must belong to this store alone; one that has none of its blobs is refused.

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

// sweep prints the report also when the sweep could not do all. A program that has
// the store open makes the dry run as well: in a copy, what it uploads and commits
// meanwhile would look unused.
func (a *app) sweep(ctx context.Context, bucket string, opts checkpointdb.SweepOptions) error {
	owner, done, err := a.openOwner(ctx, ownerOptions{bucket: bucket, wants: true, dryRun: opts.DryRun})
	if err != nil {
		return err
	}
	defer done()
	opts.Clock = now
	bar := a.counter(ctx, "sweeping", 0)
	defer bar.done()
	total := int64(0) // nobody knows
	if here, ok := owner.(openedHere); ok {
		if err := rightBucket(ctx, here); err != nil {
			return err
		}
		if bar.isShown() {
			if total, err = expectedObjects(ctx, here.store, opts.Quick); err != nil {
				return err
			}
		}
	}
	opts.Progress = func(r checkpointdb.SweepReport) {
		if total > 0 {
			total = max(total, r.Scanned) // there are others too
		}
		bar.set(r.Scanned, total)
	}
	report, err := owner.Sweep(ctx, &opts)
	bar.done()
	if err != nil && report.Scanned == 0 {
		return err
	}
	if printErr := a.printSweep(report, opts.Quick); printErr != nil {
		return printErr
	}
	return err
}

// expectedObjects returns how many objects of the bucket the store knows of.
func expectedObjects(ctx context.Context, store *checkpointdb.Store, quick bool) (int64, error) {
	stats, err := store.Stats(ctx)
	if err != nil || quick {
		return int64(stats.Garbage), err
	}
	usage, err := store.Usage(ctx, nil)
	return int64(stats.Garbage) + usage.Blobs, err
}

// rightBucket returns an error when not one of the first blobs that the store uses
// is in the bucket: in the bucket of another store, a sweep would delete all.
func rightBucket(ctx context.Context, o openedHere) error {
	const most = 16
	looked := 0
	for b, err := range o.store.Blobs(ctx) {
		if err != nil {
			return err
		}
		if looked == most {
			break
		}
		looked++
		if there, err := o.bucket.Exists(ctx, string(b.Key)); err != nil || there {
			return err
		}
	}
	if looked == 0 {
		return nil
	}
	return fmt.Errorf("the bucket has none of %s that the store uses, so it is not that of this store; a sweep would delete what others need", count(looked, "blob"))
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
	scanned, deleted := count(r.Scanned, "object"), "Deleted"
	if quick {
		scanned = count(r.Scanned, "blob") + " without a use"
	}
	if r.DryRun {
		deleted = "Would delete"
	}
	sum := fmt.Sprintf("%d, %s", r.Deleted, a.size(r.DeletedBytes))
	if quick {
		sum = fmt.Sprint(r.Deleted) // whose sizes it did not ask for
	}
	a.field("Scanned", scanned)
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
