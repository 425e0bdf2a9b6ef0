package workspace

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"checkpointdb"
)

func TestRestoreChosenPaths(t *testing.T) {
	was := tree{"a": file("a"), "d/b": file("b"), "d/c/e": file("e"), "d/c/l": link("e"), "d2": file("d2"), "empty": dir, "f": file("f")}
	is := tree{"a": file("changed"), "d/b": file("changed"), "d/c/e": file("changed"), "d/c/new": file("new"), "d/new": file("new"), "d2": file("changed"), "new": file("new")}
	for name, c := range map[string]struct {
		paths []string
		want  func(tree)
	}{
		"none":      {[]string{}, func(tree) {}},
		"file":      {[]string{"a"}, func(t tree) { t["a"] = was["a"] }},
		"missing":   {[]string{"f", "empty"}, func(t tree) { t["f"], t["empty"] = was["f"], dir }},
		"deep file": {[]string{"d/c/e"}, func(t tree) { t["d/c/e"] = was["d/c/e"] }},
		"directory": {[]string{"d/c"}, func(t tree) {
			t["d/c/e"], t["d/c/l"] = was["d/c/e"], was["d/c/l"]
			delete(t, "d/c/new")
		}},
		"both": {[]string{"d", "d/c", "d"}, func(t tree) {
			t["d/b"], t["d/c/e"], t["d/c/l"] = was["d/b"], was["d/c/e"], was["d/c/l"]
			delete(t, "d/c/new")
			delete(t, "d/new")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bucket, target := memBucket(t), t.TempDir()
			makeTree(t, target, is)
			mustRestore(t, bucket, manifest(t, bucket, was), target, &RestoreOptions{Rewind: true, Paths: c.paths})
			want := maps.Clone(is)
			c.want(want)
			checkTree(t, target, want)
		})
	}

	bucket := memBucket(t)
	c := manifest(t, bucket, was)
	// Into nothing, with the directories that the paths need and no others; and
	// without Rewind beside what is not chosen.
	target := filepath.Join(t.TempDir(), "new")
	mustRestore(t, bucket, c, target, &RestoreOptions{Paths: []string{"d/c/l"}})
	checkTree(t, target, tree{"d/c/l": link("e")})
	makeTree(t, target, tree{"d/new": file("new")})
	mustRestore(t, bucket, c, target, &RestoreOptions{Paths: []string{"d/c", "a"}})
	checkTree(t, target, tree{"a": was["a"], "d/c/e": was["d/c/e"], "d/c/l": link("e"), "d/new": file("new")})

	for _, p := range []string{"nowhere", "", ".", "..", "a/", "/a", "d/c/e/x", "./a"} {
		_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, Paths: []string{"a", p}})
		if !errors.Is(err, checkpointdb.ErrInvalidArgument) {
			t.Errorf("%q: error is %v", p, err)
		}
	}
	// What is in the way of a chosen path but not chosen itself stays.
	for _, at := range []string{file("file"), link("elsewhere")} {
		target := t.TempDir()
		makeTree(t, target, tree{"d": at, "elsewhere/x": file("x")})
		_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, Paths: []string{"d/b"}})
		checkError(t, err, ErrTargetRefused, "d")
		checkTree(t, target, tree{"d": at, "elsewhere/x": file("x")})
	}
}

// An unfinished restore is finished by one of the same choice, or of everything,
// and by no other: its marker must not go while some of it is missing.
func TestUnfinishedRestoreOfChosenPaths(t *testing.T) {
	was := tree{"a": file("a"), "b": file("b"), "d/c": file("c")}
	bucket, spy := newSpy(t, memBucket(t))
	c := manifest(t, bucket, was)
	for name, x := range map[string]struct {
		first, then []string
		refused     bool
	}{
		"all, then some":   {nil, []string{"a"}, true},
		"some, then other": {[]string{"a"}, []string{"b"}, true},
		"some, then same":  {[]string{"a", "b"}, []string{"b", "a"}, false},
		"some, then all":   {[]string{"a"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(t.TempDir(), "new")
			for n := 1; ; n++ {
				spy.reset(n)
				_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Paths: x.first})
				if errors.Is(err, ErrRestoreIncomplete) {
					break
				}
				if !errors.Is(err, errInjected) {
					t.Fatalf("error is %v", err)
				}
			}
			spy.reset(0)
			_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, Paths: x.then})
			_, marked, markErr := UnfinishedRestore(target)
			must(t, markErr)
			if x.refused {
				checkError(t, err, ErrRestoreUnfinished, "")
			} else {
				must(t, err)
			}
			if marked != x.refused {
				t.Errorf("marked is %v", marked)
			}
		})
	}
}

