package checkpointdb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
	"gocloud.dev/blob/memblob"
)

// The measure of all others: one bbolt Update that puts 1 kB.
func BenchmarkRawPut(b *testing.B) {
	db, err := bolt.Open(filepath.Join(b.TempDir(), "raw.db"), 0o600, nil)
	must(b, err)
	defer db.Close()
	value := bytes.Repeat([]byte("x"), 1000)
	for i := 0; b.Loop(); i++ {
		must(b, db.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("raw"))
			if err != nil {
				return err
			}
			return bucket.Put(u64(uint64(i)), value)
		}))
	}
}

// openBench opens a store without the check at the end, which would take longer
// than the benchmark.
func openBench(b *testing.B) *Store {
	b.Helper()
	s, err := Open(filepath.Join(b.TempDir(), "bench.db"), nil)
	must(b, err)
	b.Cleanup(func() { s.Close() })
	return s
}

// seed fills the store with so many distinct blobs, 10,000 to a checkpoint.
func seed(b *testing.B, s *Store, blobs int) {
	b.Helper()
	ctx := context.Background()
	for n := range blobs / 10_000 {
		thread := ThreadID(fmt.Sprint("seed-", n))
		lease, err := s.AcquireWriter(ctx, thread)
		must(b, err)
		c := Checkpoint{ID: CheckpointID(thread), ThreadID: thread, CreatedAt: testTime(n), Reason: ReasonAutomatic}
		for i := range 10_000 {
			c.Files = append(c.Files, Entry{Path: fmt.Sprintf("f/%05d", i), Kind: KindFile, BlobKey: testKey(fmt.Sprint("seed", n, i))})
		}
		must(b, s.Append(ctx, lease.Writer, c, ""))
	}
}

// turns makes the checkpoints of one thread, each with changes files of the one
// before it changed.
type turns struct {
	s       *Store
	w       Writer
	c       Checkpoint
	n       int
	changes int
	talk    int // bytes that each turn adds to the conversation
}

func newTurns(b *testing.B, s *Store, thread ThreadID, files, changes int) *turns {
	b.Helper()
	lease, err := s.AcquireWriter(context.Background(), thread)
	must(b, err)
	t := &turns{s: s, w: lease.Writer, changes: changes}
	t.c = Checkpoint{ThreadID: thread, Reason: ReasonAutomatic, Files: manyFiles(files)}
	for i := range t.c.Files {
		t.c.Files[i].BlobKey = testKey(fmt.Sprint(thread, i))
	}
	must(b, t.next())
	return t
}

func (t *turns) next() error {
	t.n++
	head := t.c.ID
	t.c.ID = CheckpointID(fmt.Sprint(t.c.ThreadID, "#", t.n))
	t.c.ParentCheckpointID = head
	t.c.CreatedAt = testTime(t.n)
	if t.n > 1 {
		for i := range t.changes {
			t.c.Files[(t.n*7919+i*104729)%len(t.c.Files)].BlobKey = testKey(fmt.Sprint(t.c.ThreadID, t.n, i))
		}
	}
	if t.talk > 0 {
		words := make([]byte, t.talk/2)
		fillRandom(words, uint64(t.n))
		t.c.Conversation = append(t.c.Conversation, json.RawMessage(fmt.Sprintf(`"%x"`, words)))
	}
	return t.s.Append(context.Background(), t.w, t.c, head)
}

// BenchmarkAppend: 10 changes among some files, in a store with some distinct
// blobs. pages-B/op is what bbolt says it wrote for one append.
func BenchmarkAppend(b *testing.B) {
	for _, test := range []struct{ files, blobs int }{{100, 0}, {10_000, 0}, {10_000, 100_000}, {10_000, 1_000_000}} {
		b.Run(fmt.Sprintf("files=%d/blobs=%d", test.files, test.blobs), func(b *testing.B) {
			if test.blobs > 100_000 && testing.Short() {
				b.Skip("filling the store takes a minute")
			}
			s := openBench(b)
			seed(b, s, test.blobs)
			t := newTurns(b, s, "t", test.files, 10)
			stats := s.db.Stats()
			before := stats.TxStats.GetPageAlloc()
			for b.Loop() {
				must(b, t.next())
			}
			stats = s.db.Stats()
			b.ReportMetric(float64(stats.TxStats.GetPageAlloc()-before)/float64(b.N), "pages-B/op")
		})
	}
}

// BenchmarkAppendManyThreads: appends by so many threads at once, 100 files and
// 10 changes each. One op is one append.
func BenchmarkAppendManyThreads(b *testing.B) {
	for _, threads := range []int{1, 64} {
		b.Run(fmt.Sprint("threads=", threads), func(b *testing.B) {
			s := openBench(b)
			all := make([]*turns, threads)
			for i := range all {
				all[i] = newTurns(b, s, ThreadID(fmt.Sprint("t", i)), 100, 10)
			}
			var wg sync.WaitGroup
			b.ResetTimer()
			for i, t := range all {
				wg.Go(func() {
					for n := i; n < b.N; n += threads {
						if err := t.next(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkGet reads a head of 10,000 files that lies behind so many
// differences; 0 is a full record.
func BenchmarkGet(b *testing.B) {
	for _, depth := range []int{0, 50, 100} {
		b.Run(fmt.Sprint("differences=", depth), func(b *testing.B) {
			s := openBench(b)
			t := newTurns(b, s, "t", 10_000, 10)
			for range depth {
				must(b, t.next())
			}
			for b.Loop() {
				_, err := s.Get(context.Background(), t.c.ID)
				must(b, err)
			}
		})
	}
}

// BenchmarkGrowth is one op: 1,000 checkpoints of 10,000 files, each with 10
// changes and 2 kB more of conversation.
func BenchmarkGrowth(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := openBench(b)
		t := newTurns(b, s, "t", 10_000, 10)
		t.talk = 2000
		b.StartTimer()
		for range 999 {
			must(b, t.next())
		}
		info, err := os.Stat(s.Path())
		must(b, err)
		b.ReportMetric(float64(info.Size()), "file-B")
	}
}

// BenchmarkQuickSweep deletes 1,000 blobs that became garbage, among so many that
// are in use. The bucket is in memory, and commits are not synced: what the disk
// takes is the same for both, and drowns the rest.
func BenchmarkQuickSweep(b *testing.B) {
	for _, live := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint("live=", live), func(b *testing.B) {
			if live > 100_000 && testing.Short() {
				b.Skip("filling the store takes a minute")
			}
			ctx := context.Background()
			s := openBench(b)
			s.SkipSync()
			seed(b, s, live)
			if live < 10_000 {
				newTurns(b, s, "live", live, 0)
			}
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				t := newTurns(b, s, ThreadID(fmt.Sprint("garbage-", n)), 1000, 0)
				must(b, s.DeleteHead(ctx, t.w, t.c.ID))
				b.StartTimer()
				report, err := Sweep(ctx, s, bucket, &SweepOptions{Quick: true, OlderThan: 1})
				must(b, err)
				if report.Gone != 1000 {
					b.Fatalf("%+v", report)
				}
			}
		})
	}
}
