package main

import (
	"context"
	"iter"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) threadsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "threads",
		Short: "List the threads",
		Long: `Threads lists every thread that ever had a lease or a transcript, by the bytes of
its id: its head and the age of that, how many checkpoints it has, its lease, and
the size of its files and artifacts. LOGICAL counts them for each checkpoint
anew; OWN counts once, and only those that no other thread uses, which is what a
sweep can free when the thread is deleted.

JSON:

    [{"id", "head", "headCreatedAt", "checkpoints", "lastFence",
      "lease": {"threadId", "fence", "expiresAt", "current"}, "transcript",
      "logicalBytes", "sharedBytes", "ownBytes"}]`,
		Example: `  inspect threads --db agents.db
  inspect threads --db agents.db --json | grep '"current":true'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.do(a.threads),
	}
}

// threadJSON leaves out the head where there is none, and takes the place of
// headCreatedAt, which may be beyond what encoding/json writes.
type threadJSON struct {
	checkpointdb.ThreadInfo
	Head          checkpointdb.CheckpointID `json:"head,omitempty"`
	HeadCreatedAt string                    `json:"headCreatedAt,omitempty"`
	LogicalBytes  int64                     `json:"logicalBytes"`
	SharedBytes   int64                     `json:"sharedBytes"`
	OwnBytes      int64                     `json:"ownBytes"`
}

func (a *app) threads(ctx context.Context, _ []string) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	usage, err := store.Usage(ctx, nil)
	if err != nil {
		return err
	}
	of := make(map[checkpointdb.ThreadID]checkpointdb.ThreadUsage, len(usage.Threads))
	for _, u := range usage.Threads {
		of[u.ThreadID] = u
	}
	return list(a, store.Threads(ctx), "no threads",
		func(t checkpointdb.ThreadInfo) any {
			u := of[t.ID]
			return threadJSON{t, t.Head, stamp(t.HeadCreatedAt), u.LogicalBytes, u.SharedBytes, u.OwnBytes}
		},
		a.grid("THREAD", "HEAD", "AGE", ">CHECKPOINTS", "LEASE", ">LOGICAL", ">OWN"),
		func(t checkpointdb.ThreadInfo) []any {
			head, since := "", ""
			if t.Head != "" {
				head, since = string(t.Head), age(t.HeadCreatedAt)
			}
			u := of[t.ID]
			return []any{t.ID, head, since, t.Checkpoints, leaseCell(t.Lease), a.size(u.LogicalBytes), a.size(u.OwnBytes)}
		})
}

// leaseCell says how a lease stands, in few words.
func leaseCell(l *checkpointdb.LeaseInfo) any {
	switch {
	case l == nil:
		return ""
	case l.Current:
		return painted{"ends " + age(l.ExpiresAt), green}
	default:
		return painted{"expired " + age(l.ExpiresAt), yellow}
	}
}

func (a *app) leasesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "leases",
		Short: "List the leases",
		Long: `Leases lists the threads that somebody holds, or held and never released: a lease
that has expired stays until the next one is taken. The fence is the lease's
number; the token that proves a holder is not shown.

JSON:

    [{"threadId", "fence", "expiresAt", "current"}]`,
		Example:           `  inspect leases --db agents.db`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.do(a.leases),
	}
}

func (a *app) leases(ctx context.Context, _ []string) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	leased := iter.Seq2[checkpointdb.LeaseInfo, error](func(yield func(checkpointdb.LeaseInfo, error) bool) {
		for t, err := range store.Threads(ctx) {
			if err != nil {
				yield(checkpointdb.LeaseInfo{}, err)
				return
			}
			if t.Lease != nil && !yield(*t.Lease, nil) {
				return
			}
		}
	})
	return list(a, leased, "no leases",
		func(l checkpointdb.LeaseInfo) any { return l },
		a.grid("THREAD", ">FENCE", "EXPIRES", "STATE"),
		func(l checkpointdb.LeaseInfo) []any {
			state := painted{"current, ends " + age(l.ExpiresAt), green}
			if !l.Current {
				state = painted{"expired " + age(l.ExpiresAt), yellow}
			}
			return []any{l.ThreadID, uint64(l.Fence), a.time(l.ExpiresAt), state}
		})
}
