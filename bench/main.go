// Command bench measures checkpointdb against what it should be compared with, on
// the machine at hand, and prints ratios: a single put into the same kind of file,
// a reference counter for each key, git, and cp. Both sides of a ratio are
// measured in turns, in one run, because machines are noisy; the middle value of
// each counts.
//
//	cd bench && go run . [-large] [-dir DIR]
//
// The reference for records is one bbolt Update that puts 1 kB ("raw put"). With
// -large the store holds 1,000,000 distinct blobs instead of 100,000, which takes
// some minutes to fill.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	bolt "go.etcd.io/bbolt"
	"gocloud.dev/blob"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/workspace"
)

func main() {
	large := flag.Bool("large", false, "1,000,000 distinct blobs in the store, not 100,000")
	dir := flag.String("dir", "", "where to put files; a temporary directory by default")
	flag.Parse()
	if *dir == "" {
		tmp, err := os.MkdirTemp("", "checkpointdb-bench-")
		check(err)
		defer os.RemoveAll(tmp)
		*dir = tmp
	}
	b := &bench{dir: *dir, blobs: 100_000, out: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	if *large {
		b.blobs = 1_000_000
	}
	fmt.Fprintf(b.out, "what\tmeasured\tcompared with\tratio\ttarget\n")
	b.raw = openRaw(b.path("raw.db"))
	for _, part := range []func(){b.append, b.manyThreads, b.growth, b.get, b.quickSweep, b.turn} {
		part()
		b.out.Flush()
	}
}

// check ends the program: a benchmark that went wrong has no figures.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type bench struct {
	dir   string
	blobs int
	raw   *rawFile
	out   *tabwriter.Writer
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) row(what string, measured, other any, ratio float64, target string) {
	fmt.Fprintf(b.out, "%s\t%v\t%v\t%.2f\t%s\n", what, measured, other, ratio, target)
}

// middle runs the functions in turns, and returns the middle duration of each.
func middle(rounds int, fns ...func()) []time.Duration {
	all := make([][]time.Duration, len(fns))
	for range rounds {
		for i, fn := range fns {
			began := time.Now()
			fn()
			all[i] = append(all[i], time.Since(began))
		}
	}
	mid := make([]time.Duration, len(fns))
	for i := range fns {
		slices.Sort(all[i])
		mid[i] = all[i][len(all[i])/2].Round(time.Microsecond)
	}
	return mid
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// rawFile is a bbolt file without any of ours.
type rawFile struct {
	db *bolt.DB
	n  uint64
}

func openRaw(path string) *rawFile {
	db, err := bolt.Open(path, 0o600, nil)
	check(err)
	check(db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("b")); return err }))
	return &rawFile{db: db}
}

// put is the measure: one Update, 1 kB.
func (r *rawFile) put() {
	r.n++
	check(r.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("b")).Put(binary.BigEndian.AppendUint64(nil, r.n), make([]byte, 1000))
	}))
}

// count is what a counter for each key costs: every append adds one to each key
// of its checkpoint.
func (r *rawFile) count(keys []string) {
	check(r.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("b"))
		for _, key := range keys {
			n := uint64(1)
			if v := b.Get([]byte(key)); v != nil {
				n += binary.BigEndian.Uint64(v)
			}
			if err := b.Put([]byte(key), binary.BigEndian.AppendUint64(nil, n)); err != nil {
				return err
			}
		}
		return nil
	}))
}

func key(parts ...any) checkpointdb.BlobKey {
	return checkpointdb.FileKey(sha256.Sum256(fmt.Append(nil, parts...)))
}

// thread makes checkpoints of one thread.
type thread struct {
	store *checkpointdb.Store
	w     checkpointdb.Writer
	c     checkpointdb.Checkpoint
	n     int
	talk  int // bytes that each turn adds to the conversation
}

func newThread(store *checkpointdb.Store, name string, files int) *thread {
	lease, err := store.AcquireWriter(context.Background(), checkpointdb.ThreadID(name))
	check(err)
	t := &thread{store: store, w: lease.Writer}
	t.c = checkpointdb.Checkpoint{ThreadID: lease.ThreadID, Reason: checkpointdb.ReasonAutomatic}
	for i := range files {
		t.c.Files = append(t.c.Files, checkpointdb.Entry{
			Path: fmt.Sprintf("src/package-%04d/some/module/file_%06d.go", i/100, i),
			Kind: checkpointdb.KindFile, Size: int64(i), BlobKey: key(name, i),
		})
	}
	t.next()
	return t
}

// next appends a checkpoint with ten changes.
func (t *thread) next() {
	t.n++
	head := t.c.ID
	t.c.ID = checkpointdb.CheckpointID(fmt.Sprint(t.c.ThreadID, "#", t.n))
	t.c.ParentCheckpointID, t.c.CreatedAt = head, time.Now()
	if t.n > 1 {
		for i := range 10 {
			t.c.Files[(t.n*7919+i*104729)%len(t.c.Files)].BlobKey = key(t.c.ThreadID, t.n, i)
		}
	}
	if t.talk > 0 {
		text := make([]byte, t.talk/2)
		for i := range text {
			text[i] = byte(rand.Uint32())
		}
		t.c.Conversation = append(t.c.Conversation, json.RawMessage(`"`+hex.EncodeToString(text)+`"`))
	}
	check(t.store.Append(context.Background(), t.w, t.c, head))
}

