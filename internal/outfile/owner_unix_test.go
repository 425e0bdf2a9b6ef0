//go:build unix

package outfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A store that root compacts still belongs to who runs it.
func TestReplaceKeepsOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := filepath.Join(t.TempDir(), "out")
	put(t, path, "old")
	must(t, os.Chown(path, 1234, 1235))
	f, err := Replace(path)
	must(t, err)
	must(t, f.Commit())
	info, err := os.Stat(path)
	must(t, err)
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 1234 || s.Gid != 1235 {
		t.Errorf("belongs to %d:%d", s.Uid, s.Gid)
	}
}
