// Command runner is a small agent runner, and the whole of what it takes to
// embed checkpointdb in one. It runs a command in a workspace and keeps what came
// of it as a checkpoint of a thread, from which any other command can undo,
// branch and restore.
//
// Without arguments it tells a story: it runs itself, as a user would, through
// the life of a thread in a temporary directory, and fails when anything that it
// says is not true.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/workspace"

	"gocloud.dev/blob"
)

const usage = `usage:
  runner                        tell the story of a thread, in a temporary directory
  runner story DIR              the same, starting from a copy of DIR
  runner FLAGS -- COMMAND...    run COMMAND in the workspace; if it succeeds, save a checkpoint
  runner FLAGS log              list the checkpoints of the thread, newest first
  runner FLAGS undo             drop the newest checkpoint and rewind the workspace to the one before
  runner FLAGS fork THREAD      start another thread from the newest checkpoint
  runner FLAGS restore [ID]     put the newest or the named checkpoint into an empty workspace
  runner FLAGS rewind [ID]      make the workspace equal to it, whatever is there now
  runner FLAGS prune KEEP       drop all but the KEEP newest checkpoints of the thread
  runner FLAGS sweep [AGE]      delete blobs older than AGE (24h) that no checkpoint uses

flags:
  -db PATH          the file with the records; the first COMMAND makes it
  -blobs URL        the bucket with the files' bytes: a directory or file:///DIR; with -tags cloud
                    also s3://, r2://, gs:// and azblob://
  -workspace DIR    where the command runs; when DIR is new, the newest checkpoint is restored first
  -thread ID        the conversation and its workspace

COMMAND gets no input, and what it leaves running is ended with it. The exit code is the command's,
130 when interrupted, 2 for a wrong call, 1 for anything else.
`

func main() {
	// Whoever reads our output may go away; that must not end us with the lease held.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	os.Exit(report(err))
}

// report prints the error and returns the exit code.
func report(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(os.Stderr, "runner: %v\n\n%s", err, usage)
		return 2
	}
	fmt.Fprintf(os.Stderr, "runner: %v\n", err)
	if errors.Is(err, context.Canceled) {
		return 130
	}
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() > 0 {
		return failed.ExitCode()
	}
	return 1
}

type usageError string

func (e usageError) Error() string { return string(e) }

// runner is what the verbs work with. A verb leaves alone what it does not need.
type runner struct {
	store     *checkpointdb.Store
	bucket    *blob.Bucket
	workspace string
	thread    checkpointdb.ThreadID
}

// verbs lists for each verb the flags it needs, how many arguments it takes, and
// what it does. The verb "--" runs a command.
var verbs = map[string]struct {
	flags    string
	min, max int
	do       func(*runner, context.Context, []string) error
}{
	"--":      {"db blobs workspace thread", 1, 1 << 30, (*runner).run},
	"log":     {"db thread", 0, 0, (*runner).log},
	"undo":    {"db blobs workspace thread", 0, 0, (*runner).undo},
	"fork":    {"db thread", 1, 1, (*runner).fork},
	"restore": {"db blobs workspace thread", 0, 1, (*runner).restore},
	"rewind":  {"db blobs workspace thread", 0, 1, (*runner).rewind},
	"prune":   {"db thread", 1, 1, (*runner).prune},
	"sweep":   {"db blobs", 0, 1, (*runner).sweep},
}

func dispatch(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return tellStory(ctx, "")
	case args[0] == "story" && len(args) == 2:
		return tellStory(ctx, args[1])
	case args[0] == "agent" && len(args) == 2: // the story's agent; see story.go
		return act(args[1])
	}

	// Everything after "--" is the command's, even what looks like a flag.
	own, command := args, []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		own, command = args[:i], args[i:]
	}
	flags := flag.NewFlagSet("runner", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // report prints the error
	given := map[string]*string{}
	for _, name := range []string{"db", "blobs", "workspace", "thread"} {
		given[name] = flags.String(name, "", "")
	}
	switch err := flags.Parse(own); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		return nil
	case err != nil:
		return usageError(err.Error())
	}
	words := slices.Concat(flags.Args(), command)
	if len(words) == 0 {
		return usageError("nothing to do")
	}
	v, ok := verbs[words[0]]
	if n := len(words) - 1; !ok || n < v.min || n > v.max {
		return usageError(fmt.Sprintf("cannot do %q", words))
	}
	for name := range strings.FieldsSeq(v.flags) {
		if *given[name] == "" {
			return usageError(fmt.Sprintf("%s needs -%s", words[0], name))
		}
	}
	r := &runner{workspace: *given["workspace"], thread: checkpointdb.ThreadID(*given["thread"])}
	if err := r.open(ctx, *given["db"], *given["blobs"], words[0] == "--"); err != nil {
		return err
	}
	defer r.close()
	return v.do(r, ctx, words[1:])
}

