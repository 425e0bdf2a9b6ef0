package outfile

import (
	"crypto/rand"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// open lets others rename and remove the file while it is open, as unix does.
func open(name string, how uint32) (*os.File, error) {
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	handle, err := windows.CreateFile(path, windows.GENERIC_READ|windows.GENERIC_WRITE,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, how,
		windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(handle), name), nil
}

func openNew(name string) (*os.File, error) { return open(name, windows.CREATE_NEW) }

func openLeftover(name string) (*os.File, error) { return open(name, windows.OPEN_EXISTING) }

// lock takes the byte before the one that bbolt takes, for bbolt may write the
// file through the same handle.
func lock(file *os.File) error {
	err := windows.LockFileEx(windows.Handle(file.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{Offset: 1<<32 - 2, OffsetHigh: 1<<32 - 1})
	if err == windows.ERROR_LOCK_VIOLATION {
		return errBusy
	}
	return os.NewSyscallError("LockFileEx", err)
}

// keepOwner leaves that to what the directory hands down.
func keepOwner(*os.File, fs.FileInfo) error { return nil }

// Unnamed makes a file that the system removes when it is closed, also by the
// end of a killed process. path is its name until then, with something unique
// added.
func Unnamed(path string) (*os.File, error) {
	return os.OpenFile(path+"-"+rand.Text(), os.O_RDWR|os.O_CREATE|os.O_EXCL|windows.FILE_FLAG_DELETE_ON_CLOSE, 0o600)
}
