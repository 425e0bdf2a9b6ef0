package checkpointdb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// fillWithBlobs is fillStore with contents: two threads, a pruned chain, a fork, a
// thread without head, and every message as its author spelled it. It returns the
// bucket.
func fillWithBlobs(t *testing.T, s *Store) *blob.Bucket {
	t.Helper()
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { bucket.Close() })
	put := func(text string) (BlobKey, int64) {
		key := testKey(text)
		must(t, bucket.WriteAll(ctx, string(key), []byte(text), nil))
		return key, int64(len(text))
	}
	add := func(w Writer, i int, head CheckpointID) CheckpointID {
		c := Checkpoint{ID: CheckpointID(fmt.Sprint(w.ThreadID, "@", i)), ThreadID: w.ThreadID, ParentCheckpointID: head, CreatedAt: testTime(i), Reason: ReasonAutomatic}
		for n := range 5 {
			text := strings.Repeat(fmt.Sprint("file ", n, " version ", (i+n)/3), n)
			key, size := put(text)
			c.Files = append(c.Files, Entry{Path: fmt.Sprint("f", n), Kind: KindFile, BlobKey: key, Size: size})
		}
		text := fmt.Sprint("artifact ", i/2)
		key := ArtifactKey(sha256.Sum256([]byte(text)))
		must(t, bucket.WriteAll(ctx, string(key), []byte(text), nil))
		c.Artifacts = []Artifact{{ArtifactID: "a", Name: "a", MimeType: "text/plain", Size: int64(len(text)), BlobKey: key, CreatedAt: testTime(i)}}
		for n := range i {
			c.Conversation = append(c.Conversation, json.RawMessage([]string{
				fmt.Sprintf(`{"n":%d,"big":9007199254740993,"<>&\u2028":"\ud800"}`, n), fmt.Sprintf("{\n\t\"n\": %d ,\r\n \"x\":1e400}", n),
			}[n%2]))
		}
		must(t, s.Append(ctx, w, c, head))
		return c.ID
	}
	one, err := s.AcquireWriter(ctx, "one")
	must(t, err)
	head := CheckpointID("")
	for i := range 9 {
		head = add(one.Writer, i, head)
	}
	_, err = s.Prune(ctx, one.Writer, PrunePolicy{KeepLast: 3})
	must(t, err)
	two, err := s.AcquireWriter(ctx, "two")
	must(t, err)
	_, err = s.Fork(ctx, two.Writer, ForkRequest{SourceThreadID: "one", SourceCheckpointID: "one@7", DestinationThreadID: "two", DestinationCheckpointID: "two@0", CreatedAt: testTime(70)})
	must(t, err)
	add(two.Writer, 20, "two@0")
	// A chain whose head was deleted, and the parent of that pruned before.
	three, err := s.AcquireWriter(ctx, "three")
	must(t, err)
	head = ""
	for i := range 6 {
		head = add(three.Writer, i, head)
	}
	must(t, s.DeleteHead(ctx, three.Writer, head))
	add(three.Writer, 7, "three@4")
	_, err = s.Prune(ctx, three.Writer, PrunePolicy{KeepYounger: s.opts.Clock().Sub(testTime(3))})
	must(t, err)
	for _, w := range []Writer{one.Writer, two.Writer, three.Writer} {
		must(t, s.Release(ctx, w))
	}
	must(t, s.SaveThread(ctx, "one", []json.RawMessage{json.RawMessage("[1, 2,\n3]"), json.RawMessage(`"plain"`)}))
	must(t, s.SaveThread(ctx, "only an empty transcript", nil))
	must(t, s.UpsertInstance(ctx, Instance{Key: "k", Provider: "p", ProviderSandboxID: "sb", ThreadID: "one", UpdatedAt: testTime(1)}))
	return bucket
}

// everything is all of a store that an export carries.
func everything(t *testing.T, s *Store) (all []any) {
	t.Helper()
	ctx := context.Background()
	for _, info := range collect(t, s.Threads(ctx)) {
		info.Lease = nil
		info.LastFence = 0
		all = append(all, info)
		for _, l := range collect(t, s.Log(ctx, info.ID, nil)) {
			l.RecordBytes = 0
			all = append(all, l)
		}
		for _, c := range collect(t, s.List(ctx, info.ID)) {
			all = append(all, c)
		}
		messages, err := s.LoadThread(ctx, info.ID)
		must(t, err)
		all = append(all, messages)
	}
	for _, b := range collect(t, s.Blobs(ctx)) {
		all = append(all, b)
	}
	if in, err := s.GetInstance(ctx, "k"); err == nil {
		all = append(all, in)
	}
	return all
}

