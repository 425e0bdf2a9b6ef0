// Package blobsuite is what this module needs of a bucket, as tests that run
// against every kind of bucket and against servers that play the clouds.
//
// To add a server, start it in a test, make a bucket in it and call [Run] with
// the URL that a user would open. To add a need, add a subtest to Run; all kinds
// get it.
package blobsuite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Run runs the suite on the bucket at a URL. Each subtest has a prefix of its own
// in it. A listing is tested with so many objects: with more than 3000 a server
// shows more than three of its own pages, and less is for those that are slow.
func Run(t *testing.T, rawURL string, objects int) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, *blob.Bucket)
	}{
		{"UploadIfAbsent", testUploadIfAbsent},
		{"Overwrite", testOverwrite},
		{"IfNotExist", testIfNotExist},
		{"ListInOrder", func(t *testing.T, b *blob.Bucket) { testListInOrder(t, b, objects) }},
		{"ModTime", testModTime},
		{"DeleteMissing", testDeleteMissing},
		{"ConcurrentWriters", testConcurrentWriters},
		{"WrongSize", testWrongSize},
		{"Cancel", testCancel},
		{"Sweep", testSweep},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, err := buckets.Open(t.Context(), withParam(rawURL, "prefix="+t.Name()+"/"))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			test.f(t, b)
		})
	}
}

// Missing fails unless opening the bucket at a URL says that it is not there.
func Missing(t *testing.T, rawURL string) {
	t.Helper()
	b, err := buckets.Open(t.Context(), rawURL)
	if err == nil {
		b.Close()
		t.Fatalf("%q was opened", rawURL)
	}
	if gcerrors.Code(err) != gcerrors.NotFound || !strings.Contains(err.Error(), "no such bucket") {
		t.Errorf("error %q does not say that there is no such bucket", err)
	}
}

func withParam(rawURL, param string) string {
	if strings.Contains(rawURL, "?") {
		return rawURL + "&" + param
	}
	return rawURL + "?" + param
}

// Sizes at which drivers change their ways: none, small, larger than any buffer
// here, and more than one part of an upload (S3 begins a second part at 8 or 16
// MiB, Azure at 8, GCS at 16).
const large = 20 << 20

var sizes = []int{0, 1, 1 << 20, large}

func content(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i >> 12)
	}
	return b
}

// key is that of a blob whose content is text.
func key(text string) string { return string(checkpointdb.FileKey(sha256.Sum256([]byte(text)))) }

func write(t *testing.T, b *blob.Bucket, key string, content []byte) {
	t.Helper()
	if err := buckets.WriteDurable(t.Context(), b, key, int64(len(content)), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

// wantContent fails unless key holds the content.
func wantContent(t *testing.T, b *blob.Bucket, key string, want []byte) {
	t.Helper()
	got, err := b.ReadAll(context.Background(), key)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes (%v), want %d others", key, len(got), err, len(want))
	}
}

// wantAbsent fails unless there is nothing under key, nor in any listing.
func wantAbsent(t *testing.T, b *blob.Bucket, key string) {
	t.Helper()
	if _, err := b.Attributes(context.Background(), key); gcerrors.Code(err) != gcerrors.NotFound {
		t.Errorf("attributes of %s: %v, want NotFound", key, err)
	}
	if _, err := b.ReadAll(context.Background(), key); gcerrors.Code(err) != gcerrors.NotFound {
		t.Errorf("reading %s: %v, want NotFound", key, err)
	}
	if keys := list(t, b, ""); slices.Contains(keys, key) {
		t.Errorf("%s is listed", key)
	}
}

func list(t *testing.T, b *blob.Bucket, prefix string) (keys []string) {
	t.Helper()
	for it := b.List(&blob.ListOptions{Prefix: prefix}); ; {
		o, err := it.Next(context.Background())
		if err == io.EOF {
			return keys
		}
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
}

func testUploadIfAbsent(t *testing.T, b *blob.Bucket) {
	for _, size := range sizes {
		k, want := key(fmt.Sprint(size)), content(size)
		wantAbsent(t, b, k)
		write(t, b, k, want)
		attrs, err := b.Attributes(t.Context(), k)
		if err != nil || attrs.Size != int64(size) {
			t.Errorf("attributes of %d bytes: %+v, %v", size, attrs, err)
		}
		wantContent(t, b, k, want)
		if err := buckets.Sync(t.Context(), b, k); err != nil {
			t.Error(err)
		}
	}
}

func testOverwrite(t *testing.T, b *blob.Bucket) {
	k := key("overwritten")
	write(t, b, k, []byte("old"))
	write(t, b, k, []byte("newer"))
	wantContent(t, b, k, []byte("newer"))
}

func testIfNotExist(t *testing.T, b *blob.Bucket) {
	k, opts := key("once"), &blob.WriterOptions{IfNotExist: true, ContentType: "application/octet-stream"}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			errs[i] = buckets.Retry(t.Context(), func(ctx context.Context) error {
				return b.WriteAll(ctx, k, []byte{byte(i)}, opts)
			})
		})
	}
	wg.Wait()
	winners := 0
	for i, err := range errs {
		if err == nil {
			winners++
			wantContent(t, b, k, []byte{byte(i)})
		} else if gcerrors.Code(err) != gcerrors.FailedPrecondition {
			t.Errorf("writer %d: %v, want FailedPrecondition", i, err)
		}
	}
	if winners != 1 {
		t.Errorf("%d writers of 8 were told that they were the first", winners)
	}
}

