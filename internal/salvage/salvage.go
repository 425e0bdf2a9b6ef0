// Package salvage reads bbolt files that may be damaged in any way. It uses
// plain reads, trusts nothing it has not checked, and never panics, loops or
// writes. What it returns says what was sound.
//
// The format, as far as it matters here, little-endian throughout: a page is a
// header of id (u64), flags (u16), count (u16) and overflow (u32), the number of
// pages that it takes beside its own, and then elements of 16 bytes, whose
// positions count from the element itself. The first two pages hold a meta record
// each, written in turns, so that one of them is whole at any time.
package salvage

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
)

const (
	headerLen  = 16
	elementLen = 16

	flagBranch   = 1
	flagLeaf     = 2
	flagMeta     = 4
	flagFreelist = 0x10

	flagBucket = 1 // of a leaf element: the value is a bucket

	minPageSize, maxPageSize = 1 << 9, 1 << 24
)

// Meta is a meta record: where everything else is, as of one transaction.
type Meta struct {
	PageSize int64
	Root     uint64 // page of the root bucket
	Freelist uint64 // page of the list of free pages
	Pages    uint64 // pages in use or free; all others lie behind
	TxID     uint64
}

// HasFreelist tells whether the file keeps a list of free pages at all. Ours do; a
// bbolt that was told not to sync it leaves it out.
func (m Meta) HasFreelist() bool { return m.Freelist != 1<<64-1 }

const (
	magic   = 0xED0CDAED
	metaLen = 64 // the checksum is the last 8 bytes of it
	// MetaPageLen is how much of a page ParseMeta looks at.
	MetaPageLen = headerLen + metaLen
)

// ParseMeta reads the meta record of a page. ok tells whether it is whole, and
// isBolt whether it at least says that it is one.
func ParseMeta(page []byte) (m Meta, isBolt, ok bool) {
	if len(page) < MetaPageLen {
		return Meta{}, false, false
	}
	b := page[headerLen:MetaPageLen]
	m = Meta{
		PageSize: int64(binary.LittleEndian.Uint32(b[8:])),
		Root:     binary.LittleEndian.Uint64(b[16:]),
		Freelist: binary.LittleEndian.Uint64(b[32:]),
		Pages:    binary.LittleEndian.Uint64(b[40:]),
		TxID:     binary.LittleEndian.Uint64(b[48:]),
	}
	isBolt = binary.LittleEndian.Uint32(b) == magic
	sum := fnv.New64a()
	sum.Write(b[:56])
	ok = isBolt && sum.Sum64() == binary.LittleEndian.Uint64(b[56:]) &&
		m.Pages > 2 && m.Pages < 1<<40 && isPageSize(m.PageSize)
	return m, isBolt, ok
}

func isPageSize(n int64) bool { return n >= minPageSize && n <= maxPageSize && n&(n-1) == 0 }

// IsMetaPage tells whether a page starts as a first page does.
func IsMetaPage(page []byte) bool {
	return len(page) >= headerLen && binary.LittleEndian.Uint64(page) == 0 && binary.LittleEndian.Uint16(page[8:]) == flagMeta
}

// FindMetas returns the whole meta records of a file, the newest first. isBolt
// tells whether there is any sign that the file is one of bbolt.
func FindMetas(r io.ReaderAt) (metas []Meta, isBolt bool) {
	page := make([]byte, MetaPageLen)
	look := func(off, pageSize int64) bool {
		if n, _ := r.ReadAt(page, off); n < len(page) {
			return false
		}
		m, says, ok := ParseMeta(page)
		isBolt = isBolt || says
		// The second one counts only where its own page size puts it.
		if ok && (pageSize == 0 || m.PageSize == pageSize) {
			metas = append(metas, m)
		}
		return true
	}
	look(0, 0)
	isBolt = isBolt || IsMetaPage(page)
	// Only the first meta says how long a page is, and it may be gone.
	for size := int64(minPageSize); size <= maxPageSize && look(size, size); size *= 2 {
	}
	if len(metas) == 2 && metas[1].TxID > metas[0].TxID {
		metas[0], metas[1] = metas[1], metas[0]
	}
	return metas[:min(2, len(metas))], isBolt
}

// File is a damaged file. It is not safe for concurrent use.
type File struct {
	r        io.ReaderAt
	size     int64
	pageSize int64

	window []byte // what At read last, and where
	from   int64
}

// New returns a reader of the size bytes of r, with pages of pageSize bytes,
// which is a Meta's or GuessPageSize's.
func New(r io.ReaderAt, size, pageSize int64) *File {
	return &File{r: r, size: size, pageSize: pageSize}
}

// Size is the length of the file in bytes.
func (f *File) Size() int64 { return f.size }

