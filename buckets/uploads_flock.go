//go:build unix && !aix && !solaris

package buckets

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"checkpointdb"
)

// The marker has a byte for each bucket that came to hold it since leftovers were
// last removed. Who holds it alone, and was the only one, takes it away in the
// end. Where there were several, one of them may have been killed while others
// went on; then it stays, for the next one to search once too often.

// holdMarker returns the marker of dir with a shared lock, nil when it cannot be
// had. Before, it removes what killed processes have left, when no living one
// uploads.
func holdMarker(dir string) *os.File {
	path := filepath.Join(dir, markerName)
	for {
		marker, made, err := openMarker(path)
		if err != nil {
			return nil
		}
		held, err := shareMarker(marker, dir, made)
		if held {
			return marker
		}
		marker.Close()
		if err != nil {
			return nil
		}
	}
}

// openMarker opens the marker and tells whether it had to be made.
func openMarker(path string) (_ *os.File, made bool, err error) {
	const flags = os.O_RDWR | os.O_APPEND | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	for {
		marker, err := os.OpenFile(path, flags, 0)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return marker, false, err
		}
		marker, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil || !errors.Is(err, os.ErrExist) {
			return marker, true, err
		}
	}
}

// shareMarker reports false without an error when somebody took the marker away
// meanwhile.
func shareMarker(marker *os.File, dir string, made bool) (held bool, err error) {
	path := marker.Name()
	switch err := flock(marker, syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		if !names(path, marker) {
			return false, nil
		}
		if !made {
			removeLeftovers(dir)
			if err := marker.Truncate(0); err != nil {
				return false, err
			}
		}
	case !errors.Is(err, syscall.EWOULDBLOCK):
		return false, err
	}
	// The way from one lock to the other leads over none, so somebody may search
	// or take the marker away in between: nothing is uploaded yet.
	if err := flock(marker, syscall.LOCK_SH); err != nil {
		return false, err
	}
	if !names(path, marker) {
		return false, nil
	}
	_, err = marker.Write([]byte{'\n'})
	return err == nil, err
}

// releaseMarker takes the marker away, unless others hold it, or did.
func releaseMarker(marker *os.File) {
	defer marker.Close()
	if flock(marker, syscall.LOCK_EX|syscall.LOCK_NB) != nil || !names(marker.Name(), marker) {
		return
	}
	if info, err := marker.Stat(); err == nil && info.Size() == 1 {
		_ = os.Remove(marker.Name())
	}
}

// names reports whether path still leads to file.
func names(path string, file *os.File) bool {
	there, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := file.Stat()
	return err == nil && os.SameFile(there, info)
}

func flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// leftover matches the temporary files of blobs, as the driver calls them: the
// name of the blob, the time, and an ending.
var leftover = regexp.MustCompile(`^[0-9a-f]{64}\.[0-9a-f]{16}\.tmp$`)

// removeLeftovers removes temporary files of blobs in dir and below, of which
// nobody is writing any. A bucket with a prefix has them further down.
func removeLeftovers(dir string) {
	blobs := strings.HasSuffix(dir+"/", "/"+checkpointdb.FileKeyPrefix) || strings.HasSuffix(dir+"/", "/"+checkpointdb.ArtifactKeyPrefix)
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	for {
		batch, err := d.ReadDir(4096)
		for _, e := range batch {
			path := filepath.Join(dir, e.Name())
			switch {
			case e.IsDir():
				removeLeftovers(path)
			case blobs && e.Type().IsRegular() && leftover.MatchString(e.Name()):
				_ = os.Remove(path)
			}
		}
		if err != nil {
			return
		}
	}
}
