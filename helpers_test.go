package checkpointdb

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openTest opens a new store, and checks and closes it when the test ends.
func openTest(t testing.TB, opts *Options) *Store {
	t.Helper()
	return openTestAt(t, filepath.Join(t.TempDir(), "test.db"), opts)
}

func openTestAt(t testing.TB, path string, opts *Options) *Store {
	t.Helper()
	s, err := Open(path, opts)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Check(context.Background()); err != nil && CodeOf(err) != ErrClosed {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testTime(i int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(i)).UTC() }

func testKey(text string) BlobKey { return FileKey(sha256.Sum256([]byte(text))) }

// testCheckpoint makes the i-th checkpoint of a chain: 30 files, of which some
// change each time, every kind of entry, a growing conversation. Every fifth is
// a named one.
func testCheckpoint(thread ThreadID, i int, parent CheckpointID) Checkpoint {
	c := Checkpoint{
		ID: CheckpointID(fmt.Sprintf("cp-%d", i)), ThreadID: thread, ParentCheckpointID: parent,
		CreatedAt: testTime(i), Reason: ReasonAutomatic, SourceRunID: fmt.Sprint("run-", i),
	}
	if i%5 == 0 {
		c.Reason, c.Label = ReasonNamed, fmt.Sprint("label ", i)
	}
	for n := range 30 {
		version := (i + n) / 7 // changes in every seventh checkpoint
		c.Files = append(c.Files, Entry{
			Path: fmt.Sprintf("dir-%d/file-%02d", n/10, n), Kind: KindFile, Size: int64(n),
			BlobKey: testKey(fmt.Sprint(n, version)), Executable: n%3 == 0,
		})
	}
	c.Files = append(c.Files,
		Entry{Path: fmt.Sprintf("empty-%d", i%3), Kind: KindDir},
		Entry{Path: "link", Kind: KindSymlink, Target: fmt.Sprint("../", i%4)})
	for n := range i + 1 {
		c.Conversation = append(c.Conversation, json.RawMessage(fmt.Sprintf(`{"role": "user", "content": "<message %d>"}`, n)))
	}
	if i%2 == 0 {
		c.Artifacts = []Artifact{{
			ArtifactID: "plot", Name: "plot.png", MimeType: "image/png", Size: 9,
			BlobKey: ArtifactKey(sha256.Sum256(fmt.Append(nil, "plot", i/4))), CreatedAt: testTime(i),
		}}
	}
	return c
}
