package outfile

import "golang.org/x/sys/windows"

func freeSpace(dir string) (bytes int64, known bool) {
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, false
	}
	var available uint64
	if windows.GetDiskFreeSpaceEx(path, &available, nil, nil) != nil {
		return 0, false
	}
	return int64(available), true
}