// What a rewind destroys is captured first, and comes back when that is restored.
func TestUndoOfARewind(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	is := tree{"a": script("mine"), "only/here": file("x"), "l": link("a"), ".env": file("secret")}
	makeTree(t, target, is)
	c := manifest(t, bucket, tree{"a": file("theirs"), "b": file("b")})
	var before checkpointdb.Checkpoint
	calls := 0
	opts := &RestoreOptions{Rewind: true, Before: func(ctx context.Context, planned Report) error {
		calls++
		checkTree(t, target, is)
		if diff := gocmp.Diff(Report{Written: []string{"b"}, Replaced: []string{"a"}, Removed: []string{"l", "only", "only/here"}, Bytes: 7}, planned); diff != "" {
			t.Errorf("planned (-want +got):\n%s", diff)
		}
		captured, err := Capture(ctx, target, bucket, nil)
		before = checkpointdb.Checkpoint{ID: "before", Files: captured.Files}
		return err
	}}
	mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true, DryRun: true, Before: opts.Before})
	if calls != 0 {
		t.Error("a dry run called Before")
	}
	mustRestore(t, bucket, c, target, opts)
	checkTree(t, target, tree{"a": file("theirs"), "b": file("b"), ".env": file("secret")})
	mustRestore(t, bucket, c, target, opts) // destroys nothing
	if calls != 1 {
		t.Errorf("Before was called %d times", calls)
	}
	mustRestore(t, bucket, before, target, &RestoreOptions{Rewind: true})
	checkTree(t, target, is)

	// When it fails nothing changes.
	opts.Before = func(context.Context, Report) error { return errInjected }
	_, err := Restore(t.Context(), bucket, c, target, opts)
	if !errors.Is(err, errInjected) {
		t.Errorf("error is %v", err)
	}
	checkTree(t, target, is)
}

// Who finishes an interrupted rewind has nothing whole to capture.
func TestBeforeIsNotCalledForTheRest(t *testing.T) {
	inner, target := memBucket(t), t.TempDir()
	bucket, spy := newSpy(t, inner)
	makeTree(t, target, tree{"a": file("old"), "z": file("z")})
	c := manifest(t, inner, tree{"a": file("a"), "b": file("b")})
	calls := 0
	opts := &RestoreOptions{Rewind: true, Before: func(context.Context, Report) error { calls++; return nil }}
	spy.reset(3) // two look-ups, then a file
	_, err := Restore(t.Context(), bucket, c, target, opts)
	checkError(t, err, ErrRestoreIncomplete, "")
	spy.reset(0)
	makeTree(t, target, tree{"z": file("z again")})
	mustRestore(t, bucket, c, target, opts)
	if calls != 1 {
		t.Errorf("Before was called %d times", calls)
	}
}

func TestRestoreProgress(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	makeTree(t, target, tree{"old": file("old"), "d": file("not a directory"), "same": file("same")})
	big := strings.Repeat("big", 1<<20)
	c := manifest(t, bucket, tree{"big": file(big), "d/l": link("x"), "d/f": file("f"), "same": file("same"), "e": dir})
	var seen []RestoreProgress
	var running atomic.Int32
	opts := &RestoreOptions{Rewind: true, Progress: func(p RestoreProgress) {
		if running.Add(1) != 1 {
			t.Error("two at a time")
		}
		seen = append(seen, p)
		running.Add(-1)
	}}
	mustRestore(t, bucket, c, target, opts)
	// Removed: old, d. Made: d, e. Written: big, d/f, d/l.
	want := RestoreProgress{7, 7, int64(len(big)) + 1, int64(len(big)) + 1}
	if len(seen) == 0 || seen[len(seen)-1] != want {
		t.Fatalf("progress %+v, want %+v at the end", seen, want)
	}
	for i, p := range seen {
		if i > 0 && (p.Done < seen[i-1].Done || p.Bytes < seen[i-1].Bytes) {
			t.Errorf("progress went back: %+v", seen)
		}
	}

	// What fails is done too, but its bytes are not counted.
	seen = nil
	corrupt(t, bucket, keyOf(big))
	must(t, os.Remove(filepath.Join(target, "big")))
	_, err := Restore(t.Context(), bucket, c, target, opts)
	checkError(t, err, ErrRestoreIncomplete, "big")
	if want := (RestoreProgress{1, 1, 0, int64(len(big))}); seen[len(seen)-1] != want {
		t.Errorf("progress %+v, want %+v at the end", seen, want)
	}
}

// Reports never run two at a time, and not more often than promised.
func TestProgressIsSerial(t *testing.T) {
	var p progress
	var running, reports atomic.Int32
	p.start(func(RestoreProgress) {
		if running.Add(1) != 1 {
			t.Error("two at a time")
		}
		time.Sleep(progressPause / 10)
		running.Add(-1)
		reports.Add(1)
	}, RestoreProgress{})
	p.last = time.Time{} // long ago
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { p.add(1, 1) })
	}
	all.Wait()
	if n := reports.Load(); n != 1 {
		t.Errorf("%d reports at once", n)
	}
	p.end()
	if want := (RestoreProgress{Done: 8, Bytes: 8}); p.now != want {
		t.Errorf("progress %+v, want %+v", p.now, want)
	}
}
