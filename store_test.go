package checkpointdb

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/salvage"
)

func TestOpenNamesEveryContradiction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	_, err := Open(path, &Options{LeaseDuration: time.Second, RenewAfter: 2 * time.Second, LockTimeout: -1})
	if !errors.Is(err, ErrInvalidOptions) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"RenewAfter 2s", "LeaseDuration 1s", "LockTimeout -1ns is negative"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file was made all the same")
	}
}

func TestDefaults(t *testing.T) {
	o, err := (*Options)(nil).withDefaults()
	must(t, err)
	if o.LeaseDuration != 120*time.Second || o.RenewAfter != 45*time.Second {
		t.Errorf("lease %s, renew after %s", o.LeaseDuration, o.RenewAfter)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	edit := func(name string, fn func(*bolt.Tx) error) string {
		path := filepath.Join(dir, name)
		db, err := bolt.Open(path, 0o600, nil)
		must(t, err)
		must(t, db.Update(fn))
		must(t, db.Close())
		return path
	}
	store := func(name string) string {
		path := filepath.Join(dir, name)
		s, err := Open(path, nil)
		must(t, err)
		must(t, s.Close())
		return path
	}
	future := edit("future.db", func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		return b.Put(keyFormat, u64(formatVersion+1))
	})
	lacking := store("lacking.db")
	edit("lacking.db", func(tx *bolt.Tx) error { return tx.DeleteBucket(bucketPins) })
	for _, test := range []struct {
		name, path string
		readOnly   bool
		want       error
		part       string
	}{
		{"directory", dir, false, ErrNotAStore, "is a directory"},
		{"text file", write("text", []byte(strings.Repeat("hello\n", 3000))), false, ErrNotAStore, "not a bbolt file"},
		{"short text file", write("short", []byte("hello\n")), false, ErrNotAStore, "not a bbolt file"},
		{"zeros", write("zeros", make([]byte, 1<<16)), false, ErrDamaged, "zero"},
		{"foreign bbolt file", edit("foreign.db", func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket([]byte("theirs"))
			return err
		}), false, ErrNotAStore, "not a store of this library"},
		{"later format", future, false, ErrUnknownFormat, fmt.Sprintf("format %d", formatVersion+1)},
		{"later format, read-only", future, true, ErrUnknownFormat, fmt.Sprintf("formats up to %d", formatVersion)},
		{"missing bucket", lacking, false, ErrDamaged, `"pins"`},
		{"missing, read-only", filepath.Join(dir, "none.db"), true, fs.ErrNotExist, "none.db"},
		{"missing directory", filepath.Join(dir, "none", "x.db"), false, fs.ErrNotExist, "none"},
		{"empty, read-only", write("empty", nil), true, ErrNotAStore, "is empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, _ := os.ReadFile(test.path)
			s, err := Open(test.path, &Options{ReadOnly: test.readOnly})
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.part) || !strings.Contains(err.Error(), test.path) {
				t.Errorf("got %v, want %v with %q and the path", err, test.want, test.part)
			}
			if after, _ := os.ReadFile(test.path); !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
			if test.readOnly && errors.Is(test.want, fs.ErrNotExist) {
				if _, err := os.Stat(test.path); err == nil {
					t.Error("a file was made")
				}
			}
		})
	}
}

// TestCase44InUse: a second Open says so, names the path, and does not wait
// beyond the timeout.
func TestCase44InUse(t *testing.T) {
	s := openTest(t, nil)
	for _, readOnly := range []bool{false, true} {
		began := time.Now()
		_, err := Open(s.Path(), &Options{LockTimeout: 300 * time.Millisecond, ReadOnly: readOnly})
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), s.Path()) {
			t.Errorf("read-only %t: %v", readOnly, err)
		}
		if waited := time.Since(began); waited > 10*time.Second {
			t.Errorf("it took %s", waited)
		}
	}
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s, err := Open(path, nil)
	must(t, err)
	fillStore(t, s)
	must(t, s.Close())
	must(t, os.Chmod(path, 0o400))
	before, err := os.ReadFile(path)
	must(t, err)
	ctx := context.Background()
	one := openTestAt(t, path, &Options{ReadOnly: true})
	two := openTestAt(t, path, &Options{ReadOnly: true}) // they share it
	for _, s := range []*Store{one, two} {
		if head, err := s.Head(ctx, "a thread"); err != nil || head != "cp-10" {
			t.Errorf("head %q, %v", head, err)
		}
		if _, err := s.AcquireWriter(ctx, "a thread"); !errors.Is(err, ErrReadOnly) {
			t.Errorf("acquire: %v", err)
		}
		must(t, s.Check(ctx))
		if _, err := s.Stats(ctx); err != nil {
			t.Error(err)
		}
		must(t, s.Backup(ctx, io.Discard))
	}
	after, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("looking changed the file")
	}
}

