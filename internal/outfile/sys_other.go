//go:build !windows && (!unix || aix || solaris)

package outfile

import (
	"io/fs"
	"os"
)

func openNew(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func openLeftover(name string) (*os.File, error) { return os.OpenFile(name, os.O_RDWR, 0) }

// lock has no locks to take here.
func lock(*os.File) error { return nil }

func keepOwner(file *os.File, old fs.FileInfo) error { return file.Chmod(old.Mode().Perm()) }

// Unnamed makes a file that has no name for others to know.
func Unnamed(path string) (*os.File, error) {
	_ = os.Remove(path)
	file, err := openNew(path)
	if err == nil {
		_ = os.Remove(path)
	}
	return file, err
}
