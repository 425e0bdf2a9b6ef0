package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/internal/storeopen"
	"checkpointdb/workspace"

	"gocloud.dev/blob"
)

// nowInTests is when the commands of the tests run.
var nowInTests = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// What a sandbox could call things: it colours, writes the clipboard, returns to
// the start of the line, starts another, turns the writing around, and holds a
// C1 control.
const evil = "evil\x1b[31m\x1b]52;c;YQ==\a\r\nx\u202etxt\u009b"

// maker fills a store for the tests.
type maker struct {
	t      *testing.T
	store  *checkpointdb.Store
	bucket *blob.Bucket
	clock  time.Time
}

func (m *maker) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// at sets the clock to a time of the day, such as "09:30".
func (m *maker) at(clock string) {
	m.t.Helper()
	t, err := time.Parse("15:04:05", clock)
	m.must(err)
	m.clock = nowInTests.Truncate(24 * time.Hour).Add(t.Sub(t.Truncate(24 * time.Hour)))
}

// file puts content into the bucket and returns an entry for it.
func (m *maker) file(path, content string) checkpointdb.Entry {
	m.t.Helper()
	key := keyOf(content)
	m.must(buckets.WriteDurable(context.Background(), m.bucket, string(key), int64(len(content)), strings.NewReader(content)))
	return checkpointdb.Entry{Path: path, Kind: checkpointdb.KindFile, Size: int64(len(content)), BlobKey: key}
}

func keyOf(content string) checkpointdb.BlobKey {
	return checkpointdb.FileKey(sha256.Sum256([]byte(content)))
}

func dir(path string) checkpointdb.Entry {
	return checkpointdb.Entry{Path: path, Kind: checkpointdb.KindDir}
}

func link(path, target string) checkpointdb.Entry {
	return checkpointdb.Entry{Path: path, Kind: checkpointdb.KindSymlink, Target: target}
}

func executable(e checkpointdb.Entry) checkpointdb.Entry {
	e.Executable = true
	return e
}

func (m *maker) artifact(id, name, content string) checkpointdb.Artifact {
	m.t.Helper()
	a, err := workspace.PutArtifact(context.Background(), m.bucket, strings.NewReader(content),
		checkpointdb.Artifact{ArtifactID: id, Name: name, MimeType: "text/plain", CreatedAt: m.clock}, nil)
	m.must(err)
	return a
}

func messages(texts ...string) (list []json.RawMessage) {
	for _, text := range texts {
		b, _ := json.Marshal(map[string]string{"content": text})
		list = append(list, b)
	}
	return list
}

// lease runs f as the writer of a thread and releases the lease.
func (m *maker) lease(thread checkpointdb.ThreadID, f func(w checkpointdb.Writer)) {
	m.t.Helper()
	l, err := m.store.AcquireWriter(context.Background(), thread)
	m.must(err)
	f(l.Writer)
	m.must(m.store.Release(context.Background(), l.Writer))
}

// save appends c to the head of its thread.
func (m *maker) save(c checkpointdb.Checkpoint) {
	m.t.Helper()
	m.lease(c.ThreadID, func(w checkpointdb.Writer) {
		head, err := m.store.Head(context.Background(), c.ThreadID)
		m.must(err)
		c.ParentCheckpointID = head
		if c.CreatedAt.IsZero() {
			c.CreatedAt = m.clock
		}
		if c.Reason == "" {
			c.Reason = checkpointdb.ReasonAutomatic
		}
		m.must(m.store.Append(context.Background(), w, c, head))
	})
}

func (m *maker) fork(from checkpointdb.ThreadID, source checkpointdb.CheckpointID, to checkpointdb.ThreadID, id checkpointdb.CheckpointID) {
	m.t.Helper()
	m.lease(to, func(w checkpointdb.Writer) {
		_, err := m.store.Fork(context.Background(), w, checkpointdb.ForkRequest{
			SourceThreadID: from, SourceCheckpointID: source, DestinationThreadID: to, DestinationCheckpointID: id, CreatedAt: m.clock,
		})
		m.must(err)
	})
}

// The files whose content the scripts speak of.
const (
	readme1 = "# Agent\n\nA first line.\n"
	readme2 = "# Agent\n\nA better line.\nAnd one more, without an end"
	main1   = "package main\n\nfunc main() {\n}\n"
	main2   = "package main\n\nfunc main() {\n\tprintln(1)\n}\n"
	logo    = "\x89PNG\x00\x01"
)