func TestClosed(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	must(t, s.Close())
	must(t, s.Close())
	if _, err := s.Get(ctx, "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.AcquireWriter(ctx, "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("acquire: %v", err)
	}
}

func TestNewFileIsForItsOwnerAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no permission bits")
	}
	s := openTest(t, nil)
	info, err := os.Stat(s.Path())
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
}

// TestCase1DamagedFile opens and checks damaged copies in a child process: a
// typed error that names the path, no panic, no signal, no changed byte.
func TestCase1DamagedFile(t *testing.T) {
	if path := os.Getenv("CHECKPOINTDB_TEST_DAMAGED"); path != "" {
		damagedChild(path)
	}
	good := filepath.Join(t.TempDir(), "good.db")
	s, err := Open(good, nil)
	must(t, err)
	fillStore(t, s)
	ctx := context.Background()
	lease, err := s.AcquireWriter(ctx, "bulk")
	must(t, err)
	head := CheckpointID("")
	for i := 0; ; i++ {
		c := testCheckpoint("bulk", i, head)
		c.ID = CheckpointID(fmt.Sprint("bulk-", i))
		for n := range 400 {
			c.Files = append(c.Files, Entry{Path: fmt.Sprint("many/", n), Kind: KindFile, BlobKey: testKey(fmt.Sprint("bulk", i, n))})
		}
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
		if info, err := os.Stat(good); err == nil && info.Size() > 1<<20 && i > 20 {
			break
		}
	}
	must(t, s.Check(ctx))
	must(t, s.Close())
	data, err := os.ReadFile(good)
	must(t, err)
	page := os.Getpagesize()
	db, err := bolt.Open(good, 0o600, &bolt.Options{ReadOnly: true})
	must(t, err)
	metas, _ := salvage.FindMetas(bytes.NewReader(data))
	must(t, db.Close())
	freelist := int(metas[0].Freelist) * page

	type damage struct {
		name string
		do   func([]byte) []byte
		must bool // whether the damage is certain to matter
	}
	cases := []damage{
		{"cut to half", func(b []byte) []byte { return b[:len(b)/2] }, true},
		{"cut to one page", func(b []byte) []byte { return b[:page] }, true},
		{"cut inside the first page", func(b []byte) []byte { return b[:100] }, true},
		{"both meta pages zeroed", func(b []byte) []byte { clear(b[:2*page]); return b }, true},
		{"freelist page header zeroed", func(b []byte) []byte { clear(b[freelist : freelist+16]); return b }, true},
		{"random bytes in the middle", func(b []byte) []byte { fillRandom(b[len(b)/2:len(b)/2+4096], 1); return b }, false},
		{"everything behind the metas random", func(b []byte) []byte { fillRandom(b[2*page:], 2); return b }, true},
		{"everything behind the metas zero", func(b []byte) []byte { clear(b[2*page:]); return b }, true},
	}
	for i := range 40 {
		cases = append(cases, damage{fmt.Sprint("random page ", i), func(b []byte) []byte {
			r := rand.New(rand.NewPCG(7, uint64(i)))
			at := (2 + r.IntN(len(b)/page-2)) * page
			fillRandom(b[at:at+page], uint64(i))
			return b
		}, false})
	}
	dir := t.TempDir()
	var paths []string
	for i, c := range cases {
		path := filepath.Join(dir, fmt.Sprintf("%02d.db", i))
		must(t, os.WriteFile(path, c.do(bytes.Clone(data)), 0o600))
		paths = append(paths, path)
	}
	// One child for all but a fault that ends it, which then shows whose it was.
	cmd := exec.Command(os.Args[0], "-test.run=^TestCase1DamagedFile$")
	cmd.Env = append(os.Environ(), "CHECKPOINTDB_TEST_DAMAGED="+strings.Join(paths, "\n"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the child ended with %v:\n%s", err, out)
	}
	for i, c := range cases {
		line := ""
		for l := range strings.Lines(string(out)) {
			if strings.HasPrefix(l, paths[i]+": ") {
				line = l
			}
		}
		switch {
		case line == "":
			t.Errorf("%s: no answer", c.name)
		case c.must && !strings.Contains(line, string(ErrDamaged)):
			t.Errorf("%s: %s", c.name, line)
		}
		if after, _ := os.ReadFile(paths[i]); !bytes.Equal(after, c.do(bytes.Clone(data))) {
			t.Errorf("%s: the file was changed", c.name)
		}
	}
}

func fillRandom(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 99))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// damagedChild prints one line for each path and exits.
func damagedChild(paths string) {
	for _, path := range strings.Split(paths, "\n") {
		for _, readOnly := range []bool{true, false} {
			err := func() error {
				s, err := Open(path, &Options{ReadOnly: readOnly})
				if err != nil {
					return err
				}
				defer s.Close()
				return s.Check(context.Background())
			}()
			switch {
			case err == nil:
				fmt.Printf("%s: sound\n", path)
			case !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path):
				fmt.Printf("%s: WRONG ERROR %v\n", path, err)
			default:
				fmt.Printf("%s: %s\n", path, strings.ReplaceAll(err.Error(), "\n", " "))
			}
		}
	}
	os.Exit(0)
}

