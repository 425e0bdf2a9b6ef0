package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestStory plays a session of examples/runner and then asks everything of what
// it left; see testdata/story.
func TestStory(t *testing.T) {
	if testing.Short() {
		t.Skip("starts more than a hundred processes, and none does more than one thing at once")
	}
	needsShell(t)
	bin := filepath.Dir(buildRunner(t))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/story",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("TZ", "UTC")
			env.Setenv("CHECKPOINTDB_FILE", "data/store.db")
			env.Setenv("CHECKPOINTDB_BLOBS", "blobs")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits,
			"remember":  remember,
			"unchanged": unchanged,
			"await":     await,
			"timeless":  timeless,
			"tree":      tree,
		},
	})
}

// needsShell skips a test in which a shell plays the agent.
func needsShell(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh here to play the agent:", err)
	}
}

// buildRunner builds examples/runner and returns the path of the program.
func buildRunner(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "runner")
	if output, err := exec.Command("go", "build", "-o", program, "../../examples/runner").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return program
}

// await FILE: waits until something makes the file.
func await(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s does not come", args[0])
		}
	}
}

// What differs from one session to the next, and what stands for it.
var differing = []struct {
	what *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b\d+[smh] ago\b|\bin \d+[smh]\b`), "AGE"},
	{regexp.MustCompile(`"recordBytes":\d+`), `"recordBytes":SIZE`}, // the time is in it, compressed
	{regexp.MustCompile(`\d+ B in the store's file`), "SIZE in the store's file"},
	{regexp.MustCompile(`  +`), "  "}, // columns are as wide as their ages
}

// timeless FILE: writes what FILE holds to the file timeless, with names for the
// times.
func timeless(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	for _, d := range differing {
		text = d.what.ReplaceAllString(text, d.name)
	}
	ts.Check(os.WriteFile(ts.MkAbs("timeless"), []byte(text), 0o666))
}

// tree DIR FILE: writes to the file what a checkpoint of the directory has to
// give back: of each path what kind it is, whether it is executable, and a digest
// of its bytes or the target. Secrets are left out, as captures do.
func tree(ts *testscript.TestScript, _ bool, args []string) {
	root := ts.MkAbs(args[0])
	var list strings.Builder
	ts.Check(filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root || d.Name() == ".env" {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			fmt.Fprintf(&list, "%s dir\n", rel)
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			fmt.Fprintf(&list, "%s link %s\n", rel, target)
			return err
		default:
			info, err := d.Info()
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			fmt.Fprintf(&list, "%s file %t %x\n", rel, info.Mode()&0o100 != 0, sha256.Sum256(data))
			return err
		}
		return nil
	}))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(list.String()), 0o666))
}
