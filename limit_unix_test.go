//go:build linux || darwin

package checkpointdb

import (
	"os/signal"
	"syscall"
)

// limitFileSize makes writes beyond so many bytes of any file fail with EFBIG.
func limitFileSize(bytes uint64) bool {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit) != nil {
		return false
	}
	limit.Cur = bytes
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit) == nil
}
