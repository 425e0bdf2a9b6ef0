//go:build unix

// Package syncdir makes the names in a directory durable.
package syncdir

import (
	"errors"
	"os"
	"syscall"
)

// Sync returns when the names in dir are durable. Some network and user-space
// file systems have no sync for directories; there is nothing more to be had from
// them, and that is no error.
func Sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
