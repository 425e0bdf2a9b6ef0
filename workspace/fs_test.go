package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"pgregory.net/rapid"

	"checkpointdb"
	"checkpointdb/internal/passblob"
)

// viewed has what a view can get wrong: directories that only paths imply, names
// that sort before '/', links of all kinds that lead somewhere.
var viewed = tree{
	"a": file("a"), "d/x": file("x"), "d-": file("-"), "d.": file("."), "d/run": script("#!/bin/sh\n"),
	"d/e/f/g": file("deep"), "empty": file(""), "full": dir, "full/x": file("x"), "hollow": dir, "e/hollow": dir,
	"big": file(strings.Repeat("0123456789", 30_000)), "ä \x1b\n": file("odd"),
	"l/file": link("../a"), "l/dir": link("../d"), "l/link": link("file"), "l/far": link("dir/e/../../d/./e//f/g"),
	"l/self": link("."), "l/up": link("self/.."), "l/slash": link("dir/"),
}

// elsewhere are links that lead nowhere a view could follow.
var elsewhere = tree{
	"dangling": link("no/where"), "absolute": link("/a"), "out": link(".."),
	"loop": link("loop"), "ping": link("pong"), "pong": link("ping"), "below": link("a/.."), "slash": link("a/"),
	"back": link("../c/a"),
}

func mustFS(t testing.TB, bucket *blob.Bucket, c checkpointdb.Checkpoint) fs.FS {
	t.Helper()
	fsys, err := FS(t.Context(), c, bucket)
	must(t, err)
	return fsys
}

func TestFSPassesTestFS(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		content := maps.Clone(viewed)
		content["big"] = file(strings.Repeat("0123456789", 100)) // TestFS reads it byte by byte, often
		c := manifest(t, bucket, content)
		c.CreatedAt = time.Date(2026, 11, 29, 1, 2, 3, 4, time.UTC)
		must(t, fstest.TestFS(mustFS(t, bucket, c), slices.Collect(maps.Keys(content.withParents()))...))
		must(t, fstest.TestFS(mustFS(t, bucket, checkpointdb.Checkpoint{ID: "empty"})))
	})
}

// Whatever a checkpoint holds, its view shows what a restore makes of it: the
// same tree, the same copy, and every name leads where package os says that it
// leads in the restored directory.
func TestFSOfAnyCheckpoint(t *testing.T) {
	base, bucket := t.TempDir(), memBucket(t)
	names := []string{"a", "b", "a-b", "a.b", " ", "\x1b", "ä"}
	targets := []string{".", "..", "a", "b", "../a", "b/../a", "a/b", "a-b/..", "../..", "a/", "b//a/.", "/a", " /../../a.b"}
	rapid.Check(t, func(rt *rapid.T) {
		content := tree{}
		var fill func(at string, depth int)
		fill = func(at string, depth int) {
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 5, rapid.ID[string]).Draw(rt, "names") {
				p := join(at, name)
				switch rapid.IntRange(0, 9).Draw(rt, "kind") {
				case 0, 1, 2:
					content[p] = link(rapid.SampledFrom(targets).Draw(rt, "target"))
				case 3:
					content[p] = script("run")
				case 4, 5:
					content[p] = file(rapid.SampledFrom([]string{"", "x", "some text"}).Draw(rt, "content"))
				case 6:
					content[p] = dir
				default:
					if depth < 3 {
						fill(p, depth+1)
					}
				}
			}
		}
		fill("", 0)
		c := manifest(t, bucket, content)
		c.Files = rapid.Permutation(c.Files).Draw(rt, "order")
		run, err := os.MkdirTemp(base, "run")
		must(t, err)
		defer os.RemoveAll(run)
		restored, copied := filepath.Join(run, "restored"), filepath.Join(run, "copied")
		mustRestore(t, bucket, c, restored, nil)
		fsys := mustFS(t, bucket, c)

		must(t, os.CopyFS(copied, fsys))
		if diff := gocmp.Diff(readTree(t, restored), readTree(t, copied)); diff != "" {
			rt.Fatalf("copied (-restored +copied):\n%s", diff)
		}

		root, err := os.OpenRoot(restored)
		must(t, err)
		defer root.Close()
		all := content.withParents()
		paths := slices.Sorted(maps.Keys(all))
		for range 20 {
			name := rapid.SampledFrom(append(paths, ".")).Draw(rt, "path")
			for range rapid.IntRange(0, 2).Draw(rt, "more") {
				name = name + "/" + rapid.SampledFrom(names).Draw(rt, "name")
			}
			name = strings.TrimPrefix(name, "./")
			for what, stat := range map[string][2]func(string) (fs.FileInfo, error){
				"stat":  {root.Stat, fsys.(fs.StatFS).Stat},
				"lstat": {root.Lstat, fsys.(fs.ReadLinkFS).Lstat},
			} {
				want, wantErr := stat[0](name)
				got, gotErr := stat[1](name)
				if (wantErr == nil) != (gotErr == nil) {
					rt.Fatalf("%s %q is %v, in the restored directory %v", what, name, gotErr, wantErr)
				}
				if wantErr != nil {
					continue
				}
				if g, w := got.Mode().Type(), want.Mode().Type(); g != w {
					rt.Fatalf("%s %q is a %s, in the restored directory a %s", what, name, g, w)
				}
				if !want.IsDir() && (got.Size() != want.Size() || isExecutable(got.Mode()) != isExecutable(want.Mode())) {
					rt.Fatalf("%s %q is %s, in the restored directory %s", what, name, fs.FormatFileInfo(got), fs.FormatFileInfo(want))
				}
			}
		}

		// TestFS opens every link, so it gets those that lead somewhere, and of
		// these only the ones that do not need one of the others.
		for again := true; again; {
			again = false
			for p, what := range content {
				if _, err := fs.Stat(fsys, p); err != nil && strings.HasPrefix(what, "link ") {
					delete(content, p)
					again = true
				}
			}
			fsys = mustFS(t, bucket, manifest(t, bucket, content))
		}
		if err := fstest.TestFS(fsys, slices.Collect(maps.Keys(content))...); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestFSCopyIsARestore(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		all := maps.Clone(viewed)
		maps.Copy(all, elsewhere)
		c := manifest(t, bucket, all)
		target := filepath.Join(t.TempDir(), "copy")
		must(t, os.CopyFS(target, mustFS(t, bucket, c)))
		checkTree(t, target, all)
		report := mustRestore(t, bucket, c, target, nil)
		if report.Unchanged != len(c.Files) {
			t.Errorf("a restore over the copy changes something: %+v", report)
		}
	})
}