func clockAt(i int) func() time.Time { return func() time.Time { return testTime(i) } }

func export(t *testing.T, s *Store, opts *ExportOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	_, err := s.Export(context.Background(), &b, opts)
	must(t, err)
	return b.Bytes()
}

// TestExportImport brings a store with its blobs into a new one, and again.
func TestExportImport(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	bucket := fillWithBlobs(t, s)
	var last TransferReport
	var out bytes.Buffer
	exported, err := s.Export(ctx, &out, &ExportOptions{Bucket: bucket, Progress: func(r TransferReport) { last = r }})
	must(t, err)
	if exported.Threads != 4 || exported.Checkpoints != 3+2+2 || exported.Transcripts != 3 || exported.Instances != 1 || exported.Blobs == 0 || last != exported {
		t.Errorf("exported %+v, at last %+v", exported, last)
	}
	for line := range bytes.Lines(out.Bytes()) {
		if !json.Valid(line) {
			t.Fatalf("not a line of JSON: %s", line)
		}
	}

	to := openTest(t, &Options{Clock: clockAt(1000)})
	into := memblob.OpenBucket(nil)
	defer into.Close()
	dry, err := to.Import(ctx, bytes.NewReader(out.Bytes()), &ImportOptions{DryRun: true})
	must(t, err)
	if len(collect(t, to.Threads(ctx))) != 0 {
		t.Error("a dry run changed the store")
	}
	done, err := to.Import(ctx, bytes.NewReader(out.Bytes()), &ImportOptions{Bucket: into})
	must(t, err)
	if done != exported || dry != exported {
		t.Errorf("exported %+v, imported %+v, dry %+v", exported, done, dry)
	}
	if d := cmp.Diff(everything(t, s), everything(t, to)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, b := range collect(t, to.Blobs(ctx)) {
		data, err := into.ReadAll(ctx, string(b.Key))
		must(t, err)
		if want, _ := b.Key.Digest(); sha256.Sum256(data) != want {
			t.Errorf("%s has other bytes", b.Key)
		}
	}

	again, err := to.Import(ctx, bytes.NewReader(out.Bytes()), &ImportOptions{Bucket: into})
	must(t, err)
	if again.Checkpoints != 0 || again.PresentCheckpoints != exported.Checkpoints || again.Blobs != 0 || again.PresentBlobs != exported.Blobs {
		t.Errorf("the second time %+v", again)
	}
	if d := cmp.Diff(everything(t, s), everything(t, to)); d != "" {
		t.Errorf("after the second time (-want +got):\n%s", d)
	}
	// The contract goes on where the export ended.
	lease, err := to.AcquireWriter(ctx, "two")
	must(t, err)
	if lease.Fence < 2 {
		t.Errorf("fence %d", lease.Fence)
	}
	must(t, to.Append(ctx, lease.Writer, Checkpoint{ID: "next", ThreadID: "two", ParentCheckpointID: "two@20", CreatedAt: testTime(1), Reason: ReasonAutomatic}, "two@20"))
}

// TestExportOfSomeThreads leaves the others, and their instances, out.
func TestExportOfSomeThreads(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	fillWithBlobs(t, s)
	to := openTest(t, nil)
	report, err := to.Import(ctx, bytes.NewReader(export(t, s, &ExportOptions{Threads: []ThreadID{"two"}})), nil)
	must(t, err)
	if want := (TransferReport{Threads: 1, Checkpoints: 2, Transcripts: 1}); report != want {
		t.Errorf("imported %+v, want %+v", report, want)
	}
	if _, err := s.Export(ctx, &bytes.Buffer{}, &ExportOptions{Threads: []ThreadID{"two", "nobody"}}); !errors.Is(err, ErrThreadNotFound) {
		t.Errorf("export of an unknown thread: %v", err)
	}
}

// TestImportOfTheHeadless keeps a thread without a head as it is.
func TestImportOfTheHeadless(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	head := CheckpointID("")
	for i := range 13 {
		c := testCheckpoint("t", i, head)
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	_, err = s.Prune(ctx, lease.Writer, PrunePolicy{KeepNamed: true})
	must(t, err)
	must(t, s.DeleteHead(ctx, lease.Writer, head))
	to := openTest(t, &Options{Clock: clockAt(1000)})
	_, err = to.Import(ctx, bytes.NewReader(export(t, s, nil)), nil)
	must(t, err)
	if d := cmp.Diff(everything(t, s), everything(t, to)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if info := collect(t, to.Threads(ctx))[0]; info.Head != "" || info.Checkpoints != 3 {
		t.Errorf("the thread is %+v", info)
	}
	must(t, to.Check(ctx))
}

// TestImportKeepsTheHead: that a thread has no head elsewhere takes none away, and
// a thread that went on here is left alone.
func TestImportKeepsTheHead(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	lease, err := s.AcquireWriter(ctx, "t")
	must(t, err)
	head := CheckpointID("")
	for i := range 13 {
		c := testCheckpoint("t", i, head)
		must(t, s.Append(ctx, lease.Writer, c, head))
		head = c.ID
	}
	_, err = s.Prune(ctx, lease.Writer, PrunePolicy{KeepNamed: true})
	must(t, err)
	withHead := export(t, s, nil)
	must(t, s.DeleteHead(ctx, lease.Writer, head))
	headless := export(t, s, nil)
	to := openTest(t, &Options{Clock: clockAt(1000)})
	_, err = to.Import(ctx, bytes.NewReader(withHead), nil)
	must(t, err)
	_, err = to.Import(ctx, bytes.NewReader(headless), nil)
	must(t, err)
	if got, err := to.Head(ctx, "t"); got != head || err != nil {
		t.Errorf("head %q, %v; want %q", got, err, head)
	}
	lease, err = to.AcquireWriter(ctx, "t")
	must(t, err)
	must(t, to.Append(ctx, lease.Writer, testCheckpoint("t", 20, head), head))
	must(t, to.Release(ctx, lease.Writer))
	for _, opts := range []*ImportOptions{{DryRun: true}, nil} {
		if _, err := to.Import(ctx, bytes.NewReader(withHead), opts); !errors.Is(err, ErrStaleHead) {
			t.Errorf("import into a thread that went on: %v", err)
		}
	}
}

// TestImportCutAnywhere cuts the export after every line and in the middle of
// lines: an error each time, and the whole export afterwards makes it good.
func TestImportCutAnywhere(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	bucket := fillWithBlobs(t, s)
	whole := export(t, s, &ExportOptions{Bucket: bucket})
	want := everything(t, s)
	to := openTest(t, &Options{Clock: clockAt(1000)})
	to.SkipSync()
	into := memblob.OpenBucket(nil)
	defer into.Close()
	cuts := []int{0}
	for i, b := range whole[:len(whole)-1] {
		if b == '\n' {
			cuts = append(cuts, i+1, i+40)
		}
	}
	for _, cut := range cuts {
		if _, err := to.Import(ctx, bytes.NewReader(whole[:min(cut, len(whole)-2)]), &ImportOptions{Bucket: into}); err == nil {
			t.Fatalf("an export that was cut at %d of %d was taken", cut, len(whole))
		}
	}
	must(t, to.Check(ctx))
	_, err := to.Import(ctx, bytes.NewReader(whole), &ImportOptions{Bucket: into})
	must(t, err)
	if d := cmp.Diff(want, everything(t, to)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestImportRefuses(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	bucket := fillWithBlobs(t, s)
	plain, full := string(export(t, s, nil)), string(export(t, s, &ExportOptions{Bucket: bucket}))
	lines := strings.SplitAfter(plain, "\n")
	one := strings.Join(lines[:5], "") // head, thread, its 3 checkpoints
	tests := []struct {
		name, export string
		prepare      func(*Store)
		want         Code
		part         string
	}{
		{"nothing", "", nil, ErrInvalidArgument, "first line"},
		{"text", "hello\n", nil, ErrInvalidArgument, "line 1"},
		{"later version", `{"export":{"version":9}}` + "\n", nil, ErrInvalidArgument, "version 9"},
		{"unknown field", lines[0] + `{"snapshot":1}` + "\n", nil, ErrInvalidArgument, `line 2: is no line of an export: json: unknown field "snapshot"`},
		{"out of place", lines[0] + lines[2], nil, ErrInvalidArgument, "line 2: is out of place"},
		{"invalid checkpoint", strings.Replace(one, `"path":"f1"`, `"path":"/f1"`, 1), nil, ErrInvalidEntry, "line 3"},
		{"of another thread", strings.Replace(one, `"threadId":"one"`, `"threadId":"two"`, 1), nil, ErrInvalidArgument, `is of thread \"two\"`},
		{"twice", one + lines[4], nil, ErrDuplicateID, "twice"},
		{"blobs without a bucket", full, nil, ErrInvalidArgument, "no bucket"},
		{"something behind the end", plain + lines[0], nil, ErrInvalidArgument, "behind the last line"},
		{"differs", plain, func(s *Store) {
			lease, err := s.AcquireWriter(ctx, "one")
			must(t, err)
			must(t, s.Append(ctx, lease.Writer, Checkpoint{ID: "one@6", ThreadID: "one", CreatedAt: testTime(1), Reason: ReasonNamed}, ""))
			must(t, s.Release(ctx, lease.Writer))
		}, ErrDuplicateID, "is not the same"},
		{"elsewhere", plain, func(s *Store) {
			lease, err := s.AcquireWriter(ctx, "x")
			must(t, err)
			must(t, s.Append(ctx, lease.Writer, Checkpoint{ID: "one@6", ThreadID: "x", CreatedAt: testTime(1), Reason: ReasonNamed}, ""))
		}, ErrDuplicateID, "another thread"},
		{"has more", plain, func(s *Store) {
			lease, err := s.AcquireWriter(ctx, "one")
			must(t, err)
			must(t, s.Append(ctx, lease.Writer, Checkpoint{ID: "mine", ThreadID: "one", CreatedAt: testTime(1), Reason: ReasonNamed}, ""))
			must(t, s.Release(ctx, lease.Writer))
		}, ErrStaleHead, `up to \"mine\"`},
		{"leased", plain, func(s *Store) {
			_, err := s.AcquireWriter(ctx, "one")
			must(t, err)
		}, ErrWriterConflict, "leased"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			to := openTestAt(t, filepath.Join(t.TempDir(), "to.db"), nil)
			if test.prepare != nil {
				test.prepare(to)
			}
			_, err := to.Import(ctx, strings.NewReader(test.export), nil)
			if !errors.Is(err, test.want) || !strings.Contains(fmt.Sprint(err), strings.ReplaceAll(test.part, "\\", "")) {
				t.Errorf("got %v, want %s with %q", err, test.want, test.part)
			}
			if test.want == ErrWriterConflict {
				return
			}
			if _, err := to.Import(ctx, strings.NewReader(test.export), &ImportOptions{DryRun: true}); test.name != "blobs without a bucket" && !errors.Is(err, test.want) {
				t.Errorf("dry run: got %v, want %s", err, test.want)
			}
		})
	}
}

// TestImportVerifiesBlobs does not believe an export.
func TestImportVerifiesBlobs(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	bucket := fillWithBlobs(t, s)
	text := string(export(t, s, &ExportOptions{Bucket: bucket}))
	i := strings.Index(text, `"data":"Z`) // the beginning of file
	text = text[:i] + `"data":"a` + text[i+len(`"data":"Z`):]
	to := openTest(t, nil)
	into := memblob.OpenBucket(nil)
	defer into.Close()
	_, err := to.Import(ctx, strings.NewReader(text), &ImportOptions{Bucket: into})
	if detail, ok := errors.AsType[*BlobError](err); !errors.Is(err, ErrBlobDamaged) || !ok {
		t.Errorf("got %v", err)
	} else if exists, err := into.Exists(ctx, string(detail.Key)); exists || err != nil {
		t.Errorf("the damaged blob was stored (%v)", err)
	}
}

// TestExportVerifiesBlobs: what would be of no use to an import is not written.
func TestExportVerifiesBlobs(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, &Options{Clock: clockAt(1000)})
	bucket := fillWithBlobs(t, s)
	victim := collect(t, s.Blobs(ctx))[5]
	for _, test := range []struct {
		data string
		want Code
	}{{strings.Repeat("x", int(victim.Size)), ErrBlobDamaged}, {"short or long", ErrBlobDamaged}, {"", ErrBlobMissing}} {
		must(t, bucket.Delete(ctx, string(victim.Key)))
		if test.data != "" {
			must(t, bucket.WriteAll(ctx, string(victim.Key), []byte(test.data), nil))
		}
		_, err := s.Export(ctx, &bytes.Buffer{}, &ExportOptions{Bucket: bucket})
		if detail, ok := errors.AsType[*BlobError](err); !errors.Is(err, test.want) || !ok || detail.Key != victim.Key {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}