// open opens the store and, if there is a URL, the bucket. Only a run may make a
// new store; for anything else a missing file is a typing error.
func (r *runner) open(ctx context.Context, db, bucketURL string, create bool) (err error) {
	if strings.HasPrefix(bucketURL, "mem:") {
		return usageError("-blobs: memory is gone when the runner exits, and the records would outlive the bytes")
	}
	if r.workspace != "" {
		// A capture would swallow the store, and a rewind remove it.
		for _, p := range []string{db, directoryOf(bucketURL)} {
			if p != "" && inside(r.workspace, p) {
				return usageError(fmt.Sprintf("%q is inside the workspace %q", p, r.workspace))
			}
		}
	}
	if !create {
		if _, err := os.Stat(db); err != nil {
			return err
		}
	}
	if bucketURL != "" {
		if r.bucket, err = buckets.Open(ctx, bucketURL); err != nil {
			return err
		}
	}
	opts := &checkpointdb.Options{}
	if create { // and so stays for as long as the command runs
		opts.Live = &checkpointdb.Live{Bucket: r.bucket} // lets inspect in meanwhile
	}
	if r.store, err = checkpointdb.Open(db, opts); err != nil {
		r.close()
	}
	return err
}

func (r *runner) close() {
	if r.store != nil {
		r.store.Close()
	}
	if r.bucket != nil {
		r.bucket.Close()
	}
}

// run is one turn of an agent: lease, workspace, command, capture, append. The
// bytes of the files are durable before the record that names them is written,
// so wherever this is cut short, the thread has its old head or the new one, and
// either can be restored.
func (r *runner) run(ctx context.Context, command []string) error {
	return checkpointdb.WithLease(ctx, r.store, r.thread, func(ctx context.Context, w checkpointdb.Writer) error {
		head, err := r.head(ctx)
		if err != nil {
			return err
		}
		if err := r.prepare(ctx, head); err != nil {
			return err
		}
		output, err := execute(ctx, r.workspace, command)
		if err != nil {
			return err
		}
		captured, err := workspace.Capture(ctx, r.workspace, r.bucket, &workspace.CaptureOptions{
			Protect: checkpointdb.ProtectFor(r.store, w), // from sweeps, until Append has named them
		})
		if err != nil {
			return err
		}
		turn, err := conversation(command, output)
		if err != nil {
			return err
		}
		label := strings.Join(append([]string{filepath.Base(command[0])}, command[1:]...), " ")
		c := checkpointdb.Checkpoint{
			ID:                 newID(w),
			ThreadID:           r.thread,
			ParentCheckpointID: head.ID,
			CreatedAt:          time.Now(),
			Reason:             checkpointdb.ReasonAutomatic,
			Label:              strings.ToValidUTF8(label, "\uFFFD"),
			Files:              captured.Files,
			Conversation:       append(head.Conversation, turn...),
		}
		if err := r.store.Append(ctx, w, c, head.ID); err != nil {
			return err
		}
		note("checkpoint %q: %d entries, %d new blobs (%d bytes)", c.ID, len(c.Files), captured.Uploaded, captured.UploadedBytes)
		return nil
	})
}

// newID makes an id from the lease: fences never repeat in a thread, and under
// one lease this program makes one checkpoint.
func newID(w checkpointdb.Writer) checkpointdb.CheckpointID {
	return checkpointdb.CheckpointID(fmt.Sprintf("%s@%d", w.ThreadID, w.Fence))
}

