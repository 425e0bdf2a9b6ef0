package checkpointdb_test

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"checkpointdb"
)

// tracesEnv names a further directory of traces to replay.
const tracesEnv = "CHECKPOINTDB_TRACES"

// TestTraces replays recorded runs of the reference implementation on both
// stores. Every step must give the answer that was recorded. Their format is
// told in testdata/traces/README.md.
func TestTraces(t *testing.T) {
	files := traceFiles(t, filepath.Join("testdata", "traces"))
	if dir := os.Getenv(tracesEnv); dir != "" {
		files = append(files, traceFiles(t, dir)...)
	}
	for _, kind := range storeKinds {
		t.Run(kind.name, func(t *testing.T) {
			for _, file := range files {
				name, _, _ := strings.Cut(filepath.Base(file), ".")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if err := replayTrace(t, kind, readTrace(t, file)); err != nil {
						t.Errorf("%s:%v", file, err)
					}
				})
			}
		})
	}
}

// TestTraceAnswersMatter changes one recorded answer at a time. A replay that
// then still succeeds would prove nothing.
func TestTraceAnswersMatter(t *testing.T) {
	trace := readTrace(t, traceFiles(t, filepath.Join("testdata", "traces"))[0])
	for i := range trace[1:] {
		var step map[string]json.RawMessage
		if err := json.Unmarshal(trace[i+1], &step); err != nil {
			t.Fatal(err)
		}
		if string(step["ok"]) == "true" {
			step["result"] = json.RawMessage(`{"another":1}`)
		} else {
			step["code"] = json.RawMessage(`"ANOTHER"`)
		}
		altered, err := json.Marshal(step)
		if err != nil {
			t.Fatal(err)
		}
		err = replayTrace(t, storeKinds[0], append(slices.Clone(trace[:i+1]), altered))
		if err == nil || errors.Is(err, errMalformed) || !strings.HasPrefix(err.Error(), fmt.Sprint(i+2, ":")) {
			t.Errorf("line %d with another answer: got %v, want an error at this line", i+2, err)
		}
	}
}

// TestMalformedTraces makes sure that no line is skipped in silence.
func TestMalformedTraces(t *testing.T) {
	const head = `{"trace":1,"options":{"leaseDurationMs":1000,"renewAfterMs":250}}`
	const acquire = `{"now":1,"op":"acquireWriter","args":{"threadId":"t"},"ok":true,"result":{"threadId":"t","fence":1,"expiresAt":1001,"renewAfterMs":250},"lease":"L1"}`
	if err := replayTrace(t, storeKinds[0], []json.RawMessage{[]byte(head), []byte(acquire)}); err != nil {
		t.Fatal(err)
	}
	for _, lines := range [][]string{
		{},
		{head},
		{acquire},
		{`{"trace":1}`, acquire},
		{head, ``},
		{head, `{`},
		{head, acquire + acquire},
		{head, `{"now":1,"op":"vacuum","args":{},"ok":true,"result":null}`},
		{head, `{"now":1,"op":"get","args":{"id":"c"},"ok":true,"result":null,"more":1}`},
		{head, `{"now":1,"op":"get","args":{"id":"c","more":1},"ok":true,"result":null}`},
		{head, `{"op":"get","args":{"id":"c"},"ok":true,"result":null}`},
		{head, `{"now":1,"op":"get","ok":true,"result":null}`},
		{head, `{"now":1,"op":"get","args":{"id":"c"},"result":null}`},
		{head, `{"now":1,"op":"get","args":{"id":"c"},"ok":false,"result":null}`},
		{head, `{"now":1,"op":"get","args":{"id":"c"},"ok":true,"result":null,"code":"X"}`},
		{head, `{"now":1,"op":"get","args":{"id":"c"},"ok":true,"result":null,"lease":"L1"}`},
		{head, `{"now":1,"op":"get","args":{"id":{"$utf":[1]}},"ok":true,"result":null}`},
		{head, `{"now":1,"op":"get","args":{"id":{"$wtf16":[65536]}},"ok":true,"result":null}`},
		{head, `{"now":1,"op":"get","args":{"id":1},"ok":false,"code":"SANDBOX_SNAPSHOT_INVALID_ID"}`},
		{head, `{"now":1,"op":"renew","args":{"lease":"L7"},"ok":false,"code":"SANDBOX_SNAPSHOT_WRITER_LOST"}`},
		{head, strings.Replace(acquire, `,"lease":"L1"`, ``, 1)},
	} {
		var trace []json.RawMessage
		for _, line := range lines {
			trace = append(trace, json.RawMessage(line))
		}
		if err := replayTrace(t, storeKinds[0], trace); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %v, want %v", lines, err, errMalformed)
		}
	}
}

func traceFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*.jsonl", "*.jsonl.gz"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Fatalf("no traces (*.jsonl, *.jsonl.gz) in %s", dir)
	}
	slices.Sort(files)
	return files
}

// readTrace returns the lines of a trace.
func readTrace(t *testing.T, file string) []json.RawMessage {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	var lines []json.RawMessage
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		lines = append(lines, bytes.Clone(scanner.Bytes()))
	}
	if err := scanner.Err(); err != nil {
		t.Fatalf("%s: after line %d: %v", file, len(lines), err)
	}
	return lines
}

// errMalformed is an error of the trace, not of the store.
var errMalformed = errors.New("malformed trace")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// replay is one trace on its way through one store.
type replay struct {
	ctx    context.Context
	store  fullStore
	leases map[string]checkpointdb.Writer // by their names in the trace
}

// replayTrace replays a trace on a new store, up to the first answer that is not
// the recorded one. Its error starts with the number of that line.
func replayTrace(t *testing.T, kind storeKind, trace []json.RawMessage) error {
	if len(trace) < 2 {
		return malformed("%d lines, so no step", len(trace))
	}
	var head struct {
		Trace   *int
		Options struct {
			LeaseDurationMs int64
			RenewAfterMs    int64
		}
	}
	if err := decodeStrictly(trace[0], &head); err != nil {
		return fmt.Errorf("1: %w", err)
	}
	if head.Trace == nil || head.Options.LeaseDurationMs <= 0 {
		return fmt.Errorf("1: %w", malformed("trace or options are missing in %.200s", trace[0]))
	}
	clock := &testClock{}
	r := &replay{
		ctx: t.Context(),
		store: kind.open(t, storeConfig{
			path:          filepath.Join(t.TempDir(), "store.db"),
			clock:         clock.Now,
			leaseDuration: time.Duration(head.Options.LeaseDurationMs) * time.Millisecond,
			renewAfter:    time.Duration(head.Options.RenewAfterMs) * time.Millisecond,
		}),
		leases: map[string]checkpointdb.Writer{
			"L0": {ThreadID: "t1", OwnerToken: "no-such-owner", Fence: 1},
		},
	}
	for i, line := range trace[1:] {
		if err := r.step(clock, line); err != nil {
			return fmt.Errorf("%d: %w", i+2, err)
		}
	}
	return nil
}

// step replays one line.
func (r *replay) step(clock *testClock, line json.RawMessage) error {
	var step struct {
		Now    *int64
		Op     string
		Args   json.RawMessage
		OK     *bool
		Result json.RawMessage
		Code   checkpointdb.Code
		Lease  string
	}
	if err := decodeStrictly(line, &step); err != nil {
		return err
	}
	op, known := traceOps[step.Op]
	switch {
	case !known:
		return malformed("unknown op %q", step.Op)
	case step.Now == nil || step.Args == nil || step.OK == nil:
		return malformed("now, args or ok is missing in %.200s", line)
	case *step.OK != (step.Code == ""), !*step.OK && step.Result != nil:
		return malformed("ok does not fit result and code in %.200s", line)
	case (step.Lease != "") != (step.Op == "acquireWriter" && *step.OK):
		return malformed("only an acquired lease has a name, and always one: %.200s", line)
	}
	args, err := readable(step.Args)
	if err != nil {
		return err
	}
	clock.Set(time.UnixMilli(*step.Now))
	result, err := op(r, args, step.Lease)
	if errors.Is(err, errMalformed) {
		return err
	}
	got, encodeErr := json.Marshal(result)
	if encodeErr != nil {
		return fmt.Errorf("%s %s: the answer does not encode: %w", step.Op, step.Args, encodeErr)
	}
	diff := ""
	if err == nil {
		diff = gocmp.Diff(jsonTree(step.Result), jsonTree(got))
	}
	if diff != "" || checkpointdb.CodeOf(err) != step.Code || (err == nil) != *step.OK {
		return fmt.Errorf("%s\nargs %s\ngot  %s, error %v\nwant %s, code %q\n(-want +got)\n%s",
			step.Op, step.Args, got, err, step.Result, step.Code, diff)
	}
	return nil
}

