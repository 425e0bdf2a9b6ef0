package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"

	"checkpointdb"
	"checkpointdb/internal/faultblob"
	"checkpointdb/memstore"
)

// report is what a caller gives of an artifact.
var report = checkpointdb.Artifact{
	ArtifactID: "r\x1b1", Name: "report.txt", MimeType: "text/plain", CreatedAt: time.Unix(1_800_000_000, 1),
}

func artifactKeyOf(content string) checkpointdb.BlobKey {
	return checkpointdb.ArtifactKey(sha256.Sum256([]byte(content)))
}

// reportOf is what becomes of report with that content.
func reportOf(content string) checkpointdb.Artifact {
	a := report
	a.Size, a.BlobKey = int64(len(content)), artifactKeyOf(content)
	return a
}

// putters are the two ways to store an artifact. The size and key that a caller
// gives are of no account.
var putters = map[string]func(t testing.TB, ctx context.Context, bucket *blob.Bucket, content string, opts *ArtifactOptions) (checkpointdb.Artifact, error){
	"reader": func(t testing.TB, ctx context.Context, bucket *blob.Bucket, content string, opts *ArtifactOptions) (checkpointdb.Artifact, error) {
		a := report
		a.Size, a.BlobKey = -1, "nonsense"
		return PutArtifact(ctx, bucket, struct{ io.Reader }{strings.NewReader(content)}, a, opts)
	},
	"file": func(t testing.TB, ctx context.Context, bucket *blob.Bucket, content string, opts *ArtifactOptions) (checkpointdb.Artifact, error) {
		root := t.TempDir()
		makeTree(t, root, tree{"out/report.txt": file(content)})
		a := report
		a.Size, a.BlobKey = -1, "nonsense"
		return PutArtifactFile(ctx, bucket, root, "out/report.txt", a, opts)
	},
}

func forEachPutter(t *testing.T, test func(t *testing.T, put func(ctx context.Context, bucket *blob.Bucket, content string, opts *ArtifactOptions) (checkpointdb.Artifact, error))) {
	for name, put := range putters {
		t.Run(name, func(t *testing.T) {
			test(t, func(ctx context.Context, bucket *blob.Bucket, content string, opts *ArtifactOptions) (checkpointdb.Artifact, error) {
				return put(t, ctx, bucket, content, opts)
			})
		})
	}
}

// withTempDir gives the test a directory for temporary files of its own, in
// which there must be none when it ends.
func withTempDir(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	t.Cleanup(func() {
		list, err := os.ReadDir(temp)
		must(t, err)
		for _, d := range list {
			if !d.IsDir() { // those of the tests within
				t.Errorf("the temporary file %s stays", d.Name())
			}
		}
		fds, _ := os.ReadDir("/proc/self/fd") // where there is one
		for _, d := range fds {
			if target, _ := os.Readlink("/proc/self/fd/" + d.Name()); filepath.Dir(target) == temp {
				t.Errorf("the temporary file %s is still open", target)
			}
		}
	})
}

func random(n int) string {
	p := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return string(p)
}

// mustStore returns a store in which thread "t" has checkpoint "c" with the
// artifacts.
func mustStore(t testing.TB, artifacts ...checkpointdb.Artifact) checkpointdb.CheckpointStore {
	t.Helper()
	store, err := memstore.New(nil)
	must(t, err)
	lease, err := store.AcquireWriter(t.Context(), "t")
	must(t, err)
	must(t, store.Append(t.Context(), lease.Writer, checkpointdb.Checkpoint{
		ID: "c", ThreadID: "t", CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic, Artifacts: artifacts}, ""))
	return store
}

func readReport(t testing.TB, store CheckpointGetter, bucket *blob.Bucket) (string, error) {
	t.Helper()
	r, _, err := ReadArtifact(t.Context(), store, bucket, "t", "c", report.ArtifactID)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(r)
	must(t, r.Close())
	return string(data), err
}

