package checkpointdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestCheckNamesWhatIsBroken breaks each invariant on purpose, in a sound store,
// and expects Check to name its number, thread and key.
func TestCheckNamesWhatIsBroken(t *testing.T) {
	ctx := context.Background()
	var one, two threadNumber = 1, 2 // "a thread" and "another\x00thread"
	first := func(tx *bolt.Tx, bucket []byte, keep func(k, v []byte) bool) (k, v []byte) {
		c := tx.Bucket(bucket).Cursor()
		for k, v = c.First(); k != nil && !keep(k, v); k, v = c.Next() {
		}
		return bytes.Clone(k), bytes.Clone(v)
	}
	all := func(k, v []byte) bool { return true }
	rewrite := func(tx *bolt.Tx, pos position, change func(*record)) error {
		p := place{one, pos}
		rec, err := getRecord(tx, p)
		if err != nil {
			return err
		}
		for i := range rec.sections {
			rec.sections[i].payload = bytes.Clone(rec.sections[i].payload)
		}
		change(rec)
		return tx.Bucket(bucketCheckpoints).Put(p.key(), rec.encode())
	}
	for _, test := range []struct {
		name      string
		invariant int
		thread    ThreadID
		key       string
		damage    func(tx *bolt.Tx) error
	}{
		{"ids row without record", 1, "a thread", "stray", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketIDs).Put([]byte("stray"), place{one, 77}.key())
		}},
		{"record without ids row", 1, "a thread", "cp-8", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketIDs).Delete([]byte("cp-8"))
		}},
		{"head row lags", 2, "a thread", "", func(tx *bolt.Tx) error {
			h, err := getHead(tx, one)
			if err != nil {
				return err
			}
			h = h.withoutNewest()
			h.head = h.newest()
			return putHead(tx, one, h)
		}},
		{"head row without records", 2, "only a transcript", "", func(tx *bolt.Tx) error {
			return putHead(tx, 3, headRow{next: 1}.add())
		}},
		{"parent is not the one before", 3, "a thread", "cp-10", func(tx *bolt.Tx) error {
			return rewrite(tx, 11, func(r *record) { r.parent = "cp-5" })
		}},
		{"run too short", 4, "a thread", "", func(tx *bolt.Tx) error {
			k, _ := first(tx, bucketRefcounts, func(k, v []byte) bool { r, _ := parseRun(k, v); return r.thread == one && r.last == 11 })
			if k == nil {
				k, _ = first(tx, bucketRefcounts, func(k, v []byte) bool {
					r, _ := parseRun(k, v)
					return r.thread == one && r.last == 0 && r.first < 9
				})
			}
			return putRun(tx, k, func(r *run) { r.last = 9 })
		}},
		{"run missing", 4, "another\x00thread", "", func(tx *bolt.Tx) error {
			k, _ := first(tx, bucketRefcounts, func(k, v []byte) bool { r, _ := parseRun(k, v); return r.thread == two })
			return tx.Bucket(bucketRefcounts).Delete(k)
		}},
		{"run of a key that nobody names", 4, "a thread", string(testKey("nobody's")), func(tx *bolt.Tx) error {
			id, _ := blobIDOf(testKey("nobody's"))
			return tx.Bucket(bucketRefcounts).Put(runKey(id, one, 9), run{}.value())
		}},
		{"runs overlap", 5, "a thread", "", func(tx *bolt.Tx) error {
			k, v := first(tx, bucketRefcounts, func(k, v []byte) bool { r, _ := parseRun(k, v); return r.thread == one && r.last == 0 })
			r, err := parseRun(k, v)
			if err != nil {
				return err
			}
			if err := putRun(tx, k, func(r *run) { r.last = r.first + 1 }); err != nil {
				return err
			}
			r.first++
			return tx.Bucket(bucketRefcounts).Put(r.key(), r.value())
		}},
		{"open run of a blob that the head dropped", 5, "a thread", "", func(tx *bolt.Tx) error {
			k, _ := first(tx, bucketRefcounts, func(k, v []byte) bool { r, _ := parseRun(k, v); return r.thread == one && r.last == 10 })
			return putRun(tx, k, func(r *run) { r.last = 0 })
		}},
		{"run of another size", 4, "a thread", "", func(tx *bolt.Tx) error {
			k, _ := first(tx, bucketRefcounts, func(k, v []byte) bool { r, _ := parseRun(k, v); return r.thread == one })
			return putRun(tx, k, func(r *run) { r.size++ })
		}},
		{"fence above the last", 6, "a thread", "", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketWriters).Put(one.key(), leaseRow{fence: 9, token: "x", expires: testTime(1)}.encode())
		}},
		{"referenced and garbage", 7, "", "", func(tx *bolt.Tx) error {
			k, _ := first(tx, bucketRefcounts, all)
			return tx.Bucket(bucketGarbage).Put(k[:33], appendTime(nil, testTime(1)))
		}},
		{"record with a flipped bit", 8, "a thread", "cp-9", func(tx *bolt.Tx) error {
			k := place{one, 10}.key()
			v := bytes.Clone(tx.Bucket(bucketCheckpoints).Get(k))
			v[len(v)-9] ^= 1
			return tx.Bucket(bucketCheckpoints).Put(k, v)
		}},
		{"record that is sound but not valid", 8, "a thread", "cp-10", func(tx *bolt.Tx) error {
			return rewrite(tx, 11, func(r *record) {
				r.sections[sectionFiles] = fullSection(sectionFiles, []string{"\x00/absolute"})
			})
		}},
		{"record of another thread", 8, "a thread", "cp-10", func(tx *bolt.Tx) error {
			return rewrite(tx, 11, func(r *record) { r.threadID = "elsewhere" })
		}},
		{"instance malformed", 8, "", "k", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketInstances).Put([]byte("k"), []byte{rowVersion, 200})
		}},
		{"transcript malformed", 8, "only a transcript", "", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketTranscripts).Put(threadNumber(3).key(), []byte{rowVersion, 200})
		}},
		{"two threads of one number", 9, "a twin", "", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketThreads).Put([]byte("a twin"), one.key())
		}},
		{"pin above the last fence", 10, "a thread", string(testKey("on its way")), func(tx *bolt.Tx) error {
			id, _ := blobIDOf(testKey("on its way"))
			return tx.Bucket(bucketPins).Put(pinKey(id, one), u64(9))
		}},
		{"row of no thread", 9, "", "", func(tx *bolt.Tx) error {
			return tx.Bucket(bucketFences).Put(threadNumber(99).key(), u64(1))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := Open(filepath.Join(t.TempDir(), "test.db"), nil)
			must(t, err)
			defer s.Close()
			fillStore(t, s)
			must(t, s.Check(ctx))
			must(t, s.db.Update(test.damage))
			err = s.Check(ctx)
			var found *CheckError
			if !errors.As(err, &found) || !errors.Is(err, ErrDamaged) {
				t.Fatalf("got %v", err)
			}
			if !slices.ContainsFunc(found.Violations, func(v Violation) bool {
				return v.Invariant == test.invariant && v.ThreadID == test.thread && (test.key == "" || v.Key == test.key)
			}) {
				t.Errorf("no violation of invariant %d, thread %q, key %q in:\n%v", test.invariant, test.thread, test.key, err)
			}
		})
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	s := openTest(t, nil)
	fillStore(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// putRun changes a row of refcounts.
func putRun(tx *bolt.Tx, k []byte, change func(*run)) error {
	refs := tx.Bucket(bucketRefcounts)
	r, err := parseRun(k, refs.Get(k))
	if err != nil {
		return err
	}
	change(&r)
	return refs.Put(bytes.Clone(k), r.value())
}

// TestSizesThatDisagree: the contract lets a checkpoint give one key any size, and
// several. That is no honest capture's, but no damage either.
func TestSizesThatDisagree(t *testing.T) {
	s := openTest(t, nil)
	ctx := context.Background()
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	head := CheckpointID("")
	for i, sizes := range [][]int64{{0}, {0, 17}, {17}, {}, {3, 2}, {2}, {9}} {
		c := Checkpoint{ID: CheckpointID(fmt.Sprint(i)), ThreadID: "t", ParentCheckpointID: head, CreatedAt: testTime(i), Reason: ReasonAutomatic}
		for n, size := range sizes {
			c.Files = append(c.Files, Entry{Path: fmt.Sprint(n), Kind: KindFile, BlobKey: testKey("x"), Size: size})
		}
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
		must(t, s.Check(ctx))
	}
	for keep := 6; keep > 0; keep-- {
		_, err := s.DeleteCheckpoints(ctx, lease.Writer, keep)
		must(t, err)
		must(t, s.Check(ctx))
	}
}
