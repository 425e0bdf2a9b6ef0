package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"checkpointdb"
	"checkpointdb/internal/faultblob"
)

func TestRestoreIntoNothing(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		root := t.TempDir()
		makeTree(t, root, mixed)
		c := mustCapture(t, root, bucket, nil)
		target := filepath.Join(t.TempDir(), "not/there")
		report := mustRestore(t, bucket, c, target, nil)
		checkTree(t, target, mixed)
		if len(report.Written) != len(c.Files) || report.Replaced != nil || report.Removed != nil || report.Unchanged != 0 {
			t.Errorf("report: %+v", report)
		}
		again := mustCapture(t, target, bucket, nil)
		if diff := gocmp.Diff(c.Files, again.Files); diff != "" {
			t.Errorf("captured again (-want +got):\n%s", diff)
		}
	})
}

// A second restore finds nothing to do and needs no permission for it.
func TestRestoreAgainTouchesNothing(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	c := manifest(t, bucket, mixed)
	mustRestore(t, bucket, c, target, nil)
	before, err := os.Stat(filepath.Join(target, "README.md"))
	must(t, err)
	report := mustRestore(t, bucket, c, target, nil)
	if report.Unchanged != len(c.Files) || report.Written != nil || report.Replaced != nil || report.Bytes != 0 {
		t.Errorf("report: %+v", report)
	}
	after, err := os.Stat(filepath.Join(target, "README.md"))
	must(t, err)
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("an equal file was written again")
	}
}

func TestRewind(t *testing.T) {
	was := tree{
		"same":             file("same"),
		"content":          file("old"),
		"size":             file("short"),
		"becomes-script":   script("#!"),
		"becomes-file":     file("#!"),
		"file-to-dir":      dir,
		"file-to-dir/a":    file("a"),
		"dir-to-file":      file("now a file"),
		"file-to-link":     link("same"),
		"link-to-file":     file("no link"),
		"dir-to-link":      link("same"),
		"link-to-dir/b":    file("b"),
		"retargeted":       link("here"),
		"gone":             file("comes back"),
		"gone-dir/x/y":     file("comes back too"),
		"empty":            dir,
		"was-empty":        dir,
		"gone-link":        link("same"),
		"kept-link":        link("same"),
		"dir/kept":         file("kept"),
		"sub/.env-is-file": file("captured under other excludes"),
	}
	is := tree{
		"same":                   file("same"),
		"content":                file("new"),
		"size":                   file("longer"),
		"becomes-script":         file("#!"),
		"becomes-file":           script("#!"),
		"file-to-dir":            file("a"),
		"dir-to-file/a/b":        file("a"),
		"dir-to-file/e":          dir,
		"file-to-link":           file("same"),
		"link-to-file":           link("same"),
		"dir-to-link/x":          file("x"),
		"link-to-dir":            link("dir"),
		"retargeted":             link("there"),
		"was-empty/now-full":     file("new"),
		"kept-link":              link("same"),
		"dir/kept":               file("kept"),
		"dir/new":                file("new"),
		"new-dir/new":            file("new"),
		"new-link":               link("nowhere"),
		".git/config":            file("mine"),
		"sub/.env":               file("mine"),
		"sub/other":              file("not mine"),
		"removed/node_modules/x": file("mine"),
		"removed/y":              file("not mine"),
	}
	want := tree{
		".git/config":            file("mine"),
		"sub/.env":               file("mine"),
		"removed/node_modules/x": file("mine"),
	}
	for p, what := range was {
		want[p] = what
	}
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		target := t.TempDir()
		c := manifest(t, bucket, was)
		makeTree(t, target, is)

		_, err := Restore(t.Context(), bucket, c, target, nil)
		checkError(t, err, ErrTargetNotEmpty, "")
		checkTree(t, target, is)

		plan := mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true, DryRun: true})
		checkTree(t, target, is)

		report := mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
		checkTree(t, target, want)
		if diff := gocmp.Diff(plan, report); diff != "" {
			t.Errorf("dry run and real run differ (-dry +real):\n%s", diff)
		}
		wantReport := Report{
			Written: []string{"empty", "file-to-dir/a", "gone", "gone-dir/x/y", "gone-link", "link-to-dir/b", "sub/.env-is-file"},
			Replaced: []string{"becomes-file", "becomes-script", "content", "dir-to-file", "dir-to-link", "file-to-dir", "file-to-link",
				"link-to-file", "retargeted", "size"},
			Removed: []string{"dir-to-file/a", "dir-to-file/a/b", "dir-to-file/e", "dir-to-link/x", "dir/new", "link-to-dir", "new-dir", "new-dir/new", "new-link",
				"removed/y", "sub/other", "was-empty/now-full"},
			Unchanged: 4,
			Bytes:     report.Bytes,
		}
		if diff := gocmp.Diff(wantReport, report); diff != "" {
			t.Errorf("report differs (-want +got):\n%s", diff)
		}
		if again := mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true}); again.Unchanged != len(c.Files) || again.Removed != nil {
			t.Errorf("second rewind: %+v", again)
		}
	})
}

