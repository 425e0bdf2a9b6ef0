package checkpointdb

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"checkpointdb/internal/faultblob"
)

// noLeak checks, after all other cleanups, that no goroutine is left.
func noLeak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// liveDir is a new directory with a short path, for the addresses of sockets have
// little room.
func liveDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "live")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openLive(t *testing.T, live *Live) *Store {
	t.Helper()
	return openTestAt(t, filepath.Join(liveDir(t), "test.db"), &Options{Live: live})
}

func attach(t *testing.T, path string) *Remote {
	t.Helper()
	r, err := Attach(t.Context(), path)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// appendNext appends the i-th checkpoint of a thread, named after both, with so
// many bytes that do not compress well.
func appendNext(ctx context.Context, s *Store, w Writer, i, bytes int) (CheckpointID, error) {
	head, err := s.Head(ctx, w.ThreadID)
	if err != nil {
		return "", err
	}
	c := testCheckpoint(w.ThreadID, i%20, head)
	c.ID = CheckpointID(fmt.Sprintf("%s-%d", w.ThreadID, i))
	c.Conversation = append(c.Conversation, noise(bytes))
	return c.ID, s.Append(ctx, w, c, head)
}

// appendMany makes a thread of n checkpoints, and appends so many to one that is
// there.
func appendMany(s *Store, thread ThreadID, from, n, bytes int) error {
	return WithLease(context.Background(), s, thread, func(ctx context.Context, w Writer) error {
		for i := range n {
			if _, err := appendNext(ctx, s, w, from+i, bytes); err != nil {
				return err
			}
		}
		return nil
	})
}

func noise(n int) json.RawMessage {
	b := make([]byte, n)
	for i := range b {
		b[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"[rand.IntN(64)]
	}
	return json.RawMessage(`"` + string(b) + `"`)
}

func isHead(t *testing.T, s *Store, thread ThreadID, want CheckpointID) {
	t.Helper()
	head, err := s.Head(t.Context(), thread)
	must(t, err)
	if head != want {
		t.Errorf("the head of %q is %q, want %q", thread, head, want)
	}
}

func has(t *testing.T, s *Store, thread ThreadID, want int) {
	t.Helper()
	n := 0
	for _, err := range s.List(t.Context(), thread) {
		must(t, err)
		n++
	}
	if n != want {
		t.Errorf("%q has %d checkpoints, want %d", thread, n, want)
	}
}

// remoteCopy opens what r.BackupFile gives; the helper checks its invariants.
func remoteCopy(t *testing.T, r *Remote) *Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy.db")
	var done, total int64
	must(t, r.BackupFile(t.Context(), path, &BackupOptions{Progress: func(d, t int64) { done, total = d, t }}))
	if info, err := os.Stat(path); err != nil || info.Size() != total || done != total {
		t.Errorf("%d of %d bytes, %v: %v", done, total, info, err)
	}
	return openTestAt(t, path, &Options{ReadOnly: true})
}

// liveChild opens the store in dir and serves it until its standard input ends,
// while it appends to the thread "busy" and says what it has appended.
func liveChild(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("fail", err)
			os.Exit(1)
		}
	}
	bucket, err := fileblob.OpenBucket(filepath.Join(dir, "blobs"), &fileblob.Options{Metadata: fileblob.MetadataDontWrite, NoTempDir: true})
	fail(err)
	s, err := Open(filepath.Join(dir, "test.db"), &Options{Live: &Live{Bucket: bucket}})
	fail(err)
	fail(appendMany(s, "idle", 0, 10, 10))
	fail(appendMany(s, "doomed", 0, 3, 10))
	_, err = s.AcquireWriter(context.Background(), "held")
	fail(err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() {
		stopped <- WithLease(ctx, s, "busy", func(ctx context.Context, w Writer) error {
			for i := 0; ctx.Err() == nil; i++ {
				id, err := appendNext(ctx, s, w, i, 10)
				if err != nil {
					return err
				}
				fmt.Println("done", id)
			}
			return nil
		})
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	if err := <-stopped; !errors.Is(err, context.Canceled) {
		fail(err)
	}
	fail(s.Close())
	fmt.Println("closed")
	os.Exit(0)
}

// liveOwner is a child process with liveChild.
type liveOwner struct {
	*exec.Cmd
	path   string // of the store
	stdin  io.Closer
	last   atomic.Value // of CheckpointID: what was appended last
	count  atomic.Int64
	closed atomic.Bool
	ended  chan struct{} // when its output has
}

func startOwner(t *testing.T, dir string) *liveOwner {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "blobs"), 0o700))
	o := &liveOwner{Cmd: exec.Command(os.Args[0], "-test.run=^TestLive$"), path: filepath.Join(dir, "test.db"), ended: make(chan struct{})}
	o.Env = append(os.Environ(), "CHECKPOINTDB_TEST_LIVE="+dir)
	o.Stderr = os.Stderr
	stdin, err := o.StdinPipe()
	must(t, err)
	o.stdin = stdin
	stdout, err := o.StdoutPipe()
	must(t, err)
	must(t, o.Start())
	go func() {
		defer close(o.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			switch verb, rest, _ := strings.Cut(lines.Text(), " "); verb {
			case "done":
				o.last.Store(CheckpointID(rest))
				o.count.Add(1)
			case "closed":
				o.closed.Store(true)
			default:
				t.Error(lines.Text())
			}
		}
	}()
	t.Cleanup(func() {
		_ = o.Process.Kill()
		<-o.ended
		_ = o.Wait()
	})
	o.waitFor(t, 20)
	return o
}

