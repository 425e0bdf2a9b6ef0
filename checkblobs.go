package checkpointdb

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gocloud.dev/blob"

	"checkpointdb/internal/ctxio"
	"checkpointdb/internal/retry"
)

const defaultCheckConcurrency = 16

// CheckBlobsOptions configure [CheckBlobs]. The zero value, like a nil pointer,
// compares names and sizes.
type CheckBlobsOptions struct {
	// ReadData also reads every blob and compares its bytes with the digest in
	// its key.
	ReadData bool
	// Concurrency is how many blobs are read or looked at again at a time. Zero:
	// 16.
	Concurrency int
	// Progress, if set, is called every now and then with what is checked of how
	// much, and at the end. The total is counted before the check begins, so it
	// changes no more. It runs on the goroutine that called CheckBlobs, and may
	// call the store.
	Progress func(done, total BlobTotals)
	// Faulty, if set, is called with every fault, also with those that the report
	// only counts, in no special order and as Progress is.
	Faulty func(BlobFault)
}

// BlobTotals is a number of blobs and of their bytes together.
type BlobTotals struct {
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// BlobProblem is what is wrong with a blob.
type BlobProblem string

// The problems that [CheckBlobs] finds.
const (
	BlobMissing   BlobProblem = "missing"
	BlobWrongSize BlobProblem = "wrong-size"
	BlobDamaged   BlobProblem = "damaged" // of the right size, and its bytes have another digest or cannot be read
)

// BlobFault is a blob that a checkpoint uses and the bucket does not have as it
// should.
type BlobFault struct {
	Key     BlobKey     `json:"key"`
	Problem BlobProblem `json:"problem"`
	Size    int64       `json:"size"`  // bytes, as the checkpoints say
	Found   int64       `json:"found"` // bytes in the bucket, 0 for a missing one
	Uses    []BlobUse   `json:"uses"`  // who needs it
}

// CheckBlobsReport says what [CheckBlobs] found. Each blob is counted as checked,
// and one that is not sound once more as what is wrong with it.
type CheckBlobsReport struct {
	Checked   BlobTotals  `json:"checked"` // bytes as the checkpoints say
	Missing   int64       `json:"missing"`
	WrongSize int64       `json:"wrongSize"`
	Damaged   int64       `json:"damaged"`
	Faults    []BlobFault `json:"faults"` // the first 1,000 that were found, by key; never nil
}

// Sound tells whether nothing was found.
func (r CheckBlobsReport) Sound() bool { return r.Missing+r.WrongSize+r.Damaged == 0 }

// CheckBlobs looks whether the bucket has every blob that a checkpoint of the
// store uses, with the right size, and with ReadData also with the right bytes.
// It reads the bucket's listing beside the store's, in memory that does not grow
// with either, save for a local directory that was not opened by package buckets,
// which is listed in one piece. A bucket that is busy is waited for.
//
// Faults are no error: they are in the report, and [CheckBlobsReport.Sound] tells
// whether there are any. An error says that not all could be checked, because of
// the bucket, the store or ctx; the report then tells what was found before.
// Errors: [ErrInvalidOptions], those of the store, those of the bucket, whose
// class gcerrors.Code sees.
//
// It changes nothing, works with a read-only store, and may run beside anything,
// sweeps too: a blob is looked at again before it counts as a fault, and one that
// no checkpoint uses any more does not. What is uploaded and not yet used, or
// used only since it was passed, is not checked.
func CheckBlobs(ctx context.Context, store *Store, bucket *blob.Bucket, opts *CheckBlobsOptions) (CheckBlobsReport, error) {
	c := &blobChecker{
		store: store, bucket: bucket, report: CheckBlobsReport{Faults: []BlobFault{}},
		jobs: make(chan BlobInfo), faults: make(chan BlobFault),
	}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.Concurrency < 0 {
		return c.report, &Error{Code: ErrInvalidOptions, Op: "check blobs", Message: fmt.Sprintf("option Concurrency %d is negative", c.opts.Concurrency)}
	}
	if c.opts.Concurrency == 0 {
		c.opts.Concurrency = defaultCheckConcurrency
	}
	err := ctx.Err()
	if err == nil {
		err = c.run(ctx)
	}
	slices.SortFunc(c.report.Faults, func(a, b BlobFault) int { return strings.Compare(string(a.Key), string(b.Key)) })
	if err != nil && CodeOf(err) == "" {
		err = fmt.Errorf("checkpointdb: check blobs: %w", err)
	}
	return c.report, err
}

// blobChecker is one run. The goroutine that called CheckBlobs walks the two
// listings, owns the report and calls the callbacks; workers look at single
// objects.
type blobChecker struct {
	opts   CheckBlobsOptions
	store  *Store
	bucket *blob.Bucket
	report CheckBlobsReport
	total  BlobTotals // zero without Progress
	tick   <-chan time.Time

	jobs   chan BlobInfo
	faults chan BlobFault

	doneBlobs, doneBytes atomic.Int64
}

func (c *blobChecker) run(ctx context.Context) error {
	if c.opts.Progress != nil {
		for b, err := range c.store.Blobs(ctx) {
			if err != nil {
				return err
			}
			c.total.Blobs++
			c.total.Bytes += b.Size
		}
	}
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	c.tick = tick.C
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for range c.opts.Concurrency {
		workers.Go(func() { c.work(ctx, cancel) })
	}
	ended := make(chan struct{})
	go func() { workers.Wait(); close(ended) }()

	err := c.walk(ctx)
	close(c.jobs)
	for working := true; working; {
		select {
		case <-ended:
			working = false
		case f := <-c.faults:
			c.add(f)
		case <-c.tick:
			c.progress()
		}
	}
	c.report.Checked = BlobTotals{c.doneBlobs.Load(), c.doneBytes.Load()}
	if err == nil || ctx.Err() != nil {
		err = context.Cause(ctx) // what ended the walk
	}
	if err == nil {
		c.progress()
	}
	return err
}

// walk compares the two listings, and gives to the workers what needs a closer
// look.
func (c *blobChecker) walk(ctx context.Context) error {
	next, stop := iter.Pull2(newLister(c.bucket).all(ctx))
	defer stop()
	var object *blob.ListObject // the one that was listed last
	end := false
	for b, err := range c.store.Blobs(ctx) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		// Where a listing is out of order, some blobs are passed by and get the
		// closer look.
		for !end && (object == nil || object.Key < string(b.Key)) {
			var ok bool
			if object, err, ok = next(); err != nil {
				return err
			}
			end = !ok
		}
		sound := !end && object.Key == string(b.Key) && object.Size == b.Size
		if !sound || c.opts.ReadData {
			c.give(b)
			continue
		}
		c.done(b)
		select {
		case <-c.tick:
			c.progress()
		default:
		}
	}
	return nil
}

