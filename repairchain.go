package checkpointdb

import (
	"cmp"
	"slices"
	"time"
)

// orderChain puts the records of a thread into the order of the chain: each behind
// its parent, where that is there; otherwise as positions say, where they are
// known, or else times. last, which may be nil, is known to be the newest.
//
// Two records of one parent cannot both follow it, and a parent must not lie
// before its child elsewhere (invariant 3). So the less sure of the two comes
// before the parent, with what follows it. What contradicts itself even so is left
// out.
func orderChain(records []*whole, last *whole) (ordered, leftOut []*whole) {
	byID := make(map[CheckpointID]*whole, len(records))
	for _, r := range records {
		byID[r.id] = r
	}
	// The surest child gets the place behind its parent.
	records = slices.Clone(records)
	slices.SortFunc(records, func(a, b *whole) int {
		return cmp.Or(compareBool(b.isLinked, a.isLinked), cmp.Compare(a.from, b.from), compareBool(b == last, a == last),
			b.createdAt.Compare(a.createdAt), cmp.Compare(a.id, b.id))
	})
	next, before := map[*whole]*whole{}, map[*whole]*whole{}
	for _, r := range records {
		p := byID[r.parent]
		if p == nil || p == r || p == last || next[p] != nil ||
			p.place.pos != 0 && r.place.pos != 0 && p.place.pos >= r.place.pos { // the id was used again
			continue
		}
		next[p], before[r] = r, p
	}

	var segments []*segment
	of := map[*whole]*segment{}
	follow := func(r *whole) {
		s := &segment{first: r}
		for ; r != nil && of[r] == nil; r = next[r] {
			of[r] = s
			s.records = append(s.records, r)
			if s.pos == 0 {
				s.pos = r.place.pos
			}
			s.isLast = s.isLast || r == last
		}
		segments = append(segments, s)
	}
	for _, r := range records {
		if before[r] == nil {
			follow(r)
		}
	}
	for _, r := range records { // those in a circle
		if of[r] == nil {
			follow(r)
		}
	}

	// Among those of known position, position decides. The others find their place
	// by time, which runs along with the positions, more or less.
	slices.SortFunc(segments, func(a, b *segment) int { return cmp.Compare(a.pos, b.pos) })
	latest := slices.IndexFunc(segments, func(s *segment) bool { return s.pos != 0 })
	for i, s := range segments {
		s.time = s.first.createdAt
		if latest >= 0 && i > latest && s.time.Before(segments[i-1].time) {
			s.time = segments[i-1].time
		}
	}
	slices.SortStableFunc(segments, func(a, b *segment) int {
		return cmp.Or(compareBool(a.isLast, b.isLast), a.time.Compare(b.time))
	})

	// What must come before the segment that holds its parent does.
	for _, s := range segments {
		if p := byID[s.first.parent]; p != nil && of[p] != s {
			of[p].after = append(of[p].after, s)
		}
	}
	var emit func(s *segment)
	emit = func(s *segment) {
		if s.state != waiting {
			return
		}
		s.state = emitting
		for _, earlier := range s.after {
			if earlier.state == emitting {
				earlier.isLeftOut = true
			}
			emit(earlier)
		}
		s.state = emitted
		if s.isLeftOut {
			leftOut = append(leftOut, s.records...)
		} else {
			ordered = append(ordered, s.records...)
		}
	}
	for _, s := range segments {
		emit(s)
	}
	return ordered, leftOut
}

// segment is a stretch of a chain, each record the parent of the next.
type segment struct {
	records []*whole
	first   *whole
	pos     position // the first that is known, 0 for none
	time    time.Time
	isLast  bool
	after   []*segment // these come first
	state   int

	isLeftOut bool
}

const (
	waiting = iota
	emitting
	emitted
)

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
