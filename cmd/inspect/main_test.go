package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"checkpointdb"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite golden files and docs/inspect.md")

// nowVariable, when set, says what time it is for a command.
const nowVariable = "INSPECT_TEST_NOW"

func TestMain(m *testing.M) {
	text.DisableColors() // run decides for the commands
	testscript.Main(m, map[string]func(){
		"inspect": func() {
			if at, err := time.Parse(time.RFC3339, os.Getenv(nowVariable)); err == nil {
				now = func() time.Time { return at }
			}
			main()
		},
	})
}

// TestScripts plays testdata/*.txtar, each in a directory with a copy of the
// store that makeStore makes. It adds some commands to those of testscript.
func TestScripts(t *testing.T) {
	made := t.TempDir()
	makeStore(t, made)
	store, err := checkpointdb.Open(filepath.Join(made, "agents.db"), &checkpointdb.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	stats, err := store.Stats(t.Context())
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	if testing.Short() {
		// Under the race detector a process takes its time to start; these are the
		// scripts in which one does more than one thing at once.
		scripts = []string{"testdata/inuse.txtar", "testdata/live.txtar", "testdata/livechange.txtar"}
	}
	commands := map[string]func(*testscript.TestScript, bool, []string){
		"exits":     exits,
		"plain":     plain,
		"empty":     empty,
		"hold":      hold,
		"remember":  remember,
		"unchanged": unchanged,
	}
	maps.Copy(commands, changeCommands)
	testscript.Run(t, testscript.Params{
		Files:               scripts,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv(nowVariable, nowInTests.Format(time.RFC3339))
			env.Setenv("TZ", "Europe/Zurich")
			env.Setenv("CHECKPOINTDB_FILE", "agents.db")
			env.Setenv("CHECKPOINTDB_BLOBS", "blobs")
			env.Setenv("STOREID", stats.StoreID)
			env.Setenv("EVIL", evil)
			for name, content := range map[string]string{"README1": readme1, "README2": readme2, "MAIN1": main1, "MAIN2": main2, "PLAIN": "plain\n"} {
				env.Setenv(name, string(keyOf(content)))
			}
			return os.CopyFS(env.WorkDir, os.DirFS(made))
		},
		Cmds: commands,
	})
}

// exits CODE PROGRAM ARG...: the program ends with this exit code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		failed, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = failed.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// plain: what the last command wrote to stdout and stderr drives no terminal.
func plain(ts *testscript.TestScript, _ bool, _ []string) {
	for _, name := range []string{"stdout", "stderr"} {
		for i, r := range ts.ReadFile(name) {
			if r != '\n' && !unicode.IsPrint(r) || r == unicode.ReplacementChar {
				ts.Fatalf("%s has %U at byte %d", name, r, i)
			}
		}
	}
}

// empty FILE: makes a store that holds nothing.
func empty(ts *testscript.TestScript, _ bool, args []string) {
	store, err := checkpointdb.Open(ts.MkAbs(args[0]), nil)
	ts.Check(err)
	ts.Check(store.Close())
}

// hold FILE [live]: somebody has the store open until the script ends, and serves
// it or not.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	options := &checkpointdb.Options{}
	if len(args) == 2 {
		options.Live = &checkpointdb.Live{}
	}
	store, err := checkpointdb.Open(ts.MkAbs(args[0]), options)
	ts.Check(err)
	ts.Defer(func() { store.Close() })
}

func state(ts *testscript.TestScript, path string) string {
	info, err := os.Stat(ts.MkAbs(path))
	ts.Check(err)
	content, err := os.ReadFile(ts.MkAbs(path))
	ts.Check(err)
	return fmt.Sprintf("%x %s %s", sha256.Sum256(content), info.ModTime(), info.Mode())
}

// remember FILE, unchanged FILE: bytes, time and mode of the file are still the
// same, and nothing has come into its directory.
func remember(ts *testscript.TestScript, _ bool, args []string) {
	// Old enough that a change now would show on any file system.
	past := time.Now().Add(-time.Hour)
	ts.Check(os.Chtimes(ts.MkAbs(args[0]), past, past))
	ts.Setenv("STATE", state(ts, args[0]))
	ts.Setenv("BESIDE", beside(ts, args[0]))
}

func unchanged(ts *testscript.TestScript, _ bool, args []string) {
	if now := state(ts, args[0]); now != ts.Getenv("STATE") {
		ts.Fatalf("%s was %s, is %s", args[0], ts.Getenv("STATE"), now)
	}
	if now := beside(ts, args[0]); now != ts.Getenv("BESIDE") {
		ts.Fatalf("beside %s were %s, are %s", args[0], ts.Getenv("BESIDE"), now)
	}
}

func beside(ts *testscript.TestScript, path string) string {
	entries, err := os.ReadDir(filepath.Dir(ts.MkAbs(path)))
	ts.Check(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
