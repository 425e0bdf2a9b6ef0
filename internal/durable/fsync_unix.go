//go:build unix

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"checkpointdb/internal/syncdir"
)

// known holds, by path, the directories whose own name was synced by this
// process, as an [fs.FileInfo] each. The first write into a directory syncs the
// directories above it whoever made them: asking which of them are new would
// let a writer that comes second return before the first one synced them.
var known sync.Map

// syncDirs makes durable the names in dir and the name of dir itself.
func syncDirs(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if err := syncdir.Sync(dir); err != nil {
		return err
	}
	// A directory that was removed and made again is a new one.
	if before, ok := known.Load(dir); ok && os.SameFile(before.(fs.FileInfo), info) {
		return nil
	}
	// New directories lie on the file system of the old ones above them, so
	// there is nothing to sync beyond a mount point.
	for up := filepath.Dir(dir); ; up = filepath.Dir(up) {
		above, err := os.Stat(up)
		if err != nil || device(above) != device(info) {
			break
		}
		// Directories that this process may not read are not those it made.
		if err := syncdir.Sync(up); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	known.Store(dir, info)
	return nil
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func device(info fs.FileInfo) any {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Dev
	}
	return nil
}
