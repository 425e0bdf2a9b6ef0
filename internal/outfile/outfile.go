// Package outfile writes files that appear under their name whole or not at all,
// and of which a killed run leaves at most one temporary file, for the next run
// to remove.
package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"checkpointdb/internal/syncdir"
)

// TemporaryName returns the name under which the file at path is written. It is
// fixed, so that the next run knows what the killed one left.
func TemporaryName(path string) string { return path + ".tmp" }

// File is a file that is being written, with mode 0600 and under a temporary
// name beside the final one. Its lock keeps other runs away until Commit or
// Abort.
type File struct {
	*os.File
	path     string
	replaces fs.FileInfo // what Commit replaces; nil when nothing may be there
	ended    bool
}

// errBusy: another run holds the temporary file.
var errBusy = errors.New("another run is writing it")

// Create begins the file at path, which must not exist: the error then matches
// fs.ErrExist.
func Create(path string) (*File, error) {
	if there, err := os.Lstat(path); err == nil {
		// A run that was killed in the middle of Commit left both names.
		if tmp, err := os.Lstat(TemporaryName(path)); err == nil && os.SameFile(there, tmp) {
			_ = os.Remove(TemporaryName(path))
		}
		return nil, exists(path)
	}
	return begin(path, nil)
}

// Replace begins the file that will take the place of the one at path, whose
// mode and owner it gets. A symbolic link stays, and what it names is replaced.
func Replace(path string) (*File, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return begin(path, info)
}

func exists(path string) error {
	return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
}

func begin(path string, replaces fs.FileInfo) (*File, error) {
	tmp := TemporaryName(path)
	for {
		file, err := openNew(tmp)
		switch {
		case errors.Is(err, fs.ErrExist):
			if err := removeLeftover(tmp); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			continue
		case err != nil:
			return nil, err
		}
		held, err := lockNamed(file, tmp)
		if held {
			return &File{File: file, path: path, replaces: replaces}, nil
		}
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
}

// removeLeftover removes the temporary file of a run that was killed. It is
// never written to: when the run was killed between giving the file its final
// name and taking the temporary one away, both name the same bytes.
func removeLeftover(tmp string) error {
	info, err := os.Lstat(tmp)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is in the way, and it is no regular file", tmp)
	}
	file, err := openLeftover(tmp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer file.Close()
	held, err := lockNamed(file, tmp)
	if !held {
		return err
	}
	return os.Remove(tmp)
}

// lockNamed takes the lock of file, and reports whether name still names it
// then. Only who holds the lock of the file of a name may take the name away.
func lockNamed(file *os.File, name string) (bool, error) {
	if err := lock(file); err != nil {
		return false, err
	}
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(info, named), err
}

// Commit makes the bytes durable, gives the file its name, makes that durable
// too, and closes the file. It never replaces what Create did not find and
// somebody has made since: the error then matches fs.ErrExist. After an error
// nothing has changed under the name, unless only syncing the directory failed.
func (f *File) Commit() error {
	if err := f.finish(); err != nil {
		f.Abort()
		return err
	}
	f.ended = true
	err := syncdir.Sync(filepath.Dir(f.path))
	return errors.Join(err, f.Close())
}

func (f *File) finish() error {
	if f.replaces != nil {
		if err := keepOwner(f.File, f.replaces); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if f.replaces != nil {
		return os.Rename(f.Name(), f.path)
	}
	err := os.Link(f.Name(), f.path)
	switch {
	case err == nil:
		// What stays in the worst case is a second name, which the next run removes.
		_ = os.Remove(f.Name())
		return nil
	case errors.Is(err, fs.ErrExist):
		return exists(f.path)
	}
	// No links here. A rename would replace what appears between these two.
	if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = exists(f.path)
		}
		return err
	}
	return os.Rename(f.Name(), f.path)
}

// Abort removes the temporary file and closes it. After Commit or another Abort
// it does nothing, so it can be deferred.
func (f *File) Abort() {
	if f.ended {
		return
	}
	f.ended = true
	// As long as the lock is held the name is nobody else's.
	_ = os.Remove(f.Name())
	_ = f.Close()
}
