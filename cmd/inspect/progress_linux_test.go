package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// moves are what a progress line does with the cursor, beside ends of lines.
var moves = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]|\r")

// Long work shows on a terminal what it does, how fast, and how long it will take,
// and goes away without a trace; names in what it found drive nothing.
func TestProgress(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dir := t.TempDir()
	makeStore(t, dir)
	if err := os.Remove(filepath.Join(dir, "blobs", string(keyOf("plain\n")))); err != nil {
		t.Fatal(err)
	}
	bucket := newStuckBucket(t, filepath.Join(dir, "blobs"))
	bucket.slow.Store(true)
	where := []string{"--db", filepath.Join(dir, "agents.db"), "--blobs", bucket.url}
	for _, test := range []struct {
		args []string
		exit int
		want []string
	}{
		{[]string{"check", "--read-data"}, exitDamage, []string{"checking blobs ", " KiB", " / 5.1 KiB", "/s", "evil", "missing"}},
		{[]string{"restore", "m5", filepath.Join(dir, "out")}, exitDone, []string{"restoring ", " / 127", "A src/main.go"}},
		{[]string{"export", "main", "--with-blobs", "--out", filepath.Join(dir, "out.jsonl")}, exitDone, []string{"exporting ", " / 175", "/s", "exported 1 thread"}},
		{[]string{"export"}, exitUsage, []string{"an export is not for a terminal"}},
	} {
		got, exit := onTerminal(t, []string{"NO_COLOR=1"}, append(test.args, where...)...)
		if exit != test.exit {
			t.Errorf("%q: exit code %d, want %d", test.args, exit, test.exit)
		}
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%q: %q, want %q in it", test.args, got, want)
			}
		}
		for _, r := range moves.ReplaceAllString(got, "") {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q: %q has %U", test.args, got, r)
				break
			}
		}
	}
}
