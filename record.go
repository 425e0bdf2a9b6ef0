package checkpointdb

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"time"
)

// A checkpoint record is one value of the checkpoints bucket:
//
//	version      1 byte, 2
//	header       id, thread id, parent id, createdAt, reason, label, run id, source, base (below)
//	3 sections   files, conversation, artifacts
//	checksum     CRC-32C of all before, 4 bytes big-endian
//
// Texts are a uvarint length and the bytes. source is the id of the checkpoint
// that a fork-root is a copy of, which may be gone since; records of version 1
// lack it. base is the position of the record that copies refer to, that of the
// parent, just before on the chain; 0 when nothing is copied.
// Each section is a list of items, stored either in full or as the difference to
// the same section of base:
//
//	count        uvarint, items of the list
//	sum          CRC-32C of all items in order, 4 bytes big-endian
//	depth        uvarint, how many differences lie between here and a full section; 0 for full
//	chainBytes   uvarint, length of those differences together, this one included
//	fullBytes    uvarint, length of that full section's payload
//	payload      uvarint length, then
//	  full:        a packed list
//	  difference:  uvarint length of the script, the script, a packed list of the inserted items
//
// The script is a sequence of uvarints: n<<1 inserts the next n items; n<<1|1
// copies n items of base, from where the last copy ended plus the zigzag varint
// that follows. A packed list keeps what compresses apart from what does not:
//
//	count        uvarint
//	codec        1 byte: 0 stored, 1 zstd
//	heads        uvarint length before compression, uvarint length stored, bytes:
//	             for every item a uvarint length and the item without its digest
//	digests      32 bytes for each item that has one
//
// Items, the digest last: a file is flags, size as uvarint, path, digest; a dir
// is flags, path; a symlink is flags, length of path as uvarint, path, target;
// an artifact is createdAt, size as uvarint, id, name, the MIME type as the
// rest, digest; a message is its bytes.
//
// A section is stored in full at a root, after a gap that pruning left, and when
// the differences since the last full one would together outgrow it, or be too
// many to run one after the other. So reading costs little more than reading two
// full sections, and the file grows with what changes.

const (
	recordVersion = 2

	maxDepth  = 512     // differences in a row
	maxCopies = 1 << 20 // items that they copy together
)

// section is one list of a record, taken apart as far as its frame.
type section struct {
	count      uint64
	sum        uint32
	depth      uint64 // 0: payload is the full list
	chainBytes uint64
	fullBytes  uint64
	payload    []byte
}

func fullSection(kind sectionKind, items []string) section {
	s := section{count: uint64(len(items)), sum: itemSum(items), payload: appendPacked(nil, kind, items)}
	s.fullBytes = uint64(len(s.payload))
	return s
}

// nextSection stores items as the difference d to the section before, or in
// full when that is due.
func nextSection(kind sectionKind, before section, items []string, d difference) section {
	payload := appendText(nil, d.script)
	payload = appendPacked(payload, kind, d.inserted)
	chain := before.chainBytes + uint64(len(payload))
	depth := before.depth + 1
	if chain > before.fullBytes || depth > maxDepth || depth*uint64(len(items)) > maxCopies {
		return fullSection(kind, items)
	}
	return section{
		count: uint64(len(items)), sum: itemSum(items), depth: depth,
		chainBytes: chain, fullBytes: before.fullBytes, payload: payload,
	}
}

// parts splits the payload of a difference.
func (s section) parts(kind sectionKind) (script []byte, inserted []string, err error) {
	r := reader{rest: s.payload}
	script = r.bytes(r.uvarint())
	if r.bad {
		return nil, nil, errRow
	}
	inserted, err = parsePacked(r.rest, kind)
	return script, inserted, err
}

// buildList makes the items of a section, not yet verified. chain is the section
// and those before it that it is a difference to, newest first. The last of them
// is full, or else a difference to base.
func buildList(kind sectionKind, chain []section, base []string) (items []string, err error) {
	last := len(chain) - 1
	if chain[last].depth == 0 {
		if base, err = parsePacked(chain[last].payload, kind); err != nil {
			return nil, err
		}
		last--
	}
	if last < 0 {
		return base, nil
	}
	// Small numbers take the items' place while lists are copied again and again.
	pool := slices.Clip(base) // not to be appended to in place
	old, list := make([]uint32, len(base)), []uint32(nil)
	for i := range old {
		old[i] = uint32(i)
	}
	for ; last >= 0; last-- {
		script, inserted, err := chain[last].parts(kind)
		if err != nil {
			return nil, err
		}
		numbers := make([]uint32, len(inserted))
		for i := range numbers {
			numbers[i] = uint32(len(pool) + i)
		}
		pool = append(pool, inserted...)
		if list, err = patch(list[:0], old, script, numbers, chain[last].count); err != nil {
			return nil, err
		}
		old, list = list, old
	}
	items = make([]string, len(old))
	for i, number := range old {
		items[i] = pool[number]
	}
	return items, nil
}

