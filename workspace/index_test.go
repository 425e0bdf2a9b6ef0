package workspace

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gocloud.dev/blob/memblob"

	"checkpointdb"
)

// indexed captures a directory again and again with one index.
type indexed struct {
	t      *testing.T
	dir    string
	opts   CaptureOptions
	result Captured
}

func newIndexed(t *testing.T) *indexed {
	if !hasStamps {
		t.Skip("this system has no change times, so no index")
	}
	x := &indexed{t: t, dir: t.TempDir()}
	x.opts.Index = filepath.Join(t.TempDir(), "index")
	for _, name := range []string{"a", "b", "d/c"} {
		x.write(name, "content of "+name)
	}
	return x
}

func (x *indexed) path(name string) string { return filepath.Join(x.dir, name) }

func (x *indexed) write(name, text string) {
	x.t.Helper()
	if err := os.MkdirAll(filepath.Dir(x.path(name)), 0o700); err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(x.path(name), []byte(text), 0o600); err != nil {
		x.t.Fatal(err)
	}
}

// capture returns which files were read, and compares the result with that of a
// capture without an index.
func (x *indexed) capture() (read []string) {
	x.t.Helper()
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	opts := x.opts
	var mu sync.Mutex
	opts.hook = func(point, path string) {
		mu.Lock()
		defer mu.Unlock()
		if point == "read" {
			read = append(read, path)
		}
	}
	got, err := Capture(ctx, x.dir, bucket, &opts)
	if err != nil {
		x.t.Fatal(err)
	}
	want, err := Capture(ctx, x.dir, bucket, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	if d := cmp.Diff(want.Files, got.Files); d != "" {
		x.t.Errorf("the index changed the result (-want +got):\n%s", d)
	}
	x.result = got
	slices.Sort(read)
	return read
}

// settle waits until what was written so far is not racy any more.
func settle() { time.Sleep(racySpan + 100*time.Millisecond) }

var all = []string{"a", "b", "d/c"}

func TestIndex(t *testing.T) {
	t.Parallel()
	x := newIndexed(t)
	expect := func(what string, want ...string) {
		t.Helper()
		if got := x.capture(); !slices.Equal(got, want) {
			t.Errorf("%s: %q were read, want %q", what, got, want)
		}
	}
	expect("the first time", all...)
	expect("while all is racy", all...)
	settle()
	expect("when it is no longer", all...)
	expect("unchanged")

	// The same size, and the old modification time put back: what editors and
	// archivers do. The change time gives it away.
	info, err := os.Stat(x.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	x.write("a", "CONTENT of a")
	if err := os.Chtimes(x.path("a"), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	expect("rewritten in secret", "a")
	settle()
	expect("settled again", "a")
	expect("unchanged again")

	// Another file of the same content in its place.
	x.write("new", "content of b")
	if err := os.Rename(x.path("new"), x.path("b")); err != nil {
		t.Fatal(err)
	}
	expect("replaced", "b")
	if err := os.Chmod(x.path("d/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect("made executable", "b", "d/c")
	if err := os.Remove(x.path("a")); err != nil {
		t.Fatal(err)
	}
	settle()
	expect("removed one", "b", "d/c")
	expect("unchanged at last")
}

// TestIndexDamaged: whatever lies in the index's place, the capture is right and
// makes it anew.
func TestIndexDamaged(t *testing.T) {
	t.Parallel()
	x := newIndexed(t)
	settle()
	x.capture()
	good, err := os.ReadFile(x.opts.Index)
	if err != nil {
		t.Fatal(err)
	}
	var bad [][]byte
	for i := range good {
		flipped := bytes.Clone(good)
		flipped[i] ^= 1
		bad = append(bad, flipped)
		bad = append(bad, good[:i])
	}
	for i, data := range bad {
		if parseIndex(data) != nil {
			t.Errorf("damage %d was not noticed", i)
		}
	}
	for _, data := range [][]byte{nil, []byte("something else"), good[:len(good)/2]} {
		if err := os.WriteFile(x.opts.Index, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := x.capture(); !slices.Equal(got, all) {
			t.Errorf("with a damaged index %q were read", got)
		}
		if got := x.capture(); len(got) > 0 {
			t.Errorf("the index was not made anew: %q were read", got)
		}
	}
	// A place where it can't be: no error, and no lasting harm.
	x.opts.Index = filepath.Join(t.TempDir(), "missing", "index")
	if got := x.capture(); !slices.Equal(got, all) {
		t.Errorf("%q were read", got)
	}
}

// TestIndexOfALie: an index that is well formed and wrong must not get a wrong
// key into a checkpoint whose blob is uploaded.
func TestIndexOfALie(t *testing.T) {
	t.Parallel()
	x := newIndexed(t)
	settle()
	x.capture()
	data, err := os.ReadFile(x.opts.Index)
	if err != nil {
		t.Fatal(err)
	}
	lie := &index{file: x.opts.Index}
	for _, e := range parseIndex(data) {
		e.digest = checkpointdb.Digest{1}
		lie.entries = append(lie.entries, e)
	}
	lie.save()
	x.capture()
}

func FuzzIndex(f *testing.F) {
	x := &index{entries: []indexEntry{{"a", stamp{1, 2, 3, 4, 5}, checkpointdb.Digest{6}}, {"b\n", stamp{}, checkpointdb.Digest{}}}}
	f.Add(x.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		known := parseIndex(data)
		if len(known) == 0 {
			return
		}
		again := &index{}
		for _, e := range known {
			again.entries = append(again.entries, e)
		}
		if d := cmp.Diff(known, parseIndex(again.encode()), cmp.AllowUnexported(indexEntry{}, stamp{})); d != "" {
			t.Error(d)
		}
	})
}