func (b *bench) open(name string) *checkpointdb.Store {
	store, err := checkpointdb.Open(b.path(name), &checkpointdb.Options{LeaseDuration: time.Hour})
	check(err)
	return store
}

// fill brings distinct blobs into the store, 10,000 to a checkpoint.
func fill(store *checkpointdb.Store, blobs int) {
	for n := range blobs / 10_000 {
		newThread(store, fmt.Sprint("fill-", n), 10_000)
	}
}

func (b *bench) append() {
	small := b.open("small.db")
	defer small.Close()
	t := newThread(small, "t", 100)
	mid := middle(300, t.next, b.raw.put)
	b.row("append, 100 files, 10 changed", mid[0], mid[1], ratio(mid[0], mid[1]), "≤ 1.5 raw put")

	store := b.open("full.db")
	defer store.Close()
	fill(store, b.blobs)
	t = newThread(store, "t", 10_000)
	mid = middle(60, t.next, b.raw.put)
	b.row(fmt.Sprintf("append, 10,000 files, 10 changed, %d blobs", b.blobs), mid[0], mid[1], ratio(mid[0], mid[1]), "≤ 5 raw put")

	counters := openRaw(b.path("counters.db"))
	defer counters.db.Close()
	for n := range b.blobs / 10_000 {
		var keys []string
		for i := range 10_000 {
			keys = append(keys, string(key("fill-", n, i)))
		}
		counters.count(keys)
	}
	keys := make([]string, len(t.c.Files))
	mid = middle(15, t.next, func() {
		for i := range t.c.Files {
			keys[i] = string(t.c.Files[i].BlobKey)
		}
		counters.count(keys)
	})
	b.row("the same, against a counter per key", mid[0], mid[1], ratio(mid[1], mid[0]), "≥ 20 times faster")
}

func (b *bench) manyThreads() {
	store := b.open("threads.db")
	defer store.Close()
	threads := make([]*thread, 64)
	for i := range threads {
		threads[i] = newThread(store, fmt.Sprint("t", i), 100)
	}
	const each = 20
	mid := middle(5, func() {
		for range each * 4 {
			threads[0].next()
		}
	}, func() {
		var wg sync.WaitGroup
		for _, t := range threads {
			wg.Go(func() {
				for range each {
					t.next()
				}
			})
		}
		wg.Wait()
	})
	one := float64(each*4) / mid[0].Seconds()
	all := float64(each*len(threads)) / mid[1].Seconds()
	b.row("64 threads appending at once", fmt.Sprintf("%.0f/s", all), fmt.Sprintf("%.0f/s by one", one), all/one, "≥ 8")
}

func (b *bench) growth() {
	store := b.open("growth.db")
	defer store.Close()
	t := newThread(store, "t", 10_000)
	t.talk = 2000
	var early, late []time.Duration
	for i := 2; i <= 1000; i++ {
		began := time.Now()
		t.next()
		switch took := time.Since(began); {
		case i <= 20:
			early = append(early, took)
		case i > 980:
			late = append(late, took)
		}
	}
	info, err := os.Stat(store.Path())
	check(err)
	b.row("file after 1,000 checkpoints, 10,000 files, +2 kB talk", fmt.Sprintf("%.1f MB", float64(info.Size())/1e6), "20 MB", float64(info.Size())/20e6, "≤ 1")
	slices.Sort(early)
	slices.Sort(late)
	e, l := early[len(early)/2].Round(time.Microsecond), late[len(late)/2].Round(time.Microsecond)
	b.row("append no. 1,000 against no. 10", l, e, ratio(l, e), "≤ 1.5")
}

func (b *bench) get() {
	store := b.open("get.db")
	defer store.Close()
	full, deep := newThread(store, "full", 10_000), newThread(store, "deep", 10_000)
	for range 100 {
		deep.next()
	}
	read := func(t *thread) func() {
		return func() {
			_, err := store.Get(context.Background(), t.c.ID)
			check(err)
		}
	}
	mid := middle(50, read(deep), read(full))
	b.row("Get of a head of 10,000 files, 100 differences deep", mid[0], fmt.Sprint(mid[1], " full"), ratio(mid[0], mid[1]), "≤ 3, ≤ 10 ms")
}

