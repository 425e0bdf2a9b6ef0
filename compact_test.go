package checkpointdb

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"checkpointdb/internal/outfile"
)

// fillWithHoles makes a store of which most pages are free.
func fillWithHoles(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.Background()
	fillStore(t, s)
	lease, err := s.AcquireWriter(ctx, "a thread that goes")
	must(t, err)
	head := CheckpointID("")
	for i := range 10 {
		c := testCheckpoint("a thread that goes", i, head)
		c.ID += "-goes"
		for n := range 300 {
			c.Files = append(c.Files, Entry{Path: fmt.Sprint("many/", n), Kind: KindFile, BlobKey: testKey(fmt.Sprint("many", i, n))})
		}
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	_, err = s.DeleteCheckpoints(ctx, lease.Writer, 1)
	must(t, err)
}

func TestCompact(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	fillWithHoles(t, s)
	dir := t.TempDir()
	path := filepath.Join(dir, "compact.db")
	var done, total int64
	report, err := s.Compact(ctx, path, &CompactOptions{Progress: func(d, n int64) {
		if d < done || d > n {
			t.Errorf("progress goes from %d to %d of %d", done, d, n)
		}
		done, total = d, n
	}})
	must(t, err)
	if done == 0 || done != total {
		t.Errorf("progress ended at %d of %d", done, total)
	}
	wantNames(t, dir, "compact.db")
	before, err := os.Stat(s.Path())
	must(t, err)
	after, err := os.Stat(path)
	must(t, err)
	if report.Before != before.Size() || report.After != after.Size() {
		t.Errorf("report %+v, the files have %d and %d bytes", report, before.Size(), after.Size())
	}
	if runtime.GOOS != "windows" && (report.After > report.Before/2 || after.Mode() != 0o600) {
		t.Errorf("report %+v, mode %v", report, after.Mode())
	}
	compact := openTestAt(t, path, nil)
	wantSameRows(t, s, compact)
	if compact.id != s.id {
		t.Errorf("store id is %x, was %x", compact.id, s.id)
	}
	for _, existing := range []string{path, s.Path()} {
		if _, err := s.Compact(ctx, existing, nil); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), existing) {
			t.Errorf("over %s: %v", existing, err)
		}
	}
	// A copy is a store like any other.
	lease, err := compact.AcquireWriter(ctx, "new")
	must(t, err)
	must(t, compact.Append(ctx, lease.Writer, testCheckpoint("new", 100, ""), ""))
}

func TestCompactFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be replaced here")
	}
	ctx := context.Background()
	dir := t.TempDir()
	path, untouched := filepath.Join(dir, "test.db"), filepath.Join(t.TempDir(), "copy.db")
	s := openTestAt(t, path, nil)
	fillWithHoles(t, s)
	must(t, s.BackupFile(ctx, untouched, nil))
	if _, err := CompactFile(ctx, path, &CompactOptions{LockTimeout: time.Millisecond}); !errors.Is(err, ErrInUse) {
		t.Errorf("of an open file: %v", err)
	}
	must(t, s.Close())
	reading, err := Open(path, &Options{ReadOnly: true})
	must(t, err)
	if _, err := CompactFile(ctx, path, &CompactOptions{LockTimeout: time.Millisecond}); !errors.Is(err, ErrInUse) {
		t.Errorf("of a file that is being read: %v", err)
	}
	must(t, reading.Close())

	must(t, os.Chmod(path, 0o640))
	link := filepath.Join(t.TempDir(), "link.db")
	must(t, os.Symlink(path, link))
	report, err := CompactFile(ctx, link, nil)
	must(t, err)
	wantNames(t, dir, "test.db")
	info, err := os.Lstat(path)
	must(t, err)
	if report.After != info.Size() || report.After > report.Before/2 || info.Mode() != 0o640 {
		t.Errorf("report %+v, the file has %d bytes and mode %v", report, info.Size(), info.Mode())
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link is now %v, %v", info, err)
	}
	wantSameRows(t, openTestAt(t, untouched, nil), openTestAt(t, path, nil))

	none := filepath.Join(dir, "none.db")
	if _, err := CompactFile(ctx, none, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	wantNames(t, dir, "test.db")
}

