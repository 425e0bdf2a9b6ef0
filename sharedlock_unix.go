//go:build unix && !aix && !solaris

package checkpointdb

import (
	"errors"
	"os"
	"syscall"
)

// lockShared keeps stores from opening f for writing as long as f is open, unless
// one has it open so already.
func lockShared(f *os.File) lockState {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	switch {
	case err == nil:
		return lockHeld
	case errors.Is(err, syscall.EWOULDBLOCK):
		return lockBusy
	}
	return lockUnknown // a file system without locks, where no store can have it open
}
