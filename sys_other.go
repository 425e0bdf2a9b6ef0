//go:build !unix

package checkpointdb

import "errors"

var errNoLocks = errors.New("no file locks")

func isQuota(error) bool { return false }

// syncDir does nothing where directories cannot be synced.
func syncDir(string) error { return nil }
