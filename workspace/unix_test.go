//go:build unix

package workspace

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"checkpointdb"
	"checkpointdb/buckets"
)

// diskUse returns how much of the disk a file takes.
func diskUse(t *testing.T, p string) (int64, bool) {
	info, err := os.Stat(p)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512, true
}

func TestCase28NamesThatAreNotUTF8(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"new\nline": file("1"), "esc\x1b[2J": file("2"), "sub/ok": file("3")})
	if err := errors.Join(os.WriteFile(filepath.Join(root, "sub/\xfe"), []byte("4"), 0o666),
		os.WriteFile(filepath.Join(root, "sub/\xff"), []byte("5"), 0o666)); err != nil {
		t.Skipf("the file system takes no such names: %v", err)
	}
	_, err := Capture(t.Context(), root, bucket, nil)
	checkError(t, err, checkpointdb.ErrInvalidEntry, "sub/\xfe")
	if n := len(listBucket(t, bucket)); n != 0 {
		t.Errorf("%d blobs stored", n)
	}
	// A directory, and the target of a link.
	must(t, os.Remove(filepath.Join(root, "sub/\xff")))
	must(t, os.Rename(filepath.Join(root, "sub/\xfe"), filepath.Join(root, "sub/x")))
	must(t, os.Rename(filepath.Join(root, "sub"), filepath.Join(root, "\xfe")))
	_, err = Capture(t.Context(), root, bucket, nil)
	checkError(t, err, checkpointdb.ErrInvalidEntry, "\xfe/ok")
	must(t, os.Rename(filepath.Join(root, "\xfe"), filepath.Join(root, "sub")))
	must(t, os.Symlink("\xfe", filepath.Join(root, "link")))
	_, err = Capture(t.Context(), root, bucket, nil)
	checkError(t, err, checkpointdb.ErrInvalidEntry, "link")
	must(t, os.Remove(filepath.Join(root, "link")))

	// Odd but valid names come back byte for byte.
	c := mustCapture(t, root, bucket, nil)
	target := filepath.Join(t.TempDir(), "new")
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, tree{"new\nline": file("1"), "esc\x1b[2J": file("2"), "sub/ok": file("3"), "sub/x": file("4")})

	// In the target of a rewind such a name is just another thing to remove.
	must(t, os.WriteFile(filepath.Join(target, "sub/\xfe"), nil, 0o666))
	if report := mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true}); !slices.Equal(report.Removed, []string{"sub/\xfe"}) {
		t.Errorf("removed %q", report.Removed)
	}
}

func TestCase29SpecialFiles(t *testing.T) {
	within(t, 2*time.Second, func() {
		root, bucket := t.TempDir(), memBucket(t)
		makeTree(t, root, tree{"f": file("f"), "only-special": dir})
		must(t, syscall.Mkfifo(filepath.Join(root, "pipe\x1b"), 0o666))
		_, err := Capture(t.Context(), root, bucket, nil)
		checkError(t, err, ErrSpecialFile, "pipe\x1b")
		must(t, os.Rename(filepath.Join(root, "pipe\x1b"), filepath.Join(root, "pipe")))

		listener, err := net.Listen("unix", filepath.Join(root, "only-special/s"))
		must(t, err)
		defer listener.Close()
		want := []string{"only-special/s", "pipe"}
		if err := syscall.Mknod(filepath.Join(root, "null"), syscall.S_IFCHR|0o666, 1<<8|3); err == nil {
			want = []string{"null", "only-special/s", "pipe"}
		} else {
			t.Logf("without a device: %v", err)
		}
		_, err = Capture(t.Context(), root, bucket, nil)
		checkError(t, err, ErrSpecialFile, want[0])
		if n := len(listBucket(t, bucket)); n != 0 {
			t.Errorf("%d blobs stored", n)
		}

		captured, err := Capture(t.Context(), root, bucket, &CaptureOptions{Policy: Policy{SkipSpecial: true}})
		must(t, err)
		var skipped []string
		for _, s := range captured.Skipped {
			if s.Reason != ErrSpecialFile {
				t.Errorf("skipped for another reason: %+v", s)
			}
			skipped = append(skipped, s.Path)
		}
		if !slices.Equal(skipped, want) {
			t.Errorf("skipped %q, want %q", skipped, want)
		}
		var paths []string
		for _, e := range captured.Files {
			paths = append(paths, e.Path)
		}
		if !slices.Equal(paths, []string{"f", "only-special"}) {
			t.Errorf("captured %q", paths)
		}

		// A rewind removes them, and puts files in their place.
		c := manifest(t, bucket, tree{"pipe": file("a file"), "only-special/s": dir})
		mustRestore(t, bucket, c, root, &RestoreOptions{Rewind: true})
		checkTree(t, root, tree{"pipe": file("a file"), "only-special/s": dir})
	})
}

