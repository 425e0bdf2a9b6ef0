package workspace_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"gocloud.dev/blob/memblob"

	"checkpointdb"
	"checkpointdb/workspace"
)

func ExampleCapture() {
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n"), 0o644)
	os.WriteFile(filepath.Join(dir, "copy.go"), []byte("package main\n"), 0o644)
	os.WriteFile(filepath.Join(dir, ".env"), []byte("TOKEN=secret\n"), 0o600)
	os.Mkdir(filepath.Join(dir, "empty"), 0o755)

	captured, err := workspace.Capture(ctx, dir, bucket, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range captured.Files {
		fmt.Println(e.Kind, e.Path, e.Size)
	}
	fmt.Println(captured.Uploaded, "blob uploaded")
	// Output:
	// file copy.go 13
	// dir empty 0
	// file main.go 13
	// 1 blob uploaded
}

func ExampleRestore() {
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n"), 0o644)
	captured, err := workspace.Capture(ctx, dir, bucket, nil)
	if err != nil {
		log.Fatal(err)
	}
	checkpoint := checkpointdb.Checkpoint{ID: "before", Files: captured.Files} // usually from a store

	// A turn goes wrong.
	os.WriteFile(filepath.Join(dir, "main.go"), []byte("package mian\n"), 0o644)
	os.WriteFile(filepath.Join(dir, "junk.tmp"), nil, 0o644)

	// Without Rewind nothing is replaced or removed.
	_, err = workspace.Restore(ctx, bucket, checkpoint, dir, nil)
	fmt.Println(checkpointdb.CodeOf(err))

	report, err := workspace.Restore(ctx, bucket, checkpoint, dir, &workspace.RestoreOptions{Rewind: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("replaced", report.Replaced, "removed", report.Removed)
	// Output:
	// CHECKPOINTDB_TARGET_NOT_EMPTY
	// replaced [main.go] removed [junk.tmp]
}

// A rewind that can be undone: what it would destroy becomes a checkpoint first.
func ExampleRestore_undo() {
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	opts := &workspace.CaptureOptions{Policy: workspace.Policy{IgnoreFile: ".gitignore"}}
	os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n"), 0o644)
	captured, err := workspace.Capture(ctx, dir, bucket, opts)
	if err != nil {
		log.Fatal(err)
	}
	policy, err := captured.Policy.Artifact(ctx, bucket, time.Now(), nil)
	if err != nil {
		log.Fatal(err)
	}
	checkpoint := checkpointdb.Checkpoint{ID: "turn-1", Files: captured.Files, Artifacts: []checkpointdb.Artifact{policy}}

	os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main // better\n"), 0o644)
	var undo checkpointdb.Checkpoint
	_, err = workspace.Restore(ctx, bucket, checkpoint, dir, &workspace.RestoreOptions{
		Rewind: true,
		Before: func(ctx context.Context, planned workspace.Report) error {
			fmt.Println("about to replace", planned.Replaced)
			before, err := workspace.Capture(ctx, dir, bucket, opts)
			undo = checkpointdb.Checkpoint{ID: "before-rewind", Files: before.Files} // to be appended to a store
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	// On second thought:
	_, err = workspace.Restore(ctx, bucket, undo, dir, &workspace.RestoreOptions{Rewind: true, Policy: &captured.Policy})
	if err != nil {
		log.Fatal(err)
	}
	data, _ := os.ReadFile(filepath.Join(dir, "main.go"))
	fmt.Print(string(data))
	// Output:
	// about to replace [main.go]
	// package main // better
}