func TestFSInfo(t *testing.T) {
	bucket := memBucket(t)
	c := manifest(t, bucket, viewed)
	c.CreatedAt = time.Date(2026, 11, 29, 1, 2, 3, 4, time.UTC)
	fsys := mustFS(t, bucket, c)
	for i, e := range c.Files { // the view has its own
		defer func() { c.Files[i] = e }()
		c.Files[i] = checkpointdb.Entry{Path: "other", Kind: checkpointdb.KindDir}
	}
	for p, want := range map[string]string{
		".": "dr-xr-xr-x 0 2026-11-29 01:02:03 ./", "d": "dr-xr-xr-x 0 2026-11-29 01:02:03 d/",
		"hollow": "dr-xr-xr-x 0 2026-11-29 01:02:03 hollow/", "a": "-r--r--r-- 1 2026-11-29 01:02:03 a",
		"d/run": "-r-xr-xr-x 10 2026-11-29 01:02:03 run", "l/far": "Lrwxrwxrwx 22 2026-11-29 01:02:03 far",
		"l/dir/x": "-r--r--r-- 1 2026-11-29 01:02:03 x",
	} {
		info, err := fs.Lstat(fsys, p)
		must(t, err)
		if got := fs.FormatFileInfo(info); got != want {
			t.Errorf("%q is %s, want %s", p, got, want)
		}
		if !info.ModTime().Equal(c.CreatedAt) {
			t.Errorf("time of %q is %s", p, info.ModTime())
		}
	}
	for p, want := range map[string]any{
		"d/run": checkpointdb.Entry{Path: "d/run", Kind: checkpointdb.KindFile, BlobKey: keyOf("#!/bin/sh\n"), Size: 10, Executable: true},
		"d":     nil, ".": nil, "hollow": checkpointdb.Entry{Path: "hollow", Kind: checkpointdb.KindDir},
	} {
		info, err := fs.Stat(fsys, p)
		must(t, err)
		if diff := gocmp.Diff(want, info.Sys()); diff != "" {
			t.Errorf("Sys of %q (-want +got):\n%s", p, diff)
		}
	}
	if info, err := fs.Stat(fsys, "l/file"); err != nil || info.Name() != "file" || info.Mode() != 0o444 {
		t.Errorf("behind the link: %v, %v", info, err)
	}
	if target, err := fs.ReadLink(fsys, "l/far"); err != nil || target != "dir/e/../../d/./e//f/g" {
		t.Errorf("target %q, %v", target, err)
	}
	if data, err := fs.ReadFile(fsys, "l/far"); err != nil || string(data) != "deep" {
		t.Errorf("behind the link: %q, %v", data, err)
	}
}

