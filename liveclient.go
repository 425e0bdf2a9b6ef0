package checkpointdb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// Remote is a store that another process has open with [Options.Live], as
// [Attach] gives it. Its methods run in that process, which decides what is now.
// All are safe for concurrent use.
//
// An error of the owner comes back with its class and text, and with its
// [*WriterConflictError] or [*WriterLostError]. [ErrNotLive] means that the owner
// is gone or went away before it answered: whether it has made a change that was
// asked for, only looking at the store tells. When ctx ends, so does the work in
// the owner, and the error is that of ctx; a change may have been made then too.
type Remote struct {
	path string // of the store
	http *http.Client
}

// attachTimeout is how long Attach waits for an owner that listens but does not
// answer, as one that is stopped. A variable for a test.
var attachTimeout = 5 * time.Second

// Attach connects to the process that has the file at path open with
// [Options.Live]. The error matches [ErrNotLive] when there is none, or this user
// may not connect to it, or it does not answer within 5 s. It opens no file.
func Attach(ctx context.Context, path string) (*Remote, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	socket := LiveSocket(path)
	r := &Remote{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialSocket(ctx, socket) },
		// The answers are not worth it, and their lengths would be lost.
		DisableCompression: true,
	}}}
	limited, cancel := context.WithTimeoutCause(ctx, attachTimeout, fmt.Errorf("no answer within %s", attachTimeout))
	defer cancel()
	about, err := call[liveStore](limited, r, "attach", http.MethodGet, livePathStore, nil)
	switch {
	case err == nil && about.StoreID != "":
		return r, nil
	case err == nil:
		err = r.notLive("attach", errors.New("what answers is no store"))
	case ctx.Err() != nil:
		err = ctx.Err()
	case limited.Err() != nil:
		err = r.notLive("attach", context.Cause(limited))
	}
	r.Close()
	return nil, err
}

// Close lets go of idle connections. Calls that run go on.
func (r *Remote) Close() error {
	r.http.CloseIdleConnections()
	return nil
}

// Backup writes a consistent copy of the store to w, like [Store.Backup]: however
// slow w is, the owner's commits do not wait for it. A copy that did not arrive in
// full gives an error that matches [ErrNotLive] and wraps io.ErrUnexpectedEOF.
// Nothing is durable until the caller has synced what it wrote.
func (r *Remote) Backup(ctx context.Context, w io.Writer) error {
	return r.backup(ctx, w, nil)
}

// BackupFile is [Store.BackupFile] for the store of the owner: the copy appears at
// path, where nothing may be, when it is whole and durable. Progress counts what
// arrived; before that the owner makes the copy.
func (r *Remote) BackupFile(ctx context.Context, path string, opts *BackupOptions) error {
	return backUpTo(ctx, path, opts, func(to *os.File, progress func(done, total int64)) error {
		return r.backup(ctx, to, progress)
	})
}

