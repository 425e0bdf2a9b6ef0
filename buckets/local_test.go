package buckets_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"

	"gocloud.dev/blob"
)

// fill makes n empty objects in the bucket at dir and returns their directory.
func fill(t testing.TB, dir string, n int) string {
	t.Helper()
	dir = filepath.Join(dir, filepath.FromSlash(checkpointdb.FileKeyPrefix))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i), byte(i >> 8), byte(i >> 16)}))))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return dir
}

// listAll lists the objects in pages and returns how many there are and the most
// heap that was seen in use.
func listAll(t testing.TB, b *blob.Bucket, pageSize int) (n int, heap uint64) {
	t.Helper()
	last := ""
	for token := blob.FirstPageToken; len(token) > 0; {
		page, next, err := b.ListPage(t.Context(), token, pageSize, &blob.ListOptions{Prefix: checkpointdb.FileKeyPrefix})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page {
			if o.Key <= last {
				t.Fatalf("%q after %q", o.Key, last)
			}
			last = o.Key
		}
		n, token = n+len(page), next
		heap = max(heap, heapInUse())
	}
	return n, heap
}

func heapInUse() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// Pages of any size cost about what reading the directory costs, and memory does
// not grow with the pages.
func TestLocalListingScales(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 100,000 files")
	}
	const n = 100_000
	root := t.TempDir()
	dir := fill(t, root, n)
	b, err := buckets.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	begin := time.Now()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name.Name())); err != nil {
			t.Fatal(err)
		}
	}
	base := time.Since(begin)

	for _, pageSize := range []int{100, 1000, 50_000} {
		before, begin := heapInUse(), time.Now()
		got, heap := listAll(t, b, pageSize)
		took := time.Since(begin)
		heap = max(heap, before) - before
		t.Logf("pages of %d: %s, reading and looking up the names alone %s, heap %d MB", pageSize, took, base, heap>>20)
		if got != n {
			t.Errorf("pages of %d: %d objects", pageSize, got)
		}
		if took > 5*base+time.Second {
			t.Errorf("pages of %d: took %s, want at most five times %s", pageSize, took, base)
		}
		if heap > 80<<20 {
			t.Errorf("pages of %d: %d MB of heap", pageSize, heap>>20)
		}
	}
}

// A million objects, in pages of 10,000.
func BenchmarkLocalListing(b *testing.B) {
	const n = 1_000_000
	root := b.TempDir()
	fill(b, root, n)
	bucket, err := buckets.Open(b.Context(), root)
	if err != nil {
		b.Fatal(err)
	}
	defer bucket.Close()
	var most uint64
	for b.Loop() {
		got, heap := listAll(b, bucket, 10_000)
		if got != n {
			b.Fatalf("%d objects", got)
		}
		most = max(most, heap)
	}
	b.ReportMetric(float64(most>>20), "MB-heap")
}

// Listings beside somebody who deletes: no error, and what stays is listed once.
func TestLocalListingBesideDeleter(t *testing.T) {
	root := t.TempDir()
	dir := fill(t, root, 2000)
	b, err := buckets.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var stay []string
	done := make(chan struct{})
	var deleter sync.WaitGroup
	for i, name := range names {
		if i%2 == 0 {
			stay = append(stay, checkpointdb.FileKeyPrefix+name.Name())
		}
	}
	deleter.Go(func() {
		defer close(done)
		for i, name := range names {
			if i%2 == 1 {
				if err := os.Remove(filepath.Join(dir, name.Name())); err != nil {
					t.Error(err)
				}
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	defer deleter.Wait()
	for end := false; !end; {
		select {
		case <-done:
			end = true
		default:
		}
		var got []string
		for it := b.List(nil); ; {
			o, err := it.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, found := slices.BinarySearch(stay, o.Key); found {
				got = append(got, o.Key)
			}
		}
		if !slices.Equal(got, stay) {
			t.Fatalf("%d objects of the %d that stay were listed", len(got), len(stay))
		}
	}
}

// What a listing makes of the things in a directory that are no objects of ours.
func TestLocalListingOddities(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"empty", "sandbox-files/sha256"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"sandbox-files/sha256/ab.17f.tmp", "sandbox-files/sha256/README", "x.attrs", "sandbox-files/sha256-other"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(root, "dangling")); err != nil {
		t.Log(err) // Windows may refuse
	}
	b, err := buckets.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	list := func(prefix string) string {
		var keys []string
		for it := b.List(&blob.ListOptions{Prefix: prefix}); ; {
			o, err := it.Next(t.Context())
			if err == io.EOF {
				return strings.Join(keys, " ")
			}
			if err != nil {
				t.Fatal(err)
			}
			var info fs.FileInfo
			if !o.As(&info) || info.Size() != o.Size || !info.ModTime().Equal(o.ModTime) {
				t.Errorf("As of %q: %v", o.Key, info)
			}
			keys = append(keys, strings.TrimPrefix(o.Key, prefix))
		}
	}
	if got, want := list("sandbox-files/sha256/"), "README ab.17f.tmp"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	if got, want := list("sandbox-files/sha256"), "-other /README /ab.17f.tmp"; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	for _, prefix := range []string{"empty/", "missing/", "sandbox-files/sha256/README/", "../", "/", "a/../"} {
		if got := list(prefix); got != "" {
			t.Errorf("below %q: %q", prefix, got)
		}
	}
	var dir string
	if !b.As(&dir) || dir != root {
		t.Errorf("As gives the directory %q, want %q", dir, root)
	}
	var info fs.FileInfo
	if !b.As(&info) || !info.IsDir() {
		t.Errorf("As gives %v, want what the driver gives too", info)
	}

	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.ListPage(t.Context(), blob.FirstPageToken, 10, nil); err == nil {
		t.Error("a bucket whose directory is gone was listed")
	}
}