// No link leads out, none is followed for ever, and all are shown.
func TestFSLinksThatLeadNowhere(t *testing.T) {
	bucket := memBucket(t)
	content := tree{"a": file("a"), "sub/a": file("b")}
	maps.Copy(content, elsewhere)
	for i := range maxHops + 2 { // c0 is the file after 0 links, c1 after one
		content[fmt.Sprintf("c%d", i)] = link(fmt.Sprintf("c%d", i-1))
	}
	content["c0"] = file("end")
	// Each link of this chain doubles what is left to walk.
	for i := range maxHops {
		content[fmt.Sprintf("w%d", i)] = link(fmt.Sprintf("w%d/w%d", i+1, i+1))
	}
	content[fmt.Sprintf("w%d", maxHops)] = link(".")
	fsys := mustFS(t, bucket, manifest(t, bucket, content))
	list, err := fs.ReadDir(fsys, ".")
	must(t, err)
	if len(list) != len(content) { // sub stands for the file in it
		t.Errorf("%d names, want %d", len(list), len(content))
	}
	nowhere := slices.Collect(maps.Keys(elsewhere))
	nowhere = append(nowhere, fmt.Sprintf("c%d", maxHops+1), "w0", "absolute/a", "out/c/a", "loop/a", "a/b", "sub/no", "sub/a/b")
	for _, p := range nowhere {
		for op, call := range map[string]func() error{
			"open":     func() error { _, err := fsys.Open(p); return err },
			"stat":     func() error { _, err := fs.Stat(fsys, p); return err },
			"readfile": func() error { _, err := fs.ReadFile(fsys, p); return err },
			"readdir":  func() error { _, err := fs.ReadDir(fsys, p); return err },
		} {
			var pathErr *fs.PathError
			if err := call(); !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &pathErr) || pathErr.Path != p || pathErr.Op != op {
				t.Errorf("%s %q: error is %v", op, p, err)
			}
		}
		if strings.Contains(p, "/") {
			continue
		}
		if info, err := fs.Lstat(fsys, p); err != nil || info.Mode().Type() != fs.ModeSymlink {
			t.Errorf("lstat %q is %v, %v", p, info, err)
		}
		target, err := fs.ReadLink(fsys, p)
		if err != nil || link(target) != content[p] {
			t.Errorf("readlink %q is %q, %v", p, target, err)
		}
	}
	if data, err := fs.ReadFile(fsys, fmt.Sprintf("c%d", maxHops)); err != nil || string(data) != "end" {
		t.Errorf("after %d links: %q, %v", maxHops, data, err)
	}
	for p, link := range map[string]string{"out": "out", "absolute/a": "absolute", "back": "back"} {
		if _, err := fs.Stat(fsys, p); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("link %q leads out", link)) {
			t.Errorf("stat %q does not name the link: %v", p, err)
		}
	}
}

func TestFSRefuses(t *testing.T) {
	bucket := memBucket(t)
	c := manifest(t, bucket, viewed)
	fsys := mustFS(t, bucket, c)
	for _, p := range []string{"", "/", "/a", "a/", "d//x", "d/./x", "../a", "d/../a", "./a", "\xff"} {
		for what, call := range map[string]func() error{
			"Open":     func() error { _, err := fsys.Open(p); return err },
			"Stat":     func() error { _, err := fs.Stat(fsys, p); return err },
			"Lstat":    func() error { _, err := fs.Lstat(fsys, p); return err },
			"ReadLink": func() error { _, err := fs.ReadLink(fsys, p); return err },
			"ReadDir":  func() error { _, err := fs.ReadDir(fsys, p); return err },
			"ReadFile": func() error { _, err := fs.ReadFile(fsys, p); return err },
		} {
			if err := call(); !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s(%q): error is %v", what, p, err)
			}
		}
	}
	for what, err := range map[string]error{
		"ReadLink of a file":    second(fs.ReadLink(fsys, "a")),
		"ReadLink of a dir":     second(fs.ReadLink(fsys, "d")),
		"ReadDir of a file":     second(fs.ReadDir(fsys, "a")),
		"ReadFile of a dir":     second(fs.ReadFile(fsys, "d")),
		"ReadFile of no file":   second(fs.ReadFile(fsys, "no")),
		"ReadDir of a file's":   second(fs.ReadDir(fsys, "a/b")),
		"Open beneath a file's": second(fsys.Open("l/file/b")),
	} {
		if _, ok := errors.AsType[*fs.PathError](err); !ok {
			t.Errorf("%s: error is %v", what, err)
		}
	}
	c.Files = append(c.Files, checkpointdb.Entry{Path: "../out", Kind: checkpointdb.KindDir})
	_, err := FS(t.Context(), c, bucket)
	checkError(t, err, checkpointdb.ErrInvalidEntry, "../out")
}

