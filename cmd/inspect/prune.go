package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) pruneCommand() *cobra.Command {
	var p pruneFlags
	cmd := &cobra.Command{
		Use:   "prune THREAD...",
		Short: "Delete old checkpoints",
		Long: `Prune deletes the checkpoints of the threads that no rule keeps, and prints which.
There must be a rule, and a checkpoint is kept when any rule keeps it. The head is
always kept. What is newest, the chain decides, not the times; what is older, the
times that the checkpoints were made with, and one in the future is never old.

A thread that somebody holds the lease of is not pruned, the others are; the exit
code is 4 then. The blobs stay until the next sweep.

JSON:

    [{"threadId", "checkpointId"}]

oldest first; the same with --dry-run.`,
		Example: `  inspect prune main --keep-last 20 --dry-run --db agents.db
  inspect prune --all-threads --older-than 30d --keep-named --db agents.db`,
		ValidArgsFunction: a.completeThread(),
	}
	flags := cmd.Flags()
	flags.IntVar(&p.keepLast, "keep-last", 0, "keep the newest `N` of each thread, the head included")
	flags.StringVar(&p.olderThan, "older-than", "", "keep what is younger than `AGE`, such as 36h or 30d")
	flags.BoolVar(&p.keepNamed, "keep-named", false, "keep the checkpoints that somebody asked for")
	flags.BoolVar(&p.all, "all-threads", false, "prune every thread")
	flags.BoolVar(&p.dryRun, "dry-run", false, "only print what would be deleted")
	cmd.RunE = a.do(func(ctx context.Context, args []string) error {
		policy, err := p.policy(cmd)
		if err != nil {
			return err
		}
		if p.all == (len(args) > 0) {
			return usageError("give the threads to prune, or --all-threads")
		}
		return a.prune(ctx, args, p.all, policy)
	})
	return cmd
}

type pruneFlags struct {
	keepLast  int
	olderThan string
	keepNamed bool
	all       bool
	dryRun    bool
}

// policy refuses rules that would keep nothing, which nobody means who writes
// them.
func (p pruneFlags) policy(cmd *cobra.Command) (checkpointdb.PrunePolicy, error) {
	policy := checkpointdb.PrunePolicy{KeepLast: p.keepLast, KeepNamed: p.keepNamed, DryRun: p.dryRun}
	if cmd.Flags().Changed("keep-last") && p.keepLast < 1 {
		return policy, usageError(fmt.Sprintf("--keep-last %d keeps nothing; the least is 1, the head", p.keepLast))
	}
	if cmd.Flags().Changed("older-than") {
		var err error
		if policy.KeepYounger, err = parseAge(p.olderThan); err != nil {
			return policy, usageError("--older-than " + err.Error())
		}
	}
	if policy.KeepLast == 0 && policy.KeepYounger == 0 && !policy.KeepNamed {
		return policy, usageError("no rule says what to keep; use --keep-last, --older-than or --keep-named")
	}
	return policy, nil
}

// parseAge reads a duration above zero. Beyond what time.ParseDuration knows it
// takes whole days, as 30d.
func parseAge(s string) (d time.Duration, err error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 64)
		const most = int64(1<<63-1) / int64(24*time.Hour)
		if err == nil && n > most {
			err = errors.New("too long")
		}
		d = time.Duration(n) * 24 * time.Hour
	} else {
		d, err = time.ParseDuration(s)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is no age; write it as 90m, 36h or 30d", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q is not above zero", s)
	}
	return d, nil
}

type prunedJSON struct {
	ThreadID     checkpointdb.ThreadID     `json:"threadId"`
	CheckpointID checkpointdb.CheckpointID `json:"checkpointId"`
}

