package salvage

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const pageSize = 4096

// makeFile makes a file with an inline bucket, one of several levels, one with
// values that overflow their pages, an empty one and free pages. It returns what
// it holds, and fails when bbolt's own check does not like it.
func makeFile(t testing.TB) (data []byte, rows map[string]string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: pageSize, NoSync: true})
	must(t, err)
	rows = map[string]string{}
	put := func(bucket string, n, keyLen, valueLen int) {
		must(t, db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			for i := 0; err == nil && i < n; i++ {
				k, v := fmt.Sprintf("%0*d", keyLen, i), strings.Repeat(fmt.Sprint(i%10), valueLen)
				rows[bucket+"/"+k] = v
				err = b.Put([]byte(k), []byte(v))
			}
			return err
		}))
	}
	put("deep", 400, 300, 50)
	put("empty", 0, 0, 0)
	put("gone", 300, 20, 300)
	put("inline", 5, 3, 10)
	put("large", 5, 4, 3*pageSize)
	put("long keys", 4, 20_000, 5)
	must(t, db.Update(func(tx *bolt.Tx) error {
		for k := range rows {
			if strings.HasPrefix(k, "gone/") {
				delete(rows, k)
			}
		}
		return tx.DeleteBucket([]byte("gone"))
	}))
	put("inline", 6, 3, 11)
	must(t, db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Error(err)
		}
		return nil
	}))
	must(t, db.Close())
	data, err = os.ReadFile(path)
	must(t, err)
	return data, rows
}

// open reads the newest meta of data.
func open(t testing.TB, data []byte) (*File, Meta) {
	t.Helper()
	r := bytes.NewReader(data)
	metas, isBolt := FindMetas(r)
	if len(metas) != 2 || !isBolt || metas[0].TxID != metas[1].TxID+1 || metas[0].PageSize != pageSize {
		t.Fatalf("metas are %+v", metas)
	}
	return New(r, r.Size(), pageSize), metas[0]
}

func walkAll(t testing.TB, f *File, m Meta) (*Tree, map[string]string) {
	t.Helper()
	rows := map[string]string{}
	tree, err := f.Walk(context.Background(), m.Root, m.Pages, nil, func(r Row) bool {
		if v, err := r.Bytes(); err == nil {
			rows[r.Bucket+"/"+string(r.Key)] = string(v)
			return true
		}
		return false
	})
	must(t, err)
	return tree, rows
}

func TestSoundFile(t *testing.T) {
	data, want := makeFile(t)
	f, m := open(t, data)
	tree, rows := walkAll(t, f, m)
	if len(tree.Problems) > 0 {
		t.Errorf("problems: %v", tree.Problems)
	}
	if len(rows) != len(want) {
		t.Errorf("found %d rows of %d", len(rows), len(want))
	}
	for k, v := range want {
		if rows[k] != v {
			t.Errorf("row %.40q is %.20q, not %.20q", k, rows[k], v)
		}
	}
	for _, name := range []string{"deep", "empty", "inline", "large", "long keys"} {
		if b := tree.Buckets[name]; b == nil || !b.Sound {
			t.Errorf("bucket %q is not sound", name)
		}
	}
	free, own, err := f.Freelist(m)
	must(t, err)
	if free.Len() == 0 || own.Len() == 0 || tree.Reached.Len()+free.Len()+own.Len()+2 != m.Pages || tree.Sound.Len() != tree.Reached.Len() {
		t.Errorf("%d pages reached, %d of them sound, %d free, %d of the freelist, of %d", tree.Reached.Len(), tree.Sound.Len(), free.Len(), own.Len(), m.Pages)
	}
}

// Each byte of a page in use, but those behind the last element, is looked at: what
// a page says of itself, or what a row holds, changes with it.
func TestEveryByteCounts(t *testing.T) {
	data, want := makeFile(t)
	f, m := open(t, data)
	tree, _ := walkAll(t, f, m)
	missed, flips := 0, 0
	for id := uint64(2); id < m.Pages; id++ {
		if !tree.Sound.Has(id) {
			continue
		}
		for _, at := range []int{0, 7, 8, 9, 10, 11, 12, 15, 16, 19, 20, 23, 24, 27, 28, 31} {
			h := parseHeader(data[id*pageSize:])
			if h.id != id || at >= 16+16*h.count { // inside an overflow, or an empty page
				continue
			}
			flips++
			off := int(id)*pageSize + at
			data[off] ^= 0x10
			found, rows := walkAll(t, f, m)
			free, own, err := f.Freelist(m)
			isWhole := err == nil && found.Reached.Len()+free.Len()+own.Len()+2 == m.Pages
			if len(found.Problems) == 0 && len(rows) == len(want) && isWhole {
				missed++
				t.Errorf("byte %d of page %d was flipped, and nothing is wrong", at, id)
			}
			data[off] ^= 0x10
		}
	}
	if flips < 100 || missed > 0 {
		t.Errorf("%d of %d flips were missed", missed, flips)
	}
}