func (b *bench) quickSweep() {
	ctx := context.Background()
	bucket, err := buckets.Open(ctx, "mem://")
	check(err)
	defer bucket.Close()
	few, many := b.open("few.db"), b.open("many.db")
	defer few.Close()
	defer many.Close()
	fill(few, 10_000)
	fill(many, b.blobs)
	var took [2][]time.Duration
	for round := range 7 {
		for i, store := range []*checkpointdb.Store{few, many} {
			t := newThread(store, fmt.Sprint("garbage-", round), 1000)
			for _, e := range t.c.Files {
				check(bucket.WriteAll(ctx, string(e.BlobKey), nil, &blob.WriterOptions{ContentType: "x"}))
			}
			check(store.DeleteHead(ctx, t.w, t.c.ID))
			began := time.Now()
			report, err := checkpointdb.Sweep(ctx, store, bucket, &checkpointdb.SweepOptions{Quick: true, OlderThan: 1})
			check(err)
			if report.Deleted+report.Gone != 1000 {
				check(fmt.Errorf("the sweep deleted %d", report.Deleted))
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	f, m := took[0][3].Round(time.Microsecond), took[1][3].Round(time.Microsecond)
	b.row(fmt.Sprintf("quick sweep of 1,000 blobs among %d", b.blobs), m, fmt.Sprint(f, " among 10000"), ratio(m, f), "about 1")
}

// turn measures whole turns on a real tree of 10,000 files, 67 MB.
func (b *bench) turn() {
	ctx := context.Background()
	if _, err := exec.LookPath("git"); err != nil {
		fmt.Fprintln(b.out, "git is not installed, so turns are not measured")
		return
	}
	tree := b.path("tree")
	text := make([]byte, 6700)
	for i := range 10_000 {
		dir := filepath.Join(tree, fmt.Sprintf("dir-%03d", i/100))
		check(os.MkdirAll(dir, 0o700))
		for n := range text {
			text[n] = byte('a' + rand.IntN(20))
		}
		check(os.WriteFile(filepath.Join(dir, fmt.Sprint("file-", i)), text, 0o600))
	}
	git := func(args ...string) func() {
		return func() {
			cmd := exec.Command("git", args...)
			cmd.Env = append(os.Environ(), "GIT_DIR="+b.path("shadow.git"), "GIT_WORK_TREE="+tree,
				"GIT_AUTHOR_NAME=b", "GIT_AUTHOR_EMAIL=b@b", "GIT_COMMITTER_NAME=b", "GIT_COMMITTER_EMAIL=b@b")
			if out, err := cmd.CombinedOutput(); err != nil {
				check(fmt.Errorf("git %v: %w\n%s", args, err, out))
			}
		}
	}
	git("init", "-q")()
	store := b.open("turn.db")
	defer store.Close()
	bucket, err := buckets.Open(ctx, b.path("blobs"))
	check(err)
	defer bucket.Close()
	lease, err := store.AcquireWriter(ctx, "t")
	check(err)
	var captured workspace.Captured
	capture := func() {
		captured, err = workspace.Capture(ctx, tree, bucket, &workspace.CaptureOptions{
			Index:   b.path("turn.index"),
			Protect: checkpointdb.ProtectFor(store, lease.Writer),
		})
		check(err)
	}
	head := checkpointdb.CheckpointID("")
	save := func() {
		capture()
		id := head + "+"
		check(store.Append(ctx, lease.Writer, checkpointdb.Checkpoint{
			ID: id, ThreadID: "t", ParentCheckpointID: head, CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic, Files: captured.Files,
		}, head))
		head = id
	}
	n := 0
	change := func() {
		for range 10 {
			n++
			name := filepath.Join(tree, fmt.Sprintf("dir-%03d", n*37%100), fmt.Sprint("file-", n*37%100*100+n%100))
			check(os.WriteFile(name, fmt.Append(text[:0:0], "changed ", n, string(text)), 0o600))
		}
	}
	commit := func() { git("add", "-A")(); git("commit", "-q", "-m", "x")() }
	save()
	commit()
	time.Sleep(4 * time.Second) // nothing is racy any more, for us and for git
	save()
	git("status", "--porcelain")()
	var took [4][]time.Duration
	for range 9 {
		change()
		time.Sleep(50 * time.Millisecond)
		for i, fn := range []func(){capture, git("status", "--porcelain"), save, commit} {
			began := time.Now()
			fn()
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	mid := func(i int) time.Duration { return took[i][len(took[i])/2].Round(time.Microsecond) }
	b.row("capture, 10,000 files, 10 changed", mid(0), fmt.Sprint(mid(1), " git status"), ratio(mid(0), mid(1)), "≤ 2")
	b.row("turn: capture, pins, append", mid(2), fmt.Sprint(mid(3), " git add, commit"), ratio(mid(2), mid(3)), "≤ 0.6")

	c, err := store.Get(ctx, head)
	check(err)
	round := 0
	restore := func() {
		round++
		_, err := workspace.Restore(ctx, bucket, c, b.path(fmt.Sprint("restored-", round)), nil)
		check(err)
	}
	if runtime.GOOS == "windows" {
		return // no cp
	}
	rounds := middle(5, restore, func() {
		check(exec.Command("cp", "-a", tree, b.path(fmt.Sprint("copied-", round))).Run())
	})
	b.row("restore of 10,000 files, 67 MB, verified", rounds[0], fmt.Sprint(rounds[1], " cp -a"), ratio(rounds[0], rounds[1]), "≤ 2")
}