func second[T any](_ T, err error) error { return err }

func TestFSOpenFiles(t *testing.T) {
	onEachBucket(t, func(t *testing.T, inner *blob.Bucket) {
		bucket, spy := newRangeSpy(t, inner)
		content := strings.TrimPrefix(viewed["big"], "file ")
		c := manifest(t, inner, viewed)
		fsys := mustFS(t, bucket, c)
		must(t, fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if _, err := d.Info(); err != nil {
				return err
			}
			f, err := fsys.Open(p)
			if err != nil {
				return err
			}
			if _, err := f.Stat(); err != nil {
				return err
			}
			return f.Close()
		}))
		spy.check(t, 0)

		f := mustOpen(t, fsys, "big")
		read := func(n int, want string, wantErr error) {
			t.Helper()
			p := make([]byte, n)
			got, err := io.ReadFull(f, p)
			if string(p[:got]) != want || err != wantErr {
				t.Fatalf("read %q, %v, want %q, %v", p[:got], err, want, wantErr)
			}
		}
		seek := func(offset int64, whence int, want int64) {
			t.Helper()
			if got, err := f.Seek(offset, whence); err != nil || got != want {
				t.Fatalf("at %d, %v, want %d", got, err, want)
			}
		}
		size := int64(len(content))
		read(5, "01234", nil)
		seek(0, io.SeekEnd, size)
		seek(5, io.SeekStart, 5)
		read(2, "56", nil)
		spy.check(t, 7, "0+all") // seeking away and back is for nothing
		seek(-2, io.SeekEnd, size-2)
		read(3, "89", io.ErrUnexpectedEOF)
		seek(1, io.SeekCurrent, size+1)
		read(1, "", io.EOF)
		seek(11, io.SeekStart, 11)
		read(2, "12", nil)
		spy.check(t, 4, fmt.Sprintf("%d+2", size-2), fmt.Sprintf("11+%d", size-11))
		for _, c := range []struct {
			offset int64
			whence int
		}{{-1, io.SeekStart}, {-14, io.SeekCurrent}, {-size - 1, io.SeekEnd}, {0, 3}, {1<<63 - 1, io.SeekCurrent}} {
			if _, err := f.Seek(c.offset, c.whence); !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("seek %+v: error is %v", c, err)
			}
		}
		read(1, "3", nil) // where it was
		spy.check(t, 1)

		at := make([]byte, 4)
		if n, err := f.ReadAt(at, 20_003); n != 4 || err != nil || string(at) != "3456" {
			t.Errorf("%q, %v", at[:n], err)
		}
		if n, err := f.ReadAt(at, size-2); n != 2 || err != io.EOF || string(at[:n]) != "89" {
			t.Errorf("%q, %v", at[:n], err)
		}
		spy.check(t, 6, "20003+4", fmt.Sprintf("%d+2", size-2))
		if n, err := f.ReadAt(at, size); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
		if _, err := f.ReadAt(at, -1); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("error is %v", err)
		}
		spy.check(t, 0)
		read(1, "4", nil)

		must(t, f.Close())
		for what, err := range map[string]error{
			"Read": second(f.Read(at)), "ReadAt": second(f.ReadAt(at, 0)), "Seek": second(f.Seek(0, 0)), "Close": f.Close(),
		} {
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s after Close: error is %v", what, err)
			}
		}
		d, err := fsys.Open("d")
		must(t, err)
		if _, err := d.Read(at); !errors.Is(err, errIsDirectory) {
			t.Errorf("read of a directory: error is %v", err)
		}
		must(t, d.Close())
		must(t, second(fs.ReadFile(fsys, "d/x")))
		if _, err := d.(fs.ReadDirFile).ReadDir(-1); !errors.Is(err, fs.ErrClosed) || !errors.Is(d.Close(), fs.ErrClosed) {
			t.Errorf("ReadDir after Close: error is %v", err)
		}
		if open := spy.openReaders(); open != 0 {
			t.Errorf("%d readers of the bucket are still open", open)
		}
	})
}

// viewFile has all that an open file of a view can do.
type viewFile interface {
	fs.File
	io.ReadSeeker
	io.ReaderAt
}

