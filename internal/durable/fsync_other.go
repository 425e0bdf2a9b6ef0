//go:build !unix

package durable

import "os"

// syncDirs does nothing: a directory can't be synced here.
func syncDirs(string) error { return nil }

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0) // Windows syncs only what is open for writing
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
