package checkpointdb

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// LiveSocket returns the path of the socket of a live store: that of its file
// with ".sock" behind it. Where path is a symbolic link, the file is what it
// leads to.
func LiveSocket(path string) string {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	return path + ".sock"
}

// liveSocket is a listening socket and its name. Names are looked up in the
// directory as it was opened, so neither a change of the working directory nor
// the length of its path matters.
type liveSocket struct {
	*net.UnixListener
	dir  *os.Root
	name string
	info fs.FileInfo // to know it again
}

// listenLive makes the socket at path and replaces a stale one. The caller holds
// the lock of the store's file, so that any other socket there is stale.
func listenLive(path string) (_ *liveSocket, err error) {
	defer func() {
		if err != nil {
			err = &Error{Code: ErrNotLive, Message: fmt.Sprintf("the live socket %q cannot be made", path), Err: err}
		}
	}()
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	s := &liveSocket{dir: dir, name: filepath.Base(path)}
	switch info, err := dir.Lstat(s.name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, errors.Join(err, dir.Close())
	case info.Mode().Type() != fs.ModeSocket:
		return nil, errors.Join(errors.New("what is there is no socket; move it away"), dir.Close())
	}
	if s.UnixListener, err = bindSocket(dir, path); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if s.info, err = dir.Lstat(s.name); err != nil {
		return nil, errors.Join(err, s.UnixListener.Close(), dir.Close())
	}
	return s, nil
}

// remove takes the socket's name away, if it still is the name of this socket.
// It comes before the listener is closed: until then no other file can have the
// number by which the socket is known.
func (s *liveSocket) remove() {
	if info, err := s.dir.Lstat(s.name); err == nil && os.SameFile(info, s.info) {
		_ = s.dir.Remove(s.name)
	}
	s.dir.Close()
}

// maxSocketPath is how many bytes of a path go into the address of a socket.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1
