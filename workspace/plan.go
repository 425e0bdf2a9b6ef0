package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"

	"checkpointdb"
)

// plan is what has to be done to the target, in the order of the fields.
type plan struct {
	removals []string // what a directory holds comes before it
	mkdirs   []string // a directory comes before what it holds
	files    []*wanted
	links    []*wanted

	want  map[string]*wanted // every path that is to be there
	paths []string           // the keys of want, sorted

	made    map[string]bool // of mkdirs, those that were not there by then
	missing map[string]bool // of mkdirs, those that failed
}

// wanted is a path that is to be there, and what the target has under it.
type wanted struct {
	entry  *checkpointdb.Entry // nil for a directory that only its content implies
	exists bool
	same   bool
	info   fs.FileInfo // of a file that may be the same, by all but its content
}

func (w *wanted) kind() checkpointdb.EntryKind {
	if w.entry == nil {
		return checkpointdb.KindDir
	}
	return w.entry.Kind
}

// makePlan compares the target with the manifest. It changes nothing.
func (r *restorer) makePlan(ctx context.Context, files []checkpointdb.Entry) error {
	r.want = make(map[string]*wanted, len(files))
	r.made, r.missing = make(map[string]bool), make(map[string]bool)
	for i := range files {
		r.want[files[i].Path] = &wanted{entry: &files[i]}
	}
	for i := range files {
		for dir := path.Dir(files[i].Path); dir != "." && r.want[dir] == nil; dir = path.Dir(dir) {
			r.want[dir] = &wanted{}
		}
	}
	if r.root != nil {
		if _, err := r.survey(ctx, "", r.info, false); err != nil {
			return err
		}
		if err := r.compareContents(ctx); err != nil {
			return err
		}
	}
	r.paths = slices.Sorted(maps.Keys(r.want))
	for _, p := range r.paths {
		w := r.want[p]
		switch {
		case w.same:
		case w.kind() == checkpointdb.KindDir:
			r.mkdirs = append(r.mkdirs, p)
		case w.kind() == checkpointdb.KindSymlink:
			r.links = append(r.links, w)
		default:
			r.files = append(r.files, w)
			r.report.Bytes += w.entry.Size
		}
		switch {
		case w.entry == nil:
			if w.exists && !w.same {
				r.report.Removed = append(r.report.Removed, p)
			}
		case w.same:
			r.report.Unchanged++
		case w.exists:
			r.report.Replaced = append(r.report.Replaced, p)
		default:
			r.report.Written = append(r.report.Written, p)
		}
	}
	slices.Sort(r.report.Removed)
	return nil
}

// chosen are the paths that a restore is restricted to.
type chosen struct {
	set    map[string]bool
	digest string // tells one choice from another; "" for all paths
}

