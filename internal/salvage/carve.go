package salvage

import "context"

// Carve looks for records at every byte of the pages that skip does not want
// left out. isFirst tells whether a record can start with a byte, and length how
// long the record is that starts at an offset, 0 when none does; nothing inside a
// record is looked at again. progress is told of each stretch of bytes that is
// done.
func (f *File) Carve(ctx context.Context, skip func(page uint64) bool, isFirst *[256]bool, length func(off int64) int64, progress func(bytes int64)) error {
	window := make([]byte, 1<<20)
	off := int64(0)
	for page := uint64(0); page < f.Pages(); {
		if skip(page) {
			page++
			continue
		}
		start := int64(page) * f.pageSize
		for page < f.Pages() && !skip(page) {
			page++
		}
		end := min(int64(page)*f.pageSize, f.size)
		for off = max(off, start); off < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, _ := f.r.ReadAt(window[:min(int64(len(window)), end-off)], off)
			if n == 0 {
				n = int(min(f.pageSize, end-off)) // the disk does not give it
				progress(int64(n))
				off += int64(n)
				continue
			}
			i := 0
			for i < n {
				if !isFirst[window[i]] {
					i++
				} else if found := length(off + int64(i)); found > 0 {
					i += int(found)
				} else {
					i++
				}
			}
			progress(int64(i))
			off += int64(i)
		}
	}
	return nil
}
