package checkpointdb

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A checkpoint record is one value of the checkpoints bucket:
//
//	version      1 byte, 1
//	header       id, thread id, parent id, createdAt, reason, label, run id, base (below)
//	3 sections   files, conversation, artifacts
//	checksum     CRC-32C of all before, 4 bytes big-endian
//
// Texts are a uvarint length and the bytes. base is the position of the record
// that copies refer to, the one before on the chain; 0 when nothing is copied.
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
// the differences since the last full one would together outgrow it or be more
// than maxDepth. So reading costs at most about two full sections and maxDepth
// list copies, and the file grows with what changes.

const maxDepth = 64

type sectionKind int

const (
	sectionFiles sectionKind = iota
	sectionConversation
	sectionArtifacts
	sections
)

func (k sectionKind) String() string { return [...]string{"files", "conversation", "artifacts"}[k] }

// blobKind is the first byte of the ids of the section's blobs.
func (k sectionKind) blobKind() byte {
	if k == sectionArtifacts {
		return blobArtifact
	}
	return blobFile
}

// digestLen is how many bytes at the end of an item are its digest.
func (k sectionKind) digestLen(item string) int {
	switch {
	case k == sectionArtifacts:
	case k == sectionFiles && item != "" && (item[0] == flagFile || item[0] == flagExecutable):
	default:
		return 0
	}
	return min(len(Digest{}), len(item))
}

// blob returns the id of the blob that the item names.
func (k sectionKind) blob(item string) (id blobID, ok bool) {
	if k.digestLen(item) != len(Digest{}) {
		return blobID{}, false
	}
	id[0] = k.blobKind()
	copy(id[1:], item[len(item)-len(Digest{}):])
	return id, true
}

const (
	flagDir byte = iota
	flagFile
	flagExecutable
	flagSymlink
)

var reasonCodes = map[Reason]byte{ReasonAutomatic: 0, ReasonNamed: 1, ReasonForkRoot: 2}
var reasonNames = []Reason{ReasonAutomatic, ReasonNamed, ReasonForkRoot}

// content is the three lists of a checkpoint as items. Items are immutable
// strings, so contents can share them.
type content [sections][]string

// contentOf encodes a valid checkpoint's lists.
func contentOf(c *Checkpoint) content {
	var lists content
	size := 0
	for i := range c.Files {
		size += len(c.Files[i].Path) + len(c.Files[i].Target) + 64
	}
	a := newArena(size, len(c.Files))
	for i := range c.Files {
		e := &c.Files[i]
		switch e.Kind {
		case KindDir:
			a.buf = append(a.buf, flagDir)
			a.buf = append(a.buf, e.Path...)
		case KindSymlink:
			a.buf = append(a.buf, flagSymlink)
			a.buf = appendText(a.buf, e.Path)
			a.buf = append(a.buf, e.Target...)
		default:
			flag := flagFile
			if e.Executable {
				flag = flagExecutable
			}
			a.buf = append(a.buf, flag)
			a.buf = binary.AppendUvarint(a.buf, uint64(e.Size))
			a.buf = append(a.buf, e.Path...)
			digest, _ := e.BlobKey.digest(FileKeyPrefix)
			a.buf = append(a.buf, digest[:]...)
		}
		a.endItem()
	}
	lists[sectionFiles] = a.items()
	lists[sectionConversation] = messageItems(c.Conversation)
	lists[sectionArtifacts] = make([]string, len(c.Artifacts))
	for i, art := range c.Artifacts {
		item := appendTime(nil, art.CreatedAt)
		item = binary.AppendUvarint(item, uint64(art.Size))
		item = appendText(item, art.ArtifactID)
		item = appendText(item, art.Name)
		item = append(item, art.MimeType...)
		digest, _ := art.BlobKey.digest(ArtifactKeyPrefix)
		lists[sectionArtifacts][i] = string(append(item, digest[:]...))
	}
	return lists
}

