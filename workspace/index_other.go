//go:build !linux && !darwin

package workspace

import "io/fs"

// Without a change time that programs cannot set, a file could change unnoticed.
const hasStamps = false

func stampOf(fs.FileInfo) (stamp, bool) { return stamp{}, false }