func mustOpen(t testing.TB, fsys fs.FS, name string) viewFile {
	t.Helper()
	f, err := fsys.Open(name)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f.(viewFile)
}

// Every way to read all of a file notices every kind of damage, and none gives
// out all of the bytes.
func TestFSDamagedBlobs(t *testing.T) {
	const content = "some content"
	damages := map[string]struct {
		code   checkpointdb.Code
		damage func(t *testing.T, bucket *blob.Bucket, key string)
	}{
		"flipped": {checkpointdb.ErrBlobDamaged, func(t *testing.T, bucket *blob.Bucket, key string) {
			corrupt(t, bucket, checkpointdb.BlobKey(key))
		}},
		"short": {checkpointdb.ErrBlobDamaged, func(t *testing.T, bucket *blob.Bucket, key string) {
			must(t, bucket.WriteAll(t.Context(), key, []byte("some"), nil))
		}},
		"empty": {checkpointdb.ErrBlobDamaged, func(t *testing.T, bucket *blob.Bucket, key string) {
			must(t, bucket.WriteAll(t.Context(), key, nil, nil))
		}},
		"long": {checkpointdb.ErrBlobDamaged, func(t *testing.T, bucket *blob.Bucket, key string) {
			must(t, bucket.WriteAll(t.Context(), key, []byte(content+"!"), nil))
		}},
		"missing": {checkpointdb.ErrBlobMissing, func(t *testing.T, bucket *blob.Bucket, key string) {
			must(t, bucket.Delete(t.Context(), key))
		}},
	}
	reads := map[string]func(t *testing.T, fsys fs.FS) (int, error){
		"ReadFile": func(t *testing.T, fsys fs.FS) (int, error) {
			data, err := fs.ReadFile(fsys, "d/x")
			return len(data), err
		},
		"ReadAll": func(t *testing.T, fsys fs.FS) (int, error) {
			data, err := io.ReadAll(mustOpen(t, fsys, "d/x"))
			return len(data), err
		},
		"CopyN": func(t *testing.T, fsys fs.FS) (int, error) {
			n, err := io.CopyN(io.Discard, mustOpen(t, fsys, "d/x"), int64(len(content)))
			return int(n), err
		},
		"ReadAt": func(t *testing.T, fsys fs.FS) (int, error) {
			return mustOpen(t, fsys, "d/x").ReadAt(make([]byte, 100), 0)
		},
		"after Seek": func(t *testing.T, fsys fs.FS) (int, error) {
			f := mustOpen(t, fsys, "d/x")
			_, _ = f.Read(make([]byte, 3))
			_, err := f.Seek(0, io.SeekStart)
			must(t, err)
			data, err := io.ReadAll(f)
			return len(data), err
		},
		"again": func(t *testing.T, fsys fs.FS) (int, error) { // an error does not wear off
			f := mustOpen(t, fsys, "d/x")
			n, _ := io.Copy(io.Discard, f)
			m, err := io.Copy(io.Discard, f)
			return int(n + m), err
		},
	}
	for damage, d := range damages {
		t.Run(damage, func(t *testing.T) {
			onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
				c := manifest(t, bucket, tree{"d/x": file(content)})
				d.damage(t, bucket, string(keyOf(content)))
				fsys := mustFS(t, bucket, c)
				for how, read := range reads {
					n, err := read(t, fsys)
					checkView(t, how, err, d.code)
					if n >= len(content) {
						t.Errorf("%s: read %d bytes", how, n)
					}
				}
				// Of a part only the size of the whole is known to be right.
				if damage == "flipped" {
					return
				}
				n, err := mustOpen(t, fsys, "d/x").ReadAt(make([]byte, 3), 7)
				checkView(t, "ReadAt of a part", err, d.code)
				f := mustOpen(t, fsys, "d/x")
				_, seekErr := f.Seek(7, io.SeekStart)
				must(t, seekErr)
				m, err := f.Read(make([]byte, 3))
				checkView(t, "Read of a part", err, d.code)
				if n+m != 0 {
					t.Errorf("read %d bytes", n+m)
				}
			})
		})
	}
}