// head returns the newest checkpoint of the thread, the zero Checkpoint when
// there is none. It asks for the head: the last one of a list is not the same,
// because times may be equal or wrong.
func (r *runner) head(ctx context.Context) (checkpointdb.Checkpoint, error) {
	id, err := r.store.Head(ctx, r.thread)
	if id == "" || err != nil {
		return checkpointdb.Checkpoint{}, err
	}
	return r.store.Get(ctx, id)
}

// prepare brings the head into a workspace that is new, or in which an earlier
// restore was cut short. Any other workspace is taken as it stands.
func (r *runner) prepare(ctx context.Context, head checkpointdb.Checkpoint) error {
	if err := os.MkdirAll(r.workspace, 0o777); err != nil {
		return err
	}
	_, unfinished, err := workspace.UnfinishedRestore(r.workspace)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(r.workspace)
	if err != nil || head.ID == "" || len(entries) > 0 && !unfinished {
		return err
	}
	note("restoring %q into the workspace", head.ID)
	_, err = workspace.Restore(ctx, r.bucket, head, r.workspace, &workspace.RestoreOptions{Rewind: unfinished})
	return err
}

// conversation returns the messages that a turn adds. To the store a message is
// any JSON value; here the command asks and its output answers. Bytes of the
// output that are no UTF-8 become U+FFFD.
func conversation(command []string, output string) ([]json.RawMessage, error) {
	ask, err := json.Marshal(map[string]any{"role": "user", "command": command})
	if err != nil {
		return nil, err
	}
	answer, err := json.Marshal(map[string]any{"role": "assistant", "content": output})
	return []json.RawMessage{ask, answer}, err
}

// log follows the chain from the head, which is the order of the versions.
func (r *runner) log(ctx context.Context, _ []string) error {
	c, err := r.head(ctx)
	for err == nil && c.ID != "" {
		fmt.Printf("%q  %s  %s  %d entries, %d messages  %q\n",
			c.ID, c.CreatedAt.Format(time.RFC3339), c.Reason, len(c.Files), len(c.Conversation), c.Label)
		if c.ParentCheckpointID == "" {
			return nil
		}
		c, err = r.store.Get(ctx, c.ParentCheckpointID)
	}
	if errors.Is(err, checkpointdb.ErrCheckpointNotFound) {
		fmt.Println("what came before was pruned")
		return nil
	}
	return err
}

// undo rewinds the workspace first. Cut short there, it can simply be repeated,
// because the head still is what it was.
func (r *runner) undo(ctx context.Context, _ []string) error {
	return checkpointdb.WithLease(ctx, r.store, r.thread, func(ctx context.Context, w checkpointdb.Writer) error {
		head, err := r.head(ctx)
		if err != nil {
			return err
		}
		if head.ParentCheckpointID == "" {
			return fmt.Errorf("thread %q has no checkpoint to go back to", r.thread)
		}
		parent, err := r.store.Get(ctx, head.ParentCheckpointID)
		if err != nil {
			return fmt.Errorf("cannot go back from %q: %w", head.ID, err)
		}
		if _, err := workspace.Restore(ctx, r.bucket, parent, r.workspace, &workspace.RestoreOptions{Rewind: true}); err != nil {
			return err
		}
		if err := r.store.DeleteHead(ctx, w, head.ID); err != nil {
			return err
		}
		fmt.Printf("dropped %q, the head is %q\n", head.ID, parent.ID)
		return nil
	})
}

// fork leases the new thread: that one is written, the source is only read.
func (r *runner) fork(ctx context.Context, args []string) error {
	to := checkpointdb.ThreadID(args[0])
	source, err := r.store.Head(ctx, r.thread)
	if err != nil {
		return err
	}
	if source == "" {
		return fmt.Errorf("thread %q has no checkpoint to fork", r.thread)
	}
	return checkpointdb.WithLease(ctx, r.store, to, func(ctx context.Context, w checkpointdb.Writer) error {
		c, err := r.store.Fork(ctx, w, checkpointdb.ForkRequest{
			SourceThreadID: r.thread, SourceCheckpointID: source,
			DestinationThreadID: to, DestinationCheckpointID: newID(w), CreatedAt: time.Now(),
		})
		if err == nil {
			fmt.Printf("thread %q starts with %q, a copy of %q\n", to, c.ID, source)
		}
		return err
	})
}

