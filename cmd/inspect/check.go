package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"checkpointdb"

	"github.com/spf13/cobra"
	"gocloud.dev/blob"
)

func (a *app) checkCommand() *cobra.Command {
	var bucket string
	var readData bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Verify the store, and its blobs",
		Long: `Check reads the whole file and verifies every rule of its format, and lists what is
damaged. With --blobs it then looks whether the bucket has every blob that a
checkpoint uses, with the right size, and lists what is affected; with --read-data
it reads them all and compares their digests. CHECKPOINTDB_BLOBS alone does not
make it look at the bucket.

Exit codes: 0 sound; 3 damaged, or blobs missing; 1 could not check, 4 because the
file is in use. Of each kind of fault at most 1000 are listed.

JSON:

    {"sound", "violations": [{"invariant", "threadId", "key", "problem"}],
     "blobs": {"checked": {"blobs", "bytes"}, "missing", "wrongSize", "damaged",
               "faults": [{"key", "problem", "size", "found",
                           "uses": [{"threadId", "first", "last", "checkpoints",
                                     "atHead", "size"}]}]}}

where blobs is there when they were looked at, and the problem of one is missing,
wrong-size or damaged. A violation of no invariant is one that keeps the file from
being opened as a store at all.`,
		Example: `  inspect check --db agents.db
  inspect check --blobs ./blobs --db agents.db
  inspect check --blobs s3://runner?region=us-east-1 --read-data --db agents.db`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	blobsFlag(cmd, &bucket)
	cmd.Flags().BoolVar(&readData, "read-data", false, "read every blob and compare its digest")
	cmd.RunE = a.do(func(ctx context.Context, _ []string) error {
		if readData && bucket == "" {
			return usageError("--read-data needs --blobs")
		}
		return a.check(ctx, bucket, readData)
	})
	return cmd
}

type checkJSON struct {
	Sound      bool                           `json:"sound"`
	Violations []violationJSON                `json:"violations"`
	Blobs      *checkpointdb.CheckBlobsReport `json:"blobs,omitempty"`
}

type violationJSON struct {
	Invariant int                   `json:"invariant,omitempty"` // 0: the file is not even a store's
	ThreadID  checkpointdb.ThreadID `json:"threadId,omitempty"`
	Key       string                `json:"key,omitempty"`
	Problem   string                `json:"problem"`
}

// These end a check that has printed what it found.
var (
	errUnsound = errors.New("the store is not sound")
	errRecords = fmt.Errorf("%w; inspect repair saves what is whole into a new file", errUnsound)
	errBlobs   = fmt.Errorf("%w: blobs are missing or damaged", errUnsound)
)

func (a *app) check(ctx context.Context, url string, readData bool) error {
	out := checkJSON{Violations: []violationJSON{}}
	store, done, err := a.openStore(ctx)
	if err == nil {
		defer done()
		err = store.Check(ctx)
	}
	found, listed := errors.AsType[*checkpointdb.CheckError](err)
	switch {
	case listed:
		for _, v := range found.Violations {
			out.Violations = append(out.Violations, violationJSON(v))
		}
	case errors.Is(err, checkpointdb.ErrDamaged): // so that it cannot even be opened
		out.Violations = append(out.Violations, violationJSON{Problem: err.Error()})
	case err != nil:
		return err
	}
	if len(out.Violations) == 0 && url != "" {
		bucket, err := a.openBucket(ctx, url)
		if err != nil {
			return err
		}
		defer bucket.Close()
		if out.Blobs, err = a.checkBlobs(ctx, store, bucket, readData); err != nil {
			if b := out.Blobs; !b.Sound() {
				a.note("not all was checked; until then %s", faults(b))
			}
			return err
		}
	}
	out.Sound = len(out.Violations) == 0 && (out.Blobs == nil || out.Blobs.Sound())
	if a.json {
		err = a.printJSON(out)
	} else {
		err = a.printCheck(out)
	}
	if len(out.Violations) > 0 && url != "" {
		a.note("the blobs were not checked, as the file does not tell for sure which there must be")
	}
	switch {
	case err != nil, out.Sound:
		return err
	case len(out.Violations) == 0:
		return errBlobs
	}
	return errRecords
}

func (a *app) checkBlobs(ctx context.Context, store *checkpointdb.Store, bucket *blob.Bucket, readData bool) (*checkpointdb.CheckBlobsReport, error) {
	what := "checking blobs"
	opts := &checkpointdb.CheckBlobsOptions{ReadData: readData}
	var bar *progress
	if readData {
		bar = a.progress(ctx, what, 0)
		opts.Progress = func(done, total checkpointdb.BlobTotals) { bar.set(done.Bytes, total.Bytes) }
	} else {
		bar = a.counter(ctx, what, 0)
		opts.Progress = func(done, total checkpointdb.BlobTotals) { bar.set(done.Blobs, total.Blobs) }
	}
	report, err := checkpointdb.CheckBlobs(ctx, store, bucket, opts)
	bar.done()
	if err == nil && a.copied && !report.Sound() {
		err = a.dropUnused(ctx, &report)
	}
	return &report, err
}

// dropUnused takes the faults out of a report that are none any more: while a copy
// of the store is checked, the program that has it open may let go of a blob and
// sweep it.
func (a *app) dropUnused(ctx context.Context, report *checkpointdb.CheckBlobsReport) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	counts := map[checkpointdb.BlobProblem]*int64{
		checkpointdb.BlobMissing: &report.Missing, checkpointdb.BlobWrongSize: &report.WrongSize, checkpointdb.BlobDamaged: &report.Damaged,
	}
	still := []checkpointdb.BlobFault{}
	for _, f := range report.Faults {
		if f.Uses, err = store.BlobUses(ctx, f.Key); err != nil {
			return err
		}
		if len(f.Uses) == 0 {
			*counts[f.Problem]--
			continue
		}
		still = append(still, f)
	}
	report.Faults = still
	return nil
}

func faults(r *checkpointdb.CheckBlobsReport) string {
	return fmt.Sprintf("%d missing, %d of the wrong size, %d damaged", r.Missing, r.WrongSize, r.Damaged)
}

func (a *app) printCheck(c checkJSON) error {
	if len(c.Violations) == 0 {
		a.field("File", painted{"sound", green})
	} else {
		a.field("File", painted{"damaged: " + count(len(c.Violations), "violation"), red})
		t := a.grid(">INVARIANT", "THREAD", "KEY", "PROBLEM")
		for _, v := range c.Violations {
			number := ""
			if v.Invariant > 0 {
				number = strconv.Itoa(v.Invariant)
			}
			t.row(number, v.ThreadID, v.Key, v.Problem)
		}
		if err := t.print(); err != nil {
			return err
		}
	}
	if c.Blobs == nil {
		return nil
	}
	of := fmt.Sprintf(", %s of %s checked", count(c.Blobs.Checked.Blobs, "blob"), a.size(c.Blobs.Checked.Bytes))
	if c.Blobs.Sound() {
		a.field("Blobs", painted{"sound" + of, green})
		return nil
	}
	a.field("Blobs", painted{faults(c.Blobs) + of, red})
	t := a.grid("PROBLEM", "KEY", ">SIZE", ">FOUND", "THREAD", "FIRST", "LAST", ">CHECKPOINTS")
	for _, f := range c.Blobs.Faults {
		for _, u := range f.Uses {
			t.row(string(f.Problem), f.Key, a.size(f.Size), a.size(f.Found), u.ThreadID, u.First, u.Last, u.Checkpoints)
		}
	}
	return t.print()
}
