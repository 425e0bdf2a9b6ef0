//go:build unix && !aix && !solaris

package buckets_test

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"checkpointdb/buckets"
	"checkpointdb/workspace"

	"gocloud.dev/blob"
)

// leftovers returns the temporary files in a bucket's directory, and whether its
// marker is there.
func leftovers(t *testing.T, dir string) (files []string, marker bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.Name() == ".checkpointdb-uploads":
			marker = true
		case strings.HasSuffix(d.Name(), ".tmp"):
			files = append(files, d.Name())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, marker
}

// capture fills a workspace with files that nobody has seen, and captures it.
func capture(dir string) error {
	ctx := context.Background()
	bucket, err := buckets.Open(ctx, "file://"+filepath.ToSlash(dir)+"/blobs?prefix=team/one/")
	if err != nil {
		return err
	}
	content := make([]byte, 1<<20)
	for i := range 8 {
		_, _ = crand.Read(content)
		if err := os.WriteFile(filepath.Join(dir, "work", fmt.Sprint(i)), content, 0o600); err != nil {
			return err
		}
	}
	_, err = workspace.Capture(ctx, filepath.Join(dir, "work"), bucket, nil)
	return errors.Join(err, bucket.Close())
}

// Case 49: processes are killed five times in the middle of a capture. Each
// removes what the one before has left, so there never is more than one capture
// can leave, and nothing after one that was not killed.
func TestCase49KilledCapture(t *testing.T) {
	if dir := os.Getenv("CHECKPOINTDB_TEST_CAPTURED"); dir != "" { // the child
		for end := time.Now().Add(time.Minute); time.Now().Before(end); { // it is killed before
			if err := capture(dir); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs")
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o777); err != nil {
		t.Fatal(err)
	}
	var before []string
	left := 0
	for i := 0; i < 5 || left == 0 && i < 50; i++ { // until one was killed at the right moment
		child := exec.Command(os.Args[0], "-test.run=^TestCase49KilledCapture$", "-test.count=1")
		child.Env = append(os.Environ(), "CHECKPOINTDB_TEST_CAPTURED="+dir)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			files, _ := leftovers(t, blobs)
			if slices.ContainsFunc(files, func(name string) bool { return !slices.Contains(before, name) }) {
				break // it uploads
			}
			if time.Now().After(end) {
				_ = child.Process.Kill()
				t.Fatal("the child uploads nothing")
			}
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait()
		files, _ := leftovers(t, blobs)
		for _, name := range files {
			if slices.Contains(before, name) {
				t.Errorf("%s is there since the process before was killed", name)
			}
		}
		left += len(files)
		before = files
	}
	if left == 0 {
		t.Error("nothing was left at any time, so nothing was tested")
	}
	if err := capture(dir); err != nil {
		t.Fatal(err)
	}
	if files, marker := leftovers(t, blobs); len(files) > 0 || marker {
		t.Errorf("left after one that was not killed: %q, marker: %t", files, marker)
	}
}

// deadUpload leaves in dir what a killed process would.
func deadUpload(t *testing.T, dir string) {
	t.Helper()
	for name, content := range map[string]string{
		key + fmt.Sprintf(".%016x.tmp", time.Now().UnixNano()): "half a bl",
		".checkpointdb-uploads":                                "\n",
	} {
		f, err := os.OpenFile(filepath.Join(dir, filepath.FromSlash(name)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(content)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func mustOpen(t *testing.T, dir string) *blob.Bucket {
	t.Helper()
	b, err := buckets.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustWrite(t *testing.T, b *blob.Bucket, key string) {
	t.Helper()
	if err := buckets.WriteDurable(t.Context(), b, key, 5, strings.NewReader("hello")); err != nil {
		t.Error(err)
	}
}

// Nothing is removed while somebody else uploads, even if that one has closed
// its bucket meanwhile.
func TestLeftoversOfTheLiving(t *testing.T) {
	dir := t.TempDir()
	// The locks are those of the opened files, so buckets stand for processes.
	slow := mustOpen(t, dir)
	w, err := slow.NewWriter(t.Context(), key, &blob.WriterOptions{ContentType: "text/plain"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	want := func(when string, n int, marker bool) {
		t.Helper()
		if files, there := leftovers(t, dir); len(files) != n || there != marker {
			t.Errorf("%s: %q, want %d; marker: %t, want %t", when, files, n, there, marker)
		}
	}
	want("uploading", 1, true)
	for range 2 {
		deadUpload(t, dir)
		other := mustOpen(t, dir)
		mustWrite(t, other, key+"x")
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
	want("two were killed meanwhile", 3, true)
	if err := errors.Join(w.Close(), slow.Close()); err != nil {
		t.Fatal(err)
	}
	want("the last upload has ended", 2, true)

	next := mustOpen(t, dir)
	if _, err := next.Exists(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	want("somebody reads", 2, true)
	it := next.List(nil)
	for obj, err := it.Next(t.Context()); err == nil; obj, err = it.Next(t.Context()) {
		if strings.HasPrefix(obj.Key, ".") {
			t.Errorf("the listing has %q", obj.Key)
		}
	}
	// What has another name is not touched.
	for _, name := range []string{key + "x.0123456789abcdef.tmp", key + ".1.tmp", "notes.0123456789abcdef.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, next, key)
	want("somebody writes", 3, true)
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	want("and was alone", 3, false)
}

// A bucket that is closed under an upload keeps others from taking that for a
// leftover.
func TestClosedUnderUpload(t *testing.T) {
	dir := t.TempDir()
	b := mustOpen(t, dir)
	w, err := b.NewWriter(t.Context(), key, &blob.WriterOptions{ContentType: "text/plain"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	deadUpload(t, dir)
	other := mustOpen(t, dir)
	mustWrite(t, other, key+"x")
	if files, _ := leftovers(t, dir); len(files) != 2 {
		t.Errorf("%q", files)
	}
	if err := errors.Join(w.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	next := mustOpen(t, dir)
	mustWrite(t, next, key+"x")
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if files, marker := leftovers(t, dir); len(files) > 0 || marker {
		t.Errorf("%q, marker: %t", files, marker)
	}
}

// Many come and go, upload and are killed at the same time: no upload of the
// living fails.
func TestLeftoversContended(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sandbox-files", "sha256"), 0o700); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 12 {
				b, err := buckets.Open(t.Context(), dir)
				if err != nil {
					t.Error(err)
					return
				}
				mustWrite(t, b, fmt.Sprintf("%s%062x%02x", key[:len(key)-64], j, i))
				if err := b.Close(); err != nil {
					t.Error(err)
				}
				if i == 0 {
					deadUpload(t, dir)
				}
			}
		})
	}
	wg.Wait()
	for range 2 { // the first may find a marker of several
		b := mustOpen(t, dir)
		mustWrite(t, b, key)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if files, marker := leftovers(t, dir); len(files) > 0 || marker {
		t.Errorf("%q, marker: %t", files, marker)
	}
}