func (r *runner) rewind(ctx context.Context, args []string) error {
	return r.bringBack(ctx, args, &workspace.RestoreOptions{Rewind: true})
}

func (r *runner) restore(ctx context.Context, args []string) error {
	return r.bringBack(ctx, args, nil)
}

// bringBack takes no lease: it writes nothing to the thread, and no command can
// be running, since the file of the store is open in one process at a time.
func (r *runner) bringBack(ctx context.Context, args []string, opts *workspace.RestoreOptions) error {
	c, err := r.head(ctx)
	if len(args) > 0 {
		c, err = r.store.Get(ctx, checkpointdb.CheckpointID(args[0]))
	}
	switch {
	case err != nil:
		return err
	case c.ID == "":
		return fmt.Errorf("thread %q has no checkpoint", r.thread)
	case c.ThreadID != r.thread:
		return fmt.Errorf("%q is of thread %q, not of %q", c.ID, c.ThreadID, r.thread)
	}
	done, err := workspace.Restore(ctx, r.bucket, c, r.workspace, opts)
	if err == nil {
		fmt.Printf("the workspace is %q: %d written, %d replaced, %d removed, %d as they were\n",
			c.ID, len(done.Written), len(done.Replaced), len(done.Removed), done.Unchanged)
	}
	return err
}

func (r *runner) prune(ctx context.Context, args []string) error {
	keep, err := strconv.Atoi(args[0])
	if err != nil {
		return usageError(fmt.Sprintf("prune: %q is no number", args[0]))
	}
	return checkpointdb.WithLease(ctx, r.store, r.thread, func(ctx context.Context, w checkpointdb.Writer) error {
		dropped, err := r.store.DeleteCheckpoints(ctx, w, keep)
		for _, id := range dropped {
			fmt.Printf("dropped %q\n", id)
		}
		return err
	})
}

// sweep needs no caution of its own: the store being open in one process at a
// time, no capture is under way. The age protects who else uses the bucket.
func (r *runner) sweep(ctx context.Context, args []string) error {
	var opts checkpointdb.SweepOptions
	if len(args) > 0 {
		age, err := time.ParseDuration(args[0])
		if err != nil {
			return usageError("sweep: " + err.Error())
		}
		opts.OlderThan = age
		if age == 0 {
			opts.OlderThan = 1 // to the library 0 means its default
		}
	}
	done, err := checkpointdb.Sweep(ctx, r.store, r.bucket, &opts)
	fmt.Printf("of %d blobs: %d in use, %d too young, %d deleted (%d bytes), %d failed, %d with foreign names\n",
		done.Scanned, done.Kept, done.TooYoung, done.Deleted, done.DeletedBytes, done.Failed, done.Foreign)
	return err
}

// note is for the one at the terminal; answers go to stdout.
func note(format string, args ...any) { fmt.Fprintf(os.Stderr, "runner: "+format+"\n", args...) }

// directoryOf returns the directory of a local bucket, "" for a server's.
func directoryOf(bucketURL string) string {
	u, err := url.Parse(bucketURL)
	switch {
	case err != nil || len(u.Scheme) < 2: // a path; one letter is a drive of Windows
		return bucketURL
	case u.Scheme != "file":
		return ""
	}
	p := filepath.FromSlash(strings.TrimPrefix(u.Host, "localhost") + u.Path) // the host may be "."
	if len(p) > 1 && filepath.VolumeName(p[1:]) != "" {                       // /C:/blobs
		p = p[1:]
	}
	return p
}

// inside reports whether p is dir or lies in it.
func inside(dir, p string) bool {
	rel, err := filepath.Rel(resolve(dir), resolve(p))
	return err == nil && filepath.IsLocal(rel)
}

// resolve follows the links in that part of p that exists.
func resolve(p string) string {
	if abs, err := filepath.Abs(p); err == nil {
		p = abs
	}
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	if dir := filepath.Dir(p); dir != p {
		return filepath.Join(resolve(dir), filepath.Base(p))
	}
	return p
}
