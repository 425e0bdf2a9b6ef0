package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/internal/salvage"
	"checkpointdb/internal/storeopen"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/rogpeppe/go-internal/testscript"
)

// changeCommands are what the scripts of the changing and the checking commands
// need beside the others.
var changeCommands = map[string]func(*testscript.TestScript, bool, []string){
	"aged":    aged,
	"copy":    copyDir,
	"corrupt": corrupt,
	"cut":     cut,
	"json":    validJSON,
	"mode":    mode,
	"own":     own,
	"relabel": relabel,
	"serve":   serve,
	"stop":    stop,
	"times":   times,
}

// owned has what ends the stores that serve and own opened, by script.
var owned sync.Map

// serve FILE [BUCKET]: somebody has the store open and serves it, with the clock
// of the commands, until stop or the end of the script.
func serve(ts *testscript.TestScript, _ bool, args []string) {
	live := &checkpointdb.Live{}
	if len(args) == 2 {
		var err error
		live.Bucket, err = buckets.Open(context.Background(), ts.MkAbs(args[1]))
		ts.Check(err)
	}
	openOwned(ts, args[0], live)
}

// own FILE: the same, and does not serve it.
func own(ts *testscript.TestScript, _ bool, args []string) { openOwned(ts, args[0], nil) }

func openOwned(ts *testscript.TestScript, name string, live *checkpointdb.Live) {
	store, err := checkpointdb.Open(ts.MkAbs(name), &checkpointdb.Options{Live: live, Clock: func() time.Time { return nowInTests }})
	ts.Check(err)
	end := sync.OnceValue(func() error {
		err := errors.Join(store.Check(context.Background()), store.Close())
		if live != nil && live.Bucket != nil {
			err = errors.Join(err, live.Bucket.Close())
		}
		return err
	})
	owned.Store(ts, end)
	ts.Defer(func() { ts.Check(end()) })
}

// stop [DURATION]: what serve or own opened is sound, and closed, at once or later.
func stop(ts *testscript.TestScript, _ bool, args []string) {
	end, ok := owned.LoadAndDelete(ts)
	if !ok {
		ts.Fatalf("nothing is open")
	}
	if len(args) == 0 {
		ts.Check(end.(func() error)())
		return
	}
	after, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.AfterFunc(after, func() { _ = end.(func() error)() }) // the end of the script asks again
}

// copy FROM TO: copies what is in a directory.
func copyDir(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.CopyFS(ts.MkAbs(args[1]), os.DirFS(ts.MkAbs(args[0]))))
}

// cut FILE: the last line is gone.
func cut(ts *testscript.TestScript, _ bool, args []string) {
	edit(ts, args[0], args[0], func(text []byte) []byte {
		return text[:bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n')+1]
	})
}

// relabel FILE: the first checkpoint of an export is not the same any more.
func relabel(ts *testscript.TestScript, _ bool, args []string) {
	edit(ts, args[0], args[0], func(text []byte) []byte {
		return bytes.Replace(text, []byte(`"reason":"automatic"`), []byte(`"reason":"named"`), 1)
	})
}

// corrupt FROM TO TEXT: makes a copy in which every such text has another first
// byte.
func corrupt(ts *testscript.TestScript, _ bool, args []string) {
	edit(ts, args[0], args[1], func(data []byte) []byte {
		return bytes.ReplaceAll(data, []byte(args[2]), []byte("\xff"+args[2][1:]))
	})
}

func edit(ts *testscript.TestScript, from, to string, f func([]byte) []byte) {
	before, err := os.ReadFile(ts.MkAbs(from))
	ts.Check(err)
	after := f(before)
	if bytes.Equal(before, after) {
		ts.Fatalf("nothing to change in %s", from)
	}
	ts.Check(os.WriteFile(ts.MkAbs(to), after, 0o600))
}

// aged DIR: what is in the bucket is old, for the commands and for anybody else.
func aged(ts *testscript.TestScript, _ bool, args []string) {
	past := nowInTests.AddDate(-20, 0, 0)
	ts.Check(filepath.Walk(ts.MkAbs(args[0]), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			err = os.Chtimes(path, past, past)
		}
		return err
	}))
}

