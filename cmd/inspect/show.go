package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"checkpointdb"

	"github.com/spf13/cobra"
	"gocloud.dev/blob"
)

// threadFlag gives a command the flag --thread.
func (a *app) threadFlag(cmd *cobra.Command, thread *string) {
	cmd.Flags().StringVar(thread, "thread", "", "the head of the thread with this `ID`")
	_ = cmd.RegisterFlagCompletionFunc("thread", a.completeThread()) // fails for an unknown flag only
}

// checkpoint returns the one with this id, or the head of thread; one of the two
// must be "".
func checkpoint(ctx context.Context, store *checkpointdb.Store, id checkpointdb.CheckpointID, thread checkpointdb.ThreadID) (checkpointdb.Checkpoint, error) {
	if thread != "" {
		var err error
		if id, err = store.Head(ctx, thread); err != nil {
			return checkpointdb.Checkpoint{}, err
		}
		if id == "" {
			for _, err := range store.Log(ctx, thread, &checkpointdb.LogOptions{Limit: 1}) {
				if err != nil { // there is no such thread
					return checkpointdb.Checkpoint{}, err
				}
			}
			return checkpointdb.Checkpoint{}, fmt.Errorf("thread %q has no head", string(thread))
		}
	}
	return store.Get(ctx, id)
}

// withBlobs returns a checkpoint, as checkpoint does, and the bucket with its
// blobs. The caller calls done.
func (a *app) withBlobs(ctx context.Context, id, thread, url string) (c checkpointdb.Checkpoint, bucket *blob.Bucket, done func(), err error) {
	store, closeStore, err := a.openStore(ctx)
	if err != nil {
		return c, nil, nil, err
	}
	defer closeStore()
	if c, err = checkpoint(ctx, store, checkpointdb.CheckpointID(id), checkpointdb.ThreadID(thread)); err != nil {
		return c, nil, nil, err
	}
	if bucket, err = a.openBucket(ctx, url); err != nil {
		return c, nil, nil, err
	}
	return c, bucket, func() { bucket.Close() }, nil
}

// either refuses a call with both or neither of a CHECKPOINT and --thread.
func either(id, thread string) error {
	if (id == "") == (thread == "") {
		return usageError("give a CHECKPOINT, or --thread for the head of one")
	}
	return nil
}

func (a *app) showCommand() *cobra.Command {
	var thread string
	var files, conversation, artifacts bool
	cmd := &cobra.Command{
		Use:   "show [CHECKPOINT]",
		Short: "Show a checkpoint",
		Long: `Show prints what a checkpoint says of itself, counts what it holds, and tells what
it changed against the checkpoint before it in its thread. With one of the flags
it lists the entries of the workspace instead, the messages of the conversation,
one on a line, or the artifacts.

JSON:

    {"id", "threadId", "parentCheckpointId", "forkedFrom", "createdAt", "reason",
     "label", "sourceRunId", "head", "files", "directories", "symlinks", "bytes",
     "messages", "artifacts", "artifactBytes", "added", "changed", "removed",
     "newBytes", "recordBytes"}

where newBytes are those of blobs that the checkpoint before does not use, and
recordBytes what it takes in the store's file.

With --files:

    [{"path", "kind", "blobKey", "size", "executable", "target"}]

where kind is file, dir or symlink, and the others are there where they apply;
with --conversation a list of the messages; with --artifacts:

    [{"artifactId", "name", "mimeType", "size", "blobKey", "createdAt"}]`,
		Example: `  inspect show cp-17 --db agents.db
  inspect show --thread main --files --db agents.db
  inspect show --thread main --conversation --db agents.db | tail -1`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstOnly(1, a.completeCheckpoint()),
	}
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		id := strings.Join(args, "")
		if err := either(id, thread); err != nil {
			return err
		}
		store, done, err := a.openStore(ctx)
		if err != nil {
			return err
		}
		defer done()
		c, err := checkpoint(ctx, store, checkpointdb.CheckpointID(id), checkpointdb.ThreadID(thread))
		if err != nil {
			return err
		}
		switch {
		case files:
			return a.showFiles(c)
		case conversation:
			return a.showConversation(c)
		case artifacts:
			return a.showArtifacts(c)
		}
		info, err := store.Info(ctx, c.ID)
		if err != nil {
			return err
		}
		return a.show(c, info)
	})
	a.threadFlag(cmd, &thread)
	cmd.Flags().BoolVar(&files, "files", false, "list the entries of the workspace")
	cmd.Flags().BoolVar(&conversation, "conversation", false, "list the messages")
	cmd.Flags().BoolVar(&artifacts, "artifacts", false, "list the artifacts")
	cmd.MarkFlagsMutuallyExclusive("files", "conversation", "artifacts")
	return cmd
}

type showJSON struct {
	ID                 checkpointdb.CheckpointID `json:"id"`
	ThreadID           checkpointdb.ThreadID     `json:"threadId"`
	ParentCheckpointID checkpointdb.CheckpointID `json:"parentCheckpointId,omitempty"`
	ForkedFrom         checkpointdb.CheckpointID `json:"forkedFrom,omitempty"`
	CreatedAt          string                    `json:"createdAt"`
	Reason             checkpointdb.Reason       `json:"reason"`
	Label              string                    `json:"label,omitempty"`
	SourceRunID        string                    `json:"sourceRunId,omitempty"`
	Head               bool                      `json:"head"`
	Files              int                       `json:"files"`
	Directories        int                       `json:"directories"`
	Symlinks           int                       `json:"symlinks"`
	Bytes              int64                     `json:"bytes"`
	Messages           int                       `json:"messages"`
	Artifacts          int                       `json:"artifacts"`
	ArtifactBytes      int64                     `json:"artifactBytes"`
	Added              int                       `json:"added"`
	Changed            int                       `json:"changed"`
	Removed            int                       `json:"removed"`
	NewBytes           int64                     `json:"newBytes"`
	RecordBytes        int64                     `json:"recordBytes"`
}

