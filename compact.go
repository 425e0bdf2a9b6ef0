package checkpointdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"time"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/outfile"
)

// CompactOptions configure [Store.Compact] and [CompactFile].
type CompactOptions struct {
	// Progress, if set, is called every now and then with how many bytes were
	// copied of about how many, and at the end. It runs on the goroutine that
	// called, outside every transaction, and may call the store.
	Progress func(done, total int64)
	// LockTimeout is how long CompactFile waits for a store to close the file.
	// Zero: 5 s.
	LockTimeout time.Duration
}

// CompactReport says what a compaction gained, in bytes of the file.
type CompactReport struct {
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

// Compact writes a copy of the store without its free pages to a new file with
// mode 0600. Store id, format and every row are the same, and are read back and
// compared before the file appears. Nothing may be at path: the error matches
// fs.ErrExist then. The file appears there when it is whole and durable; until
// then it has the name path.tmp, and what a killed run left under that name the
// next one removes.
//
// The copy is of one moment, made in a read transaction. Changes go on meanwhile
// and are not in it; the pages they free are not used again until it is done.
// About as many bytes as the store uses are needed; Compact looks first whether
// they are free, and the error tells both numbers.
//
// Damaged rows are copied as they are, and a damaged page can hide rows without
// a sign of it: [Store.Check] tells.
func (s *Store) Compact(ctx context.Context, path string, opts *CompactOptions) (CompactReport, error) {
	if err := ctx.Err(); err != nil {
		return CompactReport{}, err
	}
	out, err := outfile.Create(path)
	if err != nil {
		return CompactReport{}, fmt.Errorf("checkpointdb: compact: %w", err)
	}
	return s.compactTo(ctx, out, path, opts)
}

// CompactFile compacts the store in the file at path, in place. Nobody may have
// it open, not even read-only: [ErrInUse] after LockTimeout. The file is checked
// as [Store.Check] does first, because what was damaged in it would be gone
// afterwards; a file of an older format is migrated, as [Open] does. Then the
// copy is made as [Store.Compact] makes it, beside the file and with its mode and
// owner, and takes its place in one step once it is durable. Whenever it fails or
// is killed, the file is as it was. A process that waits in [Open] meanwhile gets
// the new file.
//
// On Windows an open file cannot be replaced; the error matches
// errors.ErrUnsupported there. Compact to a new file instead.
func CompactFile(ctx context.Context, path string, opts *CompactOptions) (CompactReport, error) {
	const op = "compact"
	if runtime.GOOS == "windows" {
		return CompactReport{}, fmt.Errorf("checkpointdb: %s: %s in place: %w", op, path, errors.ErrUnsupported)
	}
	if err := ctx.Err(); err != nil {
		return CompactReport{}, err
	}
	if _, err := os.Stat(path); err != nil { // Open would make one
		return CompactReport{}, fmt.Errorf("checkpointdb: %s: %w", op, err)
	}
	var open Options
	if opts != nil {
		open.LockTimeout = opts.LockTimeout
	}
	s, err := Open(path, &open)
	if err != nil {
		return CompactReport{}, err
	}
	defer s.Close()
	if _, _, err := s.sizeUp(ctx, path); err != nil { // before the long check
		return CompactReport{}, err
	}
	if err := s.Check(ctx); err != nil {
		return CompactReport{}, err
	}
	out, err := outfile.Replace(path)
	if err != nil {
		return CompactReport{}, fmt.Errorf("checkpointdb: %s: %w", op, err)
	}
	return s.compactTo(ctx, out, path, opts)
}

// compactTo fills out, which becomes the file at path.
func (s *Store) compactTo(ctx context.Context, out *outfile.File, path string, opts *CompactOptions) (report CompactReport, err error) {
	defer out.Abort()
	var progress func(done, total int64)
	if opts != nil {
		progress = opts.Progress
	}
	var pageSize int
	if report.Before, pageSize, err = s.sizeUp(ctx, path); err != nil {
		return CompactReport{}, err
	}
	var m meter
	err = m.watch(progress, func() error {
		return writeBolt(out, pageSize, func(to *bolt.DB) error {
			if err := s.copyRows(ctx, to, &m); err != nil {
				return err
			}
			info, err := out.Stat()
			if err == nil {
				report.After = info.Size()
			}
			return err
		})
	})
	switch {
	case err == nil:
		return report, nil
	case CodeOf(err) == "" && ctx.Err() == nil:
		err = fmt.Errorf("checkpointdb: compact: %w", err)
	}
	return CompactReport{}, err
}

// sizeUp returns the size of the file and that of its pages, or an error when the
// file system of path has no room for what is in use.
func (s *Store) sizeUp(ctx context.Context, path string) (size int64, pageSize int, err error) {
	const op = "compact"
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		pageSize = tx.DB().Info().PageSize
		info, err := s.file.Stat()
		if err == nil {
			size, err = info.Size(), outfile.Room(filepath.Dir(path), usedBytes(tx))
		}
		if err != nil {
			return fmt.Errorf("checkpointdb: %s: %w", op, err)
		}
		return nil
	})
	return size, pageSize, err
}

// usedBytes is about how much of the file is in use.
func usedBytes(tx *bolt.Tx) int64 {
	stats := tx.DB().Stats()
	return tx.Size() - int64(stats.FreePageN+stats.PendingPageN)*int64(tx.DB().Info().PageSize)
}

