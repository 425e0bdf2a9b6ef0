package drivertest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var (
	source string // directory of this package; a server may have changed into another
	built  string // directory of the program, "" while there is none
)

func TestMain(m *testing.M) {
	source, _ = os.Getwd()
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// program builds examples/runner with the drivers of the clouds, once, and
// returns its path.
var program = sync.OnceValues(func() (path string, err error) {
	if built, err = os.MkdirTemp("", "runner"); err != nil {
		return "", err
	}
	path = filepath.Join(built, "runner.exe")
	build := exec.Command("go", "build", "-tags", "cloud", "-o", path, "checkpointdb/examples/runner")
	build.Dir, build.Stderr = source, os.Stderr
	return path, build.Run()
})

// runTurns is a day of examples/runner, unchanged, with its bytes in the bucket
// at a URL: two turns, one undone, a sweep of what is left over, and the first
// turn restored elsewhere.
func runTurns(t *testing.T, rawURL string) {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("the turns are shell commands")
	}
	runner, err := program()
	if err != nil {
		t.Fatalf("building the runner: %v", err)
	}
	dir := t.TempDir()
	run := func(workspace string, args ...string) string {
		t.Helper()
		cmd := exec.Command(runner, append([]string{"-db", filepath.Join(dir, "agents.db"), "-blobs", rawURL,
			"-workspace", filepath.Join(dir, workspace), "-thread", "main"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("runner %q with %s: %v\n%s", args, rawURL, err, out)
		}
		return string(out)
	}
	large := bytes.Repeat([]byte("more than one part of an upload "), 20<<20/32)
	if err := os.Mkdir(filepath.Join(dir, "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one", "large"), large, 0o600); err != nil {
		t.Fatal(err)
	}
	run("one", "--", "sh", "-c", "echo first >text; : >empty; mkdir sub; cp text sub/copy")
	run("one", "--", "sh", "-c", "echo second >text; rm large")
	run("one", "undo")
	if out := run("one", "sweep", "0s"); !strings.Contains(out, " 1 deleted (7 bytes)") {
		t.Errorf("sweep said %q, want one blob deleted", out)
	}
	run("two", "restore")
	for _, workspace := range []string{"one", "two"} {
		for name, want := range map[string]string{"text": "first\n", "sub/copy": "first\n", "empty": "", "large": string(large)} {
			got, err := os.ReadFile(filepath.Join(dir, workspace, filepath.FromSlash(name)))
			if err != nil || string(got) != want {
				t.Errorf("%s: %s/%s holds %d bytes (%v), want %d others", rawURL, workspace, name, len(got), err, len(want))
			}
		}
	}
}
