package checkpointdb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
)

// copying is what makes large temporary files: each works on the store at
// dir/test.db, and may write dir/out.db.
var copying = map[string]func(ctx context.Context, dir string) error{
	"backup to a file": withStore(func(ctx context.Context, s *Store, out string) error {
		return s.BackupFile(ctx, out, nil)
	}),
	"backup to a writer": withStore(func(ctx context.Context, s *Store, _ string) error {
		return s.Backup(ctx, io.Discard)
	}),
	"compact": withStore(func(ctx context.Context, s *Store, out string) error {
		_, err := s.Compact(ctx, out, nil)
		return err
	}),
	"repair": func(ctx context.Context, dir string) error {
		_, err := Repair(ctx, filepath.Join(dir, "test.db"), filepath.Join(dir, "out.db"), nil)
		return err
	},
	"compact in place": func(ctx context.Context, dir string) error {
		if runtime.GOOS == "windows" {
			return nil
		}
		_, err := CompactFile(ctx, filepath.Join(dir, "test.db"), nil)
		return err
	},
}

func withStore(fn func(ctx context.Context, s *Store, out string) error) func(context.Context, string) error {
	return func(ctx context.Context, dir string) error {
		s, err := Open(filepath.Join(dir, "test.db"), nil)
		if err != nil {
			return err
		}
		return errors.Join(fn(ctx, s, filepath.Join(dir, "out.db")), s.Close())
	}
}

// TestCase49Killed kills processes in the middle of everything that makes large
// temporary files: first at fixed places, where the context is looked at for the
// so-many-th time, then at some moment of many runs in a row.
func TestCase49Killed(t *testing.T) {
	if what := os.Getenv("CHECKPOINTDB_TEST_KILLED"); what != "" {
		killedChild(what)
	}
	ctx := context.Background()
	for what, run := range copying {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path, out := filepath.Join(dir, "test.db"), filepath.Join(dir, "out.db")
			s, err := Open(path, nil)
			must(t, err)
			fillStore(t, s)
			must(t, s.Close())
			count := &tired{ctx, 1 << 30}
			must(t, run(count, dir))
			looks := 1<<30 - count.looks
			left := 0
			for i := range 5 {
				removeAll(t, out)
				place := -1
				if i < 3 {
					place = looks - 1 - i*looks/4
				}
				killRun(t, what, dir, place, time.Duration(5+15*i)*time.Millisecond)
				names, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
				must(t, err)
				if len(names) > 1 {
					t.Errorf("killed in %s %d times, there are %q", what, i+1, names)
				}
				left += len(names)
				s, err := Open(path, nil)
				must(t, err)
				must(t, s.Check(ctx))
				must(t, s.Close())
				if _, err := os.Stat(out); err == nil {
					s, err := Open(out, nil)
					must(t, err)
					must(t, s.Check(ctx))
					must(t, s.Close())
				}
			}
			if left == 0 && what != "backup to a writer" {
				t.Errorf("no kill left a temporary file, so this test shows nothing")
			}
			removeAll(t, out)
			must(t, run(ctx, dir))
			removeAll(t, out)
			wantNames(t, dir, "test.db")
		})
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	must(t, os.RemoveAll(path))
}

// killRun starts a process and kills it where it says that it has come to the
// place, or, for a negative one, a while after it began.
func killRun(t *testing.T, what, dir string, place int, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCase49Killed$")
	cmd.Env = append(os.Environ(), "CHECKPOINTDB_TEST_KILLED="+what,
		"CHECKPOINTDB_TEST_KILLED_DIR="+dir, fmt.Sprint("CHECKPOINTDB_TEST_KILLED_AT=", place))
	cmd.Stderr = os.Stderr
	said, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(said).ReadString('\n')
	if place < 0 {
		time.Sleep(after)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err != nil || !slices.Contains([]string{"begin\n", "here\n"}, line) {
		t.Fatalf("the process said %q, %v", line, err)
	}
}

func killedChild(what string) {
	run, dir := copying[what], os.Getenv("CHECKPOINTDB_TEST_KILLED_DIR")
	place, err := strconv.Atoi(os.Getenv("CHECKPOINTDB_TEST_KILLED_AT"))
	ctx := context.Background()
	if place >= 0 {
		ctx = &stopped{ctx, place}
	} else {
		fmt.Println("begin")
	}
	for err == nil {
		if err = run(ctx, dir); err == nil {
			err = os.RemoveAll(filepath.Join(dir, "out.db"))
		}
	}
	fmt.Println("failed:", err)
	os.Exit(1)
}

// stopped is a context that says so when it has been looked at so many times,
// and goes no further.
type stopped struct {
	context.Context
	looks int
}

func (c *stopped) Err() error {
	if c.looks--; c.looks < 0 {
		fmt.Println("here")
		time.Sleep(time.Hour)
	}
	return nil
}