// Whatever is different is a reason not to start, unless Rewind is set.
func TestRestoreWithoutRewindReplacesNothing(t *testing.T) {
	for name, c := range map[string]struct{ is, was string }{
		"content":        {file("is"), file("ws")},
		"size":           {file("is"), file("was")},
		"executable bit": {file("same"), script("same")},
		"link target":    {link("is"), link("was")},
		"file to link":   {file("is"), link("was")},
		"link to file":   {link("is"), file("was")},
		"file to dir":    {file("is"), dir},
		"dir to file":    {dir, file("was")},
		"dir to link":    {dir, link("was")},
		"link to dir":    {link("is"), dir},
	} {
		t.Run(name, func(t *testing.T) {
			bucket, target := memBucket(t), t.TempDir()
			makeTree(t, target, tree{"x": c.is})
			_, err := Restore(t.Context(), bucket, manifest(t, bucket, tree{"x": c.was, "y": file("y")}), target, nil)
			checkError(t, err, ErrTargetNotEmpty, "x")
			checkTree(t, target, tree{"x": c.is})
		})
	}
}

// What the excludes cover is in the way of nothing that a rewind may do.
func TestRewindNeverRemovesExcluded(t *testing.T) {
	for name, c := range map[string]struct {
		is, was tree
		path    string
	}{
		"directory of excluded files becomes a file": {tree{"d/x": file("x"), "d/sub/.env": file("secret")}, tree{"d": file("d")}, "d"},
		"directory of excluded files becomes a link": {tree{"d/.git/config": file("c")}, tree{"d": link("d")}, "d"},
		"excluded directory becomes a file":          {tree{"node_modules/x": file("x")}, tree{"node_modules": file("n")}, "node_modules"},
	} {
		t.Run(name, func(t *testing.T) {
			bucket, target := memBucket(t), t.TempDir()
			makeTree(t, target, c.is)
			_, err := Restore(t.Context(), bucket, manifest(t, bucket, c.was), target, &RestoreOptions{Rewind: true})
			checkError(t, err, ErrTargetRefused, c.path)
			checkTree(t, target, c.is)
		})
	}
	// A checkpoint may have been captured with other excludes: it is restored as
	// it is, and what lies beside it stays.
	bucket, target := memBucket(t), t.TempDir()
	makeTree(t, target, tree{"node_modules/mine": file("mine"), "node_modules/both": file("mine"), "x": file("x")})
	c := manifest(t, bucket, tree{"node_modules/both": file("theirs"), "node_modules/sub/theirs": file("theirs")})
	mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
	checkTree(t, target, tree{"node_modules/mine": file("mine"), "node_modules/both": file("theirs"), "node_modules/sub/theirs": file("theirs")})
}

