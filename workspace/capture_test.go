package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"golang.org/x/sync/errgroup"

	"checkpointdb"
	"checkpointdb/internal/faultblob"
)

// mixed has every kind of entry, and names whose order by path differs from that
// of a walk: '-' and '.' sort before '/'.
var mixed = tree{
	"README.md":      file("hello"),
	"a":              dir,
	"a/b":            file("in a"),
	"a-b":            file("beside a"),
	"a.txt":          file(""),
	"bin/run.sh":     script("#!/bin/sh\nexit 0\n"),
	"bin/same.sh":    file("#!/bin/sh\nexit 0\n"),
	"deep/er/and/er": dir,
	"empty":          dir,
	"link":           link("a/b"),
	"nowhere":        link("../../outside\x1b"),
	"to-dir":         link("deep"),
	"new\nline":      file("n"),
	"esc\x1b[31m":    file("e"),
	"ü/ß":            file("composed"),
	" leading":       file("space"),
	"con/a:b":        file("not for Windows"),
}

func TestCaptureEntries(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		root := t.TempDir()
		makeTree(t, root, mixed)
		captured, err := Capture(t.Context(), root, bucket, nil)
		must(t, err)
		f := func(p, content string, executable bool) checkpointdb.Entry {
			return checkpointdb.Entry{Path: p, Kind: checkpointdb.KindFile, BlobKey: keyOf(content), Size: int64(len(content)), Executable: executable}
		}
		l := func(p, target string) checkpointdb.Entry {
			return checkpointdb.Entry{Path: p, Kind: checkpointdb.KindSymlink, Target: target}
		}
		d := func(p string) checkpointdb.Entry {
			return checkpointdb.Entry{Path: p, Kind: checkpointdb.KindDir}
		}
		want := []checkpointdb.Entry{
			f(" leading", "space", false),
			f("README.md", "hello", false),
			f("a-b", "beside a", false),
			f("a.txt", "", false),
			f("a/b", "in a", false),
			f("bin/run.sh", "#!/bin/sh\nexit 0\n", true),
			f("bin/same.sh", "#!/bin/sh\nexit 0\n", false),
			f("con/a:b", "not for Windows", false),
			d("deep/er/and/er"),
			d("empty"),
			f("esc\x1b[31m", "e", false),
			l("link", "a/b"),
			f("new\nline", "n", false),
			l("nowhere", "../../outside\x1b"),
			l("to-dir", "deep"),
			f("ü/ß", "composed", false),
		}
		if diff := gocmp.Diff(want, captured.Files); diff != "" {
			t.Errorf("entries differ (-want +got):\n%s", diff)
		}
		must(t, checkpointdb.ValidateFiles(captured.Files))
		checkBucket(t, bucket)
		if n := len(listBucket(t, bucket)); captured.Uploaded != n || n != 10 {
			t.Errorf("uploaded %d blobs, the bucket has %d, want 10", captured.Uploaded, n)
		}
		if captured.UploadedBytes != 64 {
			t.Errorf("uploaded %d bytes, want 64", captured.UploadedBytes)
		}
	})
}

func TestCaptureAgainUploadsNothing(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		root := t.TempDir()
		makeTree(t, root, mixed)
		first := mustCapture(t, root, bucket, nil)
		second, err := Capture(t.Context(), root, bucket, nil)
		must(t, err)
		if diff := gocmp.Diff(first.Files, second.Files); diff != "" || second.Uploaded != 0 || second.UploadedBytes != 0 {
			t.Errorf("second capture: %d uploads, entries differ:\n%s", second.Uploaded, diff)
		}
	})
}

// One upload per content, however many files have it and however many workers
// meet it at once (case 25, as far as it concerns a capture).
func TestCase25IdenticalFilesAreOneUpload(t *testing.T) {
	root := t.TempDir()
	content := tree{}
	for i := range 300 {
		content[fmt.Sprintf("dir%d/__init__.py", i)] = file("")
		content[fmt.Sprintf("dir%d/LICENSE", i)] = file("do as you like")
	}
	makeTree(t, root, content)
	bucket, spy := newSpy(t, memBucket(t))
	mustCapture(t, root, bucket, nil)
	if want := (map[string]int{string(keyOf("")): 1, string(keyOf("do as you like")): 1}); !gocmp.Equal(spy.puts, want) {
		t.Errorf("puts by key: %v, want %v", spy.puts, want)
	}
	if n := spy.counts["attributes"]; n != 2 {
		t.Errorf("asked %d times for 2 keys", n)
	}
}