// What is damaged would be lost without a trace.
func TestCompactFileRefusesDamage(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be replaced here")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "test.db")
	s := openTestAt(t, path, nil)
	fillStore(t, s)
	must(t, s.Close())
	data, err := os.ReadFile(path)
	must(t, err)
	row, pages := []byte("only a transcript"), 0
	for i := bytes.Index(data, row); i >= 0; i = bytes.Index(data, row) {
		page := os.Getpagesize()
		copy(data[i/page*page:], make([]byte, page)) // its page, now or before
		pages++
	}
	if pages == 0 {
		t.Fatal("the row to damage is not there")
	}
	must(t, os.WriteFile(path, data, 0o600))
	if _, err := CompactFile(context.Background(), path, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
	after, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(data, after) {
		t.Error("the file was changed")
	}
	wantNames(t, dir, "test.db")
}

func TestCompactStops(t *testing.T) {
	s := openTest(t, nil)
	fillStore(t, s)
	dir := t.TempDir()
	path := filepath.Join(dir, "copy.db")
	stopped := stopEverywhere(t, func(ctx context.Context) error {
		_, err := s.Compact(ctx, path, nil)
		return err
	}, func() { wantNames(t, dir) })
	wantNames(t, dir, "copy.db")
	if stopped < 10 {
		t.Errorf("looked at the context %d times", stopped)
	}
	copied, err := Open(path, nil)
	must(t, err)
	wantSameRows(t, s, copied)
	must(t, copied.Close())
	if runtime.GOOS == "windows" {
		return
	}
	stopEverywhere(t, func(ctx context.Context) error {
		_, err := CompactFile(ctx, path, nil)
		return err
	}, func() { wantNames(t, dir, "copy.db") })
	wantNames(t, dir, "copy.db")
	wantSameRows(t, s, openTestAt(t, path, nil))
}

// Changes that are acknowledged during a compaction are in the store, those from
// before it in the copy too, and the handle goes on as it was opened.
func TestCase7BesideWriters(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{LeaseDuration: time.Hour})
	fillWithHoles(t, s)
	dir := t.TempDir()
	var acknowledged [4]atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range acknowledged {
		wg.Go(func() {
			thread := ThreadID(fmt.Sprint("writer-", w))
			lease, err := s.AcquireWriter(ctx, thread)
			head := CheckpointID("")
			for i := 0; err == nil; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c := testCheckpoint(thread, i%50, head)
				c.ID = CheckpointID(fmt.Sprintf("%s-%d", thread, i))
				if err = s.Append(ctx, lease.Writer, c, head); err == nil {
					acknowledged[w].Store(int64(i) + 1)
					head = c.ID
				}
			}
			t.Error(err)
		})
	}
	for w := range acknowledged {
		for acknowledged[w].Load() == 0 && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
	}
	for round := range 5 {
		var before [len(acknowledged)]int64
		for w := range acknowledged {
			before[w] = acknowledged[w].Load()
		}
		path := filepath.Join(dir, fmt.Sprint(round))
		_, err := s.Compact(ctx, path, nil)
		must(t, err)
		copied := openTestAt(t, path, nil)
		for w, n := range before {
			if n > 0 {
				_, err := copied.Get(ctx, CheckpointID(fmt.Sprintf("writer-%d-%d", w, n-1)))
				must(t, err)
			}
		}
	}
	close(stop)
	wg.Wait()
	for w := range acknowledged {
		head, err := s.Head(ctx, ThreadID(fmt.Sprint("writer-", w)))
		must(t, err)
		if n := acknowledged[w].Load(); n == 0 || head != CheckpointID(fmt.Sprintf("writer-%d-%d", w, n-1)) {
			t.Errorf("head %q after %d appends", head, n)
		}
	}
	if s.db.NoSync || s.opts.LeaseDuration != time.Hour {
		t.Error("the handle has other options now")
	}
}

// TestCase7WaitingOpen starts a process that waits in Open while the file is
// replaced. What it then writes must be in the file that has the name.
func TestCase7WaitingOpen(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_WAITING"); path != "" {
		waitingChild(path)
	}
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be replaced here")
	}
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "test.db")
	s, err := Open(path, nil)
	must(t, err)
	fillWithHoles(t, s)
	cmd := exec.Command(os.Args[0], "-test.run=^TestCase7WaitingOpen$")
	cmd.Env = append(os.Environ(), "CHECKPOINTDB_TEST_WAITING="+path)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	waitUntilOpen(t, cmd.Process.Pid, path)
	// What CompactFile does once it has the lock.
	out, err := outfile.Replace(path)
	must(t, err)
	report, err := s.compactTo(ctx, out, path, nil)
	must(t, err)
	must(t, s.Close())
	must(t, cmd.Wait())
	if report.After > report.Before/2 {
		t.Errorf("report %+v", report)
	}
	after := openTestAt(t, path, nil)
	if head, err := after.Head(ctx, "waiting"); err != nil || head != "cp-100" {
		t.Errorf("head %q, %v", head, err)
	}
}

