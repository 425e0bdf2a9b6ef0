package checkpointdb

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// bindSocket makes a socket in place of a stale one. Who can connect to it is up
// to the permissions of the directory: there are no modes here.
func bindSocket(dir *os.Root, path string) (*net.UnixListener, error) {
	name := filepath.Base(path)
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := listenIn(dir, path, name)
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // liveSocket does it
	return listener, nil
}
