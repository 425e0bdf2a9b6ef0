package checkpointdb

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestCrash kills a writing process at random moments, over and over on one
// file. What the process said was done must be there; what it had begun may be
// there; nothing else may; and every invariant must hold.
func TestCrash(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_CRASH"); path != "" {
		crashChild(path)
	}
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "test.db")
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		cmd.Env = append(os.Environ(), "CHECKPOINTDB_TEST_CRASH="+path)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		kill := time.AfterFunc(time.Duration(50+round*17%200)*time.Millisecond, func() { cmd.Process.Kill() })
		// The last line of each thread is what its head surely is ("done") or may
		// be ("try").
		surely, maybe := map[string]string{}, map[string]string{}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			verb, rest, _ := strings.Cut(lines.Text(), " ")
			thread, head, _ := strings.Cut(rest, " ")
			switch verb {
			case "try":
				maybe[thread] = head
			case "done":
				surely[thread] = head
				delete(maybe, thread)
			case "fail":
				t.Fatalf("round %d: %s", round, rest)
			}
		}
		_ = cmd.Wait() // killed
		kill.Stop()
		s, err := Open(path, nil)
		must(t, err)
		if err := s.Check(ctx); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for thread, want := range surely {
			head, err := s.Head(ctx, ThreadID(thread))
			must(t, err)
			other, begun := maybe[thread]
			if string(head) != want && !(begun && string(head) == other) {
				t.Errorf("round %d: head of %s is %q, want %q or %q (begun: %t)", round, thread, head, want, other, begun)
			}
			for c, err := range s.List(ctx, ThreadID(thread)) {
				if err != nil {
					t.Errorf("round %d: %s: %v", round, c.ID, err)
				}
			}
		}
		must(t, s.Close())
	}
}

// crashChild changes four threads in every way until it is killed, and says
// before and after each change what the head would be.
func crashChild(path string) {
	ctx := context.Background()
	s, err := Open(path, &Options{LeaseDuration: time.Millisecond}) // the last process's leases must not last
	if err != nil {
		fmt.Println("fail", err)
		os.Exit(1)
	}
	for t := range 4 {
		go func() {
			thread := ThreadID(fmt.Sprint("thread-", t))
			step := func(head CheckpointID, fn func(Writer) error) {
				fmt.Printf("try %s %s\n", thread, head)
				for {
					lease, err := s.AcquireWriter(ctx, thread)
					if err == nil {
						err = fn(lease.Writer)
					}
					if errors.Is(err, ErrWriterLost) || errors.Is(err, ErrWriterConflict) {
						time.Sleep(time.Millisecond)
						continue
					}
					if err != nil {
						fmt.Println("fail", err)
						os.Exit(1)
					}
					break
				}
				fmt.Printf("done %s %s\n", thread, head)
			}
			head, err := s.Head(ctx, thread)
			if err != nil {
				fmt.Println("fail", err)
				os.Exit(1)
			}
			n := 0
			if _, text, ok := strings.Cut(string(head), "#"); ok {
				n, _ = strconv.Atoi(text)
			}
			for {
				n++
				c := testCheckpoint(thread, n%60, head)
				c.ID = CheckpointID(fmt.Sprintf("%s#%d", thread, n))
				for {
					if _, err := s.Get(ctx, c.ID); err != nil {
						break // unused
					}
					n++
					c.ID = CheckpointID(fmt.Sprintf("%s#%d", thread, n))
				}
				parent := head
				step(c.ID, func(w Writer) error { return s.Append(ctx, w, c, parent) })
				head = c.ID
				switch n % 7 {
				case 2:
					step(parent, func(w Writer) error { return s.DeleteHead(ctx, w, c.ID) })
					head = parent
				case 4:
					step(head, func(w Writer) error {
						_, err := s.Prune(ctx, w, PrunePolicy{KeepLast: 5, KeepNamed: n%2 == 0})
						return err
					})
				case 6:
					step(head, func(w Writer) error { return s.SaveThread(ctx, thread, c.Conversation) })
				}
				if n%97 == 0 {
					step("", func(w Writer) error { return s.DeleteThread(ctx, w) })
					head = ""
				}
			}
		}()
	}
	select {}
}

// TestFailedSync: after an fdatasync that failed, nobody knows what is on the
// disk, so the handle takes no more changes, and says so. strace makes the
// system call of a real child process fail.
func TestFailedSync(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_SYNC"); path != "" {
		failedSyncChild(path)
	}
	for when := 1; ; when++ {
		path := filepath.Join(t.TempDir(), "test.db")
		out, err := withFailing(t, fmt.Sprintf("fdatasync:error=EIO:when=%d", when), "CHECKPOINTDB_TEST_SYNC="+path)
		switch {
		case err != nil:
			t.Fatalf("sync %d: %v\n%s", when, err, out)
		case strings.Contains(string(out), "never failed"):
			if when < 6 {
				t.Errorf("only %d syncs were made to fail", when-1)
			}
			return
		case !strings.Contains(string(out), "as it should be"):
			t.Fatalf("sync %d:\n%s", when, out)
		}
		if _, err := os.Stat(path); err == nil && !strings.Contains(string(out), "not opened") {
			openTestAt(t, path, nil)
		}
	}
}

