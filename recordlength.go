package checkpointdb

import (
	"encoding/binary"
	"hash/crc32"

	"checkpointdb/internal/salvage"
)

// recordStarts are the bytes that a record can start with: its versions.
var recordStarts = func() (starts [256]bool) {
	for version := 1; version <= recordVersion; version++ {
		starts[version] = true
	}
	return starts
}()

// recordLength returns the length of the whole record that starts at off, 0 when
// there is none. It refuses most of what is no record after a few bytes, and reads
// to the end, for the checksum, only what has a record's frame.
func recordLength(f *salvage.File, off int64) int64 {
	r := frame{f: f, at: off}
	version := r.byte()
	if version == 0 || version > recordVersion {
		return 0
	}
	if r.text(MaxIDBytes) == 0 { // id
		return 0
	}
	if r.text(MaxIDBytes) == 0 { // thread id
		return 0
	}
	r.text(MaxIDBytes) // parent
	if _, err := parseTime(r.bytes(timeLen)); err != nil {
		return 0
	}
	if int(r.byte()) >= len(reasonNames) {
		return 0
	}
	r.text(r.f.Size()) // label
	r.text(r.f.Size()) // run id
	if version > 1 {
		r.text(MaxIDBytes) // source
	}
	r.uvarint() // base
	for range sections {
		r.uvarint() // count
		r.skip(4)   // sum
		depth, chainBytes, fullBytes := r.uvarint(), r.uvarint(), r.uvarint()
		payload := uint64(r.text(r.f.Size()))
		if depth == 0 && (chainBytes != 0 || fullBytes != payload) || depth > 0 && (payload > chainBytes || chainBytes > fullBytes) || depth > maxDepth {
			return 0
		}
	}
	if r.bad || r.at+4 > r.f.Size() {
		return 0
	}
	sum := uint32(0)
	for at := off; at < r.at; {
		b := f.At(at, int(min(r.at-at, 1<<16)))
		if len(b) == 0 {
			return 0 // the disk does not give it
		}
		sum, at = crc32.Update(sum, castagnoli, b), at+int64(len(b))
	}
	if stored := r.bytes(4); r.bad || binary.BigEndian.Uint32(stored) != sum {
		return 0
	}
	return r.at - off
}

// frame passes over the fields of a record in a file. Like reader it gives zero
// values after the first fault.
type frame struct {
	f   *salvage.File
	at  int64
	bad bool
}

func (r *frame) bytes(n int) []byte {
	b := r.f.At(r.at, n)
	if r.bad || len(b) < n {
		r.bad = true
		return nil
	}
	r.at += int64(n)
	return b
}

func (r *frame) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *frame) uvarint() uint64 {
	n, size := binary.Uvarint(r.f.At(r.at, binary.MaxVarintLen64))
	if r.bad || size <= 0 {
		r.bad = true
		return 0
	}
	r.at += int64(size)
	return n
}

func (r *frame) skip(n int64) {
	if r.bad || n > r.f.Size()-r.at {
		r.bad = true
		return
	}
	r.at += n
}

// text passes over a text and returns its length; a longer one than limit is a
// fault.
func (r *frame) text(limit int64) int64 {
	n := r.uvarint()
	if r.bad || n > uint64(limit) {
		r.bad = true
		return 0
	}
	r.skip(int64(n))
	return int64(n)
}
