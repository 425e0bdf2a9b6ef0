package checkpointdb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	bolt "go.etcd.io/bbolt"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb/internal/ctxio"
	"checkpointdb/internal/retry"
)

// An export is JSON Lines: one object a line, in this order. Checkpoints, messages
// and instances are in the contract's own form, so that any program that knows
// the contract can read them.
//
//	{"export":{"version":1,"storeId":…}}
//	for each thread:
//	  {"thread":{"id":…,"head":…,"lastFence":…}}            head is "" for none
//	  {"blobKeys":[…]}                                       up to 1000 keys whose blobs follow, and come in no other place
//	  {"blob":{"key":…,"size":…,"offset":…,"data":…}}        a piece of up to 1 MiB, in base64; a blob's pieces in order
//	  {"checkpoint":{…},"forkedFrom":…,"exact":{…}}          oldest on the chain first
//	  {"transcript":[…],"exact":{…}}                         if one is saved
//	{"instance":{…}}
//	{"end":{…}}                                              the report; a file without it was cut
//
// "exact" has, by index, the text of messages with white space between their
// parts: on the line they stand without, and an import puts them back.

const (
	exportVersion = 1
	blobKeyBatch  = 1000
	blobPiece     = 1 << 20 // bytes
)

type exportLine struct {
	Export     *exportHead       `json:"export,omitempty"`
	Thread     *exportThread     `json:"thread,omitempty"`
	BlobKeys   []BlobKey         `json:"blobKeys,omitempty"`
	Blob       *exportBlob       `json:"blob,omitempty"`
	Checkpoint json.RawMessage   `json:"checkpoint,omitempty"`
	ForkedFrom CheckpointID      `json:"forkedFrom,omitempty"`
	Transcript []json.RawMessage `json:"transcript,omitzero"` // empty is not missing
	Exact      map[int]string    `json:"exact,omitempty"`
	Instance   json.RawMessage   `json:"instance,omitempty"`
	End        *TransferReport   `json:"end,omitempty"`
}

type exportHead struct {
	Version int    `json:"version"`
	StoreID string `json:"storeId"` // for the reader's eye
}

type exportThread struct {
	ID        ThreadID     `json:"id"`
	Head      CheckpointID `json:"head"`
	LastFence Fence        `json:"lastFence"`
}

type exportBlob struct {
	Key    BlobKey `json:"key"`
	Size   int64   `json:"size"`
	Offset int64   `json:"offset"`
	Data   []byte  `json:"data"`
}

// TransferReport counts what [Store.Export] wrote or [Store.Import] took over.
type TransferReport struct {
	Threads     int   `json:"threads"`
	Checkpoints int   `json:"checkpoints"`
	Transcripts int   `json:"transcripts"`
	Instances   int   `json:"instances"`
	Blobs       int   `json:"blobs"`
	BlobBytes   int64 `json:"blobBytes"`
	// PresentCheckpoints and PresentBlobs were in the store and in the bucket
	// already, and are not among the others. Of an import only.
	PresentCheckpoints int `json:"presentCheckpoints"`
	PresentBlobs       int `json:"presentBlobs"`
}

// ExportOptions say what [Store.Export] writes. The zero value, like a nil
// pointer, exports everything but the blobs.
type ExportOptions struct {
	// Threads are the threads to export; nil: all. One that the store does not
	// know is an error ([ErrThreadNotFound]). Instances go with their threads.
	Threads []ThreadID
	// Bucket is where the bytes of the files are. Nil: they are left out, and
	// whoever imports needs a bucket that has them.
	Bucket *blob.Bucket
	// Progress, if set, is called now and then with what was written so far, on the
	// goroutine that called Export.
	Progress func(TransferReport)
}

