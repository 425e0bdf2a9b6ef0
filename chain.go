package checkpointdb

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// This file holds the chain of a thread: the buckets ids, checkpoints and heads,
// and how they change together. What a change means for blobs is in refcount.go.

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
		// Back to where the list is known or stored in full.
		links := []section{top.sections[kind]}
		var base []string
		for depth := 0; links[depth].depth > 0; {
			at := place{p.thread, chain[depth].base}
			if known != nil && known.place == at {
				base = known.lists[kind]
				break
			}
			if depth++; depth == len(chain) {
				rec, err := getRecord(tx, at)
				if err != nil {
					return nil, err
				}
				chain = append(chain, rec)
			}
			links = append(links, chain[depth].sections[kind])
		}
		items, err := buildList(kind, links, base)
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

// loadHead returns the version at the head of a thread, inside a write
// transaction.
func (s *Store) loadHead(tx *bolt.Tx, p place) (*version, error) {
	if v := s.heads.get(p.thread); v != nil && v.pos == p.pos {
		return v, nil
	}
	return loadVersion(tx, p, nil)
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
	known := s.recent.get(c.ThreadID)
	matches := known.match(c.Files)
	if err := c.validate(known, matches); err != nil {
		return withOp(op, err)
	}
	next := &version{record: &record{header: headerOf(&c)}, lists: encodeContent(&c, known, matches)}
	err := s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
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
	if err == nil {
		s.recent.put(c.ThreadID, &encoded{files: slices.Clone(c.Files), lists: next.lists})
	}
	return err
}

// appendVersion makes v the head of a thread whose head row is h. Its one check,
// for blobs that are being deleted, comes before the first write.
func (s *Store) appendVersion(tx *bolt.Tx, n threadNumber, h headRow, v *version) error {
	v.place = place{n, h.next}
	v.base = 0
	var opened []use
	var closed []blobID
	if h.head == 0 {
		for kind := range sections {
			v.sections[kind] = fullSection(kind, v.lists[kind])
		}
		opened = v.lists.uses()
	} else {
		before, err := s.loadHead(tx, place{n, h.head})
		if err != nil {
			return err
		}
		// What is not the parent is a survivor behind a gap, as repair and import
		// find them. Full after a gap: then the base of a record is always its
		// parent, and records alone tell what to build on what.
		gap := before.id != v.parent
		if !gap {
			v.base = h.head
		}
		for kind := range sections {
			d := diff(before.lists[kind], v.lists[kind])
			if gap {
				v.sections[kind] = fullSection(kind, v.lists[kind])
			} else {
				v.sections[kind] = nextSection(kind, before.sections[kind], v.lists[kind], d)
			}
			opened = append(opened, usesOf(kind, d.inserted)...)
			closed = append(closed, blobsOf(kind, d.dropped)...)
		}
		closed = v.lists.without(sortBlobs(closed))
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
	if err := moveEnds(tx, n, closed, 0, h.head); err != nil {
		return err
	}
	if err := dropPins(tx, n, opened); err != nil {
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
		if err := moveEnds(tx, n, top.lists.without(sortBlobs(reopened)), before.pos, 0); err != nil {
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
		if err := moveEnds(tx, n, gone, 0, left.newest()); err != nil {
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

// dropHead leaves the thread without a head and its checkpoints as they are, as
// deleteHead does when the parent of the head was pruned.
func (s *Store) dropHead(tx *bolt.Tx, n threadNumber, h headRow) error {
	top, err := s.loadHead(tx, place{n, h.head})
	if err != nil {
		return err
	}
	if err := moveEnds(tx, n, top.lists.blobs(), 0, h.head); err != nil {
		return err
	}
	s.heads.drop(n)
	h.head = 0
	return putHead(tx, n, h)
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
				items, err = parsePacked(section.payload, sectionKind(kind))
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
