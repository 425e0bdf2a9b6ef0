package checkpointdb

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"checkpointdb/internal/salvage"
)

// origin says how surely a record belongs to the store; the smaller, the surer.
type origin int

const (
	inTree  origin = iota // of the newest transaction
	inOlder               // the tree of the transaction before
	inPages               // pages that no tree accounts for
	inFree                // pages that are free
)

// whole is a record whose checksum holds.
type whole struct {
	at         salvage.Extent
	id, parent CheckpointID
	threadID   ThreadID
	createdAt  time.Time
	isLinked   bool  // the parent is the record before it, as long as it has a base
	place      place // as the file says; zero where it does not
	from       origin
}

// value is the value of a row, which lies in the file where it may be long.
type value struct {
	bytes   []byte
	at      salvage.Extent
	isSound bool // of the newest tree, on a page that breaks no rule
}

// collector gathers what a damaged file holds.
type collector struct {
	ctx     context.Context
	f       *salvage.File
	from    origin // of what is read just now
	newest  *salvage.Tree
	records []*whole
	seen    map[int64]bool // where records have been found
	broken  []LostCheckpoint
	rows    map[string]map[string]value // by bucket and key; of some buckets only
	ids     map[CheckpointID]place
	fences  map[threadNumber]Fence // at least these were given out, by leases and pins
	leases  int
	pins    int
	badRows map[string][]string // by bucket, the keys whose values make no sense

	byID map[CheckpointID][]*whole // records, made when all are there
	lost map[listOf]error          // lists that are known not to be had
}

// gather reads all of f: first the tree of the newest transaction, then, where
// that is damaged, the one before, and whatever records lie in other pages.
func gather(ctx context.Context, f *salvage.File, metas []salvage.Meta, progress func(int64)) (*collector, error) {
	c := &collector{
		ctx: ctx, f: f, seen: map[int64]bool{}, rows: map[string]map[string]value{}, ids: map[CheckpointID]place{},
		fences: map[threadNumber]Fence{}, badRows: map[string][]string{},
	}
	trees := metas
	if len(metas) < 2 {
		var err error
		if trees, err = findTrees(ctx, f, metas); err != nil {
			return nil, err
		}
	}
	sound := []*salvage.PageSet{}
	var free, own *salvage.PageSet
	pages, damaged := uint64(0), len(metas) < 2
	for i, m := range trees {
		if i > 0 && !damaged {
			break
		}
		c.from = origin(i)
		tree, err := f.Walk(ctx, m.Root, m.Pages, nil, c.row)
		if err != nil {
			return nil, err
		}
		sound = append(sound, tree.Sound)
		progress(int64(tree.Sound.Len()) * f.PageSize())
		if i > 0 {
			break
		}
		c.newest, pages = tree, m.Pages
		if free, own, err = f.Freelist(m); err != nil {
			damaged = true
		}
		// What neither is used nor free was lost with the page that named it.
		damaged = damaged || len(tree.Problems) > 0 || m.Pages > f.Pages() ||
			2+tree.Reached.Len()+free.Len()+own.Len() != m.Pages
	}
	if !damaged {
		return c, nil
	}
	skip := func(page uint64) bool {
		for _, pages := range sound {
			if pages.Has(page) {
				return true
			}
		}
		return own.Has(page)
	}
	err := f.Carve(ctx, skip, &recordStarts, func(off int64) int64 {
		n := recordLength(f, off)
		if page := uint64(off / f.PageSize()); free.Has(page) || free != nil && page >= pages {
			c.from = inFree
		} else {
			c.from = inPages
		}
		if n > 0 && !c.record(salvage.Extent{Off: off, Len: n}, place{}) {
			return 0
		}
		return n
	}, progress)
	return c, err
}

