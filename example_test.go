package checkpointdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/workspace"

	"gocloud.dev/blob"
)

// saveTurn makes what is in dir the new head of a thread.
func saveTurn(ctx context.Context, store *checkpointdb.Store, bucket *blob.Bucket,
	thread checkpointdb.ThreadID, id checkpointdb.CheckpointID, dir string) error {
	return checkpointdb.WithLease(ctx, store, thread, func(ctx context.Context, w checkpointdb.Writer) error {
		head, err := store.Head(ctx, thread)
		if err != nil {
			return err
		}
		captured, err := workspace.Capture(ctx, dir, bucket, &workspace.CaptureOptions{ // first the bytes
			Protect: checkpointdb.ProtectFor(store, w), // which no sweep takes away meanwhile
		})
		if err != nil {
			return err
		}
		return store.Append(ctx, w, checkpointdb.Checkpoint{ // then the record that names them
			ID:                 id,
			ThreadID:           thread,
			ParentCheckpointID: head,
			CreatedAt:          time.Now(),
			Reason:             checkpointdb.ReasonAutomatic,
			Files:              captured.Files,
		}, head)
	})
}

// The records of a runner in one file, the bytes of its workspaces in a directory
// beside it: save a turn, and bring it back into an empty directory.
func Example() {
	ctx, dir := context.Background(), tempDir()
	defer os.RemoveAll(dir)

	store, err := checkpointdb.Open(filepath.Join(dir, "agents.db"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	bucket, err := buckets.Open(ctx, filepath.Join(dir, "blobs"))
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()

	work := filepath.Join(dir, "work")
	writeFile(filepath.Join(work, "main.go"), "package main\n")
	if err := saveTurn(ctx, store, bucket, "thread-1", "turn-1", work); err != nil {
		log.Fatal(err)
	}

	turn, err := store.Get(ctx, "turn-1")
	if err != nil {
		log.Fatal(err)
	}
	report, err := workspace.Restore(ctx, bucket, turn, filepath.Join(dir, "again"), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s of %s restored: %q\n", turn.ID, turn.ThreadID, report.Written)
	// Output: turn-1 of thread-1 restored: ["main.go"]
}

// While one writer holds the lease of a thread, others are refused at once and
// told until when.
func ExampleWithLease() {
	ctx, store, closeStore := openExample()
	defer closeStore()

	err := checkpointdb.WithLease(ctx, store, "thread-1", func(ctx context.Context, w checkpointdb.Writer) error {
		fmt.Println("writing under fence", w.Fence)
		_, err := store.AcquireWriter(ctx, "thread-1")
		if conflict, ok := errors.AsType[*checkpointdb.WriterConflictError](err); ok {
			fmt.Println("another writer: held under fence", conflict.Fence)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := store.AcquireWriter(ctx, "thread-1")
	fmt.Println("afterwards: fence", lease.Fence, err)
	// Output:
	// writing under fence 1
	// another writer: held under fence 1
	// afterwards: fence 2 <nil>
}

// A fork starts another thread from a checkpoint. The lease is that of the new
// thread; the old one may be in use meanwhile.
func ExampleStore_Fork() {
	ctx, store, closeStore := openExample()
	defer closeStore()
	appendTurns(ctx, store, "thread-1", "turn-1", "turn-2")

	err := checkpointdb.WithLease(ctx, store, "thread-2", func(ctx context.Context, w checkpointdb.Writer) error {
		c, err := store.Fork(ctx, w, checkpointdb.ForkRequest{
			SourceThreadID: "thread-1", SourceCheckpointID: "turn-1",
			DestinationThreadID: "thread-2", DestinationCheckpointID: "branch-1",
			CreatedAt: time.Now(),
		})
		fmt.Printf("%s: %s, conversation %s\n", c.ID, c.Reason, c.Conversation)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: branch-1: fork-root, conversation ["turn-1 done"]
}

// What a policy would delete can be asked first.
func ExampleStore_Prune() {
	ctx, store, closeStore := openExample()
	defer closeStore()
	appendTurns(ctx, store, "thread-1", "turn-1", "turn-2", "turn-3")

	err := checkpointdb.WithLease(ctx, store, "thread-1", func(ctx context.Context, w checkpointdb.Writer) error {
		policy := checkpointdb.PrunePolicy{KeepLast: 1, KeepNamed: true, DryRun: true}
		would, err := store.Prune(ctx, w, policy)
		if err != nil {
			return err
		}
		policy.DryRun = false
		pruned, err := store.Prune(ctx, w, policy)
		fmt.Println(would, pruned)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: [turn-1 turn-2] [turn-1 turn-2]
}

// An error has a class to decide by, and facts to report.
func ExampleCodeOf() {
	ctx, store, closeStore := openExample()
	defer closeStore()

	_, err := store.Get(ctx, "turn-7")
	fmt.Println(errors.Is(err, checkpointdb.ErrCheckpointNotFound))
	fmt.Println(checkpointdb.CodeOf(err))
	// Output:
	// true
	// SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND
}

// The rest is for the examples alone.

func tempDir() string {
	dir, err := os.MkdirTemp("", "checkpointdb-example-")
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

func writeFile(path, text string) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		log.Fatal(err)
	}
}

// openExample opens a new store, which the returned function removes.
func openExample() (context.Context, *checkpointdb.Store, func()) {
	dir := tempDir()
	store, err := checkpointdb.Open(filepath.Join(dir, "agents.db"), nil)
	if err != nil {
		log.Fatal(err)
	}
	return context.Background(), store, func() {
		store.Close()
		os.RemoveAll(dir)
	}
}

// appendTurns appends checkpoints without files, each with one message more.
func appendTurns(ctx context.Context, store *checkpointdb.Store, thread checkpointdb.ThreadID, ids ...checkpointdb.CheckpointID) {
	err := checkpointdb.WithLease(ctx, store, thread, func(ctx context.Context, w checkpointdb.Writer) error {
		var parent checkpointdb.CheckpointID
		var conversation []json.RawMessage
		for _, id := range ids {
			conversation = append(conversation, json.RawMessage(fmt.Sprintf("%q", string(id)+" done")))
			if err := store.Append(ctx, w, checkpointdb.Checkpoint{
				ID: id, ThreadID: thread, ParentCheckpointID: parent, CreatedAt: time.Now(),
				Reason: checkpointdb.ReasonAutomatic, Conversation: conversation,
			}, parent); err != nil {
				return err
			}
			parent = id
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// TestReadme keeps the README's Go code equal to code that is compiled and run
// here, indentation aside.
func TestReadme(t *testing.T) {
	plain := func(name string) string {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(string(data)) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return strings.Join(lines, "\n")
	}
	code := plain("example_test.go")
	blocks := strings.Split(plain("README.md"), "\n```go\n")[1:]
	if len(blocks) == 0 {
		t.Error("the README shows no code")
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "\n```")
		if !strings.Contains(code, "\n"+block+"\n") {
			t.Errorf("not in example_test.go:\n%s", block)
		}
	}
}