// Servers refuse a range beyond the end, and a connection can break without a
// word. Neither may look like the end of the file, nor like a server's fault.
func TestFSOddServers(t *testing.T) {
	inner := memBucket(t)
	bucket, spy := newRangeSpy(t, inner)
	c := manifest(t, inner, tree{"d/x": file("some content")})
	fsys := mustFS(t, bucket, c)
	spy.cut = 3
	for _, offset := range []int64{0, 5} {
		f := mustOpen(t, fsys, "d/x")
		must(t, second(f.Seek(offset, io.SeekStart)))
		n, err := io.Copy(io.Discard, f)
		checkView(t, "cut", err, checkpointdb.ErrBlobDamaged)
		m, err := f.ReadAt(make([]byte, 5), offset)
		checkView(t, "cut", err, checkpointdb.ErrBlobDamaged)
		if n > 3 || m > 3 {
			t.Errorf("read %d and %d bytes", n, m)
		}
	}
	spy.cut, spy.strict = 0, true
	must(t, second(mustOpen(t, fsys, "d/x").ReadAt(make([]byte, 5), 7)))
	must(t, inner.WriteAll(t.Context(), string(keyOf("some content")), []byte("some"), nil))
	_, err := mustOpen(t, fsys, "d/x").ReadAt(make([]byte, 5), 7)
	checkView(t, "refused", err, checkpointdb.ErrBlobDamaged)
}

// checkView fails unless err is what a view says about the blob of d/x.
func checkView(t *testing.T, how string, err error, code checkpointdb.Code) {
	t.Helper()
	pathErr, ok := errors.AsType[*fs.PathError](err)
	if !ok || pathErr.Path != "d/x" || errors.Is(err, fs.ErrNotExist) || checkpointdb.CodeOf(err) != code {
		t.Errorf("%s: error is %v", how, err)
	}
	if e, ok := errors.AsType[*checkpointdb.BlobError](err); !ok || e.CheckpointID != "c" || e.Path != "d/x" || e.Key != keyOf("some content") {
		t.Errorf("%s: detail is %+v", how, e)
	}
}

// An empty file needs its blob as well, or a view would show what no restore
// could make.
func TestFSEmptyFile(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		c := manifest(t, bucket, tree{"empty": file(""), "wrong": file("")})
		c.Files[1].BlobKey = keyOf("x")
		must(t, bucket.WriteAll(t.Context(), string(keyOf("x")), nil, nil))
		fsys := mustFS(t, bucket, c)
		read := func(name string) []error {
			_, err := fs.ReadFile(fsys, name)
			_, err2 := io.ReadAll(mustOpen(t, fsys, name))
			return []error{err, err2}
		}
		if errs := read("empty"); errors.Join(errs...) != nil {
			t.Errorf("errors are %v", errs)
		}
		for _, err := range read("wrong") {
			checkError(t, err, checkpointdb.ErrBlobDamaged, "wrong")
		}
		must(t, bucket.Delete(t.Context(), string(keyOf(""))))
		for _, err := range read("empty") {
			checkError(t, err, checkpointdb.ErrBlobMissing, "empty")
		}
	})
}

// Every operation on the bucket fails once; each failure is an error of the copy.
func TestFSSurfacesEveryFault(t *testing.T) {
	inner := memBucket(t)
	bucket, spy := newSpy(t, inner)
	fsys := mustFS(t, bucket, manifest(t, inner, faulty))
	failed := map[string]int{}
	for n := 1; ; n++ {
		target := filepath.Join(t.TempDir(), fmt.Sprint(n))
		spy.reset(n)
		err := os.CopyFS(target, fsys)
		if spy.failed == "" {
			must(t, err)
			checkTree(t, target, faulty)
			break
		}
		failed[spy.failed]++
		if !errors.Is(err, errInjected) {
			t.Fatalf("operation %d, %s: error is %v", n, spy.failed, err)
		}
	}
	if failed["open"] == 0 || failed["read"] == 0 {
		t.Errorf("failed only %v", failed)
	}
}

func TestFSContext(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		c := manifest(t, bucket, viewed)
		ctx, cancel := context.WithCancel(t.Context())
		fsys, err := FS(ctx, c, bucket)
		must(t, err)
		begun, fresh := mustOpen(t, fsys, "big"), mustOpen(t, fsys, "big")
		must(t, second(begun.Read(make([]byte, 1))))
		cancel()
		for what, err := range map[string]error{
			"begun": second(begun.Read(make([]byte, 1))), "fresh": second(fresh.Read(make([]byte, 1))),
			"ReadAt": second(fresh.ReadAt(make([]byte, 1), 1)), "ReadFile": second(fs.ReadFile(fsys, "big")),
		} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error is %v", what, err)
			}
		}
		must(t, second(fs.Stat(fsys, "l/far")))
		must(t, second(fs.ReadDir(fsys, "d")))
	})
}