func TestArtifactComesBack(t *testing.T) {
	forEachPutter(t, func(t *testing.T, put func(context.Context, *blob.Bucket, string, *ArtifactOptions) (checkpointdb.Artifact, error)) {
		onEachBucket(t, func(t *testing.T, inner *blob.Bucket) {
			withTempDir(t)
			bucket, spy := newSpy(t, inner)
			for _, n := range []int{0, 1, 1000, spoolMemory - 1, spoolMemory, spoolMemory + 1, 3*spoolMemory + 7} {
				content := random(n)
				spy.reset(0)
				a, err := put(t.Context(), bucket, content, nil)
				must(t, err)
				if want := reportOf(content); a != want {
					t.Fatalf("artifact is %+v, want %+v", a, want)
				}
				if spy.puts[string(a.BlobKey)] != 1 {
					t.Errorf("%d bytes: puts are %v", n, spy.puts)
				}
				checkSynced(t, spy)
				other := a
				other.ArtifactID = "other"
				store := mustStore(t, other, a)
				r, got, err := ReadArtifact(t.Context(), store, bucket, "t", "c", a.ArtifactID)
				must(t, err)
				if got.CreatedAt = a.CreatedAt; got != a { // the store has it in UTC
					t.Errorf("artifact is %+v, want %+v", got, a)
				}
				if n <= 1000 {
					must(t, iotest.TestReader(r, []byte(content)))
				}
				must(t, r.Close())
				if got, err := readReport(t, store, bucket); got != content || err != nil {
					t.Errorf("%d bytes come back as %d, %v", n, len(got), err)
				}

				spy.reset(0)
				if again, err := put(t.Context(), bucket, content, nil); again != a || err != nil || len(spy.puts) != 0 {
					t.Errorf("again: %+v, %v, puts are %v", again, err, spy.puts)
				}
				checkSynced(t, spy)
			}
		})
	})
}

// checkSynced fails unless the file of the blob was asked for, which on a local
// directory is the sign of it being synced. That this is right and enough is
// shown by the tests of package buckets.
func checkSynced(t *testing.T, spy *spy) {
	t.Helper()
	var info os.FileInfo
	if spy.As(&info) && spy.counts["open"] == 0 {
		t.Errorf("not synced: %v", spy.counts)
	}
}

// A blob of the wrong size under the key is none, as for a capture.
func TestPutArtifactHealsACutBlob(t *testing.T) {
	forEachPutter(t, func(t *testing.T, put func(context.Context, *blob.Bucket, string, *ArtifactOptions) (checkpointdb.Artifact, error)) {
		onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
			must(t, bucket.WriteAll(t.Context(), string(artifactKeyOf("content")), nil, nil))
			a, err := put(t.Context(), bucket, "content", nil)
			must(t, err)
			if got, err := readReport(t, mustStore(t, a), bucket); got != "content" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	})
}

func TestPutArtifactProtects(t *testing.T) {
	forEachPutter(t, func(t *testing.T, put func(context.Context, *blob.Bucket, string, *ArtifactOptions) (checkpointdb.Artifact, error)) {
		inner := memBucket(t)
		bucket, spy := newSpy(t, inner)
		var answer []checkpointdb.BlobKey
		var refusal error
		calls := 0
		opts := &ArtifactOptions{Protect: func(_ context.Context, keys []checkpointdb.BlobKey) ([]checkpointdb.BlobKey, error) {
			calls++
			if len(keys) != 1 || keys[0] != artifactKeyOf("content") {
				t.Errorf("keys are %v", keys)
			}
			if spy.total != 0 {
				t.Errorf("the bucket was asked before: %v", spy.counts)
			}
			return answer, refusal
		}}

		refusal = errInjected
		_, err := put(t.Context(), bucket, "content", opts)
		if !errors.Is(err, errInjected) || calls != 1 || spy.total != 0 {
			t.Errorf("refused: error is %v, %d calls, bucket was asked %v", err, calls, spy.counts)
		}
		refusal = nil // and no key unused: it is in the bucket for sure
		a, err := put(t.Context(), bucket, "content", opts)
		if a != reportOf("content") || err != nil || calls != 2 || spy.total != 0 {
			t.Errorf("used: %+v, %v, %d calls, bucket was asked %v", a, err, calls, spy.counts)
		}
		answer = []checkpointdb.BlobKey{artifactKeyOf("content")}
		a, err = put(t.Context(), bucket, "content", opts)
		if a != reportOf("content") || err != nil || calls != 3 || len(spy.puts) != 1 {
			t.Errorf("unused: %+v, %v, %d calls, puts are %v", a, err, calls, spy.puts)
		}
	})
}

