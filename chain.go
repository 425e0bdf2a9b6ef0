package checkpointdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// This file holds the chain of a thread: reading and changing the buckets ids,
// checkpoints and heads. What a change means for blobs is in refcount.go.

func getThread(tx *bolt.Tx, id ThreadID) (threadNumber, error) {
	v := tx.Bucket(bucketThreads).Get([]byte(id))
	if v == nil {
		return 0, nil
	}
	n, err := parseU64(v)
	if err != nil {
		return 0, damagedAt(bucketThreads, []byte(id), err)
	}
	return threadNumber(n), nil
}

func createThread(tx *bolt.Tx, id ThreadID) (threadNumber, error) {
	n, err := getThread(tx, id)
	if n != 0 || err != nil {
		return n, err
	}
	b := tx.Bucket(bucketThreads)
	seq, err := b.NextSequence()
	if err != nil {
		return 0, err
	}
	return threadNumber(seq), b.Put([]byte(id), u64(seq))
}

func getHead(tx *bolt.Tx, n threadNumber) (headRow, error) {
	h, err := parseHeadRow(tx.Bucket(bucketHeads).Get(n.key()))
	if err != nil {
		return headRow{}, damagedAt(bucketHeads, n.key(), err)
	}
	return h, nil
}

// putHead writes the row, or deletes it with the thread's last record.
func putHead(tx *bolt.Tx, n threadNumber, h headRow) error {
	if len(h.live) == 0 {
		return tx.Bucket(bucketHeads).Delete(n.key())
	}
	return tx.Bucket(bucketHeads).Put(n.key(), h.encode())
}

// getPlace returns where a checkpoint lies; ok is false when it does not exist.
func getPlace(tx *bolt.Tx, id CheckpointID) (p place, ok bool, err error) {
	v := tx.Bucket(bucketIDs).Get([]byte(id))
	if v == nil {
		return place{}, false, nil
	}
	p, err = parsePlace(v)
	if err != nil {
		return place{}, false, damagedAt(bucketIDs, []byte(id), err)
	}
	return p, true, nil
}

func getHeader(tx *bolt.Tx, p place) (header, error) {
	h, _, err := parseHeader(tx.Bucket(bucketCheckpoints).Get(p.key()))
	if err != nil {
		return header{}, damagedAt(bucketCheckpoints, p.key(), err)
	}
	return h, nil
}

// getRecord returns a record whose payloads die with the transaction.
func getRecord(tx *bolt.Tx, p place) (*record, error) {
	v := tx.Bucket(bucketCheckpoints).Get(p.key())
	if v == nil {
		return nil, damagedAt(bucketCheckpoints, p.key(), fmt.Errorf("record is missing"))
	}
	rec, err := parseRecord(v)
	if err == nil && rec.base >= p.pos {
		err = errRow
	}
	if err != nil {
		return nil, damagedAt(bucketCheckpoints, p.key(), err)
	}
	return rec, nil
}

// headID returns the id of the checkpoint at the head of a thread, "" for none.
func headID(tx *bolt.Tx, n threadNumber, h headRow) (CheckpointID, error) {
	if h.head == 0 {
		return "", nil
	}
	top, err := getHeader(tx, place{n, h.head})
	return top.id, err
}

// version is a checkpoint in memory: its record and its lists.
type version struct {
	place
	*record
	lists content
}

