//go:build !linux

package checkpointdb

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// socketAddress returns the address of a socket's path, or an error that names
// the limit.
func socketAddress(path string) (*net.UnixAddr, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path %q has %d bytes, that of a socket can have %d on this system; a relative path may be shorter", path, len(path), maxSocketPath)
	}
	return &net.UnixAddr{Net: "unix", Name: path}, nil
}

// listenIn listens on a new socket born, a name in the directory of the file
// beside.
func listenIn(_ *os.Root, beside, born string) (*net.UnixListener, error) {
	address, err := socketAddress(filepath.Join(filepath.Dir(beside), born))
	if err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", address)
}

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	address, err := socketAddress(path)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", address.Name)
}
