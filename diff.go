package checkpointdb

import (
	"encoding/binary"
	"slices"
)

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

// patch runs a script over old and appends what comes out to list. count is how
// many items that must be.
func patch[T any](list, old []T, script []byte, inserted []T, count uint64) ([]T, error) {
	if count > uint64(len(script))*uint64(len(old))+uint64(len(inserted)) {
		return nil, errRow
	}
	list = slices.Grow(list, int(count))
	left := count
	r := reader{rest: script}
	end := int64(0)
	for len(r.rest) > 0 {
		op := r.uvarint()
		n := op >> 1
		if n == 0 || n > left {
			return nil, errRow
		}
		left -= n
		if op&1 == 0 {
			if n > uint64(len(inserted)) {
				return nil, errRow
			}
			list, inserted = append(list, inserted[:n]...), inserted[n:]
			continue
		}
		skip, size := binary.Varint(r.rest)
		if size <= 0 {
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
	if r.bad || len(inserted) > 0 || left > 0 {
		return nil, errRow
	}
	return list, nil
}