func TestRewindExcludeAndInclude(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	makeTree(t, target, tree{".env": file("1"), ".env.example": file("2"), "logs/a": file("3"), "x": file("4")})
	exclude := func(p string, d fs.DirEntry) bool { return DefaultExclude(p, d) || p == "logs" }
	include := func(p string, d fs.DirEntry) bool { return p == ".env.example" }
	mustRestore(t, bucket, checkpointdb.Checkpoint{ID: "c"}, target, &RestoreOptions{Rewind: true, Exclude: exclude, Include: include})
	checkTree(t, target, tree{".env": file("1"), "logs/a": file("3")})
}

// Every problem of manifest and bucket is found before the first change.
func TestRestoreChecksBeforeItChanges(t *testing.T) {
	e := func(p, content string) checkpointdb.Entry {
		return checkpointdb.Entry{Path: p, Kind: checkpointdb.KindFile, BlobKey: keyOf(content), Size: int64(len(content))}
	}
	sized := func(p, content string, size int64) checkpointdb.Entry {
		entry := e(p, content)
		entry.Size = size
		return entry
	}
	for name, c := range map[string]struct {
		files []checkpointdb.Entry
		code  checkpointdb.Code
		path  string
	}{
		"path leaves the root":  {[]checkpointdb.Entry{e("../x", "a")}, checkpointdb.ErrInvalidEntry, "../x"},
		"link and file beneath": {[]checkpointdb.Entry{{Path: "l", Kind: checkpointdb.KindSymlink, Target: ".."}, e("l/z", "a")}, checkpointdb.ErrInvalidEntry, "l/z"},
		"one path twice":        {[]checkpointdb.Entry{{Path: "x", Kind: checkpointdb.KindSymlink, Target: "/outside"}, e("x", "a")}, checkpointdb.ErrInvalidEntry, "x"},
		"path of the marker":    {[]checkpointdb.Entry{e(markerDir+"/state.json", "a")}, checkpointdb.ErrInvalidEntry, markerDir + "/state.json"},
		"path of the marker in other case": {[]checkpointdb.Entry{e(strings.ToUpper(markerDir), "a")},
			checkpointdb.ErrInvalidEntry, strings.ToUpper(markerDir)},
		"missing blob":                       {[]checkpointdb.Entry{e("there", "a"), e("m1", "missing"), e("m2", "missing too")}, checkpointdb.ErrBlobMissing, "m2"},
		"blob of another size":               {[]checkpointdb.Entry{e("there", "a"), sized("short", "a", 2)}, checkpointdb.ErrBlobDamaged, "short"},
		"one blob and two sizes":             {[]checkpointdb.Entry{e("there", "a"), sized("zero", "a", 0)}, checkpointdb.ErrBlobDamaged, "zero"},
		"damaged and missing, first by path": {[]checkpointdb.Entry{sized("a", "a", 2), e("b", "missing")}, checkpointdb.ErrBlobDamaged, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
				manifest(t, bucket, tree{"a": file("a")})
				is := tree{"old": file("old"), "there": file("other")}
				target, fresh := t.TempDir(), filepath.Join(t.TempDir(), "fresh")
				makeTree(t, target, is)
				cp := checkpointdb.Checkpoint{ID: "c", Files: c.files}
				for _, dryRun := range []bool{true, false} {
					_, err := Restore(t.Context(), bucket, cp, target, &RestoreOptions{Rewind: true, DryRun: dryRun})
					checkError(t, err, c.code, c.path)
					checkTree(t, target, is)
					_, err = Restore(t.Context(), bucket, cp, fresh, &RestoreOptions{DryRun: dryRun})
					checkError(t, err, c.code, c.path)
					if _, err := os.Lstat(fresh); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("the target was made: %v", err)
					}
				}
			})
		})
	}
}

