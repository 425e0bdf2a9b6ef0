package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// checkNames fails when the file system of the target cannot hold the names of
// the checkpoint side by side. Which names it takes for one is for it to say,
// every system has tables of its own, so those that look doubtful are tried out
// in the marker's directory.
func (r *restorer) checkNames() error {
	siblings := make(map[string][]string)
	for _, p := range r.paths {
		name := path.Base(p)
		if runtime.GOOS == "windows" {
			if rule := windowsNameRule(name); rule != "" {
				return refuse(ErrNameClash, p, "cannot be a name on Windows: %s", rule)
			}
		}
		siblings[path.Dir(p)] = append(siblings[path.Dir(p)], name)
	}
	maps.DeleteFunc(siblings, func(_ string, names []string) bool { return !doubtful(names) })
	if len(siblings) == 0 {
		return nil
	}
	const trial = markerDir + "/names"
	defer r.root.RemoveAll(trial) // what stays goes with the marker
	if err := r.root.Mkdir(trial, 0o700); err != nil {
		return err
	}
	// One letter tells about case, one about composed and decomposed forms.
	if clash, err := r.tryNames(trial, []string{"a\u00e4", "A\u00e4", "aa\u0308"}); err == nil && clash == "" {
		return nil
	}
	for i, dir := range slices.Sorted(maps.Keys(siblings)) {
		sub := fmt.Sprintf("%s/%d", trial, i)
		if err := r.root.Mkdir(sub, 0o700); err != nil {
			return err
		}
		name, err := r.tryNames(sub, siblings[dir])
		p := path.Join(dir, name)
		if err != nil {
			return coded(ErrNameClash, pathError(p, err))
		}
		if name != "" {
			return refuse(ErrNameClash, p, "has the name of another entry beside it, as this file system sees it")
		}
	}
	return nil
}

// doubtful reports whether any file system might take two of the names for one.
// Beyond ASCII only the file system knows.
func doubtful(names []string) bool {
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if strings.ContainsFunc(name, func(c rune) bool { return c >= 0x80 }) {
			return len(names) > 1
		}
		lower := strings.ToLower(name)
		if seen[lower] {
			return true
		}
		seen[lower] = true
	}
	return false
}

// tryNames makes files of these names in dir and returns the first one that is
// already there, "" for none.
func (r *restorer) tryNames(dir string, names []string) (string, error) {
	for _, name := range names {
		stored := name
		if r.opts.mapsName != nil {
			stored = r.opts.mapsName(name)
		}
		f, err := r.root.OpenFile(join(dir, stored), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return name, nil
		}
		if err != nil {
			return name, err
		}
		f.Close()
	}
	return "", nil
}

// windowsNameRule returns the rule of Windows for file names that name breaks,
// "" for none. Some of them Windows does not enforce but obeys: "a:b" writes to
// a hidden stream of the file "a", and "con" to the console.
func windowsNameRule(name string) string {
	for i := range len(name) {
		if c := name[i]; c < 0x20 || strings.IndexByte(`<>:"|?*`, c) >= 0 {
			return fmt.Sprintf("it has the character %q", c)
		}
	}
	if last := name[len(name)-1]; last == '.' || last == ' ' {
		return "it ends in a dot or a space"
	}
	base, _, _ := strings.Cut(name, ".")
	base = strings.ToUpper(strings.TrimRight(base, " "))
	switch base {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return "it is that of a device"
	}
	if port, ok := strings.CutPrefix(base, "COM"); ok && isPortNumber(port) {
		return "it is that of a device"
	}
	if port, ok := strings.CutPrefix(base, "LPT"); ok && isPortNumber(port) {
		return "it is that of a device"
	}
	return ""
}

// isPortNumber also knows the superscript digits, as Windows does.
func isPortNumber(s string) bool {
	return len(s) == 1 && s[0] >= '0' && s[0] <= '9' || s == "¹" || s == "²" || s == "³"
}
