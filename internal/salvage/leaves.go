package salvage

import "encoding/binary"

// Leaves returns the leaf pages of the tree below a page, by key, and reads none
// of them: only the branches, and one leaf to know that it is one, since all lie
// equally deep. Of a damaged tree it returns any page numbers, or none.
func (f *File) Leaves(root uint64) []uint64 {
	level := []uint64{root}
	page := make([]byte, f.pageSize)
	left := f.Pages() // that the tree can have, beside those that were read
	for len(level) > 0 {
		var below []uint64
		for i, id := range level {
			n, _ := f.r.ReadAt(page, int64(id)*f.pageSize)
			if n < headerLen {
				continue
			}
			h := parseHeader(page)
			if h.flags != flagBranch && i == 0 {
				return level
			}
			for at := headerLen; h.flags == flagBranch && h.count > 0 && at+elementLen <= n; at += elementLen {
				below = append(below, binary.LittleEndian.Uint64(page[at+8:]))
				h.count--
			}
			if left--; uint64(len(below)) > left {
				return nil
			}
		}
		level = below
	}
	return nil
}