// times FILE: makes a store with a thread whose checkpoints were made at times that
// nobody expects.
func times(ts *testscript.TestScript, _ bool, args []string) {
	store, err := checkpointdb.Open(ts.MkAbs(args[0]), &checkpointdb.Options{Clock: func() time.Time { return nowInTests }})
	ts.Check(err)
	defer store.Close()
	lease, err := store.AcquireWriter(context.Background(), "times")
	ts.Check(err)
	head := checkpointdb.CheckpointID("")
	for _, c := range []struct {
		id checkpointdb.CheckpointID
		at time.Time
	}{
		{"future", nowInTests.AddDate(80, 0, 0)},
		{"seconds", time.UnixMilli(nowInTests.Unix())},
		{"half", time.UnixMicro(1500)},
		{"before-1970", time.UnixMilli(-1)},
		{"31d", nowInTests.AddDate(0, 0, -31)},
		{"30d", nowInTests.AddDate(0, 0, -30)},
		{"29d", nowInTests.AddDate(0, 0, -29)},
		{"head", time.UnixMilli(nowInTests.Unix())},
	} {
		ts.Check(store.Append(context.Background(), lease.Writer, checkpointdb.Checkpoint{
			ID: c.id, ThreadID: "times", ParentCheckpointID: head, CreatedAt: c.at, Reason: checkpointdb.ReasonAutomatic,
		}, head))
		head = c.id
	}
	ts.Check(store.Release(context.Background(), lease.Writer))
}

// damaged returns a copy of a store's file, damaged in one of the four ways of case
// 1.
func damaged(how string, data []byte) ([]byte, error) {
	data = bytes.Clone(data)
	metas, _ := salvage.FindMetas(bytes.NewReader(data))
	meta := metas[0] // the newest
	pageSize := int(meta.PageSize)
	switch how {
	case "half":
		return data[:len(data)/2], nil
	case "metas":
		clear(data[:2*pageSize])
	case "freelist":
		clear(data[int(meta.Freelist)*pageSize:][:16])
	case "middle":
		tree, err := salvage.New(bytes.NewReader(data), int64(len(data)), meta.PageSize).Walk(context.Background(), meta.Root, meta.Pages, nil, nil)
		if err != nil {
			return nil, err
		}
		page := meta.Pages / 2
		for !tree.Reached.Has(page) { // a free page may hold anything
			page++
		}
		random := rand.NewChaCha8([32]byte{1})
		_, _ = random.Read(data[int(page)*pageSize:][:4096])
	default:
		return nil, fmt.Errorf("no damage %q", how)
	}
	return data, nil
}

// mode MODE FILE: the file has these permissions.
func mode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); got != args[0] {
		ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
	}
}

// json: what the last command wrote to stdout is one JSON document.
func validJSON(ts *testscript.TestScript, _ bool, _ []string) {
	if out := ts.ReadFile("stdout"); !json.Valid([]byte(out)) || strings.Contains(out, "null") {
		ts.Fatalf("no JSON, or with a null: %q", out)
	}
}

// makeBigStore makes a store of about 1 MiB, as case 1 asks for.
func makeBigStore(t *testing.T, path string) {
	t.Helper()
	m := &maker{t: t}
	m.store = storeopen.Open(t, path, &checkpointdb.Options{Clock: func() time.Time { return nowInTests }})
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 20 {
		var files []checkpointdb.Entry
		for n := range 40 {
			text := fmt.Sprint(i, n)
			files = append(files, checkpointdb.Entry{
				Path: fmt.Sprintf("some/where/%02d", n), Kind: checkpointdb.KindFile, Size: int64(len(text)), BlobKey: keyOf(text),
			})
		}
		said := make([]byte, 80<<10) // that no compression makes smaller
		for b := range said {
			said[b] = 'a' + byte(random.IntN(26))
		}
		m.save(checkpointdb.Checkpoint{
			ID: checkpointdb.CheckpointID(fmt.Sprint("c", i)), ThreadID: checkpointdb.ThreadID(fmt.Sprint("t", i%4)),
			CreatedAt: nowInTests.Add(time.Duration(i-100) * time.Hour), Files: files, Conversation: messages(string(said)),
		})
	}
	_, err := m.store.AcquireWriter(context.Background(), "held")
	m.must(err)
	storeopen.Close(t, m.store)
}

