//go:build unix

package checkpointdb

import (
	"errors"
	"os"
	"syscall"
)

// errNoLocks is what flock gives where a file system has no locks.
const errNoLocks = syscall.ENOLCK

func isQuota(err error) bool {
	return errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
