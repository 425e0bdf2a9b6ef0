package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"checkpointdb"

	"github.com/spf13/cobra"
	"gocloud.dev/blob"
)

func (a *app) exportCommand() *cobra.Command {
	var out, bucket string
	var withBlobs bool
	cmd := &cobra.Command{
		Use:   "export [THREAD...]",
		Short: "Write threads as JSON Lines",
		Long: `Export writes threads, or all of them, with their checkpoints, transcripts and
instances, one JSON object on each line, in the form of the contract; with
--with-blobs also the bytes of files and artifacts, which are verified. Import
takes it over into another store. The last line is {"end":…}; without it the
export was cut short.

JSON:

    {"threads", "checkpoints", "transcripts", "instances", "blobs", "blobBytes",
     "presentCheckpoints", "presentBlobs"}

with --out only. Without it the export itself goes to stdout.`,
		Example: `  inspect export --out all.jsonl --db agents.db
  inspect export main --with-blobs --db agents.db --blobs ./blobs | gzip > main.gz`,
		ValidArgsFunction: a.completeThread(),
	}
	blobsFlag(cmd, &bucket)
	cmd.Flags().BoolVar(&withBlobs, "with-blobs", false, "write the blobs too")
	cmd.Flags().StringVar(&out, "out", "", "write to this new `FILE`, not to stdout")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		return a.export(ctx, args, out, withBlobs, bucket)
	})
	return cmd
}

func (a *app) export(ctx context.Context, threads []string, out string, withBlobs bool, from string) error {
	if out == "" && a.isTerminal {
		return usageError("an export is not for a terminal; use --out FILE, or a pipe")
	}
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	var bucket *blob.Bucket
	if withBlobs {
		if bucket, err = a.openBucket(ctx, from); err != nil {
			return err
		}
		defer bucket.Close()
	}
	opts := &checkpointdb.ExportOptions{Bucket: bucket}
	for _, id := range threads {
		opts.Threads = append(opts.Threads, checkpointdb.ThreadID(id))
	}
	checkpoints, bytes, err := toExport(ctx, store, opts.Threads)
	if err != nil {
		return err
	}
	var bar *progress
	if withBlobs { // which take nearly all the time
		bar = a.progress(ctx, "exporting", bytes)
		opts.Progress = func(r checkpointdb.TransferReport) { bar.set(r.BlobBytes, bytes) }
	} else {
		bar = a.counter(ctx, "exporting checkpoints", checkpoints)
		opts.Progress = func(r checkpointdb.TransferReport) { bar.set(int64(r.Checkpoints), checkpoints) }
	}
	var report checkpointdb.TransferReport
	write := func(w io.Writer) error {
		report, err = store.Export(ctx, w, opts)
		return err
	}
	if out == "" {
		err = errors.Join(write(a.stdout), a.stdout.Flush())
	} else {
		err = createFile(out, write)
	}
	bar.done()
	if err != nil {
		return err
	}
	if out != "" && a.json {
		return a.printJSON(report)
	}
	a.note("exported %s", transferred(a, report))
	return nil
}

// toExport counts what will be exported. Of some threads, blobs that several of
// them use count more than once.
func toExport(ctx context.Context, store *checkpointdb.Store, threads []checkpointdb.ThreadID) (checkpoints, bytes int64, err error) {
	wanted := map[checkpointdb.ThreadID]bool{}
	for _, id := range threads {
		wanted[id] = true
	}
	for t, err := range store.Threads(ctx) {
		if err != nil {
			return 0, 0, err
		}
		if len(threads) == 0 || wanted[t.ID] {
			checkpoints += t.Checkpoints
		}
	}
	usage, err := store.Usage(ctx, nil)
	if err != nil {
		return 0, 0, err
	}
	for _, t := range usage.Threads {
		if wanted[t.ThreadID] {
			bytes += t.OwnBytes + t.SharedBytes
		}
	}
	if len(threads) == 0 || bytes > usage.Bytes {
		bytes = usage.Bytes
	}
	return checkpoints, bytes, nil
}

func transferred(a *app, r checkpointdb.TransferReport) string {
	text := fmt.Sprintf("%s, %s, %s, %s", count(r.Threads, "thread"), count(r.Checkpoints, "checkpoint"),
		count(r.Transcripts, "transcript"), count(r.Instances, "instance"))
	if r.Blobs > 0 {
		text += fmt.Sprintf(", %s of %s", count(r.Blobs, "blob"), a.size(r.BlobBytes))
	}
	if r.PresentCheckpoints+r.PresentBlobs > 0 {
		text += fmt.Sprintf("; there already: %s, %s", count(r.PresentCheckpoints, "checkpoint"), count(r.PresentBlobs, "blob"))
	}
	return text
}