func TestPutArtifactRefuses(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"f": file("f")})
	for what, spoil := range map[string]func(a *checkpointdb.Artifact){
		"id":   func(a *checkpointdb.Artifact) { a.ArtifactID = "" },
		"name": func(a *checkpointdb.Artifact) { a.Name = "\xff" },
		"mime": func(a *checkpointdb.Artifact) { a.MimeType = "" },
		"time": func(a *checkpointdb.Artifact) { a.CreatedAt = time.Time{} },
	} {
		bad := report
		spoil(&bad)
		read := false
		_, err := PutArtifact(t.Context(), bucket, readerFunc(func([]byte) (int, error) { read = true; return 0, io.EOF }), bad, nil)
		if checkpointdb.CodeOf(err) != checkpointdb.ErrInvalidEntry || read {
			t.Errorf("%s: error is %v, read is %v", what, err, read)
		}
		if _, err := PutArtifactFile(t.Context(), bucket, root, "f", bad, nil); checkpointdb.CodeOf(err) != checkpointdb.ErrInvalidEntry {
			t.Errorf("%s of a file: error is %v", what, err)
		}
	}
	if all := listBucket(t, bucket); len(all) != 0 {
		t.Errorf("stored %v", all)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A reader that fails, or a context that ends, at whatever moment: an error, and
// nothing stays anywhere.
func TestPutArtifactReaderFails(t *testing.T) {
	withTempDir(t)
	bucket := memBucket(t)
	for _, n := range []int{0, 10, spoolMemory, 2 * spoolMemory} {
		broken := io.MultiReader(strings.NewReader(random(n)), iotest.ErrReader(errInjected))
		if _, err := PutArtifact(t.Context(), bucket, broken, report, nil); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), `"r\x1b1"`) {
			t.Errorf("after %d bytes: error is %v", n, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		endless := io.MultiReader(strings.NewReader(random(n)), readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
		if _, err := PutArtifact(ctx, bucket, endless, report, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("after %d bytes: error is %v", n, err)
		}
	}
	for name, put := range putters {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := put(t, ctx, bucket, "content", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	func() { // a panic of the reader leaves no file either
		defer func() { _ = recover() }()
		_, _ = PutArtifact(t.Context(), bucket, io.MultiReader(strings.NewReader(random(2*spoolMemory)), readerFunc(func([]byte) (int, error) { panic("reader") })), report, nil)
	}()
	if all := listBucket(t, bucket); len(all) != 0 {
		t.Errorf("%d blobs stay", len(all))
	}
}

func TestPutArtifactNeedsItsTempDir(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	t.Setenv("TMPDIR", missing)
	t.Setenv("TMP", missing)
	_, err := PutArtifact(t.Context(), memBucket(t), strings.NewReader(random(2*spoolMemory)), report, nil)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

// Every operation on the bucket fails once; each failure is an error, what is in
// the bucket then is whole, and the next try succeeds.
func TestArtifactsSurfaceEveryFault(t *testing.T) {
	forEachPutter(t, func(t *testing.T, put func(context.Context, *blob.Bucket, string, *ArtifactOptions) (checkpointdb.Artifact, error)) {
		onEachBucket(t, func(t *testing.T, inner *blob.Bucket) {
			content := random(3 * bufferSize)
			failed := map[string]int{}
			for n := 1; ; n++ {
				_ = inner.Delete(t.Context(), string(artifactKeyOf(content)))
				bucket, spy := newSpy(t, inner)
				spy.reset(n)
				a, err := put(t.Context(), bucket, content, nil)
				var got string
				if err == nil {
					got, err = readReport(t, mustStore(t, a), bucket)
				}
				for key, stored := range listBucket(t, inner) {
					if key != string(artifactKeyOf(stored)) {
						t.Fatalf("operation %d, %s: under %s lie %d other bytes", n, spy.failed, key, len(stored))
					}
				}
				if spy.failed == "" {
					must(t, err)
					if got != content {
						t.Errorf("%d bytes come back", len(got))
					}
					break
				}
				failed[spy.failed]++
				if !errors.Is(err, errInjected) {
					t.Fatalf("operation %d, %s: error is %v", n, spy.failed, err)
				}
				spy.reset(0)
				must(t, second(put(t.Context(), bucket, content, nil)))
			}
			for _, op := range []string{"attributes", "create", "write", "close", "open", "read"} {
				if failed[op] == 0 {
					t.Errorf("%s never failed", op)
				}
			}
		})
	})
}

// No link, pipe or device of a sandbox makes an artifact of what is not a file
// beneath its directory.
func TestPutArtifactFileStaysInside(t *testing.T) {
	base, bucket := t.TempDir(), memBucket(t)
	makeTree(t, base, tree{"secret": file("secret"), "w/f": file("f"), "w/sub/f": file("f"),
		"w/in": link("sub/f"), "w/out": link("../secret"), "w/up": link(".."), "w/abs": link(filepath.Join(base, "secret")), "w/loop": link("loop")})
	root := filepath.Join(base, "w")
	for p, code := range map[string]checkpointdb.Code{
		"out": "", "up/secret": "", "abs": "", "loop": "", "../secret": "", filepath.Join(root, "f"): "", "no": "", "": "",
		"sub": ErrSpecialFile, ".": ErrSpecialFile, "pipe": ErrSpecialFile,
	} {
		is := map[string]string{"sub": "is a directory", "pipe": "is a named pipe"}[p]
		if p == "pipe" {
			if out, err := exec.Command("mkfifo", filepath.Join(root, p)).CombinedOutput(); err != nil {
				t.Logf("no pipe to try: %v, %s", err, out)
				continue
			}
		}
		done := make(chan error, 1)
		go func() {
			_, err := PutArtifactFile(t.Context(), bucket, root, p, report, nil)
			done <- err
		}()
		select {
		case err := <-done:
			if _, ok := errors.AsType[*PathError](err); !ok || checkpointdb.CodeOf(err) != code || !strings.Contains(err.Error(), is) {
				t.Errorf("%q: error is %v", p, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q is waited for", p)
		}
	}
	if all := listBucket(t, bucket); len(all) != 0 {
		t.Errorf("stored %v", all)
	}
	for _, p := range []string{"f", "in", "sub/../in"} {
		if a, err := PutArtifactFile(t.Context(), bucket, root, p, report, nil); a != reportOf("f") || err != nil {
			t.Errorf("%q: %+v, %v", p, a, err)
		}
	}
	if _, err := PutArtifactFile(t.Context(), bucket, "", "f", report, nil); checkpointdb.CodeOf(err) != checkpointdb.ErrInvalidArgument {
		t.Errorf("no directory: error is %v", err)
	}
}

// A file that changes between its hash and its upload is an error, and nothing
// is stored under a key that is not that of the bytes.
func TestPutArtifactFileThatChanges(t *testing.T) {
	for what, change := range map[string]func(p string) error{
		"rewritten": func(p string) error { return os.WriteFile(p, []byte("CONTENT"), 0o666) },
		"shorter":   func(p string) error { return os.Truncate(p, 3) },
	} {
		t.Run(what, func(t *testing.T) {
			onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
				root := t.TempDir()
				makeTree(t, root, tree{"f\x1b": file("content")})
				_, err := PutArtifactFile(t.Context(), bucket, root, "f\x1b", report, &ArtifactOptions{
					Protect: func(_ context.Context, keys []checkpointdb.BlobKey) ([]checkpointdb.BlobKey, error) {
						return keys, change(filepath.Join(root, "f\x1b"))
					}})
				checkError(t, err, ErrTreeChanged, "f\x1b")
				if all := listBucket(t, bucket); len(all) != 0 {
					t.Errorf("stored %v", all)
				}
			})
		})
	}
	// Growing and being replaced do not touch the bytes that were hashed.
	for what, change := range map[string]func(p string) error{
		"longer":   func(p string) error { return os.WriteFile(p, []byte("content and more"), 0o666) },
		"replaced": func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, []byte("CONTENT"), 0o666)) },
	} {
		if what == "replaced" && runtime.GOOS == "windows" {
			continue // an open file cannot be
		}
		bucket, root := memBucket(t), t.TempDir()
		makeTree(t, root, tree{"f": file("content")})
		a, err := PutArtifactFile(t.Context(), bucket, root, "f", report, &ArtifactOptions{
			Protect: func(_ context.Context, keys []checkpointdb.BlobKey) ([]checkpointdb.BlobKey, error) {
				return keys, change(filepath.Join(root, "f"))
			}})
		if a != reportOf("content") || err != nil {
			t.Errorf("%s: %+v, %v", what, a, err)
		}
	}
}

// The same while it is hashed.
func TestPutArtifactFileThatChangesEarly(t *testing.T) {
	for what, change := range map[string]func(p string) error{
		"rewritten": func(p string) error { return os.WriteFile(p, []byte("CONTENT"), 0o666) },
		"shorter":   func(p string) error { return os.Truncate(p, 3) },
		"longer":    func(p string) error { return os.Truncate(p, 30) },
	} {
		root, bucket := t.TempDir(), memBucket(t)
		p := filepath.Join(root, "f")
		makeTree(t, root, tree{"f": file("content")})
		must(t, os.Chtimes(p, time.Time{}, time.Unix(1, 0))) // so that a write is sure to be another time
		ctx := &watchedContext{Context: t.Context(), asked: sync.OnceFunc(func() { must(t, change(p)) })}
		_, err := PutArtifactFile(ctx, bucket, root, "f", report, nil)
		if checkpointdb.CodeOf(err) != ErrTreeChanged {
			t.Errorf("%s: error is %v", what, err)
		}
		if all := listBucket(t, bucket); len(all) != 0 {
			t.Errorf("%s: stored %v", what, all)
		}
	}
}

// A file that grows all the time is not followed.
func TestPutArtifactFileThatGrows(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"f": file("content")})
	f, err := os.OpenFile(filepath.Join(root, "f"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	times := 0
	_, err = PutArtifactFile(&watchedContext{Context: ctx, asked: func() {
		must(t, second(f.WriteString("more")))
		if times++; times > 100 {
			cancel()
		}
	}}, bucket, root, "f", report, nil)
	if checkpointdb.CodeOf(err) != ErrTreeChanged {
		t.Errorf("error is %v", err)
	}
}

// watchedContext calls asked whenever somebody looks whether it has ended, as
// loops do between two steps.
type watchedContext struct {
	context.Context
	asked func()
}

func (c *watchedContext) Err() error {
	c.asked()
	return c.Context.Err()
}

// However large an artifact is, the memory for it is not.
func TestArtifactsNeedLittleMemory(t *testing.T) {
	withTempDir(t)
	const size = 64 << 20
	root, bucket := t.TempDir(), fileBucket(t, t.TempDir())
	content := func() io.Reader {
		left := size
		return readerFunc(func(p []byte) (int, error) {
			if left == 0 {
				return 0, io.EOF
			}
			n := min(len(p), left)
			left -= n
			clear(p[:n])
			return n, nil
		})
	}
	f, err := os.Create(filepath.Join(root, "f"))
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Close()))
	for what, work := range map[string]func() error{
		"reader": func() error { return second(PutArtifact(t.Context(), bucket, content(), report, nil)) },
		"file":   func() error { return second(PutArtifactFile(t.Context(), bucket, root, "f", report, nil)) },
		"read": func() error {
			a, err := PutArtifact(t.Context(), bucket, content(), report, nil)
			must(t, err)
			r, _, err := ReadArtifact(t.Context(), mustStore(t, a), bucket, "t", "c", a.ArtifactID)
			must(t, err)
			n, err := io.Copy(struct{ io.Writer }{io.Discard}, r)
			if n != size {
				t.Errorf("read %d bytes", n)
			}
			return errors.Join(err, r.Close())
		},
	} {
		for key := range listKeys(t, bucket) {
			must(t, bucket.Delete(t.Context(), key))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		must(t, work())
		runtime.ReadMemStats(&after)
		// All that was ever allocated, so that no collection can hide anything.
		if used := after.TotalAlloc - before.TotalAlloc; used > 12<<20 {
			t.Errorf("%s: %d bytes were allocated", what, used)
		}
	}
}

func listKeys(t testing.TB, bucket *blob.Bucket) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for it := bucket.List(nil); ; {
		o, err := it.Next(t.Context())
		if err == io.EOF {
			return keys
		}
		must(t, err)
		keys[o.Key] = true
	}
}

