package workspace

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"pgregory.net/rapid"

	"checkpointdb"
)

// withPolicy captures dir as a checkpoint that has its policy with it.
func withPolicy(t testing.TB, dir string, bucket *blob.Bucket, opts *CaptureOptions) (checkpointdb.Checkpoint, Captured) {
	t.Helper()
	captured, err := Capture(t.Context(), dir, bucket, opts)
	must(t, err)
	artifact, err := captured.Policy.Artifact(t.Context(), bucket, time.UnixMilli(1), nil)
	must(t, err)
	c := checkpointdb.Checkpoint{
		ID: "c", ThreadID: "t", CreatedAt: time.UnixMilli(1), Reason: checkpointdb.ReasonAutomatic,
		Files: captured.Files, Artifacts: []checkpointdb.Artifact{artifact},
	}
	must(t, c.Validate())
	return c, captured
}

func TestMaxTotalSize(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"a": file("12345"), "b": file("12345"), "c/d": file("123456"), "e": file("1"), "only/f": file("123")})
	policy := Policy{MaxTotalSize: 13}
	_, err := Capture(t.Context(), root, bucket, &CaptureOptions{Policy: policy})
	checkError(t, err, ErrTotalTooLarge, "c/d")
	for _, number := range []string{"6 bytes", "13"} {
		if !strings.Contains(err.Error(), number) {
			t.Errorf("error does not have %s: %v", number, err)
		}
	}
	if n := len(listBucket(t, bucket)); n != 0 {
		t.Errorf("%d blobs stored", n)
	}
	policy.SkipTooLarge = true
	captured, err := Capture(t.Context(), root, bucket, &CaptureOptions{Policy: policy})
	must(t, err)
	if diff := gocmp.Diff([]string{"a", "b", "c", "e", "only"}, entryPaths(captured.Files)); diff != "" {
		t.Errorf("captured (-want +got):\n%s", diff)
	}
	want := []Skipped{{"c/d", ErrTotalTooLarge, 6}, {"only/f", ErrTotalTooLarge, 3}}
	if diff := gocmp.Diff(want, captured.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	policy.MaxTotalSize = 20
	policy.SkipTooLarge = false
	mustCapture(t, root, bucket, &CaptureOptions{Policy: policy})
	policy.SkipTooLarge, policy.MaxFileSize = true, 5
	captured, err = Capture(t.Context(), root, bucket, &CaptureOptions{Policy: policy})
	must(t, err)
	if diff := gocmp.Diff([]Skipped{{"c/d", ErrFileTooLarge, 6}}, captured.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// A file that grows after it was listed does not get past the limits.
func TestLimitsHoldWhileFilesGrow(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		files  int
	}{
		"file":                 {Policy{MaxFileSize: 5, SkipTooLarge: true}, 1},
		"total":                {Policy{MaxTotalSize: 7, SkipTooLarge: true}, 1},
		"total that is enough": {Policy{MaxTotalSize: 12, SkipTooLarge: true}, 2}, // 1 + 10
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			makeTree(t, root, tree{"a": file("1"), "b": file("1")})
			grown := false
			captured, err := Capture(t.Context(), root, memBucket(t), &CaptureOptions{Policy: c.policy, hook: func(point, p string) {
				if point == "open" && p == "b" && !grown {
					grown = true
					must(t, appendTo(filepath.Join(root, "b"), strings.Repeat("2", 9)))
				}
			}})
			must(t, err)
			if len(captured.Files) != c.files || len(captured.Skipped) != 2-c.files {
				t.Errorf("captured %q, skipped %v", entryPaths(captured.Files), captured.Skipped)
			}
		})
	}
}