// copyRows copies all rows and reads them back.
func (s *Store) copyRows(ctx context.Context, to *bolt.DB, m *meter) error {
	var sums []bucketSum
	err := s.read(ctx, "compact", func(tx *bolt.Tx) (err error) {
		m.total.Store(usedBytes(tx))
		sums, err = copyBuckets(ctx, to, tx, m)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.guard(func() error {
		return to.View(func(tx *bolt.Tx) error { return compareBuckets(ctx, tx, sums) })
	}); err != nil {
		return fmt.Errorf("reading the copy back: %w", err)
	}
	m.done.Store(m.total.Load())
	return nil
}

// writeBolt makes a bbolt file of what fill writes, whole or not at all.
func writeBolt(out *outfile.File, pageSize int, fill func(*bolt.DB) error) error {
	defer out.Abort()
	db, err := openOutfile(out, pageSize)
	if err != nil {
		return err
	}
	// Closing would give up the lock, so it comes last, and finds the descriptor
	// closed.
	defer db.Close()
	if err := fill(db); err != nil {
		out.Abort()
		return err
	}
	return out.Commit()
}

// openOutfile opens a new bbolt file through the descriptor of out, whose lock
// bbolt shares with it. Nothing is synced before out is. pageSize 0 is that of the
// system.
func openOutfile(out *outfile.File, pageSize int) (*bolt.DB, error) {
	return bolt.Open(out.Name(), 0o600, &bolt.Options{
		PageSize:        pageSize,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: initialMmapSize,
		NoSync:          true,
		NoGrowSync:      true, // also keeps the file as short as its pages
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return out.File, nil },
	})
}

const (
	// compactBatch is about how many bytes a transaction of the copy holds in
	// memory.
	compactBatch = 16 << 20
	// compactFill is how full the pages of the copy are. Completely full ones
	// would be split again by the first changes.
	compactFill = 0.9
	// rowOverhead is about what a row takes beside its key and value.
	rowOverhead = 16
)

// bucketSum stands for all rows of a bucket.
type bucketSum struct {
	name     []byte
	sequence uint64
	rows     int64
	sum      uint32 // CRC-32C of all rows in order, with the lengths of their keys and values
}

func (s *bucketSum) add(k, v []byte) {
	var lengths [16]byte
	binary.BigEndian.PutUint64(lengths[:], uint64(len(k)))
	binary.BigEndian.PutUint64(lengths[8:], uint64(len(v)))
	s.rows++
	for _, part := range [][]byte{lengths[:], k, v} {
		s.sum = crc32.Update(s.sum, castagnoli, part)
	}
}

// copyBuckets copies every bucket of from, and returns what it read. Nothing of
// from is held when it returns.
func copyBuckets(ctx context.Context, to *bolt.DB, from *bolt.Tx, m *meter) (sums []bucketSum, err error) {
	c := &bucketCopier{ctx: ctx, to: to, m: m}
	if c.tx, err = to.Begin(true); err != nil {
		return nil, err
	}
	defer func() { _ = c.tx.Rollback() }() // does nothing after a commit
	err = from.ForEach(func(name []byte, b *bolt.Bucket) error {
		sum, err := c.copy(bytes.Clone(name), b)
		sums = append(sums, sum)
		return err
	})
	if err != nil {
		return nil, err
	}
	return sums, c.tx.Commit()
}

type bucketCopier struct {
	ctx  context.Context
	to   *bolt.DB
	tx   *bolt.Tx // of to
	size int      // what tx holds
	m    *meter
}

func (c *bucketCopier) copy(name []byte, from *bolt.Bucket) (bucketSum, error) {
	sum := bucketSum{name: name, sequence: from.Sequence()}
	b, err := c.tx.CreateBucket(name)
	if err != nil {
		return sum, err
	}
	if err := b.SetSequence(sum.sequence); err != nil {
		return sum, err
	}
	b.FillPercent = compactFill
	cursor := from.Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		if v == nil {
			return sum, &Error{Code: ErrDamaged, Message: fmt.Sprintf("bucket %q holds another bucket, %x", name, k)}
		}
		if c.size > compactBatch {
			if err := c.next(); err != nil {
				return sum, err
			}
			b = c.tx.Bucket(name)
			b.FillPercent = compactFill
		}
		if err := b.Put(k, v); err != nil {
			return sum, err
		}
		sum.add(k, v)
		size := len(k) + len(v) + rowOverhead
		c.size += size
		if done := c.m.done.Load() + int64(size); done <= c.m.total.Load() {
			c.m.done.Store(done)
		}
		if sum.rows%1024 == 0 {
			if err := c.ctx.Err(); err != nil {
				return sum, err
			}
		}
	}
	return sum, c.ctx.Err()
}

// next begins a new transaction.
func (c *bucketCopier) next() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.tx.Commit(); err != nil {
		return err
	}
	tx, err := c.to.Begin(true)
	if err != nil {
		return err
	}
	c.tx, c.size = tx, 0
	return nil
}

// compareBuckets reads the copy back.
func compareBuckets(ctx context.Context, tx *bolt.Tx, sums []bucketSum) error {
	for _, want := range sums {
		b := tx.Bucket(want.name)
		if b == nil {
			return fmt.Errorf("the copy has no bucket %q", want.name)
		}
		got := bucketSum{sequence: b.Sequence()}
		cursor := b.Cursor()
		for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
			got.add(k, v)
			if got.rows%1024 == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
			}
		}
		if got.rows != want.rows || got.sum != want.sum || got.sequence != want.sequence {
			return fmt.Errorf("bucket %q of the copy has %d rows and not the %d that were read, or other ones", want.name, got.rows, want.rows)
		}
	}
	return nil
}
