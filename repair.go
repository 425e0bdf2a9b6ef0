package checkpointdb

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"checkpointdb/internal/outfile"
	"checkpointdb/internal/salvage"
)

// RepairOptions configure [Repair]. A nil pointer is the zero value.
type RepairOptions struct {
	// Progress is told how far the repair is, on the goroutine of Repair, once in
	// a while: done of total bytes. Nil: nobody is told.
	Progress func(done, total int64)
}

// RepairReport says what [Repair] found. Its lists are never nil.
type RepairReport struct {
	Kept int `json:"kept"` // checkpoints that the new store has
	// Lost are the checkpoints of which something is known and not enough. Of
	// others not even an id may be left, when Incomplete names "ids".
	Lost []LostCheckpoint `json:"lost"`
	// Unsure are checkpoints, kept, whose records were found whole in pages that no
	// index names: they may have been deleted earlier.
	Unsure []CheckpointID `json:"unsure"`
	// Heads are the threads that have another head than the damaged file says, or
	// whose head it does not say.
	Heads []RepairedHead `json:"heads"`
	// LostFences are the threads whose last fence is not known. They go on above
	// [LostFence].
	LostFences []ThreadID `json:"lostFences"`
	// LostTranscripts and LostInstances are those whose rows are there and make no
	// sense.
	LostTranscripts []ThreadID `json:"lostTranscripts"`
	LostInstances   []string   `json:"lostInstances"`
	// Incomplete names the buckets of the file that could not be read as a whole,
	// so that rows of theirs may be missing of which nothing is known. The
	// checkpoints themselves were looked for everywhere.
	Incomplete []string `json:"incomplete"`

	Threads       int `json:"threads"` // that the new store knows
	Transcripts   int `json:"transcripts"`
	Instances     int `json:"instances"`
	DroppedLeases int `json:"droppedLeases"`
	DroppedPins   int `json:"droppedPins"`
}

// LostCheckpoint is a checkpoint that Repair could not save.
type LostCheckpoint struct {
	ID       CheckpointID `json:"id"`
	ThreadID ThreadID     `json:"threadId,omitempty"` // "" when it is not known
	Problem  string       `json:"problem"`
}

// RepairedHead is the head that a thread has now, "" for none.
type RepairedHead struct {
	ThreadID ThreadID     `json:"threadId"`
	Head     CheckpointID `json:"head"`
}

// LostFence is where the fences of a thread go on when [Repair] does not find the
// last one: far above any that was given out.
const LostFence Fence = 1 << 32

// maxFence is above every fence that a file can honestly hold, and the last one
// that JSON carries safely.
const maxFence = MaxSize

// laterFormats is how many formats ahead a number is believed. What is far above is
// damage of the row, which must not keep the rest from being saved.
const laterFormats = 8

// Repair makes a new store at to out of what is whole in the store at from, which
// may be damaged in any way: cut, overwritten, without its first pages. It keeps
// every checkpoint whose record, and the records that its lists are differences
// to, have kept their checksums, wherever in the file they lie, with ids, parents
// and times as they were; and transcripts, instances, fences and the store's id as
// far as they can be read. Counts, heads and indexes are built anew. Leases and
// pins are dropped: every writer has to acquire its thread again, under a fence
// above all earlier ones. The blobs are not looked at.
//
// from is only read; no store can open it for writing meanwhile, where the system
// has such locks. to must not exist. It is durable and has passed [Store.Check]
// when Repair returns nil, and is not there after an error; a killed run leaves at
// most to with ".tmp" added, which the next run removes.
//
// Errors: [ErrInUse] when a store has from open for writing; [ErrNotAStore] for
// what is no file, or of which not one row or record of a store can be read;
// [ErrUnknownFormat] when a later version of this library wrote it;
// [ErrInvalidArgument] when from and to are one file; one that matches fs.ErrExist
// when to exists. Memory follows the number of checkpoints and the largest one,
// not the file.
func Repair(ctx context.Context, from, to string, opts *RepairOptions) (RepairReport, error) {
	report, err := repair(ctx, from, to, opts)
	if err != nil {
		return RepairReport{}, withOp("repair", err)
	}
	return report, nil
}

