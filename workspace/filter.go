package workspace

import (
	"io/fs"
	"path"
	"strings"
)

// Filter answers a question about one path of a workspace, which is relative to
// its root and '/'-separated. It is called on the goroutine that called Capture
// or Restore, and may be called more than once for a path, because a capture
// starts again when the tree changes under it. The path need not be valid in a
// checkpoint.
type Filter func(path string, d fs.DirEntry) bool

// DefaultExclude is the Filter that keeps .git, node_modules and all names that
// start with .env out of a checkpoint, at every depth, files and directories.
func DefaultExclude(p string, _ fs.DirEntry) bool {
	name := path.Base(p)
	return name == ".git" || name == "node_modules" || strings.HasPrefix(name, ".env")
}

// scope is the border that an Exclude and an Include draw together.
type scope struct{ exclude, include Filter }

func newScope(exclude, include Filter) scope {
	if exclude == nil {
		exclude = DefaultExclude
	}
	return scope{exclude, include}
}

// leavesOut reports whether the path itself is outside. That its parents are
// inside is the caller's to know.
func (s scope) leavesOut(p string, d fs.DirEntry) bool {
	return s.exclude(p, d) && (s.include == nil || !s.include(p, d))
}