func TestRestoreListsEveryMissingBlob(t *testing.T) {
	c := checkpointdb.Checkpoint{ID: "c"}
	for i := range 250 {
		c.Files = append(c.Files, checkpointdb.Entry{Path: fmt.Sprintf("f%03d", i), Kind: checkpointdb.KindFile, BlobKey: keyOf(fmt.Sprint(i)), Size: 1})
	}
	_, err := Restore(t.Context(), memBucket(t), c, t.TempDir(), nil)
	checkError(t, err, checkpointdb.ErrBlobMissing, "")
	incomplete, ok := errors.AsType[*IncompleteError](err)
	if !ok || incomplete.Count != 250 || len(incomplete.Failed) != maxListed || incomplete.CheckpointID != "c" {
		t.Fatalf("error: %v", err)
	}
	if !strings.Contains(err.Error(), "and 150 more") {
		t.Errorf("error does not say how many more: %v", err)
	}
	missing, ok := errors.AsType[*checkpointdb.BlobError](incomplete.Failed[0])
	if !ok || missing.CheckpointID != "c" || missing.Path != incomplete.Failed[0].Path {
		t.Errorf("first failure: %v", incomplete.Failed[0])
	}
}

// A blob with the right size and wrong bytes never becomes a file, and the old
// file stays.
func TestRestoreDamagedBlob(t *testing.T) {
	for _, size := range []int{1, 1000, 3 * holeSize, 3*holeSize + 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
				content := strings.Repeat("x", size)
				c := manifest(t, bucket, tree{"bad": file(content), "good": file("good"), "z/good": file("good too")})
				corrupt(t, bucket, keyOf(content))
				target := t.TempDir()
				makeTree(t, target, tree{"bad": file("old"), "extra": file("extra")})
				_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true})
				checkError(t, err, ErrRestoreIncomplete, "bad")
				checkError(t, err, checkpointdb.ErrBlobDamaged, "bad")
				checkTree(t, target, tree{
					"bad": file("old"), "good": file("good"), "z/good": file("good too"),
					stateName: file(`{"checkpointId":"c"}`),
				})
				id, found, err := UnfinishedRestore(target)
				if err != nil || !found || id != "c" {
					t.Errorf("UnfinishedRestore: %q %v %v", id, found, err)
				}
				// Repaired, it is finished.
				c = manifest(t, bucket, tree{"bad": file(content), "good": file("good"), "z/good": file("good too")})
				mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
				checkTree(t, target, tree{"bad": file(content), "good": file("good"), "z/good": file("good too")})
			})
		})
	}
}

// A manifest may claim that a digest belongs to an empty file.
func TestRestoreWrongDigestOfEmptyFile(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	key := keyOf("not empty")
	must(t, bucket.WriteAll(t.Context(), string(key), nil, nil))
	c := checkpointdb.Checkpoint{ID: "c", Files: []checkpointdb.Entry{{Path: "f", Kind: checkpointdb.KindFile, BlobKey: key}}}
	_, err := Restore(t.Context(), bucket, c, target, nil)
	checkError(t, err, checkpointdb.ErrBlobDamaged, "f")
}

func TestRestoreInvalidArguments(t *testing.T) {
	bucket := memBucket(t)
	_, err := Restore(t.Context(), bucket, checkpointdb.Checkpoint{}, t.TempDir(), nil)
	checkError(t, err, checkpointdb.ErrInvalidID, "")
	_, err = Restore(t.Context(), bucket, checkpointdb.Checkpoint{ID: "c"}, "", nil)
	checkError(t, err, checkpointdb.ErrInvalidArgument, "")
	f := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(f, []byte("keep"), 0o666))
	_, err = Restore(t.Context(), bucket, checkpointdb.Checkpoint{ID: "c"}, f, &RestoreOptions{Rewind: true})
	if err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("into a file: %v", err)
	}
}