// PageSize is the length of a page in bytes.
func (f *File) PageSize() int64 { return f.pageSize }

// Pages is the number of pages that the file has, the last one perhaps in part.
func (f *File) Pages() uint64 { return uint64((f.size + f.pageSize - 1) / f.pageSize) }

// GuessPageSize returns the page size that most pages of the file agree with. It
// looks at the first pages only, and says 4096 when nothing there is a page.
func GuessPageSize(r io.ReaderAt, size int64) int64 {
	best, most := int64(4096), 0
	header := make([]byte, headerLen)
	for pageSize := int64(minPageSize); pageSize <= 1<<16; pageSize *= 2 {
		votes := 0
		for id := int64(1); id <= 4096 && id*pageSize < size; id++ {
			if n, _ := r.ReadAt(header, id*pageSize); n < headerLen {
				break
			}
			if h := parseHeader(header); h.id == uint64(id) && h.isKnown() {
				votes++
			}
		}
		if votes > most {
			best, most = pageSize, votes
		}
	}
	return best
}

// Extent is a range of bytes of the file.
type Extent struct{ Off, Len int64 }

// End is where the extent ends.
func (e Extent) End() int64 { return e.Off + e.Len }

// ErrCut is what reading behind the end of the file gives.
var ErrCut = errors.New("the file was cut before it")

// Read returns the bytes of an extent, in memory of their own.
func (f *File) Read(e Extent) ([]byte, error) {
	if e.Off < 0 || e.Len < 0 || e.Len > f.size || e.Off > f.size-e.Len {
		return nil, ErrCut
	}
	b := make([]byte, e.Len)
	if n, err := f.r.ReadAt(b, e.Off); n < len(b) {
		return nil, errors.Join(ErrCut, err)
	}
	return b, nil
}

const windowLen = 64 << 10

// At returns up to n bytes from off on, fewer at the end of the file, where the
// disk does not give them, and beyond 64 KiB. They are valid until the next call.
func (f *File) At(off int64, n int) []byte {
	n = min(n, windowLen)
	if off < 0 || off >= f.size {
		return nil
	}
	if off < f.from || off+int64(n) > f.from+int64(len(f.window)) && f.from+int64(len(f.window)) < f.size {
		f.fill(off)
	}
	lo := min(off-f.from, int64(len(f.window)))
	return f.window[lo:min(lo+int64(n), int64(len(f.window)))]
}

func (f *File) fill(off int64) {
	if cap(f.window) < windowLen {
		f.window = make([]byte, windowLen)
	}
	n, _ := f.r.ReadAt(f.window[:windowLen], off)
	f.window, f.from = f.window[:n], off
}

// header is the head of a page.
type header struct {
	id       uint64
	flags    uint16
	count    int
	overflow uint64
}

func parseHeader(b []byte) header {
	return header{
		id:       binary.LittleEndian.Uint64(b),
		flags:    binary.LittleEndian.Uint16(b[8:]),
		count:    int(binary.LittleEndian.Uint16(b[10:])),
		overflow: uint64(binary.LittleEndian.Uint32(b[12:])),
	}
}

func (h header) isKnown() bool {
	switch h.flags {
	case flagBranch, flagLeaf, flagMeta, flagFreelist:
		return true
	}
	return false
}

// PageSet is a set of pages of one file. Nil is the empty set.
type PageSet struct {
	words []uint64
	n     uint64
}

// NewPageSet returns an empty set that can hold the pages below n.
func NewPageSet(n uint64) *PageSet { return &PageSet{words: make([]uint64, (n+63)/64)} }

// Has tells whether id is in the set.
func (s *PageSet) Has(id uint64) bool {
	return s != nil && id/64 < uint64(len(s.words)) && s.words[id/64]&(1<<(id%64)) != 0
}

// Add adds the n pages from id on, as far as the set can hold them.
func (s *PageSet) Add(id, n uint64) {
	for ; n > 0 && id/64 < uint64(len(s.words)); id, n = id+1, n-1 {
		if !s.Has(id) {
			s.words[id/64] |= 1 << (id % 64)
			s.n++
		}
	}
}

func (s *PageSet) remove(id uint64) {
	if s.Has(id) {
		s.words[id/64] &^= 1 << (id % 64)
		s.n--
	}
}

// Len is the number of pages in the set.
func (s *PageSet) Len() uint64 {
	if s == nil {
		return 0
	}
	return s.n
}

// overlaps tells whether any of the n pages from id on is in the set.
func (s *PageSet) overlaps(id, n uint64) bool {
	for ; n > 0 && id/64 < uint64(len(s.words)); id, n = id+1, n-1 {
		if s.Has(id) {
			return true
		}
	}
	return false
}
