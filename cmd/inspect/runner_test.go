package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// site is a directory in which examples/runner works.
type site struct {
	t      *testing.T
	dir    string
	runner string
}

// newSite makes a site in which thread main has two checkpoints, main@1 and
// main@2, and thread side three, of which the first is a fork.
func newSite(t *testing.T, runner string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), runner: runner}
	s.turn("work", "main", "echo one > file")
	s.turn("work", "main", "echo two > file; echo 2 > second")
	s.want(0, "", s.run(runner, "-db", "store.db", "-thread", "main", "fork", "side"))
	s.turn("side", "side", "echo three > file")
	s.turn("side", "side", "echo four > file")
	return s
}

// result is what a program said, and how it ended.
type result struct {
	args           []string
	stdout, stderr string
	exit           int
}

func (s *site) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "CHECKPOINTDB_FILE=store.db", "CHECKPOINTDB_BLOBS=")
	return cmd
}

func (s *site) run(program string, args ...string) result {
	s.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := s.command(program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		s.t.Fatal(err)
	}
	return result{args, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// want compares the exit code, and wants some text on stdout.
func (s *site) want(exit int, stdout string, got result) {
	s.t.Helper()
	if got.exit != exit || !strings.Contains(got.stdout, stdout) {
		s.t.Errorf("%q: exit code %d, want %d; stdout %q, want %q in it; stderr %q", got.args, got.exit, exit, got.stdout, stdout, got.stderr)
	}
}

func (s *site) inspect(exit int, stdout string, args ...string) result {
	s.t.Helper()
	got := s.run("inspect", args...)
	s.want(exit, stdout, got)
	return got
}

func (s *site) turnArgs(workspace, thread, script string) []string {
	return []string{"-db", "store.db", "-blobs", "blobs", "-workspace", workspace, "-thread", thread, "--", "sh", "-c", script}
}

func (s *site) turn(workspace, thread, script string) {
	s.t.Helper()
	s.want(0, "", s.run(s.runner, s.turnArgs(workspace, thread, script)...))
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// running is a runner whose command runs until it is told to end.
type running struct {
	*site
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

// start starts a turn of thread main and returns when its command runs, which
// writes a file and ends once there is a file go.
func (s *site) start() *running {
	s.t.Helper()
	r := &running{site: s}
	r.cmd = s.command(s.runner, s.turnArgs("work", "main",
		"echo three > file; : > started; i=0; until [ -e ../go ] || [ $i -eq 600 ]; do sleep 0.05; i=$((i+1)); done")...)
	r.cmd.Stderr = &r.stderr
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { // nothing of it may outlive a test that fails
		s.release()
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(s.path("work/started")); err == nil {
			return r
		}
		if time.Now().After(end) {
			s.t.Fatal("the command does not start")
		}
	}
}

// release lets the command end.
func (s *site) release() {
	if err := os.WriteFile(s.path("go"), nil, 0o666); err != nil {
		s.t.Error(err)
	}
}

// end lets the command end and returns the exit code of the runner.
func (r *running) end() int {
	r.release()
	_ = r.cmd.Wait() // says what the state says
	return r.cmd.ProcessState.ExitCode()
}

// kill ends the runner at once. Its command goes on and is let end.
func (r *running) kill() {
	r.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	_ = r.cmd.Wait()
	r.release()
}

// socket tells whether there is a socket beside the store, and wants it to be
// its user's alone.
func (s *site) socket() bool {
	s.t.Helper()
	info, err := os.Lstat(s.path("store.db.sock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if info.Mode().Type() != fs.ModeSocket || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		s.t.Errorf("the socket is %s", info.Mode())
	}
	return true
}

// TestRunner asks about a store while a real runner has it open.
func TestRunner(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes; live.txtar has those that do more than one thing at once")
	}
	needsShell(t)
	runner := buildRunner(t)
	for name, test := range map[string]func(*site){
		"answers":       testRunnerAnswers,
		"broken lease":  testRunnerBrokenLease,
		"killed runner": testKilledRunner,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSite(t, runner))
		})
	}
}

func testRunnerAnswers(s *site) {
	s.want(0, "dropped", s.run(s.runner, "-db", "store.db", "-thread", "side", "prune", "2"))
	r := s.start()
	if !s.socket() {
		s.t.Error("no socket")
	}
	for _, look := range []struct {
		want string
		args []string
	}{
		{`"lastFence":3,"lease":{"threadId":"main","fence":3,`, []string{"threads", "--json"}},
		{`{"threadId":"main","fence":3,`, []string{"leases", "--json"}},
		{"\nmain@1 ", []string{"log", "main"}},
		{"Parent        main@1\n", []string{"show", "main@2"}},
		{"File          sound\n", []string{"check"}},
		{"Blobs         sound, 5 blobs", []string{"check", "--blobs", "blobs"}},
		{"Blobs         sound, 5 blobs", []string{"check", "--blobs", "blobs", "--read-data"}},
		{`"scanned":5,"kept":5,`, []string{"sweep", "--dry-run", "--older-than", "1ns", "--blobs", "blobs", "--json"}},
		{"would delete", []string{"delete-thread", "side", "--dry-run"}},
		{"side@2\n", []string{"prune", "side", "--keep-last", "1", "--dry-run"}},
	} {
		got := s.inspect(0, look.want, look.args...)
		if !strings.Contains(got.stderr, "store.db is in use; ") || !strings.Contains(got.stderr, "answer") {
			s.t.Errorf("%q: stderr %q", look.args, got.stderr)
		}
	}
	s.inspect(0, "to backup.db\n", "backup", "backup.db")
	s.inspect(0, "Blobs         sound, 5 blobs", "check", "--db", "backup.db", "--blobs", "blobs")

	// Changes are made by the runner, and its thread is not for others to change.
	s.inspect(4, "", "prune", "main", "--keep-last", "1")
	s.inspect(4, "", "delete-thread", "main")
	s.inspect(4, "", "compact", "--in-place")
	got := s.inspect(0, "side@2\n", "prune", "side", "--keep-last", "1")
	if !strings.Contains(got.stderr, "store.db is in use; the program that has it open makes the change") {
		s.t.Errorf("stderr %q", got.stderr)
	}
	s.inspect(0, `"scanned":1,"kept":0,"tooYoung":0,"deleted":1,`, "sweep", "--quick", "--older-than", "1ns", "--json")
	s.inspect(0, `"scanned":4,"kept":4,"tooYoung":0,"deleted":0,`, "sweep", "--older-than", "1ns", "--json")

	// All that did not disturb it.
	if exit := r.end(); exit != 0 {
		s.t.Errorf("the runner ended with %d: %s", exit, &r.stderr)
	}
	if s.socket() {
		s.t.Error("the socket is still there")
	}
	got = s.inspect(0, "main@3", "show", "--thread", "main")
	if got.stderr != "" {
		s.t.Errorf("stderr %q", got.stderr)
	}
	s.inspect(0, "sound", "check", "--blobs", "blobs", "--read-data")
}

func testRunnerBrokenLease(s *site) {
	r := s.start()
	s.inspect(0, "would end the lease of thread main under fence 3", "leases", "break", "main", "--dry-run")
	s.inspect(0, "ended the lease of thread main under fence 3", "leases", "break", "main")
	s.inspect(0, "[]\n", "leases", "--json")
	if exit := r.end(); exit != 1 || !strings.Contains(r.stderr.String(), "SANDBOX_SNAPSHOT_WRITER_LOST") {
		s.t.Errorf("the runner ended with %d: %s", exit, &r.stderr)
	}
	s.inspect(0, "Checkpoint    main@2\n", "show", "--thread", "main")
	if s.socket() {
		s.t.Error("the socket is still there")
	}
}

func testKilledRunner(s *site) {
	r := s.start()
	r.kill()
	if !s.socket() {
		s.t.Fatal("a killed runner cleans up here, so there is nothing to see")
	}
	if got := s.inspect(0, `"lease":{"threadId":"main","fence":3,`, "threads", "--json"); got.stderr != "" {
		s.t.Errorf("stderr %q", got.stderr)
	}
	s.inspect(0, "Checkpoint    main@2\n", "show", "--thread", "main")
	s.inspect(0, "sound", "check", "--blobs", "blobs", "--read-data")
	s.inspect(4, "", "prune", "main", "--keep-last", "1")
	s.inspect(0, "ended the lease of thread main under fence 3", "leases", "break", "main")
	s.turn("work", "main", "echo four > file") // takes the stale socket's place
	s.inspect(0, "Checkpoint    main@4\n", "show", "--thread", "main")
	if s.socket() {
		s.t.Error("the socket is still there")
	}
}
