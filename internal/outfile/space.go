package outfile

import (
	"fmt"
	"syscall"
)

// Room returns an error that says how much is needed and how much is free when
// the file system of dir is known to have no room for so many bytes. The error
// matches ENOSPC. Where free space cannot be known it returns nil, and a write
// has to tell.
func Room(dir string, bytes int64) error {
	free, known := freeSpace(dir)
	if !known || free >= bytes {
		return nil
	}
	return fmt.Errorf("%d bytes are needed in %q, %d are free: %w", bytes, dir, free, syscall.ENOSPC)
}