func TestFSFromManyGoroutines(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		fsys := mustFS(t, bucket, manifest(t, bucket, viewed))
		want := strings.TrimPrefix(viewed["big"], "file ")
		shared := mustOpen(t, fsys, "big")
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := fs.WalkDir(fsys, ".", func(_ string, d fs.DirEntry, err error) error { return err }); err != nil {
					t.Error(err)
				}
				if data, err := fs.ReadFile(fsys, "big"); err != nil || string(data) != want {
					t.Errorf("%d bytes, %v", len(data), err)
				}
				p := make([]byte, 1000)
				if _, err := shared.ReadAt(p, int64(1000*i)); err != nil || string(p) != want[1000*i:1000*i+1000] {
					t.Errorf("%q, %v", p, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestFSServesHTTP(t *testing.T) {
	onEachBucket(t, func(t *testing.T, inner *blob.Bucket) {
		bucket, spy := newRangeSpy(t, inner)
		content := strings.Repeat("0123456789", 1_000_000)
		c := manifest(t, inner, tree{
			"site/index.html": file("<p>hello"), "site/big.txt": file(content), "site/unknown": file("plain text"), "site/sub/x.txt": file("x"),
			"link.txt": link("site/big.txt"), "out.txt": link("../out.txt"), "bad.txt": file("damaged"), "gone.txt": file("gone"),
		})
		c.CreatedAt = time.Date(2026, 11, 29, 1, 2, 3, 4, time.UTC)
		corrupt(t, inner, keyOf("damaged"))
		must(t, inner.Delete(t.Context(), string(keyOf("gone"))))
		server := httptest.NewServer(http.FileServerFS(mustFS(t, bucket, c)))
		defer server.Close()
		client := server.Client()
		defer client.CloseIdleConnections()
		do := func(method, path string, header ...string) (int, http.Header, string, error) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
			must(t, err)
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			resp, err := client.Do(req)
			must(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return resp.StatusCode, resp.Header, string(body), err
		}
		for _, c := range []struct {
			method, path string
			header       []string
			status       int
			body         string
			atMost       int64 // bytes of the bucket that it may take
		}{
			{"GET", "/site/", nil, 200, "<p>hello", 8},
			{"GET", "/site/unknown", nil, 200, "plain text", 20}, // sniffed, then sent
			{"HEAD", "/site/big.txt", nil, 200, "", 0},
			{"GET", "/site/big.txt", nil, 200, content, int64(len(content))},
			{"GET", "/link.txt", []string{"Range", "bytes=5000003-5000007"}, 206, "34567", 1 << 16},
			{"GET", "/site/big.txt", []string{"Range", "bytes=-3"}, 206, "789", 3},
			{"GET", "/site/big.txt", []string{"Range", "bytes=10000000-"}, 416, "invalid range: failed to overlap\n", 0},
			{"GET", "/site/big.txt", []string{"If-Modified-Since", "Sun, 29 Nov 2026 01:02:03 GMT"}, 304, "", 0},
			{"GET", "/out.txt", nil, 404, "404 page not found\n", 0},
			{"GET", "/no", nil, 404, "404 page not found\n", 0},
			{"GET", "/site/../../../etc/passwd", nil, 404, "404 page not found\n", 0},
		} {
			status, header, body, err := do(c.method, c.path, c.header...)
			if status != c.status || body != c.body || err != nil {
				t.Errorf("%s %s: %d, %d bytes %.40q, %v", c.method, c.path, status, len(body), body, err)
			}
			if got := header.Get("Last-Modified"); status == 200 && got != "Sun, 29 Nov 2026 01:02:03 GMT" {
				t.Errorf("%s %s: modified %q", c.method, c.path, got)
			}
			if _, n := spy.take(); n > c.atMost {
				t.Errorf("%s %s: %d bytes of the bucket, want at most %d", c.method, c.path, n, c.atMost)
			}
		}
		// Too late for another status, but the client sees that not all has come.
		for _, path := range []string{"/bad.txt", "/gone.txt"} {
			if status, _, body, err := do("GET", path); err == nil {
				t.Errorf("%s: %d, %q and no error", path, status, body)
			}
		}
		status, _, body, err := do("GET", "/site/sub/")
		if status != 200 || err != nil || !strings.Contains(body, `<a href="x.txt">x.txt</a>`) {
			t.Errorf("listing: %d, %q, %v", status, body, err)
		}
		server.Close()
		if open := spy.openReaders(); open != 0 {
			t.Errorf("%d readers of the bucket are still open", open)
		}
	})
}

// A path of very many parts costs no more than its length, to check, to view and
// to look up.
func TestFSDeepPaths(t *testing.T) {
	deep := strings.Repeat("a/", 300_000)
	c := checkpointdb.Checkpoint{ID: "c"}
	for i := range 5 {
		c.Files = append(c.Files, checkpointdb.Entry{Path: deep + fmt.Sprint(i), Kind: checkpointdb.KindDir},
			checkpointdb.Entry{Path: fmt.Sprintf("a/a%d", i), Kind: checkpointdb.KindDir})
	}
	start := time.Now()
	fsys := mustFS(t, memBucket(t), c)
	for i := range 5 {
		must(t, second(fs.Stat(fsys, deep+fmt.Sprint(i))))
	}
	if took := time.Since(start); took > 20*time.Second { // a second under load; hours when it is quadratic
		t.Errorf("took %s", took)
	}
}

// BenchmarkFS makes and uses the view of 50,000 files.
func BenchmarkFS(b *testing.B) {
	bucket := memBucket(b)
	c := checkpointdb.Checkpoint{ID: "c"}
	for i := range 50_000 {
		c.Files = append(c.Files, checkpointdb.Entry{
			Path: fmt.Sprintf("pkg%02d/mod%d/src-%d/file%d.go", i%50, i/50%10, i%3, i), Kind: checkpointdb.KindFile, BlobKey: keyOf("")})
	}
	sorted := c
	sorted.Files = slices.SortedFunc(slices.Values(c.Files), func(a, b checkpointdb.Entry) int { return strings.Compare(a.Path, b.Path) })
	fsys, err := FS(b.Context(), c, bucket)
	must(b, err)
	for name, c := range map[string]checkpointdb.Checkpoint{"Sorted": sorted, "Unsorted": c} {
		b.Run("New/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must(b, second(FS(b.Context(), c, bucket)))
			}
		})
	}
	b.Run("Stat", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			must(b, second(fs.Stat(fsys, c.Files[i%len(c.Files)].Path)))
		}
	})
	b.Run("WalkDir", func(b *testing.B) {
		for b.Loop() {
			must(b, fs.WalkDir(fsys, ".", func(_ string, _ fs.DirEntry, err error) error { return err }))
		}
	})
}

