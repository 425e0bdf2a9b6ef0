package workspace

import (
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// maxIgnoreFile bounds what an ignore file costs: every path is compared with
// every line, and the file comes from the workspace.
const maxIgnoreFile = 256 << 10

// rule is one pattern of an ignore file, in the syntax of git.
type rule struct {
	glob     string // of package doublestar
	negated  bool   // takes back what rules before it ignore
	dirOnly  bool
	anchored bool // glob is for the whole path, otherwise for the name
}

// parseRules reads an ignore file. As in git, a line that is no pattern matches
// nothing.
func parseRules(text string) (rules []rule) {
	text = strings.TrimPrefix(text, "\ufeff")
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if r, ok := parseRule(line); ok && doublestar.ValidatePattern(r.glob) {
			rules = append(rules, r)
		}
	}
	return rules
}

// parseRule reads one line and reports whether it has a pattern.
func parseRule(line string) (r rule, ok bool) {
	if strings.HasPrefix(line, "#") {
		return rule{}, false
	}
	line = trimSpaces(line)
	line, r.negated = strings.CutPrefix(line, "!")
	line, r.dirOnly = strings.CutSuffix(line, "/")
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule{}, false
	}
	parts := strings.Split(escapeBraces(line), "/")
	for i, part := range parts {
		if len(part) > 2 && strings.Trim(part, "*") == "" {
			parts[i] = "**" // git takes more of them for two
		}
	}
	// What is in the directory, not the directory: doublestar would match both.
	if last := len(parts) - 1; last > 0 && parts[last] == "**" {
		parts = append(parts, "*")
	}
	r.glob = strings.Join(parts, "/")
	return r, true
}

// trimSpaces takes the spaces from the end of a line, but none that a backslash
// protects.
func trimSpaces(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = min(i+1, len(line))
	}
	return line[:end]
}

// escapeBraces protects what means something to doublestar and nothing to git.
func escapeBraces(glob string) string {
	var b strings.Builder
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '\\' && i+1 < len(glob):
			b.WriteByte(c)
			i++
		case c == '{' || c == '}':
			b.WriteByte('\\')
		}
		b.WriteByte(glob[i])
	}
	return b.String()
}

func (r *rule) matches(p string, isDir bool) bool {
	if r.dirOnly && !isDir {
		return false
	}
	if !r.anchored {
		p = path.Base(p)
	}
	return doublestar.MatchUnvalidated(r.glob, p)
}

// ignoreFiles holds ignore files by the directory they lie in, "" for the root.
type ignoreFiles map[string]ignoreFile

type ignoreFile struct {
	text  []byte
	rules []rule
}

func (f ignoreFiles) add(dir string, text []byte) {
	f[dir] = ignoreFile{text, parseRules(string(text))}
}

// ignores reports whether the path itself is ignored; that its parents are not
// is the caller's to know. The last rule that matches decides, in the file that
// is nearest to the path.
func (f ignoreFiles) ignores(p string, isDir bool) bool {
	if len(f) == 0 {
		return false
	}
	for dir := p; dir != ""; {
		dir = dir[:max(strings.LastIndexByte(dir, '/'), 0)]
		rules := f[dir].rules
		rel := strings.TrimPrefix(p[len(dir):], "/")
		for i := len(rules) - 1; i >= 0; i-- {
			if rules[i].matches(rel, isDir) {
				return !rules[i].negated
			}
		}
	}
	return false
}

// read takes up the ignore file of the directory dir, of which these are the
// entries, if it has one. A link is none, as in git.
func (f ignoreFiles) read(root *os.Root, dir, name string, entries []fs.DirEntry) error {
	for _, d := range entries {
		if d.Name() != name || !d.Type().IsRegular() {
			continue
		}
		p := join(dir, name)
		info, err := d.Info()
		if err != nil {
			return readError(p, err)
		}
		file, err := openFile(root, p, info)
		if err != nil {
			return readError(p, err)
		}
		defer file.Close()
		text, err := io.ReadAll(io.LimitReader(file, maxIgnoreFile+1))
		if err != nil {
			return readError(p, err)
		}
		if len(text) > maxIgnoreFile {
			return refuse(ErrFileTooLarge, p, "is an ignore file of more than %d bytes", maxIgnoreFile)
		}
		f.add(dir, text)
	}
	return nil
}

func parent(p string) string {
	return p[:max(strings.LastIndexByte(p, '/'), 0)]
}