func (a *app) importCommand() *cobra.Command {
	var bucket string
	var create bool
	opts := &checkpointdb.ImportOptions{}
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Take an export over",
		Long: `Import takes over what export wrote, from a file or, for -, from stdin: threads
with their checkpoints as they were, transcripts, instances, and the blobs if they
are in it. What the store has already is passed over, so an import that was cut
short can be run again. What differs is refused, and an import never replaces a
checkpoint.

JSON:

    {"threads", "checkpoints", "transcripts", "instances", "blobs", "blobBytes",
     "presentCheckpoints", "presentBlobs"}

where those that are present already are not among the others.`,
		Example: `  inspect import all.jsonl --db other.db --create
  gunzip < main.gz | inspect import - --dry-run --db other.db`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(1, completeFile),
	}
	blobsFlag(cmd, &bucket)
	cmd.Flags().BoolVar(&create, "create", false, "make a new store when there is none")
	cmd.Flags().BoolVar(&opts.DryRun, "dry-run", false, "only check and count what would be taken over")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		return a.importFrom(ctx, args[0], bucket, create, opts)
	})
	return cmd
}

func (a *app) importFrom(ctx context.Context, name, bucket string, create bool, opts *checkpointdb.ImportOptions) error {
	in, total := os.Stdin, int64(0)
	if name != "-" {
		var err error
		if in, err = os.Open(name); err != nil {
			return err
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			return err
		}
		total = info.Size()
	}
	take, done, err := a.importer(ctx, bucket, create, opts.DryRun)
	if err != nil {
		return err
	}
	defer done()
	bar := a.progress(ctx, "importing", total)
	input, stop := newInput(ctx, in, bar)
	report, err := take(ctx, input, opts)
	stop()
	bar.done()
	if err != nil {
		if report != (checkpointdb.TransferReport{}) && !opts.DryRun {
			a.note("before it failed, taken over: %s", transferred(a, report))
		}
		return adviseLeased(err)
	}
	if a.json {
		return a.printJSON(report)
	}
	verb := "imported"
	if opts.DryRun {
		verb = "would import"
	}
	_, err = fmt.Fprintf(a.stdout, "%s %s\n", verb, transferred(a, report))
	return err
}

// input reads what is imported. Its reads end with ctx, also while they wait for
// more, as those from a pipe do.
type input struct {
	from *io.PipeReader

	mu  sync.Mutex // guards bar: while a program answers early, it may still be sent more
	bar *progress  // nil after stop
}

func newInput(ctx context.Context, r io.Reader, bar *progress) (in *input, stop func()) {
	from, to := io.Pipe()
	go func() {
		_, err := io.Copy(to, r)
		to.CloseWithError(err)
	}()
	in = &input{from: from, bar: bar}
	forget := context.AfterFunc(ctx, func() { to.CloseWithError(ctx.Err()) })
	return in, func() {
		forget()
		from.Close()
		in.mu.Lock()
		defer in.mu.Unlock()
		in.bar = nil
	}
}

func (in *input) Read(p []byte) (int, error) {
	n, err := in.from.Read(p)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.bar != nil {
		_, _ = in.bar.Write(p[:n])
	}
	return n, err
}

type importFunc func(context.Context, io.Reader, *checkpointdb.ImportOptions) (checkpointdb.TransferReport, error)

func (a *app) importer(ctx context.Context, bucket string, create, dryRun bool) (importFunc, func(), error) {
	if dryRun {
		store, done, err := a.openStore(ctx)
		if create && errors.Is(err, fs.ErrNotExist) {
			store, done, err = emptyStore()
		}
		if err != nil {
			return nil, nil, err
		}
		return store.Import, done, nil
	}
	owner, done, err := a.openOwner(ctx, ownerOptions{bucket: bucket, wants: true, optional: true, create: create})
	if err != nil {
		return nil, nil, err
	}
	return owner.Import, done, nil
}

// emptyStore makes the store that import --create would begin with, elsewhere.
func emptyStore() (*checkpointdb.Store, func(), error) {
	dir, err := os.MkdirTemp("", "checkpointdb-inspect-*")
	if err != nil {
		return nil, nil, err
	}
	store, err := checkpointdb.Open(filepath.Join(dir, "empty.db"), &checkpointdb.Options{Clock: now})
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	return store, func() { store.Close(); os.RemoveAll(dir) }, nil
}