func TestCase30RestoreNeverWritesThroughLinks(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		base := t.TempDir()
		outside, target := filepath.Join(base, "outside"), filepath.Join(base, "target")
		secret := tree{"victim": file("victim"), "d/y": file("outside y"), "script": file("script")}
		makeTree(t, outside, secret)
		makeTree(t, target, tree{
			"x":       link("../outside/victim"),
			"abs":     link(filepath.Join(outside, "victim")),
			"d":       link("../outside/d"),
			"e":       link(filepath.Join(outside, "d")),
			"dir":     link("../outside"),
			"script":  link("../outside/script"),
			"inside":  link("real"),
			"real/f":  file("real"),
			"real/.x": file("excluded here"),
			"swap":    link("../outside/victim"),
			"up":      link(".."),
			"self":    link("self"),
		})
		must(t, os.Link(filepath.Join(outside, "script"), filepath.Join(target, "hard")))
		must(t, os.Chmod(outside, 0o751))
		must(t, os.Chmod(base, 0o751))
		was := tree{
			"x":        file("restored x"),
			"abs":      script("restored abs"),
			"d/y":      file("restored y"),
			"e/y":      script("restored y"),
			"dir":      dir,
			"script":   script("script"),
			"hard":     script("script"), // only the mode differs, and that of the outside must stay
			"inside/f": file("restored f"),
			"swap":     link("../outside"),
			"up/deep":  file("deep"),
			"self/z":   file("z"),
		}
		c := manifest(t, bucket, was)
		keep := func(p string, _ fs.DirEntry) bool { return p == "real/.x" }
		mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true, Exclude: keep})
		want := tree{"real/.x": file("excluded here")}
		for p, what := range was {
			want[p] = what
		}
		checkTree(t, target, want)
		checkTree(t, outside, secret)
		for _, p := range []string{base, outside} {
			info, err := os.Stat(p)
			must(t, err)
			if runtime.GOOS != "windows" && info.Mode().Perm() != 0o751 {
				t.Errorf("mode of %s is %v", p, info.Mode())
			}
		}
	})
}

// A link that cannot be replaced is not followed either, even where it leads to
// a place inside the target.
func TestCase30WhatLiesBeneathAMissingDirectoryIsNotWritten(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	makeTree(t, target, tree{".git/config": file("mine"), "x": file("x")})
	c := manifest(t, bucket, tree{"d/config": file("theirs"), "d/sub/e": dir, "d/l": link("x")})
	_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, hook: func(point, p string) {
		if point == "marked" { // as a process in the sandbox would
			must(t, os.Symlink(".git", filepath.Join(target, "d")))
		}
	}})
	checkError(t, err, ErrRestoreIncomplete, "d/config")
	checkTree(t, target, tree{".git/config": file("mine"), "d": link(".git"), stateName: file(`{"checkpointId":"c"}`)})
}

func TestCase31NamesThatAreOneOnAnotherFileSystem(t *testing.T) {
	const nfc, nfd = "\u00e4", "a\u0308"
	for name, was := range map[string]tree{
		"case":             {"Readme": file("1"), "README": file("2")},
		"case of a parent": {"Src/a": file("1"), "src/b": file("2")},
		"normal form":      {nfc: file("1"), nfd: file("2")},
		"link and file":    {nfc: link(".."), nfd + "/evil": file("2")},
		"deep":             {"a/b/X": dir, "a/b/x": file("2")},
	} {
		t.Run(name, func(t *testing.T) {
			bucket, base := memBucket(t), t.TempDir()
			target := filepath.Join(base, "target")
			makeTree(t, target, tree{"old": file("old")})
			c := manifest(t, bucket, was)
			// As a system that folds case and normalises would see it.
			_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, mapsName: func(name string) string {
				return strings.ReplaceAll(strings.ToLower(name), nfc, nfd)
			}})
			checkError(t, err, ErrNameClash, "")
			checkTree(t, base, tree{"target/old": file("old")})
			// As this one does: all or nothing.
			_, err = Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true})
			if errors.Is(err, ErrNameClash) {
				checkTree(t, base, tree{"target/old": file("old")})
				return
			}
			must(t, err)
			checkTree(t, target, was)
		})
	}
	// A name clash does not hide that an earlier restore is unfinished.
	bucket, target := memBucket(t), t.TempDir()
	c := manifest(t, bucket, tree{"A": file("1"), "a": file("2")})
	makeTree(t, target, tree{stateName: file(`{"checkpointId":"c"}`)})
	_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{mapsName: strings.ToLower})
	checkError(t, err, ErrNameClash, "a")
	if _, found, err := UnfinishedRestore(target); !found || err != nil {
		t.Errorf("marker is gone, %v", err)
	}
}

