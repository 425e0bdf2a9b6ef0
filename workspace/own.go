package workspace

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gocloud.dev/blob"

	"checkpointdb"
)

// ownFiles knows the files of the program itself that may lie in a workspace:
// the directory of a local bucket, the store's database, an index, logs. They
// are never captured, or each capture would hold the bytes of those before it,
// and never changed by a restore.
//
// A file is recognised by what it is, whatever name leads to it, and by its name
// in its directory, which also covers what is not there yet. The second goes for
// the temporary files beside it too, that begin with its name and end in ".tmp".
type ownFiles []ownFile

type ownFile struct {
	info fs.FileInfo // nil while there is none
	name string      // "" where only info is known
	dir  fs.FileInfo // that holds name
}

// newOwnFiles takes the names as package os does; "" is none. What cannot be
// looked at counts as not there.
func newOwnFiles(bucket *blob.Bucket, names ...string) (own ownFiles) {
	var info os.FileInfo
	if bucket != nil && bucket.As(&info) {
		own = append(own, ownFile{info: info})
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		var f ownFile
		if abs, err := filepath.Abs(name); err == nil {
			if f.dir, err = os.Stat(filepath.Dir(abs)); err == nil {
				f.name = filepath.Base(abs)
			}
		}
		if info, err := os.Stat(name); err == nil {
			f.info = info
		}
		own = append(own, f)
	}
	return own
}

// namesIn returns the names of those that lie in the directory dir describes.
func (own ownFiles) namesIn(dir fs.FileInfo) (names []string) {
	for _, f := range own {
		if f.name != "" && os.SameFile(f.dir, dir) {
			names = append(names, f.name)
		}
	}
	return names
}

// has reports whether d is one of the files; names are those in its directory.
func (own ownFiles) has(d fs.DirEntry, names []string) bool {
	for _, name := range names {
		rest, ok := strings.CutPrefix(d.Name(), name)
		if ok && (rest == "" || strings.HasSuffix(rest, ".tmp")) {
			return true
		}
	}
	if len(own) == 0 || d.Type() != 0 && d.Type() != fs.ModeDir {
		return false
	}
	info, err := d.Info()
	return err == nil && own.hasInfo(info)
}

func (own ownFiles) hasInfo(info fs.FileInfo) bool {
	for _, f := range own {
		if f.info != nil && os.SameFile(f.info, info) {
			return true
		}
	}
	return false
}

// checkWorkspace refuses a workspace that is the bucket's directory, or another
// one of the program's own, and returns what root is.
func (own ownFiles) checkWorkspace(root *os.Root, dir string) (fs.FileInfo, error) {
	info, err := root.Stat(".")
	if err != nil {
		return nil, pathError(dir, err)
	}
	if own.hasInfo(info) {
		return nil, coded(checkpointdb.ErrInvalidArgument, &PathError{Path: dir, Problem: "is where the bucket or the program keeps its own files; it is no workspace"})
	}
	return info, nil
}
