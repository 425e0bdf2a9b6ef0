//go:build unix

package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
)

// largeEnv, set to anything, runs the tests that take minutes and gigabytes.
const largeEnv = "CHECKPOINTDB_TEST_LARGE"

func needLarge(t *testing.T) {
	if os.Getenv(largeEnv) == "" {
		t.Skipf("takes minutes and gigabytes; set %s=1 to run it", largeEnv)
	}
}

const childSource = "WORKSPACE_TEST_SOURCE"

func init() {
	children["there and back"] = func() {
		if err := childThereAndBack(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// childThereAndBack captures a directory, with secrets, and restores it into
// another.
func childThereAndBack(ctx context.Context) error {
	bucket, err := buckets.Open(ctx, os.Getenv(childBucket))
	if err != nil {
		return err
	}
	start := time.Now()
	captured, err := Capture(ctx, os.Getenv(childSource), bucket, &CaptureOptions{Secrets: map[string]string{"NOT THERE": "no such bytes here"}})
	if err != nil {
		return err
	}
	fmt.Printf("captured in %s, ", time.Since(start).Round(time.Millisecond))
	start = time.Now()
	_, err = Restore(ctx, bucket, checkpointdb.Checkpoint{ID: "c", Files: captured.Files}, os.Getenv(childTarget), nil)
	fmt.Printf("restored in %s", time.Since(start).Round(time.Millisecond))
	return errors.Join(err, bucket.Close())
}

// A process that captures and restores 2 GiB never has more than 256 MiB.
func TestCase36RealFileInBoundedMemory(t *testing.T) {
	needLarge(t)
	const size, limit = 2 << 30, 256 << 20
	base := t.TempDir()
	source, target := filepath.Join(base, "source"), filepath.Join(base, "target")
	must(t, os.Mkdir(source, 0o777))
	f, err := os.Create(filepath.Join(source, "data"))
	must(t, err)
	written := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, written), rand.NewChaCha8([32]byte{}), size)
	must(t, errors.Join(err, f.Close()))

	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=there and back", childSource+"="+source, childBucket+"="+filepath.Join(base, "bucket"), childTarget+"="+target)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss
	if runtime.GOOS != "darwin" {
		peak <<= 10
	}
	t.Logf("%d MiB: %s, with %d MiB resident at most", size>>20, out, peak>>20)
	if peak > limit {
		t.Errorf("took %d MiB, more than %d", peak>>20, limit>>20)
	}
	g, err := os.Open(filepath.Join(target, "data"))
	must(t, err)
	defer g.Close()
	restored := sha256.New()
	_, err = io.Copy(restored, g)
	must(t, err)
	if string(restored.Sum(nil)) != string(written.Sum(nil)) {
		t.Error("restored other bytes")
	}
}

// 100,000 small files, there and back.
func TestManySmallFiles(t *testing.T) {
	needLarge(t)
	const count = 100_000
	base := t.TempDir()
	source, target := filepath.Join(base, "source"), filepath.Join(base, "target")
	for i := range count {
		dir := filepath.Join(source, fmt.Sprintf("%02d", i%100), fmt.Sprintf("%02d", i/100%10))
		if i < 1000 {
			must(t, os.MkdirAll(dir, 0o777))
		}
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", i)), []byte(strings.Repeat(fmt.Sprintln(i), 100)), 0o666))
	}
	bucket := fileBucket(t, filepath.Join(base, "bucket"))
	opts := &CaptureOptions{Index: filepath.Join(base, "index")}
	var c checkpointdb.Checkpoint
	timed := func(what string, work func()) {
		start := time.Now()
		peak := peakHeap(work)
		t.Logf("%-24s %8s, heap grew by %d MiB at most", what, time.Since(start).Round(time.Millisecond), peak>>20)
		if peak > 256<<20 {
			t.Errorf("%s took %d MiB", what, peak>>20)
		}
	}
	timed("first capture", func() { c = mustCapture(t, source, bucket, opts) })
	if len(c.Files) != count {
		t.Fatalf("captured %d files", len(c.Files))
	}
	settle()
	timed("again, reading all", func() { mustCapture(t, source, bucket, opts) })
	timed("again, by the index", func() { mustCapture(t, source, bucket, opts) })
	timed("restore", func() { mustRestore(t, bucket, c, target, nil) })
	timed("rewind, nothing to do", func() {
		if report := mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true}); report.Unchanged != count {
			t.Errorf("%d files were not equal", count-report.Unchanged)
		}
	})
	if got := mustCapture(t, target, bucket, nil); len(got.Files) != count {
		t.Errorf("captured %d of what was restored", len(got.Files))
	}
}