// What turns up under a name that was free is not replaced, not even by a rewind.
// And no error prints a name as it is.
func TestRestoreDoesNotReplaceWhatTurnsUp(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	c := manifest(t, bucket, tree{"f\x1b": file("theirs"), "l\x1b": link("theirs"), "e\x1b": dir, "d/x": file("theirs"), "d/y": file("theirs")})
	mine := tree{"f\x1b": file("mine"), "l\x1b": file("mine"), "e\x1b": file("mine"), "d/x": file("mine")}
	_, err := Restore(t.Context(), bucket, c, target, &RestoreOptions{Rewind: true, hook: func(point, p string) {
		if point == "marked" {
			makeTree(t, target, mine)
		}
	}})
	for _, p := range []string{"f\x1b", "l\x1b", "e\x1b", "d/x"} {
		checkError(t, err, ErrRestoreIncomplete, p)
	}
	if strings.Contains(err.Error(), "\x1b") {
		t.Errorf("a raw name is in %q", err)
	}
	mine["d/y"] = file("theirs")
	mine[stateName] = file(`{"checkpointId":"c"}`)
	checkTree(t, target, mine)
}

func TestWindowsNameRule(t *testing.T) {
	for _, name := range []string{"a:b", "con", "CON", "con.txt", "Aux .c", "nul", "com1", "COM¹.log", "lpt9", "x.", "x ", "a?", "a*b", `a"b`, "a<b", "a|b", "tab\t", "conin$"} {
		if windowsNameRule(name) == "" {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{"a", "a.b", ".git", "con1", "com", "com10", "computer", "lpt", "nulls", " x", "ä", "console.log", "a.con"} {
		if rule := windowsNameRule(name); rule != "" {
			t.Errorf("%q is refused: %s", name, rule)
		}
	}
}

func TestCase34RestoreIntoADirectoryItWasNotTakenFrom(t *testing.T) {
	bucket := memBucket(t)
	c := manifest(t, bucket, tree{"main.go": file("package main")})
	t.Run("other files", func(t *testing.T) {
		target := t.TempDir()
		other := tree{"theirs.txt": file("theirs"), "sub/more": file("more")}
		makeTree(t, target, other)
		_, err := Restore(t.Context(), bucket, c, target, nil)
		checkError(t, err, ErrTargetNotEmpty, "sub")
		checkTree(t, target, other)
		report := mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true, DryRun: true})
		if diff := gocmp.Diff(Report{Written: []string{"main.go"}, Removed: []string{"sub", "sub/more", "theirs.txt"}, Bytes: 12}, report); diff != "" {
			t.Errorf("dry run (-want +got):\n%s", diff)
		}
		checkTree(t, target, other)
	})
	t.Run("root", func(t *testing.T) {
		root := filepath.VolumeName(t.TempDir()) + string(filepath.Separator)
		_, err := Restore(t.Context(), bucket, c, root, nil)
		checkError(t, err, ErrTargetNotEmpty, "")
		_, err = Restore(t.Context(), bucket, c, root, &RestoreOptions{Rewind: true, DryRun: true})
		checkError(t, err, ErrTargetRefused, root)
	})
	t.Run("home", func(t *testing.T) {
		// Through a link, as macOS and many servers have it.
		base := t.TempDir()
		makeTree(t, base, tree{"users/me/notes": file("mine"), "home": link("users")})
		t.Setenv("HOME", filepath.Join(base, "home/me"))
		t.Setenv("USERPROFILE", filepath.Join(base, "home/me"))
		for _, target := range []string{"users/me", "home/me", "home/me/../me", "users", "."} {
			_, err := Restore(t.Context(), bucket, c, base+"/"+target, &RestoreOptions{Rewind: true})
			checkError(t, err, ErrTargetRefused, "")
			_, err = Restore(t.Context(), bucket, c, base+"/"+target, nil)
			checkError(t, err, ErrTargetNotEmpty, "")
		}
		checkTree(t, base, tree{"users/me/notes": file("mine"), "home": link("users")})
		// Inside it is an ordinary directory.
		mustRestore(t, bucket, c, filepath.Join(base, "home/me/project"), &RestoreOptions{Rewind: true})
	})
	t.Run("link and dots", func(t *testing.T) {
		base := t.TempDir()
		makeTree(t, base, tree{"real/project/old": file("old"), "elsewhere/x": file("x"), "way": link("real/project")})
		// way/.. is real, not base.
		mustRestore(t, bucket, c, base+"/way/../project", &RestoreOptions{Rewind: true})
		checkTree(t, base, tree{"real/project/main.go": file("package main"), "elsewhere/x": file("x"), "way": link("real/project")})
		mustRestore(t, bucket, c, base+"/way", nil)
		mustRestore(t, bucket, c, base+"/way/../new", nil)
		checkTree(t, base, tree{"real/project/main.go": file("package main"), "real/new/main.go": file("package main"), "elsewhere/x": file("x"), "way": link("real/project")})
	})
	t.Run("relative", func(t *testing.T) {
		base := t.TempDir()
		t.Chdir(base)
		mustRestore(t, bucket, c, "here", nil)
		checkTree(t, base, tree{"here/main.go": file("package main")})
	})
	t.Run("only excluded things", func(t *testing.T) {
		target := t.TempDir()
		makeTree(t, target, tree{".git/config": file("c")})
		mustRestore(t, bucket, c, target, nil)
		checkTree(t, target, tree{".git/config": file("c"), "main.go": file("package main")})
	})
}

