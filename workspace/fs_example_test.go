package workspace_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gocloud.dev/blob/memblob"

	"checkpointdb"
	"checkpointdb/memstore"
	"checkpointdb/workspace"
)

// The view of a checkpoint is an fs.FS like any other. To serve it, give it to
// http.FileServerFS.
func ExampleFS() {
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Mkdir(filepath.Join(dir, "src"), 0o755)
	os.WriteFile(filepath.Join(dir, "src", "main.go"), []byte("package main\n"), 0o644)
	os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\n"), 0o755)
	captured, err := workspace.Capture(ctx, dir, bucket, nil)
	if err != nil {
		log.Fatal(err)
	}
	checkpoint := checkpointdb.Checkpoint{ID: "before", Files: captured.Files} // usually from a store

	fsys, err := workspace.FS(ctx, checkpoint, bucket)
	if err != nil {
		log.Fatal(err)
	}
	fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		fmt.Println(path)
		return err
	})
	source, err := fs.ReadFile(fsys, "src/main.go")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(source))
	// Output:
	// .
	// run.sh
	// src
	// src/main.go
	// package main
}

func ExamplePutArtifact() {
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := store.AcquireWriter(ctx, "thread")
	if err != nil {
		log.Fatal(err)
	}

	artifact, err := workspace.PutArtifact(ctx, bucket, strings.NewReader("42 tests passed\n"), checkpointdb.Artifact{
		ArtifactID: "report", Name: "report.txt", MimeType: "text/plain", CreatedAt: time.Now(),
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = store.Append(ctx, lease.Writer, checkpointdb.Checkpoint{
		ID: "first", ThreadID: "thread", CreatedAt: time.Now(), Reason: checkpointdb.ReasonNamed,
		Artifacts: []checkpointdb.Artifact{artifact},
	}, "")
	if err != nil {
		log.Fatal(err)
	}

	content, artifact, err := workspace.ReadArtifact(ctx, store, bucket, "thread", "first", "report")
	if err != nil {
		log.Fatal(err)
	}
	defer content.Close()
	text, err := io.ReadAll(content)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(artifact.Name, ": ", string(text))

	// Another thread does not get it.
	_, _, err = workspace.ReadArtifact(ctx, store, bucket, "other", "first", "report")
	fmt.Println(checkpointdb.CodeOf(err))
	// Output:
	// report.txt: 42 tests passed
	// SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND
}