// decodeStrictly reads one JSON value into v, and takes no field that v lacks.
func decodeStrictly(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return malformed("%v in %.200s", err, raw)
	}
	if _, err := dec.Token(); err != io.EOF {
		return malformed("more than one value in %.200s", raw)
	}
	return nil
}

var (
	wtf16   = regexp.MustCompile(`\{\s*"\$wtf16"\s*:\s*\[([0-9,\s]*)\]\s*\}`)
	num     = regexp.MustCompile(`\{\s*"\$num"\s*:\s*"(NaN|Infinity|-Infinity)"\s*\}`)
	special = regexp.MustCompile(`"\$[^"]*"\s*:`)
)

// readable turns what the traces write for values outside JSON into something
// that our reading refuses for the reason that the reference had: a string with
// a lone surrogate into the same one with escapes, and a number that is none
// into the milliseconds of the zero time, which is also no size. It works on
// the text, where a quote within a string is escaped and so never matches.
func readable(args json.RawMessage) (json.RawMessage, error) {
	var err error
	args = wtf16.ReplaceAllFunc(args, func(match []byte) []byte {
		text := []byte{'"'}
		for unit := range strings.SplitSeq(string(wtf16.FindSubmatch(match)[1]), ",") {
			n, parseErr := strconv.ParseUint(strings.TrimSpace(unit), 10, 16)
			if parseErr != nil {
				err = malformed("%s: %v", match, parseErr)
			}
			text = fmt.Appendf(text, `\u%04x`, n)
		}
		return append(text, '"')
	})
	args = num.ReplaceAll(args, []byte(strconv.FormatInt(time.Time{}.UnixMilli(), 10)))
	if at := special.Find(args); at != nil {
		err = malformed("unknown encoding %s", at)
	}
	return args, err
}

// traceOp makes the call of one op. What it returns must encode to the recorded
// result. lease is the name for a lease that is acquired.
type traceOp func(r *replay, args json.RawMessage, lease string) (any, error)

// on makes a traceOp of a function that takes the arguments decoded.
func on[A any](call func(r *replay, a A) (any, error)) traceOp {
	return func(r *replay, raw json.RawMessage, _ string) (any, error) {
		var a A
		if err := decodeStrictly(raw, &a); err != nil {
			return nil, err
		}
		return call(r, a)
	}
}

type (
	threadArgs struct{ ThreadID traceID }
	leaseArgs  struct{ Lease string }
	keyArgs    struct{ Key string }
)

