package workspace_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"checkpointdb"
	"checkpointdb/workspace"
)

// makeProject makes a tree of 10,000 files in 500 directories, 67 MB in all.
func makeProject(b *testing.B) string {
	dir := b.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 10_000 {
		sub := filepath.Join(dir, fmt.Sprintf("pkg%02d/mod%d/src", i%50, i/50%10))
		if err := os.MkdirAll(sub, 0o777); err != nil {
			b.Fatal(err)
		}
		data := make([]byte, 2000+rng.IntN(9400))
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file%d.go", i)), data, 0o666); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

func openLocal(b *testing.B) *blob.Bucket {
	bucket, err := fileblob.OpenBucket(b.TempDir(), &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { bucket.Close() })
	return bucket
}

// BenchmarkCapture reads a tree whose blobs are in the bucket already, as
// nearly all are after a turn.
func BenchmarkCapture(b *testing.B) {
	project, bucket := makeProject(b), openLocal(b)
	captured, err := workspace.Capture(b.Context(), project, bucket, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("first capture uploaded %d blobs, %d bytes", captured.Uploaded, captured.UploadedBytes)
	for b.Loop() {
		captured, err := workspace.Capture(b.Context(), project, bucket, nil)
		if err != nil || captured.Uploaded != 0 {
			b.Fatal(captured.Uploaded, err)
		}
	}
}

// BenchmarkRestore compares with cp -a of the same tree (design §6).
func BenchmarkRestore(b *testing.B) {
	project, bucket := makeProject(b), openLocal(b)
	captured, err := workspace.Capture(b.Context(), project, bucket, nil)
	if err != nil {
		b.Fatal(err)
	}
	into := b.TempDir()
	n := 0
	target := func() string { n++; return filepath.Join(into, fmt.Sprint(n)) }
	b.Run("Restore", func(b *testing.B) {
		for b.Loop() {
			dir := target()
			if _, err := workspace.Restore(b.Context(), bucket, checkpointdb.Checkpoint{ID: "c", Files: captured.Files}, dir, nil); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			os.RemoveAll(dir)
			b.StartTimer()
		}
	})
	b.Run("cp", func(b *testing.B) {
		for b.Loop() {
			dir := target()
			if out, err := exec.Command("cp", "-a", project, dir).CombinedOutput(); err != nil {
				b.Fatal(err, string(out))
			}
			b.StopTimer()
			os.RemoveAll(dir)
			b.StartTimer()
		}
	})
	b.Run("RewindUnchanged", func(b *testing.B) {
		for b.Loop() {
			report, err := workspace.Restore(b.Context(), bucket, checkpointdb.Checkpoint{ID: "c", Files: captured.Files}, project, &workspace.RestoreOptions{Rewind: true})
			if err != nil || report.Unchanged != len(captured.Files) {
				b.Fatal(report.Unchanged, err)
			}
		}
	})
}
