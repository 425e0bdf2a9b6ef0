package checkpointdb

// The file is one bbolt database. This comment is its schema, and this file is
// the only place that spells a bucket name or builds a key. TestLayout walks a
// full store and fails on any bucket or key shape that the drawing lacks.
//
//	meta                                 written once, by Open
//	├─ "format"                        → u64, number of the format; only migrations change it
//	├─ "store-id"                      → 16 random bytes
//	└─ "created"                       → time
//	threads                              made by the first lease or transcript of a thread; never deleted
//	└─ thread id, as it is             → thread, its number, from the bucket's sequence; never reused
//	ids                                  written by Append, Fork and Import; deleted with the checkpoint
//	└─ checkpoint id, as it is         → thread ‖ position
//	checkpoints                          written by Append, Fork and Import; rewritten in full by Prune where
//	│                                    the record before it goes; deleted by DeleteHead, Prune, DeleteThread
//	└─ thread ‖ position               → checkpoint record (record.go)
//	heads                                written with every change of a chain; deleted with its last record
//	└─ thread                          → head row (headRow below)
//	writers                              written by AcquireWriter and Renew; deleted by Release, BreakLease and
//	│                                    DeleteThread
//	└─ thread                          → version, fence as uvarint, expiry as time, owner token
//	fences                               written by AcquireWriter, raised by Import; never deleted, never lower
//	└─ thread                          → u64, highest fence given out
//	refcounts                            written and deleted with the checkpoints (refcount.go)
//	└─ blob ‖ thread ‖ position        → run, size of the blob and where its use ends (run below)
//	pins                                 written by Protect; deleted by Append, Fork and Import, or when dead by
//	│                                    a quick sweep
//	└─ blob ‖ thread                   → u64, fence of the lease that pins it
//	garbage                              written when a blob loses its last run, when a quick sweep finds its
//	│                                    pin dead, and when a sweep claims a blob that never had either;
//	│                                    deleted when the blob gains a run, or a sweep has deleted it
//	└─ blob                            → time of that
//	instances                            written by UpsertInstance; deleted by DeleteInstance
//	└─ instance key, as it is          → instance record (instance.go)
//	transcripts                          written by SaveThread and Fork; deleted by DeleteThread
//	└─ thread                          → version, messages as a packed list (record.go)
//
// Numbers in keys are fixed-width big-endian, so that byte order is number
// order. thread and position are u64 and start at 1. A position is given to one
// checkpoint only as long as its thread has any. blob is 33 bytes: 0 for an
// artifact or 1 for a file, then the raw digest, so that byte order is the order
// of the keys as text. time is an i64 of seconds since 1970 and a u32 of
// nanoseconds, 12 bytes. Every record and row that could grow fields starts with
// a version byte: 2 for checkpoint records, 1 for all others.
//
// Format 2 added the sizes to the runs and the source of a fork to the records.
//
// Compact copies all rows into a new file, and Repair builds one from what is whole
// of a damaged one, by the same functions.

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"
)

// formatVersion is the format that this library writes. A file of a larger
// number is refused; one of a smaller number is migrated by Open.
const formatVersion = 2

// migrations[i] turns format i+1 into format i+2, inside the transaction that
// also writes the new number.
var migrations = []func(*bolt.Tx) error{addSizes}

var (
	bucketMeta        = []byte("meta")
	bucketThreads     = []byte("threads")
	bucketIDs         = []byte("ids")
	bucketCheckpoints = []byte("checkpoints")
	bucketHeads       = []byte("heads")
	bucketWriters     = []byte("writers")
	bucketFences      = []byte("fences")
	bucketRefcounts   = []byte("refcounts")
	bucketPins        = []byte("pins")
	bucketGarbage     = []byte("garbage")
	bucketInstances   = []byte("instances")
	bucketTranscripts = []byte("transcripts")

	allBuckets = [][]byte{
		bucketMeta, bucketThreads, bucketIDs, bucketCheckpoints, bucketHeads, bucketWriters,
		bucketFences, bucketRefcounts, bucketPins, bucketGarbage, bucketInstances, bucketTranscripts,
	}

	keyFormat  = []byte("format")
	keyStoreID = []byte("store-id")
	keyCreated = []byte("created")
)

// rowVersion starts every row and record that could grow fields.
const rowVersion = 1

// errRow is what a row decoder returns for bytes it did not write.
var errRow = errors.New("malformed row")