// A page that leads back to itself ends the walk there, and nowhere else.
func TestCircle(t *testing.T) {
	data, want := makeFile(t)
	f, m := open(t, data)
	circles := 0
	for id := uint64(2); id < m.Pages; id++ {
		h := parseHeader(data[id*pageSize:])
		if h.id != id || h.flags != flagBranch {
			continue
		}
		off := int(id)*pageSize + headerLen + 8
		old := binary.LittleEndian.Uint64(data[off:])
		binary.LittleEndian.PutUint64(data[off:], id)
		tree, rows := walkAll(t, f, m)
		if tree.Reached.Has(id) {
			circles++
			if len(tree.Problems) == 0 || len(rows) >= len(want) || len(rows) == 0 {
				t.Errorf("page %d in a circle: %d problems, %d rows of %d", id, len(tree.Problems), len(rows), len(want))
			}
		}
		binary.LittleEndian.PutUint64(data[off:], old)
	}
	if circles == 0 {
		t.Error("the file has no branch page")
	}
}

func TestCut(t *testing.T) {
	data, want := makeFile(t)
	_, m := open(t, data)
	f := New(bytes.NewReader(data[:len(data)/2]), int64(len(data)/2), pageSize)
	tree, rows := walkAll(t, f, m)
	if len(tree.Problems) == 0 || len(rows) == 0 || len(rows) >= len(want) {
		t.Errorf("%d problems, %d rows of %d", len(tree.Problems), len(rows), len(want))
	}
	for k, v := range rows {
		if want[k] != v {
			t.Errorf("row %.40q is %.20q, not %.20q", k, v, want[k])
		}
	}
}

func TestGuessPageSize(t *testing.T) {
	data, _ := makeFile(t)
	clear(data[:2*pageSize])
	if got := GuessPageSize(bytes.NewReader(data), int64(len(data))); got != pageSize {
		t.Errorf("got %d", got)
	}
	if got := GuessPageSize(bytes.NewReader(nil), 0); got != 4096 {
		t.Errorf("of nothing: %d", got)
	}
}

// Carve finds what starts anywhere, over the borders of windows and pages, and
// nothing in pages that are left out.
func TestCarve(t *testing.T) {
	const mark = "\x01\x02record"
	data := make([]byte, 700*pageSize+77)
	want := []int64{5, pageSize*3 - 2, 1<<20 - 3, 2<<20 + 1, int64(len(data) - len(mark))}
	for _, off := range append(want, 600*pageSize) {
		copy(data[off:], mark)
	}
	f := New(bytes.NewReader(data), int64(len(data)), pageSize)
	var first [256]bool
	first[1] = true
	var found []int64
	done := int64(0)
	err := f.Carve(context.Background(), func(page uint64) bool { return page == 600 }, &first, func(off int64) int64 {
		if string(f.At(off, len(mark))) == mark {
			found = append(found, off)
			return int64(len(mark))
		}
		return 0
	}, func(n int64) { done += n })
	must(t, err)
	if fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("found %v, want %v", found, want)
	}
	if done != int64(len(data)-pageSize) {
		t.Errorf("done %d of %d", done, len(data)-pageSize)
	}
}

// FuzzSalvage reads any bytes, also as a file whose metas are whole.
func FuzzSalvage(f *testing.F) {
	data, _ := makeFile(f)
	metas, _ := FindMetas(bytes.NewReader(data))
	f.Add(uint64(2), uint32(0), []byte{1}, true)
	f.Add(metas[0].Root*pageSize, uint32(8), []byte{1, 0, 5, 0, 255, 255, 255, 255}, false)
	f.Fuzz(func(t *testing.T, at uint64, and uint32, over []byte, zero bool) {
		copied := bytes.Clone(data)
		for _, off := range []uint64{at, uint64(and)} {
			copy(copied[off%uint64(len(copied)):], over)
		}
		if zero {
			clear(copied[:2*pageSize])
		}
		for _, file := range [][]byte{copied, over} {
			r := bytes.NewReader(file)
			found, _ := FindMetas(r)
			size := GuessPageSize(r, r.Size())
			for _, m := range append(found, metas[0]) {
				if m.PageSize == pageSize {
					size = pageSize
				}
				s := New(r, r.Size(), size)
				tree, _ := walkAll(t, s, m)
				free, own, err := s.Freelist(m)
				if err != nil && (free != nil || own != nil) {
					t.Error("a bad freelist has pages")
				}
				if tree.Sound.Len() > tree.Reached.Len() {
					t.Error("pages are sound that were not reached")
				}
				var first [256]bool
				first[1], first[2] = true, true
				must(t, s.Carve(context.Background(), tree.Sound.Has, &first, func(off int64) int64 { return int64(len(s.At(off, 3))) }, func(int64) {}))
			}
		}
	})
}
