package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onTerminal runs inspect with stdout and stderr on a terminal, and returns what
// the terminal got and the exit code.
func onTerminal(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	defer master.Close()
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	// One without a size gets no progress.
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("inspect", args...)
	cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", nowVariable + "=" + nowInTests.Format(time.RFC3339)}, env...)...)
	cmd.Stdout, cmd.Stderr = slave, slave
	err = cmd.Start()
	slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	_, _ = io.Copy(&got, master) // ends with EIO when the last writer is gone
	err = cmd.Wait()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return got.String(), failed.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return got.String(), 0
}

func TestTerminal(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	made := t.TempDir()
	makeStore(t, made)
	where := []string{"--db", filepath.Join(made, "agents.db")}
	blobs := append([]string{"--blobs", filepath.Join(made, "blobs")}, where...)
	for _, test := range []struct {
		name string
		env  []string
		args []string
		exit int
		want string // is there
		not  string // is not
	}{
		{"colours", nil, append(where, "log", "main"), 0, "\x1b[", "\x1b]"},
		{"NO_COLOR", []string{"NO_COLOR=1"}, append(where, "log", "main"), 0, "tests pass", "\x1b"},
		{"a dumb one", []string{"TERM=dumb"}, append(where, "log", "main"), 0, "tests pass", "\x1b"},
		{"JSON has none", nil, append(where, "log", "main", "--json"), 0, "tests pass", "\x1b"},
		{"a forced one is not", []string{"NO_COLOR=1", "FORCE_COLOR=1"}, append(where, "log", "main"), 0, "tests pass", "\x1b"},
		{"names", nil, append(where, "graph"), 0, "evil", "\x1b]"},
		{"cat of text", nil, append(blobs, "cat", "m2", "src/main.go"), 0, "func main() {", "refused"},
		{"cat of the rest", nil, append(blobs, "cat", "m2", "logo.png"), 1, `"logo.png" is not for a terminal, see its byte 0`, "PNG"},
		{"cat of worse", nil, append(blobs, "cat", evil+"2", evil), 1, "is not for a terminal, see its byte 4", "\x1b"},
		{"cat --raw", nil, append(blobs, "cat", "--raw", evil+"2", evil), 0, "\x1b]52;c;YQ==\a", "not for a terminal"},
	} {
		got, exit := onTerminal(t, test.env, test.args...)
		if exit != test.exit || !strings.Contains(got, test.want) || strings.Contains(got, test.not) {
			t.Errorf("%s: exit code %d, want %d; %q, want %q in it and %q not", test.name, exit, test.exit, got, test.want, test.not)
		}
	}
}