// A pipe that takes the place of a file or a directory just before it is opened
// does not hold anybody up.
func TestCase29PipeTakesThePlaceOfAFile(t *testing.T) {
	for _, c := range []struct{ point, path string }{{"open", "f"}, {"put", "f"}, {"list", "d"}} {
		t.Run(c.point, func(t *testing.T) {
			within(t, 2*time.Second, func() {
				root := t.TempDir()
				makeTree(t, root, tree{"f": file("f"), "d/x": file("x")})
				_, err := Capture(t.Context(), root, memBucket(t), &CaptureOptions{hook: func(point, p string) {
					if point == c.point && p == c.path {
						must(t, os.RemoveAll(filepath.Join(root, p)))
						must(t, syscall.Mkfifo(filepath.Join(root, p), 0o666))
					}
				}})
				checkError(t, err, ErrSpecialFile, c.path) // found by the second attempt
			})
		})
	}
	t.Run("the directory itself", func(t *testing.T) {
		within(t, 2*time.Second, func() {
			p := filepath.Join(t.TempDir(), "pipe")
			must(t, syscall.Mkfifo(p, 0o666))
			if _, err := Capture(t.Context(), p, memBucket(t), nil); err == nil {
				t.Error("captured a pipe")
			}
		})
	})
	t.Run("the marker", func(t *testing.T) {
		within(t, 2*time.Second, func() {
			root := t.TempDir()
			must(t, os.Mkdir(filepath.Join(root, markerDir), 0o777))
			must(t, syscall.Mkfifo(filepath.Join(root, stateName), 0o666))
			_, err := Capture(t.Context(), root, memBucket(t), nil)
			checkError(t, err, ErrRestoreUnfinished, "")
		})
	})
}

// within fails when work takes longer, instead of hanging.
func within(t *testing.T, limit time.Duration, work func()) {
	t.Helper()
	timer := time.AfterFunc(limit, func() { panic("blocked") })
	defer timer.Stop()
	work()
}

func TestCase38UmaskAndSmallThings(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	was := tree{"run.sh": script("#!/bin/sh\necho it runs\n"), "empty": dir, "zero": file(""), "sub/f": file("f")}
	makeTree(t, root, was)
	c := mustCapture(t, root, bucket, nil)
	for _, mask := range []int{0o077, 0o022, 0, 0o177} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			target := filepath.Join(t.TempDir(), "new")
			if mask&0o100 != 0 { // under which no directory that is made can be used
				makeTree(t, target, tree{"empty": dir, "sub": dir, markerDir: dir})
			}
			old := syscall.Umask(mask)
			_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true})
			syscall.Umask(old)
			must(t, err)
			checkTree(t, target, was)
			out, err := exec.Command(filepath.Join(target, "run.sh")).CombinedOutput()
			if err != nil || string(out) != "it runs\n" {
				t.Errorf("script: %q %v", out, err)
			}
			for p, perm := range map[string]os.FileMode{"run.sh": 0o777&^os.FileMode(mask) | 0o100, "zero": 0o666 &^ os.FileMode(mask)} {
				info, err := os.Stat(filepath.Join(target, p))
				must(t, err)
				if info.Mode().Perm() != perm {
					t.Errorf("mode of %s is %v, want %v", p, info.Mode().Perm(), perm)
				}
			}
		})
	}

	// Only the executable bit changes: another manifest, the same blob.
	must(t, os.Chmod(filepath.Join(root, "zero"), 0o755))
	changed, err := Capture(t.Context(), root, bucket, nil)
	must(t, err)
	if changed.Uploaded != 0 || gocmp.Equal(c.Files, changed.Files) {
		t.Errorf("%d uploads, entries %v", changed.Uploaded, changed.Files)
	}
	report := mustRestore(t, bucket, c, root, &RestoreOptions{Rewind: true})
	if !slices.Equal(report.Replaced, []string{"zero"}) {
		t.Errorf("replaced %v", report.Replaced)
	}
	checkTree(t, root, was)

	// The empty workspace is a valid checkpoint and clears the target.
	empty := mustCapture(t, t.TempDir(), bucket, nil)
	if len(empty.Files) != 0 {
		t.Errorf("entries of nothing: %v", empty.Files)
	}
	mustRestore(t, bucket, empty, root, &RestoreOptions{Rewind: true})
	checkTree(t, root, tree{})
}