// What was outside when the checkpoint was made is outside for a rewind that is
// told nothing but the checkpoint.
func TestPolicyTravels(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	was := tree{
		"a": file("a"), ".gitignore": file("*.o\n"), "d/.gitignore": file("cache/\n"),
		"x.o": file("ignored"), "d/cache/y": file("ignored"), "secrets/key": file("left out"), "big": file("123456789"), "z": file("beyond the limit of all"),
	}
	makeTree(t, root, was)
	c, captured := withPolicy(t, root, bucket, &CaptureOptions{Policy: Policy{
		Patterns: []string{"/secrets"}, IgnoreFile: ".gitignore", MaxFileSize: 8, MaxTotalSize: 30, SkipTooLarge: true, SkipSpecial: true,
	}})
	if diff := gocmp.Diff([]string{".gitignore", "a", "d/.gitignore"}, entryPaths(c.Files)); diff != "" {
		t.Errorf("captured (-want +got):\n%s", diff)
	}
	got, found, err := PolicyOf(t.Context(), c, bucket)
	must(t, err)
	if diff := gocmp.Diff(captured.Policy, got); diff != "" || !found {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"big", "z"}, got.Skipped); diff != "" {
		t.Errorf("policy skipped (-want +got):\n%s", diff)
	}

	// Later: other ignore files, that no longer say what these did; more files.
	makeTree(t, root, tree{
		"a": file("changed"), ".gitignore": file("*.log\n"), "d/.gitignore": file(""), "new": file("new"), "z": file("small"),
		"new.log": file("ignored now"), "new.o": file("ignored then"), "big2": file("1234567890"), "node_modules": file("inside"),
	})
	report := mustRestore(t, bucket, c, root, &RestoreOptions{Rewind: true})
	if diff := gocmp.Diff([]string{"new", "node_modules"}, report.Removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	want := tree{"new.log": file("ignored now"), "new.o": file("ignored then"), "big2": file("1234567890"), "z": file("small")}
	for p, what := range was {
		if p != "z" {
			want[p] = what
		}
	}
	checkTree(t, root, want)

	// A policy that is given takes the place of that.
	mustRestore(t, bucket, c, root, &RestoreOptions{Rewind: true, Policy: &Policy{Patterns: []string{"d"}}})
	checkTree(t, root, tree{"a": was["a"], ".gitignore": was[".gitignore"], "d/.gitignore": was["d/.gitignore"], "d/cache/y": was["d/cache/y"]})
}

// Filters cannot be stored, so a rewind asks for them instead of taking for new
// what they left out.
func TestRewindWantsTheFiltersOfTheCapture(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	is := tree{"a": file("a"), "out": file("out")}
	makeTree(t, root, is)
	exclude := func(p string, _ fs.DirEntry) bool { return p == "out" }
	c, _ := withPolicy(t, root, bucket, &CaptureOptions{Exclude: exclude})
	_, err := Restore(t.Context(), bucket, c, root, &RestoreOptions{Rewind: true})
	checkError(t, err, ErrTargetRefused, root)
	mustRestore(t, bucket, c, root, &RestoreOptions{Rewind: true, Exclude: exclude})
	checkTree(t, root, is)
}

// A policy that cannot be had or understood keeps the restore from changing
// anything.
func TestRewindNeedsThePolicy(t *testing.T) {
	root, bucket := t.TempDir(), memBucket(t)
	makeTree(t, root, tree{"a": file("a"), "x.o": file("x")})
	good, captured := withPolicy(t, root, bucket, &CaptureOptions{Policy: Policy{Patterns: []string{"*.o"}}})
	must(t, os.Remove(filepath.Join(root, "a")))
	is := readTree(t, root)
	store := func(text string) checkpointdb.Checkpoint {
		c := good.Clone()
		a, err := PutArtifact(t.Context(), bucket, strings.NewReader(text), c.Artifacts[0], nil)
		must(t, err)
		c.Artifacts[0] = a
		return c
	}
	for text, code := range map[string]checkpointdb.Code{
		`{"patterns":["*.o"],"rule":"of a later version"}`: checkpointdb.ErrInvalidEntry,
		`{}`:                 checkpointdb.ErrInvalidEntry,
		`{"patterns":["["]}`: checkpointdb.ErrInvalidEntry,
		`[`:                  checkpointdb.ErrInvalidEntry,
	} {
		_, err := Restore(t.Context(), bucket, store(text), root, &RestoreOptions{Rewind: true})
		checkError(t, err, code, "")
		checkTree(t, root, is)
	}
	corrupt(t, bucket, good.Artifacts[0].BlobKey)
	_, err := Restore(t.Context(), bucket, good, root, &RestoreOptions{Rewind: true})
	checkError(t, err, checkpointdb.ErrBlobDamaged, "")
	must(t, bucket.Delete(t.Context(), string(good.Artifacts[0].BlobKey)))
	_, err = Restore(t.Context(), bucket, good, root, &RestoreOptions{Rewind: true})
	checkError(t, err, checkpointdb.ErrBlobMissing, "")
	checkTree(t, root, is)

	mustRestore(t, bucket, good, root, &RestoreOptions{Rewind: true, Policy: &captured.Policy})
	checkTree(t, root, tree{"a": file("a"), "x.o": file("x")})
}

