package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Count what the file holds",
		Long: `Stats tells how large the file is, how much of it is free, what it holds, and which
of its buckets takes how many pages. USED is what their rows take. Free pages are
used again before the file grows.

JSON:

    {"storeId", "createdAt", "format", "fileBytes", "freeBytes", "pageBytes",
     "pages", "freePages", "threads", "checkpoints", "leases", "runs", "pins",
     "garbage", "instances", "transcripts",
     "buckets": [{"name", "rows", "pages", "used"}]}

where runs are the rows that make up the reference counts, pins are blobs that a
capture announced and no checkpoint names yet, and garbage is what the next
sweep looks at.`,
		Example:           `  inspect stats --db agents.db`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.do(a.stats),
	}
}

func (a *app) stats(ctx context.Context, _ []string) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := store.Stats(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(s)
	}
	a.field("Store", s.StoreID)
	a.field("Created", a.time(s.CreatedAt)+", "+age(s.CreatedAt))
	a.field("Format", s.Format)
	a.field("File", fmt.Sprintf("%s, %s free", a.size(s.FileBytes), a.size(s.FreeBytes)))
	a.field("Pages", fmt.Sprintf("%d of %s, %d free", s.Pages, a.size(int64(s.PageBytes)), s.FreePages))
	a.field("Threads", s.Threads)
	a.field("Checkpoints", s.Checkpoints)
	a.field("Transcripts", s.Transcripts)
	a.field("Leases", s.Leases)
	a.field("Pins", s.Pins)
	a.field("Garbage", s.Garbage)
	a.field("Instances", s.Instances)
	fmt.Fprintln(a.stdout)
	g := a.grid("BUCKET", ">ROWS", ">PAGES", ">USED")
	for _, b := range s.Buckets {
		g.row(b.Name, b.Rows, b.Pages, a.size(b.Used))
	}
	return g.print()
}
