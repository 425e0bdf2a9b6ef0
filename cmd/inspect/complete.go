package main

import (
	"context"
	"iter"
	"strings"

	"checkpointdb"

	"github.com/spf13/cobra"
)

// Shells get so many suggestions at most, and of each thread so many of the
// newest checkpoints.
const (
	maxSuggestions          = 1000
	maxSuggestionsOfAThread = 20
)

// suggest makes a completion of ids that the store holds. It says nothing when
// the store cannot be read, or only as a copy, which is much for a keystroke; and
// it leaves out ids that no one could type.
func (a *app) suggest(ids func(ctx context.Context, store *checkpointdb.Store) iter.Seq2[string, error]) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		ctx := cmd.Context()
		path, err := a.file()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		store, err := openReadOnly(path, 0)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer store.Close()
		for id, err := range ids(ctx, store) {
			if err != nil || len(found) == maxSuggestions {
				break
			}
			if strings.HasPrefix(id, begun) && safe(id) == id {
				found = append(found, id)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completeThread() cobra.CompletionFunc {
	return a.suggest(func(ctx context.Context, store *checkpointdb.Store) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for t, err := range store.Threads(ctx) {
				if !yield(string(t.ID), err) {
					return
				}
			}
		}
	})
}

func (a *app) completeCheckpoint() cobra.CompletionFunc {
	return a.suggest(func(ctx context.Context, store *checkpointdb.Store) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for t, err := range store.Threads(ctx) {
				if err != nil {
					yield("", err)
					return
				}
				for c, err := range store.Log(ctx, t.ID, &checkpointdb.LogOptions{Limit: maxSuggestionsOfAThread}) {
					if !yield(string(c.ID), err) {
						return
					}
				}
			}
		}
	})
}

// firstOnly makes a completion for the first n arguments of a command only.
func firstOnly(n int, c cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c(cmd, args, begun)
	}
}

// completeFile leaves it to the shell, which knows files.
func completeFile(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}
