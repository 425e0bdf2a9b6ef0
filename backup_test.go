package checkpointdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// wantSameRows compares every row and sequence of two stores.
func wantSameRows(t *testing.T, want, got *Store) {
	t.Helper()
	dump := func(s *Store) (rows []string) {
		must(t, s.view(func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
				rows = append(rows, fmt.Sprintf("%s, sequence %d", name, b.Sequence()))
				return b.ForEach(func(k, v []byte) error {
					rows = append(rows, fmt.Sprintf("%s: %x: %x", name, k, v))
					return nil
				})
			})
		}))
		return rows
	}
	a, b := dump(want), dump(got)
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("row %d is\n\t%s, not\n\t%s", i, b[i], a[i])
		}
	}
	if len(a) != len(b) {
		t.Fatalf("%d rows, not %d", len(b), len(a))
	}
}

// wantNames compares the names in a directory.
func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

// tired is a context that ends when it was looked at so many times.
type tired struct {
	context.Context
	looks int
}

func (c *tired) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// stopEverywhere ends work by its context at each look in turn, until it
// succeeds, and returns how often it was ended.
func stopEverywhere(t *testing.T, work func(context.Context) error, after func()) (stopped int) {
	t.Helper()
	for {
		err := work(&tired{context.Background(), stopped})
		if err == nil {
			return stopped
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("ended at look %d: %v", stopped, err)
		}
		after()
		stopped++
	}
}

func TestBackupFile(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	fillStore(t, s)
	dir := t.TempDir()
	path := filepath.Join(dir, "copy.db")
	var done, total int64
	must(t, s.BackupFile(ctx, path, &BackupOptions{Progress: func(d, n int64) {
		if d < done || d > n {
			t.Errorf("progress goes from %d to %d of %d", done, d, n)
		}
		done, total = d, n
		if _, err := s.AcquireWriter(ctx, "taken by the callback"); err != nil && !errors.Is(err, ErrWriterConflict) {
			t.Error(err)
		}
	}}))
	wantNames(t, dir, "copy.db")
	info, err := os.Stat(path)
	must(t, err)
	if done != total || total != info.Size() {
		t.Errorf("progress ended at %d of %d, the file has %d bytes", done, total, info.Size())
	}
	if runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("mode is %v", info.Mode())
	}
	must(t, s.BackupFile(ctx, filepath.Join(dir, "again.db"), nil)) // with what the callback did
	wantSameRows(t, s, openTestAt(t, filepath.Join(dir, "again.db"), nil))
	openTestAt(t, path, nil)

	for _, existing := range []string{path, s.Path()} {
		before, err := os.ReadFile(existing)
		must(t, err)
		if err := s.BackupFile(ctx, existing, nil); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), existing) {
			t.Errorf("over %s: %v", existing, err)
		}
		after, err := os.ReadFile(existing)
		must(t, err)
		if !bytes.Equal(before, after) {
			t.Errorf("%s was changed", existing)
		}
	}
	if err := s.BackupFile(ctx, filepath.Join(dir, "none", "copy.db"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// The temporary name of the backup is that of the store itself.
func TestBackupFileUnderItself(t *testing.T) {
	dir := t.TempDir()
	s := openTestAt(t, filepath.Join(dir, "copy.db.tmp"), nil)
	fillStore(t, s)
	if err := s.BackupFile(context.Background(), filepath.Join(dir, "copy.db"), nil); err == nil {
		t.Error("no error")
	}
	wantNames(t, dir, "copy.db.tmp")
}

func TestBackupStops(t *testing.T) {
	s := openTest(t, nil)
	fillStore(t, s)
	dir := t.TempDir()
	path := filepath.Join(dir, "copy.db")
	stopped := stopEverywhere(t, func(ctx context.Context) error { return s.BackupFile(ctx, path, nil) }, func() { wantNames(t, dir) })
	wantNames(t, dir, "copy.db")
	wantSameRows(t, s, openTestAt(t, path, nil))
	if stopped < 5 {
		t.Errorf("looked at the context %d times", stopped)
	}
	stopped = stopEverywhere(t, func(ctx context.Context) error { return s.Backup(ctx, io.Discard) }, func() {})
	if stopped < 5 {
		t.Errorf("looked at the context %d times", stopped)
	}
	wantNames(t, filepath.Dir(s.Path()), "test.db")
}

// What is announced before the first byte is what comes.
func TestSnapshot(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, nil)
	fillStore(t, s)
	copied, size, err := s.snapshot(ctx)
	must(t, err)
	defer copied.Close()
	if runtime.GOOS != "windows" {
		wantNames(t, filepath.Dir(s.Path()), "test.db")
	}
	data, err := io.ReadAll(copied)
	must(t, err)
	if int64(len(data)) != size {
		t.Errorf("%d bytes were announced, %d came", size, len(data))
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, data, 0o600))
	wantSameRows(t, s, openTestAt(t, path, nil))
}
