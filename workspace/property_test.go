package workspace

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"checkpointdb"
)

// drawTree draws a directory. Its names are few, so that two of them have much
// in common, and odd, so that they sort and print in odd ways.
func drawTree(t *rapid.T, label string) tree {
	names := []string{"a", "b", "a-b", "a.b", "A", "ä", "a\u0308", " ", "\n", "\x1b[1m", "-", "c:d", "...", ".env", ".git", "node_modules"}
	contents := []string{"", "x", "y", "#!/bin/sh\n", string(make([]byte, 2*holeSize)), string(make([]byte, holeSize)) + "end"}
	drawn := tree{}
	var fill func(at string, depth int)
	fill = func(at string, depth int) {
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 4, rapid.ID[string]).Draw(t, label+" names") {
			p := join(at, name)
			switch rapid.IntRange(0, 9).Draw(t, label+" kind") {
			case 0:
				drawn[p] = link(rapid.SampledFrom([]string{"a", "..", "/", "../../a", "no/where", "\x1b"}).Draw(t, "target"))
			case 1:
				drawn[p] = script(rapid.SampledFrom(contents).Draw(t, "content"))
			case 2, 3, 4:
				drawn[p] = file(rapid.SampledFrom(contents).Draw(t, "content"))
			default:
				drawn[p] = dir
				if depth < 4 {
					fill(p, depth+1)
				}
			}
		}
	}
	fill("", 0)
	return drawn
}

// split divides a tree into what is captured and what is left out.
func (t tree) split() (inside, outside tree) {
	inside, outside = tree{}, tree{}
	for p, what := range t {
		at := inside
		for up := p; up != "."; up = path.Dir(up) {
			if DefaultExclude(up, nil) {
				at = outside
			}
		}
		at[p] = what
	}
	return inside, outside
}

// Whatever two directories hold: a checkpoint of one restores to its equal, also
// over the other, whose excluded content stays; and to capture the result gives
// the same entries and uploads nothing.
func TestRestoreIsTheInverseOfCapture(t *testing.T) {
	base, bucket := t.TempDir(), memBucket(t)
	rapid.Check(t, func(rt *rapid.T) {
		run, err := os.MkdirTemp(base, "run")
		must(t, err)
		defer os.RemoveAll(run)
		one, other := drawTree(rt, "one"), drawTree(rt, "other")
		makeTree(t, filepath.Join(run, "one"), one)
		makeTree(t, filepath.Join(run, "other"), other)
		captured, err := Capture(t.Context(), filepath.Join(run, "one"), bucket, nil)
		if err != nil {
			rt.Fatal(err)
		}
		c := checkpointdb.Checkpoint{ID: "one", Files: captured.Files}
		inside, _ := one.split()

		fresh := filepath.Join(run, "fresh")
		if _, err := Restore(t.Context(), bucket, c, fresh, nil); err != nil {
			rt.Fatal(err)
		}
		if diff := gocmp.Diff(inside.withParents(), readTree(t, fresh)); diff != "" {
			rt.Fatalf("restored (-want +got):\n%s", diff)
		}
		again, err := Capture(t.Context(), fresh, bucket, nil)
		if diff := gocmp.Diff(captured.Files, again.Files); err != nil || diff != "" || again.Uploaded != 0 {
			rt.Fatalf("captured again: %d uploads, %v (-want +got):\n%s", again.Uploaded, err, diff)
		}

		// Where excluded content is in the way of a file, nothing may change.
		before := readTree(t, filepath.Join(run, "other"))
		_, stays := other.split()
		want := maps.Clone(inside)
		maps.Copy(want, stays)
		want = want.withParents()
		conflict := false
		for p := range stays {
			for up := path.Dir(p); up != "."; up = path.Dir(up) {
				conflict = conflict || inside[up] != "" && inside[up] != dir
			}
		}
		_, err = Restore(t.Context(), bucket, c, filepath.Join(run, "other"), &RestoreOptions{Rewind: true})
		if conflict {
			if checkpointdb.CodeOf(err) != ErrTargetRefused {
				rt.Fatalf("error is %v", err)
			}
			want = before
		} else if err != nil {
			rt.Fatal(err)
		}
		if diff := gocmp.Diff(want, readTree(t, filepath.Join(run, "other"))); diff != "" {
			rt.Fatalf("rewound (-want +got):\n%s", diff)
		}
	})
}
