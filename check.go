package checkpointdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/salvage"
)

// Violation is one place where the file breaks a rule.
type Violation struct {
	// Invariant is the number of the rule in the comment of Store.Check; 0 is
	// the structure of the bbolt file itself.
	Invariant int
	ThreadID  ThreadID // "" where no thread is known
	Key       string   // checkpoint id, blob key, or row in hexadecimal
	Problem   string
}

func (v Violation) String() string {
	text := fmt.Sprintf("invariant %d", v.Invariant)
	if v.ThreadID != "" {
		text += fmt.Sprintf(", thread %q", v.ThreadID)
	}
	if v.Key != "" {
		text += fmt.Sprintf(", %q", v.Key)
	}
	return text + ": " + v.Problem
}

// CheckError lists what [Store.Check] found. It matches [ErrDamaged].
type CheckError struct {
	Path       string
	Violations []Violation
}

func (e *CheckError) Error() string {
	lines := make([]string, 0, len(e.Violations)+1)
	lines = append(lines, fmt.Sprintf("checkpointdb: %s is damaged: %d violations (%s)", e.Path, len(e.Violations), ErrDamaged))
	for _, v := range e.Violations {
		lines = append(lines, "\t"+v.String())
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is find ErrDamaged.
func (e *CheckError) Unwrap() error { return ErrDamaged }

// maxViolations bounds a report: a file with more is beyond reading one by one.
const maxViolations = 1000

// Check reads the whole file in one transaction and verifies every invariant of
// its format (design §4):
//
//  1. Every ids row names an existing record, and the reverse.
//  2. heads names the newest live position, and its spans are exactly the
//     records; a thread without records has no row.
//  3. Positions are strictly ordered along parent links: the parent of a record
//     is the record before it, or was pruned; a record that is a difference is one
//     to its parent.
//  4. Counts from refcounts equal a recount from the records, key by key, and the
//     size of a run is the one that the record at its start gives, if that is there.
//  5. Runs of one key in one thread are disjoint, cover a live position each,
//     and exactly the keys of the head have an open one.
//  6. No writer has a fence above its thread's fences row.
//  7. No key is both referenced and garbage.
//  8. Every record decodes, is valid, and encodes to an equal value.
//  9. Every row of threads has its own number, and every other row that names a
//     thread names one of those.
//  10. No pin has a fence above its thread's fences row.
//
// It returns nil, a [*CheckError] with every violation (the first 1,000), or the
// error that kept it from checking. It changes nothing, and changes run beside it;
// its read transactions keep the pages that those free from being reused until it
// ends. Memory follows the largest thread.
func (s *Store) Check(ctx context.Context) error {
	const op = "check"
	c := &checker{ctx: ctx, path: s.path, file: s.file}
	err := errOvertaken
	for err == errOvertaken {
		err = s.read(ctx, op, c.checkPages)
	}
	if err == nil && len(c.found) == 0 { // what lies on bad pages says nothing
		err = s.read(ctx, op, c.run)
	}
	if len(c.found) > 0 {
		if err != nil {
			c.add(0, "", "", "the check ended early: %v", err)
		}
		return &CheckError{Path: s.path, Violations: c.found}
	}
	return err
}

// errOvertaken: so many commits came by that the meta page of a transaction was
// written over before it was read.
var errOvertaken = errors.New("overtaken by commits")

type checker struct {
	ctx     context.Context
	path    string
	file    *os.File
	found   []Violation
	threads map[threadNumber]ThreadID
	runs    map[threadNumber]int // rows of refcounts
}

func (c *checker) add(invariant int, thread ThreadID, key, format string, args ...any) {
	if len(c.found) < maxViolations {
		c.found = append(c.found, Violation{invariant, thread, key, fmt.Sprintf(format, args...)})
	}
}

func (c *checker) run(tx *bolt.Tx) error {
	for _, step := range []func(*bolt.Tx) error{c.checkThreads, c.checkIDs, c.countRuns, c.checkChains, c.checkWriters, c.checkGarbage, c.checkOthers} {
		if err := step(tx); err != nil {
			return err
		}
	}
	return nil
}

// checkPages verifies the trees of pages and the list of free ones, by plain reads.
// bbolt's own check trusts each page that it comes to: on damaged ones it faults,
// on a goroutine where nobody can catch that, or runs in circles.
func (c *checker) checkPages(tx *bolt.Tx) error {
	metas, _ := salvage.FindMetas(c.file)
	at := slices.IndexFunc(metas, func(m salvage.Meta) bool { return m.TxID == uint64(tx.ID()) })
	if at < 0 {
		for _, m := range metas {
			if m.TxID > uint64(tx.ID()) {
				return errOvertaken
			}
		}
		c.add(0, "", "", "its newest meta page cannot be read")
		return nil
	}
	info, err := c.file.Stat()
	if err != nil {
		return err
	}
	meta, f := metas[at], salvage.New(c.file, info.Size(), metas[at].PageSize)
	// Long values lie on pages that the walk passes over. A disk that does not give
	// them says so here; under the memory map it would be a fault. And one read is
	// quicker than waiting for each page when it is used.
	readable := func(row salvage.Row) bool {
		for at := row.Value.Off; row.Value.Len > meta.PageSize && at < row.Value.End(); {
			b := f.At(at, int(min(row.Value.End()-at, 1<<16)))
			if len(b) == 0 {
				c.add(0, "", fmt.Sprintf("%x", row.Key), "row of %s cannot be read in full", row.Bucket)
				return false
			}
			at += int64(len(b))
		}
		return true
	}
	tree, err := f.Walk(c.ctx, meta.Root, meta.Pages, nil, readable)
	if err != nil {
		return err
	}
	for _, p := range tree.Problems {
		c.add(0, "", "", "%v", p)
	}
	if !meta.HasFreelist() {
		return nil
	}
	free, own, err := f.Freelist(meta)
	if err != nil {
		c.add(0, "", "", "%v", err)
	}
	if len(c.found) > 0 {
		return nil // pages that nobody names any more would only repeat it
	}
	for id := uint64(2); id < meta.Pages; id++ {
		switch used := tree.Reached.Has(id) || own.Has(id); {
		case used && free.Has(id):
			c.add(0, "", "", "page %d: is in use, and on the list of free pages", id)
		case !used && !free.Has(id):
			c.add(0, "", "", "page %d: is neither in use nor on the list of free pages", id)
		}
	}
	return nil
}

// every looks at the context once in a while.
func (c *checker) every(rows *int) error {
	if *rows++; *rows%1024 == 0 {
		return c.ctx.Err()
	}
	return nil
}

// hasThread reports whether the 8 bytes at the start of key name a thread.
func (c *checker) hasThread(key []byte) (threadNumber, bool) {
	n, err := parseU64(key[:min(8, len(key))])
	_, ok := c.threads[threadNumber(n)]
	return threadNumber(n), err == nil && ok
}

func (c *checker) checkThreads(tx *bolt.Tx) error {
	c.threads = map[threadNumber]ThreadID{}
	b := tx.Bucket(bucketThreads)
	return b.ForEach(func(k, v []byte) error {
		n, err := parseU64(v)
		switch {
		case err != nil || n == 0 || n > b.Sequence():
			c.add(9, ThreadID(k), "", "its number %x is malformed or was never given out", v)
		case c.threads[threadNumber(n)] != "":
			c.add(9, ThreadID(k), "", "has the number of thread %q", c.threads[threadNumber(n)])
		default:
			c.threads[threadNumber(n)] = ThreadID(k)
		}
		return nil
	})
}

func (c *checker) checkIDs(tx *bolt.Tx) error {
	records := tx.Bucket(bucketCheckpoints)
	return tx.Bucket(bucketIDs).ForEach(func(k, v []byte) error {
		p, err := parsePlace(v)
		if err != nil {
			c.add(1, "", string(k), "its row %x is malformed", v)
			return nil
		}
		h, _, err := parseHeader(records.Get(p.key()))
		if err != nil {
			c.add(1, c.threads[p.thread], string(k), "its row names a record that is missing or malformed")
		} else if h.id != CheckpointID(k) {
			c.add(1, c.threads[p.thread], string(k), "its row names the record of %q", h.id)
		}
		return nil
	})
}

// checkChains walks thread by thread: records, head row and runs.
func (c *checker) checkChains(tx *bolt.Tx) error {
	cursor := tx.Bucket(bucketCheckpoints).Cursor()
	k, _ := cursor.First()
	seen := map[threadNumber]bool{}
	for k != nil {
		n, ok := c.hasThread(k)
		if !ok || len(k) != 16 {
			c.add(9, "", fmt.Sprintf("%x", k), "row of checkpoints names no thread")
			k, _ = cursor.Next()
			continue
		}
		seen[n] = true
		if err := c.checkChain(tx, n); err != nil {
			return err
		}
		k, _ = cursor.Seek((n + 1).key())
	}
	if err := tx.Bucket(bucketHeads).ForEach(func(k, v []byte) error {
		if n, ok := c.hasThread(k); !ok {
			c.add(9, "", fmt.Sprintf("%x", k), "row of heads names no thread")
		} else if !seen[n] {
			c.add(2, c.threads[n], "", "has a head row and no record")
		}
		return nil
	}); err != nil {
		return err
	}
	for n, runs := range c.runs {
		if !seen[n] {
			c.add(4, c.threads[n], "", "has %d runs and no records", runs)
		}
	}
	return nil
}

func (c *checker) countRuns(tx *bolt.Tx) error {
	c.runs = map[threadNumber]int{}
	rows := 0
	return tx.Bucket(bucketRefcounts).ForEach(func(k, v []byte) error {
		r, err := parseRun(k, v)
		if err != nil {
			c.add(5, "", fmt.Sprintf("%x", k), "row of refcounts is malformed")
		} else {
			c.runs[r.thread]++
		}
		return c.every(&rows)
	})
}

func (c *checker) checkChain(tx *bolt.Tx, n threadNumber) error {
	thread := c.threads[n]
	h, err := getHead(tx, n)
	if err != nil {
		c.add(2, thread, "", "its head row is malformed")
	}
	uses := map[blobID]blobUses{}
	var before *version
	var known *encoded // of before: what has passed once need not pass again
	var newest position
	live := int64(0)
	damaged := false
	cursor := tx.Bucket(bucketCheckpoints).Cursor()
	prefix := n.key()
	for k, raw := cursor.Seek(prefix); bytes.HasPrefix(k, prefix); k, raw = cursor.Next() {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		p, err := parsePlace(k)
		if err != nil {
			c.add(1, thread, fmt.Sprintf("%x", k), "row of checkpoints is malformed")
			continue
		}
		newest = p.pos
		live++
		if !h.isLive(p.pos) {
			c.add(2, thread, fmt.Sprintf("%x", k), "record lies outside the spans of the head row")
		}
		v, err := loadVersion(tx, p, before)
		if err != nil {
			damaged = true
			name := fmt.Sprintf("%x", k)
			if h, _, err := parseHeader(raw); err == nil {
				name = string(h.id)
			}
			c.add(8, thread, name, "%v", err)
			continue
		}
		known = c.checkVersion(tx, thread, v, before, known)
		for _, u := range v.lists.uses() {
			uses[u.blob] = uses[u.blob].and(u.size, p.pos, before)
		}
		before = v
	}
	var inSpans int64
	for _, s := range h.live {
		inSpans += int64(s.last - s.first + 1)
	}
	if h.newest() != newest || inSpans != live {
		c.add(2, thread, "", "its head row has %d live positions up to %d, the records are %d up to %d", inSpans, h.newest(), live, newest)
	}
	if damaged {
		return nil // a recount would only repeat it
	}
	return c.checkRuns(tx, n, h, uses)
}

// checkVersion checks a record against its row in ids, the record before it, and
// itself. It returns what the next one may take as checked.
func (c *checker) checkVersion(tx *bolt.Tx, thread ThreadID, v, before *version, known *encoded) *encoded {
	p, ok, err := getPlace(tx, v.id)
	if err != nil || !ok || p != v.place {
		c.add(1, thread, string(v.id), "its record has no row in ids that names it")
	}
	if v.threadID != thread {
		c.add(8, thread, string(v.id), "its record says thread %q", v.threadID)
	}
	if v.parent != "" {
		parent, ok, err := getPlace(tx, v.parent)
		if err == nil && ok && parent.thread == v.place.thread && parent.pos < v.pos && (before == nil || parent != before.place) {
			c.add(3, thread, string(v.id), "its parent %q is not the record before it", v.parent)
		}
	}
	if v.base != 0 && (before == nil || before.pos != v.base) {
		c.add(3, thread, string(v.id), "it builds on position %d, which is not the record before it", v.base)
	} else if v.base != 0 && before.id != v.parent {
		c.add(3, thread, string(v.id), "it builds on %q, which is not its parent", before.id)
	}
	cp, err := v.checkpoint()
	matches := known.match(cp.Files)
	if err == nil {
		err = cp.validate(known, matches)
	}
	if err != nil {
		c.add(8, thread, string(v.id), "%v", err)
		return nil
	}
	again := encodeContent(&cp, known, matches)
	for kind := range sections {
		if v.sections[kind].verify(again[kind]) != nil {
			c.add(8, thread, string(v.id), "its %s encode to something else", kind)
		}
	}
	h := headerOf(&cp)
	h.source, h.base = v.source, v.base // which the contract's form lacks
	if h != v.header {
		c.add(8, thread, string(v.id), "its header encodes to something else")
	}
	return &encoded{files: cp.Files, lists: again}
}

// blobUses is what the records of a thread make of a blob.
type blobUses struct {
	count  int64    // records that name it
	last   position // of the newest of them
	starts []start
}

// start is a record that names a blob where the one before does not.
type start struct {
	pos  position
	size uint64 // of the blob, as the record says
}

// and adds the record at p, behind the one before, if there is one.
func (b blobUses) and(size uint64, p position, before *version) blobUses {
	if b.count == 0 || before == nil || b.last != before.pos {
		b.starts = append(b.starts, start{p, size})
	}
	return blobUses{b.count + 1, p, b.starts}
}

// checkRuns compares the runs of a thread with the uses that its records make.
func (c *checker) checkRuns(tx *bolt.Tx, n threadNumber, h headRow, uses map[blobID]blobUses) error {
	thread := c.threads[n]
	cursor := tx.Bucket(bucketRefcounts).Cursor()
	runs := 0
	for id, used := range uses {
		var covered int64
		var end position
		var last run
		r, ok, err := firstRun(cursor, id, n, 0)
		for ; ok && err == nil; r, ok, err = firstRun(cursor, id, n, r.first+1) {
			if r.first <= end {
				c.add(5, thread, string(id.key()), "its runs overlap at %d", r.first)
			}
			if i := slices.IndexFunc(used.starts, func(s start) bool { return s.pos == r.first }); i >= 0 && used.starts[i].size != r.size {
				c.add(4, thread, string(id.key()), "its run from %d has size %d, the record there says %d", r.first, r.size, used.starts[i].size)
			}
			live := h.count(r.first, r.end())
			if live == 0 {
				c.add(5, thread, string(id.key()), "its run from %d covers no live position", r.first)
			}
			covered, end, last = covered+live, r.end(), r
			runs++
		}
		if err != nil {
			return err
		}
		atHead := h.head != 0 && used.last == h.head
		if open := last.first != 0 && last.last == 0; open != atHead {
			c.add(5, thread, string(id.key()), "open run: %t, used by the head: %t", open, atHead)
		}
		if covered != used.count {
			c.add(4, thread, string(id.key()), "its runs count %d uses, the records %d", covered, used.count)
		}
	}
	if runs == c.runs[n] {
		return nil
	}
	// Some run is of a blob that no record names.
	rows := 0
	return tx.Bucket(bucketRefcounts).ForEach(func(k, v []byte) error {
		if r, err := parseRun(k, v); err == nil && r.thread == n && uses[r.blob].count == 0 {
			c.add(4, thread, string(r.blob.key()), "has a run from %d, and no record names it", r.first)
		}
		return c.every(&rows)
	})
}

func (c *checker) checkWriters(tx *bolt.Tx) error {
	if err := tx.Bucket(bucketWriters).ForEach(func(k, v []byte) error {
		n, ok := c.hasThread(k)
		l, err := parseLeaseRow(v)
		fence, fenceErr := getFence(tx, n)
		switch {
		case !ok:
			c.add(9, "", fmt.Sprintf("%x", k), "row of writers names no thread")
		case err != nil || fenceErr != nil:
			c.add(6, c.threads[n], "", "its lease or fence row is malformed")
		case l.fence > fence:
			c.add(6, c.threads[n], "", "its lease has fence %d, above the last one, %d", l.fence, fence)
		}
		return nil
	}); err != nil {
		return err
	}
	return tx.Bucket(bucketFences).ForEach(func(k, v []byte) error {
		if n, ok := c.hasThread(k); !ok {
			c.add(9, "", fmt.Sprintf("%x", k), "row of fences names no thread")
		} else if _, err := parseU64(v); err != nil {
			c.add(6, c.threads[n], "", "its fence row is malformed")
		}
		return nil
	})
}

func (c *checker) checkGarbage(tx *bolt.Tx) error {
	cursor := tx.Bucket(bucketRefcounts).Cursor()
	return tx.Bucket(bucketGarbage).ForEach(func(k, v []byte) error {
		var id blobID
		if copy(id[:], k) != len(id) || len(k) != len(id) || id[0] > blobFile {
			c.add(7, "", fmt.Sprintf("%x", k), "row of garbage is malformed")
			return nil
		}
		if _, err := parseTime(v); err != nil {
			c.add(7, "", string(id.key()), "its garbage row is malformed")
		}
		if isReferenced(cursor, id) {
			c.add(7, "", string(id.key()), "is both in use and garbage")
		}
		return nil
	})
}

func (c *checker) checkOthers(tx *bolt.Tx) error {
	if err := tx.Bucket(bucketTranscripts).ForEach(func(k, v []byte) error {
		n, ok := c.hasThread(k)
		if !ok {
			c.add(9, "", fmt.Sprintf("%x", k), "row of transcripts names no thread")
		} else if _, err := parseTranscript(v); err != nil {
			c.add(8, c.threads[n], "", "its transcript is malformed")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := tx.Bucket(bucketPins).ForEach(func(k, v []byte) error {
		var id blobID
		if len(k) != len(id)+8 || k[0] > blobFile || len(v) != 8 {
			c.add(10, "", fmt.Sprintf("%x", k), "row of pins is malformed")
			return nil
		}
		copy(id[:], k)
		n, ok := c.hasThread(k[len(id):])
		fence, _ := parseU64(v)
		last, err := getFence(tx, n)
		switch {
		case !ok:
			c.add(9, "", string(id.key()), "its pin names no thread")
		case err != nil || Fence(fence) > last:
			c.add(10, c.threads[n], string(id.key()), "its pin has fence %d, above the last one, %d", fence, last)
		}
		return nil
	}); err != nil {
		return err
	}
	return tx.Bucket(bucketInstances).ForEach(func(k, v []byte) error {
		in, err := parseInstance(k, v)
		if err == nil {
			err = in.Validate()
		}
		if err != nil {
			c.add(8, "", string(k), "instance: %v", err)
		}
		return nil
	})
}