// verify compares items with what the record says of them. A list that was
// built from a wrong or damaged base does not pass.
func (s section) verify(items []string) error {
	if uint64(len(items)) != s.count || itemSum(items) != s.sum {
		return errRow
	}
	return nil
}

// header is what a record says before its lists.
type header struct {
	id, parent CheckpointID
	threadID   ThreadID // repeated in every record, so that records alone can rebuild a file
	createdAt  time.Time
	reason     Reason
	label, run string
	source     CheckpointID // of a fork-root; "" for others and where it is not known
	base       position
}

func headerOf(c *Checkpoint) header {
	return header{id: c.ID, threadID: c.ThreadID, parent: c.ParentCheckpointID, createdAt: c.CreatedAt, reason: c.Reason, label: c.Label, run: c.SourceRunID}
}

// record is a record taken apart. It holds no memory of the database but in
// the payloads of its sections.
type record struct {
	header
	sections [sections]section
}

func (r *record) encode() []byte {
	size := 256 + len(r.id) + len(r.threadID) + len(r.parent) + len(r.label) + len(r.run) + len(r.source)
	for _, s := range r.sections {
		size += len(s.payload)
	}
	b := append(make([]byte, 0, size), recordVersion)
	b = appendText(b, r.id)
	b = appendText(b, r.threadID)
	b = appendText(b, r.parent)
	b = appendTime(b, r.createdAt)
	b = append(b, reasonCodes[r.reason])
	b = appendText(b, r.label)
	b = appendText(b, r.run)
	b = appendText(b, r.source)
	b = binary.AppendUvarint(b, uint64(r.base))
	for _, s := range r.sections {
		b = binary.AppendUvarint(b, s.count)
		b = binary.BigEndian.AppendUint32(b, s.sum)
		b = binary.AppendUvarint(b, s.depth)
		b = binary.AppendUvarint(b, s.chainBytes)
		b = binary.AppendUvarint(b, s.fullBytes)
		b = appendText(b, s.payload)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseHeader reads a record up to its lists, without looking at the rest of
// it; the checksum is for parseRecord to check.
func parseHeader(v []byte) (header, *reader, error) {
	r := &reader{rest: v}
	version := r.byte()
	if version == 0 || version > recordVersion {
		return header{}, nil, fmt.Errorf("record version %d is not known", version)
	}
	h := header{id: CheckpointID(r.text()), threadID: ThreadID(r.text()), parent: CheckpointID(r.text()), createdAt: r.time()}
	code := r.byte()
	h.label, h.run = r.text(), r.text()
	if version > 1 {
		h.source = CheckpointID(r.text())
	}
	h.base = position(r.uvarint())
	if r.bad || int(code) >= len(reasonNames) {
		return header{}, nil, errRow
	}
	h.reason = reasonNames[code]
	return h, r, nil
}

func parseRecord(v []byte) (*record, error) {
	if len(v) < 4 {
		return nil, errRow
	}
	body, sum := v[:len(v)-4], binary.BigEndian.Uint32(v[len(v)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("record fails its checksum")
	}
	h, r, err := parseHeader(body)
	if err != nil {
		return nil, err
	}
	rec := &record{header: h}
	for i := range rec.sections {
		s := &rec.sections[i]
		s.count = r.uvarint()
		if sum := r.bytes(4); sum != nil {
			s.sum = binary.BigEndian.Uint32(sum)
		}
		s.depth, s.chainBytes, s.fullBytes = r.uvarint(), r.uvarint(), r.uvarint()
		s.payload = r.bytes(r.uvarint())
		if s.depth > 0 && rec.base == 0 {
			return nil, errRow
		}
	}
	if r.bad || len(r.rest) > 0 {
		return nil, errRow
	}
	return rec, nil
}

// checkpoint builds the exported form.
func (h header) checkpoint(lists content) (Checkpoint, error) {
	c := Checkpoint{
		ID: h.id, ThreadID: h.threadID, ParentCheckpointID: h.parent, CreatedAt: h.createdAt,
		Reason: h.reason, Label: h.label, SourceRunID: h.run,
	}
	err := lists.decode(&c)
	return c, err
}