// TestDamaged is case 1: a damaged copy never ends a command in any other way than
// with an answer or an error, and is not changed. What is left of it can be saved.
func TestDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	path := filepath.Join(t.TempDir(), "sound.db")
	makeBigStore(t, path)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"half", "metas", "freelist", "middle"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			bad, err := damaged(how, data)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "bad.db")
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			run := func(exits []int, args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), "inspect", append([]string{"--db", path}, args...)...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
					t.Fatal(err)
				}
				if got := cmd.ProcessState.ExitCode(); !slices.Contains(exits, got) {
					t.Errorf("%q: exit code %d, want one of %d; %s", args, got, exits, out)
				}
				for _, word := range []string{"panic", "goroutine", "signal"} {
					if strings.Contains(string(out), word) {
						t.Errorf("%q: %s", args, out)
					}
				}
				return string(out)
			}
			run([]int{exitDamage}, "check")
			if out := run([]int{exitDamage}, "check", "--json"); !strings.Contains(out, `{"sound":false,"violations":[{`) {
				t.Errorf("check --json: %s", out)
			}
			// Some come to what is damaged, others do not.
			either := []int{exitDone, exitDamage}
			for _, args := range [][]string{
				{"threads"}, {"log", "t1"}, {"log", "t1", "--path", "some"}, {"graph"}, {"show", "c9"}, {"show", "--thread", "t3"}, {"show", "c9", "--files"},
				{"diff", "c1", "c9"}, {"refs"}, {"refs", string(keyOf("9 9"))}, {"leases"}, {"stats"}, {"du"},
				{"prune", "t0", "--keep-last", "1", "--dry-run"}, {"delete-thread", "t0", "--dry-run"}, {"leases", "break", "held", "--dry-run"},
				{"compact", "--in-place", "--dry-run"}, {"restore", "c9", "out", "--dry-run", "--blobs", "mem://"},
				{"export", "--out", "out.jsonl"}, {"backup", "backup.db"}, {"compact", "small.db"},
			} {
				run(either, args...)
			}
			run(either, "repair", "saved.db")
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
				t.Error("the copy was changed", err)
			}
			path = filepath.Join(dir, "saved.db")
			run([]int{exitDone}, "check")
			if out := run([]int{exitDone}, "threads", "--json"); !strings.Contains(out, `"head":"c`) {
				t.Errorf("nothing was saved: %s", out)
			}
		})
	}
}

// stuckBucket is a bucket of S3 that has what is in a directory. While it is stuck
// it gives no object and deletes none before freed is closed, and tells of each
// that is asked for; while it is slow it takes its time for each.
type stuckBucket struct {
	url   string
	stuck atomic.Bool
	slow  atomic.Bool
	asked chan string
	freed chan struct{}
}

