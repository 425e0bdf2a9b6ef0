package salvage

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
)

// Row is a key and where its value lies.
type Row struct {
	Bucket string
	Key    []byte // valid until visit returns
	Value  Extent
	// Sound is false when the page of the row breaks a rule somewhere. The row
	// may be right for all that, or nonsense.
	Sound bool

	data []byte // the value, where it is in memory
	f    *File
}

// Bytes returns the value. It is valid until visit returns.
func (r Row) Bytes() ([]byte, error) {
	if r.data != nil {
		return r.data, nil
	}
	return r.f.Read(r.Value)
}

// Bucket is what a walk has found of a bucket.
type Bucket struct {
	Rows  int
	Sound bool // every page and row of it was found, and none breaks a rule
}

// Tree is the outcome of a walk.
type Tree struct {
	Buckets  map[string]*Bucket // by name
	Sound    *PageSet           // pages that break no rule, and whose rows visit accepted
	Reached  *PageSet           // pages that some page names, Sound or not
	Problems []Problem          // the first thousand
}

// Problem is a page that breaks a rule.
type Problem struct {
	Page uint64
	Text string
}

func (p Problem) String() string { return fmt.Sprintf("page %d: %s", p.Page, p.Text) }

const (
	maxProblems = 1000
	maxDepth    = 64 // of a tree; bbolt's have fewer than ten
	maxKey      = 32768
	bucketLen   = 16 // root page and sequence, before an inline page
)

// Walk reads the tree of a root bucket, whose rows are all buckets, with the pages
// below pages. visit is called for each row of each bucket that enter wants, and
// tells whether the row is sound; nil accepts all, and nil enters all. The error is
// that of the context; damage is no error.
func (f *File) Walk(ctx context.Context, root, pages uint64, enter func(bucket string) bool, visit func(Row) bool) (*Tree, error) {
	if enter == nil {
		enter = func(string) bool { return true }
	}
	if visit == nil {
		visit = func(Row) bool { return true }
	}
	w := &walk{
		ctx: ctx, f: f, pages: pages, enter: enter, visit: visit, buf: make([]byte, f.pageSize),
		out: &Tree{Buckets: map[string]*Bucket{}, Sound: NewPageSet(f.Pages()), Reached: NewPageSet(f.Pages())},
	}
	w.subtree(&bucketWalk{isRoot: true, Bucket: &Bucket{}}, root, 0, nil, nil)
	return w.out, ctx.Err()
}

type walk struct {
	ctx   context.Context
	f     *File
	pages uint64
	enter func(string) bool
	visit func(Row) bool
	out   *Tree
	buf   []byte // the page at hand without its overflow; reused
	bad   bool   // whether the page at hand breaks a rule
}

// bucketWalk is the bucket that a page belongs to.
type bucketWalk struct {
	*Bucket
	name   string
	isRoot bool   // the bucket of the buckets
	last   []byte // key of the last row
}

func (w *walk) problem(b *bucketWalk, id uint64, format string, args ...any) {
	b.Sound, w.bad = false, true
	if len(w.out.Problems) < maxProblems {
		w.out.Problems = append(w.out.Problems, Problem{id, fmt.Sprintf(format, args...)})
	}
}

// page is a page, or the inline page of a bucket, as far as it could be read.
type page struct {
	header
	data []byte // from the header on, without the overflow
	off  int64  // of data in the file
	len  int64  // of the page with its overflow
	f    *File

	isInline bool // in the row of its bucket, on the page that id says
}

// inMemory is bytes without reading; nil when that takes a read.
func (p *page) inMemory(at, n int64) []byte {
	if at+n > int64(len(p.data)) {
		return nil
	}
	return p.data[at : at+n : at+n]
}

// bytes returns n bytes of the page, nil when they cannot be had.
func (p *page) bytes(at, n int64) []byte {
	if at < 0 || n < 0 || at > p.len || n > p.len-at {
		return nil
	}
	if b := p.inMemory(at, n); b != nil {
		return b
	}
	b, err := p.f.Read(Extent{p.off + at, n})
	if err != nil {
		return nil
	}
	return b
}

