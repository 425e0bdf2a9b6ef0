package checkpointdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// This file holds what only looks, beyond the contract: for operators, and for
// programs that show a thread's history. It reads headers and differences where
// Get and List build whole checkpoints.

// LeaseInfo is a lease without the token that would let its reader write.
type LeaseInfo struct {
	ThreadID  ThreadID  `json:"threadId"`
	Fence     Fence     `json:"fence"`
	ExpiresAt time.Time `json:"expiresAt"`
	Current   bool      `json:"current"` // false: it has expired, and nobody took or released it
}

// ThreadInfo is what a store knows of a thread without reading its checkpoints.
type ThreadInfo struct {
	ID            ThreadID     `json:"id"`
	Head          CheckpointID `json:"head"`                   // "" for none
	HeadCreatedAt time.Time    `json:"headCreatedAt,omitzero"` // zero without a head
	Checkpoints   int64        `json:"checkpoints"`            // that exist; some may be there without a head
	LastFence     Fence        `json:"lastFence"`              // highest one given out
	Lease         *LeaseInfo   `json:"lease,omitempty"`        // nil for none
	Transcript    bool         `json:"transcript"`             // whether one is saved, be it empty
}

// threadBatch is how many threads one transaction reads.
const threadBatch = 256

// Threads returns all threads that ever had a lease or a transcript, by bytes of
// the id. It reads in short transactions and holds none while the loop's body
// runs. An error ends it.
func (s *Store) Threads(ctx context.Context) iter.Seq2[ThreadInfo, error] {
	return func(yield func(ThreadInfo, error) bool) {
		from := []byte{}
		for from != nil {
			var batch []ThreadInfo
			now := s.opts.Clock()
			err := s.read(ctx, "threads", func(tx *bolt.Tx) error {
				c := tx.Bucket(bucketThreads).Cursor()
				k, v := c.Seek(from)
				for ; k != nil && len(batch) < threadBatch; k, v = c.Next() {
					n, err := parseU64(v)
					if err != nil {
						return damagedAt(bucketThreads, k, err)
					}
					info, err := threadInfo(tx, ThreadID(k), threadNumber(n), now)
					if err != nil {
						return err
					}
					batch = append(batch, info)
				}
				from = bytes.Clone(k)
				return nil
			})
			if err != nil {
				yield(ThreadInfo{}, err)
				return
			}
			for _, info := range batch {
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

func threadInfo(tx *bolt.Tx, id ThreadID, n threadNumber, now time.Time) (ThreadInfo, error) {
	info := ThreadInfo{ID: id, Transcript: tx.Bucket(bucketTranscripts).Get(n.key()) != nil}
	h, err := getHead(tx, n)
	if err != nil {
		return ThreadInfo{}, err
	}
	info.Checkpoints = h.count(0, ^position(0))
	if h.head != 0 {
		top, err := getHeader(tx, place{n, h.head})
		if err != nil {
			return ThreadInfo{}, err
		}
		info.Head, info.HeadCreatedAt = top.id, top.createdAt
	}
	if info.LastFence, err = getFence(tx, n); err != nil {
		return ThreadInfo{}, err
	}
	l, ok, err := getLease(tx, n)
	if err != nil {
		return ThreadInfo{}, err
	}
	if ok {
		lease := l.info(id, now)
		info.Lease = &lease
	}
	return info, nil
}

// CheckpointInfo is what [Store.Log] tells about a checkpoint: all but its lists,
// and how these differ from those of the one before it in the thread. Without one
// before it, everything is added.
type CheckpointInfo struct {
	ID                 CheckpointID `json:"id"`
	ThreadID           ThreadID     `json:"threadId"`
	ParentCheckpointID CheckpointID `json:"parentCheckpointId,omitempty"` // may be pruned
	ForkedFrom         CheckpointID `json:"forkedFrom,omitempty"`         // may be gone; "" for forks that files of format 1 had
	CreatedAt          time.Time    `json:"createdAt"`
	Reason             Reason       `json:"reason"`
	Label              string       `json:"label,omitempty"`
	SourceRunID        string       `json:"sourceRunId,omitempty"`
	Head               bool         `json:"head"`

	Files       int   `json:"files"` // entries of every kind
	Messages    int   `json:"messages"`
	Artifacts   int   `json:"artifacts"`
	Bytes       int64 `json:"bytes"`       // sizes of its files and artifacts together
	RecordBytes int64 `json:"recordBytes"` // that it takes in the store's file

	Added    int   `json:"added"`    // entries whose path is new
	Changed  int   `json:"changed"`  // entries that differ under the same path
	Removed  int   `json:"removed"`  // paths that are gone
	NewBytes int64 `json:"newBytes"` // sizes of the blobs that the one before does not use
}

// LogOptions narrow what [Store.Log] returns. The zero value, like a nil pointer,
// returns all.
type LogOptions struct {
	// Path leaves only the checkpoints that added, changed or removed it, or
	// something beneath it.
	Path string
	// Limit is how many checkpoints are returned at most. Zero: no limit.
	Limit int
}

// logBatch is how many checkpoints one transaction of Log reads.
const logBatch = 64

// Log returns the checkpoints of a thread, newest first. The chain decides what
// is newer, not the times. Where Limit or the caller ends it early, older ones
// are not read. It reads in short transactions and holds none while the loop's
// body runs. Checks: id valid, Limit not negative ([ErrInvalidArgument]), thread
// exists ([ErrThreadNotFound]). An error ends it.
func (s *Store) Log(ctx context.Context, thread ThreadID, opts *LogOptions) iter.Seq2[CheckpointInfo, error] {
	const op = "log"
	var o LogOptions
	if opts != nil {
		o = *opts
	}
	return func(yield func(CheckpointInfo, error) bool) {
		err := thread.Validate()
		if err == nil && o.Limit < 0 {
			err = &Error{Code: ErrInvalidArgument, Message: fmt.Sprintf("Limit %d is negative", o.Limit)}
		}
		if err != nil {
			yield(CheckpointInfo{}, withOp(op, err))
			return
		}
		for oldest, found, more := position(0), 0, true; more; {
			var batch []CheckpointInfo
			size := logBatch
			if o.Limit > 0 && o.Path == "" {
				size = min(size, o.Limit-found)
			}
			err := s.read(ctx, op, func(tx *bolt.Tx) error {
				n, err := knownThread(tx, thread)
				if err != nil {
					return err
				}
				batch, oldest, err = readLog(tx, n, oldest, size, o.Path)
				return err
			})
			if err != nil {
				yield(CheckpointInfo{}, err)
				return
			}
			more = oldest != 0
			for _, info := range batch {
				if found++; !yield(info, nil) {
					return
				}
				if found == o.Limit {
					return
				}
			}
		}
	}
}

// Info returns what Log tells about one checkpoint. Checks: id valid, exists
// ([ErrCheckpointNotFound]).
func (s *Store) Info(ctx context.Context, id CheckpointID) (info CheckpointInfo, err error) {
	const op = "info"
	if err := id.Validate(); err != nil {
		return CheckpointInfo{}, withOp(op, err)
	}
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		p, ok, err := getPlace(tx, id)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Code: ErrCheckpointNotFound, Message: fmt.Sprintf("no checkpoint %q", id)}
		}
		infos, _, err := readLog(tx, p.thread, p.pos+1, 1, "")
		if err != nil {
			return err
		}
		if len(infos) == 0 || infos[0].ID != id {
			return damagedAt(bucketIDs, []byte(id), errors.New("names a place that the head row lacks"))
		}
		info = infos[0]
		return nil
	})
	return info, err
}