// withFailing runs the test again in a child process, with the variable set,
// where strace, with these options too, makes a system call fail.
func withFailing(t *testing.T, inject, variable string, options ...string) ([]byte, error) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace, which makes a system call fail, is not installed")
	}
	if out, err := exec.Command(strace, "-f", "-e", "trace=none", os.Args[0], "-test.list=none").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here: %v %s", err, out)
	}
	call, _, _ := strings.Cut(inject, ":")
	args := append([]string{"-f", "-o", os.DevNull, "-e", "trace=" + call, "-e", "inject=" + inject}, options...)
	cmd := exec.Command(strace, append(args, os.Args[0], "-test.run=^"+t.Name()+"$")...)
	cmd.Env = append(os.Environ(), variable)
	return cmd.CombinedOutput()
}

// TestCase44NoLocks: on a file system without locks nobody can tell whether the
// file is in use, and the error says that and no more.
func TestCase44NoLocks(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_LOCKS"); path != "" {
		for _, readOnly := range []bool{false, true} {
			_, err := Open(path, &Options{ReadOnly: readOnly})
			fmt.Println(errors.Is(err, ErrInUse), err)
		}
		return
	}
	s := openTest(t, nil)
	must(t, s.Close())
	out, err := withFailing(t, "flock:error=ENOLCK", "CHECKPOINTDB_TEST_LOCKS="+s.Path())
	want := "true checkpointdb: open: " + s.Path() + " cannot be locked, so nobody can tell whether it is in use; its file system has no file locks"
	if err != nil || strings.Count(string(out), want) != 2 {
		t.Errorf("%v\n%s\nwant %q twice", err, out, want)
	}
}

// TestUnreadable: a disk that stops giving what is asked of it, at any point, is
// told by Check as damage or by Open as an error. The memory map would fault.
func TestUnreadable(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_READS"); path != "" {
		runtime.LockOSThread()                                // strace counts the calls of each thread
		time.AfterFunc(30*time.Second, func() { os.Exit(1) }) // rather than hang beyond the test
		s, err := Open(path, &Options{ReadOnly: true})
		if err == nil {
			err = s.Check(context.Background())
		}
		fmt.Println("outcome:", err)
		return
	}
	if testing.Short() {
		t.Skip("starts many processes")
	}
	s := openTest(t, nil)
	ctx := context.Background()
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	said := make([]byte, 400_000)
	for i := range said {
		said[i] = 'a' + byte(rand.IntN(26))
	}
	must(t, s.Append(ctx, lease.Writer, Checkpoint{
		ID: "long", ThreadID: "t", CreatedAt: testTime(1), Reason: ReasonAutomatic, Conversation: []json.RawMessage{json.RawMessage(`"` + string(said) + `"`)},
	}, ""))
	must(t, s.Close())
	inLongValue := false
	for when := 1; when < 500; when++ {
		out, err := withFailing(t, fmt.Sprintf("pread64:error=EIO:when=%d+", when), "CHECKPOINTDB_TEST_READS="+s.Path(), "-P", s.Path())
		_, outcome, ok := strings.Cut(string(out), "outcome: ")
		if err != nil || !ok {
			t.Fatalf("without its reads from no. %d on: %v\n%s", when, err, out)
		}
		inLongValue = inLongValue || strings.Contains(outcome, "cannot be read in full")
		if strings.HasPrefix(outcome, "<nil>") {
			if when < 10 || !inLongValue {
				t.Errorf("only %d reads were made to fail, one in a long value: %t", when-1, inLongValue)
			}
			return
		}
	}
	t.Error("it never ends")
}

func failedSyncChild(path string) {
	ctx := context.Background()
	say := func(text string, code int) { fmt.Println(text); os.Exit(code) }
	s, err := Open(path, nil)
	if err != nil {
		say("not opened, as it should be: "+err.Error(), 0)
	}
	lease, err := s.AcquireWriter(ctx, "t")
	head, tried := CheckpointID(""), CheckpointID("")
	for i := 0; i < 4 && err == nil; i++ {
		c := testCheckpoint("t", i, head)
		tried = c.ID
		if err = s.Append(ctx, lease.Writer, c, head); err == nil {
			head = c.ID
		}
	}
	if err == nil {
		say("never failed", 0)
	}
	if !errors.Is(err, ErrFailed) {
		say("not ErrFailed: "+err.Error(), 1)
	}
	if _, err := s.AcquireWriter(ctx, "other"); !errors.Is(err, ErrFailed) {
		say(fmt.Sprint("the handle took another change: ", err), 1)
	}
	// Reading goes on, and may show the change whose fate is unknown.
	if at, err := s.Head(ctx, "t"); err != nil || at != head && at != tried {
		say(fmt.Sprintf("reading: head %q, %v; want %q or %q", at, err, head, tried), 1)
	}
	if err := s.Close(); err != nil {
		say("close: "+err.Error(), 1)
	}
	say("as it should be", 0)
}
