package main

import (
	"context"
	"errors"
	"fmt"

	"checkpointdb"
	"checkpointdb/buckets"

	"github.com/spf13/cobra"
	"gocloud.dev/blob"
)

func (a *app) repairCommand() *cobra.Command {
	var bucket, from string
	cmd := &cobra.Command{
		Use:   "repair FILE",
		Short: "Save a damaged store into a new file",
		Long: `Repair writes a new store with every checkpoint of a damaged one that is still
whole, wherever in the file it lies, builds counts, heads and indexes anew, and
lists what was lost. The damaged file is only read. Leases are dropped, so writers
have to acquire their threads again. The new store has passed check when it
appears.

With --blobs and --fetch-from it then looks for the blobs that the new store needs
and the first bucket has not, or has damaged, and copies them from the second,
verified.

Exit codes: 0 nothing was lost, 3 the new store is there and something was lost.

JSON:

    {"kept", "lost": [{"id", "threadId", "problem"}], "unsure": [],
     "heads": [{"threadId", "head"}], "lostFences": [], "lostTranscripts": [],
     "lostInstances": [], "incomplete": [], "threads", "transcripts", "instances",
     "droppedLeases", "droppedPins",
     "blobs": {"fetched", "bytes", "failed": [{"key", "error"}]}}

where unsure are the ids of checkpoints that may have been deleted before, heads
the threads whose head is another one now, lostFences the threads whose fences go
on far above, incomplete the parts of the file that could not be read as a whole,
and blobs is there when they were fetched.`,
		Example: `  inspect repair agents-repaired.db --db agents.db
  inspect repair new.db --blobs ./blobs --fetch-from /backups/blobs --db agents.db`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(1, completeFile),
	}
	blobsFlag(cmd, &bucket)
	cmd.Flags().StringVar(&from, "fetch-from", "", "another bucket that may have the blobs, a directory or `URL`")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		if bucket != "" && from == "" {
			return usageError("--blobs needs --fetch-from, which says where else the blobs may be")
		}
		return a.repair(ctx, args[0], bucket, from)
	})
	return cmd
}

type repairJSON struct {
	checkpointdb.RepairReport
	Blobs *fetchedJSON `json:"blobs,omitempty"`
}

type fetchedJSON struct {
	Fetched int64              `json:"fetched"`
	Bytes   int64              `json:"bytes"`
	Failed  []sweepFailureJSON `json:"failed"`
}

// errLost ends a repair that has printed what was lost.
var errLost = errors.New("not everything could be saved")

func (a *app) repair(ctx context.Context, to, bucket, from string) error {
	path, err := a.file()
	if err != nil {
		return err
	}
	var blobs, others *blob.Bucket
	if from != "" { // looked at first, as a repair may take long
		if blobs, err = a.openBucket(ctx, bucket); err != nil {
			return err
		}
		defer blobs.Close()
		if others, err = a.openBucket(ctx, from); err != nil {
			return err
		}
		defer others.Close()
	}
	bar := a.progress(ctx, "repairing", 0)
	defer bar.done()
	var report checkpointdb.RepairReport
	if err := a.whenFree(ctx, "stop that program first", func() (err error) {
		report, err = checkpointdb.Repair(ctx, path, to, &checkpointdb.RepairOptions{Progress: bar.set})
		return err
	}); err != nil {
		return err
	}
	bar.done()
	out := repairJSON{RepairReport: report}
	var failed error
	if from != "" {
		if out.Blobs, err = a.fetchBlobs(ctx, to, blobs, others); err != nil {
			failed = fmt.Errorf("the new store is there, its blobs are not all: %w", err)
		}
	}
	if a.json {
		err = a.printJSON(out)
	} else {
		err = a.printRepair(to, out)
	}
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	lost := len(report.Lost) + len(report.LostFences) + len(report.LostTranscripts) + len(report.LostInstances) + len(report.Incomplete)
	if lost > 0 || out.Blobs != nil && len(out.Blobs.Failed) > 0 {
		return errLost
	}
	return nil
}

// fetchBlobs copies what the store at path needs and the bucket lacks. It tells how
// far it came also beside an error.
func (a *app) fetchBlobs(ctx context.Context, path string, bucket, from *blob.Bucket) (*fetchedJSON, error) {
	store, err := openReadOnly(path, a.wait)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	bar := a.progress(ctx, "checking blobs", 0)
	defer bar.done()
	var faults []checkpointdb.BlobFault
	if _, err := checkpointdb.CheckBlobs(ctx, store, bucket, &checkpointdb.CheckBlobsOptions{
		ReadData: true,
		Progress: func(done, total checkpointdb.BlobTotals) { bar.set(done.Bytes, total.Bytes) },
		Faulty:   func(f checkpointdb.BlobFault) { faults = append(faults, f) },
	}); err != nil {
		return nil, err
	}
	bar.done()
	bar = a.counter(ctx, "fetching blobs", int64(len(faults)))
	defer bar.done()
	out := &fetchedJSON{Failed: []sweepFailureJSON{}}
	for i, f := range faults {
		bar.set(int64(i), int64(len(faults)))
		err := buckets.Fetch(ctx, bucket, from, f.Key, f.Size)
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case err != nil:
			out.Failed = append(out.Failed, sweepFailureJSON{string(f.Key), err.Error()})
		default:
			out.Fetched++
			out.Bytes += f.Size
		}
	}
	return out, nil
}

func (a *app) printRepair(to string, r repairJSON) error {
	a.field("New store", to)
	a.field("Kept", fmt.Sprintf("%s of %s, %s, %s", count(r.Kept, "checkpoint"), count(r.Threads, "thread"),
		count(r.Transcripts, "transcript"), count(r.Instances, "instance")))
	a.field("Dropped", fmt.Sprintf("%s, %s", count(r.DroppedLeases, "lease"), count(r.DroppedPins, "pin")))
	if r.Blobs != nil {
		a.field("Fetched", fmt.Sprintf("%s of %s", count(r.Blobs.Fetched, "blob"), a.size(r.Blobs.Bytes)))
	}
	t := a.grid("LOST OR CHANGED", "THREAD", "ID", "WHY")
	for _, l := range r.Lost {
		t.row("checkpoint", l.ThreadID, l.ID, l.Problem)
	}
	for _, id := range r.Unsure {
		t.row("unsure", "", id, "kept; it may have been deleted before")
	}
	for _, h := range r.Heads {
		t.row("head", h.ThreadID, h.Head, "is the newest that was saved")
	}
	for _, thread := range r.LostFences {
		t.row("fence", thread, "", fmt.Sprintf("goes on above %d", checkpointdb.LostFence))
	}
	for _, thread := range r.LostTranscripts {
		t.row("transcript", thread, "", "cannot be read")
	}
	for _, key := range r.LostInstances {
		t.row("instance", "", key, "cannot be read")
	}
	for _, bucket := range r.Incomplete {
		t.row("rows", "", bucket, "some could not be read, and what they were is not known")
	}
	if r.Blobs != nil {
		for _, f := range r.Blobs.Failed {
			t.row("blob", "", f.Key, f.Error)
		}
	}
	if t.w.Length() == 0 {
		return nil
	}
	return t.print()
}
