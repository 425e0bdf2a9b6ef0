package buckets_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"checkpointdb"
	"checkpointdb/buckets"
)

func fileKey(i int) string { return fmt.Sprintf("%s%064x", checkpointdb.FileKeyPrefix, i) }

// The system calls of two writes into a new directory, in their order: bytes
// are synced before they get their name, then the name, then the names of the
// new directories; the second write finds those known.
func TestWriteDurableOrder(t *testing.T) {
	if dir := os.Getenv("CHECKPOINTDB_TRACED_DIR"); dir != "" { // the traced child
		b := openDir(t, dir, nil)
		defer b.Close()
		for i := range 2 {
			if err := buckets.WriteDurable(t.Context(), b, fileKey(i), 1, strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace to see system calls")
	}
	dir := t.TempDir()
	trace := filepath.Join(t.TempDir(), "trace")
	child := exec.Command(strace, "-f", "-y", "-o", trace,
		"-e", "trace=mkdir,mkdirat,openat,write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat",
		os.Args[0], "-test.run=^TestWriteDurableOrder$", "-test.count=1")
	child.Env = append(os.Environ(), "CHECKPOINTDB_TRACED_DIR="+dir)
	if out, err := child.CombinedOutput(); err != nil {
		if bytes.Contains(out, []byte("ptrace")) {
			t.Skipf("may not trace: %s", out)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	log, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	call := regexp.MustCompile(`^\d+ +(\w+?)(?:at2?)?\(.*?` + regexp.QuoteMeta(dir) + `/?([^">]*)(.*)$`)
	for line := range strings.Lines(string(log)) {
		m := call.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || m[1] == "open" && !strings.Contains(m[3], "O_CREAT") || strings.Contains(m[3], "EEXIST") {
			continue
		}
		name := regexp.MustCompile(`\.[0-9a-f]+\.tmp`).ReplaceAllString(m[2], " tmp")
		name = strings.NewReplacer(fileKey(0), "object 0", fileKey(1), "object 1").Replace(name)
		got = append(got, strings.TrimSpace(m[1]+" "+name))
	}
	want := []string{
		"mkdir sandbox-files",
		"mkdir sandbox-files/sha256",
		"open object 0 tmp",
		"write object 0 tmp",
		"fsync object 0 tmp",
		"rename object 0 tmp",
		"unlink object 0 tmp", // the driver's clean-up, after it has renamed the file away
		"fsync sandbox-files/sha256",
		"fsync sandbox-files",
		"fsync", // the bucket's own directory
		"open object 1 tmp",
		"write object 1 tmp",
		"fsync object 1 tmp",
		"rename object 1 tmp",
		"unlink object 1 tmp",
		"fsync sandbox-files/sha256",
	}
	// os.Remove tries two system calls on what is not there.
	var calls []string
	for i, c := range got {
		if i == 0 || c != got[i-1] {
			calls = append(calls, c)
		}
	}
	if g, w := strings.Join(calls, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("system calls:\n%s\n\nwant:\n%s", g, w)
	}
}

// A power cut, played by shutting a file system down without flushing its
// journal. What WriteDurable wrote is there afterwards; the same bytes written
// without it are not, which shows that the cut is one.
func TestWriteDurablePowerCut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	work := t.TempDir()
	image, mnt := filepath.Join(work, "image"), filepath.Join(work, "mnt")
	for _, step := range []func() error{
		func() error { return os.WriteFile(image, nil, 0o600) },
		func() error { return os.Truncate(image, 64<<20) },
		func() error { return os.Mkdir(mnt, 0o700) },
		func() error { return exec.Command("mkfs.ext4", "-q", image).Run() },
		func() error { return exec.Command("mount", "-o", "loop", image, mnt).Run() },
	} {
		if err := step(); err != nil {
			t.Skipf("can't mount an ext4 file system here: %v", err)
		}
	}
	defer exec.Command("umount", mnt).Run()

	b, err := buckets.Open(t.Context(), filepath.Join(mnt, "new", "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("x"), 100<<10)
	const plain, written = "plain", 20
	if err := b.WriteAll(t.Context(), plain, content, nil); err != nil {
		t.Fatal(err)
	}
	for i := range written {
		if err := buckets.WriteDurable(t.Context(), b, fileKey(i), int64(len(content)), bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()
	cutPower(t, mnt)
	if out, err := exec.Command("umount", mnt).CombinedOutput(); err != nil {
		t.Fatalf("umount: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, mnt).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}

	b, err = buckets.Open(t.Context(), filepath.Join(mnt, "new", "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i := range written {
		got, err := b.ReadAll(context.Background(), fileKey(i))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("object %d has %d bytes after the cut, want %d: %v", i, len(got), len(content), err)
		}
	}
	if got, err := b.ReadAll(context.Background(), plain); err == nil && bytes.Equal(got, content) {
		t.Error("an object that was not synced survived too: the cut lost nothing and proves nothing")
	}
}

// cutPower stops the file system at dir where it stands (FS_IOC_SHUTDOWN
// without flushing the log).
func cutPower(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const shutdown, noLogFlush = 0x8004587d, 2
	how := uint32(noLogFlush)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		t.Skipf("can't cut the power here: %v", errno)
	}
}