func TestDefaultPatternsAreDefaultExclude(t *testing.T) {
	s, err := newScope(Policy{}, nil, nil)
	must(t, err)
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{".git", ".gitx", "git", "node_modules", ".env", ".env.local", ".environment", "env", "x\xff", ".env\xff", "ä"})
		p := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "path"), "/")
		d := dirEntry{rapid.Bool().Draw(t, "dir")}
		if s.leavesOut(p, d) != DefaultExclude(p, d) {
			t.Errorf("%q: the patterns say %v", p, s.leavesOut(p, d))
		}
	})
}

// dirEntry knows nothing but whether it is a directory.
type dirEntry struct{ dir bool }

func (d dirEntry) IsDir() bool                { return d.dir }
func (d dirEntry) Name() string               { panic("not asked for") }
func (d dirEntry) Type() fs.FileMode          { panic("not asked for") }
func (d dirEntry) Info() (fs.FileInfo, error) { panic("not asked for") }

// The ignore files of the directory are replaced in the middle of a rewind. When
// it is interrupted then and goes on, what they ignored is still outside.
func TestUnfinishedRewindRemembersIgnoreFiles(t *testing.T) {
	inner, root := memBucket(t), t.TempDir()
	bucket, spy := newSpy(t, inner)
	makeTree(t, root, tree{".gitignore": file("*.o\n"), "d/.gitignore": file("# nothing\n"), "z": file("z")})
	c, _ := withPolicy(t, root, inner, &CaptureOptions{Policy: Policy{IgnoreFile: ".gitignore"}})
	makeTree(t, root, tree{".gitignore": file("*.log\n"), "d/.gitignore": file("/\xff\nbuild\n"), "x.o": file("o"), "x.log": file("log"), "d/build/y": file("y"), "new": file("new"), "z": file("changed")})
	want := tree{".gitignore": file("*.o\n"), "d/.gitignore": file("# nothing\n"), "z": file("z"), "x.o": file("o"), "x.log": file("log"), "d/build/y": file("y")}
	is := readTree(t, root)
	interrupted := 0
	for n := 1; ; n++ {
		target := filepath.Join(t.TempDir(), "target")
		makeTree(t, target, is)
		spy.reset(n)
		_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true})
		if spy.failed == "" {
			must(t, err)
			checkTree(t, target, want)
			break
		}
		if checkpointdb.CodeOf(err) == ErrRestoreIncomplete {
			interrupted++
			// It goes on twice, and the first time is interrupted too.
			makeTree(t, target, tree{"z": file("changed again")})
			for n := 1; ; n++ {
				spy.reset(n)
				_, err = Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true})
				if checkpointdb.CodeOf(err) == ErrRestoreIncomplete {
					break
				}
				if err == nil {
					t.Fatal("the second one was not interrupted")
				}
			}
			spy.reset(0)
			mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
			checkTree(t, target, want)
		}
	}
	if interrupted == 0 {
		t.Error("never interrupted")
	}
}