func messageItems(messages []json.RawMessage) []string {
	items := make([]string, len(messages))
	for i, m := range messages {
		items[i] = string(m)
	}
	return items
}

func itemMessages(items []string) []json.RawMessage {
	messages := make([]json.RawMessage, len(items))
	for i, item := range items {
		messages[i] = json.RawMessage(item)
	}
	return messages
}

// decode turns items into the lists of c.
func (lists content) decode(c *Checkpoint) error {
	c.Files = make([]Entry, len(lists[sectionFiles]))
	// Keys are spelled into one string: one allocation, not one a file.
	const keyLen = len(FileKeyPrefix) + 2*len(Digest{})
	var keys strings.Builder
	keys.Grow(len(c.Files) * keyLen)
	for i, item := range lists[sectionFiles] {
		if item == "" {
			return errRow
		}
		e := &c.Files[i]
		switch flag := item[0]; flag {
		case flagDir:
			*e = Entry{Kind: KindDir, Path: item[1:]}
		case flagSymlink:
			length, size := uvarint(item[1:])
			rest := item[1+size:]
			if size == 0 || length > uint64(len(rest)) {
				return errRow
			}
			*e = Entry{Kind: KindSymlink, Path: rest[:length], Target: rest[length:]}
		case flagFile, flagExecutable:
			length, size := uvarint(item[1:])
			end := len(item) - len(Digest{})
			if size == 0 || length > MaxSize || 1+size > end {
				return errRow
			}
			keys.WriteString(FileKeyPrefix)
			writeHex(&keys, item[end:])
			*e = Entry{
				Kind: KindFile, Path: item[1+size : end], Size: int64(length), Executable: flag == flagExecutable,
				BlobKey: BlobKey(keys.String()[keys.Len()-keyLen:]),
			}
		default:
			return errRow
		}
	}
	c.Conversation = itemMessages(lists[sectionConversation])
	c.Artifacts = make([]Artifact, len(lists[sectionArtifacts]))
	for i, item := range lists[sectionArtifacts] {
		id, ok := sectionArtifacts.blob(item)
		if !ok {
			return errRow
		}
		r := reader{rest: []byte(item[:len(item)-len(Digest{})])}
		c.Artifacts[i] = Artifact{
			CreatedAt: r.time(), Size: int64(r.uvarint()), ArtifactID: r.text(), Name: r.text(),
			MimeType: string(r.rest), BlobKey: id.key(),
		}
		if r.bad {
			return errRow
		}
	}
	return nil
}

// uvarint is binary.Uvarint for a string; size is 0 for a malformed one.
func uvarint(s string) (n uint64, size int) {
	for i := 0; i < len(s) && i < binary.MaxVarintLen64; i++ {
		n |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return n, i + 1
		}
	}
	return 0, 0
}

func writeHex(b *strings.Builder, digest string) {
	const digits = "0123456789abcdef"
	for i := range len(digest) {
		b.WriteByte(digits[digest[i]>>4])
		b.WriteByte(digits[digest[i]&15])
	}
}

// arena builds many small strings in one allocation.
type arena struct {
	buf  []byte
	ends []int
}

func newArena(size, items int) *arena {
	return &arena{buf: make([]byte, 0, size), ends: make([]int, 0, items)}
}

func (a *arena) endItem() { a.ends = append(a.ends, len(a.buf)) }

