package checkpointdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"gocloud.dev/blob"

	"checkpointdb/internal/ctxio"
)

// ErrNotLive: nobody serves the store through its socket, because no process has
// it open with [Options.Live], or the socket cannot be made or reached, or its
// owner went away meanwhile. Retry: while the owner runs.
const ErrNotLive Code = "CHECKPOINTDB_NOT_LIVE"

// Live lets other processes work with a store while this one has its file open:
// with it [Open] listens on the unix socket [LiveSocket] beside the file, and
// [Attach] connects to it. The mode of the socket is 0600 from its first moment,
// so only the same user and root get in; on Windows the directory decides. A
// socket that a killed process left is replaced. Close removes the socket, and
// ends the requests that still run.
type Live struct {
	// Bucket is what a sweep through the socket cleans. It must be the one that
	// holds the blobs of the store, and stay open until the store is closed; it
	// is not closed with it. Nil: such sweeps are refused.
	Bucket *blob.Bucket
}

// How long a client may take to say what it wants, how long a connection may do
// nothing, and how long Close waits for requests to end before it cuts them off:
// their contexts have ended then, so only a client that does not read, or says
// nothing, takes that long.
const (
	liveHeaderTimeout = 10 * time.Second
	liveIdleTimeout   = time.Minute
	liveGrace         = 2 * time.Second
)

// liveServer serves one store on its socket. Its methods do nothing on nil, which
// is the server of a store without Live.
type liveServer struct {
	socket *liveSocket
	http   *http.Server
	end    context.CancelFunc // ends the context of every request
	served sync.WaitGroup     // of the goroutine that accepts
	once   sync.Once          // of stop
}

// listenLive makes the socket, on which clients wait until start. The store's
// file must be locked.
func (s *Store) listenLive() (*liveServer, error) {
	if s.opts.Live == nil {
		return nil, nil
	}
	socket, err := listenLive(LiveSocket(s.path))
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	return &liveServer{socket: socket, end: end, http: &http.Server{
		Handler:           s.LiveHandler(s.opts.Live),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: liveHeaderTimeout,
		IdleTimeout:       liveIdleTimeout,
		ErrorLog:          slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelWarn),
	}}, nil
}

func (l *liveServer) start() {
	if l == nil {
		return
	}
	l.served.Go(func() { _ = l.http.Serve(l.socket) }) // it ends when stop ends it
}

// stop removes the socket and ends all requests. The store must still be open, so
// that what they are committing can end well.
func (l *liveServer) stop() {
	if l == nil {
		return
	}
	l.once.Do(func() {
		l.socket.remove()
		l.end()
		ctx, cancel := context.WithTimeout(context.Background(), liveGrace)
		defer cancel()
		if l.http.Shutdown(ctx) != nil {
			l.http.Close()
		}
		l.socket.Close() // for the server that was never started
		l.served.Wait()
	})
}

// LiveHandler returns the handler that serves [Live], for the embedder's own HTTP
// server; Options.Live is not needed for it. It expects its paths at the root, so
// elsewhere http.StripPrefix goes around it. It authenticates nobody: whoever
// reaches it can read and delete everything. Requests do not keep Close waiting,
// other than by what they are committing; after it they fail with [ErrClosed].
//
// All paths begin with the version of the protocol. Bodies are JSON, other than
// the copy of the store that GET /v1/backup sends, with its length. A request with
// fields that this version does not know is refused, as they may ask for less to be
// deleted. POST /v1/sweep answers with a line of JSON for each report and a last
// one that says done.
func (s *Store) LiveHandler(live *Live) http.Handler {
	h := liveHandler{store: s}
	if live != nil {
		h.bucket = live.Bucket
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+livePathStore, h.about)
	mux.HandleFunc("GET "+livePathBackup, h.backup)
	mux.HandleFunc("POST "+livePathPrune, answerWith(h.prune))
	mux.HandleFunc("POST "+livePathDeleteThread, answerWith(h.deleteThread))
	mux.HandleFunc("POST "+livePathBreakLease, answerWith(h.breakLease))
	mux.HandleFunc("POST "+livePathSweep, h.sweep)
	mux.HandleFunc("POST "+livePathImport, h.importLines)
	return mux
}

const (
	livePathStore        = "/v1/store"
	livePathBackup       = "/v1/backup"
	livePathPrune        = "/v1/prune"
	livePathDeleteThread = "/v1/delete-thread"
	livePathBreakLease   = "/v1/break-lease"
	livePathSweep        = "/v1/sweep"
	livePathImport       = "/v1/import"
)