// prune goes on to the other threads when one of them cannot be pruned.
func (a *app) prune(ctx context.Context, args []string, all bool, policy checkpointdb.PrunePolicy) error {
	prune, done, err := a.pruner(ctx, policy.DryRun)
	if err != nil {
		return err
	}
	defer done()
	if policy.DryRun {
		if err := a.warnAllLeased(ctx, prune.store, args); err != nil {
			return err
		}
	}
	threads := args
	if all {
		if threads, err = a.allThreads(ctx, prune.store); err != nil {
			return err
		}
	}
	var pruned []prunedJSON
	var failed []error
	touched := 0
	for _, thread := range threads {
		ids, err := prune.do(ctx, checkpointdb.ThreadID(thread), policy)
		if ctx.Err() != nil {
			failed = []error{ctx.Err()}
			break
		}
		if err != nil {
			failed = append(failed, adviseLeased(err))
		}
		if len(ids) > 0 {
			touched++
		}
		for _, id := range ids {
			pruned = append(pruned, prunedJSON{checkpointdb.ThreadID(thread), id})
		}
	}
	none := "nothing to prune"
	if len(failed) > 0 {
		none = "nothing was pruned"
	}
	if err := list(a, sequence(pruned), none,
		func(p prunedJSON) any { return p },
		a.grid("THREAD", "CHECKPOINT"),
		func(p prunedJSON) []any { return []any{p.ThreadID, p.CheckpointID} }); err != nil {
		return err
	}
	if len(pruned) > 0 {
		what := count(len(pruned), "checkpoint") + " of " + count(touched, "thread")
		if policy.DryRun {
			a.did(true, "would delete %s", what)
		} else {
			a.did(false, "deleted %s; a sweep frees the blobs that only they used", what)
		}
	}
	if len(failed) == 0 || len(threads) == 1 || ctx.Err() != nil {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		a.note("%v", err)
	}
	return &unprunedError{failed, len(threads)}
}

// unprunedError says of how many threads could not be pruned. What was wrong with
// each has been told.
type unprunedError struct {
	errs []error
	of   int
}

func (e *unprunedError) Error() string {
	return fmt.Sprintf("%d of %s could not be pruned", len(e.errs), count(e.of, "thread"))
}

func (e *unprunedError) Unwrap() []error { return e.errs }

// pruner prunes or, from a store that is only looked at, plans to.
type pruner struct {
	store *checkpointdb.Store // to list the threads of; nil when that is left to a look of its own
	do    func(ctx context.Context, thread checkpointdb.ThreadID, policy checkpointdb.PrunePolicy) ([]checkpointdb.CheckpointID, error)
}

func (a *app) pruner(ctx context.Context, dryRun bool) (pruner, func(), error) {
	if dryRun {
		store, done, err := a.openStore(ctx)
		if err != nil {
			return pruner{}, nil, err
		}
		return pruner{store, store.PlanPrune}, done, nil
	}
	owner, done, err := a.openOwner(ctx, ownerOptions{})
	if err != nil {
		return pruner{}, nil, err
	}
	p := pruner{do: owner.Prune}
	if here, ok := owner.(openedHere); ok {
		p.store = here.store
	}
	return p, done, nil
}

// warnAllLeased does so for the threads, all of them when there are none.
func (a *app) warnAllLeased(ctx context.Context, store *checkpointdb.Store, threads []string) error {
	for t, err := range store.Threads(ctx) {
		if err != nil {
			return err
		}
		if len(threads) == 0 && t.Checkpoints > 0 || slices.Contains(threads, string(t.ID)) {
			a.warnLeased(t.Lease)
		}
	}
	return nil
}

// allThreads returns the ids of the threads that have checkpoints.
func (a *app) allThreads(ctx context.Context, store *checkpointdb.Store) (ids []string, err error) {
	if store == nil {
		var done func()
		if store, done, err = a.openStore(ctx); err != nil {
			return nil, err
		}
		defer done()
	}
	for t, err := range store.Threads(ctx) {
		if err != nil {
			return nil, err
		}
		if t.Checkpoints > 0 {
			ids = append(ids, string(t.ID))
		}
	}
	return ids, nil
}