// give returns when a worker has taken b.
func (c *blobChecker) give(b BlobInfo) {
	for {
		select {
		case c.jobs <- b:
			return
		case f := <-c.faults:
			c.add(f)
		case <-c.tick:
			c.progress()
		}
	}
}

func (c *blobChecker) done(b BlobInfo) {
	c.doneBlobs.Add(1)
	c.doneBytes.Add(b.Size)
}

func (c *blobChecker) progress() {
	if c.opts.Progress != nil {
		c.opts.Progress(BlobTotals{c.doneBlobs.Load(), c.doneBytes.Load()}, c.total)
	}
}

// maxBlobFaults bounds the list of a report, and so its memory.
const maxBlobFaults = 1000

func (c *blobChecker) add(f BlobFault) {
	switch f.Problem {
	case BlobMissing:
		c.report.Missing++
	case BlobWrongSize:
		c.report.WrongSize++
	default:
		c.report.Damaged++
	}
	if len(c.report.Faults) < maxBlobFaults {
		c.report.Faults = append(c.report.Faults, f)
	}
	if c.opts.Faulty != nil {
		c.opts.Faulty(f)
	}
}

// work examines blobs until there are no more. The first error ends the run.
func (c *blobChecker) work(ctx context.Context, cancel context.CancelCauseFunc) {
	buf := make([]byte, 128<<10)
	for b := range c.jobs {
		fault, err := c.examine(ctx, b, buf)
		if err != nil {
			cancel(err)
			continue
		}
		if fault != nil {
			c.faults <- *fault
		}
		c.done(b)
	}
}

// examine looks at one blob, and once more if something is wrong: the blob may
// have lost its last use and been swept in the meantime, or come back since.
func (c *blobChecker) examine(ctx context.Context, b BlobInfo, buf []byte) (*BlobFault, error) {
	fault, err := c.look(ctx, b, buf)
	if err != nil || fault == nil {
		return nil, err
	}
	uses, err := c.store.BlobUses(ctx, b.Key)
	if err != nil || len(uses) == 0 {
		return nil, err
	}
	if fault, err = c.look(ctx, b, buf); fault != nil {
		fault.Uses = uses
	}
	return fault, err
}

// look compares the object of a blob with what it should be, nil when it is that.
func (c *blobChecker) look(ctx context.Context, b BlobInfo, buf []byte) (*BlobFault, error) {
	fault := &BlobFault{Key: b.Key, Size: b.Size}
	digest, err := Digest{}, error(nil)
	if c.opts.ReadData {
		fault.Found, digest, err = c.read(ctx, b, buf)
	} else {
		fault.Found, err = c.size(ctx, b.Key)
	}
	want, _ := b.Key.Digest()
	switch {
	case isGone(err):
		fault.Problem, fault.Found = BlobMissing, 0
	case errors.Is(err, syscall.EIO): // the disk has lost this one, maybe not the others
		fault.Problem = BlobDamaged
	case err != nil:
		return nil, fmt.Errorf("blob %s: %w", b.Key, err)
	case fault.Found != b.Size:
		fault.Problem = BlobWrongSize
	case c.opts.ReadData && digest != want:
		fault.Problem = BlobDamaged
	default:
		return nil, nil
	}
	return fault, nil
}

func (c *blobChecker) size(ctx context.Context, key BlobKey) (size int64, err error) {
	err = retry.Do(ctx, func(ctx context.Context) error {
		attrs, err := c.bucket.Attributes(ctx, string(key))
		if err == nil {
			size = attrs.Size
		}
		return err
	})
	return size, err
}

// readTries is how often a blob is read whose stream breaks off.
const readTries = 3

// read returns size and digest of the object; one of a wrong size is not read.
func (c *blobChecker) read(ctx context.Context, b BlobInfo, buf []byte) (size int64, digest Digest, err error) {
	readOnce := func(ctx context.Context) error {
		r, err := c.bucket.NewReader(ctx, string(b.Key), nil)
		if err != nil {
			return err
		}
		defer r.Close()
		if size = r.Size(); size != b.Size {
			return nil
		}
		sum := sha256.New()
		// Wrapped, because the reader's own WriteTo allocates a buffer.
		if _, err := io.CopyBuffer(sum, ctxio.Reader(ctx, r), buf); err != nil {
			return err
		}
		digest = Digest(sum.Sum(nil))
		return nil
	}
	for range readTries {
		if err = retry.Do(ctx, readOnce); !errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
	}
	return size, digest, err
}