// readLog looks at up to size checkpoints before a position, 0 for all, and
// returns those that changed the path, newest first, and the oldest position it
// came to, 0 when it came to the end. It reads oldest first, as differences build
// on what is before them.
func readLog(tx *bolt.Tx, n threadNumber, end position, size int, path string) (infos []CheckpointInfo, oldest position, err error) {
	h, err := getHead(tx, n)
	if err != nil {
		return nil, 0, err
	}
	if end == 0 {
		end = ^position(0)
	}
	var positions []position
	for p := h.before(end); p != 0 && len(positions) < size; p = h.before(p) {
		positions = append(positions, p)
	}
	if len(positions) == 0 {
		return nil, 0, nil
	}
	oldest = positions[len(positions)-1]
	before := &version{record: &record{}}
	if p := h.before(oldest); p == 0 {
		oldest = 0
	} else if before, err = loadVersion(tx, place{n, p}, nil); err != nil {
		return nil, 0, err
	}
	for _, p := range slices.Backward(positions) {
		v, err := loadVersion(tx, place{n, p}, before)
		if err != nil {
			return nil, 0, err
		}
		info, touched := compareVersions(before, v, path)
		if touched {
			info.Head = p == h.head
			info.RecordBytes = int64(len(tx.Bucket(bucketCheckpoints).Get(v.key())))
			infos = append(infos, info)
		}
		before = v
	}
	slices.Reverse(infos)
	return infos, oldest, nil
}