func TestCaptureExcludes(t *testing.T) {
	content := tree{
		".git/config":                    file("1"),
		".env":                           file("2"),
		".env.example":                   file("3"),
		".gitignore":                     file("4"),
		"node_modules/x/index.js":        file("5"),
		"node_modules/x/patch/p":         file("6"),
		"sub/.env.local/secret":          file("7"),
		"sub/node_modules":               file("8"),
		"sub/deep/.git":                  file("a link to another repository"),
		"sub/deep/environment":           file("9"),
		"only-excluded/.env":             file("10"),
		"only-excluded/node_modules/a/b": file("11"),
	}
	named := func(names ...string) Filter {
		return func(p string, _ fs.DirEntry) bool {
			for _, name := range names {
				if p == name {
					return true
				}
			}
			return false
		}
	}
	for name, c := range map[string]struct {
		opts CaptureOptions
		want []string
	}{
		"default": {CaptureOptions{}, []string{".gitignore", "only-excluded", "sub/deep/environment"}},
		"include narrows": {CaptureOptions{Include: named(".env.example")},
			[]string{".env.example", ".gitignore", "only-excluded", "sub/deep/environment"}},
		"include beneath an excluded directory is not asked": {CaptureOptions{Include: named("node_modules/x/index.js")},
			[]string{".gitignore", "only-excluded", "sub/deep/environment"}},
		"include takes a directory back, with all that is not excluded itself": {CaptureOptions{Include: named("node_modules")},
			[]string{".gitignore", "node_modules/x/index.js", "node_modules/x/patch/p", "only-excluded", "sub/deep/environment"}},
		"exclude replaces": {CaptureOptions{Exclude: named("sub", "node_modules", "only-excluded/.env")},
			[]string{".env", ".env.example", ".git/config", ".gitignore", "only-excluded/node_modules/a/b"}},
		"include wins over exclude": {CaptureOptions{Exclude: func(string, fs.DirEntry) bool { return true }, Include: named("sub", "sub/node_modules")},
			[]string{"sub/node_modules"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			makeTree(t, root, content)
			var got []string
			for _, e := range mustCapture(t, root, memBucket(t), &c.opts).Files {
				got = append(got, e.Path)
			}
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("paths differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilterSeesTheEntry(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, tree{"big": file("0123456789"), "small": file("0"), "d/small": file("0")})
	c := mustCapture(t, root, memBucket(t), &CaptureOptions{Exclude: func(p string, d fs.DirEntry) bool {
		info, err := d.Info()
		must(t, err)
		return !d.IsDir() && info.Size() > 5
	}})
	if len(c.Files) != 2 || c.Files[0].Path != "d/small" || c.Files[1].Path != "small" {
		t.Errorf("captured %v", c.Files)
	}
}

// A blob of another size, as a crash leaves it, is not trusted.
func TestCaptureHealsTornBlob(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		root := t.TempDir()
		makeTree(t, root, tree{"f": file("content")})
		must(t, bucket.WriteAll(t.Context(), string(keyOf("content")), nil, nil))
		c := mustCapture(t, root, bucket, nil)
		checkBucket(t, bucket)
		mustRestore(t, bucket, c, filepath.Join(t.TempDir(), "new"), nil)
	})
}

// Protect hears of every key before the bucket is touched, and only what it
// returns is looked for.
func TestCaptureProtect(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, tree{"a": file("one"), "b": file("two"), "c": file("one"), "d": dir, "l": link("a")})
	bucket, spy := newSpy(t, memBucket(t))
	one, two := keyOf("one"), keyOf("two")
	foreign := keyOf("of no file here")
	var calls [][]checkpointdb.BlobKey
	opts := &CaptureOptions{Protect: func(_ context.Context, keys []checkpointdb.BlobKey) ([]checkpointdb.BlobKey, error) {
		if spy.total > 0 {
			t.Errorf("after %v", spy.counts)
		}
		calls = append(calls, slices.Clone(keys))
		return []checkpointdb.BlobKey{foreign, two, two}, nil
	}}
	captured, err := Capture(t.Context(), root, bucket, opts)
	must(t, err)
	want := []checkpointdb.BlobKey{one, two}
	slices.Sort(want)
	if diff := gocmp.Diff([][]checkpointdb.BlobKey{want}, calls); diff != "" {
		t.Errorf("Protect called with (-want +got):\n%s", diff)
	}
	if captured.Uploaded != 1 || spy.puts[string(two)] != 1 || spy.counts["attributes"] != 1 {
		t.Errorf("uploaded %d, operations %v", captured.Uploaded, spy.counts)
	}

	lost := &checkpointdb.Error{Code: checkpointdb.ErrWriterLost, Op: "protect", Message: "fence"}
	spy.reset(0)
	opts.Protect = func(context.Context, []checkpointdb.BlobKey) ([]checkpointdb.BlobKey, error) { return nil, lost }
	_, err = Capture(t.Context(), root, bucket, opts)
	checkError(t, err, checkpointdb.ErrWriterLost, "")
	if !strings.Contains(err.Error(), "capture: ") || !strings.Contains(err.Error(), "protect: ") || spy.total != 0 {
		t.Errorf("error %v after %d operations", err, spy.total)
	}
}

// Blobs that were there may have been written a moment ago by somebody who has
// not made their names durable yet.
func TestCaptureSyncsWhatItReuses(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, mixed)
	bucket, spy := newSpy(t, fileBucket(t, t.TempDir()))
	mustCapture(t, root, bucket, nil)
	spy.reset(0)
	mustCapture(t, root, bucket, nil)
	if spy.counts["open"] != 1 { // which buckets.Sync does to find the directory
		t.Errorf("operations on the bucket: %v", spy.counts)
	}
}