func (a *app) show(c checkpointdb.Checkpoint, info checkpointdb.CheckpointInfo) error {
	out := showJSON{
		ID: c.ID, ThreadID: c.ThreadID, ParentCheckpointID: c.ParentCheckpointID, ForkedFrom: info.ForkedFrom,
		CreatedAt: stamp(c.CreatedAt), Reason: c.Reason, Label: c.Label, SourceRunID: c.SourceRunID, Head: info.Head,
		Messages: len(c.Conversation), Artifacts: len(c.Artifacts),
		Added: info.Added, Changed: info.Changed, Removed: info.Removed, NewBytes: info.NewBytes, RecordBytes: info.RecordBytes,
	}
	for _, e := range c.Files {
		switch e.Kind {
		case checkpointdb.KindFile:
			out.Files++
			out.Bytes += e.Size
		case checkpointdb.KindDir:
			out.Directories++
		case checkpointdb.KindSymlink:
			out.Symlinks++
		}
	}
	for _, artifact := range c.Artifacts {
		out.ArtifactBytes += artifact.Size
	}
	if a.json {
		return a.printJSON(out)
	}
	a.field("Checkpoint", c.ID)
	thread := safe(string(c.ThreadID))
	if info.Head {
		thread += ", of which it is the head"
	}
	a.field("Thread", shown(thread))
	a.field("Parent", cmp.Or(c.ParentCheckpointID, "none"))
	if info.ForkedFrom != "" {
		a.field("Forked from", info.ForkedFrom)
	}
	a.field("Created", a.exactTime(c.CreatedAt)+", "+age(c.CreatedAt))
	a.field("Reason", c.Reason)
	if c.Label != "" {
		a.field("Label", c.Label)
	}
	if c.SourceRunID != "" {
		a.field("Run", c.SourceRunID)
	}
	a.field("Workspace", fmt.Sprintf("%s of %s, %s, %s", count(out.Files, "file"), a.size(out.Bytes),
		count(out.Symlinks, "link"), count(out.Directories, "empty dir")))
	a.field("Conversation", count(out.Messages, "message"))
	a.field("Artifacts", fmt.Sprintf("%d of %s", out.Artifacts, a.size(out.ArtifactBytes)))
	a.field("Changes", fmt.Sprintf("%d added, %d changed, %d removed; %s new, %s in the store's file",
		info.Added, info.Changed, info.Removed, a.size(info.NewBytes), a.size(info.RecordBytes)))
	return nil
}

func (a *app) showFiles(c checkpointdb.Checkpoint) error {
	return list(a, sequence(c.Files), "the workspace of "+strconv.Quote(string(c.ID))+" is empty",
		func(e checkpointdb.Entry) any { return e },
		a.grid("KIND", ">SIZE", "PATH"),
		func(e checkpointdb.Entry) []any {
			switch {
			case e.Kind == checkpointdb.KindSymlink:
				return []any{"link", "", shown(safe(e.Path) + " -> " + safe(e.Target))}
			case e.Kind == checkpointdb.KindFile && e.Executable:
				return []any{"exec", a.size(e.Size), e.Path}
			case e.Kind == checkpointdb.KindFile:
				return []any{"file", a.size(e.Size), e.Path}
			default:
				return []any{e.Kind, "", e.Path}
			}
		})
}

func (a *app) showConversation(c checkpointdb.Checkpoint) error {
	if a.json {
		return listJSON(a, sequence(c.Conversation), func(m json.RawMessage) any { return m })
	}
	if len(c.Conversation) == 0 {
		a.note("the conversation of %q is empty", string(c.ID))
	}
	var line bytes.Buffer
	for _, m := range c.Conversation {
		line.Reset()
		if err := json.Compact(&line, m); err != nil { // a message may span lines
			return err
		}
		fmt.Fprintf(a.stdout, "%s\n", escapeJSON(line.Bytes()))
	}
	return nil
}

type artifactJSON struct {
	ArtifactID string               `json:"artifactId"`
	Name       string               `json:"name"`
	MimeType   string               `json:"mimeType"`
	Size       int64                `json:"size"`
	BlobKey    checkpointdb.BlobKey `json:"blobKey"`
	CreatedAt  string               `json:"createdAt"`
}

func (a *app) showArtifacts(c checkpointdb.Checkpoint) error {
	return list(a, sequence(c.Artifacts), "checkpoint "+strconv.Quote(string(c.ID))+" has no artifacts",
		func(f checkpointdb.Artifact) any {
			return artifactJSON{f.ArtifactID, f.Name, f.MimeType, f.Size, f.BlobKey, stamp(f.CreatedAt)}
		},
		a.grid("ARTIFACT", "TYPE", ">SIZE", "TIME", "NAME"),
		func(f checkpointdb.Artifact) []any {
			return []any{f.ArtifactID, f.MimeType, a.size(f.Size), a.time(f.CreatedAt), f.Name}
		})
}
