package workspace

import (
	"io/fs"
	"syscall"
)

const hasStamps = true

func stampOf(info fs.FileInfo) (stamp, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, false
	}
	return stamp{
		size: st.Size, modified: st.Mtimespec.Nano(), changed: st.Ctimespec.Nano(),
		inode: int64(st.Ino), device: int64(st.Dev),
	}, true
}