// read reads a page that is named for the first time and bears out its name.
func (w *walk) read(b *bucketWalk, id uint64) *page {
	switch {
	case id < 2 || id >= w.pages:
		w.problem(b, id, "lies outside the file, which has %d pages", w.pages)
		return nil
	case w.out.Reached.Has(id):
		w.problem(b, id, "is named more than once")
		return nil
	}
	w.out.Reached.Add(id, 1)
	p := &page{f: w.f, off: int64(id) * w.f.pageSize, len: w.f.pageSize}
	n, _ := w.f.r.ReadAt(w.buf, p.off)
	if p.data = w.buf[:n]; n < headerLen {
		w.problem(b, id, "is named, but the file was cut before it")
		return nil
	}
	p.header = parseHeader(p.data)
	switch {
	case p.id != id || p.flags != flagBranch && p.flags != flagLeaf:
		w.problem(b, id, "its header says page %d of type %#x", p.id, p.flags)
		return nil
	case p.overflow >= w.pages-id || w.out.Reached.overlaps(id+1, p.overflow):
		w.problem(b, id, "its header says that it has %d pages more, which is not so", p.overflow)
		p.overflow = 0
	default:
		w.out.Reached.Add(id+1, p.overflow)
		p.len = int64(p.overflow+1) * w.f.pageSize
	}
	if p.off+p.len > w.f.size || int64(n) < w.f.pageSize {
		w.problem(b, id, "the file was cut inside it")
	}
	return p
}

// subtree walks the tree below a page. Its keys must lie from from on and below
// to, where those are known.
func (w *walk) subtree(b *bucketWalk, id uint64, depth int, from, to []byte) {
	switch {
	case w.ctx.Err() != nil:
		b.Sound = false
		return
	case depth > maxDepth:
		w.problem(b, id, "lies too deep in its tree")
		return
	}
	w.bad = false
	p := w.read(b, id)
	switch {
	case p == nil:
	case p.flags == flagBranch:
		w.branch(b, p, depth, from, to)
	default:
		w.leaf(b, p, from, to)
	}
}

// settle notes a page that has passed everything.
func (w *walk) settle(p *page) {
	if !w.bad && !p.isInline {
		w.out.Sound.Add(p.id, p.overflow+1)
	}
}

type child struct {
	id  uint64
	key []byte
}

// branch reads all of a branch page before it goes down, for the buffer is used
// again there.
func (w *walk) branch(b *bucketWalk, p *page, depth int, from, to []byte) {
	elements := p.bytes(headerLen, int64(p.count)*elementLen)
	if len(elements) == 0 {
		w.problem(b, p.id, "is a branch of %d elements, which it has no room for", p.count)
		return
	}
	next := int64(headerLen + len(elements)) // keys follow each other without a gap
	children := make([]child, 0, p.count)
	for i := range p.count {
		e := elements[i*elementLen:]
		at := int64(headerLen+i*elementLen) + int64(binary.LittleEndian.Uint32(e))
		size := int64(binary.LittleEndian.Uint32(e[4:]))
		c := child{id: binary.LittleEndian.Uint64(e[8:])}
		if at != next || size == 0 || size > maxKey {
			w.problem(b, p.id, "element %d of %d lies where it cannot", i, p.count)
		}
		next = at + size
		c.key = bytes.Clone(p.bytes(at, min(size, maxKey)))
		switch {
		case c.key == nil:
			w.problem(b, p.id, "the key of element %d of %d lies outside the page", i, p.count)
		case i > 0 && bytes.Compare(children[i-1].key, c.key) >= 0,
			i == 0 && bytes.Compare(from, c.key) > 0, to != nil && bytes.Compare(c.key, to) >= 0:
			w.problem(b, p.id, "key %d of %d is out of order", i, p.count)
		}
		children = append(children, c)
	}
	w.settle(p)
	isOrdered := !w.bad
	for i, c := range children {
		switch {
		case !isOrdered:
			w.subtree(b, c.id, depth+1, nil, nil)
		case i+1 < len(children):
			w.subtree(b, c.id, depth+1, c.key, children[i+1].key)
		default:
			w.subtree(b, c.id, depth+1, c.key, to)
		}
	}
}