// threadNumber stands for a thread in keys.
type threadNumber uint64

// position is the place of a checkpoint on the chain of its thread; 0 is none.
type position uint64

// place is where a checkpoint's record lies.
type place struct {
	thread threadNumber
	pos    position
}

func u64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func (n threadNumber) key() []byte { return u64(uint64(n)) }

func (p place) key() []byte {
	return binary.BigEndian.AppendUint64(p.thread.key(), uint64(p.pos))
}

func parseU64(v []byte) (uint64, error) {
	if len(v) != 8 {
		return 0, errRow
	}
	return binary.BigEndian.Uint64(v), nil
}

func parsePlace(v []byte) (place, error) {
	if len(v) != 16 {
		return place{}, errRow
	}
	return place{threadNumber(binary.BigEndian.Uint64(v)), position(binary.BigEndian.Uint64(v[8:]))}, nil
}

// blobID is a blob key as the file keeps it.
type blobID [33]byte

const (
	blobArtifact byte = 0
	blobFile     byte = 1
)

// blobIDOf returns the id of a key; ok is false for a key that no checkpoint
// could name.
func blobIDOf(k BlobKey) (id blobID, ok bool) {
	d, ok := k.digest(FileKeyPrefix)
	id[0] = blobFile
	if !ok {
		d, ok = k.digest(ArtifactKeyPrefix)
		id[0] = blobArtifact
	}
	copy(id[1:], d[:])
	return id, ok
}

func (id blobID) key() BlobKey {
	prefix := FileKeyPrefix
	if id[0] == blobArtifact {
		prefix = ArtifactKeyPrefix
	}
	return BlobKey(prefix + hex.EncodeToString(id[1:]))
}

// runPrefix starts the keys of all runs of a blob in a thread.
func runPrefix(id blobID, n threadNumber) []byte {
	return binary.BigEndian.AppendUint64(id[:], uint64(n))
}

func runKey(id blobID, n threadNumber, first position) []byte {
	return binary.BigEndian.AppendUint64(runPrefix(id, n), uint64(first))
}

// run is a row of refcounts: the blob is used by every live checkpoint of the
// thread from first to last. last is 0 while the run is open, that is, while
// the head uses the blob. size is what the checkpoint that began the run says of
// the blob, in bytes, so that sums over blobs need no record.
//
// Encoding of the value: size as uvarint, then last, nothing while it is 0.
type run struct {
	blob        blobID
	thread      threadNumber
	first, last position
	size        uint64
}

func (r run) key() []byte { return runKey(r.blob, r.thread, r.first) }

func (r run) value() []byte {
	v := binary.AppendUvarint(nil, r.size)
	if r.last != 0 {
		v = binary.BigEndian.AppendUint64(v, uint64(r.last))
	}
	return v
}

func parseRun(k, v []byte) (r run, err error) {
	size, n := binary.Uvarint(v)
	if n <= 0 || size > MaxSize {
		return run{}, errRow
	}
	if r, err = parseRunKey(k); err != nil {
		return run{}, err
	}
	r.size = size
	switch last := v[n:]; len(last) {
	case 0:
	case 8:
		if r.last = position(binary.BigEndian.Uint64(last)); r.last < r.first {
			return run{}, errRow
		}
	default:
		return run{}, errRow
	}
	return r, nil
}

func parseRunKey(k []byte) (r run, err error) {
	if len(k) != 49 || k[0] > blobFile {
		return run{}, errRow
	}
	copy(r.blob[:], k)
	r.thread = threadNumber(binary.BigEndian.Uint64(k[33:]))
	r.first = position(binary.BigEndian.Uint64(k[41:]))
	return r, nil
}

// end is the last position that the run covers.
func (r run) end() position {
	if r.last == 0 {
		return ^position(0)
	}
	return r.last
}

const timeLen = 12

