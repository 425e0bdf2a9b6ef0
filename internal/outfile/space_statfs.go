//go:build linux || darwin

package outfile

import "golang.org/x/sys/unix"

func freeSpace(dir string) (bytes int64, known bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Blocks == 0 { // some file systems have no idea
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