// TestDamagedRowIsNamed: the error of a damaged row says in which file it is, and
// which it is, whoever meets it.
func TestDamagedRowIsNamed(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "test.db")
	s, err := Open(path, nil)
	must(t, err)
	defer s.Close()
	fillStore(t, s)
	key := place{1, 11}.key() // cp-10, the head
	must(t, s.db.Update(func(tx *bolt.Tx) error {
		v := bytes.Clone(tx.Bucket(bucketCheckpoints).Get(key))
		v[len(v)-1] ^= 1
		return tx.Bucket(bucketCheckpoints).Put(key, v)
	}))
	must(t, s.Close())
	s, err = Open(path, nil) // with no cache that knows better
	must(t, err)
	defer s.Close()
	_, reading := s.Get(ctx, "cp-10")
	lease, err := s.AcquireWriter(ctx, "changing")
	must(t, err)
	_, changing := s.Fork(ctx, lease.Writer, ForkRequest{
		SourceThreadID: "a thread", SourceCheckpointID: "cp-10",
		DestinationThreadID: "changing", DestinationCheckpointID: "x", CreatedAt: testTime(1),
	})
	for _, err := range []error{reading, changing} {
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprintf("%x", key)) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := s.Get(ctx, "cp-9"); err != nil {
		t.Errorf("a sound checkpoint: %v", err)
	}
}

