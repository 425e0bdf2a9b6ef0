package checkpointdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// hold keeps a change inside its transaction until release is called, so that
// others gather behind it.
func hold(t *testing.T, s *Store) (release func()) {
	t.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := s.update(context.Background(), "hold", func(*bolt.Tx, time.Time) error {
			close(entered)
			<-leave
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-entered
	return func() { close(leave); <-done }
}

func (q *committer) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 5000 {
		if cond() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s did not come about", what)
}

// breakHalfWay is a change that fails after it has written.
func breakHalfWay(err error) func(*bolt.Tx, time.Time) error {
	return func(tx *bolt.Tx, _ time.Time) error {
		return errors.Join(tx.Bucket(bucketIDs).Put([]byte("half done"), []byte("x")), err)
	}
}

func TestWaitingChangesShareOneCommit(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	release := hold(t, s)
	before := 0
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if _, err := s.AcquireWriter(ctx, ThreadID(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "the queue of 50", func() bool { return s.commit.length() == 50 })
	must(t, s.view(func(tx *bolt.Tx) error { before = tx.ID(); return nil }))
	release()
	wg.Wait()
	var after int
	must(t, s.view(func(tx *bolt.Tx) error { after = tx.ID(); return nil }))
	if after-before != 2 { // the held one and the 50
		t.Errorf("50 changes and the one before them took %d commits", after-before)
	}
}

func TestFailedChangeLeavesItsGroupAlone(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	must(t, s.Append(ctx, lease.Writer, testCheckpoint("t", 0, ""), ""))
	release := hold(t, s)
	var wg sync.WaitGroup
	var runs, wins atomic.Int32
	for i := range 20 {
		wg.Go(func() { // all want to be the one after cp-0
			c := testCheckpoint("t", 1, "cp-0")
			c.ID = CheckpointID(fmt.Sprint("rival-", i))
			switch err := s.Append(ctx, lease.Writer, c, "cp-0"); {
			case err == nil:
				wins.Add(1)
			case !errors.Is(err, ErrStaleHead):
				t.Error(err)
			}
		})
	}
	// One that fails after it has written, as only a damaged row makes it.
	broken := errors.New("broken half way")
	wg.Go(func() {
		err := s.update(ctx, "broken", func(tx *bolt.Tx, now time.Time) error {
			runs.Add(1)
			return breakHalfWay(broken)(tx, now)
		})
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
	waitFor(t, "the queue", func() bool { return s.commit.length() == 21 })
	release()
	wg.Wait()
	if wins.Load() != 1 {
		t.Errorf("%d rivals won", wins.Load())
	}
	if runs.Load() != 2 {
		t.Errorf("the broken change ran %d times", runs.Load())
	}
	if half := func() (ok bool) {
		must(t, s.view(func(tx *bolt.Tx) error { ok = tx.Bucket(bucketIDs).Get([]byte("half done")) != nil; return nil }))
		return ok
	}(); half {
		t.Error("half of the broken change was committed")
	}
}

func TestCancelledChangeIsTakenBack(t *testing.T) {
	s := openTest(t, nil)
	release := hold(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error)
	go func() { _, err := s.AcquireWriter(ctx, "t"); got <- err }()
	waitFor(t, "the queue", func() bool { return s.commit.length() == 1 })
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	lease, err := s.AcquireWriter(context.Background(), "t")
	must(t, err)
	if lease.Fence != 1 {
		t.Error("the change that was taken back took place")
	}
}

// TestManyWriters hammers every path of the queue at once.
func TestManyWriters(t *testing.T) {
	s := openTest(t, nil)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			thread := ThreadID(fmt.Sprint("t", i))
			err := WithLease(context.Background(), s, thread, func(ctx context.Context, w Writer) error {
				head := CheckpointID("")
				for n := range 8 {
					short, cancel := context.WithTimeout(ctx, time.Duration(n)*time.Millisecond)
					_ = s.SaveThread(short, thread, nil) // often cancelled on its way
					cancel()
					c := testCheckpoint(thread, n, head)
					c.ID = CheckpointID(fmt.Sprint(thread, "-", n))
					if err := s.Append(ctx, w, c, head); err != nil {
						return err
					}
					head = c.ID
				}
				return s.DeleteHead(ctx, w, head)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestDiskFull: a commit that meets a limit fails, changes nothing, and later
// ones work. The limit is a real one, of a child process.
func TestDiskFull(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_FULL"); path != "" {
		diskFullChild(path)
	}
	path := filepath.Join(t.TempDir(), "test.db")
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiskFull$")
	cmd.Env = append(os.Environ(), "CHECKPOINTDB_TEST_FULL="+path)
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), "SKIP") {
		t.Skip(string(out))
	}
	if err != nil || !strings.Contains(string(out), "all as it should be") {
		t.Fatalf("%v\n%s", err, out)
	}
	openTestAt(t, path, nil)
}

func diskFullChild(path string) {
	fail := func(format string, args ...any) { fmt.Printf(format+"\n", args...); os.Exit(1) }
	ctx := context.Background()
	s, err := Open(path, nil)
	if err != nil {
		fail("open: %v", err)
	}
	lease, err := s.AcquireWriter(ctx, "t")
	if err != nil {
		fail("acquire: %v", err)
	}
	if !limitFileSize(3 << 20) {
		fmt.Println("SKIP: this system cannot limit the size of a file")
		os.Exit(0)
	}
	head := CheckpointID("")
	for i := 0; err == nil; i++ {
		c := testCheckpoint("t", i, head)
		for n := range 200 {
			c.Files = append(c.Files, Entry{Path: fmt.Sprint("many/", n), Kind: KindFile, BlobKey: testKey(fmt.Sprint(i, n))})
		}
		if err = s.Append(ctx, lease.Writer, c, head); err == nil {
			head = c.ID
		}
		if i > 2000 {
			fail("the limit was never met")
		}
	}
	if errors.Is(err, ErrFailed) {
		fail("a full disk ended the handle: %v", err)
	}
	if !strings.Contains(err.Error(), "too large") {
		fail("the error does not say why: %v", err)
	}
	if at, err := s.Head(ctx, "t"); err != nil || at != head {
		fail("head %q, %v; want %q", at, err, head)
	}
	if err := s.Check(ctx); err != nil {
		fail("check: %v", err)
	}
	// Room again: what was deleted is reused, and so later commits work.
	if _, err := s.DeleteCheckpoints(ctx, lease.Writer, 1); err != nil && !strings.Contains(err.Error(), "too large") {
		fail("delete: %v", err)
	}
	limitFileSize(1 << 30)
	if _, err := s.DeleteCheckpoints(ctx, lease.Writer, 1); err != nil {
		fail("delete: %v", err)
	}
	c := testCheckpoint("t", 9999, head)
	if err := s.Append(ctx, lease.Writer, c, head); err != nil {
		fail("append afterwards: %v", err)
	}
	if err := s.Check(ctx); err != nil {
		fail("check: %v", err)
	}
	if err := s.Close(); err != nil {
		fail("close: %v", err)
	}
	fmt.Println("all as it should be")
	os.Exit(0)
}