func (a *arena) items() []string {
	text, items, start := string(a.buf), make([]string, len(a.ends)), 0
	for i, end := range a.ends {
		items[i], start = text[start:end], end
	}
	return items
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// itemSum is the checksum of a list. Lengths go in too, so that no two lists
// differ only in where their items end.
func itemSum(items []string) uint32 {
	sum := uint32(0)
	var length [binary.MaxVarintLen64]byte
	scratch := make([]byte, 0, 4096)
	flush := func() { sum, scratch = crc32.Update(sum, castagnoli, scratch), scratch[:0] }
	for _, item := range items {
		if len(scratch)+len(item)+len(length) > cap(scratch) {
			flush()
		}
		scratch = binary.AppendUvarint(scratch, uint64(len(item)))
		scratch = append(scratch, item...)
		if len(scratch) > 4096 {
			flush()
		}
	}
	flush()
	return sum
}

// compressFrom is the length from which trying to compress is worth a frame.
const compressFrom = 64

var zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20), zstd.WithEncoderConcurrency(2))
	if err != nil {
		panic(err) // only for options that contradict each other
	}
	return enc
})

// maxHeads bounds what a damaged length can make a reader allocate; no bbolt
// value is longer.
const maxHeads = 1 << 31

var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxHeads), zstd.WithDecoderConcurrency(0))
	if err != nil {
		panic(err)
	}
	return dec
})

// appendPacked appends a packed list.
func appendPacked(b []byte, kind sectionKind, items []string) []byte {
	size := 0
	for _, item := range items {
		size += len(item) + 3
	}
	heads := make([]byte, 0, size)
	for _, item := range items {
		heads = appendText(heads, item[:len(item)-kind.digestLen(item)])
	}
	b = binary.AppendUvarint(b, uint64(len(items)))
	codec, stored := byte(0), heads
	if len(heads) >= compressFrom {
		if packed := zstdEncoder().EncodeAll(heads, nil); len(packed) < len(heads) {
			codec, stored = 1, packed
		}
	}
	b = append(b, codec)
	b = binary.AppendUvarint(b, uint64(len(heads)))
	b = appendText(b, stored)
	for _, item := range items {
		b = append(b, item[len(item)-kind.digestLen(item):]...)
	}
	return b
}

// parsePacked takes a packed list apart; all of b must belong to it.
func parsePacked(b []byte, kind sectionKind) ([]string, error) {
	r := reader{rest: b}
	count, codec, headsLen := r.uvarint(), r.byte(), r.uvarint()
	heads := r.bytes(r.uvarint())
	if r.bad || headsLen > maxHeads || codec > 1 {
		return nil, errRow
	}
	if codec == 1 {
		var err error
		if heads, err = zstdDecoder().DecodeAll(heads, nil); err != nil {
			return nil, errRow
		}
	}
	if uint64(len(heads)) != headsLen || count > headsLen {
		return nil, errRow
	}
	a := newArena(len(heads)+len(r.rest), int(count))
	h := reader{rest: heads}
	for range count {
		head := h.bytes(h.uvarint())
		if h.bad {
			return nil, errRow
		}
		a.buf = append(a.buf, head...)
		if kind == sectionArtifacts || kind == sectionFiles && len(head) > 0 && (head[0] == flagFile || head[0] == flagExecutable) {
			a.buf = append(a.buf, r.bytes(uint64(len(Digest{})))...)
		}
		a.endItem()
	}
	if r.bad || len(r.rest) > 0 || len(h.rest) > 0 {
		return nil, errRow
	}
	return a.items(), nil
}

// difference is what it takes to make one list out of another.
type difference struct {
	script   []byte
	inserted []string
	dropped  []string // items of the old list that the new one does not copy
}

