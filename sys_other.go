//go:build !unix || aix || solaris

package checkpointdb

import (
	"errors"
	"os"
)

var errNoLocks = errors.New("no file locks")

func isQuota(error) bool { return false }

// unlock has nothing to do where locks go with the file.
func unlock(*os.File) {}