func repair(ctx context.Context, from, to string, opts *RepairOptions) (RepairReport, error) {
	if err := ctx.Err(); err != nil {
		return RepairReport{}, err
	}
	file, size, err := openDamaged(from, to)
	if err != nil {
		return RepairReport{}, err
	}
	defer file.Close()
	r := &repairer{ctx: ctx, report: newReport(), total: 2 * size, tell: func(int64, int64) {}}
	if opts != nil && opts.Progress != nil {
		r.tell = opts.Progress
	}
	metas, _ := salvage.FindMetas(file)
	pageSize := int64(0)
	if len(metas) > 0 {
		pageSize = metas[0].PageSize
	} else {
		pageSize = salvage.GuessPageSize(file, size)
	}
	if r.collector, err = gather(ctx, salvage.New(file, size, pageSize), metas, func(n int64) { r.progress(r.done + n) }); err != nil {
		return RepairReport{}, err
	}
	if len(r.records)+len(r.ids)+len(r.rows) == 0 {
		return RepairReport{}, &Error{Code: ErrNotAStore, Message: fmt.Sprintf("%q holds nothing of a store that can be read", from)}
	}
	if format, err := parseU64(r.rows[string(bucketMeta)][string(keyFormat)].bytes); err == nil && format > formatVersion && format <= formatVersion+laterFormats {
		return RepairReport{}, &Error{Code: ErrUnknownFormat, Err: &FormatError{Path: from, Found: format, Supported: formatVersion}}
	}
	r.progress(size)
	if err := r.build(to); err != nil {
		return RepairReport{}, err
	}
	r.progress(r.total)
	return r.report, nil
}

// openDamaged opens from, and refuses what cannot be repaired from there to there.
func openDamaged(from, to string) (*os.File, int64, error) {
	info, err := os.Stat(from) // before a pipe could be opened
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, &Error{Code: ErrNotAStore, Message: fmt.Sprintf("%q is no regular file", from)}
	}
	for _, name := range []string{to, outfile.TemporaryName(to)} {
		if other, err := os.Stat(name); err == nil && os.SameFile(info, other) {
			return nil, 0, &Error{Code: ErrInvalidArgument, Message: fmt.Sprintf("%q cannot be repaired into %q: %q is the same file; name another", from, to, name)}
		}
	}
	file, err := os.Open(from)
	if err != nil {
		return nil, 0, err
	}
	if lockShared(file) == lockBusy {
		file.Close()
		return nil, 0, &Error{Code: ErrInUse, Message: fmt.Sprintf("%q is in use: a store has it open", from)}
	}
	if info, err = file.Stat(); err != nil { // as it is now that nobody writes
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

func newReport() RepairReport {
	return RepairReport{
		Lost: []LostCheckpoint{}, Unsure: []CheckpointID{}, Heads: []RepairedHead{}, LostFences: []ThreadID{},
		LostTranscripts: []ThreadID{}, LostInstances: []string{}, Incomplete: []string{},
	}
}

type repairer struct {
	*collector
	ctx         context.Context
	report      RepairReport
	tell        func(done, total int64)
	done, total int64

	names   map[threadNumber]ThreadID
	numbers map[ThreadID][]threadNumber // damage can give a thread several
	kept    map[CheckpointID]bool       // what the new store has
}

func (r *repairer) progress(done int64) {
	if done = min(done, r.total); done > r.done {
		r.done = done
		r.tell(done, r.total)
	}
}

// build writes the new store.
func (r *repairer) build(to string) (err error) {
	id, created := r.identity()
	b, err := newBuilder(to, id, created)
	if err != nil {
		return err
	}
	defer b.abort()
	r.index()
	chosen := r.choose()
	perThread := map[ThreadID][]*whole{}
	for _, w := range chosen {
		perThread[w.threadID] = append(perThread[w.threadID], w)
	}
	handled := 0
	for _, thread := range r.threads(perThread) {
		n, err := b.thread(thread)
		if err != nil {
			return err
		}
		if err := r.buildChain(b, n, thread, perThread[thread], func() {
			handled++
			r.progress(r.total/2 + int64(float64(r.total/2)*0.9*float64(handled)/float64(len(chosen))))
		}); err != nil {
			return err
		}
		if err := r.buildFence(b, n, thread, len(perThread[thread]) > 0); err != nil {
			return err
		}
		if err := r.buildTranscript(b, n, thread); err != nil {
			return err
		}
		r.report.Threads++
	}
	if err := r.buildOthers(b); err != nil {
		return err
	}
	r.account()
	return b.finish(r.ctx)
}

// identity returns the id and the time of the store, new ones when they are lost.
func (r *repairer) identity() (id [16]byte, created time.Time) {
	meta := r.rows[string(bucketMeta)]
	if v := meta[string(keyStoreID)].bytes; copy(id[:], v) != len(id) || len(v) != len(id) {
		_, _ = rand.Read(id[:]) // never fails
	}
	created, err := parseTime(meta[string(keyCreated)].bytes)
	if err != nil || ValidateTime("created", created) != nil {
		created = time.Now()
	}
	return id, created
}

// index prepares what the steps look up.
func (r *repairer) index() {
	r.kept = map[CheckpointID]bool{}
	r.lost = map[listOf]error{}
	r.byID = map[CheckpointID][]*whole{}
	for _, w := range r.records {
		if p, ok := r.ids[w.id]; ok && w.place.pos == 0 {
			w.place = p
		}
		r.byID[w.id] = append(r.byID[w.id], w)
	}
	r.names = r.threadNames()
	r.numbers = map[ThreadID][]threadNumber{}
	for _, n := range slices.Sorted(maps.Keys(r.names)) {
		r.numbers[r.names[n]] = append(r.numbers[r.names[n]], n)
	}
}

// choose picks the records that the new store will have, one of each id.
//
// An id that the bucket ids does not have is that of a deleted checkpoint, as long
// as the bucket is whole and each of its rows has found its record: otherwise one
// that has not may be this one's, misspelt.
func (r *repairer) choose() (chosen []*whole) {
	places := map[place]bool{}
	for _, w := range r.records {
		if w.from == inTree {
			places[w.place] = true
		}
	}
	misses := map[ThreadID]bool{} // threads of rows without a record
	for id, p := range r.ids {
		if len(r.byID[id]) == 0 && !places[p] {
			misses[r.names[p.thread]] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.byID)) {
		all := r.byID[id]
		slices.SortStableFunc(all, func(a, b *whole) int {
			return cmp.Or(cmp.Compare(a.from, b.from), b.createdAt.Compare(a.createdAt))
		})
		best := all[0]
		_, listed := r.ids[id]
		switch {
		case best.from == inTree || listed:
		case best.from == inFree, r.isWhole(bucketIDs) && !misses[best.threadID] && !misses[""]:
			continue
		default:
			r.report.Unsure = append(r.report.Unsure, id)
		}
		chosen = append(chosen, best)
	}
	return chosen
}

// threads returns the threads that the new store will know, as old numbers order
// them.
func (r *repairer) threads(perThread map[ThreadID][]*whole) []ThreadID {
	all := slices.Collect(maps.Keys(r.numbers))
	for id := range perThread {
		if r.numbers[id] == nil {
			all = append(all, id)
		}
	}
	first := func(id ThreadID) threadNumber {
		if len(r.numbers[id]) == 0 {
			return ^threadNumber(0)
		}
		return r.numbers[id][0]
	}
	slices.SortFunc(all, func(a, b ThreadID) int { return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a, b)) })
	return all
}

