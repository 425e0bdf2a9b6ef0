package checkpointdb

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A blob's reference count is kept as runs (bucketlayout.go): in thread t it is
// used from position first to position last. Append opens runs for blobs that
// the parent lacks and closes those of blobs it drops, so what stays the same
// from one checkpoint to the next costs nothing. The count is the number of live
// positions that the runs cover.
//
// Invariants kept here (design §4): the runs of one blob in one thread are
// disjoint, at most one is open, and exactly the blobs of the head have an open
// one (5); every run covers a live position, so a blob with a run is in use (4);
// a blob without a run that once had one has a garbage row (7).

// Cursors here only ever seek and go forward. In a transaction that has deleted
// rows, bbolt leaves empty pages behind, on which Prev stops as if nothing came
// before them, and Last never ends when there is nothing else (v1.5.0).

// firstRun returns the oldest run of a blob in a thread that starts at from or
// later.
func firstRun(c *bolt.Cursor, id blobID, n threadNumber, from position) (r run, ok bool, err error) {
	k, v := c.Seek(runKey(id, n, from))
	return runAt(k, v, runPrefix(id, n))
}

// lastRun returns the newest run of a blob in a thread. It passes over the older
// ones: a blob has as many as it came back after it was gone.
func lastRun(c *bolt.Cursor, id blobID, n threadNumber) (last run, ok bool, err error) {
	prefix := runPrefix(id, n)
	for k, v := c.Seek(prefix); ; k, v = c.Next() {
		r, more, err := runAt(k, v, prefix)
		if !more || err != nil {
			return last, ok, err
		}
		last, ok = r, true
	}
}

// runAt reads a row if its key starts with prefix.
func runAt(k, v, prefix []byte) (r run, ok bool, err error) {
	if !bytes.HasPrefix(k, prefix) {
		return run{}, false, nil
	}
	if r, err = parseRun(k, v); err != nil {
		return run{}, false, damagedAt(bucketRefcounts, k, err)
	}
	return r, true, nil
}

func isReferenced(c *bolt.Cursor, id blobID) bool {
	k, _ := c.Seek(id[:])
	return bytes.HasPrefix(k, id[:])
}

// openRuns starts a run at p for each of the blobs that has no open one. The
// blobs are in use from then on, so they are garbage no more.
func openRuns(tx *bolt.Tx, n threadNumber, p position, uses []use) error {
	refs, garbage := tx.Bucket(bucketRefcounts), tx.Bucket(bucketGarbage)
	c := refs.Cursor()
	for _, u := range uses {
		r, ok, err := lastRun(c, u.blob, n)
		if err != nil {
			return err
		}
		if ok && r.last == 0 {
			continue
		}
		r = run{blob: u.blob, thread: n, first: p, size: u.size}
		if err := refs.Put(r.key(), r.value()); err != nil {
			return err
		}
		if err := garbage.Delete(u.blob[:]); err != nil {
			return err
		}
	}
	return nil
}

// moveEnds moves the end of those runs of the blobs that are the newest and end at
// from. 0, as from or to, is an open end.
func moveEnds(tx *bolt.Tx, n threadNumber, blobs []blobID, from, to position) error {
	refs := tx.Bucket(bucketRefcounts)
	c := refs.Cursor()
	for _, id := range blobs {
		r, ok, err := lastRun(c, id, n)
		if err != nil {
			return err
		}
		if !ok || r.last != from {
			continue
		}
		r.last = to
		if err := refs.Put(r.key(), r.value()); err != nil {
			return err
		}
	}
	return nil
}

// dropRuns deletes the runs of the blobs that cover no live position of h any
// more, and remembers as garbage the blobs that have no run left at all.
func dropRuns(tx *bolt.Tx, n threadNumber, h headRow, blobs []blobID, now time.Time) error {
	refs, garbage := tx.Bucket(bucketRefcounts), tx.Bucket(bucketGarbage)
	c := refs.Cursor()
	for _, id := range blobs {
		dropped := false
		r, ok, err := firstRun(c, id, n, 0)
		for ; ok && err == nil; r, ok, err = firstRun(c, id, n, r.first+1) {
			if h.count(r.first, r.end()) > 0 {
				continue
			}
			// Delete unsettles the cursor; firstRun seeks anew.
			if err := refs.Delete(r.key()); err != nil {
				return err
			}
			dropped = true
		}
		if err != nil {
			return err
		}
		if dropped && !isReferenced(c, id) {
			if err := garbage.Put(id[:], appendTime(nil, now)); err != nil {
				return err
			}
		}
	}
	return nil
}

// use is a blob with the size that an item gives it, in bytes.
type use struct {
	blob blobID
	size uint64
}

