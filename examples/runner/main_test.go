package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/workspace"

	"gocloud.dev/blob"
)

// asRunner makes this test binary the runner, and it stays so for what the
// runner starts. So the tests run real processes, under the race detector when
// that is on, and need no second build.
const asRunner = "TEST_BINARY_IS_RUNNER"

func TestMain(m *testing.M) {
	if os.Getenv(asRunner) != "" {
		main()
	}
	os.Exit(m.Run())
}

// site is a place with everything that a runner needs.
type site struct {
	t   *testing.T
	dir string
}

func newSite(t *testing.T) *site { return &site{t, t.TempDir()} }

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// command returns the runner as a command in the site's directory, where the
// temporary files of a story go as well.
func (s *site) command(args ...string) *exec.Cmd {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), asRunner+"=1", "TMPDIR="+s.dir, "TMP="+s.dir,
		"GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0") // else the race detector adds a second to each process
	return cmd
}

// flags are those of a thread called main.
func flags(more ...string) []string {
	return append([]string{"-db", "store.db", "-blobs", "blobs", "-workspace", "work", "-thread", "main"}, more...)
}

// agent returns the arguments that run a scene of the story's agent.
func (s *site) agent(scene string) []string {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	return flags("--", self, "agent", scene)
}

// run runs the runner and wants an exit code.
func (s *site) run(want int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	cmd := s.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		s.t.Fatalf("runner %q: exit code %d, want %d\n%s%s", args, got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

// store opens the store in this process, and checks it at the end.
func (s *site) store(use func(context.Context, *checkpointdb.Store)) {
	s.t.Helper()
	store, err := checkpointdb.Open(s.path("store.db"), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer store.Close()
	use(s.t.Context(), store)
	if err := store.Check(s.t.Context()); err != nil {
		s.t.Error(err)
	}
}

func (s *site) bucket() *blob.Bucket {
	s.t.Helper()
	b, err := buckets.Open(s.t.Context(), s.path("blobs"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { b.Close() })
	return b
}

// wantHead wants a head, "" for none, and that the lease is free.
func (s *site) wantHead(want checkpointdb.CheckpointID) {
	s.t.Helper()
	s.store(func(ctx context.Context, store *checkpointdb.Store) {
		if got, err := store.Head(ctx, "main"); err != nil || got != want {
			s.t.Errorf("head is %q, %v, want %q", got, err, want)
		}
		lease, err := store.AcquireWriter(ctx, "main")
		if err != nil {
			s.t.Errorf("the lease is not free: %v", err)
			return
		}
		if err := store.Release(ctx, lease.Writer); err != nil {
			s.t.Error(err)
		}
	})
}

func (s *site) tree(name string) tree {
	s.t.Helper()
	got, err := readTree(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o777); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name), []byte(text), 0o666); err != nil {
		s.t.Fatal(err)
	}
}

// claims is how many the story makes.
const claims = 23

func TestStory(t *testing.T) {
	s := newSite(t)
	first, _ := s.run(0)
	if !strings.HasSuffix(first, "\nThat was all, and all of it was true.\n") || strings.Count(first, "   ok: ") != claims {
		t.Errorf("not the whole story:\n%s", first)
	}
	if left, _ := os.ReadDir(s.dir); len(left) > 0 {
		t.Errorf("the story left %v", left)
	}
	// It is the same each time, the time aside.
	second, _ := s.run(0)
	times := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	if times.ReplaceAllString(first, "") != times.ReplaceAllString(second, "") {
		t.Errorf("another story at the second time:\n%s\n%s", first, second)
	}
}

// project returns a real project of over 1,000 files, of which this module's
// build needs a part, so that it is in the module cache.
func project(t *testing.T) string {
	t.Helper()
	const module = "google.golang.org/grpc"
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(dir))
	if err != nil || root == "" {
		t.Skipf("no project to run on: %s is not in the module cache (%v)", module, err)
	}
	files := 0
	if err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if files <= 1000 {
		t.Skipf("no project to run on: %s has become small, %d files", module, files)
	}
	return root
}

func TestStoryOnProject(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stdout, _ := s.run(0, "story", project(t))
	if n := strings.Count(stdout, "   ok: "); n != claims {
		t.Errorf("%d claims:\n%s", n, stdout)
	}
}

// TestRestoreProject takes a real project with everything in it that a
// checkpoint keeps through several turns.
func TestRestoreProject(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := os.CopyFS(s.path("work"), os.DirFS(project(t))); err != nil {
		t.Fatal(err)
	}
	trees := map[string]tree{}
	for _, scene := range []string{"build", "correct", "wreck", "build"} {
		s.run(0, s.agent(scene)...)
		s.store(func(ctx context.Context, store *checkpointdb.Store) {
			id, err := store.Head(ctx, "main")
			if err != nil {
				t.Fatal(err)
			}
			trees[string(id)] = s.tree("work")
		})
	}
	if len(trees) != 4 {
		t.Fatalf("%d checkpoints", len(trees))
	}
	for id, want := range trees {
		s.run(0, "-db", "store.db", "-blobs", "blobs", "-workspace", id, "-thread", "main", "restore", id)
		if got := s.tree(id); !maps.Equal(got, want) {
			t.Errorf("restored %s: %d entries, want %d", id, len(got), len(want))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(trees)) {
		s.run(0, flags("rewind", id)...)
		if !maps.Equal(s.tree("work"), trees[id]) {
			t.Errorf("rewound to %s: not what was captured", id)
		}
	}
	if n := len(trees["main@1"]); n < 1000 {
		t.Errorf("only %d entries", n)
	}
}

// TestReadTree changes a tree in every way that the comparison must see.
func TestReadTree(t *testing.T) {
	for name, change := range map[string]func(s *site) error{
		"content":        func(s *site) error { return os.WriteFile(s.path("work/a/file"), []byte("b"), 0) },
		"executable":     func(s *site) error { return os.Chmod(s.path("work/a/file"), 0o755) },
		"name":           func(s *site) error { return os.Rename(s.path("work/a/file"), s.path("work/a/other")) },
		"new file":       func(s *site) error { return os.WriteFile(s.path("work/new"), nil, 0o666) },
		"empty dir gone": func(s *site) error { return os.Remove(s.path("work/empty")) },
		"empty dir new":  func(s *site) error { return os.Mkdir(s.path("work/empty2"), 0o777) },
		"file for dir": func(s *site) error {
			return errors.Join(os.Remove(s.path("work/empty")), os.WriteFile(s.path("work/empty"), nil, 0o666))
		},
		"link target": func(s *site) error {
			return errors.Join(os.Remove(s.path("work/link")), os.Symlink("a/other", s.path("work/link")))
		},
		"link for file": func(s *site) error {
			return errors.Join(os.Remove(s.path("work/a/file")), os.Symlink("../empty", s.path("work/a/file")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.write("work/a/file", "a")
			if err := errors.Join(os.Mkdir(s.path("work/empty"), 0o777), os.Symlink("a/file", s.path("work/link"))); err != nil {
				t.Skip("no links here:", err)
			}
			before := s.tree("work")
			if !maps.Equal(before, s.tree("work")) || len(before) != 4 {
				t.Fatal(before)
			}
			if err := change(s); err != nil {
				t.Fatal(err)
			}
			if name == "executable" && !isExecutable(t, s.path("work/a/file")) {
				t.Skip("no executable bits here")
			}
			if after := s.tree("work"); maps.Equal(before, after) {
				t.Errorf("not seen: %v", after)
			}
		})
	}
}

func isExecutable(t *testing.T, path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()&0o100 != 0
}

// TestUntrueStory: what is not true ends the story with an error.
func TestUntrueStory(t *testing.T) {
	s := &story{step: 7}
	s.claim(true, "yes")
	if s.err != nil {
		t.Error(s.err)
	}
	s.claim(false, "the moon is %s", "square")
	s.claim(true, "later claims don't help")
	if s.err == nil || s.err.Error() != "step 7: not true: the moon is square" || report(s.err) != 1 {
		t.Error(s.err)
	}
}

func TestTurn(t *testing.T) {
	s := newSite(t)
	stdout, stderr := s.run(0, s.agent("build")...)
	if !strings.HasPrefix(stdout, "I made") || strings.Contains(stdout, "checkpoint") || !strings.Contains(stderr, `checkpoint "main@1"`) {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	s.wantHead("main@1") // and takes lease 2
	s.run(0, s.agent("correct")...)
	s.store(func(ctx context.Context, store *checkpointdb.Store) {
		c, err := store.Get(ctx, "main@3")
		if err != nil {
			t.Fatal(err)
		}
		var roles []string
		for _, m := range c.Conversation {
			var message struct {
				Role    string
				Command []string
				Content string
			}
			if err := json.Unmarshal(m, &message); err != nil {
				t.Fatal(err)
			}
			roles = append(roles, message.Role)
			if message.Role == "user" && len(message.Command) != 3 || message.Role == "assistant" && !strings.HasPrefix(message.Content, "I ") {
				t.Errorf("message %s", m)
			}
		}
		if !slices.Equal(roles, []string{"user", "assistant", "user", "assistant"}) || c.ParentCheckpointID != "main@1" {
			t.Errorf("%v %q", roles, c.ParentCheckpointID)
		}
	})
}

func TestFailedCommand(t *testing.T) {
	s := newSite(t)
	_, stderr := s.run(3, s.agent("crash")...)
	if !strings.Contains(stderr, "no checkpoint") || strings.Contains(stderr, "usage") {
		t.Error(stderr)
	}
	s.wantHead("")
	s.run(0, s.agent("build")...)
	s.run(3, s.agent("crash")...)
	s.wantHead("main@3")
	_, stderr = s.run(1, flags("--", "no such program")...)
	if !strings.Contains(stderr, `"no such program"`) {
		t.Error(stderr)
	}
	s.wantHead("main@3")
}

// TestRestoreRefuses: restore never replaces anything, and a thread has only its
// own checkpoints.
func TestRestoreRefuses(t *testing.T) {
	s := newSite(t)
	s.run(0, s.agent("build")...)
	s.run(0, s.agent("wreck")...)
	before := s.tree("work")
	for _, c := range []struct {
		args []string
		want string
	}{
		{flags("restore", "main@1"), string(workspace.ErrTargetNotEmpty)},
		{flags("restore", "main@7"), string(checkpointdb.ErrCheckpointNotFound)},
		{flags("-thread", "other", "rewind", "main@1"), `"main@1" is of thread "main", not of "other"`},
		{flags("-thread", "other", "rewind"), `thread "other" has no checkpoint`},
		{flags("-thread", "other", "fork", "third"), `thread "other" has no checkpoint`},
		{flags("fork", "main"), string(checkpointdb.ErrForkSourceThreadMismatch)},
	} {
		if _, stderr := s.run(1, c.args...); !strings.Contains(stderr, c.want) {
			t.Errorf("%q: %s", c.args, stderr)
		}
	}
	if !maps.Equal(before, s.tree("work")) {
		t.Error("the workspace changed")
	}
	s.wantHead("main@2")
}

// TestUnfinishedRestore: a restore into the new workspace of a thread was cut
// short. The next turn finishes it and works on the whole head.
func TestUnfinishedRestore(t *testing.T) {
	s := newSite(t)
	s.run(0, s.agent("build")...)
	want := s.tree("work")
	if err := os.RemoveAll(s.path("work")); err != nil {
		t.Fatal(err)
	}
	s.write("work/site/index.html", "<h1>Helo</h1>\n")
	s.write("work/.checkpointdb-restore/state.json", `{"checkpointId":"main@1"}`)
	if _, unfinished, err := workspace.UnfinishedRestore(s.path("work")); !unfinished || err != nil {
		t.Fatalf("the marker of an unfinished restore looks otherwise now: %v", err)
	}
	s.run(0, s.agent("correct")...)
	s.run(0, flags("undo")...)
	if got := s.tree("work"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestUndoNeedsParent: where there is nothing to go back to, all stays.
func TestUndoNeedsParent(t *testing.T) {
	s := newSite(t)
	s.run(0, s.agent("build")...)
	before := s.tree("work")
	_, stderr := s.run(1, flags("undo")...)
	if !strings.Contains(stderr, `thread "main" has no checkpoint to go back to`) {
		t.Error(stderr)
	}
	s.wantHead("main@1")
	s.run(0, s.agent("wreck")...)
	s.run(0, flags("prune", "1")...)
	after := s.tree("work")
	_, stderr = s.run(1, flags("undo")...)
	if !strings.Contains(stderr, string(checkpointdb.ErrCheckpointNotFound)) {
		t.Error(stderr)
	}
	s.wantHead("main@4")
	if maps.Equal(before, after) || !maps.Equal(after, s.tree("work")) {
		t.Error("the workspace changed")
	}
	stdout, _ := s.run(0, flags("log")...)
	if !strings.HasSuffix(stdout, "\nwhat came before was pruned\n") {
		t.Error(stdout)
	}
}

// TestHeadIsNotTheLast is case 42: neither times nor ids tell which checkpoint
// is the newest.
func TestHeadIsNotTheLast(t *testing.T) {
	s := newSite(t)
	s.store(func(ctx context.Context, store *checkpointdb.Store) {
		err := checkpointdb.WithLease(ctx, store, "main", func(ctx context.Context, w checkpointdb.Writer) error {
			var parent checkpointdb.CheckpointID
			for i, id := range []checkpointdb.CheckpointID{"9", "10", "11"} {
				s.write("work/which", string(id))
				captured, err := workspace.Capture(ctx, s.path("work"), s.bucket(), nil)
				if err != nil {
					return err
				}
				if err := store.Append(ctx, w, checkpointdb.Checkpoint{
					ID: id, ThreadID: "main", ParentCheckpointID: parent, Reason: checkpointdb.ReasonNamed,
					CreatedAt: time.UnixMilli([]int64{3, 2, 2}[i]), Files: captured.Files,
				}, parent); err != nil {
					return err
				}
				parent = id
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	inSite := func(dir, thread string) []string {
		return []string{"-db", "store.db", "-blobs", "blobs", "-workspace", dir, "-thread", thread}
	}
	stdout, _ := s.run(0, flags("log")...)
	var ids []string
	for line := range strings.Lines(stdout) {
		ids = append(ids, strings.Fields(line)[0])
	}
	if !slices.Equal(ids, []string{`"11"`, `"10"`, `"9"`}) {
		t.Errorf("log: %q", ids)
	}
	s.run(0, append(inSite("new", "main"), "restore")...)
	s.run(0, flags("fork", "side")...)
	s.run(0, append(inSite("fork", "side"), "restore")...)
	s.run(0, flags("prune", "1")...)
	s.run(0, append(inSite("pruned", "main"), "restore")...)
	for _, dir := range []string{"new", "fork", "pruned"} {
		if got, err := os.ReadFile(s.path(dir + "/which")); string(got) != "11" {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
	s.wantHead("11")
}

// TestStoreInsideWorkspace is case 37: a capture would swallow the store.
func TestStoreInsideWorkspace(t *testing.T) {
	s := newSite(t)
	if err := os.MkdirAll(s.path("work/sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	linked := os.Symlink(s.path("work/sub"), s.path("link")) == nil
	for _, c := range []struct {
		db, blobs, work string
		links           bool
	}{
		{"work/store.db", "blobs", "work", false},
		{"work/sub/store.db", "blobs", "work/../work", false},
		{"store.db", "work", "work", false},
		{"store.db", "work/new/blobs", "work", false},
		{"store.db", "file://./work/blobs", "work", false},
		{"store.db", "file://" + filepath.ToSlash(s.path("work/blobs")), s.path("work"), false},
		{"link/store.db", "blobs", "work", true},
		{"store.db", "link/blobs", "work", true},
		{"store.db", "blobs", ".", false},
	} {
		if c.links && !linked {
			continue
		}
		for _, verb := range [][]string{{"--", "true"}, {"rewind"}} {
			_, stderr := s.run(2, append([]string{"-db", c.db, "-blobs", c.blobs, "-workspace", c.work, "-thread", "main"}, verb...)...)
			if !strings.Contains(stderr, "is inside the workspace") {
				t.Errorf("%v: %s", c, stderr)
			}
		}
	}
	if got := s.tree("work"); len(got) != 1 {
		t.Errorf("something was made: %v", got)
	}
	for _, c := range []struct{ url, want string }{
		{"blobs", "blobs"}, {"/var/blobs", "/var/blobs"}, {`C:\blobs`, `C:\blobs`}, {"file:///var/b?prefix=x/", "/var/b"},
		{"file://localhost/var/b", "/var/b"}, {"file://./b", "./b"}, {"s3://bucket/x", ""},
	} {
		if got := filepath.ToSlash(directoryOf(c.url)); got != filepath.ToSlash(c.want) {
			t.Errorf("directoryOf(%q) = %q", c.url, got)
		}
	}
}

// TestWrongCalls: each gets exit code 2, the usage on stderr, and makes nothing.
func TestWrongCalls(t *testing.T) {
	for _, args := range [][]string{
		{"log"}, {"dance"}, {"story"}, {"-db", "store.db"}, {"-colour"}, {"--"}, flags("--"), flags(), flags("fork"),
		flags("log", "--", "true"), flags("prune", "1", "2"), {"agent", "sleep"},
		{"-db", "store.db", "-blobs", "mem://", "-workspace", "work", "-thread", "main", "--", "true"},
		{"-db", "store.db", "-blobs", "blobs", "-thread", "main", "--", "true"},
	} {
		s := newSite(t)
		stdout, stderr := s.run(2, args...)
		if stdout != "" || !strings.Contains(stderr, "\nusage:\n") {
			t.Errorf("%q: stdout %q, stderr %q", args, stdout, stderr)
		}
		if left, _ := os.ReadDir(s.dir); len(left) > 0 {
			t.Errorf("%q left %v", args, left)
		}
	}
	s := newSite(t)
	s.run(0, s.agent("build")...)
	s.run(2, flags("prune", "few")...)
	s.run(2, flags("sweep", "soon")...)
	s.wantHead("main@1")
	stdout, stderr := s.run(0, "-h")
	if stdout != usage || stderr != "" {
		t.Errorf("-h: stdout %q, stderr %q", stdout, stderr)
	}
}

// TestLookingMakesNothing: only a run may make a store.
func TestLookingMakesNothing(t *testing.T) {
	for _, words := range [][]string{{"log"}, {"undo"}, {"fork", "x"}, {"restore"}, {"rewind", "x"}, {"prune", "1"}, {"sweep"}} {
		s := newSite(t)
		_, stderr := s.run(1, flags(words...)...)
		if !strings.Contains(stderr, "store.db") {
			t.Errorf("%q: %s", words, stderr)
		}
		if left, _ := os.ReadDir(s.dir); len(left) > 0 {
			t.Errorf("%q left %v", words, left)
		}
	}
}

// TestHostileNames: names come from sandboxes and may carry commands to a
// terminal.
func TestHostileNames(t *testing.T) {
	s := newSite(t)
	const evil = "a\x1b]52;c;\x07\r\nb\u202e"
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-db", "store.db", "-blobs", "blobs", "-workspace", "work", "-thread", evil}
	s.run(0, append(args, "--", self, "agent", "build")...)
	s.run(3, append(args, "--", self, "agent", "crash")...)
	for _, words := range [][]string{{"log"}, {"fork", evil + "2"}, {"rewind"}, {"restore", "x" + evil}, {"prune", "1"}, {"undo"}, {"dance" + evil}} {
		cmd := s.command(append(slices.Clone(args), words...)...)
		output, _ := cmd.CombinedOutput()
		if i := bytes.IndexFunc(output, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f || r == 0x202e }); i >= 0 {
			t.Errorf("%q: raw control character at %d of %q", words, i, output)
		}
	}
}