// headRowOf returns what the file says of the head of a thread: its row, ok when it
// can be relied on, and the record that is the newest, when it is there.
func (r *repairer) headRowOf(thread ThreadID, records []*whole) (h headRow, newest *whole, ok bool) {
	for _, n := range r.numbers[thread] {
		v, there := r.rows[string(bucketHeads)][string(n.key())]
		if !there || !v.isSound {
			continue
		}
		h, err := parseHeadRow(v.bytes)
		if err != nil {
			continue
		}
		for _, w := range records {
			if w.place.thread != n {
				continue
			}
			if w.from == inTree && w.place.pos > h.newest() {
				return headRow{}, nil, false // it is of another time
			}
			if w.place.pos == h.newest() && (newest == nil || w.from < newest.from) {
				newest = w
			}
		}
		return h, newest, true
	}
	return headRow{}, nil, false
}

// buildChain writes the checkpoints of a thread.
func (r *repairer) buildChain(b *builder, n threadNumber, thread ThreadID, records []*whole, each func()) error {
	row, newest, known := r.headRowOf(thread, records)
	if len(records) == 0 {
		return nil
	}
	ordered, leftOut := orderChain(records, newest)
	for _, w := range leftOut {
		r.lose(w.id, thread, "its parents contradict each other")
		each()
	}
	var before *partial
	var valid *encoded // what of the one before is known to be valid
	var head *whole
	var lists content
	for _, w := range ordered {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		v, err := r.version(w, before)
		each()
		if v != nil {
			before = v
		}
		if err == nil {
			lists, valid, err = v.validated(valid)
		}
		if err != nil {
			r.lose(w.id, thread, err.Error())
			continue
		}
		if err := b.append(n, v.header, lists); err != nil {
			return err
		}
		r.kept[w.id] = true
		head = w
	}
	if head == nil {
		r.report.Heads = append(r.report.Heads, RepairedHead{ThreadID: thread})
		return nil
	}
	switch {
	case known && row.head == 0 && head == newest:
		return b.dropHead(n)
	case !known || head != newest:
		r.report.Heads = append(r.report.Heads, RepairedHead{thread, head.id})
	}
	return nil
}

