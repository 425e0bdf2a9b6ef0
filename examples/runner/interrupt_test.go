//go:build unix

package main

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// heartbeat is a script that prints a line and writes to the workspace for
// as long as it lives.
const heartbeat = `sh -c 'echo >beat; echo started; while :; do echo >>beat; sleep 0.01; done'`

// start starts the runner with a shell script as its command, and returns when
// the script has printed a line.
func (s *site) start(script string) (*exec.Cmd, io.ReadCloser) {
	s.t.Helper()
	cmd := s.command(flags("--", "sh", "-c", script)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { cmd.Process.Kill() })
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		s.t.Fatal(err)
	}
	return cmd, stdout
}

// wantStill wants no heart to beat in the workspace any more.
func (s *site) wantStill() {
	s.t.Helper()
	before, err := os.Stat(s.path("work/beat"))
	if err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if after, err := os.Stat(s.path("work/beat")); err != nil || after.Size() != before.Size() {
		s.t.Errorf("somebody still writes to the workspace (%v)", err)
	}
}

// TestInterrupt: a signal that only the runner gets ends the command and its
// children, frees the lease and makes no checkpoint.
func TestInterrupt(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			s := newSite(t)
			s.run(0, s.agent("build")...)
			want := s.tree("work")

			cmd, _ := s.start("echo half >site/index.html; " + heartbeat + "; exit 0")
			began := time.Now()
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // says what the state says
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(began); took > grace {
				t.Errorf("took %s", took)
			}
			s.wantStill()
			s.wantHead("main@1")
			s.run(0, flags("rewind")...)
			if !maps.Equal(s.tree("work"), want) {
				t.Error("the head cannot be restored")
			}
			s.run(0, s.agent("correct")...)
		})
	}
}

// TestReaderGoesAway: a broken pipe ends the command, not the runner with the
// lease in its hands.
func TestReaderGoesAway(t *testing.T) {
	s := newSite(t)
	cmd, stdout := s.start("while echo more; do :; done; exit 9")
	stdout.Close()
	if err, exit := cmd.Wait(), new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() < 1 {
		t.Errorf("want an exit code, got %v", err)
	}
	s.wantHead("")
}

// TestLeftRunning: what a command leaves running does not outlive it, or it
// would write while the workspace is captured.
func TestLeftRunning(t *testing.T) {
	s := newSite(t)
	s.run(0, flags("--", "sh", "-c", heartbeat+" >/dev/null 2>&1 & until test -e beat; do sleep 0.01; done")...)
	s.wantStill()
	s.wantHead("main@1")
}