// loadVersion reads a checkpoint. known, which may be nil, is one that was read
// before; where the differences lead to it, its lists spare reading further
// back.
func loadVersion(tx *bolt.Tx, p place, known *version) (*version, error) {
	top, err := getRecord(tx, p)
	if err != nil {
		return nil, err
	}
	v := &version{place: p, record: top}
	chain := []*record{top} // from p back, as far as some list needs
	for kind := range sections {
		// Back to where the list is known or stored in full,
		var items []string
		depth := 0
		for chain[depth].sections[kind].depth > 0 {
			base := place{p.thread, chain[depth].base}
			if known != nil && known.place == base {
				items = known.lists[kind]
				break
			}
			if depth++; depth == len(chain) {
				rec, err := getRecord(tx, base)
				if err != nil {
					return nil, err
				}
				chain = append(chain, rec)
			}
		}
		// and forward from there.
		for ; depth >= 0; depth-- {
			if items, err = chain[depth].sections[kind].build(kind, items); err != nil {
				break
			}
		}
		if err == nil {
			err = top.sections[kind].verify(items)
		}
		if err != nil {
			return nil, damagedAt(bucketCheckpoints, p.key(), fmt.Errorf("%s: %w", kind, err))
		}
		v.lists[kind] = items
	}
	return v, nil
}

// headCache holds the heads of threads that were written lately, so that the
// next Append need not read what it is compared with. It mirrors the file
// exactly: every change of a chain updates it inside its transaction, and a
// transaction that fails clears it.
type headCache struct {
	versions map[threadNumber]*version
	items    int // over all versions
}

// maxCachedItems bounds the cache, at some 100 bytes an item; conversations
// count by their length.
const maxCachedItems = 500_000

func (v *version) weight() int {
	n := 1
	for kind, items := range v.lists {
		n += len(items)
		if sectionKind(kind) == sectionConversation {
			for _, item := range items {
				n += len(item) / 100
			}
		}
	}
	return n
}

func (c *headCache) clear() { *c = headCache{} }

func (c *headCache) drop(n threadNumber) {
	if v := c.versions[n]; v != nil {
		c.items -= v.weight()
		delete(c.versions, n)
	}
}

func (c *headCache) put(v *version) {
	c.drop(v.thread)
	weight := v.weight()
	if weight > maxCachedItems {
		return
	}
	for n := range c.versions {
		if c.items+weight <= maxCachedItems {
			break
		}
		c.drop(n)
	}
	if c.versions == nil {
		c.versions = map[threadNumber]*version{}
	}
	for kind := range v.sections {
		v.sections[kind].payload = nil // dies with the transaction, and nobody needs it
	}
	c.versions[v.thread] = v
	c.items += weight
}

// loadHead returns the version at the head of a thread, inside a write
// transaction.
func (s *Store) loadHead(tx *bolt.Tx, p place) (*version, error) {
	if v := s.heads.versions[p.thread]; v != nil && v.pos == p.pos {
		return v, nil
	}
	return loadVersion(tx, p, nil)
}

// Get implements [CheckpointStore].
func (s *Store) Get(ctx context.Context, id CheckpointID) (Checkpoint, error) {
	if err := id.Validate(); err != nil {
		return Checkpoint{}, withOp("get", err)
	}
	var v *version
	err := s.read(ctx, "get", func(tx *bolt.Tx) error {
		p, ok, err := getPlace(tx, id)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Code: ErrCheckpointNotFound, Message: fmt.Sprintf("no checkpoint %q", id)}
		}
		v, err = loadVersion(tx, p, nil)
		return err
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return v.checkpoint()
}

// checkpoint is the exported form; it shares nothing with the version that the
// caller could change.
func (v *version) checkpoint() (Checkpoint, error) {
	c, err := v.header.checkpoint(v.lists)
	if err != nil {
		return Checkpoint{}, damagedAt(bucketCheckpoints, v.key(), err)
	}
	return c, nil
}

// Head implements [CheckpointStore].
func (s *Store) Head(ctx context.Context, thread ThreadID) (id CheckpointID, err error) {
	if err := thread.Validate(); err != nil {
		return "", withOp("head", err)
	}
	err = s.read(ctx, "head", func(tx *bolt.Tx) error {
		n, err := getThread(tx, thread)
		if n == 0 || err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		id, err = headID(tx, n, h)
		return err
	})
	return id, err
}

