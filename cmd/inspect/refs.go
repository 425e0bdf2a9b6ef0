package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) refsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "refs [KEY]",
		Short: "List the blobs in use, or who uses one",
		Long: `Refs lists every blob that some checkpoint uses, by the bytes of its key: how many
checkpoints and threads use it, and its size.

With a KEY it lists who uses that one: a line for each stretch of a thread's
chain, with the first and the last checkpoint of it, and the names under which
the first one has the blob. HEAD tells whether the thread's head uses it.

JSON:

    [{"key", "size", "references", "threads"}]

With a KEY:

    [{"threadId", "first", "last", "checkpoints", "atHead", "size",
      "paths", "artifacts"}]

where artifacts are their ids.`,
		Example: `  inspect refs --db agents.db --bytes | sort -n -k2 | tail
  inspect refs sandbox-files/sha256/9f86d0… --db agents.db`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.do(func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return a.refs(ctx)
			}
			key, err := checkpointdb.ParseBlobKey(args[0])
			if err != nil {
				return usageError(err.Error())
			}
			return a.uses(ctx, key)
		}),
	}
}

func (a *app) refs(ctx context.Context) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	if a.json {
		return listJSON(a, store.Blobs(ctx), func(b checkpointdb.BlobInfo) any { return b })
	}
	// There may be millions, too many for a table that looks at all before it
	// prints the first.
	some := false
	for b, err := range store.Blobs(ctx) {
		if err != nil {
			return err
		}
		if !some {
			fmt.Fprintf(a.stdout, "%11s  %11s  %8s  %s\n", "CHECKPOINTS", "SIZE", "THREADS", "KEY")
		}
		some = true
		fmt.Fprintf(a.stdout, "%11d  %11s  %8d  %s\n", b.References, a.size(b.Size), b.Threads, safe(string(b.Key)))
	}
	if !some {
		a.note("no blobs are in use")
	}
	return nil
}

// use is a stretch with the names that its first checkpoint has for the blob.
type use struct {
	checkpointdb.BlobUse
	Paths     []string `json:"paths"`
	Artifacts []string `json:"artifacts"`
}

func (a *app) uses(ctx context.Context, key checkpointdb.BlobKey) error {
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	stretches, err := store.BlobUses(ctx, key)
	if err != nil {
		return err
	}
	uses := make([]use, len(stretches))
	for i, stretch := range stretches {
		c, err := store.Get(ctx, stretch.First)
		if err != nil {
			return err
		}
		uses[i] = use{stretch, []string{}, []string{}}
		for _, e := range c.Files {
			if e.BlobKey == key {
				uses[i].Paths = append(uses[i].Paths, e.Path)
			}
		}
		for _, artifact := range c.Artifacts {
			if artifact.BlobKey == key {
				uses[i].Artifacts = append(uses[i].Artifacts, artifact.ArtifactID)
			}
		}
	}
	return list(a, sequence(uses), "no checkpoint uses "+string(key),
		func(u use) any { return u },
		a.grid("THREAD", "FIRST", "LAST", ">CHECKPOINTS", "HEAD", "NAMES"),
		func(u use) []any {
			head := "no"
			if u.AtHead {
				head = "yes"
			}
			var names []string
			for _, name := range slices.Concat(u.Paths, u.Artifacts) {
				names = append(names, safe(name))
			}
			const most = 5
			if more := len(names) - most; more > 0 {
				names = append(names[:most], fmt.Sprintf("and %d more", more))
			}
			return []any{u.ThreadID, u.First, u.Last, u.Checkpoints, head, shown(strings.Join(names, ", "))}
		})
}
