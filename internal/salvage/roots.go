package salvage

import (
	"bytes"
	"context"
	"encoding/binary"
)

// FindRoots looks through all pages for those that are the root of a bucket whose
// rows are exactly the buckets of these names, as the root of each transaction is
// whose pages have not been used again.
func (f *File) FindRoots(ctx context.Context, names map[string]bool) (roots []uint64, err error) {
	leaves := map[uint64]int{}        // pages of such rows alone, and how many
	branches := map[uint64][]uint64{} // pages above such, as their keys have it
	for id := uint64(2); id < f.Pages(); id++ {
		if id%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		page := f.At(int64(id)*f.pageSize, int(f.pageSize))
		if len(page) < headerLen {
			continue // cut, or not to be read
		}
		h := parseHeader(page)
		if h.id != id || h.count == 0 || h.count > len(names) || len(page) < headerLen+h.count*elementLen {
			continue
		}
		switch h.flags {
		case flagLeaf:
			if isNamed(page, h.count, names, 4, 8) {
				leaves[id] = h.count
			}
		case flagBranch:
			if isNamed(page, h.count, names, 0, 4) {
				for i := range h.count {
					branches[id] = append(branches[id], binary.LittleEndian.Uint64(page[headerLen+i*elementLen+8:]))
				}
			}
		}
	}
	for id, rows := range leaves {
		if rows == len(names) {
			roots = append(roots, id)
		}
	}
	for id, children := range branches {
		rows := 0
		for _, child := range children {
			rows += leaves[child]
		}
		if rows == len(names) {
			roots = append(roots, id)
		}
	}
	return roots, nil
}

// isNamed tells whether the keys of a page are of names, in order. pos and size say
// where in an element those of its key stand.
func isNamed(page []byte, count int, names map[string]bool, pos, size int) bool {
	var last []byte
	for i := range count {
		e := page[headerLen+i*elementLen:]
		at := uint64(headerLen+i*elementLen) + uint64(binary.LittleEndian.Uint32(e[pos:]))
		end := at + uint64(binary.LittleEndian.Uint32(e[size:]))
		if end > uint64(len(page)) || !names[string(page[at:end])] || bytes.Compare(last, page[at:end]) >= 0 {
			return false
		}
		last = page[at:end]
	}
	return true
}
