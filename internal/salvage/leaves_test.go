package salvage_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/salvage"
)

// TestLeaves compares Leaves with what bbolt says of trees of several depths, from
// which rows were deleted.
func TestLeaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leaves.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, PageSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	depths := map[int]bool{}
	for _, rows := range []int{50, 10_000, 200_000} {
		err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			for i := range rows {
				if err := b.Put(binary.BigEndian.AppendUint32(nil, uint32(i)), make([]byte, 20)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("b"))
			for i := range rows / 3 {
				if err := b.Delete(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("b"))
			leaves := salvage.New(f, tx.Size(), int64(db.Info().PageSize)).Leaves(uint64(b.Root()))
			for _, id := range leaves {
				if p, err := tx.Page(int(id)); err != nil || p == nil || p.Type != "leaf" {
					t.Errorf("%d rows: page %d is %+v, %v", rows, id, p, err)
				}
			}
			slices.Sort(leaves)
			stats := b.Stats()
			if n := len(slices.Compact(leaves)); n != stats.LeafPageN {
				t.Errorf("%d rows: %d leaves, want %d", rows, n, stats.LeafPageN)
			}
			depths[stats.Depth] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(depths) != 3 {
		t.Errorf("the trees have depths %v", depths)
	}
}

// A branch that names itself, or nothing that is a page, ends the search.
func TestLeavesOfDamage(t *testing.T) {
	const pageSize = 512
	page := make([]byte, 3*pageSize)
	branch := page[2*pageSize:]
	binary.LittleEndian.PutUint64(branch, 2)
	binary.LittleEndian.PutUint16(branch[8:], 1)
	binary.LittleEndian.PutUint16(branch[10:], 0xffff)
	for at := 16; at+16 <= pageSize; at += 16 {
		binary.LittleEndian.PutUint64(branch[at+8:], 2)
	}
	path := filepath.Join(t.TempDir(), "damaged.db")
	if err := os.WriteFile(path, page, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file := salvage.New(f, int64(len(page)), pageSize)
	for _, root := range []uint64{2, 3, 1 << 40} {
		if leaves := file.Leaves(root); len(leaves) > 0 {
			t.Errorf("root %d: %d leaves", root, len(leaves))
		}
	}
}
