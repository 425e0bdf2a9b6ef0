package workspace

import (
	"io/fs"
	"path"
	"strings"

	"checkpointdb"
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

// scope is the border that a Policy, an Exclude and an Include draw together.
type scope struct {
	policy  Policy
	exclude Filter
	include Filter          // may be nil
	skipped map[string]bool // by the capture that the policy comes from

	// The ignore files of the directory, as far as it was listed; for a restore
	// also those of the checkpoint that it goes to, and those that were in the
	// directory when a restore began that it finishes. What one ignores is outside.
	here, stored, before ignoreFiles
}

func newScope(policy Policy, exclude, include Filter) (*scope, error) {
	if err := policy.validate(); err != nil {
		return nil, err
	}
	if policy.Patterns == nil {
		policy.Patterns = DefaultPatterns()
	}
	s := &scope{policy: policy, exclude: exclude, include: include, skipped: make(map[string]bool)}
	if exclude == nil {
		patterns := make(ignoreFiles)
		patterns.add("", []byte(strings.Join(policy.Patterns, "\n")))
		s.exclude = func(p string, d fs.DirEntry) bool { return patterns.ignores(p, d.IsDir()) }
	}
	for _, p := range policy.Skipped {
		s.skipped[p] = true
	}
	s.reset()
	return s, nil
}

// reset forgets the ignore files of the directory, which is to be listed anew.
func (s *scope) reset() { s.here = make(ignoreFiles) }

// leavesOut reports whether the path itself is outside. That its parents are
// inside is the caller's to know.
func (s *scope) leavesOut(p string, d fs.DirEntry) bool {
	out := s.exclude(p, d) || s.here.ignores(p, d.IsDir()) || s.stored.ignores(p, d.IsDir()) || s.before.ignores(p, d.IsDir())
	return out && (s.include == nil || !s.include(p, d))
}

// skips reports whether a capture would have skipped what lies in the directory
// of a restore, or the one that made the checkpoint did.
func (s *scope) skips(p string, d fs.DirEntry) bool {
	switch d.Type() {
	case 0:
		if limit := s.policy.MaxFileSize; limit > 0 && s.policy.SkipTooLarge {
			if info, err := d.Info(); err == nil && info.Size() > limit {
				return true
			}
		}
	case fs.ModeDir, fs.ModeSymlink:
	default:
		if s.policy.SkipSpecial {
			return true
		}
	}
	return s.skipped[p]
}

// Skipped is something that a capture left out because the Policy says so.
type Skipped struct {
	Path   string
	Reason checkpointdb.Code // ErrSpecialFile, ErrFileTooLarge or ErrTotalTooLarge
	Size   int64             // bytes, of a file
}
