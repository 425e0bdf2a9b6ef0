package checkpointdb

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb/internal/ctxio"
	"checkpointdb/internal/durable"
)

// ImportOptions say how to take an export over. The zero value, like a nil
// pointer, takes over records alone.
type ImportOptions struct {
	// Bucket is where blobs are written to. An export with blobs needs one.
	Bucket *blob.Bucket
	// DryRun reads and checks everything, compares it with the store and changes
	// nothing. Blobs are checked, but the bucket is not asked for them.
	DryRun bool
	// Progress, if set, is called now and then with what was taken over so far, on
	// the goroutine that called Import, which may hold a lease.
	Progress func(TransferReport)
}

// Import takes over what [Store.Export] wrote: threads with their chains, gaps
// and times as they were, transcripts and instances, and the blobs. It holds the
// lease of the thread that it is at; fences go on above those of the export. A
// checkpoint that the store has already, with the same content, is passed over,
// so an import that was cut short can simply be run again. Whatever differs is
// refused, and nothing of the store's own is replaced, but transcripts and
// instances, which are of the later one of two.
//
// Blobs are protected from sweeps, durable before the checkpoints that name them,
// and verified against their digests. Checkpoints become durable in batches, whole
// ones. The report counts what was taken over, also beside an error.
//
// Errors name the line: [ErrInvalidEntry] and [ErrInvalidArgument] for what is
// malformed or cut; [ErrDuplicateID] for a checkpoint that exists and differs, or
// is of another thread; [ErrStaleHead] for a thread that has checkpoints which the
// export lacks; [ErrWriterConflict] for a thread that is leased.
func (s *Store) Import(ctx context.Context, r io.Reader, opts *ImportOptions) (TransferReport, error) {
	im := &importer{store: s, in: bufio.NewReaderSize(ctxio.Reader(ctx, r), 1<<16)}
	if opts != nil {
		im.opts = *opts
	}
	err := im.run(ctx)
	if err != nil && ctx.Err() == nil && im.number > 0 {
		err = im.locate(err)
	}
	return im.report, withOp("import", err)
}

// locate names the line in an error.
func (im *importer) locate(err error) error {
	located := &Error{Code: ErrInvalidArgument, Err: err}
	if e, ok := err.(*Error); ok {
		copied := *e
		located = &copied
		located.Op = ""
	} else if code := CodeOf(err); code != "" {
		located.Code = code
	}
	line := fmt.Sprintf("line %d", im.number)
	if located.Message != "" {
		line += ": " + located.Message
	}
	located.Message = line
	return located
}

type importer struct {
	store  *Store
	opts   ImportOptions
	in     *bufio.Reader
	number int // of the line that was read last
	report TransferReport
}

// next reads a line; io.EOF at the end.
func (im *importer) next() (l exportLine, err error) {
	text, err := im.in.ReadBytes('\n')
	if err != nil && (!errors.Is(err, io.EOF) || len(text) == 0) {
		return exportLine{}, err
	}
	im.number++
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return exportLine{}, fmt.Errorf("is no line of an export: %w", err)
	}
	if im.opts.Progress != nil {
		im.opts.Progress(im.report)
	}
	return l, nil
}

func (im *importer) run(ctx context.Context) error {
	l, err := im.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if l.Export == nil {
		return &Error{Code: ErrInvalidArgument, Message: "the first line of an export is missing"}
	}
	if l.Export.Version != exportVersion {
		return &Error{Code: ErrInvalidArgument, Message: fmt.Sprintf("export version %d is not known", l.Export.Version)}
	}
	for l, err = im.next(); ; {
		switch {
		case errors.Is(err, io.EOF):
			return &Error{Code: ErrInvalidArgument, Message: "the export ends without its last line, so it was cut"}
		case err != nil:
			return err
		case l.End != nil:
			if _, err := im.next(); !errors.Is(err, io.EOF) {
				return &Error{Code: ErrInvalidArgument, Message: "there is something behind the last line of the export"}
			}
			return nil
		case l.Thread != nil:
			l, err = im.thread(ctx, *l.Thread)
			continue
		case l.Instance != nil:
			err = im.instance(ctx, l.Instance)
		default:
			err = errors.New("is out of place")
		}
		if err == nil {
			l, err = im.next()
		}
	}
}

func (im *importer) instance(ctx context.Context, text []byte) error {
	var in Instance
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	im.report.Instances++
	if im.opts.DryRun {
		return nil
	}
	old, err := im.store.GetInstance(ctx, in.Key)
	if err == nil && old.UpdatedAt.After(in.UpdatedAt) {
		return nil
	}
	return im.store.UpsertInstance(ctx, in)
}

