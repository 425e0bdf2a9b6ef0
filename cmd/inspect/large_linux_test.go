package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"checkpointdb"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// largeEnv, set to anything, runs the test that takes minutes and gigabytes.
	largeEnv = "CHECKPOINTDB_TEST_LARGE"
	// largeDirEnv names a directory that keeps the large store from one run to the
	// next. The store is made anew where it is not there.
	largeDirEnv = "CHECKPOINTDB_TEST_LARGE_DIR"
)

// What an operator may expect of a large store, warm in the page cache.
const (
	quickLimit = time.Second
	checkLimit = 500_000_000 // bytes of memory
)

// The large store: 200 threads of 475 checkpoints and a longer one.
const (
	largeSize   = 5_000_000_000 // bytes of the file, at least
	largeOthers = 200
	otherTurns  = 475
	longTurns   = 100_000 - largeOthers*otherTurns
	longThread  = "long"
)

// TestLargeStore asks a store of 5 GB and 100,000 checkpoints (issue 4, "done
// means" 4) in processes of their own, and logs what that takes.
func TestLargeStore(t *testing.T) {
	if os.Getenv(largeEnv) == "" {
		t.Skipf("takes minutes and 6 GB; run it with %s=1 go test -timeout 60m -run TestLargeStore -v ./cmd/inspect, and %s=DIR to keep the store", largeEnv, largeDirEnv)
	}
	dir := os.Getenv(largeDirEnv)
	if dir == "" {
		dir = t.TempDir()
	}
	path := filepath.Join(dir, "large.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		start := time.Now()
		if err := buildLarge(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		t.Logf("built in %s", time.Since(start).Round(time.Second))
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", path, info.Size())
	if info.Size() < largeSize {
		t.Fatalf("the store has %d bytes, less than %d", info.Size(), largeSize)
	}

	var threads []checkpointdb.ThreadInfo
	quick(t, path, &threads, "threads")
	total := int64(0)
	for _, each := range threads {
		total += each.Checkpoints
	}
	if len(threads) != largeOthers+1 || total != 100_000 {
		t.Errorf("%d threads with %d checkpoints", len(threads), total)
	}

	var log []checkpointdb.CheckpointInfo
	quick(t, path, &log, "log", longThread)
	if len(log) != 100 {
		t.Fatalf("log lists %d checkpoints, not its limit", len(log))
	}
	for i, c := range log {
		if c.ID != largeID(longThread, longTurns-i) || c.Changed == 0 || c.Head != (i == 0) {
			t.Errorf("log: line %d is %+v", i, c)
		}
	}

	for _, want := range []checkpointdb.CheckpointInfo{
		log[0],
		{ID: largeID(longThread, longTurns/2)},
		{ID: largeID(longThread, 1)},
	} {
		var shown showJSON
		quick(t, path, &shown, "show", string(want.ID))
		switch {
		case shown.ID != want.ID || shown.Head != want.Head:
			t.Errorf("show %s: %+v", want.ID, shown)
		case want.Head && (shown.Files != want.Files || shown.Messages != want.Messages || shown.Bytes+shown.ArtifactBytes != want.Bytes):
			t.Errorf("show %s: %+v, log: %+v", want.ID, shown, want)
		}
	}

	var checked checkJSON
	m := ask(t, path, &checked, "check")
	t.Logf("check: %s", m)
	if !checked.Sound {
		t.Errorf("check: %+v", checked.Violations)
	}
	if m.anon > checkLimit {
		t.Errorf("check took %d bytes of memory, more than %d", m.anon, checkLimit)
	}
}

// measured is what a command took.
type measured struct {
	wall time.Duration
	// anon is the most memory that the process had of its own at one time, in
	// bytes. The file is mapped into memory: pages of it that were read count as
	// resident too, in peak, but they are the page cache's, which the kernel takes
	// back when anybody needs room.
	anon, peak int64
}

func (m measured) String() string {
	return fmt.Sprintf("%s, %d MB of its own memory (%d MB with the pages of the file that it has mapped)",
		m.wall.Round(time.Millisecond), m.anon/1_000_000, m.peak/1_000_000)
}

// quick asks with the file out of the page cache, once, and in it, and compares
// the median of the latter with quickLimit.
func quick(t *testing.T, path string, answer any, args ...string) {
	t.Helper()
	if err := dropPages(path); err != nil {
		t.Log("the file stays in the page cache:", err)
	}
	cold := ask(t, path, answer, args...)
	var warm []measured
	for range 7 {
		warm = append(warm, ask(t, path, answer, args...))
	}
	slices.SortFunc(warm, func(a, b measured) int { return int(a.wall - b.wall) })
	median := warm[len(warm)/2]
	name := strings.Join(args, " ")
	t.Logf("%s: median %s, at worst %s; cold %s", name, median, warm[len(warm)-1].wall.Round(time.Millisecond), cold.wall.Round(time.Millisecond))
	if median.wall > quickLimit {
		t.Errorf("%s took %s, more than %s", name, median.wall, quickLimit)
	}
}

// ask runs inspect and decodes its answer.
func ask(t *testing.T, path string, answer any, args ...string) (m measured) {
	t.Helper()
	cmd := exec.Command("inspect", append(args, "--json", "--db", path)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.sample(cmd.Process.Pid)
			continue
		case err := <-ended:
			m.wall = time.Since(start)
			if err != nil {
				t.Fatalf("inspect %q: %v\n%s", args, err, stderr.Bytes())
			}
		}
		break
	}
	if err := json.Unmarshal(stdout.Bytes(), answer); err != nil {
		t.Fatalf("inspect %q: %v\n%.1000s", args, err, stdout.Bytes())
	}
	return m
}

// sample looks at the memory of a process, which may be gone.
func (m *measured) sample(pid int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kib); n == 1 {
			m.anon = max(m.anon, kib<<10)
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			m.peak = max(m.peak, kib<<10)
		}
	}
}

