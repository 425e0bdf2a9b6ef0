package main

import (
	"context"
	"iter"
	"strconv"
	"strings"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) logCommand() *cobra.Command {
	var path string
	var limit int
	cmd := &cobra.Command{
		Use:   "log THREAD",
		Short: "List the checkpoints of a thread, newest first",
		Long: `Log lists the checkpoints of a thread from its head back along the chain, which is
not always the order of their times. CHANGES counts the entries that were added
(+), changed (~) and removed (-) since the checkpoint before; NEW is the size of
the blobs that the one before does not use. The oldest one adds all it has, also
where those before it were pruned.

With --path only those are listed that changed this path or something beneath it.

JSON:

    [{"id", "threadId", "parentCheckpointId", "forkedFrom", "createdAt",
      "reason", "label", "sourceRunId", "head", "files", "messages", "artifacts",
      "bytes", "recordBytes", "added", "changed", "removed", "newBytes"}]`,
		Example: `  inspect log main --db agents.db
  inspect log main --path src/main.go --limit 5 --db agents.db`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(1, a.completeThread()),
		RunE: a.do(func(ctx context.Context, args []string) error {
			return a.log(ctx, checkpointdb.ThreadID(args[0]), path, limit)
		}),
	}
	cmd.Flags().StringVar(&path, "path", "", "only checkpoints that changed this `PATH`")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many to list at most, 0 for all")
	return cmd
}

// checkpointJSON takes the place of createdAt, which may be beyond what
// encoding/json writes.
type checkpointJSON struct {
	checkpointdb.CheckpointInfo
	CreatedAt string `json:"createdAt"`
}

func checkpointToJSON(c checkpointdb.CheckpointInfo) any {
	return checkpointJSON{c, stamp(c.CreatedAt)}
}

func (a *app) log(ctx context.Context, thread checkpointdb.ThreadID, path string, limit int) error {
	if limit < 0 {
		return usageError("--limit is negative")
	}
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	opts := &checkpointdb.LogOptions{Path: strings.TrimSuffix(path, "/")}
	if limit > 0 {
		opts.Limit = limit + 1 // one more tells whether there are more
	}
	more := false
	first := iter.Seq2[checkpointdb.CheckpointInfo, error](func(yield func(checkpointdb.CheckpointInfo, error) bool) {
		listed := 0
		for c, err := range store.Log(ctx, thread, opts) {
			if err == nil && limit > 0 && listed == limit {
				more = true
				return
			}
			if !yield(c, err) {
				return
			}
			listed++
		}
	})
	none := "thread " + strconv.Quote(string(thread)) + " has no checkpoints"
	if path != "" {
		none += " that changed " + strconv.Quote(path)
	}
	err = list(a, first, none, checkpointToJSON,
		a.grid("CHECKPOINT", "TIME", "REASON", "LABEL", "CHANGES", ">NEW"),
		func(c checkpointdb.CheckpointInfo) []any {
			return []any{c.ID, a.time(c.CreatedAt), c.Reason, c.Label, changesCell(c), a.size(c.NewBytes)}
		})
	if more {
		a.note("there are more than %s; --limit 0 lists all", count(limit, "checkpoint"))
	}
	return err
}

func changesCell(c checkpointdb.CheckpointInfo) any {
	return shown(strings.Join([]string{
		painted{"+" + strconv.Itoa(c.Added), green}.String(),
		painted{"~" + strconv.Itoa(c.Changed), yellow}.String(),
		painted{"-" + strconv.Itoa(c.Removed), red}.String(),
	}, " "))
}
