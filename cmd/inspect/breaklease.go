package main

import (
	"context"
	"fmt"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) breakLeaseCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "break THREAD",
		Short: "End the lease of a thread",
		Long: `Break ends the lease of a thread, whoever holds it, so that the thread can be leased
anew at once. The holder's next write is refused, and what it protects from sweeps
is protected no more. Use it when the holder is known to be dead, or shall stop.

JSON:

    {"threadId", "fence", "expiresAt", "current", "dryRun"}

with the lease as it was.`,
		Example:           `  inspect leases break main --db agents.db`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(1, a.completeThread()),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the lease that would be ended")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		return a.breakLease(ctx, checkpointdb.ThreadID(args[0]), dryRun)
	})
	return cmd
}

func (a *app) breakLease(ctx context.Context, thread checkpointdb.ThreadID, dryRun bool) error {
	var lease checkpointdb.LeaseInfo
	if dryRun {
		info, err := a.threadInfo(ctx, thread)
		if err != nil {
			return err
		}
		if info.Lease == nil {
			return fmt.Errorf("thread %q has no lease", string(thread))
		}
		lease = *info.Lease
	} else {
		owner, done, err := a.openOwner(ctx, ownerOptions{})
		if err != nil {
			return err
		}
		defer done()
		if lease, err = owner.BreakLease(ctx, thread); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(struct {
			checkpointdb.LeaseInfo
			DryRun bool `json:"dryRun"`
		}{lease, dryRun})
	}
	verb, state := "ended", "expired "+age(lease.ExpiresAt)
	if dryRun {
		verb = "would end"
	}
	if lease.Current {
		state = "which had until " + a.time(lease.ExpiresAt)
	}
	_, err := fmt.Fprintf(a.stdout, "%s the lease of thread %s under fence %d, %s\n", verb, safe(string(thread)), lease.Fence, state)
	return err
}