// leaf reads a leaf page: first all of its frame, so that its rows are known to
// be sound when they are visited.
func (w *walk) leaf(b *bucketWalk, p *page, from, to []byte) {
	table := p.bytes(headerLen, int64(p.count)*elementLen)
	if table == nil {
		w.problem(b, p.id, "is a leaf of %d elements, which it has no room for", p.count)
		return
	}
	rows := make([]Row, 0, p.count)
	next := int64(headerLen + len(table)) // keys and values follow each other without a gap
	for i := range p.count {
		e := table[i*elementLen:]
		flags := binary.LittleEndian.Uint32(e)
		at := int64(headerLen+i*elementLen) + int64(binary.LittleEndian.Uint32(e[4:]))
		keyLen, valueLen := int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
		if at != next || keyLen == 0 || keyLen > maxKey {
			w.problem(b, p.id, "element %d of %d lies where it cannot", i, p.count)
		}
		next = at + keyLen + valueLen
		if keyLen > maxKey || next > p.len {
			w.problem(b, p.id, "element %d of %d lies outside the page", i, p.count)
			continue
		}
		key := p.bytes(at, keyLen)
		if key == nil {
			continue // cut off, as read has said
		}
		if flags > flagBucket || b.isRoot != (flags == flagBucket) {
			w.problem(b, p.id, "element %d of %d is of type %#x", i, p.count, flags)
			continue
		}
		if b.Rows > 0 && bytes.Compare(b.last, key) >= 0 || bytes.Compare(from, key) > 0 || to != nil && bytes.Compare(key, to) >= 0 {
			w.problem(b, p.id, "key %d of %d is out of order", i, p.count)
		}
		b.Rows++
		b.last = append(b.last[:0], key...)
		rows = append(rows, Row{
			Bucket: b.name, Key: key, Value: Extent{p.off + at + keyLen, valueLen},
			data: p.inMemory(at+keyLen, valueLen), f: w.f,
		})
	}
	if b.isRoot {
		w.settle(p)
		w.buckets(b, p, rows)
		return
	}
	isSound := !w.bad
	for _, r := range rows {
		r.Sound = isSound
		if !w.visit(r) {
			w.problem(b, p.id, "the row of key %.100x makes no sense", r.Key)
		}
	}
	w.settle(p)
}

// buckets walks the buckets of a page of the root.
func (w *walk) buckets(root *bucketWalk, p *page, rows []Row) {
	type bucket struct {
		*bucketWalk
		value []byte // its own, for the buffer is used again
		off   int64
	}
	var all []bucket
	for _, r := range rows {
		if r.Value.Len > w.f.pageSize {
			w.problem(root, p.id, "the row of bucket %.100q is too long", r.Key)
			w.out.Sound.remove(p.id)
			continue
		}
		if !w.enter(string(r.Key)) {
			continue
		}
		b := &bucketWalk{name: string(r.Key), Bucket: w.out.Buckets[string(r.Key)]}
		if b.Bucket == nil {
			b.Bucket = &Bucket{Sound: true}
			w.out.Buckets[b.name] = b.Bucket
		}
		value, _ := r.Bytes()
		all = append(all, bucket{b, bytes.Clone(value), r.Value.Off})
	}
	for _, b := range all {
		if len(b.value) < bucketLen {
			w.problem(b.bucketWalk, p.id, "the row of bucket %.100q is too short", b.name)
			w.out.Sound.remove(p.id)
			continue
		}
		if root := binary.LittleEndian.Uint64(b.value); root != 0 {
			w.subtree(b.bucketWalk, root, 0, nil, nil)
			continue
		}
		w.inline(b.bucketWalk, p.id, b.value[bucketLen:], b.off+bucketLen)
	}
}

// inline walks a bucket that is so small that its one page lies in the row of the
// bucket, on page host.
func (w *walk) inline(b *bucketWalk, host uint64, data []byte, off int64) {
	w.bad = false
	p := &page{f: w.f, data: data, off: off, len: int64(len(data))}
	if len(data) < headerLen {
		w.problem(b, host, "the row of bucket %.100q is too short", b.name)
	} else if p.header = parseHeader(data); p.flags != flagLeaf {
		w.problem(b, host, "the row of bucket %.100q says that it holds a page of type %#x", b.name, p.flags)
	} else {
		p.id, p.isInline = host, true
		w.leaf(b, p, nil, nil)
	}
	if w.bad {
		w.out.Sound.remove(host)
	}
}