// testListInOrder lists all in the pages that the driver likes, and the blobs of
// files in more than three.
func testListInOrder(t *testing.T, b *blob.Bucket, objects int) {
	var files []string
	for i := range objects {
		files = append(files, key(fmt.Sprint(i)))
	}
	files = append(files, checkpointdb.FileKeyPrefix+"README")
	all := append(slices.Clone(files), checkpointdb.ArtifactKeyPrefix+strings.Repeat("0", 64), "other/a-b", "other/a/b")
	writeAll(t, b, all)
	slices.Sort(files)
	slices.Sort(all)

	if got := list(t, b, ""); !slices.Equal(got, all) {
		t.Errorf("%d keys listed, in order: %v; want %d", len(got), slices.IsSorted(got), len(all))
	}
	var got []string
	pages := 0
	for token := blob.FirstPageToken; len(token) > 0; pages++ {
		page, next, err := b.ListPage(t.Context(), token, objects/3-1, &blob.ListOptions{Prefix: checkpointdb.FileKeyPrefix})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page {
			if o.Size != 1 || o.IsDir {
				t.Errorf("%s is listed with size %d", o.Key, o.Size)
			}
			got = append(got, o.Key)
		}
		token = next
	}
	if !slices.Equal(got, files) || pages <= 3 {
		t.Errorf("%d keys listed in %d pages, in order: %v; want %d", len(got), pages, slices.IsSorted(got), len(files))
	}
}