// compareVersions tells what v is and how it differs from the one before. touched
// is whether it changed the path, which "" always is.
func compareVersions(before, v *version, path string) (info CheckpointInfo, touched bool) {
	info = CheckpointInfo{
		ID: v.id, ThreadID: v.threadID, ParentCheckpointID: v.parent, ForkedFrom: v.source,
		CreatedAt: v.createdAt, Reason: v.reason, Label: v.label, SourceRunID: v.run,
		Files: len(v.lists[sectionFiles]), Messages: len(v.lists[sectionConversation]), Artifacts: len(v.lists[sectionArtifacts]),
	}
	var came []use
	for _, kind := range []sectionKind{sectionFiles, sectionArtifacts} {
		for _, item := range v.lists[kind] {
			if kind.digestLen(item) > 0 {
				info.Bytes += int64(kind.size(item))
			}
		}
		d := diff(before.lists[kind], v.lists[kind])
		came = append(came, usesOf(kind, d.inserted)...)
		if kind == sectionFiles {
			touched = info.countChanges(d, path)
		}
	}
	info.NewBytes = newBytes(before, came)
	return info, touched
}

// countChanges counts entries by path. An item that only moved in the list may
// be among both the inserted and the dropped ones, and is no change.
func (info *CheckpointInfo) countChanges(d difference, path string) (touched bool) {
	touch := func(p string) {
		touched = touched || p == path || strings.HasPrefix(p, path) && p[len(path)] == '/'
	}
	dropped := make(map[string]string, len(d.dropped))
	for _, item := range d.dropped {
		dropped[itemPath(item)] = item
	}
	for _, item := range d.inserted {
		p := itemPath(item)
		old, ok := dropped[p]
		switch delete(dropped, p); {
		case ok && old == item:
			continue
		case ok:
			info.Changed++
		default:
			info.Added++
		}
		touch(p)
	}
	for p := range dropped {
		info.Removed++
		touch(p)
	}
	return touched || path == ""
}

// newBytes sums up the sizes of those blobs that the version does not use.
func newBytes(before *version, came []use) (sum int64) {
	ids := make([]blobID, len(came))
	for i, u := range came {
		ids[i] = u.blob
	}
	absent := map[blobID]bool{}
	for _, id := range before.lists.without(ids) {
		absent[id] = true
	}
	for _, u := range came {
		if absent[u.blob] {
			sum += int64(u.size)
		}
	}
	return sum
}

// BlobUse is a run of checkpoints of one thread, one after the other, that all
// use a blob.
type BlobUse struct {
	ThreadID    ThreadID     `json:"threadId"`
	First       CheckpointID `json:"first"`
	Last        CheckpointID `json:"last"`
	Checkpoints int64        `json:"checkpoints"` // from first to last, both included
	AtHead      bool         `json:"atHead"`      // whether last is the head
	Size        int64        `json:"size"`        // bytes, as first says
}

// BlobUses tells which checkpoints use a blob, by thread in the order in which
// these were made, and then from old to new. A blob that is not in use has none.
// Checks: key valid ([ErrInvalidEntry]).
func (s *Store) BlobUses(ctx context.Context, key BlobKey) (uses []BlobUse, err error) {
	const op = "blob uses"
	id, ok := blobIDOf(key)
	if !ok {
		_, err := ParseBlobKey(string(key))
		return nil, withOp(op, err)
	}
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketRefcounts).Cursor()
		for k, v := c.Seek(id[:]); bytes.HasPrefix(k, id[:]); k, v = c.Next() {
			r, err := parseRun(k, v)
			if err != nil {
				return damagedAt(bucketRefcounts, k, err)
			}
			h, err := getHead(tx, r.thread)
			if err != nil {
				return err
			}
			last := h.newest()
			if r.last != 0 {
				last = h.before(r.last + 1)
			}
			newest, err := getHeader(tx, place{r.thread, last})
			if err != nil {
				return err
			}
			oldest, err := getHeader(tx, place{r.thread, h.from(r.first)})
			if err != nil {
				return err
			}
			uses = append(uses, BlobUse{
				ThreadID: newest.threadID, First: oldest.id, Last: newest.id,
				Checkpoints: h.count(r.first, r.end()), AtHead: last == h.head, Size: int64(r.size),
			})
		}
		return nil
	})
	return uses, err
}