func TestPutArtifactFromManyGoroutines(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		content := random(2 * spoolMemory)
		var wg sync.WaitGroup
		for range 4 {
			for _, put := range putters {
				wg.Go(func() {
					if a, err := put(t, t.Context(), bucket, content, nil); a != reportOf(content) || err != nil {
						t.Errorf("%+v, %v", a, err)
					}
				})
			}
		}
		wg.Wait()
		if got, err := readReport(t, mustStore(t, reportOf(content)), bucket); got != content || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

type overloaded struct{}

func (overloaded) Error() string       { return "overloaded" }
func (overloaded) HTTPStatusCode() int { return 503 }

// A bucket that refuses one call of every kind for the moment, two of reads, fails
// nobody, and each try sends all of the content.
func TestArtifactsAndFSWaitForABusyBucket(t *testing.T) {
	for name, put := range putters {
		t.Run(name, func(t *testing.T) {
			withTempDir(t)
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex // guards refused
				refused := map[faultblob.Kind]int{}
				bucket := faultblob.Wrap(memBucket(t), func(_ context.Context, call faultblob.Call, do func() error) error {
					mu.Lock()
					defer mu.Unlock()
					if refused[call.Kind] == 0 || call.Kind == faultblob.Read && refused[call.Kind] == 1 {
						refused[call.Kind]++
						return overloaded{}
					}
					return do()
				})
				content := random(2 * spoolMemory)
				a, err := put(t, t.Context(), bucket, content, nil)
				must(t, err)
				if got, err := readReport(t, mustStore(t, a), bucket); got != content || err != nil {
					t.Errorf("%d bytes come back, %v", len(got), err)
				}
				for _, kind := range []faultblob.Kind{faultblob.Attributes, faultblob.Write, faultblob.Commit, faultblob.Read} {
					if refused[kind] == 0 {
						t.Errorf("no %s was refused", kind)
					}
				}
				refused[faultblob.Read] = 0
				fsys := mustFS(t, bucket, manifest(t, bucket, tree{"f": file("content")}))
				if data, err := fs.ReadFile(fsys, "f"); string(data) != "content" || err != nil || refused[faultblob.Read] != 2 {
					t.Errorf("%q, %v, %v", data, err, refused)
				}
			})
		})
	}
}

