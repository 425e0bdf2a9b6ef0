package checkpointdb

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

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

// itemPath returns the path of an item of the files, "" for a malformed one.
func itemPath(item string) string {
	if item == "" {
		return ""
	}
	flag, rest := item[0], item[1:]
	if flag == flagDir {
		return rest
	}
	n, size := uvarint(rest) // the size of a file, the length of a symlink's path
	rest = rest[size:]
	if flag == flagSymlink {
		return rest[:min(n, uint64(len(rest)))]
	}
	return rest[:len(rest)-min(len(Digest{}), len(rest))]
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

// size returns the size in bytes that an item with a blob gives it.
func (k sectionKind) size(item string) uint64 {
	at := 1 // behind the flags
	if k == sectionArtifacts {
		at = timeLen
	}
	n, _ := uvarint(item[min(at, len(item)):])
	return n
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

// contentOf encodes the lists of a valid checkpoint.
func contentOf(c *Checkpoint) content { return encodeContent(c, nil, nil) }

// encodeContent is contentOf with what is known of a checkpoint that was encoded
// before: items that both have are taken from there. matches is
// known.match(c.Files).
func encodeContent(c *Checkpoint, known *encoded, matches []int32) content {
	var lists content
	lists[sectionFiles] = fileItems(c.Files, known, matches)
	lists[sectionConversation] = messageItems(c.Conversation, known)
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

// encoded remembers which items the entries and messages of a valid checkpoint
// became. It spares an Append what has not changed since the last, and is never
// needed for a result to be right.
type encoded struct {
	files []Entry
	lists content
}

// match returns for each file where the same entry stands in k, -1 where it
// does not, or not close to where the one before it does.
func (k *encoded) match(files []Entry) []int32 {
	if k == nil {
		return nil
	}
	matches := make([]int32, len(files))
	at := 0
	for i := range files {
		matches[i] = -1
		for j := at; j < len(k.files) && j < at+4; j++ {
			if k.files[j] == files[i] {
				matches[i], at = int32(j), j+1
				break
			}
		}
		if matches[i] < 0 && at < len(k.files) && k.files[at].Path == files[i].Path {
			at++
		}
	}
	return matches
}

// message returns whether m is the message at i.
func (k *encoded) message(m json.RawMessage, i int) bool {
	return k != nil && i < len(k.lists[sectionConversation]) && k.lists[sectionConversation][i] == string(m)
}

func fileItems(files []Entry, known *encoded, matches []int32) []string {
	items := make([]string, len(files))
	a := &arena{}
	var fresh []int // indexes of those that a encodes
	for i := range files {
		if matches != nil && matches[i] >= 0 {
			items[i] = known.lists[sectionFiles][matches[i]]
			continue
		}
		if matches == nil && i == 0 {
			a.grow(files)
		}
		a.file(&files[i])
		fresh = append(fresh, i)
	}
	for n, item := range a.items() {
		items[fresh[n]] = item
	}
	return items
}

func (a *arena) grow(files []Entry) {
	size := 0
	for i := range files {
		size += len(files[i].Path) + len(files[i].Target) + 48
	}
	a.buf = make([]byte, 0, size)
}

func (a *arena) file(e *Entry) {
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

func messageItems(messages []json.RawMessage, known *encoded) []string {
	items := make([]string, len(messages))
	for i, m := range messages {
		if known.message(m, i) {
			items[i] = known.lists[sectionConversation][i]
		} else {
			items[i] = string(m)
		}
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
	keys := make([]byte, 0, len(c.Files)*keyLen)
	for _, item := range lists[sectionFiles] {
		if n := sectionFiles.digestLen(item); n == len(Digest{}) {
			keys = append(keys, FileKeyPrefix...)
			keys = hex.AppendEncode(keys, []byte(item[len(item)-n:]))
		}
	}
	text := string(keys)
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
			*e = Entry{
				Kind: KindFile, Path: item[1+size : end], Size: int64(length), Executable: flag == flagExecutable,
				BlobKey: BlobKey(text[:keyLen]),
			}
			text = text[keyLen:]
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

// arena builds many small strings in one allocation.
type arena struct {
	buf  []byte
	ends []int
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
	// Many small updates cost more than the copy, and []byte(item) an allocation.
	scratch := make([]byte, 0, 4096)
	for _, item := range items {
		if len(scratch)+binary.MaxVarintLen64 > cap(scratch) {
			sum, scratch = crc32.Update(sum, castagnoli, scratch), scratch[:0]
		}
		scratch = binary.AppendUvarint(scratch, uint64(len(item)))
		for len(item) > cap(scratch)-len(scratch) {
			n := cap(scratch) - len(scratch)
			sum = crc32.Update(sum, castagnoli, append(scratch, item[:n]...))
			item, scratch = item[n:], scratch[:0]
		}
		scratch = append(scratch, item...)
	}
	return crc32.Update(sum, castagnoli, scratch)
}

// compressFrom is the length from which what compressing saves is worth the time
// that unpacking takes with every read.
const compressFrom = 1024

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
	a := &arena{buf: make([]byte, 0, len(heads)+len(r.rest)), ends: make([]int, 0, count)}
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