// The bodies of requests and answers. Durations are nanoseconds.
type (
	liveStore struct {
		StoreID string `json:"storeId"`
	}
	liveThread struct {
		ThreadID ThreadID `json:"threadId"`
	}
	livePrune struct {
		ThreadID    ThreadID      `json:"threadId"`
		KeepLast    int           `json:"keepLast"`
		KeepYounger time.Duration `json:"keepYounger"`
		KeepNamed   bool          `json:"keepNamed"`
		DryRun      bool          `json:"dryRun"`
	}
	livePruned struct {
		Deleted []CheckpointID `json:"deleted"`
	}
	liveDeletedThread struct {
		Checkpoints int `json:"checkpoints"`
	}
	liveSweep struct {
		OlderThan     time.Duration `json:"olderThan"`
		Quick         bool          `json:"quick"`
		DryRun        bool          `json:"dryRun"`
		DeleteForeign bool          `json:"deleteForeign"`
		Concurrency   int           `json:"concurrency"`
	}
	liveSweepLine struct {
		Report liveReport `json:"report"`
		Done   bool       `json:"done"`
		Error  *liveError `json:"error,omitempty"`
	}
	// liveReport is a SweepReport whose errors travel.
	liveReport struct {
		SweepReport
		Failures []liveFailure
	}
	liveFailure struct {
		Key   string
		Error *liveError
	}
	liveImported struct {
		Report TransferReport `json:"report"`
		Error  *liveError     `json:"error,omitempty"`
	}
	// liveError is an *Error that travels, with those of its details that the
	// requests can have.
	liveError struct {
		Code     Code                 `json:"code"`
		Op       string               `json:"op"`
		Message  string               `json:"message"`
		Cause    string               `json:"cause,omitempty"`
		Conflict *WriterConflictError `json:"conflict,omitempty"`
		Lost     *WriterLostError     `json:"lost,omitempty"`
	}
)

func newLiveError(err error) *liveError {
	if err == nil {
		return nil
	}
	e, ok := err.(*Error)
	if !ok {
		return &liveError{Code: CodeOf(err), Message: err.Error()}
	}
	l := &liveError{Code: e.Code, Op: e.Op, Message: e.Message}
	if e.Err != nil && !errors.As(e.Err, &l.Conflict) && !errors.As(e.Err, &l.Lost) {
		l.Cause = e.Err.Error()
	}
	return l
}

// asError returns the error that was sent.
func (l *liveError) asError() error {
	switch {
	case l == nil:
		return nil
	case l.Code == "":
		return errors.New(l.Message)
	}
	e := &Error{Code: l.Code, Op: l.Op, Message: l.Message}
	switch {
	case l.Conflict != nil:
		e.Err = l.Conflict
	case l.Lost != nil:
		e.Err = l.Lost
	case l.Cause != "":
		e.Err = errors.New(l.Cause)
	}
	return e
}

func newLiveReport(r SweepReport) liveReport {
	l := liveReport{SweepReport: r}
	for _, f := range r.Failures {
		l.Failures = append(l.Failures, liveFailure{f.Key, newLiveError(f.Err)})
	}
	return l
}

func (l liveReport) report() SweepReport {
	r := l.SweepReport
	for _, f := range l.Failures {
		r.Failures = append(r.Failures, SweepFailure{f.Key, f.Error.asError()})
	}
	return r
}

// liveHandler is what LiveHandler mounts.
type liveHandler struct {
	store  *Store
	bucket *blob.Bucket // may be nil
}

// log tells the owner's operator what somebody else has changed.
func (h liveHandler) log(what string, attrs ...any) {
	h.store.opts.Logger.Info("checkpointdb: live: "+what, append([]any{"path", h.store.path}, attrs...)...)
}

func (h liveHandler) about(w http.ResponseWriter, _ *http.Request) {
	sendJSON(w, http.StatusOK, liveStore{StoreID: fmt.Sprintf("%x", h.store.id)})
}