func TestReadArtifactChecksWhoseItIs(t *testing.T) {
	bucket := memBucket(t)
	first, err := PutArtifact(t.Context(), bucket, strings.NewReader("first"), report, nil)
	must(t, err)
	twin, err := PutArtifact(t.Context(), bucket, strings.NewReader("second"), report, nil)
	must(t, err)
	store := mustStore(t, first, twin)
	lease, err := store.AcquireWriter(t.Context(), "other")
	must(t, err)
	must(t, store.Append(t.Context(), lease.Writer, checkpointdb.Checkpoint{
		ID: "o", ThreadID: "other", CreatedAt: time.Now(), Reason: checkpointdb.ReasonAutomatic}, ""))

	for _, c := range []struct {
		thread   checkpointdb.ThreadID
		id       checkpointdb.CheckpointID
		artifact string
		code     checkpointdb.Code
	}{
		{"", "c", report.ArtifactID, checkpointdb.ErrInvalidID},
		{"t", "", report.ArtifactID, checkpointdb.ErrInvalidID},
		{"t", "none", report.ArtifactID, checkpointdb.ErrCheckpointNotFound},
		{"t", "o", report.ArtifactID, checkpointdb.ErrCheckpointNotFound},
		{"other", "c", report.ArtifactID, checkpointdb.ErrCheckpointNotFound},
		{"nobody", "c", report.ArtifactID, checkpointdb.ErrCheckpointNotFound},
		{"other", "o", report.ArtifactID, ErrArtifactNotFound},
		{"t", "c", "", ErrArtifactNotFound},
		{"t", "c", report.Name, ErrArtifactNotFound},
	} {
		r, a, err := ReadArtifact(t.Context(), store, bucket, c.thread, c.id, c.artifact)
		if r != nil || a != (checkpointdb.Artifact{}) || checkpointdb.CodeOf(err) != c.code {
			t.Errorf("%q %q %q: %v, %+v, error is %v", c.thread, c.id, c.artifact, r, a, err)
		}
	}
	// An error must not tell that another thread has the checkpoint.
	_, _, missing := ReadArtifact(t.Context(), store, bucket, "t", "?", report.ArtifactID)
	_, _, foreign := ReadArtifact(t.Context(), store, bucket, "t", "o", report.ArtifactID)
	if diff := gocmp.Diff(strings.ReplaceAll(missing.Error(), "?", "o"), foreign.Error()); diff != "" {
		t.Errorf("errors differ (-missing +foreign):\n%s", diff)
	}
	if got, err := readReport(t, store, bucket); got != "first" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, _, err = ReadArtifact(t.Context(), failingStore{}, bucket, "t", "c", report.ArtifactID)
	if !errors.Is(err, errInjected) {
		t.Errorf("error is %v", err)
	}
}