func waitingChild(path string) {
	ctx := context.Background()
	s, err := Open(path, &Options{LockTimeout: time.Minute})
	if err == nil {
		var lease Lease
		if lease, err = s.AcquireWriter(ctx, "waiting"); err == nil {
			err = errors.Join(s.Append(ctx, lease.Writer, testCheckpoint("waiting", 100, ""), ""), s.Close())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// waitUntilOpen waits until the process has the file open, where the system
// tells, and a while elsewhere.
func waitUntilOpen(t *testing.T, pid int, path string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		time.Sleep(time.Second)
		return
	}
	for range 1000 {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		must(t, err)
		for _, link := range links {
			if name, err := os.Readlink(link); err == nil && name == path {
				time.Sleep(20 * time.Millisecond) // the first look at the file closes it again
				if name, err := os.Readlink(link); err == nil && name == path {
					return
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the process does not open the file")
}

// However compactions in place and short-lived writers come together, what was
// acknowledged is there.
func TestCase7InPlaceBesideWriters(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be replaced here")
	}
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "test.db")
	s, err := Open(path, nil)
	must(t, err)
	fillStore(t, s)
	must(t, s.Close())
	const rounds = 5
	wait := time.Minute
	var writing, all sync.WaitGroup
	for w := range 2 {
		writing.Go(func() {
			thread := ThreadID(fmt.Sprint("writer-", w))
			head := CheckpointID("")
			for i := range rounds {
				s, err := Open(path, &Options{LockTimeout: wait})
				if err != nil {
					t.Error(err)
					return
				}
				lease, err := s.AcquireWriter(ctx, thread)
				if err == nil {
					c := testCheckpoint(thread, i, head)
					c.ID = CheckpointID(fmt.Sprintf("%s-%d", thread, i))
					head, err = c.ID, s.Append(ctx, lease.Writer, c, head)
				}
				if err := errors.Join(err, s.Release(ctx, lease.Writer), s.Close()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	compactions := 0
	all.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := CompactFile(ctx, path, &CompactOptions{LockTimeout: wait}); err != nil {
				t.Error(err)
				return
			}
			compactions++
		}
	})
	writing.Wait()
	close(done)
	all.Wait()
	s = openTestAt(t, path, nil)
	for w := range 2 {
		thread := ThreadID(fmt.Sprint("writer-", w))
		if head, err := s.Head(ctx, thread); err != nil || head != CheckpointID(fmt.Sprintf("%s-%d", thread, rounds-1)) {
			t.Errorf("head of %s is %q, %v", thread, head, err)
		}
	}
	t.Logf("%d compactions", compactions)
}

// TestCase7NoRoom runs where no file can become as large as a copy.
func TestCase7NoRoom(t *testing.T) {
	if dir := os.Getenv("CHECKPOINTDB_TEST_NOROOM"); dir != "" {
		noRoomChild(dir)
	}
	if testing.Short() {
		t.Skip("starts a process")
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCase7NoRoom$")
	cmd.Env = append(os.Environ(), "CHECKPOINTDB_TEST_NOROOM="+dir)
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), "SKIP") {
		t.Skip(string(out))
	}
	if err != nil || !strings.Contains(string(out), "all as it should be") {
		t.Fatalf("%v\n%s", err, out)
	}
	wantNames(t, dir, "test.db")
	openTestAt(t, filepath.Join(dir, "test.db"), nil)
}

func noRoomChild(dir string) {
	fail := func(format string, args ...any) { fmt.Printf(format+"\n", args...); os.Exit(1) }
	ctx := context.Background()
	path := filepath.Join(dir, "test.db")
	open := func() (*Store, Writer) {
		s, err := Open(path, nil)
		if err != nil {
			fail("open: %v", err)
		}
		lease, err := s.AcquireWriter(ctx, "t")
		if err != nil && !errors.Is(err, ErrWriterConflict) {
			fail("acquire: %v", err)
		}
		return s, lease.Writer
	}
	s, w := open()
	head := CheckpointID("")
	appendOne := func(i int) {
		c := testCheckpoint("t", i, head)
		for n := range 300 {
			c.Files = append(c.Files, Entry{Path: fmt.Sprint("many/", n), Kind: KindFile, BlobKey: testKey(fmt.Sprint("many", i, n))})
		}
		if err := s.Append(ctx, w, c, head); err != nil {
			fail("append: %v", err)
		}
		head = c.ID
	}
	for i := range 30 {
		appendOne(i)
	}
	// dir is not where a backup goes when there is no room beside the store.
	if err := os.Setenv("TMPDIR", dir); err != nil {
		fail("%v", err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		fail("%v", err)
	}
	const limit = 256 << 10
	if len(before) < 2*limit {
		fail("the store has only %d bytes", len(before))
	}
	try := func(what string, err error) {
		if err == nil || !strings.Contains(err.Error(), "too large") || !strings.Contains(err.Error(), dir) {
			fail("%s: %v", what, err)
		}
		after, readErr := os.ReadFile(path)
		if readErr != nil || !bytes.Equal(before, after) {
			fail("%s changed the store, %v", what, readErr)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
			fail("%s left %q", what, left)
		}
	}
	if !limitFileSize(limit) {
		fmt.Println("SKIP: this system cannot limit the size of a file")
		os.Exit(0)
	}
	out := filepath.Join(dir, "out.db")
	try("backup to a file", s.BackupFile(ctx, out, nil))
	try("backup", s.Backup(ctx, bufio.NewWriter(nil)))
	_, err = s.Compact(ctx, out, nil)
	try("compact", err)
	limitFileSize(1 << 30)
	appendOne(30) // the same handle
	if _, err := s.Get(ctx, head); err != nil {
		fail("get: %v", err)
	}
	if err := s.Close(); err != nil {
		fail("close: %v", err)
	}
	if before, err = os.ReadFile(path); err != nil {
		fail("%v", err)
	}
	limitFileSize(limit)
	_, err = CompactFile(ctx, path, nil)
	try("compact in place", err)
	limitFileSize(1 << 30)
	s, _ = open()
	if err := errors.Join(s.Check(ctx), s.Close()); err != nil {
		fail("check: %v", err)
	}
	fmt.Println("all as it should be")
	os.Exit(0)
}

// TestCase49Room gives a store more pages than the disk has room for, all but a
// few of them holes of a sparse file.
func TestCase49Room(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("no sparse files, or no way to know what is free")
	}
	const size = 4 << 40
	ctx := context.Background()
	dir := t.TempDir()
	if outfile.Room(dir, size/2) == nil || outfile.Room(os.TempDir(), size/2) == nil {
		t.Skip("this disk has room")
	}
	path, out := filepath.Join(dir, "test.db"), filepath.Join(dir, "out.db")
	s := openTestAt(t, path, nil)
	must(t, s.Close())
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	for page := range int64(2) {
		meta := make([]byte, 64) // that of bbolt, behind the header of its page
		at := page*int64(os.Getpagesize()) + 16
		_, err := file.ReadAt(meta, at)
		must(t, err)
		binary.LittleEndian.PutUint64(meta[40:], size/uint64(os.Getpagesize()))
		sum := fnv.New64a()
		sum.Write(meta[:56])
		binary.LittleEndian.PutUint64(meta[56:], sum.Sum64())
		_, err = file.WriteAt(meta, at)
		must(t, err)
	}
	if err := file.Truncate(size); err != nil {
		t.Skip(err) // the file system has no files of that size
	}
	s, err = Open(path, nil)
	must(t, err)
	defer s.Close()
	want := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "43980465") {
			t.Errorf("%s: %v", what, err)
		}
		wantNames(t, dir, "test.db")
	}
	want("backup to a file", s.BackupFile(ctx, out, nil))
	want("backup", s.Backup(ctx, io.Discard))
	_, err = s.Compact(ctx, out, nil)
	want("compact", err)
	must(t, s.Close())
	_, err = CompactFile(ctx, path, nil)
	want("compact in place", err)
}

// A directory that takes no files; a missing one serves also where tests run as
// root.
func TestCase7NoDirectory(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	fillStore(t, s)
	before, err := os.ReadFile(s.Path())
	must(t, err)
	for _, path := range []string{
		filepath.Join(t.TempDir(), "none", "out.db"),
		filepath.Join(s.Path(), "out.db"), // below a file
	} {
		if _, err := s.Compact(ctx, path, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	}
	after, err := os.ReadFile(s.Path())
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the store was changed")
	}
	lease, err := s.AcquireWriter(ctx, "goes on")
	must(t, err)
	must(t, s.Append(ctx, lease.Writer, testCheckpoint("goes on", 100, ""), ""))
}