// A marker of another checkpoint is not passed over.
func TestRestoreOverUnfinishedRestore(t *testing.T) {
	bucket := memBucket(t)
	c := manifest(t, bucket, tree{"a": file("a"), "b": file("b")})
	for name, state := range map[string]tree{
		"of another checkpoint": {stateName: file(`{"checkpointId":"other"}`)},
		"unreadable":            {stateName: file(`{"checkpo`)},
		"too odd":               {stateName: dir},
		"not even a directory":  {markerDir: file("")},
		"a link":                {markerDir: link("..")},
	} {
		t.Run(name, func(t *testing.T) {
			target := t.TempDir()
			is := tree{"a": file("a")}
			for p, what := range state {
				is[p] = what
			}
			makeTree(t, target, is)
			_, err := Capture(t.Context(), target, bucket, nil)
			checkError(t, err, ErrRestoreUnfinished, target)
			_, err = Restore(t.Context(), bucket, c, target, nil)
			checkError(t, err, ErrRestoreUnfinished, target)
			if unfinished, ok := errors.AsType[*UnfinishedError](err); !ok || unfinished.Dir != target ||
				(unfinished.CheckpointID != "") != (name == "of another checkpoint") {
				t.Errorf("detail: %+v", unfinished)
			}
			checkTree(t, target, is)
			mustRestore(t, bucket, c, target, &RestoreOptions{Rewind: true})
			checkTree(t, target, tree{"a": file("a"), "b": file("b")})
		})
	}
	// The same one is finished; that takes no leave to destroy anything.
	target := t.TempDir()
	makeTree(t, target, tree{"a": file("a"), stateName: file(`{"checkpointId":"c"}`), markerDir + "/17": file("half of b")})
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, tree{"a": file("a"), "b": file("b")})
	// A directory without the state is no marker.
	makeTree(t, target, tree{markerDir + "/17": file("half of b")})
	if c := mustCapture(t, target, bucket, nil); len(c.Files) != 2 {
		t.Errorf("captured %v", c.Files)
	}
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, tree{"a": file("a"), "b": file("b")})
}

