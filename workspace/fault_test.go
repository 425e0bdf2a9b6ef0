package workspace

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"gocloud.dev/blob"
)

// faulty has files of all sizes that matter, some of them with equal content.
var faulty = tree{
	"empty": file(""), "a": file("a"), "b/a": file("a"), "b/c": script("c"), "d": dir, "l": link("a"),
	"big": file(strings.Repeat("big", bufferSize)), "x": file("x"), "y": file("y"),
}

// Every operation of a capture on the bucket fails once, the first, the second
// and so on. Each failure is an error of the capture, what is in the bucket then
// is whole, and the capture after it succeeds.
func TestCaptureSurfacesEveryFault(t *testing.T) {
	onEachBucket(t, func(t *testing.T, inner *blob.Bucket) {
		root := t.TempDir()
		makeTree(t, root, faulty)
		failed := map[string]int{}
		for n := 1; ; n++ {
			for key := range listBucket(t, inner) {
				must(t, inner.Delete(t.Context(), key))
			}
			bucket, spy := newSpy(t, inner)
			spy.reset(n)
			_, err := Capture(t.Context(), root, bucket, nil)
			checkBucket(t, inner)
			if spy.failed == "" {
				must(t, err)
				break
			}
			failed[spy.failed]++
			if !errors.Is(err, errInjected) {
				t.Fatalf("operation %d, %s: error is %v", n, spy.failed, err)
			}
			spy.reset(0)
			c := mustCapture(t, root, bucket, nil)
			target := filepath.Join(t.TempDir(), "new")
			mustRestore(t, inner, c, target, nil)
			checkTree(t, target, faulty)
		}
		for _, op := range []string{"attributes", "create", "write", "close"} {
			if failed[op] == 0 {
				t.Errorf("%s never failed", op)
			}
		}
	})
}

// The same for a rewind: each failure is an error, before the first change or
// with a marker, and the rewind after it finishes.
func TestRestoreSurfacesEveryFault(t *testing.T) {
	onEachBucket(t, func(t *testing.T, inner *blob.Bucket) {
		bucket, spy := newSpy(t, inner)
		c := manifest(t, inner, faulty)
		is := tree{"a": file("old"), "old/x": file("x"), "b": file("file")}
		failed := map[string]int{}
		for n := 1; ; n++ {
			target := filepath.Join(t.TempDir(), fmt.Sprint(n))
			makeTree(t, target, is)
			spy.reset(n)
			_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true})
			if spy.failed == "" {
				must(t, err)
				checkTree(t, target, faulty)
				break
			}
			failed[spy.failed]++
			if !errors.Is(err, errInjected) {
				t.Fatalf("operation %d, %s: error is %v", n, spy.failed, err)
			}
			_, marked, markErr := UnfinishedRestore(target)
			must(t, markErr)
			if marked != errors.Is(err, ErrRestoreIncomplete) {
				t.Fatalf("operation %d, %s: marked is %v after %v", n, spy.failed, marked, err)
			}
			if !marked {
				checkTree(t, target, is)
			}
			spy.reset(0)
			mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
			checkTree(t, target, faulty)
		}
		for _, op := range []string{"attributes", "open", "read"} {
			if failed[op] == 0 {
				t.Errorf("%s never failed", op)
			}
		}
	})
}