// thread takes over one thread and returns the first line behind it.
func (im *importer) thread(ctx context.Context, head exportThread) (l exportLine, err error) {
	if err := head.ID.Validate(); err != nil {
		return l, err
	}
	t := &threadImport{importer: im, head: head}
	if im.opts.DryRun {
		return t.run(ctx)
	}
	err = WithLease(ctx, im.store, head.ID, func(ctx context.Context, w Writer) (err error) {
		t.w = w
		l, err = t.run(ctx)
		return err
	})
	return l, err
}

// threadImport is the import of one thread.
type threadImport struct {
	*importer
	head  exportThread
	w     Writer
	batch []adopted
	after adoptedState
}

// A batch of checkpoints shares a transaction.
const (
	adoptBatch = 64
	adoptItems = 200_000 // entries and messages
)

func (t *threadImport) run(ctx context.Context) (l exportLine, err error) {
	items := 0
	for {
		if l, err = t.next(); err != nil && !errors.Is(err, io.EOF) {
			return l, err
		}
		switch {
		case l.BlobKeys != nil:
			err = t.blobs(ctx, l.BlobKeys)
		case l.Checkpoint != nil:
			// Not before another one comes: the last batch of a thread also ends it.
			if len(t.batch) >= adoptBatch || items > adoptItems {
				items = 0
				if err = t.flush(ctx, false); err != nil {
					return l, err
				}
			}
			var a adopted
			if a, err = readAdopted(l, t.head.ID); err == nil {
				t.batch = append(t.batch, a)
				items += len(a.version.lists[sectionFiles]) + len(a.version.lists[sectionConversation])
			}
		case l.Transcript != nil:
			err = t.transcript(ctx, l)
		default: // the next thread, or the end of all threads
			isWhole := err == nil // or it was cut, perhaps in the middle of the thread
			if flushErr := t.flush(ctx, isWhole); flushErr != nil {
				return l, flushErr
			}
			if isWhole {
				t.report.Threads++
			}
			return l, err
		}
		if err != nil {
			return l, err
		}
	}
}

func (t *threadImport) transcript(ctx context.Context, l exportLine) error {
	if err := restoreExact(l.Transcript, l.Exact); err != nil {
		return err
	}
	t.report.Transcripts++
	if t.opts.DryRun {
		return ValidateMessages("transcript", l.Transcript)
	}
	return t.store.SaveThread(ctx, t.head.ID, l.Transcript)
}

func restoreExact(messages []json.RawMessage, exact map[int]string) error {
	for i, text := range exact {
		if i < 0 || i >= len(messages) {
			return fmt.Errorf("has the exact text of message %d of %d", i, len(messages))
		}
		messages[i] = json.RawMessage(text)
	}
	return nil
}