// backup says how long the copy is, so that a client sees when it is cut off.
func (h liveHandler) backup(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	copied, size, err := h.store.snapshot(ctx)
	if err != nil {
		sendError(w, r, err)
		return
	}
	defer copied.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	if _, err := io.Copy(w, ctxio.Reader(ctx, copied)); err != nil {
		if ctx.Err() == nil {
			h.store.opts.Logger.Warn("checkpointdb: a live backup broke off", "path", h.store.path, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
}

func (h liveHandler) prune(ctx context.Context, in livePrune) (livePruned, error) {
	deleted, err := PruneThread(ctx, h.store, in.ThreadID, PrunePolicy{
		KeepLast: in.KeepLast, KeepYounger: in.KeepYounger, KeepNamed: in.KeepNamed, DryRun: in.DryRun,
	})
	if err == nil && !in.DryRun {
		h.log("pruned", "thread", in.ThreadID, "deleted", len(deleted))
	}
	return livePruned{deleted}, err
}

func (h liveHandler) deleteThread(ctx context.Context, in liveThread) (liveDeletedThread, error) {
	checkpoints, err := DropThread(ctx, h.store, in.ThreadID)
	if err == nil {
		h.log("deleted a thread", "thread", in.ThreadID, "checkpoints", checkpoints)
	}
	return liveDeletedThread{checkpoints}, err
}

func (h liveHandler) breakLease(ctx context.Context, in liveThread) (LeaseInfo, error) {
	broken, err := h.store.BreakLease(ctx, in.ThreadID)
	if err == nil {
		h.log("broke a lease", "thread", in.ThreadID, "fence", broken.Fence)
	}
	return broken, err
}

func (h liveHandler) sweep(w http.ResponseWriter, r *http.Request) {
	var in liveSweep
	if err := readJSON(w, r, &in); err != nil {
		sendError(w, r, err)
		return
	}
	if h.bucket == nil {
		sendError(w, r, &Error{Code: ErrInvalidOptions, Op: "sweep", Message: fmt.Sprintf("the owner of %q has set no Live.Bucket, so it cannot sweep", h.store.path)})
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	send := func(line liveSweepLine) {
		// A client that is gone ends the context, and with it the sweep.
		_ = json.NewEncoder(w).Encode(line)
		_ = http.NewResponseController(w).Flush()
	}
	report, err := Sweep(r.Context(), h.store, h.bucket, &SweepOptions{
		OlderThan: in.OlderThan, Quick: in.Quick, DryRun: in.DryRun,
		DeleteForeign: in.DeleteForeign, Concurrency: in.Concurrency,
		Progress: func(report SweepReport) { send(liveSweepLine{Report: newLiveReport(report)}) },
	})
	if report.Deleted > 0 && !in.DryRun {
		h.log("swept", "deleted", report.Deleted, "bytes", report.DeletedBytes)
	}
	send(liveSweepLine{Report: newLiveReport(report), Done: true, Error: newLiveError(err)})
}

// importLines takes the export in the body over. What was taken over before an
// error is told beside it.
func (h liveHandler) importLines(w http.ResponseWriter, r *http.Request) {
	report, err := h.store.Import(r.Context(), r.Body, &ImportOptions{Bucket: h.bucket})
	if report.Checkpoints > 0 {
		h.log("imported", "checkpoints", report.Checkpoints)
	}
	sendJSON(w, http.StatusOK, liveImported{report, newLiveError(err)})
}

// answerWith makes a handler of a function from one JSON value to another.
func answerWith[In, Out any](do func(context.Context, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := readJSON(w, r, &in); err != nil {
			sendError(w, r, err)
			return
		}
		out, err := do(r.Context(), in)
		if err != nil {
			sendError(w, r, err)
			return
		}
		sendJSON(w, http.StatusOK, out)
	}
}

// maxLiveRequest is how many bytes a request may have. The longest thing in one
// is an id.
const maxLiveRequest = 64 << 10

// readJSON reads the body to its end, without which a client that goes away would
// not be noticed.
func readJSON(w http.ResponseWriter, r *http.Request, to any) error {
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLiveRequest))
	body.DisallowUnknownFields()
	err := body.Decode(to)
	if err == nil {
		if _, err = body.Token(); err == nil {
			err = errors.New("more than one value")
		}
	}
	if !errors.Is(err, io.EOF) {
		return &Error{Code: ErrInvalidArgument, Op: "live", Message: "the request is not one that this version knows", Err: err}
	}
	return nil
}

func sendJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

// sendError answers with an error. A context that has ended means that the server
// is ending, or that nobody listens.
func sendError(w http.ResponseWriter, r *http.Request, err error) {
	if CodeOf(err) == "" && r.Context().Err() != nil {
		err = &Error{Code: ErrClosed, Message: "the owner is closing the store", Err: err}
	}
	status := http.StatusInternalServerError
	if CodeOf(err) != "" {
		status = http.StatusConflict
	}
	sendJSON(w, status, newLiveError(err))
}