// A child restores the manifest in a file, from a bucket, into a directory.
const (
	childManifest = "WORKSPACE_TEST_MANIFEST"
	childBucket   = "WORKSPACE_TEST_BUCKET"
	childTarget   = "WORKSPACE_TEST_TARGET"
	childKillAt   = "WORKSPACE_TEST_KILL_AT"
)

func init() {
	children["restore"] = func() {
		if err := childRestore(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// childRestore rewinds, and kills itself at the event of the number in
// childKillAt, if there is one.
func childRestore() error {
	killAt, _ := strconv.Atoi(os.Getenv(childKillAt))
	var c checkpointdb.Checkpoint
	data, err := os.ReadFile(os.Getenv(childManifest))
	if err != nil {
		return err
	}
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&c); err != nil {
		return err
	}
	bucket, err := buckets.Open(context.Background(), os.Getenv(childBucket))
	if err != nil {
		return err
	}
	defer bucket.Close()
	var count atomic.Int64
	_, err = Restore(context.Background(), bucket, c, os.Getenv(childTarget), &RestoreOptions{Rewind: true, hook: func(string, string) {
		if count.Add(1) == int64(killAt) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}})
	return err
}

// restoreCommand returns the command that runs childRestore.
func restoreCommand(t *testing.T, c checkpointdb.Checkpoint, bucketDir, target string, killAt int) *exec.Cmd {
	t.Helper()
	var data bytes.Buffer
	must(t, gob.NewEncoder(&data).Encode(c))
	manifest := filepath.Join(filepath.Dir(bucketDir), "manifest")
	must(t, os.WriteFile(manifest, data.Bytes(), 0o644))
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=restore", childManifest+"="+manifest, childBucket+"="+bucketDir,
		childTarget+"="+target, childKillAt+"="+strconv.Itoa(killAt))
	return cmd
}

// wasKilled runs cmd and reports whether it died of SIGKILL; if not, it must
// have succeeded.
func wasKilled(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// twentyWrites has 20 entries to write over what it is paired with, which also
// needs removals, new directories and replacements.
func twentyWrites() (is, was tree) {
	is = tree{"same": file("same"), "gone/a/b": file("gone"), "was-dir/x": file("x"), "was-file": file("f"), ".env": file("mine")}
	was = tree{"same": file("same"), "was-dir": file("now a file"), "was-file/y": script("now a directory"), "link": link("same"), "empty": dir}
	for i := range 16 {
		is[fmt.Sprintf("d%d/f%d", i%3, i)] = file("old")
		was[fmt.Sprintf("d%d/f%d", i%5, i)] = file(strings.Repeat(fmt.Sprint(i), 10_000))
	}
	return is, was
}

// The process is killed at every step of a restore. Whatever is there then is
// the old state, the new state, or marked as unfinished; and it can be finished.
func TestCase35KilledRestore(t *testing.T) {
	is, was := twentyWrites()
	base := t.TempDir()
	bucketDir := filepath.Join(base, "blobs")
	bucket := fileBucket(t, bucketDir)
	c := manifest(t, bucket, was)
	final := tree{".env": file("mine")}
	maps.Copy(final, was)
	marked := 0
	for k := 1; ; k++ {
		target := filepath.Join(base, fmt.Sprint("target", k))
		makeTree(t, target, is)
		killed := wasKilled(t, restoreCommand(t, c, bucketDir, target, k))
		_, err := Capture(t.Context(), target, bucket, nil)
		id, found, markErr := UnfinishedRestore(target)
		must(t, markErr)
		switch {
		case !killed:
			must(t, err)
			checkTree(t, target, final)
			if marked < 20 {
				t.Errorf("only %d steps were seen", marked)
			}
			return
		case found:
			marked++
			checkError(t, err, ErrRestoreUnfinished, target)
			if id != c.ID {
				t.Errorf("marker names %q", id)
			}
		default:
			must(t, err)
			if got := readTree(t, target); !gocmp.Equal(got, is.withParents()) && !gocmp.Equal(got, final.withParents()) {
				t.Fatalf("step %d: a mixture is not marked", k)
			}
		}
		mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
		checkTree(t, target, final)
	}
}

// A restore into a new directory is finished without leave to destroy anything.
func TestCase35KilledFreshRestoreIsFinishedWithoutRewind(t *testing.T) {
	_, was := twentyWrites()
	base := t.TempDir()
	bucketDir, target := filepath.Join(base, "blobs"), filepath.Join(base, "target")
	bucket := fileBucket(t, bucketDir)
	c := manifest(t, bucket, was)
	if !wasKilled(t, restoreCommand(t, c, bucketDir, target, 15)) {
		t.Fatal("not killed")
	}
	if _, found, err := UnfinishedRestore(target); !found || err != nil {
		t.Fatalf("no marker, %v", err)
	}
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, was)
}

// Temporary files of killed restores do not add up (here case 49, as far as it
// concerns a restore), and a restore to another checkpoint clears them too.
func TestCase49KilledRestoresLeaveNothingBehind(t *testing.T) {
	is, was := twentyWrites()
	base := t.TempDir()
	bucketDir, target := filepath.Join(base, "blobs"), filepath.Join(base, "target")
	bucket := fileBucket(t, bucketDir)
	c := manifest(t, bucket, was)
	makeTree(t, target, is)
	for range 5 {
		if !wasKilled(t, restoreCommand(t, c, bucketDir, target, 2)) {
			t.Fatal("not killed")
		}
		must(t, os.WriteFile(filepath.Join(target, markerDir, "9999"), []byte("left"), 0o666))
	}
	left, err := os.ReadDir(filepath.Join(target, markerDir))
	must(t, err)
	if len(left) > workers+2 {
		t.Errorf("%d files left", len(left))
	}
	mustRestore(t, bucket, checkpointdb.Checkpoint{ID: "empty"}, target, &RestoreOptions{Rewind: true})
	checkTree(t, target, tree{".env": file("mine")})
}

// Directories without write permission are in nobody's way, and permissions are
// those of an ordinary user: root is held up by nothing.
func TestRestoreIntoReadOnlyDirectories(t *testing.T) {
	base, err := os.MkdirTemp("", "workspace")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	must(t, os.Chmod(base, 0o755))
	bucketDir, target := filepath.Join(base, "blobs"), filepath.Join(base, "target")
	bucket := fileBucket(t, bucketDir)
	c := manifest(t, bucket, tree{"ro/f": file("new"), "ro/sub/added": file("a"), "ro/l": link("f"), "ro/deep/er": dir, "unreadable": file("u")})
	makeTree(t, target, tree{"ro/f": file("old"), "ro/gone": file("g"), "ro/sub/gone": file("g"), "ro/l": link("g"), "unreadable": file("u")})
	must(t, os.Chmod(filepath.Join(target, "unreadable"), 0))
	for _, p := range []string{"ro/sub", "ro", ""} {
		must(t, os.Chmod(filepath.Join(target, p), 0o555))
	}
	cmd := restoreCommand(t, c, bucketDir, target, 0)
	if os.Geteuid() == 0 {
		const nobody = 65534
		exe := filepath.Join(base, "test.exe")
		data, err := os.ReadFile(cmd.Path)
		must(t, err)
		must(t, os.WriteFile(exe, data, 0o755))
		cmd.Path = exe
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		must(t, filepath.WalkDir(base, func(p string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, nobody, nobody))
		}))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checkTree(t, target, tree{"ro/f": file("new"), "ro/sub/added": file("a"), "ro/l": link("f"), "ro/deep/er": dir, "unreadable": file("u")})
}