// List implements [CheckpointStore]. It reads the ids and times in one short
// transaction and then each checkpoint in its own.
func (s *Store) List(ctx context.Context, thread ThreadID) iter.Seq2[Checkpoint, error] {
	return func(yield func(Checkpoint, error) bool) {
		if err := thread.Validate(); err != nil {
			yield(Checkpoint{}, withOp("list", err))
			return
		}
		var rows []row
		err := s.read(ctx, "list", func(tx *bolt.Tx) error {
			n, err := getThread(tx, thread)
			if n == 0 || err != nil {
				return err
			}
			rows, err = listRows(tx, n)
			return err
		})
		if err != nil {
			yield(Checkpoint{}, err)
			return
		}
		slices.SortFunc(rows, func(a, b row) int {
			if c := a.createdAt.Compare(b.createdAt); c != 0 {
				return c
			}
			return strings.Compare(string(a.id), string(b.id))
		})
		var v *version
		for _, r := range rows {
			before := v
			err := s.read(ctx, "list", func(tx *bolt.Tx) error {
				v = nil
				p, ok, err := getPlace(tx, r.id)
				if err != nil || !ok || p != r.place {
					return err // deleted since
				}
				if before != nil {
					// A place names the same checkpoint for ever only while the
					// thread lives.
					if at, ok, err := getPlace(tx, before.id); err != nil || !ok || at != before.place {
						before = nil
					}
				}
				v, err = loadVersion(tx, p, before)
				return err
			})
			if err == nil && v == nil {
				continue
			}
			var c Checkpoint
			if err == nil {
				c, err = v.checkpoint()
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// row is a checkpoint without its lists, and where it lies.
type row struct {
	place
	header
}

// listRows returns the checkpoints of a thread, oldest on the chain first.
func listRows(tx *bolt.Tx, n threadNumber) (rows []row, err error) {
	c := tx.Bucket(bucketCheckpoints).Cursor()
	prefix := n.key()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		p, err := parsePlace(k)
		if err != nil {
			return nil, damagedAt(bucketCheckpoints, k, err)
		}
		h, _, err := parseHeader(v)
		if err != nil {
			return nil, damagedAt(bucketCheckpoints, k, err)
		}
		rows = append(rows, row{p, h})
	}
	return rows, nil
}

// Append implements [CheckpointStore]. What it writes follows the difference to
// the head: the record holds the changes, and only blobs that come or go touch
// the reference counts.
func (s *Store) Append(ctx context.Context, w Writer, c Checkpoint, expectedHead CheckpointID) error {
	const op = "append"
	if err := c.ValidateIDs(); err != nil {
		return withOp(op, err)
	}
	if err := validateOptionalID("expected head", expectedHead); err != nil {
		return withOp(op, err)
	}
	if err := w.ThreadID.Validate(); err != nil {
		return withOp(op, err)
	}
	if err := c.Validate(); err != nil {
		return withOp(op, err)
	}
	next := &version{record: &record{header: headerOf(&c)}, lists: contentOf(&c)}
	return s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := currentWriter(tx, w, c.ThreadID, now)
		if err != nil {
			return err
		}
		if _, used, err := getPlace(tx, c.ID); err != nil {
			return err
		} else if used {
			return &Error{Code: ErrDuplicateID, Message: fmt.Sprintf("checkpoint %q exists", c.ID)}
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		actual, err := headID(tx, n, h)
		if err != nil {
			return err
		}
		if actual != expectedHead {
			return &Error{Code: ErrStaleHead, Err: &StaleHeadError{ThreadID: c.ThreadID, Expected: expectedHead, Actual: actual}}
		}
		if c.ParentCheckpointID != expectedHead {
			return &Error{Code: ErrParentMismatch, Message: fmt.Sprintf("parent %q of checkpoint %q is not the head %q", c.ParentCheckpointID, c.ID, expectedHead)}
		}
		return s.appendVersion(tx, n, h, next)
	})
}

// appendVersion makes v the head of a thread whose head row is h. Its one check,
// for blobs that are being deleted, comes before the first write.
func (s *Store) appendVersion(tx *bolt.Tx, n threadNumber, h headRow, v *version) error {
	v.place = place{n, h.next}
	v.base = 0
	var opened, closed []blobID
	if h.head == 0 {
		for kind := range sections {
			v.sections[kind] = fullSection(kind, v.lists[kind])
		}
		opened = v.lists.blobs()
	} else {
		before, err := s.loadHead(tx, place{n, h.head})
		if err != nil {
			return err
		}
		v.base = h.head
		for kind := range sections {
			d := diff(before.lists[kind], v.lists[kind])
			v.sections[kind] = nextSection(kind, before.sections[kind], v.lists[kind], d)
			opened = append(opened, blobsOf(kind, d.inserted)...)
			closed = append(closed, blobsOf(kind, d.dropped)...)
		}
		opened, closed = sortBlobs(opened), v.lists.without(sortBlobs(closed))
	}
	if err := s.notBeingDeleted(opened); err != nil {
		return err
	}
	if err := tx.Bucket(bucketIDs).Put([]byte(v.id), v.key()); err != nil {
		return err
	}
	if err := tx.Bucket(bucketCheckpoints).Put(v.key(), v.encode()); err != nil {
		return err
	}
	if err := openRuns(tx, n, v.pos, opened); err != nil {
		return err
	}
	if err := closeRuns(tx, n, h.head, closed); err != nil {
		return err
	}
	s.heads.put(v)
	return putHead(tx, n, h.add())
}

// DeleteHead implements [CheckpointStore].
func (s *Store) DeleteHead(ctx context.Context, w Writer, id CheckpointID) error {
	const op = "delete head"
	if err := w.ThreadID.Validate(); err != nil {
		return withOp(op, err)
	}
	if err := id.Validate(); err != nil {
		return withOp(op, err)
	}
	return s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		actual, err := headID(tx, n, h)
		if err != nil {
			return err
		}
		if actual == "" || actual != id {
			return &Error{Code: ErrNotHead, Message: fmt.Sprintf("checkpoint %q is not the head of thread %q, which is %q", id, w.ThreadID, actual)}
		}
		return s.deleteHead(tx, n, h, now)
	})
}