// TestCase2ReadInsideRead: a loop over List and BlobReferences that calls back
// into the store never stops it, while the file grows far.
func TestCase2ReadInsideRead(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // ends a hang, not a slow machine
	defer cancel()
	mebibytes := 64
	if testing.Short() {
		mebibytes = 8
	}
	s := openTest(t, nil)
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	head := CheckpointID("")
	for i := range 200 {
		c := testCheckpoint("t", i, head)
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	done := make(chan error, 1)
	go func() {
		done <- WithLease(ctx, s, "bulk", func(ctx context.Context, w Writer) error {
			text := make([]byte, 1<<20)
			fillRandom(text, 3)
			for i := range mebibytes { // 1 MiB each that does not compress
				message := fmt.Appendf(nil, `"%x"`, text[:1<<19])
				text[i]++
				if err := s.SaveThread(ctx, ThreadID(fmt.Sprint("bulk-", i)), []json.RawMessage{message}); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	for finished := false; !finished; {
		for c, err := range s.List(ctx, "t") {
			must(t, err)
			if _, err := s.Get(ctx, c.ID); err != nil {
				t.Fatal(err)
			}
			for range s.BlobReferences(ctx) {
				break
			}
		}
		select {
		case err := <-done:
			must(t, err)
			finished = true
		default:
		}
	}
}

// TestCase4DeletingEverything: a transaction that empties whole pages must still
// find its way around them. bbolt's Last never returns there.
func TestCase4DeletingEverything(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	for _, thread := range []ThreadID{"t", "u"} {
		lease, err := s.AcquireWriter(ctx, thread)
		must(t, err)
		c := Checkpoint{ID: CheckpointID(thread + "-1"), ThreadID: thread, CreatedAt: testTime(1), Reason: ReasonNamed, Files: manyFiles(3000)}
		must(t, s.Append(ctx, lease.Writer, c, ""))
		must(t, s.DeleteHead(ctx, lease.Writer, c.ID))
		head := CheckpointID("")
		for i := range 501 {
			c := Checkpoint{ID: CheckpointID(fmt.Sprint(thread, i)), ThreadID: thread, ParentCheckpointID: head, CreatedAt: testTime(i), Reason: ReasonNamed}
			c.Files = []Entry{{Path: "f", Kind: KindFile, BlobKey: testKey(fmt.Sprint(thread, i))}}
			must(t, s.Append(ctx, lease.Writer, c, head))
			head = c.ID
		}
		gone, err := s.DeleteCheckpoints(ctx, lease.Writer, 1)
		must(t, err)
		if len(gone) != 500 {
			t.Errorf("%d were deleted", len(gone))
		}
		must(t, s.DeleteThread(ctx, lease.Writer))
	}
	stats, err := s.Stats(ctx)
	must(t, err)
	if stats.Checkpoints != 0 || stats.Runs != 0 || stats.Garbage != 3000+2*501 {
		t.Errorf("left: %+v", stats)
	}
}

// TestCase3ValuesOutliveTheStore: what was returned never points into the map
// of the file.
func TestCase3ValuesOutliveTheStore(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	fillStore(t, s)
	got, err := s.Get(ctx, "cp-9")
	must(t, err)
	forked, err := s.Get(ctx, "a fork")
	must(t, err)
	kept, keptFork := got.Clone(), forked.Clone()
	lease, err := s.AcquireWriter(ctx, "noise")
	must(t, err)
	head := CheckpointID("")
	for i := range 300 {
		c := testCheckpoint("noise", i%20, head)
		c.ID = CheckpointID(fmt.Sprint("noise-", i))
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
		if i%10 == 9 {
			_, err := s.DeleteCheckpoints(ctx, lease.Writer, 1)
			must(t, err)
		}
	}
	must(t, s.Check(ctx))
	must(t, s.Close())
	if d := cmp.Diff(kept, got) + cmp.Diff(keptFork, forked); d != "" {
		t.Error(d)
	}
}

// TestCase47Growth: a thousand checkpoints, each with a message more and a file
// changed, cost a small multiple of what is new in them, not their sum.
func TestCase47Growth(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	s.db.NoSync = true // it is about size
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	c := Checkpoint{ThreadID: "t", Reason: ReasonAutomatic, Files: manyFiles(1000)}
	distinct := 0
	for _, e := range c.Files {
		distinct += len(e.Path) + len(Digest{})
	}
	random := make([]byte, 1024)
	for i := range 1000 {
		head := c.ID
		c.ID, c.ParentCheckpointID, c.CreatedAt = CheckpointID(fmt.Sprint("cp-", i)), head, testTime(i)
		fillRandom(random, uint64(i))
		c.Conversation = append(c.Conversation, fmt.Appendf(nil, `"%x"`, random))
		c.Files[i].BlobKey = testKey(fmt.Sprint("new ", i))
		distinct += 2*len(random) + len(Digest{})
		must(t, s.Append(ctx, lease.Writer, c, head))
	}
	info, err := os.Stat(s.Path())
	must(t, err)
	t.Logf("%d bytes of file for %d bytes of distinct content", info.Size(), distinct)
	if info.Size() > 5*int64(distinct) {
		t.Errorf("the file has %d bytes for %d bytes of distinct content", info.Size(), distinct)
	}
	got, err := s.Get(ctx, c.ID)
	must(t, err)
	if !reflect.DeepEqual(c.Files, got.Files) || !reflect.DeepEqual(c.Conversation, got.Conversation) {
		t.Error("the last one came back different")
	}
}

func TestBackup(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	fillStore(t, s)
	dir := t.TempDir()
	path := filepath.Join(dir, "copy.db")
	out, err := os.Create(path)
	must(t, err)
	// Appends go on while a reader dawdles over the copy.
	err = s.Backup(ctx, writerFunc(func(p []byte) (int, error) {
		if _, err := s.AcquireWriter(ctx, ThreadID(fmt.Sprint("during-", time.Now().UnixNano()))); err != nil {
			t.Error(err)
		}
		return out.Write(p)
	}))
	must(t, err)
	must(t, out.Close())
	copied := openTestAt(t, path, nil)
	want, err := s.Get(ctx, "cp-10")
	must(t, err)
	got, err := copied.Get(ctx, "cp-10")
	must(t, err)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(s.Path()), "*.tmp"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Backup(cancelled, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestFormats opens a file of every format there has been, each a store after
// fillStore, and so migrates the older ones.
func TestFormats(t *testing.T) {
	for format := range formatVersion {
		t.Run(fmt.Sprint(format+1), func(t *testing.T) { testFormat(t, format+1) })
	}
}

func testFormat(t *testing.T, format int) {
	packed, err := os.Open(fmt.Sprintf("testdata/format-%d.db.gz", format))
	must(t, err)
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	must(t, err)
	data, err := io.ReadAll(unpacked)
	must(t, err)
	path := filepath.Join(t.TempDir(), "old.db")
	must(t, os.WriteFile(path, data, 0o600))
	s := openTestAt(t, path, nil)
	ctx := context.Background()
	want := testCheckpoint("a thread", 10, "cp-9")
	got, err := s.Get(ctx, "cp-10")
	must(t, err)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var ids []CheckpointID
	for c, err := range s.List(ctx, "a thread") {
		must(t, err)
		ids = append(ids, c.ID)
	}
	if d := cmp.Diff([]CheckpointID{"cp-0", "cp-5", "cp-8", "cp-9", "cp-10"}, ids); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	lease, err := s.AcquireWriter(ctx, "only a transcript")
	must(t, err)
	must(t, s.Append(ctx, lease.Writer, testCheckpoint("only a transcript", 50, ""), ""))
}