// writeAll writes objects of one byte, several at a time.
func writeAll(t *testing.T, b *blob.Bucket, keys []string) {
	t.Helper()
	todo := make(chan string)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for k := range todo {
				if err := b.WriteAll(t.Context(), k, []byte("x"), &blob.WriterOptions{ContentType: "application/octet-stream"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, k := range keys {
		todo <- k
	}
	close(todo)
	wg.Wait()
}

// testModTime: the age of objects protects uploads from a sweep.
func testModTime(t *testing.T, b *blob.Bucket) {
	const tolerance = 5 * time.Second // of clocks, and of servers that count seconds
	from := time.Now().Add(-tolerance)
	write(t, b, key("a"), []byte("x"))
	to := time.Now().Add(tolerance)
	attrs, err := b.Attributes(t.Context(), key("a"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := b.List(nil).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, at := range map[string]time.Time{"attributes": attrs.ModTime, "listing": o.ModTime} {
		if at.Before(from) || at.After(to) {
			t.Errorf("%s: modified at %s, want between %s and %s", what, at, from, to)
		}
	}
	if d := attrs.ModTime.Sub(o.ModTime).Abs(); d > time.Second {
		t.Errorf("attributes and listing differ by %s", d)
	}
}

func testDeleteMissing(t *testing.T, b *blob.Bucket) {
	if err := b.Delete(t.Context(), key("missing")); gcerrors.Code(err) != gcerrors.NotFound {
		t.Errorf("deleting a missing key: %v, want NotFound", err)
	}
	write(t, b, key("there"), []byte("x"))
	if err := b.Delete(t.Context(), key("there")); err != nil {
		t.Error(err)
	}
	wantAbsent(t, b, key("there"))
	if err := b.Delete(t.Context(), key("there")); gcerrors.Code(err) != gcerrors.NotFound {
		t.Errorf("deleting again: %v, want NotFound", err)
	}
}

// testConcurrentWriters: all succeed, and what is there is whole at any time.
func testConcurrentWriters(t *testing.T, b *blob.Bucket) {
	const size = 300 << 10
	k := key("contended")
	write(t, b, k, bytes.Repeat([]byte("z"), size))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			err := buckets.Retry(t.Context(), func(ctx context.Context) error {
				return buckets.WriteDurable(ctx, b, k, size, bytes.NewReader(bytes.Repeat([]byte{byte('a' + i)}, size)))
			})
			if err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
			got, err := b.ReadAll(t.Context(), k)
			if err != nil || len(got) != size || bytes.Count(got, got[:1]) != size {
				t.Errorf("read a mixture of %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	if keys := list(t, b, ""); len(keys) != 1 {
		t.Errorf("listed %q, want one key", keys)
	}
}

func testWrongSize(t *testing.T, b *blob.Bucket) {
	broken := errors.New("broken")
	for _, size := range []int64{1, 1 << 20, large} {
		for _, c := range []struct {
			r    io.Reader
			want error
		}{
			{bytes.NewReader(content(int(size - 1))), checkpointdb.ErrBlobDamaged},
			{bytes.NewReader(content(int(size + 1))), checkpointdb.ErrBlobDamaged},
			{io.MultiReader(bytes.NewReader(content(int(size-1))), iotest.ErrReader(broken)), broken},
		} {
			k := key("wrong")
			if err := buckets.WriteDurable(t.Context(), b, k, size, c.r); !errors.Is(err, c.want) {
				t.Errorf("%d bytes: %v, want %v", size, err, c.want)
			}
			wantAbsent(t, b, k)
		}
	}
}

// testCancel: an upload that is cut off leaves its key as it was.
func testCancel(t *testing.T, b *blob.Bucket) {
	old, absent := key("old"), key("absent")
	write(t, b, old, []byte("old"))
	for _, size := range []int64{1, 1 << 20, large} {
		for _, k := range []string{old, absent} {
			ctx, cancel := context.WithCancel(t.Context())
			r := io.MultiReader(bytes.NewReader(content(int(size))), readerFunc(func(p []byte) (int, error) {
				cancel()
				return len(p), nil // for ever: only the context ends this
			}))
			begin := time.Now()
			if err := buckets.WriteDurable(ctx, b, k, 1<<40, r); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled after %d bytes: %v", size, err)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("cancelled after %d bytes: took %s", size, took)
			}
			cancel()
			time.Sleep(50 * time.Millisecond) // for what a driver may have left behind
			wantContent(t, b, old, []byte("old"))
			wantAbsent(t, b, absent)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func testSweep(t *testing.T, b *blob.Bucket) {
	store, err := checkpointdb.Open(filepath.Join(t.TempDir(), "store.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	lease, err := store.AcquireWriter(t.Context(), "thread")
	if err != nil {
		t.Fatal(err)
	}
	used, unused, foreign := key("used"), key("unused"), checkpointdb.FileKeyPrefix+"README"
	err = store.Append(t.Context(), lease.Writer, checkpointdb.Checkpoint{
		ID: "1", ThreadID: "thread", CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic,
		Files: []checkpointdb.Entry{{Path: "a", Kind: checkpointdb.KindFile, BlobKey: checkpointdb.BlobKey(used), Size: 1}},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	var many []string
	for i := range 20 {
		many = append(many, key(fmt.Sprint("unused", i)))
	}
	writeAll(t, b, append(many, used, unused, foreign))

	report, err := checkpointdb.Sweep(t.Context(), store, b, nil)
	if err != nil || report.Deleted != 0 || report.TooYoung != 21 {
		t.Errorf("sweep of young objects: %+v, %v", report, err)
	}
	later := func() time.Time { return time.Now().Add(48 * time.Hour) }
	for _, want := range []int64{21, 0} {
		report, err = checkpointdb.Sweep(t.Context(), store, b, &checkpointdb.SweepOptions{Clock: later})
		if err != nil || report.Deleted != want || report.DeletedBytes != want || report.Kept != 1 || report.Foreign != 1 || report.Failed != 0 {
			t.Errorf("sweep of old objects: %+v, %v; want %d deleted", report, err, want)
		}
	}
	if got, want := list(t, b, ""), slices.Sorted(slices.Values([]string{used, foreign})); !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}