// deleteHead undoes what appendVersion did for the head, and no more.
func (s *Store) deleteHead(tx *bolt.Tx, n threadNumber, h headRow, now time.Time) error {
	top, err := s.loadHead(tx, place{n, h.head})
	if err != nil {
		return err
	}
	var before *version
	if top.parent != "" {
		p, ok, err := getPlace(tx, top.parent)
		if err != nil {
			return err
		}
		// A pruned parent's id may have been used again, elsewhere or, in a
		// later chain of this thread, further on.
		if ok && p.thread == n && h.isLive(p.pos) && p.pos == h.before(h.head) {
			if before, err = loadVersion(tx, p, nil); err != nil {
				return err
			}
		}
	}
	left := h.withoutNewest()
	var gone []blobID
	if before != nil {
		left.head = before.pos
		var reopened []blobID
		for kind := range sections {
			d := diff(before.lists[kind], top.lists[kind])
			gone = append(gone, blobsOf(kind, d.inserted)...)
			reopened = append(reopened, blobsOf(kind, d.dropped)...)
		}
		if err := reopenRuns(tx, n, before.pos, top.lists.without(sortBlobs(reopened))); err != nil {
			return err
		}
	} else {
		left.head = 0
		gone = top.lists.blobs()
	}
	gone = sortBlobs(gone)
	if err := dropRuns(tx, n, left, gone, now); err != nil {
		return err
	}
	if left.head == 0 {
		// What is left of the runs covers older survivors, the newest at most.
		if err := closeRuns(tx, n, left.newest(), gone); err != nil {
			return err
		}
	}
	if err := tx.Bucket(bucketIDs).Delete([]byte(top.id)); err != nil {
		return err
	}
	if err := tx.Bucket(bucketCheckpoints).Delete(top.key()); err != nil {
		return err
	}
	s.heads.drop(n)
	if before != nil {
		s.heads.put(before)
	}
	return putHead(tx, n, left)
}

