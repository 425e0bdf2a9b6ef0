// Command inspect is the operator's tool: it answers what is in a store, whether
// it is sound, what costs the space and who holds a lease, also while another
// program has the store open. docs/inspect.md describes every command.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"checkpointdb"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// now is a variable for the tests, whose output must not depend on the day.
var now = time.Now

func main() { os.Exit(run()) }

// app is one run of the tool: what its flags say, and where its answers go.
type app struct {
	db    string
	wait  time.Duration
	json  bool
	utc   bool
	exact bool // sizes in bytes

	stdout     *bufio.Writer // answers; run flushes it
	stderr     *escaper      // everything else
	isTerminal bool          // whether stdout is one

	running bool // whether the command line was understood
	copied  bool // whether a copy of the store was opened, for another program has the file
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	a := &app{
		stdout:     bufio.NewWriter(os.Stdout),
		stderr:     &escaper{w: os.Stderr},
		isTerminal: term.IsTerminal(int(os.Stdout.Fd())),
	}
	text.DisableColors()
	if a.isTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		text.EnableColors()
	}
	root := a.root()
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, a.stdout.Flush())
	return a.report(ctx, cmd, err)
}

// The exit codes. Scripts rely on them: none is ever given another meaning.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitDamage = 3
	exitInUse  = 4
)

// usageError is a call that no store could answer. Errors that cobra finds in the
// command line are of this kind as well.
type usageError string

func (e usageError) Error() string { return string(e) }

// report prints the error and returns the exit code.
func (a *app) report(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	if _, ok := errors.AsType[usageError](err); ok || !a.running {
		fmt.Fprintf(a.stderr, "inspect: %s; see %s --help\n", strings.TrimSpace(err.Error()), cmd.CommandPath())
		return exitUsage
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(a.stderr, "inspect: interrupted")
		return exitFailed
	}
	fmt.Fprintf(a.stderr, "inspect: %v\n", err)
	if errors.Is(err, errUnsound) || errors.Is(err, errLost) {
		return exitDamage
	}
	for _, class := range []struct {
		code checkpointdb.Code
		exit int
	}{
		{checkpointdb.ErrDamaged, exitDamage},
		{checkpointdb.ErrBlobMissing, exitDamage},
		{checkpointdb.ErrBlobDamaged, exitDamage},
		{checkpointdb.ErrInUse, exitInUse},
		{checkpointdb.ErrWriterConflict, exitInUse},
		{checkpointdb.ErrNotLive, exitInUse},
	} {
		if errors.Is(err, class.code) {
			return class.exit
		}
	}
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "inspect COMMAND --db FILE",
		Short: "Look into a checkpoint store, and mend it",
		Long: `Inspect tells what is in a checkpoint store, whether it is sound, what costs the
space and who holds a lease; and it prunes, sweeps, restores, backs up and repairs.

The store is the file given by --db, or by the variable CHECKPOINTDB_FILE. The
bytes of files and artifacts lie in the bucket given by --blobs, or by
CHECKPOINTDB_BLOBS: a directory or a URL such as s3://BUCKET?region=us-east-1.

Commands that look never change the file, and never make one. When another
program has the file open, they answer from a copy that they get from it, if it
opened the store with Options.Live; commands that change something then have it
done by that program.

A CHECKPOINT is the id of one. Where it may be left out, --thread names a thread
and its head is meant, which is not always the latest by time.

Answers go to stdout, all else to stderr. Names that a terminal would obey, or
could not show, are printed in quotes and with escapes, as Go writes them. With
--json the answer is one JSON document, a list with one element on each line.
There, times are RFC 3339 in UTC with nanoseconds, sizes are in bytes, and fields
of what does not exist are left out. Fields may be added, never changed.

Exit codes:

    0  done; what was looked at is sound
    1  failed, or interrupted
    2  the command line makes no sense
    3  damage or missing blobs found
    4  the store, or a thread of it, is in use`,
		Example: `  inspect threads --db agents.db
  inspect show --thread main --db agents.db
  export CHECKPOINTDB_FILE=agents.db
  inspect log main --json`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			message := fmt.Sprintf("there is no command %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				message += ", but " + strings.Join(near, ", ")
			}
			return usageError(message)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.CompletionOptions.HiddenDefaultCmd = false

	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&a.db, "db", "", "the store's `FILE`; else CHECKPOINTDB_FILE")
	flags.DurationVar(&a.wait, "wait", time.Second, "how long to wait for another program to close the file")
	flags.BoolVar(&a.json, "json", false, "answer in JSON")
	flags.BoolVar(&a.utc, "utc", false, "show times in UTC, not in the local zone")
	flags.BoolVar(&a.exact, "bytes", false, "show sizes in bytes")

	leases := a.leasesCommand()
	leases.AddCommand(a.breakLeaseCommand())
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Look:", []*cobra.Command{
			a.threadsCommand(), a.logCommand(), a.graphCommand(), a.showCommand(), a.diffCommand(), a.catCommand(),
			a.refsCommand(), leases, a.statsCommand(), a.duCommand(), a.checkCommand(),
		}},
		{"Bring out:", []*cobra.Command{
			a.restoreCommand(), a.backupCommand(), a.exportCommand(), a.repairCommand(),
		}},
		{"Change:", []*cobra.Command{
			a.pruneCommand(), a.deleteThreadCommand(), a.sweepCommand(), a.compactCommand(), a.importCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// do makes a command of f. Errors from before f is called are the command line's.
func (a *app) do(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.running = true
		return f(cmd.Context(), args)
	}
}

// note tells on stderr what is no answer.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, "inspect: "+format+"\n", args...)
}
