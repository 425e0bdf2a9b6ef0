package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// wantFiles compares all that is in dir with name, content, name, content, …
func wantFiles(t *testing.T, dir string, pairs ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		got = append(got, e.Name(), string(text))
	}
	if fmt.Sprint(got) != fmt.Sprint(pairs) {
		t.Errorf("directory holds %q, want %q", got, pairs)
	}
}

func write(t *testing.T, f *File, text string) {
	t.Helper()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f, err := Create(path)
	must(t, err)
	defer f.Abort()
	write(t, f, "new")
	wantFiles(t, dir, "out.tmp", "new")
	must(t, f.Commit())
	f.Abort()
	wantFiles(t, dir, "out", "new")
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	_, err = Create(path)
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	wantFiles(t, dir, "out", "new")
}

func TestAbort(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "out"))
	must(t, err)
	write(t, f, "new")
	f.Abort()
	f.Abort()
	wantFiles(t, dir)
}

func TestNoDirectory(t *testing.T) {
	if _, err := Create(filepath.Join(t.TempDir(), "none", "out")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestTwoRuns(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	first, err := Create(path)
	must(t, err)
	defer first.Abort()
	write(t, first, "first")
	if _, err := Create(path); !errors.Is(err, errBusy) || !strings.Contains(err.Error(), path) {
		t.Errorf("the second: %v", err)
	}
	wantFiles(t, dir, "out.tmp", "first")
	must(t, first.Commit())
	wantFiles(t, dir, "out", "first")
}

// However many begin at once, one of them writes the file.
func TestManyRuns(t *testing.T) {
	dir := t.TempDir()
	for round := range 50 {
		path := filepath.Join(dir, fmt.Sprintf("out-%02d", round))
		var wg sync.WaitGroup
		var committed atomic.Int64
		for i := range 8 {
			wg.Go(func() {
				f, err := Create(path)
				switch {
				case errors.Is(err, errBusy), errors.Is(err, fs.ErrExist):
					return
				case err != nil:
					t.Error(err)
					return
				}
				fmt.Fprint(f, i)
				if i%3 == 0 {
					f.Abort()
					return
				}
				if err := f.Commit(); err == nil {
					committed.Add(1)
				} else if !errors.Is(err, fs.ErrExist) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		left, err := filepath.Glob(path + "*")
		must(t, err)
		if n := committed.Load(); n > 1 || int(n) != len(left) {
			t.Fatalf("round %d: %d committed, there are %q", round, n, left)
		}
		if len(left) == 0 {
			continue
		}
		if text, err := os.ReadFile(path); err != nil || len(text) != 1 {
			t.Fatalf("round %d: %q, %v", round, text, err)
		}
	}
}

func TestAppearsMeanwhile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f, err := Create(path)
	must(t, err)
	write(t, f, "new")
	put(t, path, "somebody's")
	if err := f.Commit(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	wantFiles(t, dir, "out", "somebody's")
}

func TestLeftover(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	put(t, TemporaryName(path), "of a killed run, and longer")
	f, err := Create(path)
	must(t, err)
	write(t, f, "new")
	must(t, f.Commit())
	wantFiles(t, dir, "out", "new")
}

// A run that is killed in the middle of Commit leaves one file under two names.
// Whatever happens to one of them, its bytes stay.
func TestLeftoverOfCommit(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "out"), filepath.Join(dir, "moved")
	put(t, path, "whole")
	must(t, os.Link(path, TemporaryName(path)))
	if _, err := Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	wantFiles(t, dir, "out", "whole")

	must(t, os.Link(path, TemporaryName(path)))
	must(t, os.Rename(path, moved))
	f, err := Create(path)
	must(t, err)
	write(t, f, "new")
	must(t, f.Commit())
	wantFiles(t, dir, "moved", "whole", "out", "new")
}

func TestInTheWay(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "out"), filepath.Join(dir, "other")
	put(t, other, "somebody's")
	if err := os.Symlink(other, TemporaryName(path)); err != nil {
		t.Skip(err)
	}
	if _, err := Create(path); err == nil || !strings.Contains(err.Error(), TemporaryName(path)) {
		t.Errorf("got %v", err)
	}
	wantFiles(t, dir, "other", "somebody's", "out.tmp", "somebody's")
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	put(t, path, "old")
	if _, err := Replace(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	must(t, os.Chmod(path, 0o640))
	name := path
	if runtime.GOOS != "windows" {
		name = filepath.Join(t.TempDir(), "link")
		must(t, os.Symlink(path, name))
	}
	before, err := os.Stat(path)
	must(t, err)
	f, err := Replace(name)
	must(t, err)
	write(t, f, "new")
	wantFiles(t, dir, "out", "old", "out.tmp", "new")
	must(t, f.Commit())
	wantFiles(t, dir, "out", "new")
	after, err := os.Stat(name)
	must(t, err)
	if after.Mode() != before.Mode() {
		t.Errorf("mode is %v, was %v", after.Mode(), before.Mode())
	}
}

func TestUnnamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "scratch.tmp")
	put(t, path, "of a killed run")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				f, err := Unnamed(path)
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprint(f, i)
				got := make([]byte, 2)
				if n, _ := f.ReadAt(got, 0); string(got[:n]) != fmt.Sprint(i) {
					t.Errorf("wrote %d, read %q", i, got[:n])
				}
				f.Close()
			}
		})
	}
	wg.Wait()
	if runtime.GOOS != "windows" { // there it was never this name
		wantFiles(t, dir)
	}
}

func TestRoom(t *testing.T) {
	dir := t.TempDir()
	if _, known := freeSpace(dir); !known {
		t.Skip("this system does not tell")
	}
	must(t, Room(dir, 1))
	err := Room(dir, math.MaxInt64)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), fmt.Sprint(int64(math.MaxInt64))) {
		t.Errorf("got %v", err)
	}
}