// waitFor waits until n checkpoints more are appended.
func (o *liveOwner) waitFor(t *testing.T, n int64) {
	t.Helper()
	want := o.count.Load() + n
	for range 3000 {
		if o.count.Load() >= want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the owner appends nothing")
}

// TestLive: everything that can be asked of another process while it appends.
func TestLive(t *testing.T) {
	if dir := os.Getenv("CHECKPOINTDB_TEST_LIVE"); dir != "" {
		liveChild(dir)
	}
	noLeak(t)
	dir := liveDir(t)
	owner := startOwner(t, dir)
	ctx := t.Context()
	r := attach(t, owner.path)

	// A copy is sound and has what was acknowledged before.
	acknowledged := owner.last.Load().(CheckpointID)
	s := remoteCopy(t, r)
	has(t, s, "idle", 10)
	if _, err := s.Get(ctx, acknowledged); err != nil {
		t.Error(err)
	}

	keep := PrunePolicy{KeepLast: 3, DryRun: true}
	planned, err := r.Prune(ctx, "idle", keep)
	must(t, err)
	has(t, remoteCopy(t, r), "idle", 10)
	keep.DryRun = false
	deleted, err := r.Prune(ctx, "idle", keep)
	must(t, err)
	if want := []CheckpointID{"idle-0", "idle-1", "idle-2", "idle-3", "idle-4", "idle-5", "idle-6"}; !slices.Equal(planned, want) || !slices.Equal(deleted, want) {
		t.Errorf("planned %q, deleted %q", planned, deleted)
	}
	if n, err := r.DeleteThread(ctx, "doomed"); n != 3 || err != nil {
		t.Errorf("delete thread: %d, %v", n, err)
	}

	// Whoever holds a lease is not disturbed, and known.
	_, errPrune := r.Prune(ctx, "busy", keep)
	_, errDelete := r.DeleteThread(ctx, "held")
	for thread, err := range map[ThreadID]error{"busy": errPrune, "held": errDelete} {
		conflict := &WriterConflictError{}
		if !errors.Is(err, ErrWriterConflict) || !errors.As(err, &conflict) || conflict.ThreadID != thread || conflict.Fence != 1 || time.Until(conflict.ExpiresAt) < time.Minute {
			t.Errorf("%s: %v, %+v", thread, err, conflict)
		}
	}
	info, err := r.BreakLease(ctx, "held")
	if err != nil || info.ThreadID != "held" || info.Fence != 1 || !info.Current || time.Until(info.ExpiresAt) < time.Minute {
		t.Errorf("break lease: %+v, %v", info, err)
	}
	_, err = r.BreakLease(ctx, "held")
	_, errUnknownPrune := r.Prune(ctx, "nobody", keep)
	_, errUnknownPlan := r.Prune(ctx, "nobody", PrunePolicy{KeepLast: 1, DryRun: true})
	_, errUnknownDelete := r.DeleteThread(ctx, "nobody")
	_, errUnknownBreak := r.BreakLease(ctx, "nobody")
	_, errPolicy := r.Prune(ctx, "idle", PrunePolicy{})
	_, errID := r.DeleteThread(ctx, "")
	_, errOptions := r.Sweep(ctx, &SweepOptions{OlderThan: -1})
	for i, test := range []struct{ got, want error }{
		{err, ErrNoLease}, {errUnknownPrune, ErrThreadNotFound}, {errUnknownPlan, ErrThreadNotFound},
		{errUnknownDelete, ErrThreadNotFound}, {errUnknownBreak, ErrThreadNotFound},
		{errPolicy, ErrInvalidArgument}, {errID, ErrInvalidID}, {errOptions, ErrInvalidOptions},
	} {
		if !errors.Is(test.got, test.want) {
			t.Errorf("%d: %v, want %v", i, test.got, test.want)
		}
	}

	// A sweep cleans the owner's bucket.
	bucket, err := fileblob.OpenBucket(filepath.Join(dir, "blobs"), &fileblob.Options{Metadata: fileblob.MetadataDontWrite, NoTempDir: true})
	must(t, err)
	defer bucket.Close()
	unused := string(testKey("unused"))
	must(t, bucket.WriteAll(ctx, unused, []byte("bytes"), nil))
	must(t, bucket.WriteAll(ctx, FileKeyPrefix+"README", []byte("foreign"), nil))
	time.Sleep(10 * time.Millisecond)
	for _, dry := range []bool{true, false} {
		reports := 0
		report, err := r.Sweep(ctx, &SweepOptions{OlderThan: time.Nanosecond, DryRun: dry, Progress: func(SweepReport) { reports++ }})
		if err != nil || report.Deleted != 1 || report.DeletedBytes != 5 || report.DryRun != dry || !slices.Equal(report.ForeignKeys, []string{FileKeyPrefix + "README"}) || reports == 0 {
			t.Errorf("dry %t: %+v after %d reports, %v", dry, report, reports, err)
		}
		if there, err := bucket.Exists(ctx, unused); err != nil || there != dry {
			t.Errorf("dry %t: the unused blob is there: %t, %v", dry, there, err)
		}
	}

	// All of that is in the store, which went on meanwhile, and nothing else is.
	owner.waitFor(t, 5)
	s = remoteCopy(t, r)
	has(t, s, "idle", 3)
	has(t, s, "doomed", 0)
	var threads []ThreadID
	for thread, err := range s.Threads(ctx) {
		must(t, err)
		threads = append(threads, thread.ID)
		if thread.Lease != nil && thread.ID != "busy" {
			t.Errorf("%q has a lease: %+v", thread.ID, thread.Lease)
		}
	}
	if want := []ThreadID{"busy", "doomed", "held", "idle"}; !slices.Equal(threads, want) {
		t.Errorf("threads %q, want %q", threads, want)
	}

	must(t, owner.stdin.Close())
	<-owner.ended
	must(t, owner.Wait())
	if _, err := os.Lstat(LiveSocket(owner.path)); !errors.Is(err, fs.ErrNotExist) || !owner.closed.Load() {
		t.Errorf("the closed store has its socket: %v", err)
	}
	if err := r.Backup(ctx, io.Discard); !errors.Is(err, ErrNotLive) {
		t.Errorf("backup from nobody: %v", err)
	}
	openTestAt(t, owner.path, nil)
}

// TestCase44Owner: while another process has the file open, Open says so within
// its timeout, and which process that is where the system tells.
func TestCase44Owner(t *testing.T) {
	owner := startOwner(t, liveDir(t))
	for _, readOnly := range []bool{false, true} {
		began := time.Now()
		_, err := Open(owner.path, &Options{LockTimeout: 200 * time.Millisecond, ReadOnly: readOnly})
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), owner.path) || !strings.Contains(err.Error(), "in use") || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if len(lockHolders(owner.path)) == 0 {
			t.Log("this system does not tell who holds a lock")
		} else if want := fmt.Sprintf("in use by another process, %d (%q)", owner.Process.Pid, comm(t)); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	s := openTest(t, nil)
	_, err := Open(s.Path(), &Options{LockTimeout: 100 * time.Millisecond})
	if !errors.Is(err, ErrInUse) || len(lockHolders(s.Path())) > 0 && !strings.Contains(err.Error(), "in use by another store in this process") {
		t.Error(err)
	}
	must(t, s.Close())
	if holders := lockHolders(s.Path()); len(holders) > 0 {
		t.Errorf("a closed file is locked by %v", holders)
	}
}