// dropPages takes the file out of the page cache, as far as nobody has it mapped.
func dropPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

func largeID(thread string, turn int) checkpointdb.CheckpointID {
	return checkpointdb.CheckpointID(fmt.Sprintf("%s-%04d", thread, turn))
}

// buildLarge makes the large store. Threads that append at once share commits.
func buildLarge(ctx context.Context, path string) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	store, err := checkpointdb.Open(tmp, &checkpointdb.Options{LeaseDuration: 24 * time.Hour})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(24)
	g.Go(func() error { return newLargeThread(longThread, 0).write(ctx, store, longTurns) })
	for i := range largeOthers {
		g.Go(func() error {
			return newLargeThread(fmt.Sprintf("thread-%03d", i), i+1).write(ctx, store, otherTurns)
		})
	}
	if err := errors.Join(g.Wait(), store.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// largeThread makes up what an agent does: with every turn it changes some files,
// adds one now and then, and says and reads some more, until its conversation is
// too long and a summary takes the place of all but its end.
type largeThread struct {
	bytes *rand.ChaCha8
	*rand.Rand
	c       checkpointdb.Checkpoint
	talked  int // bytes of the conversation
	longest int // it gets at most
}

func newLargeThread(id string, n int) *largeThread {
	source := seededBytes(uint64(n) + 1000)
	th := &largeThread{bytes: source, Rand: rand.New(source), longest: 1_000_000}
	if id == longThread {
		th.longest *= 3
	}
	th.c = checkpointdb.Checkpoint{
		ThreadID: checkpointdb.ThreadID(id), Reason: checkpointdb.ReasonAutomatic,
		CreatedAt: time.Date(2026, 1, 1, 0, n, 0, 0, time.UTC),
	}
	// Every thread starts with a copy of one of five repositories.
	repository := seededBytes(uint64(n % 5))
	for i := range 100 + n%5*225 {
		th.c.Files = append(th.c.Files, newEntry(fmt.Sprintf("internal/package%03d/source%04d.go", i/12, i), repository))
	}
	return th
}

func seededBytes(n uint64) *rand.ChaCha8 {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], n)
	return rand.NewChaCha8(seed)
}

func newEntry(path string, source *rand.ChaCha8) checkpointdb.Entry {
	return checkpointdb.Entry{
		Path: path, Kind: checkpointdb.KindFile, BlobKey: checkpointdb.FileKey(newDigest(source)),
		Size: int64(source.Uint64() % 40_000),
	}
}

func newDigest(source *rand.ChaCha8) (d checkpointdb.Digest) {
	_, _ = source.Read(d[:]) // never fails
	return d
}

// write appends so many turns.
func (th *largeThread) write(ctx context.Context, store *checkpointdb.Store, turns int) error {
	lease, err := store.AcquireWriter(ctx, th.c.ThreadID)
	if err != nil {
		return err
	}
	for turn := 1; turn <= turns; turn++ {
		th.turn(turn)
		if err := store.Append(ctx, lease.Writer, th.c, th.c.ParentCheckpointID); err != nil {
			return err
		}
		th.c.ParentCheckpointID = th.c.ID
	}
	return store.Release(ctx, lease.Writer)
}

func (th *largeThread) turn(n int) {
	th.c.ID = largeID(string(th.c.ThreadID), n)
	th.c.CreatedAt = th.c.CreatedAt.Add(time.Minute)
	if n > 1 {
		for range 1 + th.IntN(20) {
			at := th.IntN(len(th.c.Files))
			th.c.Files[at] = newEntry(th.c.Files[at].Path, th.bytes)
		}
	}
	if n%20 == 0 {
		th.c.Files = append(th.c.Files, newEntry(fmt.Sprintf("tests/generated%04d_test.go", n), th.bytes))
		th.c.Artifacts = append(th.c.Artifacts, checkpointdb.Artifact{
			ArtifactID: fmt.Sprint("report-", n), Name: "report.html", MimeType: "text/html", Size: 10_000,
			BlobKey: checkpointdb.ArtifactKey(newDigest(th.bytes)), CreatedAt: th.c.CreatedAt,
		})
	}
	for range 2 + th.IntN(5) {
		th.say(200 << th.IntN(8))
	}
	if th.talked > th.longest {
		end := th.c.Conversation[len(th.c.Conversation)-10:]
		th.c.Conversation, th.talked = nil, 0
		th.say(8000)
		for _, m := range end {
			th.talked += len(m)
		}
		th.c.Conversation = append(th.c.Conversation, end...)
	}
}

// say adds a message of about so many bytes that hardly compress.
func (th *largeThread) say(size int) {
	raw := make([]byte, size*3/4)
	_, _ = th.bytes.Read(raw) // never fails
	m := append([]byte(nil), `{"role":"assistant","content":"`...)
	m = base64.StdEncoding.AppendEncode(m, raw)
	m = append(m, `"}`...)
	th.c.Conversation = append(th.c.Conversation, m)
	th.talked += len(m)
}