var traceOps = map[string]traceOp{
	"acquireWriter": func(r *replay, raw json.RawMessage, lease string) (any, error) {
		return on(func(r *replay, a threadArgs) (any, error) {
			if a.ThreadID.err != nil {
				return nil, a.ThreadID.err
			}
			l, err := r.store.AcquireWriter(r.ctx, a.ThreadID.thread())
			if err != nil {
				return nil, err
			}
			r.leases[lease] = l.Writer
			return map[string]any{
				"threadId": l.ThreadID, "fence": l.Fence,
				"expiresAt": l.ExpiresAt.UnixMilli(), "renewAfterMs": l.RenewAfter.Milliseconds(),
			}, nil
		})(r, raw, lease)
	},
	"renew": on(func(r *replay, a leaseArgs) (any, error) {
		w, err := r.writer(traceWriter{Lease: a.Lease})
		if err != nil {
			return nil, err
		}
		l, err := r.store.Renew(r.ctx, w)
		return map[string]any{"expiresAt": l.ExpiresAt.UnixMilli()}, err
	}),
	"release": on(func(r *replay, a leaseArgs) (any, error) {
		w, err := r.writer(traceWriter{Lease: a.Lease})
		if err != nil {
			return nil, err
		}
		return nil, r.store.Release(r.ctx, w)
	}),
	"append": on(func(r *replay, a struct {
		Checkpoint     json.RawMessage
		ExpectedHeadID json.RawMessage
		Writer         traceWriter
	}) (any, error) {
		w, err := r.writer(a.Writer)
		if err != nil {
			return nil, err
		}
		// Reading refuses some of what the store would. Ids come first in both,
		// the expected head's included.
		var c checkpointdb.Checkpoint
		checkpointErr := json.Unmarshal(a.Checkpoint, &c)
		if errors.Is(checkpointErr, checkpointdb.ErrInvalidID) {
			return nil, checkpointErr
		}
		expectedHead, headErr := checkpointdb.ParseOptionalCheckpointID(a.ExpectedHeadID)
		if err := cmp.Or(headErr, checkpointErr); err != nil {
			return nil, err
		}
		if err := r.store.Append(r.ctx, w, c, expectedHead); err != nil {
			return nil, err
		}
		head, err := r.store.Head(r.ctx, c.ThreadID)
		return map[string]any{"headId": head}, err
	}),
	"deleteHead": on(func(r *replay, a struct {
		ThreadID, CheckpointID traceID
		Writer                 traceWriter
	}) (any, error) {
		w, err := r.writer(a.Writer)
		if err != nil {
			return nil, err
		}
		if err := cmp.Or(a.ThreadID.err, a.CheckpointID.err); err != nil {
			return nil, err
		}
		if a.ThreadID.thread() != w.ThreadID {
			// Here the writer names the thread, so there is no such call.
			return nil, malformed("thread %q is not the writer's, %q", a.ThreadID.text, w.ThreadID)
		}
		return nil, r.store.DeleteHead(r.ctx, w, a.CheckpointID.checkpoint())
	}),
	"fork": on(func(r *replay, a struct {
		SourceThreadID, SourceCheckpointID           traceID
		DestinationThreadID, DestinationCheckpointID traceID
		CreatedAt                                    int64
		Writer                                       traceWriter
	}) (any, error) {
		w, err := r.writer(a.Writer)
		if err != nil {
			return nil, err
		}
		if err := cmp.Or(a.SourceThreadID.err, a.SourceCheckpointID.err, a.DestinationThreadID.err, a.DestinationCheckpointID.err); err != nil {
			return nil, err
		}
		c, err := r.store.Fork(r.ctx, w, checkpointdb.ForkRequest{
			SourceThreadID:          a.SourceThreadID.thread(),
			SourceCheckpointID:      a.SourceCheckpointID.checkpoint(),
			DestinationThreadID:     a.DestinationThreadID.thread(),
			DestinationCheckpointID: a.DestinationCheckpointID.checkpoint(),
			CreatedAt:               time.UnixMilli(a.CreatedAt).UTC(),
		})
		if err != nil {
			return nil, err
		}
		return map[string]any{"checkpoint": c}, nil
	}),
	"get": on(func(r *replay, a struct{ ID traceID }) (any, error) {
		if a.ID.err != nil {
			return nil, a.ID.err
		}
		c, err := r.store.Get(r.ctx, a.ID.checkpoint())
		if errors.Is(err, checkpointdb.ErrCheckpointNotFound) {
			return nil, nil // the reference has no such error
		}
		return orNil(c, err)
	}),
	"list": on(func(r *replay, a threadArgs) (any, error) {
		if a.ThreadID.err != nil {
			return nil, a.ThreadID.err
		}
		return collect(r.store.List(r.ctx, a.ThreadID.thread()))
	}),
	"getHead": on(func(r *replay, a threadArgs) (any, error) {
		if a.ThreadID.err != nil {
			return nil, a.ThreadID.err
		}
		head, err := r.store.Head(r.ctx, a.ThreadID.thread())
		if head == "" {
			return nil, err
		}
		return head, err
	}),
	"listBlobReferences": on(func(r *replay, _ struct{}) (any, error) {
		return collect(r.store.BlobReferences(r.ctx))
	}),
	"loadThread": on(func(r *replay, a threadArgs) (any, error) {
		if a.ThreadID.err != nil {
			return nil, a.ThreadID.err
		}
		messages, err := r.store.LoadThread(r.ctx, a.ThreadID.thread())
		return append([]json.RawMessage{}, messages...), err
	}),
	"saveThread": on(func(r *replay, a struct {
		ThreadID traceID
		Messages []json.RawMessage
	}) (any, error) {
		if a.ThreadID.err != nil {
			return nil, a.ThreadID.err
		}
		return nil, r.store.SaveThread(r.ctx, a.ThreadID.thread(), a.Messages)
	}),
	"instanceGet": on(func(r *replay, a keyArgs) (any, error) {
		in, err := r.store.GetInstance(r.ctx, a.Key)
		if errors.Is(err, checkpointdb.ErrInstanceNotFound) {
			return nil, nil // the reference has no such error
		}
		return orNil(in, err)
	}),
	"instanceUpsert": on(func(r *replay, a struct{ Record json.RawMessage }) (any, error) {
		var in checkpointdb.Instance
		if err := json.Unmarshal(a.Record, &in); err != nil {
			return nil, err
		}
		return nil, r.store.UpsertInstance(r.ctx, in)
	}),
	"instanceDelete": on(func(r *replay, a keyArgs) (any, error) {
		return nil, r.store.DeleteInstance(r.ctx, a.Key)
	}),
}

