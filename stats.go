package checkpointdb

import (
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

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

	PageBytes int           `json:"pageBytes"` // length of a page
	Pages     int           `json:"pages"`     // up to the last one in use
	FreePages int           `json:"freePages"` // of these; the few that list them included
	Buckets   []BucketStats `json:"buckets"`   // by name
}

// BucketStats says what one bucket of the file holds.
type BucketStats struct {
	Name  string `json:"name"`
	Rows  int    `json:"rows"`
	Pages int    `json:"pages"` // of all kinds
	Used  int64  `json:"used"`  // bytes of rows and of what leads to them; the rest of the pages is room
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
		rows := map[string]*int{
			string(bucketThreads): &stats.Threads, string(bucketCheckpoints): &stats.Checkpoints, string(bucketWriters): &stats.Leases,
			string(bucketRefcounts): &stats.Runs, string(bucketPins): &stats.Pins, string(bucketGarbage): &stats.Garbage,
			string(bucketInstances): &stats.Instances, string(bucketTranscripts): &stats.Transcripts,
		}
		stats.Buckets = nil
		stats.PageBytes = s.db.Info().PageSize
		stats.Pages = int(tx.Size() / int64(stats.PageBytes))
		// bbolt's own number is of the last commit of this handle. Two pages are
		// metas, one holds the names of the buckets.
		stats.FreePages = stats.Pages - 3
		defer func() { stats.FreeBytes = int64(stats.FreePages) * int64(stats.PageBytes) }()
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			of := b.Stats()
			if n := rows[string(name)]; n != nil {
				*n = of.KeyN
			}
			pages := of.BranchPageN + of.BranchOverflowN + of.LeafPageN + of.LeafOverflowN
			if of.InlineBucketN > 0 {
				pages = 0 // it lies in the page with the names
			}
			stats.FreePages -= pages
			stats.Buckets = append(stats.Buckets, BucketStats{
				Name: string(name), Rows: of.KeyN, Pages: pages,
				Used: int64(of.BranchInuse) + int64(of.LeafInuse) + int64(of.InlineBucketInuse),
			})
			return nil
		})
	})
	if err != nil {
		return Stats{}, err
	}
	info, err := s.file.Stat()
	if err != nil {
		return Stats{}, err
	}
	stats.StoreID = fmt.Sprintf("%x", s.id)
	stats.FileBytes = info.Size()
	return stats, nil
}