func TestRestoreCancelled(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	content := tree{"old": file("old")}
	for i := range 100 {
		content[fmt.Sprintf("f%02d", i)] = file(fmt.Sprint(i))
	}
	c := manifest(t, bucket, content)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Restore(ctx, bucket, c, target, &RestoreOptions{hook: func(point, p string) {
		if point == "wrote" {
			cancel()
		}
	}})
	checkError(t, err, ErrRestoreIncomplete, "")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if _, found, err := UnfinishedRestore(target); !found || err != nil {
		t.Errorf("no marker, %v", err)
	}
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, content)
}

// A hole of a gigabyte comes back as a hole: the disk never has to hold it.
func TestCase36SparseFileStaysSparse(t *testing.T) {
	const mib = 1 << 20
	large := int64(1024 * mib)
	if testing.Short() {
		large = 128 * mib
	}
	for name, size := range map[string]int64{"whole blocks": large, "odd end": 64*mib + 12345} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			root, target, blobs := filepath.Join(base, "root"), filepath.Join(base, "target"), filepath.Join(base, "blobs")
			makeTree(t, root, tree{"disk.img": file("boot")})
			f, err := os.OpenFile(filepath.Join(root, "disk.img"), os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			must(t, f.Truncate(size))
			for _, off := range []int64{10*mib + 7, 50 * mib} {
				_, err := f.WriteAt([]byte("data"), off)
				must(t, err)
			}
			// The blob is the file itself, or the bucket would hold it without holes.
			h := sha256.New()
			_, err = io.Copy(h, f)
			must(t, err)
			key := checkpointdb.FileKey(checkpointdb.Digest(h.Sum(nil)))
			bucket := fileBucket(t, blobs)
			must(t, os.MkdirAll(filepath.Join(blobs, filepath.Dir(string(key))), 0o777))
			must(t, os.Link(filepath.Join(root, "disk.img"), filepath.Join(blobs, string(key))))

			c := mustCapture(t, root, bucket, nil)
			mustRestore(t, bucket, c, target, nil)
			if again := mustCapture(t, target, bucket, nil); !gocmp.Equal(c.Files, again.Files) {
				t.Errorf("restored %v, want %v", again.Files, c.Files)
			}
			if used, ok := diskUse(t, filepath.Join(target, "disk.img")); ok && used > mib {
				t.Errorf("takes %d bytes on disk", used)
			}
		})
	}
}

// Zeros at the end, and files that are nothing else, keep their size.
func TestRestoreZeros(t *testing.T) {
	onEachBucket(t, func(t *testing.T, bucket *blob.Bucket) {
		content := tree{}
		for _, n := range []int{1, holeSize - 1, holeSize, holeSize + 1, 3 * holeSize, 3*holeSize + 1} {
			content[fmt.Sprint("zeros", n)] = file(string(make([]byte, n)))
			content[fmt.Sprint("end", n)] = file(string(make([]byte, n)) + "end")
			content[fmt.Sprint("start", n)] = file("start" + string(make([]byte, n)))
		}
		target := filepath.Join(t.TempDir(), "new")
		mustRestore(t, bucket, manifest(t, bucket, content), target, nil)
		checkTree(t, target, content)
	})
}

// When the bucket stays away in the middle of a restore, the restore waits for it
// once, and not again for each of the files that are left.
func TestRestoreGivesUpOnABucketThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := tree{}
		for i := range 20 * workers {
			content[fmt.Sprint("file", i)] = file("content")
		}
		inner := memblob.OpenBucket(nil)
		c := manifest(t, inner, content)
		bucket := faultblob.Wrap(inner, func(_ context.Context, call faultblob.Call, do func() error) error {
			if call.Kind == faultblob.Read {
				return busy{}
			}
			return do()
		})
		defer bucket.Close()
		start := time.Now()
		_, err := Restore(t.Context(), bucket, c, filepath.Join(t.TempDir(), "new"), nil)
		checkError(t, err, ErrRestoreIncomplete, "")
		if incomplete, ok := errors.AsType[*IncompleteError](err); !ok || incomplete.Count != len(content) {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(start); took > 10*time.Minute {
			t.Errorf("took %s", took)
		}
	})
}