// TestByWhom: a process can call itself what it likes.
func TestByWhom(t *testing.T) {
	me, other, third := lockHolder{os.Getpid(), "me"}, lockHolder{1 << 30, "a\x1b[31m"}, lockHolder{1<<30 + 1, "b"}
	for _, test := range []struct {
		holders []lockHolder
		want    string
	}{
		{nil, ": another process, or another store in this one, has it open"},
		{[]lockHolder{me, me}, " by another store in this process"},
		{[]lockHolder{me, other}, ` by another process, 1073741824 ("a\x1b[31m")`},
		{[]lockHolder{other, third}, ` by other processes, 1073741824 ("a\x1b[31m"), 1073741825 ("b")`},
	} {
		if got := byWhom(test.holders); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// comm is what the system calls a process of this binary.
func comm(t *testing.T) string {
	text, err := os.ReadFile("/proc/self/comm")
	must(t, err)
	return strings.TrimSuffix(string(text), "\n")
}

// TestLiveKilled: what a killed owner leaves hinders nobody.
func TestLiveKilled(t *testing.T) {
	noLeak(t)
	dir := liveDir(t)
	owner := startOwner(t, dir)
	r := attach(t, owner.path)
	acknowledged := owner.last.Load().(CheckpointID)
	must(t, owner.Process.Kill())
	<-owner.ended
	socket := LiveSocket(owner.path)
	if info, err := os.Lstat(socket); err != nil || runtime.GOOS != "windows" && info.Mode() != fs.ModeSocket|0o600 {
		t.Fatalf("the socket that was left: %v, %v", info, err)
	}
	began := time.Now()
	_, err := Attach(t.Context(), owner.path)
	if _, errPrune := r.Prune(t.Context(), "idle", PrunePolicy{KeepLast: 1}); !errors.Is(err, ErrNotLive) || !errors.Is(errPrune, ErrNotLive) || time.Since(began) > time.Second {
		t.Errorf("%v, %v after %s", err, errPrune, time.Since(began))
	}
	// It may have been killed while it made a socket, too.
	must(t, os.Mkdir(socket+".tmp", 0o700))
	must(t, os.WriteFile(filepath.Join(socket+".tmp", "s"), nil, 0o600))
	s := openTestAt(t, owner.path, &Options{Live: &Live{}})
	if _, err := s.Get(t.Context(), acknowledged); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(socket); err != nil || runtime.GOOS != "windows" && info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the new socket: %v, %v", info, err)
	}
	if _, err := os.Lstat(socket + ".tmp"); runtime.GOOS != "windows" && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory it was made in: %v", err)
	}
	has(t, remoteCopy(t, r), "idle", 10) // it finds the new owner
	must(t, s.Close())
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the closed store has its socket: %v", err)
	}
}