func newStuckBucket(t *testing.T, dir string) *stuckBucket {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	b := &stuckBucket{asked: make(chan string, 1000), freed: make(chan struct{})}
	s3 := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object := strings.Contains(r.URL.Path, "sha256")
		if b.stuck.Load() && (object && r.Method == http.MethodGet || r.Method == http.MethodDelete || r.URL.Query().Has("delete")) {
			_, _ = io.Copy(io.Discard, r.Body) // else a client that goes is not noticed
			b.asked <- r.URL.Path
			select {
			case <-r.Context().Done():
				return
			case <-b.freed:
			}
		}
		if b.slow.Load() && object {
			time.Sleep(150 * time.Millisecond)
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.url = "s3://bucket?region=us-east-1&use_path_style=true&response_checksum_validation=when_required&endpoint=" + server.URL
	bucket, err := buckets.Open(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		return bucket.WriteAll(t.Context(), path, content, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestInterrupt interrupts long work, which then leaves nothing half done.
func TestInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent an interrupt here")
	}
	dir := t.TempDir()
	makeStore(t, dir)
	bucket := newStuckBucket(t, filepath.Join(dir, "blobs"))
	command := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(t.Context(), "inspect", append([]string{"--db", "agents.db"}, args...)...)
		cmd.Dir = dir
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		return cmd, &stderr
	}
	absent := func(name string) {
		t.Helper()
		if left, err := filepath.Glob(filepath.Join(dir, name)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q %v", left, err)
		}
	}
	for _, args := range [][]string{
		{"restore", "m5", "out", "--blobs", bucket.url},
		{"export", "--with-blobs", "--out", "out.jsonl", "--blobs", bucket.url},
		{"check", "--read-data", "--blobs", bucket.url},
		{"sweep", "--older-than", "1ns", "--blobs", bucket.url},
		{"import", "-", "--blobs", bucket.url},
	} {
		t.Run(args[0], func(t *testing.T) {
			bucket.stuck.Store(true)
			cmd, stderr := command(args...)
			stdin, err := cmd.StdinPipe() // of which nothing comes
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if args[0] == "import" {
				fmt.Fprintln(stdin, `{"export":{"version":1,"storeId":""}}`)
				fmt.Fprintln(stdin, `{"thread":{"id":"order","head":"","lastFence":1}}`)
				time.Sleep(500 * time.Millisecond) // it waits for more, whenever it comes to that
			} else {
				select {
				case <-bucket.asked:
				case <-time.After(30 * time.Second):
					t.Error("the bucket is not asked")
				}
			}
			begun := time.Now()
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait() // the exit code tells
			kill.Stop()
			if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.HasSuffix(stderr.String(), "inspect: interrupted\n") {
				t.Errorf("exit code %d, %q", code, stderr)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it went on for %s", took)
			}
			for len(bucket.asked) > 0 {
				<-bucket.asked
			}
			absent("*.jsonl*")
			absent("*.tmp")
			bucket.stuck.Store(false)
			cmd, stderr = command("check", "--blobs", bucket.url)
			if err := cmd.Run(); err != nil {
				t.Errorf("check: %v, %s", err, stderr)
			}
		})
	}
	// The restore that was interrupted is finished by the same one again.
	cmd, stderr := command("restore", "m5", "out", "--blobs", bucket.url)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v, %s", err, stderr)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "out/README.md")); err != nil || string(content) != readme2 {
		t.Errorf("restored %q, %v", content, err)
	}
}

// While a program is asked for a copy and the blobs are compared with that, it lets
// go of a blob and sweeps it. That is no fault.
func TestCheckBesideSweep(t *testing.T) {
	dir := t.TempDir()
	makeStore(t, dir)
	path := filepath.Join(dir, "agents.db")
	slow := newStuckBucket(t, filepath.Join(dir, "blobs"))
	bucket, err := buckets.Open(t.Context(), slow.url)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	if err := bucket.Delete(t.Context(), string(keyOf("#!/bin/sh\n"))); err != nil { // which is a fault
		t.Fatal(err)
	}
	store := storeopen.Open(t, path, &checkpointdb.Options{Live: &checkpointdb.Live{}, Clock: func() time.Time { return nowInTests }})
	slow.stuck.Store(true)
	cmd := exec.CommandContext(t.Context(), "inspect", "check", "--db", path, "--blobs", slow.url, "--read-data", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 11 { // all that are there
		select {
		case <-slow.asked:
		case <-time.After(30 * time.Second):
			t.Fatalf("the bucket was asked for %d blobs", i)
		}
	}
	slow.stuck.Store(false)
	if _, err := checkpointdb.DropThread(t.Context(), store, "idea"); err != nil {
		t.Error(err)
	}
	report, err := checkpointdb.Sweep(t.Context(), store, bucket, &checkpointdb.SweepOptions{OlderThan: 1, Clock: func() time.Time { return time.Now().Add(time.Hour) }})
	if err != nil || report.Deleted != 2 {
		t.Errorf("swept %+v, %v", report, err)
	}
	close(slow.freed)
	_ = cmd.Wait() // the exit code tells
	if code := cmd.ProcessState.ExitCode(); code != exitDamage ||
		!strings.Contains(stdout.String(), `"missing":1,"wrongSize":0,"damaged":0,"faults":[{"key":"`+string(keyOf("#!/bin/sh\n"))) {
		t.Errorf("exit code %d, %s, %s", code, &stdout, &stderr)
	}
}