// DeleteCheckpoints implements [Pruner].
func (s *Store) DeleteCheckpoints(ctx context.Context, w Writer, keep int) ([]CheckpointID, error) {
	const op = "delete checkpoints"
	if err := w.ThreadID.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	if err := validateKeep(keep); err != nil {
		return nil, withOp(op, err)
	}
	return s.prune(ctx, op, w, PrunePolicy{KeepLast: keep})
}

// Prune implements [PolicyPruner].
func (s *Store) Prune(ctx context.Context, w Writer, policy PrunePolicy) ([]CheckpointID, error) {
	const op = "prune"
	if err := w.ThreadID.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	if err := policy.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	return s.prune(ctx, op, w, policy)
}

func (s *Store) prune(ctx context.Context, op string, w Writer, policy PrunePolicy) (deleted []CheckpointID, err error) {
	err = s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		deleted = nil
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		rows, err := listRows(tx, n)
		if err != nil {
			return err
		}
		var kept, gone []row
		for i, r := range rows {
			if r.pos == h.head || policy.Keeps(len(rows)-1-i, r.createdAt, r.reason, now) {
				kept = append(kept, r)
			} else {
				gone = append(gone, r)
				deleted = append(deleted, r.id)
			}
		}
		if policy.DryRun || len(gone) == 0 {
			return nil
		}
		return s.deleteRows(tx, n, h, kept, gone, now)
	})
	return deleted, err
}

// deleteRows deletes checkpoints of a thread, none of which is the head.
func (s *Store) deleteRows(tx *bolt.Tx, n threadNumber, h headRow, kept, gone []row, now time.Time) error {
	positions := make([]position, len(kept))
	for i, r := range kept {
		positions[i] = r.pos
	}
	left := h.only(positions)
	// Only what was new in a deleted checkpoint can be out of use now: what it
	// shared with the one before was new there, or is kept there.
	var blobs []blobID
	for _, r := range gone {
		rec, err := getRecord(tx, r.place)
		if err != nil {
			return err
		}
		for kind, section := range rec.sections {
			var items []string
			if section.depth == 0 {
				items, err = section.build(sectionKind(kind), nil)
			} else {
				_, items, err = section.parts(sectionKind(kind))
			}
			if err != nil {
				return damagedAt(bucketCheckpoints, r.key(), err)
			}
			blobs = append(blobs, blobsOf(sectionKind(kind), items)...)
		}
	}
	// A survivor whose base goes is stored in full.
	checkpoints := tx.Bucket(bucketCheckpoints)
	for _, r := range kept {
		if r.base == 0 || left.isLive(r.base) {
			continue
		}
		v, err := loadVersion(tx, r.place, nil)
		if err != nil {
			return err
		}
		v.base = 0
		for kind := range sections {
			v.sections[kind] = fullSection(kind, v.lists[kind])
		}
		if err := checkpoints.Put(v.key(), v.encode()); err != nil {
			return err
		}
	}
	ids := tx.Bucket(bucketIDs)
	for _, r := range gone {
		if err := ids.Delete([]byte(r.id)); err != nil {
			return err
		}
		if err := checkpoints.Delete(r.key()); err != nil {
			return err
		}
	}
	if err := dropRuns(tx, n, left, sortBlobs(blobs), now); err != nil {
		return err
	}
	// The cached head is the same checkpoint still, but may be stored anew.
	s.heads.drop(n)
	return putHead(tx, n, left)
}