// request writes a request to the socket of a store, and reads nothing.
func request(t *testing.T, s *Store, text string) net.Conn {
	t.Helper()
	conn, err := dialSocket(t.Context(), LiveSocket(s.Path()))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, text)
	must(t, err)
	return conn
}

// beginBackup asks for a backup and reads no more of it than its header.
func beginBackup(t *testing.T, s *Store) *http.Response {
	t.Helper()
	conn := request(t, s, "GET /v1/backup HTTP/1.1\r\nHost: store\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
	must(t, err)
	if answer.StatusCode != http.StatusOK || answer.ContentLength < 4<<20 {
		t.Fatalf("%s with %d bytes, which may be no more than a socket holds", answer.Status, answer.ContentLength)
	}
	return answer
}

// TestLiveSlowReader: commits do not wait for a client that reads nothing, and it
// gets what was there when it asked.
func TestLiveSlowReader(t *testing.T) {
	noLeak(t)
	s := openLive(t, &Live{})
	must(t, appendMany(s, "big", 0, 10, 600_000))
	before, err := s.Stats(t.Context())
	must(t, err)
	answer := beginBackup(t, s)
	began := time.Now()
	must(t, appendMany(s, "big", 10, 200, 40_000))
	t.Logf("200 commits beside it took %s", time.Since(began))
	after, err := s.Stats(t.Context())
	must(t, err)
	if after.FileBytes < before.FileBytes+(1<<20) {
		t.Errorf("the file had %d bytes and has %d, so it did not grow", before.FileBytes, after.FileBytes)
	}
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, body, 0o600))
	isHead(t, openTestAt(t, path, nil), "big", "big-9")
	isHead(t, s, "big", "big-209")
}