// rangeSpy is a bucket driver that passes everything on to a real bucket and
// watches what is read of it.
type rangeSpy struct {
	passblob.Bucket
	cut    int  // every stream ends after so many bytes; 0 for none
	strict bool // refuses a range that begins beyond the end

	mu     sync.Mutex // guards the fields below
	ranges []string   // opened since the last look
	bytes  int64      // read since then
	open   int        // readers
}

func newRangeSpy(t testing.TB, inner *blob.Bucket) (*blob.Bucket, *rangeSpy) {
	s := &rangeSpy{Bucket: passblob.Bucket{B: inner}}
	bucket := blob.NewBucket(s)
	t.Cleanup(func() { bucket.Close() })
	return bucket, s
}

// take returns what was read since the last call.
func (s *rangeSpy) take() ([]string, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.ranges, s.bytes = nil, 0 }()
	return s.ranges, s.bytes
}

func (s *rangeSpy) check(t *testing.T, bytes int64, ranges ...string) {
	t.Helper()
	gotRanges, gotBytes := s.take()
	if !slices.Equal(gotRanges, ranges) || gotBytes != bytes {
		t.Fatalf("%d bytes of the ranges %v were read, want %d of %v", gotBytes, gotRanges, bytes, ranges)
	}
}

func (s *rangeSpy) openReaders() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *rangeSpy) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	r, err := s.Bucket.NewRangeReader(ctx, key, offset, length, opts)
	if err != nil {
		return nil, err
	}
	if s.strict && offset > 0 && offset >= r.Attributes().Size {
		r.Close()
		return nil, errInjected
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	if length < 0 {
		s.ranges = append(s.ranges, fmt.Sprintf("%d+all", offset))
	} else {
		s.ranges = append(s.ranges, fmt.Sprintf("%d+%d", offset, length))
	}
	left := s.cut
	if left == 0 {
		left = math.MaxInt
	}
	return &rangeSpyReader{r, s, left}, nil
}

type rangeSpyReader struct {
	driver.Reader
	spy  *rangeSpy
	left int
}

func (r *rangeSpyReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.Reader.Read(p[:min(len(p), r.left)])
	r.left -= n
	r.spy.mu.Lock()
	defer r.spy.mu.Unlock()
	r.spy.bytes += int64(n)
	return n, err
}

func (r *rangeSpyReader) Close() error {
	r.spy.mu.Lock()
	defer r.spy.mu.Unlock()
	r.spy.open--
	return r.Reader.Close()
}
