//go:build !unix || aix || solaris

package checkpointdb

import "os"

// lockShared takes no lock: those here belong to ranges of bytes or to whole
// processes, and taking bbolt's could keep read-only stores away, or give up the
// lock of a store in this process.
func lockShared(*os.File) lockState { return lockUnknown }
