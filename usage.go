package checkpointdb

import (
	"context"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Usage is what the checkpoints of a store keep in the bucket. Sizes are those
// that the checkpoints give.
type Usage struct {
	Blobs   int64         `json:"blobs"`   // in use, each once
	Bytes   int64         `json:"bytes"`   // of these
	Threads []ThreadUsage `json:"threads"` // of every thread, by bytes of the id
}

// ThreadUsage is what one thread has a part in. Shared and own bytes together are
// those of all blobs it uses; own bytes are what deleting the thread, and a sweep,
// would free.
type ThreadUsage struct {
	ThreadID     ThreadID `json:"threadId"`
	Blobs        int64    `json:"blobs"`
	LogicalBytes int64    `json:"logicalBytes"` // as if every checkpoint had blobs of its own
	SharedBytes  int64    `json:"sharedBytes"`  // of blobs that other threads use too
	OwnBytes     int64    `json:"ownBytes"`     // of blobs that only this thread uses
	Growth       []Growth `json:"growth,omitempty"`
}

// Growth is by how much a checkpoint made its thread larger.
type Growth struct {
	CheckpointID CheckpointID `json:"checkpointId"`
	CreatedAt    time.Time    `json:"createdAt"`
	Bytes        int64        `json:"bytes"` // of blobs that the thread did not use before it
}

// UsageOptions say what [Store.Usage] looks for beside the sums.
type UsageOptions struct {
	// Growth asks for the growth of every thread, in the order of the chain. It
	// has to look at every checkpoint's record.
	Growth bool
}

// Usage sums up the blobs of all threads in one pass over the reference counts,
// in one read transaction. It reads no checkpoint, unless Growth is asked for.
func (s *Store) Usage(ctx context.Context, opts *UsageOptions) (usage Usage, err error) {
	err = s.read(ctx, "usage", func(tx *bolt.Tx) error {
		s.readAhead(ctx, tx, bucketRefcounts)
		u, err := measure(ctx, tx, opts != nil && opts.Growth)
		if err != nil {
			return err
		}
		usage = Usage{Blobs: u.blobs, Bytes: u.bytes, Threads: []ThreadUsage{}}
		return tx.Bucket(bucketThreads).ForEach(func(k, v []byte) error {
			n, err := parseU64(v)
			if err != nil {
				return damagedAt(bucketThreads, k, err)
			}
			t := u.of(threadNumber(n))
			t.sums.ThreadID = ThreadID(k)
			if u.growth {
				if t.sums.Growth, err = t.growth(tx, threadNumber(n)); err != nil {
					return err
				}
			}
			usage.Threads = append(usage.Threads, t.sums)
			return nil
		})
	})
	return usage, err
}

// measurement sums up runs, which come sorted by blob and thread.
type measurement struct {
	growth       bool // whether to measure that too
	blobs, bytes int64
	threads      map[threadNumber]*threadMeasurement
}

type threadMeasurement struct {
	sums  ThreadUsage
	began map[position]int64 // bytes of blobs by where the thread began to use them; nil without growth
	heads headRow
}

func (m *measurement) of(n threadNumber) *threadMeasurement {
	t := m.threads[n]
	if t == nil {
		t = &threadMeasurement{}
		if m.growth { // which costs more than all the rest
			t.began = map[position]int64{}
		}
		m.threads[n] = t
	}
	return t
}

func measure(ctx context.Context, tx *bolt.Tx, growth bool) (*measurement, error) {
	m := &measurement{growth: growth, threads: map[threadNumber]*threadMeasurement{}}
	var runs []run // of one blob
	rows := 0
	err := tx.Bucket(bucketRefcounts).ForEach(func(k, v []byte) error {
		if rows++; rows%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		r, err := parseRun(k, v)
		if err != nil {
			return damagedAt(bucketRefcounts, k, err)
		}
		if len(runs) > 0 && runs[0].blob != r.blob {
			m.add(runs)
			runs = runs[:0]
		}
		runs = append(runs, r)
		t := m.of(r.thread)
		if t.heads.next == 0 {
			if t.heads, err = getHead(tx, r.thread); err != nil {
				return err
			}
		}
		t.sums.LogicalBytes += int64(r.size) * t.heads.count(r.first, r.end())
		return nil
	})
	if len(runs) > 0 {
		m.add(runs)
	}
	return m, err
}

// add counts a blob, given all its runs.
func (m *measurement) add(runs []run) {
	first, last := runs[0], runs[len(runs)-1]
	m.blobs++
	m.bytes += int64(first.size)
	for i, r := range runs {
		if i > 0 && r.thread == runs[i-1].thread {
			continue
		}
		t := m.threads[r.thread]
		t.sums.Blobs++
		if first.thread == last.thread {
			t.sums.OwnBytes += int64(r.size)
		} else {
			t.sums.SharedBytes += int64(r.size)
		}
		if m.growth {
			t.began[t.heads.from(r.first)] += int64(r.size)
		}
	}
}

func (t *threadMeasurement) growth(tx *bolt.Tx, n threadNumber) ([]Growth, error) {
	rows, err := listRows(tx, n)
	growth := make([]Growth, len(rows))
	for i, r := range rows {
		growth[i] = Growth{CheckpointID: r.id, CreatedAt: r.createdAt, Bytes: t.began[r.pos]}
	}
	return growth, err
}
