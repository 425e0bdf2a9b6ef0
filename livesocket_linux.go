package checkpointdb

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// fitsAddress tells whether a path can be the address of a socket as it is. One
// that begins with @ would not be the path of a file.
func fitsAddress(path string) bool {
	return len(path) <= maxSocketPath && !strings.HasPrefix(path, "@")
}

// listenIn listens on a new socket born, a name in dir. beside is the path of
// another file in dir.
func listenIn(dir *os.Root, beside, born string) (*net.UnixListener, error) {
	path := filepath.Join(filepath.Dir(beside), born)
	if !fitsAddress(path) {
		parent, err := dir.Open(filepath.Dir(born))
		if err != nil {
			return nil, err
		}
		defer parent.Close()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", parent.Fd(), filepath.Base(born))
	}
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
}

// openPath is O_PATH, which package syscall lacks: a descriptor that only stands
// for a path, such as that of a socket, which cannot be opened otherwise.
const openPath = 0x200000

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	if !fitsAddress(path) {
		fd, err := syscall.Open(path, openPath|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer syscall.Close(fd)
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
