package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"checkpointdb"
	"checkpointdb/workspace"

	"github.com/spf13/cobra"
)

func (a *app) catCommand() *cobra.Command {
	var thread, blobs string
	var raw bool
	cmd := &cobra.Command{
		Use:   "cat [CHECKPOINT] PATH",
		Short: "Print a file of a checkpoint",
		Long: `Cat prints the bytes of a file as they were, through the bucket, and verifies them
on the way. Links are followed as long as they stay inside the checkpoint.

When stdout is a terminal, content that a terminal would obey is refused unless
--raw is given.

JSON:

    {"checkpointId", "path", "size", "executable", "data"}

where path is the one that was asked for and data is the content in base64.`,
		Example: `  inspect cat cp-17 src/main.go --db agents.db --blobs ./blobs
  inspect cat --thread main plot.png --db agents.db --blobs ./blobs > plot.png`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: firstOnly(1, a.completeCheckpoint()),
	}
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		id, name := "", args[len(args)-1]
		if len(args) == 2 {
			id = args[0]
		}
		if err := either(id, thread); err != nil {
			return err
		}
		c, bucket, done, err := a.withBlobs(ctx, id, thread, blobs)
		if err != nil {
			return err
		}
		defer done()
		files, err := workspace.FS(ctx, c, bucket)
		if err != nil {
			return err
		}
		err = a.cat(files, c.ID, name, raw)
		if wrong, ok := errors.AsType[*fs.PathError](err); ok { // its text has the name as it is
			return fmt.Errorf("%q of checkpoint %q: %w", name, string(c.ID), wrong.Err)
		}
		return err
	})
	a.threadFlag(cmd, &thread)
	blobsFlag(cmd, &blobs)
	cmd.Flags().BoolVar(&raw, "raw", false, "print to a terminal whatever the content is")
	return cmd
}

func (a *app) cat(files fs.FS, id checkpointdb.CheckpointID, name string, raw bool) error {
	clean := path.Clean(name)
	info, err := fs.Stat(files, clean)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%q of checkpoint %q is a directory", name, string(id))
	}
	if a.isTerminal && !raw && !a.json {
		if err := refuseControls(files, clean); err != nil {
			return err
		}
	}
	f, err := files.Open(clean)
	if err != nil {
		return err
	}
	defer f.Close()
	if !a.json {
		_, err = io.Copy(a.stdout, f)
		return err
	}
	head, err := encodeJSON(struct {
		ID         checkpointdb.CheckpointID `json:"checkpointId"`
		Path       string                    `json:"path"`
		Size       int64                     `json:"size"`
		Executable bool                      `json:"executable"`
	}{id, name, info.Size(), info.Mode()&0o111 != 0})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, `%s,"data":"`, head[:len(head)-1])
	encoder := base64.NewEncoder(base64.StdEncoding, a.stdout)
	if _, err := io.Copy(encoder, f); err != nil {
		return err
	}
	encoder.Close()
	_, err = a.stdout.WriteString("\"}\n")
	return err
}

// refuseControls reads the whole file, before any of it is printed.
func refuseControls(files fs.FS, name string) error {
	f, err := files.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for at := int64(0); ; {
		c, size, err := r.ReadRune()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if c != '\n' && c != '\t' && !isShown(c, size) {
			return fmt.Errorf("%q is not for a terminal, see its byte %d; send it elsewhere, or use --raw", name, at)
		}
		at += int64(size)
	}
}