// Export writes checkpoints, transcripts and instances as JSON Lines, with the
// blobs if a bucket is given, each once; [Store.Import] takes them over into this
// or another store. Leases and pins are not exported, last fences are. Where
// somebody writes meanwhile, each thread is of one moment, but several threads are
// not; copy the store with Backup first where that matters. A blob that is not in
// the bucket ends it with [ErrBlobMissing], one with other bytes with
// [ErrBlobDamaged].
//
// No transaction is open while it writes, so w may be slow. An export that ended
// early lacks its last line, by which an import knows. The report counts what was
// written, also beside an error.
func (s *Store) Export(ctx context.Context, w io.Writer, opts *ExportOptions) (report TransferReport, err error) {
	e := &exporter{store: s, w: w, written: map[BlobKey]bool{}}
	if opts != nil {
		e.opts = *opts
	}
	err = e.run(ctx)
	return e.report, withOp("export", err)
}

type exporter struct {
	store   *Store
	opts    ExportOptions
	w       io.Writer
	written map[BlobKey]bool
	report  TransferReport
}

func (e *exporter) run(ctx context.Context) error {
	if err := e.line(exportLine{Export: &exportHead{exportVersion, fmt.Sprintf("%x", e.store.id)}}); err != nil {
		return err
	}
	left := map[ThreadID]bool{}
	for _, id := range e.opts.Threads {
		left[id] = true
	}
	for info, err := range e.store.Threads(ctx) {
		if err != nil {
			return err
		}
		if e.opts.Threads != nil && !left[info.ID] {
			continue
		}
		delete(left, info.ID)
		if err := e.thread(ctx, info); err != nil {
			return err
		}
	}
	for id := range left {
		return &Error{Code: ErrThreadNotFound, Message: fmt.Sprintf("no thread %q", id)}
	}
	if err := e.instances(ctx); err != nil {
		return err
	}
	return e.line(exportLine{End: &e.report})
}

func (e *exporter) line(l exportLine) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // which would respell messages
	if err := enc.Encode(l); err != nil {
		return err
	}
	_, err := e.w.Write(b.Bytes())
	if err == nil && e.opts.Progress != nil {
		e.opts.Progress(e.report)
	}
	return err
}

func (e *exporter) thread(ctx context.Context, info ThreadInfo) error {
	const op = "export"
	s := e.store
	if err := e.line(exportLine{Thread: &exportThread{info.ID, info.Head, info.LastFence}}); err != nil {
		return err
	}
	e.report.Threads++
	rows, err := s.rowsOf(ctx, op, info.ID)
	if err != nil {
		return err
	}
	if e.opts.Bucket != nil {
		if err := e.blobs(ctx, rows); err != nil {
			return err
		}
	}
	for v, err := range s.versions(ctx, op, rows) {
		if err != nil {
			return err
		}
		c, err := v.checkpoint()
		if err != nil {
			return err
		}
		l := exportLine{ForkedFrom: v.source}
		c.Conversation, l.Exact = onOneLine(c.Conversation)
		if l.Checkpoint, err = c.MarshalJSON(); err != nil {
			return err
		}
		if err := e.line(l); err != nil {
			return err
		}
		e.report.Checkpoints++
	}
	if !info.Transcript {
		return nil
	}
	messages, err := s.LoadThread(ctx, info.ID)
	if err != nil {
		return err
	}
	messages, exact := onOneLine(messages)
	e.report.Transcripts++
	return e.line(exportLine{Transcript: messages, Exact: exact})
}

// onOneLine respells the messages that would not stay on one line, or that an
// encoder would respell, and returns what these were. The slice is the caller's.
func onOneLine(messages []json.RawMessage) ([]json.RawMessage, map[int]string) {
	exact := map[int]string{}
	for i, m := range messages {
		var b bytes.Buffer
		if json.Compact(&b, m); bytes.Equal(b.Bytes(), m) {
			continue
		}
		exact[i] = string(m)
		messages[i] = b.Bytes()
	}
	return messages, exact
}