// findTrees returns what stands in for the meta records of a file that lacks one
// or both. A lost one may have been the newest, and its tree lies in the file still.
// Which of several trees is the newest is told by numbers that only grow; where
// they do not tell, what a meta record names is taken.
func findTrees(ctx context.Context, f *salvage.File, metas []salvage.Meta) ([]salvage.Meta, error) {
	names := map[string]bool{}
	for _, name := range allBuckets {
		names[string(name)] = true
	}
	roots, err := f.FindRoots(ctx, names)
	if err != nil {
		return nil, err
	}
	trees := slices.Clone(metas)
	for _, root := range roots {
		if len(metas) == 0 || metas[0].Root != root {
			trees = append(trees, salvage.Meta{PageSize: f.PageSize(), Root: root, Pages: f.Pages()})
		}
	}
	ages := map[uint64]age{}
	for _, m := range trees {
		if ages[m.Root], err = ageOf(ctx, f, m); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(trees, func(a, b salvage.Meta) int { return ages[b.Root].compare(ages[a.Root]) })
	return trees[:min(2, len(trees))], nil
}

// age tells a tree from those of other transactions.
type age struct {
	isBroken bool
	fences   uint64 // together; they never go down
	next     uint64 // positions, of all threads together; they go down with a whole thread alone
	rows     int    // that more often come than go
	live     uint64 // checkpoints; with no change of next, some have gone
}

func (a age) compare(b age) int {
	return cmp.Or(compareBool(b.isBroken, a.isBroken), cmp.Compare(a.fences, b.fences), cmp.Compare(a.next, b.next),
		cmp.Compare(a.rows, b.rows), cmp.Compare(b.live, a.live))
}

// ageOf reads the buckets of a tree that tell its age.
func ageOf(ctx context.Context, f *salvage.File, m salvage.Meta) (a age, err error) {
	tellers := map[string]func(v []byte) error{
		string(bucketFences): func(v []byte) error {
			fence, err := parseU64(v)
			if fence <= maxFence {
				a.fences += fence
			}
			return err
		},
		string(bucketHeads): func(v []byte) error {
			h, err := parseHeadRow(v)
			a.next += uint64(h.next)
			a.live += uint64(h.count(1, h.next))
			return err
		},
		string(bucketThreads): nil, string(bucketInstances): nil, string(bucketTranscripts): nil,
	}
	isRead := func(bucket string) bool {
		_, tells := tellers[bucket]
		return tells
	}
	tree, err := f.Walk(ctx, m.Root, m.Pages, isRead, func(r salvage.Row) bool {
		tell := tellers[r.Bucket]
		if tell == nil {
			a.rows++
			return true
		}
		v, err := r.Bytes()
		return err == nil && tell(v) == nil
	})
	if err == nil {
		a.isBroken = len(tree.Problems) > 0
	}
	return a, err
}

// isWhole tells whether all rows of a bucket have been read.
func (c *collector) isWhole(bucket []byte) bool {
	return c.newest != nil && c.newest.Buckets[string(bucket)] != nil && c.newest.Buckets[string(bucket)].Sound
}

// row takes in a row, and tells whether it makes sense.
func (c *collector) row(r salvage.Row) bool {
	if c.from != inTree && c.isWhole([]byte(r.Bucket)) {
		return true // the newer tree has said all
	}
	if r.Bucket == string(bucketCheckpoints) {
		p, err := parsePlace(r.Key)
		return c.record(r.Value, p) && err == nil
	}
	if r.Bucket == string(bucketRefcounts) {
		return true // built anew from the records
	}
	ok := false
	v, err := r.Bytes()
	if err == nil {
		ok = c.take(r, v)
	}
	if !ok && len(c.badRows[r.Bucket]) < maxViolations {
		c.badRows[r.Bucket] = append(c.badRows[r.Bucket], string(r.Key))
	}
	return ok
}

func (c *collector) take(r salvage.Row, v []byte) bool {
	switch r.Bucket {
	case string(bucketMeta):
		return c.keep(r, v)
	case string(bucketThreads):
		_, err := parseU64(v)
		return err == nil && ThreadID(r.Key).Validate() == nil && c.keep(r, v)
	case string(bucketIDs):
		p, err := parsePlace(v)
		id := CheckpointID(r.Key)
		if err != nil || id.Validate() != nil {
			return false
		}
		if _, known := c.ids[id]; !known {
			c.ids[id] = p
		}
		return true
	case string(bucketHeads):
		_, err := parseHeadRow(v)
		return err == nil && len(r.Key) == 8 && c.keep(r, v)
	case string(bucketFences):
		_, err := parseU64(v)
		return err == nil && len(r.Key) == 8 && c.keep(r, v)
	case string(bucketWriters):
		l, err := parseLeaseRow(v)
		if c.from == inTree {
			c.leases++
		}
		return err == nil && c.atLeast(r.Key, l.fence)
	case string(bucketPins):
		fence, err := parseU64(v)
		if c.from == inTree {
			c.pins++
		}
		return err == nil && len(r.Key) == len(blobID{})+8 && c.atLeast(r.Key[len(blobID{}):], Fence(fence))
	case string(bucketGarbage):
		_, err := parseTime(v)
		return err == nil && len(r.Key) == len(blobID{}) && r.Key[0] <= blobFile && c.keep(r, v)
	case string(bucketInstances):
		in, err := parseInstance(r.Key, v)
		return err == nil && in.Validate() == nil && c.keep(r, v)
	case string(bucketTranscripts):
		_, err := validTranscript(v)
		return err == nil && len(r.Key) == 8 && c.keep(r, nil)
	}
	return false
}

func validTranscript(v []byte) ([]string, error) {
	items, err := parseTranscript(v)
	if err != nil {
		return nil, err
	}
	messages := make([]json.RawMessage, len(items))
	for i := range items {
		messages[i] = json.RawMessage(items[i])
	}
	return items, ValidateMessages("messages", messages)
}

// keep keeps a row, unless the newer tree has had it. v is nil for a value that
// stays in the file.
func (c *collector) keep(r salvage.Row, v []byte) bool {
	rows := c.rows[r.Bucket]
	if rows == nil {
		rows = map[string]value{}
		c.rows[r.Bucket] = rows
	}
	if _, known := rows[string(r.Key)]; !known {
		rows[string(r.Key)] = value{bytes: append([]byte(nil), v...), at: r.Value, isSound: r.Sound && c.from == inTree}
	}
	return true
}

func (c *collector) atLeast(key []byte, f Fence) bool {
	n, err := parseU64(key)
	if err != nil || f > maxFence {
		return false
	}
	c.fences[threadNumber(n)] = max(c.fences[threadNumber(n)], f)
	return true
}

// record takes in the record at an extent, and tells whether it is whole.
func (c *collector) record(at salvage.Extent, p place) bool {
	if c.seen[at.Off] {
		return true
	}
	raw, err := c.f.Read(at)
	var rec *record
	if err == nil {
		rec, err = parseRecord(raw)
	}
	if err != nil {
		if h, _, headErr := parseHeader(raw); headErr == nil && h.id.Validate() == nil && h.threadID.Validate() == nil {
			c.broken = append(c.broken, LostCheckpoint{h.id, h.threadID, err.Error()})
		}
		return false
	}
	c.seen[at.Off] = true
	c.records = append(c.records, &whole{
		at: at, id: rec.id, parent: rec.parent, threadID: rec.threadID, createdAt: rec.createdAt,
		isLinked: rec.base != 0, place: p, from: c.from,
	})
	return true
}

// threadNames says which thread each number stands for: what records say, which
// have checksums, counts before what rows say.
func (c *collector) threadNames() map[threadNumber]ThreadID {
	votes := map[threadNumber]map[ThreadID]int{}
	vote := func(n threadNumber, id ThreadID, weight int) {
		if n == 0 {
			return
		}
		if votes[n] == nil {
			votes[n] = map[ThreadID]int{}
		}
		votes[n][id] += weight
	}
	for _, r := range c.records {
		vote(r.place.thread, r.threadID, 2)
		if p, ok := c.ids[r.id]; ok {
			vote(p.thread, r.threadID, 1)
		}
	}
	for id, v := range c.rows[string(bucketThreads)] {
		n, _ := parseU64(v.bytes)
		vote(threadNumber(n), ThreadID(id), 1)
	}
	names := map[threadNumber]ThreadID{}
	for n, of := range votes {
		for id, count := range of {
			best := of[names[n]]
			if names[n] == "" || cmp.Or(cmp.Compare(count, best), cmp.Compare(names[n], id)) > 0 {
				names[n] = id
			}
		}
	}
	return names
}

// version reads a record again and builds its lists, each from those before it as
// far as it is a difference. What it returns has passed the checksums of the
// record; the error says which list cannot be had, and missing which ones.
func (c *collector) version(w *whole, before *partial) (*partial, error) {
	raw, err := c.f.Read(w.at)
	if err != nil {
		return nil, err
	}
	rec, err := parseRecord(raw)
	if err != nil {
		return nil, err
	}
	v := &partial{version: version{record: rec}}
	for kind := range sections {
		items, e := c.list(w, rec, kind, before)
		if v.missing[kind] = e != nil; e != nil && err == nil {
			err = fmt.Errorf("its %s: %w", kind, e)
		}
		v.lists[kind] = items
	}
	return v, err
}

// partial is a version of which some lists may be missing.
type partial struct {
	version
	missing [sections]bool
}

// list builds one list of the record of w.
func (c *collector) list(w *whole, rec *record, kind sectionKind, before *partial) ([]string, error) {
	s := rec.sections[kind]
	if s.depth == 0 {
		return s.build(kind, nil)
	}
	if before != nil && !before.missing[kind] && before.id == rec.parent && before.threadID == rec.threadID {
		if items, err := s.build(kind, before.lists[kind]); err == nil {
			return items, nil
		}
	}
	lost := listOf{w, kind}
	if err := c.lost[lost]; err != nil {
		return nil, err
	}
	for _, base := range c.byID[rec.parent] {
		if base.threadID != w.threadID {
			continue
		}
		raw, err := c.f.Read(base.at)
		if err != nil {
			continue
		}
		// The depth falls by one from record to record, so this ends.
		from, err := parseRecord(raw)
		if err != nil || from.sections[kind].depth+1 != s.depth {
			continue
		}
		items, err := c.list(base, from, kind, nil)
		if err != nil {
			continue
		}
		if items, err = s.build(kind, items); err == nil {
			return items, nil
		}
	}
	c.lost[lost] = fmt.Errorf("they build on those of checkpoint %q, which are lost", rec.parent)
	return nil, c.lost[lost]
}

type listOf struct {
	*whole
	kind sectionKind
}

// build makes the list of a section, out of that of its base where it is a
// difference.
func (s section) build(kind sectionKind, base []string) ([]string, error) {
	items, err := buildList(kind, []section{s}, base)
	if err == nil {
		err = s.verify(items)
	}
	return items, err
}
