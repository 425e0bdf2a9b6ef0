package main

import (
	"context"
	"fmt"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) deleteThreadCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "delete-thread THREAD",
		Short: "Delete a thread",
		Long: `Delete-thread deletes all checkpoints of a thread, its transcript and its lease. It
refuses a thread that somebody holds the lease of. The thread's last fence stays,
so that its former writers stay locked out, and with it the id in the list of
threads. The blobs stay until the next sweep.

JSON:

    {"threadId", "checkpoints", "dryRun"}`,
		Example: `  inspect delete-thread idea --dry-run --db agents.db
  inspect delete-thread idea --db agents.db`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(1, a.completeThread()),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be deleted")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		return a.deleteThread(ctx, checkpointdb.ThreadID(args[0]), dryRun)
	})
	return cmd
}

func (a *app) deleteThread(ctx context.Context, thread checkpointdb.ThreadID, dryRun bool) error {
	checkpoints := 0
	if dryRun {
		info, err := a.threadInfo(ctx, thread)
		if err != nil {
			return err
		}
		checkpoints = int(info.Checkpoints)
		a.warnLeased(info.Lease)
	} else {
		owner, done, err := a.openOwner(ctx, ownerOptions{})
		if err != nil {
			return err
		}
		defer done()
		if checkpoints, err = owner.DeleteThread(ctx, thread); err != nil {
			return adviseLeased(err)
		}
	}
	if a.json {
		return a.printJSON(struct {
			ThreadID    checkpointdb.ThreadID `json:"threadId"`
			Checkpoints int                   `json:"checkpoints"`
			DryRun      bool                  `json:"dryRun"`
		}{thread, checkpoints, dryRun})
	}
	verb := "deleted"
	if dryRun {
		verb = "would delete"
	}
	_, err := fmt.Fprintf(a.stdout, "%s thread %s with %s\n", verb, safe(string(thread)), count(checkpoints, "checkpoint"))
	return err
}

// threadInfo looks a thread up.
func (a *app) threadInfo(ctx context.Context, thread checkpointdb.ThreadID) (checkpointdb.ThreadInfo, error) {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return checkpointdb.ThreadInfo{}, err
	}
	defer done()
	for t, err := range store.Threads(ctx) {
		if err != nil || t.ID == thread {
			return t, err
		}
	}
	return checkpointdb.ThreadInfo{}, &checkpointdb.Error{Code: checkpointdb.ErrThreadNotFound, Message: fmt.Sprintf("no thread %q", string(thread))}
}