type failingStore struct{}

func (failingStore) Get(context.Context, checkpointdb.CheckpointID) (checkpointdb.Checkpoint, error) {
	return checkpointdb.Checkpoint{}, errInjected
}

func TestReadArtifactDamagedBlobs(t *testing.T) {
	const content = "some content"
	key := artifactKeyOf(content)
	for what, c := range map[string]struct {
		code   checkpointdb.Code
		late   bool // not known before the content is read
		damage func(t *testing.T, bucket *blob.Bucket)
	}{
		"missing": {checkpointdb.ErrBlobMissing, false, func(t *testing.T, bucket *blob.Bucket) { must(t, bucket.Delete(t.Context(), string(key))) }},
		"short":   {checkpointdb.ErrBlobDamaged, false, func(t *testing.T, bucket *blob.Bucket) { put(t, bucket, key, "some") }},
		"empty":   {checkpointdb.ErrBlobDamaged, false, func(t *testing.T, bucket *blob.Bucket) { put(t, bucket, key, "") }},
		"long":    {checkpointdb.ErrBlobDamaged, false, func(t *testing.T, bucket *blob.Bucket) { put(t, bucket, key, content+"!") }},
		"flipped": {checkpointdb.ErrBlobDamaged, true, func(t *testing.T, bucket *blob.Bucket) { corrupt(t, bucket, key) }},
	} {
		t.Run(what, func(t *testing.T) {
			onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
				put(t, bucket, key, content)
				c.damage(t, bucket)
				store := mustStore(t, reportOf(content))
				r, _, err := ReadArtifact(t.Context(), store, bucket, "t", "c", report.ArtifactID)
				if (err == nil) != c.late {
					t.Fatalf("error is %v", err)
				}
				if c.late {
					var data []byte
					data, err = io.ReadAll(r)
					if len(data) >= len(content) {
						t.Errorf("read %q", data)
					}
					must(t, r.Close())
				}
				e, ok := errors.AsType[*checkpointdb.BlobError](err)
				want := checkpointdb.BlobError{Key: key, CheckpointID: "c", Path: report.ArtifactID}
				if ok {
					want.Problem = e.Problem
				}
				if !ok || *e != want || checkpointdb.CodeOf(err) != c.code {
					t.Errorf("error is %v", err)
				}
			})
		})
	}
}

func put(t testing.TB, bucket *blob.Bucket, key checkpointdb.BlobKey, content string) {
	t.Helper()
	must(t, bucket.WriteAll(t.Context(), string(key), []byte(content), nil))
}

func TestReadArtifactContext(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		content := random(1000)
		put(t, bucket, artifactKeyOf(content), content)
		store := mustStore(t, reportOf(content))
		ctx, cancel := context.WithCancel(t.Context())
		r, _, err := ReadArtifact(ctx, store, bucket, "t", "c", report.ArtifactID)
		must(t, err)
		p := make([]byte, 10)
		if n, err := r.Read(p); n != 10 || err != nil || !bytes.Equal(p, []byte(content)[:10]) {
			t.Errorf("read %q, %v", p[:n], err)
		}
		cancel()
		if _, err := r.Read(p); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		must(t, r.Close())
		if _, _, err := ReadArtifact(ctx, store, bucket, "t", "c", report.ArtifactID); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
	})
}
