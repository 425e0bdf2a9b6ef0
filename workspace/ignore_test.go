package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"checkpointdb"
)

// ignoring is the policy that leaves out what ignore files say and nothing else.
var ignoring = Policy{Patterns: []string{}, IgnoreFile: ".gitignore"}

func TestIgnoreFile(t *testing.T) {
	for name, c := range map[string]struct {
		lines   string
		ignored []string
	}{
		"name at every level":         {"a", []string{"a", "d/a", "d/e/a"}},
		"anchored":                    {"/a", []string{"a"}},
		"anchored by a slash within":  {"d/a", []string{"d/a"}},
		"directories only":            {"a/", nil},
		"directory with all it holds": {"d/", []string{"d/a", "d/b", "d/e/a"}},
		"taken back":                  {"*\n!/b\n!.gitignore", []string{"a", "d/a", "d/b", "d/e/a"}},
		"not beneath a directory":     {"d\n!d/a", []string{"d/a", "d/b", "d/e/a"}},
		"content, not the directory":  {"d/**\n!d/a", []string{"d/b", "d/e/a"}},
		"any directories between":     {"d/**/a", []string{"d/a", "d/e/a"}},
		"any directories before":      {"**/e", []string{"d/e/a"}},
		"other stars":                 {"d**/a", []string{"d/a"}},
		"comments and spaces":         {"# b\n\na \t\r\na  \r\n", []string{"a", "d/a", "d/e/a"}},
		"no pattern":                  {"[\n/\n!\nb\\", nil},
		"byte order mark":             {"\ufeffb", []string{"b", "d/b"}},
		"braces mean themselves":      {"{a,b}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			content := tree{"a": file("a"), "b": file("b"), "d/a": file("a"), "d/b": file("b"), "d/e/a": file("a"), ".gitignore": file(c.lines)}
			makeTree(t, root, content)
			var want []string
			for p := range content {
				if !slices.Contains(c.ignored, p) {
					want = append(want, p)
				}
			}
			slices.Sort(want)
			if got := filesOf(mustCapture(t, root, memBucket(t), &CaptureOptions{Policy: ignoring})); !slices.Equal(got, want) {
				t.Errorf("captured %q, want %q", got, want)
			}
		})
	}
}

// filesOf returns the paths of the files of a checkpoint.
func filesOf(c checkpointdb.Checkpoint) (paths []string) {
	for _, e := range c.Files {
		if e.Kind == checkpointdb.KindFile {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// Git is asked which files of a tree with ignore files are not ignored.
func TestIgnoreFilesAsGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skipf("no git to compare with: %v", err)
	}
	base := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"--git-dir", filepath.Join(base, "repository")}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull)
		out, err := cmd.Output()
		must(t, err)
		return string(out)
	}
	git("init", "--quiet", "--bare")
	bucket := memBucket(t)

	name := rapid.SampledFrom([]string{"a", "b", "ab", "a.c", "{a,b}", "#a", "!a", "a b", "[", "]a"})
	part := rapid.SampledFrom([]string{"a", "b", "ab", "*", "**", "***", "?", "??", "[ab]", "[!a]", "[^a]", "[a-b]*", "a*", "*b", "a?c", "*.c",
		"{a,b}", `\#a`, "#a", `\!a`, "!a", `\a`, "a b", `a\ b`, "[", `\[`, "", " ", `\ `, "]a"}) // and no a**, about which versions of git differ
	line := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"", "", "", "!", "/", "!/"}).Draw(t, "prefix") +
			strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), "/") +
			rapid.SampledFrom([]string{"", "", "", "/", " ", "  ", "/**", "\r", `\`}).Draw(t, "suffix")
	})
	rapid.Check(t, func(rt *rapid.T) {
		root, err := os.MkdirTemp(base, "tree")
		must(t, err)
		defer os.RemoveAll(root)
		for range rapid.IntRange(1, 10).Draw(rt, "files") {
			parts := rapid.SliceOfN(name, 1, 4).Draw(rt, "path")
			full := filepath.Join(root, filepath.Join(parts...))
			if os.MkdirAll(filepath.Dir(full), 0o777) == nil {
				_ = os.WriteFile(full, nil, 0o666) // where a directory is, it stays
			}
		}
		must(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
			if err != nil || !d.IsDir() || rapid.Bool().Draw(rt, "plain") {
				return err
			}
			lines := strings.Join(rapid.SliceOfN(line, 0, 4).Draw(rt, "lines"), "\n")
			return os.WriteFile(filepath.Join(p, ".gitignore"), []byte(lines), 0o666)
		}))
		want := strings.Split(strings.TrimSuffix(git("--work-tree", root, "-C", root, "ls-files", "-z", "--others", "--exclude-standard"), "\x00"), "\x00")
		slices.Sort(want)
		if want[0] == "" {
			want = nil
		}
		if got := filesOf(mustCapture(t, root, bucket, &CaptureOptions{Policy: ignoring})); !slices.Equal(got, want) {
			rt.Fatalf("captured (-git +capture):\n%s", gocmp.Diff(want, got))
		}
	})
}

func TestIgnoreFileLimits(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"a": file("a"), "d/b": file("b"), "d/.gitignore": link("../patterns"), "patterns": file("*")})
	// A link is not an ignore file, and may lead anywhere.
	if got := filesOf(mustCapture(t, root, bucket, &CaptureOptions{Policy: ignoring})); !slices.Equal(got, []string{"a", "d/b", "patterns"}) {
		t.Errorf("captured %q", got)
	}
	makeTree(t, root, tree{".gitignore": file(strings.Repeat("#", maxIgnoreFile+1))})
	_, err := Capture(t.Context(), root, bucket, &CaptureOptions{Policy: ignoring})
	checkError(t, err, ErrFileTooLarge, ".gitignore")

	for _, p := range []Policy{
		{IgnoreFile: "a/b"}, {IgnoreFile: ".."}, {Patterns: []string{"["}}, {Patterns: []string{"# no"}}, {Patterns: []string{""}},
		{Patterns: []string{"a\nb"}}, {MaxFileSize: -1}, {MaxTotalSize: -1},
	} {
		_, err := Capture(t.Context(), root, bucket, &CaptureOptions{Policy: p})
		checkError(t, err, checkpointdb.ErrInvalidArgument, "")
	}
}

// An ignore file comes from the workspace. What the program leaves out, it cannot
// take back; an Include of the program can take back what it leaves out.
func TestIgnoreFileCannotInclude(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{".env": file("secret"), ".gitignore": file("!.env\n*.log"), "x.log": file("x"), "y.log": file("y")})
	c := mustCapture(t, root, bucket, &CaptureOptions{
		Policy:  Policy{IgnoreFile: ".gitignore"},
		Include: func(p string, _ os.DirEntry) bool { return p == "x.log" },
	})
	if got := filesOf(c); !slices.Equal(got, []string{".gitignore", "x.log"}) {
		t.Errorf("captured %q", got)
	}
}
