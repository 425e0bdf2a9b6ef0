package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"checkpointdb"
	"checkpointdb/workspace"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"gocloud.dev/blob"
)

// maxDiffBytes is the largest file whose content is compared: both sides are held
// in memory, several times over.
const maxDiffBytes = 8 << 20

func (a *app) diffCommand() *cobra.Command {
	var blobs string
	var content bool
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the workspaces of two checkpoints",
		Long: `Diff lists by path what must change to get from checkpoint A to checkpoint B, of
whatever threads they are:

    A  was added
    D  was removed
    M  was changed: its content, its executable bit or the target of its link
    T  became of another kind

With --content the text of files follows as a unified diff. For this the blobs
are fetched from the bucket and verified; files of more than 8 MiB and those that
are not UTF-8 text are only named. A blob that is missing or damaged is named,
the rest is compared, and the exit code is 3.

JSON:

    [{"path", "kind", "from": ENTRY, "to": ENTRY, "diff"}]

where kind is added, changed or removed, ENTRY is as in show --files, and diff is
the unified diff.`,
		Example: `  inspect diff cp-16 cp-17 --db agents.db
  inspect diff cp-16 cp-17 --content --db agents.db --blobs ./blobs`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: firstOnly(2, a.completeCheckpoint()),
	}
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		store, done, err := a.openStore(ctx)
		if err != nil {
			return err
		}
		defer done()
		var sides [2]checkpointdb.Checkpoint
		for i, id := range args {
			if sides[i], err = store.Get(ctx, checkpointdb.CheckpointID(id)); err != nil {
				return err
			}
		}
		d := differ{a: a}
		if content {
			bucket, err := a.openBucket(ctx, blobs)
			if err != nil {
				return err
			}
			defer bucket.Close()
			if err := d.open(ctx, sides, bucket); err != nil {
				return err
			}
		}
		return d.print(checkpointdb.Changes(sides[0], sides[1]))
	})
	cmd.Flags().BoolVar(&content, "content", false, "compare the text of files as well")
	blobsFlag(cmd, &blobs)
	return cmd
}

type differ struct {
	a     *app
	sides [2]fs.FS // of the content; nil when only paths are compared
	errs  []error  // of the blobs that could not be read
}

func (d *differ) open(ctx context.Context, sides [2]checkpointdb.Checkpoint, bucket *blob.Bucket) (err error) {
	for i := range sides {
		if d.sides[i], err = workspace.FS(ctx, sides[i], bucket); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) print(changes []checkpointdb.Change) error {
	if d.a.json {
		if err := listJSON(d.a, sequence(changes), d.toJSON); err != nil {
			return err
		}
		return errors.Join(d.errs...)
	}
	if len(changes) == 0 {
		d.a.note("no differences")
		return nil
	}
	for _, c := range changes {
		text := mark(c) + "  " + safe(c.Path)
		if what := d.a.describe(c); what != "" {
			text += "  (" + what + ")"
		}
		fmt.Fprintln(d.a.stdout, text)
		unified, remark := d.unified(c)
		if remark != "" {
			fmt.Fprintln(d.a.stdout, remark)
		}
		d.a.printUnified(unified)
	}
	return errors.Join(d.errs...)
}

func (d *differ) toJSON(c checkpointdb.Change) any {
	unified, _ := d.unified(c)
	return struct {
		checkpointdb.Change
		Diff string `json:"diff,omitempty"`
	}{c, unified}
}

// mark is the letter by which a change is known.
func mark(c checkpointdb.Change) string {
	switch {
	case c.From == nil:
		return "A"
	case c.To == nil:
		return "D"
	case c.From.Kind != c.To.Kind:
		return "T"
	default:
		return "M"
	}
}

// describe says what of an entry has changed.
func (a *app) describe(c checkpointdb.Change) string {
	from, to := c.From, c.To
	switch {
	case from == nil:
		return a.kind(to)
	case to == nil:
		return a.kind(from)
	case from.Kind != to.Kind:
		return a.kind(from) + ", now " + a.kind(to)
	}
	var what []string
	if from.BlobKey != to.BlobKey {
		what = append(what, fmt.Sprintf("%s, now %s", a.size(from.Size), a.size(to.Size)))
	}
	if from.Executable != to.Executable {
		if to.Executable {
			what = append(what, "made executable")
		} else {
			what = append(what, "no longer executable")
		}
	}
	if from.Target != to.Target {
		what = append(what, fmt.Sprintf("link to %q, now to %q", from.Target, to.Target))
	}
	return strings.Join(what, ", ")
}

func (a *app) kind(e *checkpointdb.Entry) string {
	switch e.Kind {
	case checkpointdb.KindFile:
		if e.Executable {
			return "executable, " + a.size(e.Size)
		}
		return a.size(e.Size)
	case checkpointdb.KindSymlink:
		return fmt.Sprintf("link to %q", e.Target)
	default:
		return "directory"
	}
}

// unified compares the text of both sides, of which a missing one is empty. Where
// it cannot, a remark says why.
func (d *differ) unified(c checkpointdb.Change) (unified, remark string) {
	isFile := func(e *checkpointdb.Entry) bool { return e != nil && e.Kind == checkpointdb.KindFile }
	if d.sides[0] == nil || !isFile(c.From) && !isFile(c.To) ||
		isFile(c.From) && isFile(c.To) && c.From.BlobKey == c.To.BlobKey {
		return "", ""
	}
	names := [2]string{"/dev/null", "/dev/null"}
	var texts [2][]byte
	for i, e := range []*checkpointdb.Entry{c.From, c.To} {
		if !isFile(e) {
			continue
		}
		if e.Size > maxDiffBytes {
			return "", "too large to compare"
		}
		text, err := fs.ReadFile(d.sides[i], e.Path)
		if err != nil {
			if wrong, ok := errors.AsType[*fs.PathError](err); ok {
				err = wrong.Err // it names the path in quotes
			}
			d.errs = append(d.errs, err)
			return "", "cannot be compared"
		}
		if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
			return "", "binary, not compared"
		}
		names[i], texts[i] = safe("ab"[i:i+1]+"/"+e.Path), text
	}
	return string(diff.Diff(names[0], texts[0], names[1], texts[1])), ""
}

// printUnified prints a unified diff, of whose lines a terminal gets no more
// than tabs.
func (a *app) printUnified(unified string) {
	for line := range strings.Lines(unified) {
		line = escape(strings.TrimSuffix(line, "\n"), '\t')
		switch {
		case strings.HasPrefix(line, "+"):
			line = green.Sprint(line)
		case strings.HasPrefix(line, "-"):
			line = red.Sprint(line)
		}
		fmt.Fprintln(a.stdout, line)
	}
}
