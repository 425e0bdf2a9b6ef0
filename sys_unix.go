//go:build unix && !aix && !solaris

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

// unlock lets go of the lock that bbolt put on the file. Closing it is not
// enough where bbolt has panicked: its memory map, which nobody can undo then,
// keeps the open file and with it the lock.
func unlock(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
