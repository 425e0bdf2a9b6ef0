//go:build !windows

package checkpointdb

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// bindSocket makes a socket that nobody but its user can ever connect to. A
// socket is born with the mode that the umask leaves, and the umask is the whole
// process's. So it is born in a directory of its own that is closed to others,
// gets its mode there, and is moved out under its name, which replaces a stale
// one in the same step.
func bindSocket(dir *os.Root, path string) (*net.UnixListener, error) {
	name := filepath.Base(path)
	closed := name + ".tmp"
	born := closed + "/s"
	if info, err := dir.Lstat(closed); err == nil {
		// A process was killed between two of these steps.
		if !info.IsDir() {
			return nil, fmt.Errorf("%q is in the way; move it away", closed)
		}
		if err := dir.Remove(born); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := dir.Remove(closed); err != nil {
			return nil, err
		}
	}
	if err := dir.Mkdir(closed, 0o700); err != nil {
		return nil, err
	}
	defer dir.Remove(closed) // what stays, the next Open removes
	listener, err := listenIn(dir, path, born)
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // it would remove the name that it was born with
	err = dir.Chmod(born, 0o600)
	if err == nil {
		err = dir.Rename(born, name)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close(), dir.Remove(born))
	}
	return listener, nil
}