// blobs writes the blobs of the rows that were not written before. They come
// before the checkpoints that name them, as in every store.
func (e *exporter) blobs(ctx context.Context, rows []row) error {
	var batch []use
	before := content{}
	for v, err := range e.store.versions(ctx, "export", rows) {
		if err != nil {
			return err
		}
		for _, kind := range []sectionKind{sectionArtifacts, sectionFiles} {
			for _, u := range usesOf(kind, diff(before[kind], v.lists[kind]).inserted) {
				if key := u.blob.key(); !e.written[key] {
					e.written[key] = true
					batch = append(batch, u)
				}
			}
		}
		before = v.lists
		for len(batch) >= blobKeyBatch {
			if err := e.blobBatch(ctx, batch[:blobKeyBatch]); err != nil {
				return err
			}
			batch = slices.Delete(batch, 0, blobKeyBatch)
		}
	}
	return e.blobBatch(ctx, batch)
}

func (e *exporter) blobBatch(ctx context.Context, batch []use) error {
	if len(batch) == 0 {
		return nil
	}
	keys := make([]BlobKey, len(batch))
	for i, u := range batch {
		keys[i] = u.blob.key()
	}
	if err := e.line(exportLine{BlobKeys: keys}); err != nil {
		return err
	}
	for i, u := range batch {
		if err := e.blob(ctx, keys[i], int64(u.size)); err != nil {
			return err
		}
		e.report.Blobs++
		e.report.BlobBytes += int64(u.size)
	}
	return nil
}

func (e *exporter) blob(ctx context.Context, key BlobKey, size int64) error {
	var r *blob.Reader
	err := retry.Do(ctx, func(ctx context.Context) (err error) {
		r, err = e.opts.Bucket.NewReader(ctx, string(key), nil)
		return err
	})
	if gcerrors.Code(err) == gcerrors.NotFound {
		return &Error{Code: ErrBlobMissing, Err: &BlobError{Key: key, Problem: "is not in the bucket"}}
	} else if err != nil {
		return err
	}
	defer r.Close()
	damaged := func(format string, args ...any) error {
		return &Error{Code: ErrBlobDamaged, Err: &BlobError{Key: key, Problem: fmt.Sprintf(format, args...)}}
	}
	if r.Size() != size {
		return damaged("has %d bytes in the bucket, the checkpoints say %d", r.Size(), size)
	}
	sum := sha256.New()
	from := io.TeeReader(ctxio.Reader(ctx, r), sum)
	piece := make([]byte, min(size, blobPiece))
	for offset := int64(0); ; {
		n, err := io.ReadFull(from, piece[:min(size-offset, blobPiece)])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged("ended after %d bytes of %d", offset+int64(n), size)
		} else if err != nil {
			return err
		}
		last := offset+int64(n) == size
		if want, _ := key.Digest(); last && Digest(sum.Sum(nil)) != want {
			return damaged("has other bytes than its name says")
		}
		if err := e.line(exportLine{Blob: &exportBlob{key, size, offset, piece[:n]}}); err != nil {
			return err
		}
		if offset += int64(n); last {
			return nil
		}
	}
}

// instances writes the instances of the exported threads.
func (e *exporter) instances(ctx context.Context) error {
	for from := []byte{}; from != nil; {
		var batch []Instance
		err := e.store.read(ctx, "export", func(tx *bolt.Tx) error {
			c := tx.Bucket(bucketInstances).Cursor()
			k, v := c.Seek(from)
			for ; k != nil && len(batch) < threadBatch; k, v = c.Next() {
				in, err := parseInstance(k, v)
				if err != nil {
					return err
				}
				batch = append(batch, in)
			}
			from = bytes.Clone(k)
			return nil
		})
		if err != nil {
			return err
		}
		for _, in := range batch {
			if e.opts.Threads != nil && !slices.Contains(e.opts.Threads, in.ThreadID) {
				continue
			}
			text, err := in.MarshalJSON()
			if err != nil {
				return err
			}
			if err := e.line(exportLine{Instance: text}); err != nil {
				return err
			}
			e.report.Instances++
		}
	}
	return nil
}
