package workspace

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io/fs"
	"os"
	"slices"
	"time"

	"checkpointdb"
)

// An index remembers the digests of files as a capture read them, so that the
// next capture of the same directory need not read what has not changed. It is a
// cache: a missing, damaged or foreign one is made anew.
//
// What has not changed has the same size, modification time, change time, inode
// and device. Change time is the one that programs cannot set. One case looks
// the same all the same: a file that is written again within one tick of the file
// system's clock after it was read (git calls it racy). So a file whose times lie
// less than racySpan before the capture began is not trusted the next time.
//
// File format: magic, u32 count, then for each entry, sorted by path: length of
// the path as u32, path, stamp as five i64, digest; at the end CRC-32C of all
// before. Numbers are big-endian.

const (
	indexMagic = "checkpointdb-index-1\n"
	// racySpan is longer than a tick of any file system's clock; FAT's is 2 s.
	racySpan = 3 * time.Second
)

// stamp is what tells whether a file has changed.
type stamp struct {
	size, modified, changed int64 // bytes; nanoseconds since 1970
	inode, device           int64
}

type indexEntry struct {
	path   string
	stamp  stamp
	digest checkpointdb.Digest
}

// index is what one capture knows of the one before it, and will tell the next.
type index struct {
	file    string
	began   time.Time
	known   map[string]indexEntry
	entries []indexEntry // of this capture; may be trusted by the next
}

// openIndex reads the index in file; an empty name gives nil, which knows and
// remembers nothing.
func openIndex(file string) *index {
	if file == "" || !hasStamps {
		return nil
	}
	x := &index{file: file}
	if data, err := os.ReadFile(file); err == nil {
		x.known = parseIndex(data)
	}
	return x
}

// begin starts an attempt of the capture. It must come before the first look at
// the tree.
func (x *index) begin() {
	if x != nil {
		x.began, x.entries = time.Now(), nil
	}
}

// distrust forgets what earlier captures knew, after an attempt that found the
// tree to be other than it seemed.
func (x *index) distrust() {
	if x != nil {
		x.known = nil
	}
}

// lookup returns the digest of an unchanged file.
func (x *index) lookup(path string, info fs.FileInfo) (checkpointdb.Digest, bool) {
	if x == nil {
		return checkpointdb.Digest{}, false
	}
	e, ok := x.known[path]
	if !ok {
		return checkpointdb.Digest{}, false
	}
	s, ok := stampOf(info)
	return e.digest, ok && s == e.stamp
}

// racy tells whether the file could be written again without its stamp showing it.
func (x *index) racy(s stamp) bool {
	limit := x.began.Add(-racySpan).UnixNano()
	return s.modified > limit || s.changed > limit
}

// remember notes the digest of the file that info describes. It may be called
// for every file once, in any order, not from several goroutines at a time.
func (x *index) remember(path string, info fs.FileInfo, digest checkpointdb.Digest) {
	if x == nil {
		return
	}
	if s, ok := stampOf(info); ok && !x.racy(s) {
		x.entries = append(x.entries, indexEntry{path, s, digest})
	}
}

// save replaces the file where something has changed. An index that cannot be
// written costs the next capture time and nothing else, so that is no error.
func (x *index) save() {
	if x == nil || x.unchanged() {
		return
	}
	slices.SortFunc(x.entries, func(a, b indexEntry) int { return bytes.Compare([]byte(a.path), []byte(b.path)) })
	// One name for all, so that killed captures leave one file at most (case 49).
	// Two captures at a time cost the index of one, or its checksum.
	name := x.file + ".tmp"
	_ = os.Remove(name)
	tmp, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // it names files
	if err != nil {
		return
	}
	_, err = tmp.Write(x.encode())
	if closing := tmp.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(tmp.Name(), x.file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
}

func (x *index) unchanged() bool {
	if len(x.entries) != len(x.known) {
		return false
	}
	for _, e := range x.entries {
		if x.known[e.path] != e {
			return false
		}
	}
	return true
}

func (x *index) encode() []byte {
	b := append(make([]byte, 0, len(x.entries)*160+64), indexMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(x.entries)))
	for _, e := range x.entries {
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.path)))
		b = append(b, e.path...)
		for _, n := range []int64{e.stamp.size, e.stamp.modified, e.stamp.changed, e.stamp.inode, e.stamp.device} {
			b = binary.BigEndian.AppendUint64(b, uint64(n))
		}
		b = append(b, e.digest[:]...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseIndex returns nothing for bytes that encode did not write.
func parseIndex(data []byte) map[string]indexEntry {
	body, ok := bytes.CutPrefix(data, []byte(indexMagic))
	if !ok || len(body) < 8 {
		return nil
	}
	end := len(data) - 4
	if crc32.Checksum(data[:end], castagnoli) != binary.BigEndian.Uint32(data[end:]) {
		return nil
	}
	count := binary.BigEndian.Uint32(body)
	rest := body[4 : len(body)-4]
	const fixed = 5*8 + len(checkpointdb.Digest{})
	known := make(map[string]indexEntry, min(int(count), len(rest)/(4+fixed)))
	for range count {
		if len(rest) < 4 {
			return nil
		}
		n := int64(binary.BigEndian.Uint32(rest))
		if rest = rest[4:]; int64(len(rest)) < n+int64(fixed) {
			return nil
		}
		e := indexEntry{path: string(rest[:n])}
		rest = rest[n:]
		for i, to := range []*int64{&e.stamp.size, &e.stamp.modified, &e.stamp.changed, &e.stamp.inode, &e.stamp.device} {
			*to = int64(binary.BigEndian.Uint64(rest[8*i:]))
		}
		copy(e.digest[:], rest[5*8:])
		rest = rest[fixed:]
		known[e.path] = e
	}
	if len(rest) > 0 {
		return nil
	}
	return known
}