// traceID is an id as a trace has it, which may be none.
type traceID struct {
	text string
	err  error // why it is no id; the empty one is left for the store to refuse
}

func (id *traceID) UnmarshalJSON(raw []byte) error {
	if len(raw) == 0 || raw[0] != '"' {
		return fmt.Errorf("%s is no string", raw)
	}
	if string(raw) == `""` {
		return nil
	}
	text, err := checkpointdb.ParseOptionalCheckpointID(raw)
	id.text, id.err = string(text), err
	return nil
}

func (id traceID) thread() checkpointdb.ThreadID         { return checkpointdb.ThreadID(id.text) }
func (id traceID) checkpoint() checkpointdb.CheckpointID { return checkpointdb.CheckpointID(id.text) }

// traceWriter is a lease by its name, and what stands in place of its parts.
type traceWriter struct {
	Lease      string
	ThreadID   *checkpointdb.ThreadID
	OwnerToken *string
	Fence      *checkpointdb.Fence
}

func (r *replay) writer(a traceWriter) (checkpointdb.Writer, error) {
	w, known := r.leases[a.Lease]
	if !known {
		return w, malformed("no lease %q", a.Lease)
	}
	if a.ThreadID != nil {
		w.ThreadID = *a.ThreadID
	}
	if a.OwnerToken != nil {
		w.OwnerToken = *a.OwnerToken
	}
	if a.Fence != nil {
		w.Fence = *a.Fence
	}
	return w, nil
}

// orNil leaves out a value that came with an error, since a zero checkpoint
// does not encode.
func orNil[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// number is a JSON number by its value, in one spelling.
type number string

// jsonTree decodes a JSON text, with numbers by their value. What is missing is
// null.
func jsonTree(raw []byte) any {
	if len(raw) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	return normalNumbers(tree)
}

func normalNumbers(tree any) any {
	switch tree := tree.(type) {
	case json.Number:
		if value, ok := new(big.Rat).SetString(string(tree)); ok {
			return number(value.RatString())
		}
	case []any:
		for i := range tree {
			tree[i] = normalNumbers(tree[i])
		}
	case map[string]any:
		for key := range tree {
			tree[key] = normalNumbers(tree[key])
		}
	}
	return tree
}
