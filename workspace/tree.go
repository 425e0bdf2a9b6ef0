package workspace

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"checkpointdb"
)

// What can happen to a path between two looks at it.
var (
	errReplaced = errors.New("was replaced or removed")
	errWritten  = errors.New("was written to")
)

// readError gives err the path, unless it has one, and its class when the tree
// is what changed.
func readError(p string, err error) error {
	if err == errReplaced || err == errWritten {
		return refuse(ErrTreeChanged, p, "%s while it was read", err)
	}
	if _, ok := errors.AsType[*PathError](err); ok {
		return err
	}
	return pathError(p, err)
}

// openRoot opens the directory of a workspace. Links in its name are followed.
func openRoot(dir string) (*os.Root, error) {
	if err := checkDirName(dir); err != nil {
		return nil, err
	}
	// Opening for the root would wait on a named pipe.
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		return nil, &PathError{Path: dir, Problem: "is not a directory"}
	}
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, pathError(dir, err)
	}
	return root, nil
}

// checkDirName refuses the empty name. Some calls would take it for the current
// directory, and far more likely it is an unset variable.
func checkDirName(dir string) error {
	if dir == "" {
		return coded(checkpointdb.ErrInvalidArgument, errors.New("the directory's name is empty"))
	}
	return nil
}

// readDir lists dir, "" for the root, sorted by name. The infos of the entries
// are those of the moment of listing and ask nothing of the file system. The
// result is errReplaced when dir is no longer the directory that was listed as
// want; nil stands for any.
func readDir(root *os.Root, dir string, want fs.FileInfo) ([]fs.DirEntry, error) {
	if dir == "" {
		dir = "."
	}
	f, err := root.OpenFile(dir, openDirFlags, 0)
	if err == nil {
		defer f.Close()
		err = checkSame(f, want)
	}
	if err != nil {
		return nil, whyNot(root, dir, want, err)
	}
	list, err := f.ReadDir(-1)
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, err
}

// openFile opens the regular file that was listed as want, or gives
// errReplaced. It never waits, whatever the path names by now.
func openFile(root *os.Root, path string, want fs.FileInfo) (*os.File, error) {
	f, err := root.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, whyNot(root, path, want, err)
	}
	if err := checkSame(f, want); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkSame compares after opening. os.Root follows links that stay inside, so
// what was opened may be another file altogether.
func checkSame(f *os.File, want fs.FileInfo) error {
	if want == nil {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !same(info, want) {
		return errReplaced
	}
	return nil
}

// same compares the type too: file systems use the number of a deleted file for
// the next one.
func same(a, b fs.FileInfo) bool {
	return a.Mode().Type() == b.Mode().Type() && os.SameFile(a, b)
}

// whyNot turns a failure to open what is no longer there into errReplaced.
func whyNot(root *os.Root, path string, want fs.FileInfo, err error) error {
	if want == nil {
		return err
	}
	if info, statErr := root.Lstat(path); statErr != nil || !same(info, want) {
		return errReplaced
	}
	return err
}

// join appends a name to a directory, "" for the root. Unlike path.Join it
// leaves the name as it is.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// describe names a type that a checkpoint cannot hold.
func describe(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

func isExecutable(mode fs.FileMode) bool { return hasExecutableBit && mode&0o100 != 0 }