// blobs takes over the blobs of the keys, whose lines follow.
func (t *threadImport) blobs(ctx context.Context, keys []BlobKey) error {
	if t.opts.Bucket == nil && !t.opts.DryRun {
		return &Error{Code: ErrInvalidArgument, Message: "the export has blobs, and there is no bucket to put them into"}
	}
	for _, key := range keys {
		if _, err := ParseBlobKey(string(key)); err != nil {
			return err
		}
	}
	if !t.opts.DryRun {
		if _, err := t.store.Protect(ctx, t.w, keys); err != nil {
			return err
		}
	}
	for _, key := range keys {
		if err := t.blob(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func (t *threadImport) blob(ctx context.Context, key BlobKey) error {
	r := &pieceReader{im: t.importer, key: key, sum: sha256.New()}
	if err := r.fill(); err != nil {
		return err
	}
	present := t.opts.DryRun
	if !present {
		// Protect came before, so what is there now stays.
		attrs, err := t.opts.Bucket.Attributes(ctx, string(key))
		if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return err
		}
		present = err == nil && attrs.Size == r.size
	}
	if present {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
		if !t.opts.DryRun {
			t.report.PresentBlobs++
			return nil
		}
	} else {
		err := durable.Write(ctx, t.opts.Bucket, string(key), r.size, r)
		if wrong, ok := errors.AsType[*durable.SizeError](err); ok {
			return &Error{Code: ErrBlobDamaged, Err: &BlobError{Key: key, Problem: wrong.Problem}}
		} else if err != nil {
			return err
		}
	}
	t.report.Blobs++
	t.report.BlobBytes += r.size
	return nil
}

// pieceReader reads a blob from its lines, and fails in place of its last bytes
// unless they are those of the key.
type pieceReader struct {
	im     *importer
	key    BlobKey
	size   int64
	offset int64 // behind the piece
	piece  []byte
	begun  bool
	sum    interface {
		io.Writer
		Sum([]byte) []byte
	}
}

// fill reads the next line.
func (r *pieceReader) fill() error {
	l, err := r.im.next()
	if errors.Is(err, io.EOF) {
		return &Error{Code: ErrInvalidArgument, Message: fmt.Sprintf("the export was cut before the end of blob %s", r.key)}
	} else if err != nil {
		return err
	}
	b := l.Blob
	switch {
	case b == nil || b.Key != r.key || b.Offset != r.offset:
		return fmt.Errorf("is not the piece of blob %s from byte %d on", r.key, r.offset)
	case !r.begun && b.Size < 0, r.begun && b.Size != r.size, int64(len(b.Data)) > b.Size-b.Offset, len(b.Data) == 0 && b.Size > 0:
		return fmt.Errorf("a piece of blob %s has the wrong length", r.key)
	}
	r.begun, r.size, r.piece = true, b.Size, b.Data
	r.offset += int64(len(b.Data))
	r.sum.Write(b.Data)
	if want, _ := r.key.Digest(); r.offset == r.size && Digest(r.sum.Sum(nil)) != want {
		return &Error{Code: ErrBlobDamaged, Err: &BlobError{Key: r.key, Problem: "has other bytes in the export than its name says"}}
	}
	return nil
}

func (r *pieceReader) Read(p []byte) (int, error) {
	if len(r.piece) == 0 {
		if r.offset == r.size {
			return 0, io.EOF
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// flush adopts the batch, and ends the thread if it is the last one.
func (t *threadImport) flush(ctx context.Context, isLast bool) (err error) {
	var end *exportThread
	if isLast {
		end = &t.head
	}
	if t.opts.DryRun {
		err = t.store.planAdoption(ctx, t.head.ID, t.batch, end, &t.after)
	} else {
		err = t.store.adopt(ctx, t.w, t.batch, end, &t.after)
	}
	if err != nil {
		return err
	}
	for _, a := range t.batch {
		if a.present {
			t.report.PresentCheckpoints++
		} else {
			t.report.Checkpoints++
		}
	}
	t.batch = t.batch[:0]
	return nil
}

// adopted is a checkpoint that becomes one of the store's as it is, with its
// parent, whether that exists or not.
type adopted struct {
	version *version
	present bool // the store has it; set by the transaction
}

func readAdopted(l exportLine, thread ThreadID) (adopted, error) {
	var c Checkpoint
	if err := json.Unmarshal(l.Checkpoint, &c); err != nil {
		return adopted{}, err
	}
	if err := restoreExact(c.Conversation, l.Exact); err != nil {
		return adopted{}, err
	}
	if c.ThreadID != thread {
		return adopted{}, fmt.Errorf("checkpoint %q is of thread %q, and stands with those of %q", c.ID, c.ThreadID, thread)
	}
	if err := validateOptionalID("forkedFrom", l.ForkedFrom); err != nil {
		return adopted{}, err
	}
	if err := errors.Join(c.ValidateIDs(), c.Validate()); err != nil {
		return adopted{}, err
	}
	h := headerOf(&c)
	h.source = l.ForkedFrom
	return adopted{version: &version{record: &record{header: h}, lists: contentOf(&c)}}, nil
}

// adoptedState is how far the adoption of a thread has come.
type adoptedState struct {
	last  position // of the checkpoint that was passed over or added last
	added bool     // whether one was added
}

// planAdoption checks a batch without a lease and without changing anything.
func (s *Store) planAdoption(ctx context.Context, thread ThreadID, batch []adopted, end *exportThread, after *adoptedState) error {
	return s.read(ctx, "plan import", func(tx *bolt.Tx) error {
		n, err := getThread(tx, thread)
		if err != nil {
			return err
		}
		state := *after
		if err := s.checkAdoption(tx, n, batch, &state); err != nil {
			return err
		}
		if end != nil && !after.added { // otherwise the head is one that is only planned
			if err := checkFinish(tx, n, batch, *end); err != nil {
				return err
			}
		}
		*after = state
		return nil
	})
}

// adopt adds the checkpoints to the thread of w, oldest first, and passes over
// those that it has. With the last of them, end makes the thread what it was.
func (s *Store) adopt(ctx context.Context, w Writer, batch []adopted, end *exportThread, after *adoptedState) error {
	var state adoptedState
	err := s.update(ctx, "adopt", func(tx *bolt.Tx, now time.Time) error {
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			return err
		}
		state = *after
		if err := s.checkAdoption(tx, n, batch, &state); err != nil {
			return err
		}
		if end != nil {
			if err := checkFinish(tx, n, batch, *end); err != nil {
				return err
			}
		}
		for _, a := range batch {
			if a.present {
				continue
			}
			h, err := getHead(tx, n)
			if err != nil {
				return err
			}
			if err := s.appendVersion(tx, n, h, a.version); err != nil {
				return err
			}
			state.last = a.version.pos
		}
		if end != nil {
			return s.finish(tx, n, *end, state.added)
		}
		return nil
	})
	if err == nil {
		*after = state
	}
	return err
}

// checkAdoption decides which of the batch the store has already, and refuses
// what does not fit behind what it has. It makes all the checks that adopt needs.
func (s *Store) checkAdoption(tx *bolt.Tx, n threadNumber, batch []adopted, state *adoptedState) error {
	h, err := getHead(tx, n)
	if err != nil {
		return err
	}
	seen := map[CheckpointID]bool{}
	for i := range batch {
		a := &batch[i]
		v := a.version
		if seen[v.id] {
			return &Error{Code: ErrDuplicateID, Message: fmt.Sprintf("checkpoint %q stands twice in the export", v.id)}
		}
		seen[v.id] = true
		p, exists, err := getPlace(tx, v.id)
		if err != nil {
			return err
		}
		if a.present = exists; exists {
			if err := sameAsStored(tx, n, p, v); err != nil {
				return err
			}
			if state.added || p.pos <= state.last {
				return &Error{Code: ErrDuplicateID, Message: fmt.Sprintf("checkpoint %q exists, and stands in another order", v.id)}
			}
			state.last = p.pos
			continue
		}
		if newest := h.newest(); !state.added && newest != state.last {
			top, err := getHeader(tx, place{n, newest})
			if err != nil {
				return err
			}
			return &Error{Code: ErrStaleHead, Message: fmt.Sprintf("thread %q has checkpoints up to %q that the export lacks, so %q does not fit behind", v.threadID, top.id, v.id)}
		}
		state.added = true
		if err := s.notBeingDeleted(v.lists.uses()); err != nil {
			return err
		}
	}
	return nil
}

// sameAsStored returns nil when the checkpoint at p is the same as v.
func sameAsStored(tx *bolt.Tx, n threadNumber, p place, v *version) error {
	if p.thread != n {
		return &Error{Code: ErrDuplicateID, Message: fmt.Sprintf("checkpoint %q exists in another thread", v.id)}
	}
	old, err := loadVersion(tx, p, nil)
	if err != nil {
		return err
	}
	h := old.header
	h.base = v.base
	if h.source == "" || v.source == "" {
		h.source = v.source // not everybody knows it
	}
	same := h.createdAt.Equal(v.createdAt)
	h.createdAt = v.createdAt
	for kind := range sections {
		same = same && slices.Equal(old.lists[kind], v.lists[kind])
	}
	if !same || h != v.header {
		return &Error{Code: ErrDuplicateID, Message: fmt.Sprintf("checkpoint %q exists, and is not the same", v.id)}
	}
	return nil
}

// checkFinish refuses an export whose head is not the one that the thread will
// have when the batch is adopted.
func checkFinish(tx *bolt.Tx, n threadNumber, batch []adopted, t exportThread) error {
	h, err := getHead(tx, n)
	if err != nil {
		return err
	}
	head, err := headID(tx, n, h)
	if err != nil {
		return err
	}
	for _, a := range batch {
		if !a.present {
			head = a.version.id
		}
	}
	if t.Head != "" && t.Head != head {
		return &Error{Code: ErrStaleHead, Err: &StaleHeadError{ThreadID: t.ID, Expected: t.Head, Actual: head}}
	}
	return nil
}

// finish raises the fence of the thread to that of the export, and takes the head
// away where the thread had none there, unless it is the store's own.
func (s *Store) finish(tx *bolt.Tx, n threadNumber, t exportThread, added bool) error {
	fence, err := getFence(tx, n)
	if err != nil {
		return err
	}
	if t.LastFence > fence {
		if err := tx.Bucket(bucketFences).Put(n.key(), u64(uint64(t.LastFence))); err != nil {
			return err
		}
	}
	if t.Head != "" || !added {
		return nil
	}
	h, err := getHead(tx, n)
	if err != nil {
		return err
	}
	return s.dropHead(tx, n, h)
}