// TestLiveClose: Close does not wait for clients that read nothing or ask
// nothing, and a copy that it cuts off shows that.
func TestLiveClose(t *testing.T) {
	noLeak(t)
	s := openLive(t, &Live{})
	must(t, appendMany(s, "big", 0, 10, 600_000))
	answer := beginBackup(t, s)
	request(t, s, "GET /v1/ba")
	request(t, s, "POST /v1/prune HTTP/1.1\r\nHost: store\r\nContent-Length: 100\r\n\r\n{")
	r := attach(t, s.Path())
	slow := make(chan error)
	read, write := io.Pipe()
	go func() { slow <- r.Backup(context.Background(), write) }()
	_, err := io.ReadFull(read, make([]byte, 1000))
	must(t, err)
	began := time.Now()
	must(t, s.Close())
	if took := time.Since(began); took > liveGrace+time.Second {
		t.Errorf("it took %s", took)
	}
	if n, err := io.Copy(io.Discard, answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) || n >= answer.ContentLength {
		t.Errorf("%d of %d bytes, %v", n, answer.ContentLength, err)
	}
	go io.Copy(io.Discard, read)
	if err := <-slow; !errors.Is(err, ErrNotLive) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	read.Close()
	if _, err := Attach(t.Context(), s.Path()); !errors.Is(err, ErrNotLive) {
		t.Error(err)
	}
}

// TestLiveCloseSweep: what runs in the owner ends with it, and says how far it
// came.
func TestLiveCloseSweep(t *testing.T) {
	noLeak(t)
	began := make(chan bool)
	bucket := faultblob.Wrap(memblob.OpenBucket(nil), func(ctx context.Context, call faultblob.Call, do func() error) error {
		if call.Kind == faultblob.Delete {
			began <- true
			<-ctx.Done()
			return ctx.Err()
		}
		return do()
	})
	defer bucket.Close()
	must(t, bucket.WriteAll(t.Context(), string(testKey("unused")), []byte("bytes"), nil))
	s := openLive(t, &Live{Bucket: bucket})
	r := attach(t, s.Path())
	swept := make(chan error)
	go func() {
		report, err := r.Sweep(context.Background(), &SweepOptions{OlderThan: time.Nanosecond})
		if report.Scanned != 1 {
			t.Errorf("%+v", report)
		}
		swept <- err
	}()
	<-began
	must(t, s.Close())
	if err := <-swept; !errors.Is(err, ErrSweepIncomplete) {
		t.Error(err)
	}
}

// TestLiveTruncated cuts the stream of an owner off at many places.
func TestLiveTruncated(t *testing.T) {
	noLeak(t)
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	s := openLive(t, &Live{Bucket: bucket})
	must(t, appendMany(s, "t", 0, 3, 10))
	path := filepath.Join(liveDir(t), "cut.db")
	var limit atomic.Int64
	listener, err := net.Listen("unix", LiveSocket(path))
	must(t, err)
	defer listener.Close()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			owner, err := net.Dial("unix", LiveSocket(s.Path()))
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				_, _ = io.Copy(owner, client)
			}()
			go func() {
				_, _ = io.CopyN(client, owner, limit.Load())
				client.Close()
				owner.Close()
			}()
		}
	}()
	var whole bytes.Buffer
	must(t, s.Backup(t.Context(), &whole))
	limit.Store(1 << 40)
	r := attach(t, path)
	r.http.Transport.(*http.Transport).DisableKeepAlives = true // the limit is that of a connection
	must(t, r.Backup(t.Context(), io.Discard))
	r.Close()
	for _, cut := range []int{0, 1, 10, 100, 1000, 4096, whole.Len() / 2, whole.Len() - 100} {
		limit.Store(int64(cut))
		var got bytes.Buffer
		err := r.Backup(t.Context(), &got)
		if !errors.Is(err, ErrNotLive) || cut >= 1000 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
		name := filepath.Join(t.TempDir(), "copy.db")
		if err := r.BackupFile(t.Context(), name, nil); !errors.Is(err, ErrNotLive) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
		if left, _ := filepath.Glob(name + "*"); len(left) > 0 {
			t.Errorf("cut after %d bytes: it left %q", cut, left)
		}
	}
	limit.Store(200)
	if _, err := r.Sweep(t.Context(), nil); !errors.Is(err, ErrNotLive) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("sweep: %v", err)
	}
}