// choose returns the entries that are to be restored.
func (r *restorer) choose(files []checkpointdb.Entry) ([]checkpointdb.Entry, error) {
	if r.opts.Paths == nil {
		return files, nil
	}
	r.chosen.set = make(map[string]bool)
	missing := make(map[string]bool)
	for _, p := range r.opts.Paths {
		r.chosen.set[p], missing[p] = true, true
	}
	h := sha256.New()
	for _, p := range slices.Sorted(maps.Keys(r.chosen.set)) {
		fmt.Fprintf(h, "%q\n", p)
	}
	r.chosen.digest = hex.EncodeToString(h.Sum(nil))
	var some []checkpointdb.Entry
	for i := range files {
		if p := files[i].Path; r.chosen.holds(p) {
			some = append(some, files[i])
			for ; p != ""; p = parent(p) {
				delete(missing, p)
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(missing)) {
		return nil, refuse(checkpointdb.ErrInvalidArgument, p, "is not in checkpoint %q", r.id)
	}
	return some, nil
}

// holds reports whether p is one of the chosen paths, or beneath one.
func (c *chosen) holds(p string) bool {
	for ; p != ""; p = parent(p) {
		if c.set[p] {
			return true
		}
	}
	return false
}

// survey walks dir in the target. outside says that dir lies outside the
// workspace's border. It reports whether dir holds anything outside that the
// checkpoint does not have, which must stay.
func (r *restorer) survey(ctx context.Context, dir string, info fs.FileInfo, outside bool) (stays bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	children, err := readDir(r.root, dir, info)
	if err != nil {
		return false, readError(dir, err)
	}
	if name := r.scope.policy.IgnoreFile; name != "" && !outside {
		if err := r.scope.here.read(r.root, dir, name, children); err != nil {
			return false, err
		}
	}
	own := r.own.namesIn(info)
	for _, d := range children {
		p := join(dir, d.Name())
		if isMarker(p) {
			continue
		}
		w := r.want[p]
		if r.own.has(d, own) {
			if w != nil {
				return false, refuse(ErrTargetRefused, p, "is one of the program's own files, and in the checkpoint too")
			}
			stays = true
			continue
		}
		if r.opts.Paths != nil && !r.chosen.holds(p) {
			if w == nil {
				stays = true
				continue
			}
			if !d.IsDir() {
				return false, refuse(ErrTargetRefused, p, "is no directory, and is not to be changed")
			}
		}
		outside := outside || r.scope.leavesOut(p, d) || r.scope.skips(p, d)
		if w == nil && outside {
			stays = true
			continue
		}
		if w == nil && !r.opts.Rewind {
			return false, r.notEmpty(p, "is not in")
		}
		within := false
		if d.IsDir() {
			info, err := d.Info()
			if err == nil {
				within, err = r.survey(ctx, p, info, outside)
			}
			if err != nil {
				return false, readError(p, err)
			}
		}
		wantsDir := w != nil && w.kind() == checkpointdb.KindDir
		switch {
		case w == nil && within:
			stays = true
		case w == nil:
			r.removals = append(r.removals, p)
			r.report.Removed = append(r.report.Removed, p)
		case d.IsDir() && wantsDir:
			w.exists, w.same = true, true
		case within:
			return false, refuse(ErrTargetRefused, p, "is a directory with excluded content and a %s in the checkpoint", w.kind())
		case d.IsDir() || wantsDir:
			w.exists = true
			r.removals = append(r.removals, p) // a rename does not replace these
		default:
			w.exists = true
			r.compare(p, d, w)
		}
		if w != nil && !w.same && w.info == nil && !r.opts.Rewind {
			return false, r.notEmpty(p, "differs from")
		}
	}
	return stays, nil
}

// compare looks at everything but the content of a file.
func (r *restorer) compare(p string, d fs.DirEntry, w *wanted) {
	switch e := w.entry; {
	case e.Kind == checkpointdb.KindSymlink && d.Type() == fs.ModeSymlink:
		target, err := r.root.Readlink(p)
		w.same = err == nil && target == e.Target
	case e.Kind == checkpointdb.KindFile && d.Type().IsRegular():
		info, err := d.Info()
		if err != nil || info.Size() != e.Size {
			return
		}
		// A mode is not changed in place: the file may have another name outside
		// the target, which would get the mode as well.
		if hasExecutableBit && isExecutable(info.Mode()) != e.Executable {
			return
		}
		w.info = info
	}
}

// compareContents finds out which of the files that may be the same are. A file
// that cannot be read counts as different.
func (r *restorer) compareContents(ctx context.Context) error {
	var maybe []*wanted
	for _, w := range r.want {
		if w.info != nil {
			maybe = append(maybe, w)
		}
	}
	return forEach(ctx, len(maybe), func(_ context.Context, i int, buf []byte) error {
		w := maybe[i]
		w.same = r.sameContent(w, buf)
		if !w.same && !r.opts.Rewind {
			return r.notEmpty(w.entry.Path, "differs from")
		}
		return nil
	})
}

func (r *restorer) sameContent(w *wanted, buf []byte) bool {
	f, err := openFile(r.root, w.entry.Path, w.info)
	if err != nil {
		return false
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(h, io.LimitReader(f, w.entry.Size+1), buf)
	return err == nil && n == w.entry.Size &&
		checkpointdb.FileKey(checkpointdb.Digest(h.Sum(nil))) == w.entry.BlobKey
}

func (r *restorer) notEmpty(p, relation string) error {
	return refuse(ErrTargetNotEmpty, p, "is in %q and %s checkpoint %q; restore into an empty directory or set Rewind", r.dir, relation, r.id)
}