// validated checks a version as Append would have. It returns its lists, as Append
// would have made them, and what is known of the next one.
func (v *partial) validated(known *encoded) (content, *encoded, error) {
	c, err := v.checkpoint()
	if err != nil {
		return content{}, known, err
	}
	matches := known.match(c.Files)
	if err := c.validate(known, matches); err != nil {
		return content{}, known, err
	}
	lists := encodeContent(&c, known, matches)
	return lists, &encoded{files: c.Files, lists: lists}, nil
}

// buildFence writes the fence of a thread, never below one that was given out.
func (r *repairer) buildFence(b *builder, n threadNumber, thread ThreadID, hasRecords bool) error {
	var fence Fence
	known := false
	for _, old := range r.numbers[thread] {
		v, there := r.rows[string(bucketFences)][string(old.key())]
		f, err := parseU64(v.bytes)
		if there && err == nil && f <= maxFence {
			fence = max(fence, Fence(f))
			known = known || v.isSound
		}
		fence = max(fence, r.fences[old])
	}
	// Only a thread that never had a lease has no row.
	if !known && (hasRecords || fence > 0 || !r.isWhole(bucketFences)) {
		r.report.LostFences = append(r.report.LostFences, thread)
		fence = max(fence, LostFence)
	}
	if fence == 0 {
		return nil
	}
	return b.fence(n, fence)
}

func (r *repairer) buildTranscript(b *builder, n threadNumber, thread ThreadID) error {
	for _, old := range r.numbers[thread] {
		row, there := r.rows[string(bucketTranscripts)][string(old.key())]
		if !there {
			continue
		}
		raw, err := r.f.Read(row.at)
		if err != nil {
			return err
		}
		items, err := validTranscript(raw)
		if err != nil {
			return err
		}
		r.report.Transcripts++
		return b.transcript(n, items)
	}
	return nil
}

// buildOthers writes what belongs to no thread, behind all checkpoints.
func (r *repairer) buildOthers(b *builder) error {
	for key, v := range r.rows[string(bucketInstances)] {
		in, err := parseInstance([]byte(key), v.bytes)
		if err != nil {
			return err
		}
		if err := b.instance(in); err != nil {
			return err
		}
		r.report.Instances++
	}
	for key, v := range r.rows[string(bucketGarbage)] {
		since, err := parseTime(v.bytes)
		if err != nil {
			return err
		}
		if err := b.garbage(blobID([]byte(key)), since); err != nil {
			return err
		}
	}
	return nil
}

func (r *repairer) lose(id CheckpointID, thread ThreadID, problem string) {
	r.report.Lost = append(r.report.Lost, LostCheckpoint{id, thread, problem})
}

// account fills in the report what the buildings have not.
func (r *repairer) account() {
	report := &r.report
	report.Kept = len(r.kept)
	report.DroppedLeases, report.DroppedPins = r.leases, r.pins
	known := maps.Clone(r.kept)
	for _, lost := range report.Lost {
		known[lost.ID] = true
	}
	taken := map[place]bool{} // by a record that is there, so that another id was misspelt
	for _, w := range r.records {
		taken[w.place] = taken[w.place] || r.kept[w.id]
	}
	for _, lost := range r.broken {
		if !known[lost.ID] {
			known[lost.ID] = true
			report.Lost = append(report.Lost, lost)
		}
	}
	for id, p := range r.ids {
		if !known[id] && !taken[p] {
			r.lose(id, r.names[p.thread], "its record is not there")
		}
	}
	slices.SortFunc(report.Lost, func(a, b LostCheckpoint) int {
		return cmp.Or(cmp.Compare(a.ThreadID, b.ThreadID), cmp.Compare(a.ID, b.ID))
	})
	report.Unsure = slices.DeleteFunc(report.Unsure, func(id CheckpointID) bool { return !r.kept[id] })
	for _, key := range r.badRows[string(bucketTranscripts)] {
		if n, err := parseU64([]byte(key)); err == nil && r.names[threadNumber(n)] != "" {
			report.LostTranscripts = append(report.LostTranscripts, r.names[threadNumber(n)])
		}
	}
	report.LostInstances = append(report.LostInstances, r.badRows[string(bucketInstances)]...)
	for _, name := range allBuckets {
		if !r.isWhole(name) {
			report.Incomplete = append(report.Incomplete, string(name))
		}
	}
}