func appendTime(b []byte, t time.Time) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(t.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

func parseTime(v []byte) (time.Time, error) {
	if len(v) != timeLen {
		return time.Time{}, errRow
	}
	nsec := binary.BigEndian.Uint32(v[8:])
	if nsec >= 1e9 {
		return time.Time{}, errRow
	}
	return time.Unix(int64(binary.BigEndian.Uint64(v)), int64(nsec)).UTC(), nil
}

// span is a range of live positions, both ends included.
type span struct{ first, last position }

// headRow is all that is known of a thread's chain at hand: its head, the next
// position to give out, and which positions are live, so that a count is a sum
// over spans and touches no record. Positions run on without a gap unless Prune
// or DeleteHead made one, so there are few spans.
//
// Encoding: version, head and next as uvarints, then for each span two
// uvarints: how far it starts behind the end of the one before, and its length
// less one. head is 0 for none.
type headRow struct {
	head, next position
	live       []span
}

func (h headRow) encode() []byte {
	b := []byte{rowVersion}
	b = binary.AppendUvarint(b, uint64(h.head))
	b = binary.AppendUvarint(b, uint64(h.next))
	end := position(0)
	for _, s := range h.live {
		b = binary.AppendUvarint(b, uint64(s.first-end))
		b = binary.AppendUvarint(b, uint64(s.last-s.first))
		end = s.last
	}
	return b
}

// parseHeadRow takes nil, a missing row, for a thread without records.
func parseHeadRow(v []byte) (headRow, error) {
	if v == nil {
		return headRow{next: 1}, nil
	}
	r := reader{rest: v}
	if r.byte() != rowVersion {
		return headRow{}, errRow
	}
	h := headRow{head: position(r.uvarint()), next: position(r.uvarint())}
	end := position(0)
	for len(r.rest) > 0 {
		gap, length := r.uvarint(), r.uvarint()
		s := span{first: end + position(gap)}
		s.last = s.first + position(length)
		if gap == 0 || s.first < end || s.last < s.first {
			return headRow{}, errRow
		}
		h.live = append(h.live, s)
		end = s.last
	}
	if r.bad || len(h.live) == 0 || h.next <= end || h.head != 0 && h.head != end {
		return headRow{}, errRow
	}
	return h, nil
}

// newest returns the newest live position, 0 for none.
func (h headRow) newest() position {
	if len(h.live) == 0 {
		return 0
	}
	return h.live[len(h.live)-1].last
}

// count returns how many live positions lie within first and last.
func (h headRow) count(first, last position) (n int64) {
	for _, s := range h.live {
		if lo, hi := max(s.first, first), min(s.last, last); lo <= hi {
			n += int64(hi - lo + 1)
		}
	}
	return n
}

func (h headRow) isLive(p position) bool { return p != 0 && h.count(p, p) == 1 }

// add makes the next position live and the head.
func (h headRow) add() headRow {
	live := append([]span(nil), h.live...)
	if n := len(live); n > 0 && live[n-1].last+1 == h.next {
		live[n-1].last = h.next
	} else {
		live = append(live, span{h.next, h.next})
	}
	return headRow{head: h.next, next: h.next + 1, live: live}
}

// from returns the oldest live position that is not before p, 0 for none.
func (h headRow) from(p position) position {
	for _, s := range h.live {
		if s.last >= p {
			return max(s.first, p)
		}
	}
	return 0
}

// before returns the newest live position before p, 0 for none.
func (h headRow) before(p position) position {
	for i := len(h.live) - 1; i >= 0; i-- {
		switch s := h.live[i]; {
		case s.last < p:
			return s.last
		case s.first < p:
			return p - 1
		}
	}
	return 0
}

// withoutNewest makes the newest live position dead. The caller sees to the head.
func (h headRow) withoutNewest() headRow {
	live := append([]span(nil), h.live...)
	if last := &live[len(live)-1]; last.first == last.last {
		live = live[:len(live)-1]
	} else {
		last.last--
	}
	return headRow{head: h.head, next: h.next, live: live}
}

// only leaves no live positions but these, given oldest first. The caller sees
// to the head.
func (h headRow) only(kept []position) headRow {
	left := headRow{head: h.head, next: h.next}
	for _, p := range kept {
		if n := len(left.live); n > 0 && left.live[n-1].last+1 == p {
			left.live[n-1].last = p
		} else {
			left.live = append(left.live, span{p, p})
		}
	}
	return left
}

// reader takes a row or record apart. After the first fault every read gives
// zero values and bad is true.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) bytes(n uint64) []byte {
	if r.bad || n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	if r.bad || size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() string { return string(r.bytes(r.uvarint())) }

func (r *reader) time() time.Time {
	t, err := parseTime(r.bytes(timeLen))
	r.bad = r.bad || err != nil
	return t
}

func appendText[T ~string | ~[]byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}