// TestLiveNoAnswer: an owner that is stopped accepts connections all the same.
func TestLiveNoAnswer(t *testing.T) {
	noLeak(t)
	path := filepath.Join(liveDir(t), "test.db")
	listener, err := net.Listen("unix", LiveSocket(path))
	must(t, err)
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Attach(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	defer func(before time.Duration) { attachTimeout = before }(attachTimeout)
	attachTimeout = 50 * time.Millisecond
	if _, err := Attach(t.Context(), path); !errors.Is(err, ErrNotLive) || !strings.Contains(err.Error(), "no answer within") {
		t.Error(err)
	}
}

// TestLiveCancel: a client that goes away ends its work in the owner, and errors
// of its own writer are its own.
func TestLiveCancel(t *testing.T) {
	noLeak(t)
	began, ended := make(chan bool), make(chan error)
	bucket := faultblob.Wrap(memblob.OpenBucket(nil), func(ctx context.Context, call faultblob.Call, do func() error) error {
		if call.Kind != faultblob.List {
			return do()
		}
		began <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	})
	defer bucket.Close()
	s := openLive(t, &Live{Bucket: bucket})
	must(t, appendMany(s, "big", 0, 5, 300_000))
	r := attach(t, s.Path())
	ctx, cancel := context.WithCancel(t.Context())
	swept := make(chan error)
	go func() {
		_, err := r.Sweep(ctx, nil)
		swept <- err
	}()
	<-began
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("in the owner: %v", err)
	}
	if err := <-swept; !errors.Is(err, context.Canceled) {
		t.Errorf("in the client: %v", err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	if err := r.Backup(ctx, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	full := errors.New("disk full")
	if err := r.Backup(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full })); err != full {
		t.Error(err)
	}
	for _, call := range []func() error{
		func() error { _, err := Attach(ctx, s.Path()); return err },
		func() error { _, err := r.Prune(ctx, "big", PrunePolicy{KeepLast: 1}); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	has(t, s, "big", 5)
}

// TestLiveSweepFailures: reports and errors arrive as they are.
func TestLiveSweepFailures(t *testing.T) {
	noLeak(t)
	refuse := errors.New("access denied")
	bucket := faultblob.Wrap(memblob.OpenBucket(nil), func(_ context.Context, call faultblob.Call, do func() error) error {
		if call.Kind == faultblob.Delete {
			return refuse
		}
		return do()
	})
	defer bucket.Close()
	must(t, bucket.WriteAll(t.Context(), string(testKey("unused")), []byte("bytes"), nil))
	s := openLive(t, &Live{Bucket: bucket})
	opts := &SweepOptions{OlderThan: time.Nanosecond}
	here, errHere := Sweep(t.Context(), s, bucket, opts)
	there, err := attach(t, s.Path()).Sweep(t.Context(), opts)
	if !errors.Is(err, ErrSweepIncomplete) || err.Error() != errHere.Error() {
		t.Errorf("%v, want %v", err, errHere)
	}
	if len(there.Failures) != 1 || there.Failures[0].Key != here.Failures[0].Key || there.Failures[0].Err.Error() != here.Failures[0].Err.Error() || there.Failed != 1 {
		t.Errorf("%+v, want %+v", there, here)
	}
	without := openLive(t, &Live{})
	if _, err := attach(t, without.Path()).Sweep(t.Context(), nil); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "Live.Bucket") {
		t.Errorf("without a bucket: %v", err)
	}
}

// TestLiveHandler: an embedder's own server, with the bucket that it names.
func TestLiveHandler(t *testing.T) {
	noLeak(t)
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	var logged bytes.Buffer
	s := openTest(t, &Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	must(t, appendMany(s, "t", 0, 5, 10))
	server := httptest.NewServer(http.StripPrefix("/store", s.LiveHandler(&Live{Bucket: bucket})))
	defer server.Close()
	post := func(path, body string) (int, string) {
		answer, err := server.Client().Post(server.URL+"/store"+path, "application/json", strings.NewReader(body))
		must(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, string(text)
	}
	answer, err := server.Client().Get(server.URL + "/store/v1/backup")
	must(t, err)
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	answer.Body.Close()
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, body, 0o600))
	isHead(t, openTestAt(t, path, nil), "t", "t-4")

	for _, test := range []struct {
		path, body string
		status     int
		part       string
	}{
		{"/v1/prune", `{"threadId":"t","keepLast":3,"keepOdd":true}`, 409, "keepOdd"},
		{"/v1/prune", `{"threadId":"t","keepLast":3}{"keepNamed":true}`, 409, "more than one value"},
		{"/v1/prune", `{"threadId":"t","keepLast":3`, 409, string(ErrInvalidArgument)},
		{"/v1/prune", ``, 409, string(ErrInvalidArgument)},
		{"/v1/prune", `{"threadId":"` + strings.Repeat("t", maxLiveRequest) + `"}`, 409, "too large"},
		{"/v1/prune", `{"threadId":"t","keepLast":3}` + "\n", 200, `{"deleted":["t-0","t-1"]}`},
		{"/v1/sweep", `{}`, 200, `"done":true`},
		{"/v2/prune", `{}`, 404, ""},
		{"/v1/backup", `{}`, 405, ""},
	} {
		if status, text := post(test.path, test.body); status != test.status || !strings.Contains(text, test.part) {
			t.Errorf("%s %.100s: %d %s", test.path, test.body, status, text)
		}
	}
	has(t, s, "t", 3)
	if !strings.Contains(logged.String(), "live: pruned") { // what the owner's own code does not know of
		t.Errorf("logged: %s", &logged)
	}
	must(t, s.Close())
	if status, text := post("/v1/prune", `{"threadId":"t","keepLast":1}`); status != 409 || !strings.Contains(text, string(ErrClosed)) {
		t.Errorf("after Close: %d %s", status, text)
	}
}

// TestLiveSocket: where the socket is, whatever the path of the store.
func TestLiveSocket(t *testing.T) {
	noLeak(t)
	dir := liveDir(t)
	long := filepath.Join(dir, strings.Repeat("d", 100))
	must(t, os.Mkdir(long, 0o700))
	t.Chdir(dir)
	for _, path := range []string{
		filepath.Join(dir, "one.db"),
		filepath.Join(dir, "two.db"), // while one is open
		"relative.db",
		"@x.db", // on Linux not the name of a file, to a socket
		filepath.Join(long, "test.db"),
		filepath.Join(long, strings.Repeat("f", 200)),
	} {
		s, err := Open(path, &Options{Live: &Live{}})
		if runtime.GOOS != "linux" && len(path) > maxSocketPath {
			if !errors.Is(err, ErrNotLive) || !strings.Contains(err.Error(), fmt.Sprint(maxSocketPath)) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		must(t, err)
		defer s.Close()
		must(t, appendMany(s, ThreadID(path), 0, 1, 10))
		if _, err := os.Lstat(path + ".sock"); err != nil {
			t.Error(err)
		}
	}
	must(t, os.Symlink("one.db", "link.db"))
	for path, thread := range map[string]ThreadID{"two.db": ThreadID(filepath.Join(dir, "two.db")), "link.db": ThreadID(filepath.Join(dir, "one.db")), "@x.db": "@x.db"} {
		has(t, remoteCopy(t, attach(t, path)), thread, 1)
	}
	if runtime.GOOS == "linux" {
		for _, path := range []string{filepath.Join(long, "test.db"), filepath.Join(long, strings.Repeat("f", 200))} {
			has(t, remoteCopy(t, attach(t, path)), ThreadID(path), 1)
		}
	}
}

// TestLiveRemoved: the socket is removed wherever the process has gone, and one
// that is not the store's is left alone.
func TestLiveRemoved(t *testing.T) {
	noLeak(t)
	dir := liveDir(t)
	t.Chdir(dir)
	s, err := Open("test.db", &Options{Live: &Live{}})
	must(t, err)
	t.Chdir(t.TempDir())
	must(t, s.Close())
	socket := filepath.Join(dir, "test.db.sock")
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	s = openTestAt(t, filepath.Join(dir, "test.db"), &Options{Live: &Live{}})
	must(t, os.Remove(socket))
	must(t, os.WriteFile(socket, []byte("other"), 0o600))
	must(t, s.Close())
	must(t, s.Close())
	if text, err := os.ReadFile(socket); err != nil || string(text) != "other" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestLiveRefused: Open names the socket that it cannot make, changes nothing, and
// lets the file go.
func TestLiveRefused(t *testing.T) {
	noLeak(t)
	path := filepath.Join(liveDir(t), "test.db")
	s, err := Open(path, nil)
	must(t, err)
	must(t, s.Close())
	before, err := os.ReadFile(path)
	must(t, err)
	for _, inTheWay := range []string{path + ".sock", path + ".sock.tmp"} {
		if runtime.GOOS == "windows" && strings.HasSuffix(inTheWay, ".tmp") {
			continue
		}
		must(t, os.WriteFile(inTheWay, []byte("precious"), 0o600))
		_, err := Open(path, &Options{Live: &Live{}})
		if !errors.Is(err, ErrNotLive) || !strings.Contains(err.Error(), path+".sock") || !strings.Contains(err.Error(), "move it away") {
			t.Error(err)
		}
		if text, _ := os.ReadFile(inTheWay); string(text) != "precious" {
			t.Errorf("%s is now %q", inTheWay, text)
		}
		must(t, os.Remove(inTheWay))
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
	_, err = Open(path, &Options{Live: &Live{}, ReadOnly: true})
	if !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "Live") {
		t.Error(err)
	}
	openTestAt(t, path, &Options{LockTimeout: time.Millisecond})
}

// TestThreadOps: what an operator does to a thread, also of a store that only it
// has open.
func TestThreadOps(t *testing.T) {
	ctx := t.Context()
	s := openTest(t, nil)
	must(t, appendMany(s, "t", 0, 4, 10))
	if ids, err := PruneThread(ctx, s, "t", PrunePolicy{KeepLast: 2, DryRun: true}); err != nil || len(ids) != 2 {
		t.Errorf("%q, %v", ids, err)
	}
	has(t, s, "t", 4)
	if ids, err := PruneThread(ctx, s, "t", PrunePolicy{KeepLast: 2}); err != nil || !slices.Equal(ids, []CheckpointID{"t-0", "t-1"}) {
		t.Errorf("%q, %v", ids, err)
	}
	for _, want := range []int{2, 0} { // it may be repeated
		if n, err := DropThread(ctx, s, "t"); err != nil || n != want {
			t.Errorf("%d, %v, want %d", n, err, want)
		}
	}
	lease, err := s.AcquireWriter(ctx, "t") // nobody holds it any more
	must(t, err)
	_, errPrune := PruneThread(ctx, s, "t", PrunePolicy{KeepLast: 2})
	_, errDrop := DropThread(ctx, s, "t")
	if !errors.Is(errPrune, ErrWriterConflict) || !errors.Is(errDrop, ErrWriterConflict) {
		t.Errorf("%v, %v", errPrune, errDrop)
	}
	must(t, s.Release(ctx, lease.Writer))
	_, errPrune = PruneThread(ctx, s, "nobody", PrunePolicy{KeepLast: 2})
	_, errDrop = DropThread(ctx, s, "nobody")
	if !errors.Is(errPrune, ErrThreadNotFound) || !errors.Is(errDrop, ErrThreadNotFound) {
		t.Errorf("%v, %v", errPrune, errDrop)
	}
	if _, err := PruneThread(ctx, s, "t", PrunePolicy{}); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
	if fence := lastFence(t, s, "t"); fence != lease.Fence {
		t.Errorf("a refused policy took fence %d", fence)
	}
	if fence := lastFence(t, s, "nobody"); fence != 0 {
		t.Error("an unknown thread was made")
	}
}

func lastFence(t *testing.T, s *Store, thread ThreadID) Fence {
	for info, err := range s.Threads(t.Context()) {
		must(t, err)
		if info.ID == thread {
			return info.LastFence
		}
	}
	return 0
}
