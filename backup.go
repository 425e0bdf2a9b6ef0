package checkpointdb

import (
	"checkpointdb/internal/ctxio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Backup writes a consistent copy of the store to w, which opens as a store by
// itself. The copy is first made in a temporary file, beside the store or else in
// os.TempDir, at the speed of the disk, and then streamed from there: so w may be
// as slow as it likes without a transaction staying open. Blobs are not part of
// it. Nothing is durable until the caller has synced what it wrote.
func (s *Store) Backup(ctx context.Context, w io.Writer) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".backup-*.tmp") // mode 0600
	if err != nil {
		if tmp, err = os.CreateTemp("", "checkpointdb-backup-*.tmp"); err != nil {
			return err
		}
	}
	// Without its name at once, where the system allows that, so that not even a
	// killed process leaves it behind.
	_ = os.Remove(tmp.Name())
	defer func() {
		tmp.Close()
		_ = os.Remove(tmp.Name())
	}()
	if err := s.read(ctx, "backup", func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(tmp)
		return err
	}); err != nil {
		return err
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(w, ctxio.Reader(ctx, tmp))
	return err
}

// Stats says how large a store is. Counts are of one moment.
type Stats struct {
	StoreID     string    `json:"storeId"` // hexadecimal, made with the file
	CreatedAt   time.Time `json:"createdAt"`
	Format      uint64    `json:"format"`
	FileBytes   int64     `json:"fileBytes"`
	FreeBytes   int64     `json:"freeBytes"` // of FileBytes; reused before the file grows
	Threads     int       `json:"threads"`   // that ever had a lease or a transcript
	Checkpoints int       `json:"checkpoints"`
	Leases      int       `json:"leases"` // expired ones that nobody took included
	Runs        int       `json:"runs"`   // rows that make up the reference counts
	Pins        int       `json:"pins"`   // dead ones that no sweep has seen included
	Garbage     int       `json:"garbage"`
	Instances   int       `json:"instances"`
	Transcripts int       `json:"transcripts"`
}

// Stats counts what the store holds. It reads every page but no value.
func (s *Store) Stats(ctx context.Context) (stats Stats, err error) {
	err = s.read(ctx, "stats", func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if stats.Format, err = parseU64(meta.Get(keyFormat)); err != nil {
			return damagedAt(bucketMeta, keyFormat, err)
		}
		if stats.CreatedAt, err = parseTime(meta.Get(keyCreated)); err != nil {
			return damagedAt(bucketMeta, keyCreated, err)
		}
		for _, each := range []struct {
			bucket []byte
			to     *int
		}{
			{bucketThreads, &stats.Threads}, {bucketCheckpoints, &stats.Checkpoints}, {bucketWriters, &stats.Leases},
			{bucketRefcounts, &stats.Runs}, {bucketPins, &stats.Pins}, {bucketGarbage, &stats.Garbage},
			{bucketInstances, &stats.Instances}, {bucketTranscripts, &stats.Transcripts},
		} {
			*each.to = tx.Bucket(each.bucket).Stats().KeyN
		}
		return nil
	})
	if err != nil {
		return Stats{}, err
	}
	info, err := os.Stat(s.path)
	if err != nil {
		return Stats{}, err
	}
	bolt := s.db.Stats()
	stats.StoreID = fmt.Sprintf("%x", s.id)
	stats.FileBytes = info.Size()
	stats.FreeBytes = int64(bolt.FreePageN+bolt.PendingPageN) * int64(s.db.Info().PageSize)
	return stats, nil
}
