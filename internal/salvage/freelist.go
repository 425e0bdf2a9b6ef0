package salvage

import (
	"encoding/binary"
	"fmt"
)

// Freelist reads the list of free pages of m. free are the pages on it and own
// are those that hold it; both are nil when err says what is wrong with it.
func (f *File) Freelist(m Meta) (free, own *PageSet, err error) {
	damaged := func(format string, args ...any) (*PageSet, *PageSet, error) {
		return nil, nil, fmt.Errorf("page %d, the freelist: "+format, append([]any{m.Freelist}, args...)...)
	}
	if m.Freelist < 2 || m.Freelist >= min(m.Pages, f.Pages()) {
		return damaged("is outside the file")
	}
	at := int64(m.Freelist) * f.pageSize
	b := f.At(at, headerLen+8)
	if len(b) < headerLen+8 {
		return damaged("%w", ErrCut)
	}
	h := parseHeader(b)
	if h.id != m.Freelist || h.flags != flagFreelist {
		return damaged("its header says page %d of type %#x", h.id, h.flags)
	}
	if h.overflow >= m.Pages-m.Freelist {
		return damaged("has %d pages more, which is outside the file", h.overflow)
	}
	ids, start := uint64(h.count), at+headerLen
	if h.count == 0xFFFF { // then the first number is the count
		ids, start = binary.LittleEndian.Uint64(b[headerLen:]), start+8
	}
	end := at + int64(h.overflow+1)*f.pageSize
	if ids > uint64(end-start)/8 {
		return damaged("counts %d pages, which it has no room for", ids)
	}
	free, own = NewPageSet(f.Pages()), NewPageSet(f.Pages())
	own.Add(m.Freelist, h.overflow+1)
	last := uint64(1)
	for ids > 0 {
		b := f.At(start, int(min(ids*8, windowLen)))
		if len(b) < 8 {
			return damaged("%w", ErrCut)
		}
		for ; len(b) >= 8; b, ids, start = b[8:], ids-1, start+8 {
			id := binary.LittleEndian.Uint64(b)
			if id <= last || id >= m.Pages || own.Has(id) {
				return damaged("lists page %d behind %d, of %d", id, last, m.Pages)
			}
			free.Add(id, 1)
			last = id
		}
	}
	return free, own, nil
}