// diff finds the difference from old to new in O(n). Order is free: items that
// moved are copied from where they were.
func diff(old, new []string) difference {
	var d difference
	copied := make([]bool, len(old))
	var where map[string]int // of the items of old; made when the lists first part
	at := 0                  // next item of old in its own order
	end := 0                 // where the last written copy ended
	insert, from, n := 0, 0, 0
	flush := func() {
		if insert > 0 {
			d.script = binary.AppendUvarint(d.script, uint64(insert)<<1)
			insert = 0
		}
		if n > 0 {
			d.script = binary.AppendUvarint(d.script, uint64(n)<<1|1)
			d.script = binary.AppendVarint(d.script, int64(from-end))
			end, n = from+n, 0
		}
	}
	for i, item := range new {
		found := -1
		// Most lists part only to meet again an item or two later.
		if i := slices.Index(old[at:min(at+4, len(old))], item); i >= 0 {
			found = at + i
		}
		// An item that is new, where the next one goes on in old, needs no search:
		// at worst it is stored again although it only moved.
		goesOn := i+1 == len(new) || slices.Contains(old[at:min(at+4, len(old))], new[i+1])
		if found < 0 && len(old) > 0 && !goesOn {
			if where == nil {
				where = make(map[string]int, len(old))
				for j, o := range old {
					where[o] = j
				}
			}
			if j, ok := where[item]; ok {
				found = j
			}
		}
		if found < 0 {
			if n > 0 {
				flush()
			}
			insert++
			d.inserted = append(d.inserted, item)
			continue
		}
		if n == 0 || found != from+n {
			flush()
			from = found
		}
		n++
		copied[found] = true
		at = found + 1
	}
	flush()
	for i, item := range old {
		if !copied[i] {
			d.dropped = append(d.dropped, item)
		}
	}
	return d
}

// patch runs a script over old. count is how many items must come out.
func patch(old []string, script []byte, inserted []string, count uint64) ([]string, error) {
	if count > uint64(len(script))*uint64(len(old))+uint64(len(inserted)) {
		return nil, errRow
	}
	list := make([]string, 0, count)
	r := reader{rest: script}
	end := int64(0)
	for len(r.rest) > 0 {
		op := r.uvarint()
		n := op >> 1
		if n == 0 || n > count-uint64(len(list)) {
			return nil, errRow
		}
		if op&1 == 0 {
			if n > uint64(len(inserted)) {
				return nil, errRow
			}
			list, inserted = append(list, inserted[:n]...), inserted[n:]
			continue
		}
		skip, size := binary.Varint(r.rest)
		if r.bad || size <= 0 {
			return nil, errRow
		}
		r.rest = r.rest[size:]
		from := end + skip
		if from < 0 || from > int64(len(old)) || n > uint64(int64(len(old))-from) {
			return nil, errRow
		}
		list = append(list, old[from:from+int64(n)]...)
		end = from + int64(n)
	}
	if r.bad || len(inserted) > 0 || uint64(len(list)) != count {
		return nil, errRow
	}
	return list, nil
}

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
	if before.depth >= maxDepth || chain > before.fullBytes {
		return fullSection(kind, items)
	}
	return section{
		count: uint64(len(items)), sum: itemSum(items), depth: before.depth + 1,
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

// build makes the section's items, not yet verified. before are those of base,
// and needed only for a difference.
func (s section) build(kind sectionKind, before []string) ([]string, error) {
	if s.depth == 0 {
		return parsePacked(s.payload, kind)
	}
	script, inserted, err := s.parts(kind)
	if err != nil {
		return nil, err
	}
	return patch(before, script, inserted, s.count)
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
	size := 256 + len(r.id) + len(r.threadID) + len(r.parent) + len(r.label) + len(r.run)
	for _, s := range r.sections {
		size += len(s.payload)
	}
	b := append(make([]byte, 0, size), rowVersion)
	b = appendText(b, r.id)
	b = appendText(b, r.threadID)
	b = appendText(b, r.parent)
	b = appendTime(b, r.createdAt)
	b = append(b, reasonCodes[r.reason])
	b = appendText(b, r.label)
	b = appendText(b, r.run)
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
	if version := r.byte(); version != rowVersion {
		return header{}, nil, fmt.Errorf("record version %d is not known", version)
	}
	h := header{id: CheckpointID(r.text()), threadID: ThreadID(r.text()), parent: CheckpointID(r.text()), createdAt: r.time()}
	code := r.byte()
	h.label, h.run, h.base = r.text(), r.text(), position(r.uvarint())
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