// Fork implements [Forker].
func (s *Store) Fork(ctx context.Context, w Writer, req ForkRequest) (Checkpoint, error) {
	const op = "fork"
	for _, err := range []error{
		req.SourceThreadID.Validate(), req.SourceCheckpointID.Validate(),
		req.DestinationThreadID.Validate(), req.DestinationCheckpointID.Validate(), w.ThreadID.Validate(),
		ValidateTime("createdAt", req.CreatedAt),
	} {
		if err != nil {
			return Checkpoint{}, withOp(op, err)
		}
	}
	if req.SourceThreadID == req.DestinationThreadID {
		return Checkpoint{}, &Error{Code: ErrForkSourceThreadMismatch, Op: op, Message: fmt.Sprintf("source and destination are the one thread %q", req.SourceThreadID)}
	}
	var v *version
	err := s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		p, ok, err := getPlace(tx, req.SourceCheckpointID)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Code: ErrForkSourceNotFound, Message: fmt.Sprintf("no checkpoint %q", req.SourceCheckpointID)}
		}
		if source, err := getThread(tx, req.SourceThreadID); err != nil {
			return err
		} else if source != p.thread {
			return &Error{Code: ErrForkSourceThreadMismatch, Message: fmt.Sprintf("checkpoint %q is not of thread %q", req.SourceCheckpointID, req.SourceThreadID)}
		}
		n, err := currentWriter(tx, w, req.DestinationThreadID, now)
		if err != nil {
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		if len(h.live) > 0 || tx.Bucket(bucketTranscripts).Get(n.key()) != nil {
			return &Error{Code: ErrForkDestinationNotEmpty, Message: fmt.Sprintf("thread %q has checkpoints or a transcript", req.DestinationThreadID)}
		}
		if _, used, err := getPlace(tx, req.DestinationCheckpointID); err != nil {
			return err
		} else if used {
			return &Error{Code: ErrForkDestinationNotEmpty, Message: fmt.Sprintf("checkpoint %q exists", req.DestinationCheckpointID)}
		}
		source, err := loadVersion(tx, p, nil)
		if err != nil {
			return err
		}
		v = &version{record: &record{header: header{
			id: req.DestinationCheckpointID, threadID: req.DestinationThreadID,
			createdAt: req.CreatedAt.Round(0).UTC(), reason: ReasonForkRoot,
		}}, lists: source.lists}
		if err := s.appendVersion(tx, n, h, v); err != nil {
			return err
		}
		return putTranscript(tx, n, v.lists[sectionConversation])
	})
	if err != nil {
		return Checkpoint{}, err
	}
	return v.checkpoint()
}

// DeleteThread implements [ThreadDeleter].
func (s *Store) DeleteThread(ctx context.Context, w Writer) error {
	const op = "delete thread"
	if err := w.ThreadID.Validate(); err != nil {
		return withOp(op, err)
	}
	return s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			if n != 0 && isDeletedBy(tx, w, n) {
				return nil
			}
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		rows, err := listRows(tx, n)
		if err != nil {
			return err
		}
		h.head = 0
		if err := s.deleteRows(tx, n, h, nil, rows, now); err != nil {
			return err
		}
		if err := tx.Bucket(bucketTranscripts).Delete(n.key()); err != nil {
			return err
		}
		return tx.Bucket(bucketWriters).Delete(n.key())
	})
}

// isDeletedBy tells whether w is the last writer of a thread that has neither
// state nor lease, as DeleteThread leaves it. The token is gone with the lease;
// the fence alone must do, and nothing is changed on its word.
func isDeletedBy(tx *bolt.Tx, w Writer, n threadNumber) bool {
	return tx.Bucket(bucketHeads).Get(n.key()) == nil &&
		tx.Bucket(bucketTranscripts).Get(n.key()) == nil &&
		tx.Bucket(bucketWriters).Get(n.key()) == nil &&
		bytes.Equal(tx.Bucket(bucketFences).Get(n.key()), binary.BigEndian.AppendUint64(nil, uint64(w.Fence)))
}
