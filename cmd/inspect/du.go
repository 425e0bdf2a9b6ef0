package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) duCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "du",
		Short: "Tell which thread costs how much space",
		Long: `Du adds up for each thread the sizes of files and artifacts that its checkpoints
use. LOGICAL counts them for every checkpoint anew. SHARED and OWN count each blob
once: those that other threads use too, and those that would be garbage without
this thread. SHARE is the part of OWN in all blobs. GROWTH shows over the time
from the thread's first checkpoint to its last, from left to right, how many
bytes came that the thread did not have before.

The last line counts every blob of the store once.

JSON:

    [{"threadId", "blobs", "logicalBytes", "sharedBytes", "ownBytes", "share",
      "growth": [{"checkpointId", "createdAt", "bytes"}]}]

where share is a fraction of 1.`,
		Example: `  inspect du --db agents.db
  inspect du --db agents.db --bytes | sort -n -k5`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.do(a.du),
	}
}

// growthJSON takes the place of createdAt, which may be beyond what
// encoding/json writes.
type growthJSON struct {
	checkpointdb.Growth
	CreatedAt string `json:"createdAt"`
}

func (a *app) du(ctx context.Context, _ []string) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	usage, err := store.Usage(ctx, &checkpointdb.UsageOptions{Growth: true})
	if err != nil {
		return err
	}
	share := func(u checkpointdb.ThreadUsage) float64 { return float64(u.OwnBytes) / float64(max(usage.Bytes, 1)) }
	g := a.grid("THREAD", ">BLOBS", ">LOGICAL", ">SHARED", ">OWN", ">SHARE", "GROWTH")
	logical, own := int64(0), int64(0)
	for _, u := range usage.Threads {
		logical += u.LogicalBytes
		own += u.OwnBytes
	}
	g.total("all", usage.Blobs, a.size(logical), a.size(usage.Bytes-own), a.size(own), "", "")
	return list(a, sequence(usage.Threads), "no threads",
		func(u checkpointdb.ThreadUsage) any {
			growth := []growthJSON{}
			for _, step := range u.Growth {
				growth = append(growth, growthJSON{step, stamp(step.CreatedAt)})
			}
			return struct {
				checkpointdb.ThreadUsage
				Share  float64      `json:"share"`
				Growth []growthJSON `json:"growth"`
			}{u, share(u), growth}
		},
		g,
		func(u checkpointdb.ThreadUsage) []any {
			return []any{
				u.ThreadID, u.Blobs, a.size(u.LogicalBytes), a.size(u.SharedBytes), a.size(u.OwnBytes),
				fmt.Sprintf("%.0f%%", 100*share(u)), spark(u.Growth, 16),
			}
		})
}

// spark draws growth over time in so many columns. The highest column is full,
// the lowest mark means some growth, a dot none.
func spark(growth []checkpointdb.Growth, columns int) string {
	if len(growth) == 0 {
		return ""
	}
	first, last := growth[0].CreatedAt, growth[0].CreatedAt
	for _, g := range growth {
		if g.CreatedAt.Before(first) {
			first = g.CreatedAt
		}
		if g.CreatedAt.After(last) {
			last = g.CreatedAt
		}
	}
	span := last.Sub(first)/time.Duration(columns) + 1
	sums, most := make([]int64, columns), int64(1)
	for _, g := range growth {
		column := min(int(g.CreatedAt.Sub(first)/span), columns-1) // Sub stops at 292 years
		sums[column] += g.Bytes
		most = max(most, sums[column])
	}
	marks := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, sum := range sums {
		switch {
		case sum <= 0:
			b.WriteRune('·')
		default:
			b.WriteRune(marks[int(float64(sum)/float64(most)*float64(len(marks)-1))])
		}
	}
	return b.String()
}