func TestCaptureBadDirectory(t *testing.T) {
	bucket := memBucket(t)
	f := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(f, nil, 0o666))
	_, err := Capture(t.Context(), "", bucket, nil)
	checkError(t, err, checkpointdb.ErrInvalidArgument, "")
	_, err = Capture(t.Context(), f, bucket, nil)
	if err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("of a file: %v", err)
	}
	_, err = Capture(t.Context(), f+"-missing", bucket, nil)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestCaptureCancelled(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, mixed)
	for _, point := range []string{"list", "open", "put"} {
		t.Run(point, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Capture(ctx, root, memBucket(t), &CaptureOptions{hook: func(at, _ string) {
				if at == point {
					cancel()
				}
			}})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// A name that no checkpoint can hold is found before anything is stored.
func TestCaptureRefusesBackslash(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip(`'\' separates names on Windows`)
	}
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"ok": file("ok"), `sub/a\b`: file("bad")})
	_, err := Capture(t.Context(), root, bucket, nil)
	checkError(t, err, checkpointdb.ErrInvalidEntry, `sub/a\b`)
	if n := len(listBucket(t, bucket)); n != 0 {
		t.Errorf("%d blobs stored", n)
	}
}

func TestCase32TreeChangesWhileItIsRead(t *testing.T) {
	content := tree{"a": file("a"), "d/x": file("x"), "d/y/z": file("z"), "e": dir, "f": file("f"), ".env": file("secret")}
	// Each change is made once, at the point and path it names. It costs the
	// capture one more attempt, and the result is the tree as it is then.
	for name, c := range map[string]struct {
		point, path string
		change      func(root string) error
		after       func(tree)
	}{
		"file deleted after listing": {"open", "a",
			func(root string) error { return os.Remove(filepath.Join(root, "a")) },
			func(t tree) { delete(t, "a") }},
		"file deleted before upload": {"put", "a",
			func(root string) error { return os.Remove(filepath.Join(root, "a")) },
			func(t tree) { delete(t, "a") }},
		"directory deleted after listing": {"list", "d",
			func(root string) error { return os.RemoveAll(filepath.Join(root, "d")) },
			func(t tree) { delete(t, "d/x"); delete(t, "d/y/z") }},
		"directory deleted before its files are read": {"open", "d/x",
			func(root string) error { return os.RemoveAll(filepath.Join(root, "d")) },
			func(t tree) { delete(t, "d/x"); delete(t, "d/y/z") }},
		"file replaced by directory": {"open", "a",
			func(root string) error {
				return errors.Join(os.Remove(filepath.Join(root, "a")), os.Mkdir(filepath.Join(root, "a"), 0o777))
			},
			func(t tree) { t["a"] = dir }},
		"directory replaced by file": {"list", "e",
			func(root string) error {
				return errors.Join(os.Remove(filepath.Join(root, "e")), os.WriteFile(filepath.Join(root, "e"), []byte("now"), 0o666))
			},
			func(t tree) { t["e"] = file("now") }},
		"directory replaced by a link to another": {"list", "d/y",
			func(root string) error {
				return errors.Join(os.RemoveAll(filepath.Join(root, "d/y")), os.Symlink("../e", filepath.Join(root, "d/y")))
			},
			func(t tree) { delete(t, "d/y/z"); t["d/y"] = link("../e") }},
		"file renamed over": {"open", "a",
			func(root string) error {
				return os.Rename(filepath.Join(root, "f"), filepath.Join(root, "a"))
			},
			func(t tree) { t["a"] = file("f"); delete(t, "f") }},
		"file grows while it is read": {"read", "a",
			func(root string) error { return appendTo(filepath.Join(root, "a"), "more") },
			func(t tree) { t["a"] = file("amore") }},
		"file grows between hash and upload": {"put", "a",
			func(root string) error { return appendTo(filepath.Join(root, "a"), "more") },
			nil}, // what was hashed is still there to be read
		"file shrinks while it is read": {"read", "a",
			func(root string) error { return os.Truncate(filepath.Join(root, "a"), 0) },
			func(t tree) { t["a"] = file("") }},
		"file rewritten between hash and upload": {"put", "a",
			func(root string) error { return os.WriteFile(filepath.Join(root, "a"), []byte("b"), 0o666) },
			func(t tree) { t["a"] = file("b") }},
		"excluded file vanishes": {"list", "",
			func(root string) error { return os.Remove(filepath.Join(root, ".env")) },
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
				root := t.TempDir()
				makeTree(t, root, content)
				var attempts, done atomic.Int32
				captured := mustCapture(t, root, bucket, &CaptureOptions{hook: func(point, p string) {
					if point == "list" && p == "" {
						attempts.Add(1)
					}
					if point == c.point && p == c.path && done.CompareAndSwap(0, 1) {
						must(t, c.change(root))
					}
				}})
				want := tree{}
				for p, what := range content {
					want[p] = what
				}
				delete(want, ".env")
				tries := int32(1)
				if c.after != nil {
					c.after(want)
					tries = 2
				}
				if got := attempts.Load(); got != tries {
					t.Errorf("%d attempts, want %d", got, tries)
				}
				checkBucket(t, bucket)
				restored := filepath.Join(t.TempDir(), "new")
				mustRestore(t, bucket, captured, restored, nil)
				got := readTree(t, restored)
				delete(got, "d/y") // implied or gone with its content
				delete(got, "d")
				delete(want, "d")
				if target, ok := want["d/y"]; ok {
					got["d/y"] = target
				}
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("tree differs (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A change that never stops ends the capture with an error that names the file.
func TestCase32TreeNeverStopsChanging(t *testing.T) {
	for _, point := range []string{"read", "put"} {
		t.Run(point, func(t *testing.T) {
			root, bucket := t.TempDir(), memBucket(t)
			makeTree(t, root, tree{"log\x1b": file("start"), "other": file("o")})
			n := 0
			_, err := Capture(t.Context(), root, bucket, &CaptureOptions{hook: func(at, p string) {
				if at == point && p == "log\x1b" {
					n++
					must(t, os.WriteFile(filepath.Join(root, p), fmt.Append(nil, "rewritten ", n), 0o666))
				}
			}})
			checkError(t, err, ErrTreeChanged, "log\x1b")
			if problem, ok := errors.AsType[*PathError](err); !ok || problem.Path != "log\x1b" {
				t.Errorf("no PathError in %v", err)
			}
			if n != captureAttempts {
				t.Errorf("%d attempts, want %d", n, captureAttempts)
			}
			checkBucket(t, bucket)
		})
	}
}

// A file that grows faster than it is read ends all the same.
func TestCase32EndlesslyGrowingFile(t *testing.T) {
	root := t.TempDir()
	p := filepath.Join(root, "log")
	must(t, os.WriteFile(p, nil, 0o666))
	must(t, os.Truncate(p, 64<<20)) // long enough to be overtaken while it is read
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
				if err := appendTo(p, "x"); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	start := time.Now()
	_, err := Capture(t.Context(), root, memBucket(t), nil)
	close(stop)
	must(t, <-done)
	checkError(t, err, ErrTreeChanged, "log")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func appendTo(p, text string) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// The limit is found by looking at the size, so a file of 50 GiB costs nothing.
func TestCase36MaxFileSize(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"ok": file("1234567890")})
	must(t, os.WriteFile(filepath.Join(root, "disk.img"), []byte("boot"), 0o666))
	must(t, os.Truncate(filepath.Join(root, "disk.img"), 50<<30))
	start := time.Now()
	_, err := Capture(t.Context(), root, bucket, &CaptureOptions{Policy: Policy{MaxFileSize: 10}})
	checkError(t, err, ErrFileTooLarge, "disk.img")
	if !strings.Contains(err.Error(), "53687091200") {
		t.Errorf("error does not have the size: %v", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	if n := len(listBucket(t, bucket)); n != 0 {
		t.Errorf("%d blobs stored", n)
	}
	must(t, os.Remove(filepath.Join(root, "disk.img")))
	mustCapture(t, root, bucket, &CaptureOptions{Policy: Policy{MaxFileSize: 10}})
}

// A file's size does not show in the memory that its capture and its restore
// take.
func TestCase36BoundedMemory(t *testing.T) {
	const size = 128 << 20
	root, bucket := t.TempDir(), fileBucket(t, t.TempDir())
	f, err := os.Create(filepath.Join(root, "data.db"))
	must(t, err)
	block := []byte(strings.Repeat("no hole ", 1<<17))
	for range size / len(block) {
		_, err := f.Write(block)
		must(t, err)
	}
	must(t, f.Close())
	var c checkpointdb.Checkpoint
	if peak := peakHeap(func() { c = mustCapture(t, root, bucket, nil) }); peak > 32<<20 {
		t.Errorf("capture took %d MiB", peak>>20)
	}
	if peak := peakHeap(func() { mustRestore(t, bucket, c, filepath.Join(t.TempDir(), "new"), nil) }); peak > 32<<20 {
		t.Errorf("restore took %d MiB", peak>>20)
	}
}

// peakHeap returns by how much the heap grew at most while work ran.
func peakHeap(work func()) uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	before, peak := stats.HeapAlloc, uint64(0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			if stats.HeapAlloc > before {
				peak = max(peak, stats.HeapAlloc-before)
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	work()
	close(stop)
	<-done
	return peak
}

// busy is the error of a store that was asked too often.
type busy struct{}

func (busy) Error() string       { return "slow down" }
func (busy) HTTPStatusCode() int { return 429 }

// The store refuses a second put of a key within a second, and the first that
// comes again however late, and a get now and then. Nobody's capture or restore
// fails for it.
func TestCase25BusyStoreIsWaitedFor(t *testing.T) {
	content := tree{}
	for i := range 300 {
		content[fmt.Sprintf("dir%d/__init__.py", i)] = file("")
		content[fmt.Sprintf("dir%d/LICENSE", i)] = file("do as you like")
	}
	var (
		mu      sync.Mutex // guards the following
		lastPut = map[string]time.Time{}
		tries   = map[string]int{}
		puts    = map[string]int{}
		gets    = map[string]int{}
		refused = map[faultblob.Kind]int{}
	)
	admit := func(call faultblob.Call) bool {
		mu.Lock()
		defer mu.Unlock()
		switch call.Kind {
		case faultblob.Commit:
			if tries[call.Key]++; tries[call.Key] == 2 || time.Since(lastPut[call.Key]) < time.Second {
				return false
			}
			lastPut[call.Key] = time.Now()
			puts[call.Key]++
		case faultblob.Read, faultblob.Attributes:
			gets[call.Key]++
			return gets[call.Key]%40 != 1
		}
		return true
	}
	bucket := faultblob.Wrap(memBucket(t), func(_ context.Context, call faultblob.Call, do func() error) error {
		if !admit(call) {
			mu.Lock()
			refused[call.Kind]++
			mu.Unlock()
			return busy{}
		}
		return do()
	})
	t.Cleanup(func() { bucket.Close() })

	// Somebody else put one of the two a moment ago, torn.
	must(t, bucket.WriteAll(t.Context(), string(keyOf("do as you like")), nil, nil))
	roots := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	captures := new(errgroup.Group)
	for _, root := range roots {
		makeTree(t, root, content)
		captures.Go(func() error {
			_, err := Capture(t.Context(), root, bucket, nil)
			return err
		})
	}
	must(t, captures.Wait())
	c := mustCapture(t, roots[0], bucket, nil)
	target := filepath.Join(t.TempDir(), "new")
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, content)
	for _, kind := range []faultblob.Kind{faultblob.Commit, faultblob.Attributes, faultblob.Read} {
		if refused[kind] == 0 {
			t.Errorf("no %s was refused", kind)
		}
	}
	// Each of the captures that run at once may put each key, but none twice.
	for _, text := range []string{"", "do as you like"} {
		if n := puts[string(keyOf(text))]; n > 1+len(roots) {
			t.Errorf("%d puts of %q", n, text)
		}
	}
}