func (r *Remote) backup(ctx context.Context, w io.Writer, progress func(done, total int64)) error {
	const op = "backup"
	answer, err := r.send(ctx, op, http.MethodGet, livePathBackup, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.ContentLength <= 0 {
		return r.notLive(op, errors.New("the copy comes without its length"))
	}
	from := &errReader{r: answer.Body}
	var m meter
	m.total.Store(answer.ContentLength)
	err = m.watch(progress, func() error {
		_, err := io.Copy(&meteredWriter{ctx: ctx, w: w, m: &m}, from)
		return err
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case from.err != nil:
		return r.notLive(op, fmt.Errorf("the copy broke off after %d of %d bytes: %w", m.done.Load(), m.total.Load(), from.err))
	}
	return err
}

// errReader remembers how reading failed, to tell it from how writing did.
type errReader struct {
	r   io.Reader
	err error
}

func (e *errReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil && err != io.EOF {
		e.err = err
	}
	return n, err
}

// Prune is [PruneThread] in the owner, durable when it returns.
func (r *Remote) Prune(ctx context.Context, thread ThreadID, policy PrunePolicy) ([]CheckpointID, error) {
	out, err := call[livePruned](ctx, r, "prune", http.MethodPost, livePathPrune, livePrune{
		ThreadID: thread, KeepLast: policy.KeepLast, KeepYounger: policy.KeepYounger,
		KeepNamed: policy.KeepNamed, DryRun: policy.DryRun,
	})
	return out.Deleted, err
}

// DeleteThread is [DropThread] in the owner, durable when it returns.
func (r *Remote) DeleteThread(ctx context.Context, thread ThreadID) (checkpoints int, err error) {
	out, err := call[liveDeletedThread](ctx, r, "delete thread", http.MethodPost, livePathDeleteThread, liveThread{thread})
	return out.Checkpoints, err
}

// BreakLease is [Store.BreakLease] in the owner, durable when it returns.
func (r *Remote) BreakLease(ctx context.Context, thread ThreadID) (LeaseInfo, error) {
	return call[LeaseInfo](ctx, r, "break lease", http.MethodPost, livePathBreakLease, liveThread{thread})
}

// Sweep is the function [Sweep] in the owner, on the bucket of its [Live];
// [ErrInvalidOptions] when that has none. The report, also beside an error, is the
// last one that arrived. Progress runs on the caller's goroutine, and the sweep
// waits for it in the end. A Clock does not travel: the owner's counts.
func (r *Remote) Sweep(ctx context.Context, opts *SweepOptions) (report SweepReport, err error) {
	const op = "sweep"
	if opts == nil {
		opts = &SweepOptions{}
	}
	answer, err := r.send(ctx, op, http.MethodPost, livePathSweep, liveSweep{
		OlderThan: opts.OlderThan, Quick: opts.Quick, DryRun: opts.DryRun,
		DeleteForeign: opts.DeleteForeign, Concurrency: opts.Concurrency,
	})
	if err != nil {
		return SweepReport{}, err
	}
	defer answer.Body.Close()
	for lines := json.NewDecoder(answer.Body); ; {
		var line liveSweepLine
		if err := lines.Decode(&line); err != nil {
			if ctx.Err() != nil {
				return report, incomplete(ctx.Err(), "")
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return report, r.notLive(op, fmt.Errorf("the reports broke off: %w", err))
		}
		report = line.Report.report()
		if line.Done {
			return report, line.Error.asError()
		}
		if opts.Progress != nil {
			opts.Progress(report)
		}
	}
}

// Import is [Store.Import] in the owner, with the bucket of its [Live]. There is no
// dry run: a copy can make one. Progress is not called; from is read as it is
// needed.
func (r *Remote) Import(ctx context.Context, from io.Reader, opts *ImportOptions) (TransferReport, error) {
	const op = "import"
	if opts != nil && opts.DryRun {
		return TransferReport{}, &Error{Code: ErrInvalidOptions, Op: op, Message: "an owner makes no dry run of an import"}
	}
	out, err := call[liveImported](ctx, r, op, http.MethodPost, livePathImport, struct{ io.Reader }{from})
	if err != nil {
		return TransferReport{}, err
	}
	return out.Report, out.Error.asError()
}

// call sends a request and reads the answer to it.
func call[Out any](ctx context.Context, r *Remote, op, method, path string, in any) (out Out, err error) {
	answer, err := r.send(ctx, op, method, path, in)
	if err != nil {
		return out, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&out); err != nil {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		return out, r.notLive(op, fmt.Errorf("reading the answer: %w", err))
	}
	return out, nil
}

// maxLiveError is how much is read of an error, which should be short.
const maxLiveError = 1 << 20

// send sends a request, with in, or what it reads, as its body unless it is nil, and returns an
// answer that is no error. The caller closes its body.
func (r *Remote) send(ctx context.Context, op, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if from, ok := in.(io.Reader); ok {
		body = from
	} else if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://store"+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := r.http.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		if outer, ok := err.(*url.Error); ok {
			err = outer.Err // without the URL, which says nothing here
		}
		return nil, r.notLive(op, err)
	case answer.StatusCode == http.StatusOK:
		return answer, nil
	}
	defer answer.Body.Close()
	var sent liveError
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxLiveError))
	if err == nil {
		err = json.Unmarshal(text, &sent)
	}
	if err != nil || sent.Message == "" && sent.Code == "" {
		return nil, r.notLive(op, fmt.Errorf("it answers %q, which is not of this protocol", answer.Status))
	}
	return nil, withOp(op, sent.asError())
}

func (r *Remote) notLive(op string, cause error) error {
	return &Error{Code: ErrNotLive, Op: op, Message: fmt.Sprintf("no owner answers for %q", r.path), Err: cause}
}
