package workspace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"checkpointdb"
	"checkpointdb/buckets"
)

func TestMain(m *testing.M) {
	if run := children[os.Getenv(childEnv)]; run != nil {
		run()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// A test that needs a process of its own starts this binary again with childEnv
// set to a key of children.
const childEnv = "WORKSPACE_TEST_CHILD"

var children = map[string]func(){}

// tree is a directory as a map from path to what is there: dir, file(content),
// script(content) or link(target). Two directories are equal when their trees
// are: names, bytes, executable bits, links and directories.
type tree map[string]string

const dir = "directory"

func file(content string) string   { return "file " + content }
func script(content string) string { return "script " + content }
func link(target string) string    { return "link " + target }

// makeTree adds t to the directory root, which it makes when it is missing.
func makeTree(t testing.TB, root string, content tree) {
	t.Helper()
	must(t, os.MkdirAll(root, 0o777))
	for _, p := range slices.Sorted(maps.Keys(content)) {
		full := filepath.Join(root, p)
		must(t, os.MkdirAll(filepath.Dir(full), 0o777))
		kind, text, _ := strings.Cut(content[p], " ")
		switch kind {
		case dir:
			must(t, os.MkdirAll(full, 0o777))
		case "file":
			must(t, os.WriteFile(full, []byte(text), 0o644))
		case "script":
			must(t, os.WriteFile(full, []byte(text), 0o755))
		case "link":
			must(t, os.Symlink(text, full))
		}
	}
}

// readTree reads the directory root, all of it, the marker of a restore too.
func readTree(t testing.TB, root string) tree {
	t.Helper()
	found := tree{}
	must(t, filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil || full == root {
			return err
		}
		p, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		switch d.Type() {
		case fs.ModeDir:
			found[p] = dir
		case fs.ModeSymlink:
			target, err := os.Readlink(full)
			found[p] = link(target)
			return err
		case 0:
			data, err := os.ReadFile(full)
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			found[p] = file(string(data))
			if isExecutable(info.Mode()) {
				found[p] = script(string(data))
			}
		default:
			found[p] = d.Type().String()
		}
		return nil
	}))
	return found
}

// withParents returns t with the directories that its paths imply.
func (t tree) withParents() tree {
	all := maps.Clone(t)
	for p := range t {
		for up := path.Dir(p); up != "."; up = path.Dir(up) {
			all[up] = dir
		}
	}
	return all
}

func checkTree(t testing.TB, root string, want tree) {
	t.Helper()
	if diff := gocmp.Diff(want.withParents(), readTree(t, root)); diff != "" {
		t.Errorf("tree differs (-want +got):\n%s", diff)
	}
}

// onEachBucket runs a test on memory and on a local directory.
func onEachBucket(t *testing.T, test func(t *testing.T, bucket *blob.Bucket)) {
	t.Run("mem", func(t *testing.T) { test(t, memBucket(t)) })
	t.Run("file", func(t *testing.T) { test(t, fileBucket(t, t.TempDir())) })
}

func memBucket(t testing.TB) *blob.Bucket {
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { bucket.Close() })
	return bucket
}

func fileBucket(t testing.TB, dir string) *blob.Bucket {
	bucket, err := buckets.Open(context.Background(), dir)
	must(t, err)
	t.Cleanup(func() { bucket.Close() })
	return bucket
}

func keyOf(content string) checkpointdb.BlobKey {
	return checkpointdb.FileKey(sha256.Sum256([]byte(content)))
}

// mustCapture captures dir as checkpoint "c".
func mustCapture(t testing.TB, dir string, bucket *blob.Bucket, opts *CaptureOptions) checkpointdb.Checkpoint {
	t.Helper()
	captured, err := Capture(t.Context(), dir, bucket, opts)
	must(t, err)
	must(t, checkpointdb.ValidateFiles(captured.Files))
	return checkpointdb.Checkpoint{ID: "c", Files: captured.Files}
}

func mustRestore(t testing.TB, bucket *blob.Bucket, c checkpointdb.Checkpoint, dir string, opts *RestoreOptions) Report {
	t.Helper()
	report, err := Restore(t.Context(), bucket, c, dir, opts)
	must(t, err)
	return report
}

// manifest makes a checkpoint of t and puts its blobs into the bucket, without
// a directory: for manifests that no directory would give.
func manifest(t testing.TB, bucket *blob.Bucket, content tree) checkpointdb.Checkpoint {
	t.Helper()
	c := checkpointdb.Checkpoint{ID: "c"}
	for p, what := range content {
		kind, text, _ := strings.Cut(what, " ")
		e := checkpointdb.Entry{Path: p}
		switch kind {
		case dir:
			e.Kind = checkpointdb.KindDir
		case "link":
			e.Kind, e.Target = checkpointdb.KindSymlink, text
		default:
			e.Kind, e.Executable = checkpointdb.KindFile, kind == "script"
			e.Size, e.BlobKey = int64(len(text)), keyOf(text)
			must(t, bucket.WriteAll(t.Context(), string(e.BlobKey), []byte(text), nil))
		}
		c.Files = append(c.Files, e)
	}
	slices.SortFunc(c.Files, func(a, b checkpointdb.Entry) int { return cmp.Compare(a.Path, b.Path) })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// checkError fails unless err has the class, and names path, quoted, when path
// is not empty.
func checkError(t testing.TB, err error, code checkpointdb.Code, path string) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("error is %v, want %s", err, code)
	}
	if path == "" {
		return
	}
	if quoted := fmt.Sprintf("%q", path); !strings.Contains(err.Error(), quoted) {
		t.Errorf("error does not name %s: %v", quoted, err)
	}
}

// listBucket returns the keys and contents of everything in the bucket.
func listBucket(t testing.TB, bucket *blob.Bucket) map[string]string {
	t.Helper()
	all := map[string]string{}
	for it := bucket.List(nil); ; {
		o, err := it.Next(t.Context())
		if o == nil {
			return all
		}
		must(t, err)
		data, err := bucket.ReadAll(t.Context(), o.Key)
		must(t, err)
		all[o.Key] = string(data)
	}
}

// checkBucket fails unless every blob has the bytes that its key says.
func checkBucket(t testing.TB, bucket *blob.Bucket) {
	t.Helper()
	for key, content := range listBucket(t, bucket) {
		if want := string(keyOf(content)); key != want {
			t.Errorf("under %s lie the bytes of %s", key, want)
		}
	}
}

// corrupt flips a bit of a blob.
func corrupt(t testing.TB, bucket *blob.Bucket, key checkpointdb.BlobKey) {
	t.Helper()
	data, err := bucket.ReadAll(context.Background(), string(key))
	must(t, err)
	data = bytes.Clone(data)
	data[len(data)-1] ^= 1
	must(t, bucket.WriteAll(context.Background(), string(key), data, nil))
}