// makeStore makes agents.db and blobs in dir.
func makeStore(t *testing.T, dirname string) {
	m := &maker{t: t}
	ctx := context.Background()
	var err error
	m.bucket, err = buckets.Open(ctx, filepath.Join(dirname, "blobs"))
	m.must(err)
	defer m.bucket.Close()
	m.at("08:00:00")
	m.store = storeopen.Open(t, filepath.Join(dirname, "agents.db"), &checkpointdb.Options{Clock: func() time.Time { return m.clock }})
	defer storeopen.Close(t, m.store)

	m.at("09:00:00")
	files := []checkpointdb.Entry{
		m.file("README.md", readme1), dir("empty"), link("link", "src/main.go"), m.file("logo.png", logo),
		m.file("run.sh", "#!/bin/sh\n"), m.file("src/main.go", main1),
	}
	m.save(checkpointdb.Checkpoint{ID: "m1", ThreadID: "main", Files: files, Conversation: messages("hello"), SourceRunID: "run-1"})
	m.at("09:30:00")
	files = slices.Clone(files)
	files[0] = m.file("README.md", readme2)
	m.save(checkpointdb.Checkpoint{ID: "m2", ThreadID: "main", Files: files, Conversation: messages("hello", "world"),
		Reason: checkpointdb.ReasonNamed, Label: "before the refactoring"})
	m.at("10:00:00")
	files = slices.Clone(files)
	files[4], files[5] = executable(files[4]), m.file("src/main.go", main2)
	m.save(checkpointdb.Checkpoint{ID: "m3", ThreadID: "main", Files: files, Conversation: messages("hello", "world")})
	m.at("10:15:00")
	m.fork("main", "m2", "idea", "i1")
	m.at("10:20:00")
	m.save(checkpointdb.Checkpoint{ID: "i2", ThreadID: "idea", Files: append(slices.Clone(files), m.file("zeta.txt", strings.Repeat("idea ", 1000)))})
	m.at("10:40:00")
	m.fork("main", "m3", "rescue", "r1")
	m.at("11:00:00")
	files = slices.Clone(files)
	files[1], files[2] = m.file("empty", "no longer\n"), link("link", "run.sh")
	files = append(slices.Delete(files, 3, 4), m.file("src/util.go", "package main\n"))
	m.save(checkpointdb.Checkpoint{ID: "m4", ThreadID: "main", Files: files, Conversation: messages("hello", "world", "Zürich 日本")})
	m.at("11:30:00")
	m.save(checkpointdb.Checkpoint{ID: "m5", ThreadID: "main", Files: files, Conversation: messages("hello", "world", "Zürich 日本", "done"),
		Reason: checkpointdb.ReasonNamed, Label: "tests pass", Artifacts: []checkpointdb.Artifact{m.artifact("report", "report.txt", "all is well\n")}})
	m.lease("main", func(w checkpointdb.Writer) {
		_, err := m.store.Prune(ctx, w, checkpointdb.PrunePolicy{KeepLast: 2, KeepNamed: true})
		m.must(err)
	})

	// Ids and times that do not say what the chain says.
	for _, c := range []struct {
		id     checkpointdb.CheckpointID
		millis int64
	}{{"9", 3}, {"10", 2}, {"11", 2}} {
		m.save(checkpointdb.Checkpoint{ID: c.id, ThreadID: "order", CreatedAt: time.UnixMilli(c.millis)})
	}

	m.at("11:40:00")
	m.save(checkpointdb.Checkpoint{
		ID: evil + "1", ThreadID: evil, Label: evil, SourceRunID: evil, Reason: checkpointdb.ReasonNamed,
		Files:        []checkpointdb.Entry{m.file(evil, "plain\n"), link("link", evil)},
		Conversation: messages(evil), Artifacts: []checkpointdb.Artifact{m.artifact(evil, evil, "x")},
	})
	m.at("11:41:00")
	m.save(checkpointdb.Checkpoint{
		ID: evil + "2", ThreadID: evil, Label: evil,
		Files: []checkpointdb.Entry{m.file(evil, evil), link("link", evil+"2"), dir(`"quoted"`)},
	})
	m.fork(evil, evil+"2", evil+"fork", evil+"3")

	m.must(m.store.SaveThread(ctx, "idle", messages("nothing yet")))
	m.at("11:50:00")
	_, err = m.store.AcquireWriter(ctx, "lapsed")
	m.must(err)
	m.at("11:59:30")
	_, err = m.store.AcquireWriter(ctx, "main")
	m.must(err)
}
