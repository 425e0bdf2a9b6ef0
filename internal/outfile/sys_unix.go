//go:build unix && !aix && !solaris

package outfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func openNew(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// openLeftover follows no link and waits for no pipe, whatever took the place of
// the file that was looked at.
func openLeftover(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

func lock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errBusy
	}
	return os.NewSyscallError("flock", err)
}

// keepOwner gives file mode and owner of the one it will replace.
func keepOwner(file *os.File, old fs.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	was, is := old.Sys().(*syscall.Stat_t), info.Sys().(*syscall.Stat_t)
	if was.Uid != is.Uid || was.Gid != is.Gid {
		if err := file.Chown(int(was.Uid), int(was.Gid)); err != nil {
			return err
		}
	}
	return file.Chmod(old.Mode().Perm())
}

// Unnamed makes a file that no name leads to any more, so that not even a killed
// process leaves it behind. path is its name for a moment; what is there goes.
func Unnamed(path string) (*os.File, error) {
	for {
		file, err := openNew(path)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		// Of another run at the same moment, this takes the name alone.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if file != nil {
				file.Close()
			}
			return nil, err
		}
		if file != nil {
			return file, nil
		}
	}
}
