package checkpointdb

import (
	"context"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/salvage"
)

const (
	readAheadAtOnce = 8  // reads under way
	readAheadPages  = 64 // in one read, at most
)

// readAhead brings the pages of a bucket into memory before a pass over all its
// rows. Such a pass would wait for the disk page by page, in the order of the keys,
// which is none on the disk: seconds for a million rows. Here reads are in the order
// of the file, and several at a time. It is a matter of speed alone; errors and
// damage are for the pass to find.
func (s *Store) readAhead(ctx context.Context, tx *bolt.Tx, bucket []byte) {
	root := tx.Bucket(bucket).Root()
	if root == 0 {
		return // it lies in its parent's page
	}
	pageSize := int64(tx.DB().Info().PageSize)
	leaves := salvage.New(s.file, tx.Size(), pageSize).Leaves(uint64(root))
	slices.Sort(leaves)
	reads := make(chan []uint64) // pages in a row
	var readers sync.WaitGroup
	for range readAheadAtOnce {
		readers.Go(func() {
			buf := make([]byte, readAheadPages*pageSize)
			for pages := range reads {
				_, _ = s.file.ReadAt(buf[:int64(len(pages))*pageSize], int64(pages[0])*pageSize)
			}
		})
	}
	for len(leaves) > 0 && ctx.Err() == nil {
		n := 1
		for n < min(len(leaves), readAheadPages) && leaves[n] == leaves[0]+uint64(n) {
			n++
		}
		reads <- leaves[:n]
		leaves = leaves[n:]
	}
	close(reads)
	readers.Wait()
}
