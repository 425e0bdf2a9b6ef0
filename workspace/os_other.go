//go:build !unix

package workspace

import "os"

const (
	openFlags    = os.O_RDONLY
	openDirFlags = os.O_RDONLY
)

// Windows derives the permission bits from file attributes; they say nothing
// about who may execute a file.
const hasExecutableBit = false

// syncDir does nothing: Windows cannot flush a directory.
func syncDir(*os.Root, string) error { return nil }
