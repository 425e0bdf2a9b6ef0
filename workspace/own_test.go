package workspace

import (
	"os"
	"path/filepath"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"checkpointdb"
)

// entryPaths returns the paths of a manifest, in its order.
func entryPaths(files []checkpointdb.Entry) (paths []string) {
	for _, e := range files {
		paths = append(paths, e.Path)
	}
	return paths
}

// Database, index, log and the bucket lie in the workspace: every capture sees
// the same files, the first and the last, by whatever name the files are given.
func TestCase37OwnFilesAreLeftOut(t *testing.T) {
	for name, open := range map[string]func(dir string) *blob.Bucket{
		"buckets.Open": func(dir string) *blob.Bucket { return fileBucket(t, dir) },
		"fileblob": func(dir string) *blob.Bucket {
			bucket, err := fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, NoTempDir: true})
			must(t, err)
			t.Cleanup(func() { bucket.Close() })
			return bucket
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			content := tree{"a": file("a"), "state/b": file("b"), "d/db": file("of the user"), "d/blobs/x": file("of the user too")}
			makeTree(t, root, content)
			bucket := open(filepath.Join(root, "state", "blobs"))
			db := filepath.Join(root, "state", "store.db")
			store, err := checkpointdb.Open(db, nil)
			must(t, err)
			t.Cleanup(func() { store.Close() })
			makeTree(t, root, tree{"state/store.db.backup-1.tmp": file("a copy under way"), "state/log": file("line\n")})
			must(t, os.Symlink("state/store.db", filepath.Join(root, "link")))
			own := []string{filepath.Join(root, "link"), filepath.Join(root, "state", "log"), filepath.Join(root, "missing", "file"), db}
			opts := &CaptureOptions{Own: own, Index: filepath.Join(root, "index")}
			var c checkpointdb.Checkpoint
			for i := range 3 {
				captured, err := Capture(t.Context(), root, bucket, opts)
				must(t, err)
				if len(captured.Files) != len(content) {
					t.Errorf("capture %d has %q", i, entryPaths(captured.Files))
				}
				c = checkpointdb.Checkpoint{ID: "c", Files: captured.Files}
				makeTree(t, root, tree{"state/log": file("another line\n"), "index.123.tmp": file("")})
			}
			target := filepath.Join(t.TempDir(), "new")
			mustRestore(t, bucket, c, target, nil)
			checkTree(t, target, content)

			// A rewind removes what is new, and of the own files nothing.
			makeTree(t, root, tree{"new": file("new")})
			report := mustRestore(t, bucket, c, root, &RestoreOptions{Rewind: true, Own: append(own, opts.Index)})
			if len(report.Removed) != 1 || report.Removed[0] != "new" || len(report.Replaced) != 0 {
				t.Errorf("removed %q, replaced %q", report.Removed, report.Replaced)
			}
			mustRestore(t, bucket, c, filepath.Join(t.TempDir(), "again"), nil)
		})
	}
}

// A checkpoint that was made before the files were there has something in their
// place.
func TestRestoreDoesNotReplaceOwnFiles(t *testing.T) {
	target := t.TempDir()
	bucket := fileBucket(t, filepath.Join(target, "blobs"))
	is := tree{"db": file("database"), "blobs/mine": file("bytes")}
	makeTree(t, target, is)
	for p, was := range map[string]tree{
		"db":    {"db": file("other")},
		"blobs": {"blobs": link("elsewhere")},
	} {
		inMemory := memBucket(t)
		c := manifest(t, inMemory, was)
		for key, content := range listBucket(t, inMemory) {
			must(t, bucket.WriteAll(t.Context(), key, []byte(content), nil))
		}
		before := readTree(t, target)
		_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, Own: []string{filepath.Join(target, "db")}})
		checkError(t, err, ErrTargetRefused, p)
		checkTree(t, target, before)
	}
}

// The workspace is the bucket.
func TestOwnDirectoryIsNoWorkspace(t *testing.T) {
	root := t.TempDir()
	bucket := fileBucket(t, root)
	_, err := Capture(t.Context(), root, bucket, nil)
	checkError(t, err, checkpointdb.ErrInvalidArgument, root)
	_, err = Restore(t.Context(), bucket, checkpointdb.Checkpoint{ID: "c"}, root, &RestoreOptions{Rewind: true})
	checkError(t, err, checkpointdb.ErrInvalidArgument, root)
}
