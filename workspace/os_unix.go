//go:build unix

package workspace

import (
	"os"
	"syscall"
)

// Opening a named pipe without O_NONBLOCK waits for somebody to open its other
// end, and a file can become one at any moment. Reads of regular files and
// directories do not change with it.
const (
	openFlags    = os.O_RDONLY | syscall.O_NONBLOCK
	openDirFlags = openFlags | syscall.O_DIRECTORY
)

const hasExecutableBit = true

// syncDir makes the names in a directory durable.
func syncDir(root *os.Root, name string) error {
	f, err := root.OpenFile(name, openDirFlags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