// usesOf returns the blobs that items name, each once, in order. Where items
// disagree about a size, which no honest capture makes them do, it is the largest.
func usesOf(kind sectionKind, items []string) []use {
	uses := make([]use, 0, len(items))
	for _, item := range items {
		if id, ok := kind.blob(item); ok {
			uses = append(uses, use{id, kind.size(item)})
		}
	}
	slices.SortFunc(uses, func(a, b use) int {
		if c := bytes.Compare(a.blob[:], b.blob[:]); c != 0 {
			return c
		}
		return cmp.Compare(b.size, a.size)
	})
	return slices.CompactFunc(uses, func(a, b use) bool { return a.blob == b.blob })
}

// blobsOf returns the ids of the blobs that items name, each once, in order.
func blobsOf(kind sectionKind, items []string) []blobID {
	ids := make([]blobID, 0, len(items))
	for _, item := range items {
		if id, ok := kind.blob(item); ok {
			ids = append(ids, id)
		}
	}
	return sortBlobs(ids)
}

func sortBlobs(ids []blobID) []blobID {
	slices.SortFunc(ids, func(a, b blobID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}

// blobs returns the ids of all blobs of the content, each once, in order.
func (lists content) blobs() []blobID {
	return sortBlobs(append(blobsOf(sectionArtifacts, lists[sectionArtifacts]), blobsOf(sectionFiles, lists[sectionFiles])...))
}

// uses is blobs with their sizes.
func (lists content) uses() []use {
	return append(usesOf(sectionArtifacts, lists[sectionArtifacts]), usesOf(sectionFiles, lists[sectionFiles])...)
}

// without returns those of ids that no item of the content names.
func (lists content) without(ids []blobID) []blobID {
	if len(ids) == 0 {
		return nil
	}
	absent := make(map[blobID]bool, len(ids))
	for _, id := range ids {
		absent[id] = true
	}
	for kind, items := range lists {
		for _, item := range items {
			if id, ok := sectionKind(kind).blob(item); ok {
				delete(absent, id)
			}
		}
	}
	return slices.DeleteFunc(ids, func(id blobID) bool { return !absent[id] })
}

// BlobInfo is a blob that some checkpoint uses.
type BlobInfo struct {
	Key        BlobKey `json:"key"`
	Size       int64   `json:"size"`       // bytes, as the checkpoints say
	References int64   `json:"references"` // checkpoints that use it, over all threads
	Threads    int     `json:"threads"`    // threads that these are of
}

// blobBatch is how many keys Blobs reads in one transaction.
const blobBatch = 2048

// BlobReferences implements [CheckpointStore], as Blobs does its work.
func (s *Store) BlobReferences(ctx context.Context) iter.Seq2[BlobReference, error] {
	return func(yield func(BlobReference, error) bool) {
		for b, err := range s.Blobs(ctx) {
			if !yield(BlobReference{b.Key, b.References}, err) {
				return
			}
		}
	}
}

// Blobs returns every blob that some checkpoint uses, by bytes of the key. It
// reads in short transactions and holds none while the loop's body runs; its
// memory does not grow with the number of keys. An error ends it.
func (s *Store) Blobs(ctx context.Context) iter.Seq2[BlobInfo, error] {
	return func(yield func(BlobInfo, error) bool) {
		from := []byte{}
		for from != nil {
			var batch []BlobInfo
			err := s.read(ctx, "blobs", func(tx *bolt.Tx) (err error) {
				batch, from, err = readBlobs(tx, from, blobBatch)
				return err
			})
			if err != nil {
				yield(BlobInfo{}, err)
				return
			}
			for _, b := range batch {
				if !yield(b, nil) {
					return
				}
			}
		}
	}
}

// readBlobs returns up to limit blobs from the key from on, and where to go on,
// nil at the end.
func readBlobs(tx *bolt.Tx, from []byte, limit int) ([]BlobInfo, []byte, error) {
	var (
		batch  []BlobInfo
		blob   blobID
		thread threadNumber
		info   BlobInfo
		heads  = map[threadNumber]headRow{}
	)
	c := tx.Bucket(bucketRefcounts).Cursor()
	for k, v := c.Seek(from); k != nil; k, v = c.Next() {
		r, err := parseRun(k, v)
		if err != nil {
			return nil, nil, damagedAt(bucketRefcounts, k, err)
		}
		if info.Key == "" || r.blob != blob {
			if info.References > 0 {
				batch = append(batch, info)
			}
			if len(batch) == limit {
				return batch, bytes.Clone(k), nil
			}
			blob, thread, info = r.blob, 0, BlobInfo{Key: r.blob.key()}
		}
		if r.thread != thread {
			thread = r.thread
			info.Threads++
		}
		h, ok := heads[r.thread]
		if !ok {
			if h, err = getHead(tx, r.thread); err != nil {
				return nil, nil, err
			}
			heads[r.thread] = h
		}
		info.References += h.count(r.first, r.end())
		info.Size = max(info.Size, int64(r.size))
	}
	if info.References > 0 {
		batch = append(batch, info)
	}
	return batch, nil, nil
}

// unusedOf returns those of the keys that no checkpoint uses and no live pin
// protects.
func unusedOf(tx *bolt.Tx, now time.Time, keys []BlobKey) (unused []BlobKey, err error) {
	refs, pins := tx.Bucket(bucketRefcounts).Cursor(), tx.Bucket(bucketPins).Cursor()
	leases := map[threadNumber]Fence{}
	for _, key := range keys {
		id, ok := blobIDOf(key)
		if !ok || isReferenced(refs, id) {
			continue
		}
		if pinned, err := isPinned(tx, pins, id, now, leases); err != nil {
			return nil, err
		} else if !pinned {
			unused = append(unused, key)
		}
	}
	return unused, nil
}

// previewUnused returns what claimUnused would claim at this moment, save that
// it does not see what other sweeps have claimed.
func (s *Store) previewUnused(ctx context.Context, keys []BlobKey) (unused []BlobKey, err error) {
	now := s.opts.Clock()
	err = s.read(ctx, "preview unused blobs", func(tx *bolt.Tx) error {
		unused, err = unusedOf(tx, now, keys)
		return err
	})
	return unused, err
}

// claimUnused rechecks, in one transaction, that no checkpoint uses the keys and
// no live pin protects them, and marks those as being deleted; it returns the
// marked ones. Until settleDeleted drops the mark, an Append or Fork that would
// start to use one of them fails with ErrBlobBeingDeleted, and Protect waits. The
// garbage row that it writes makes a sweep that is cut off here go on the next
// time; the mark lives in memory, as no deletion outlives the process.
func (s *Store) claimUnused(ctx context.Context, keys []BlobKey) (claimed []BlobKey, err error) {
	err = s.update(ctx, "claim unused blobs", func(tx *bolt.Tx, now time.Time) error {
		claimed = nil
		unused, err := unusedOf(tx, now, keys)
		if err != nil {
			return err
		}
		garbage := tx.Bucket(bucketGarbage)
		for _, key := range unused {
			id, _ := blobIDOf(key)
			if s.deleting[id] != nil {
				continue
			}
			if garbage.Get(id[:]) == nil {
				if err := garbage.Put(id[:], appendTime(nil, now)); err != nil {
					return err
				}
			}
			claimed = append(claimed, key)
			s.deleting[id] = make(chan struct{})
			s.marked = append(s.marked, id)
		}
		return nil
	})
	return claimed, err
}

// settleDeleted drops the marks of claimUnused: gone are the blobs that are
// deleted, which are forgotten; kept are those that are not, which stay garbage.
func (s *Store) settleDeleted(ctx context.Context, gone, kept []BlobKey) error {
	return s.update(ctx, "settle deleted blobs", func(tx *bolt.Tx, _ time.Time) error {
		garbage := tx.Bucket(bucketGarbage)
		for _, key := range gone {
			if id, ok := blobIDOf(key); ok {
				if err := garbage.Delete(id[:]); err != nil {
					return err
				}
			}
		}
		for _, key := range slices.Concat(gone, kept) {
			if id, ok := blobIDOf(key); ok {
				s.unmark(id)
			}
		}
		return nil
	})
}

// garbageRow is a blob that lost its last reference, and when.
type garbageRow struct {
	key   BlobKey
	since time.Time
}

// listGarbage returns up to limit rows of garbage behind the key after, in the
// order of the keys.
func (s *Store) listGarbage(ctx context.Context, after BlobKey, limit int) (rows []garbageRow, err error) {
	err = s.read(ctx, "list garbage", func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketGarbage).Cursor()
		k, v := c.First()
		if id, ok := blobIDOf(after); ok {
			if k, v = c.Seek(id[:]); bytes.Equal(k, id[:]) {
				k, v = c.Next()
			}
		}
		for ; k != nil && len(rows) < limit; k, v = c.Next() {
			since, err := parseTime(v)
			if err != nil || len(k) != len(blobID{}) {
				return damagedAt(bucketGarbage, k, errRow)
			}
			rows = append(rows, garbageRow{blobID(k).key(), since})
		}
		return nil
	})
	return rows, err
}

// unmark ends what claimUnused began, and lets go on who waits for it.
func (s *Store) unmark(id blobID) {
	if done := s.deleting[id]; done != nil {
		close(done)
		delete(s.deleting, id)
	}
}

// notBeingDeleted refuses blobs that a sweep is deleting at this moment: what a
// capture found in the bucket a while ago may be gone.
func (s *Store) notBeingDeleted(uses []use) error {
	if len(s.deleting) == 0 {
		return nil
	}
	for _, u := range uses {
		if s.deleting[u.blob] != nil {
			return &Error{Code: ErrBlobBeingDeleted, Err: &BlobError{Key: u.blob.key(), Problem: "is being deleted by a sweep"}}
		}
	}
	return nil
}
