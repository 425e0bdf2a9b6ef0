package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb"
	"checkpointdb/buckets"
)

// RestoreOptions says how to restore. The zero value never destroys anything.
type RestoreOptions struct {
	// Rewind lets the restore replace what differs and remove what the
	// checkpoint does not have and Exclude and Include do not leave out.
	Rewind bool
	// DryRun changes nothing and reports what would be changed. It finds all
	// that a real run finds before its first change, save clashes of names.
	DryRun bool
	// Policy decides what is outside; nil means the one that was stored with the
	// checkpoint ([Policy.Artifact]), or the zero Policy where there is none.
	Policy *Policy
	// Exclude decides in place of the policy's patterns; nil leaves it to them.
	Exclude Filter
	// Include takes back some of what Exclude, the patterns and ignore files left
	// out; nil means nothing.
	Include Filter

	// Paths restricts the restore to these paths of the checkpoint and what lies
	// beneath them. What is elsewhere in dir stays as it is, also with Rewind. A
	// path that the checkpoint does not have is refused. nil: all.
	Paths []string

	// Before is called when the restore is about to replace or remove something,
	// after all checks and before the first change, with what will be changed. An
	// error from it keeps the restore from changing anything. This is where to
	// make a rewind undoable: Capture dir here, with a policy that leaves out no
	// more than that of the restore, and keep the result; restoring that is the
	// undo. Not called when the restore finishes one that was interrupted: what
	// was there before that is no longer there.
	Before func(ctx context.Context, planned Report) error

	// Progress is called while the restore changes dir, at most ten times a second
	// and at the end, on any goroutine but never on two at a time. The restore
	// waits for it.
	Progress func(RestoreProgress)

	// Own names files and directories of the program that may lie in dir, as in
	// CaptureOptions. They and the directory of a local bucket are never removed
	// or replaced: a checkpoint that has something in their place is refused with
	// ErrTargetRefused.
	Own []string

	hook     func(point, path string) // for tests: called where the process may die
	mapsName func(name string) string // for tests: how the file system maps names
}

// Report says what a restore changed, or would change. The paths are sorted.
type Report struct {
	Written   []string // entries of the checkpoint that were not there
	Replaced  []string // entries that were there and different
	Removed   []string // what the checkpoint does not have
	Unchanged int      // entries that were there and equal
	Bytes     int64    // size of the files among Written and Replaced
}

// Restore makes dir equal to the checkpoint, of which it uses ID, Files and, for
// a policy among them, Artifacts. The conversation is none of its business: it is
// in the checkpoint already, to be given to the agent or to the SaveThread of a
// store. So whoever wants the conversation alone does not call Restore.
//
// Without options.Rewind it only adds: dir is made when it is missing, and when
// it holds anything that the restore would have to replace or remove, nothing
// is changed and the error is ErrTargetNotEmpty. With Rewind it replaces and
// removes too. What is outside, see the package's comment, is never removed, and
// never written unless the checkpoint has it. A file system's root, the user's home
// directory and the directories above it are refused as targets of a Rewind.
// A link to a directory stands for the directory.
//
// Before the first change it has checked that the manifest is valid, that every
// blob is in the bucket with the right size, and that the file system can hold
// the names side by side. Every file is verified against its size and digest
// while it is written under a temporary name, and renamed into place whole, so
// a damaged blob never shows up as a file. Files that are equal already stay
// untouched. Links in dir are replaced and never followed, and nothing outside
// dir is changed whatever dir and checkpoint hold.
//
// When something cannot be restored, the rest still is, and the error is
// ErrRestoreIncomplete with an IncompleteError that lists what failed. Then, and
// when the process is killed or ctx ends, a marker stays in dir. Capture refuses
// such a directory, UnfinishedRestore recognises it, and the next Restore of the
// same checkpoint with the same options finishes the work; a Rewind to another
// checkpoint does too. When Restore returns nil, dir is equal to the checkpoint
// and holds no marker and no temporary files. That holds when the process dies;
// the files are not fsynced.
//
// Nobody else may write to dir meanwhile, not another Restore either; if they
// do, the result may be wrong, but still only inside dir. Contents are streamed;
// memory does not grow with the size of files, only with the number of entries.
func Restore(ctx context.Context, bucket *blob.Bucket, c checkpointdb.Checkpoint, dir string, opts *RestoreOptions) (Report, error) {
	if opts == nil {
		opts = &RestoreOptions{}
	}
	r := &restorer{
		bucket: bucket,
		id:     c.ID,
		dir:    dir,
		opts:   *opts,
		own:    newOwnFiles(bucket, opts.Own...),
	}
	if err := r.restore(ctx, c); err != nil {
		return Report{}, wrap("restore", err)
	}
	return r.report, nil
}

type restorer struct {
	bucket  *blob.Bucket
	id      checkpointdb.CheckpointID
	dir     string
	opts    RestoreOptions
	scope   *scope // nil while the target does not exist
	own     ownFiles
	chosen  chosen
	root    *os.Root    // nil while the target does not exist
	info    fs.FileInfo // of root
	resumed bool        // an earlier restore of the target did not finish
	plan
	report   Report
	failures failures
	progress progress
	down     atomic.Bool // the bucket, for so long that nobody waits for it any more
}

func (r *restorer) restore(ctx context.Context, c checkpointdb.Checkpoint) error {
	if err := c.ID.Validate(); err != nil {
		return err
	}
	if err := checkManifest(c.Files); err != nil {
		return err
	}
	files, err := r.choose(c.Files)
	if err != nil {
		return err
	}
	if err := r.openTarget(); err != nil {
		return err
	}
	defer func() {
		if r.root != nil {
			r.root.Close()
		}
	}()
	if err := r.checkMarker(); err != nil {
		return err
	}
	if r.root != nil {
		if r.scope, err = r.newScope(ctx, c); err != nil {
			return err
		}
	}
	if err := r.makePlan(ctx, files); err != nil {
		return err
	}
	if err := r.checkBlobs(ctx, files); err != nil {
		return err
	}
	if r.opts.DryRun {
		return nil
	}
	if r.opts.Before != nil && !r.resumed && len(r.report.Replaced)+len(r.report.Removed) > 0 {
		if err := r.opts.Before(ctx, r.report); err != nil {
			return err
		}
	}
	if r.root == nil {
		if err := os.MkdirAll(r.dir, 0o777); err != nil {
			return pathError(r.dir, err)
		}
		if r.root, err = openRoot(r.dir); err != nil {
			return err
		}
	}
	return r.apply(ctx)
}

func checkManifest(files []checkpointdb.Entry) error {
	if err := checkpointdb.ValidateFiles(files); err != nil {
		return err
	}
	for i := range files {
		first, _, _ := strings.Cut(files[i].Path, "/")
		if isMarker(first) {
			return refuse(checkpointdb.ErrInvalidEntry, files[i].Path, "lies where restores keep their own state")
		}
	}
	return nil
}

// openTarget resolves links and ".." in the name of the target once, and works
// from then on with the directory it found, wherever that may be moved.
func (r *restorer) openTarget() error {
	if err := checkDirName(r.dir); err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		resolved, err = filepath.Abs(resolved)
	}
	if err != nil {
		return pathError(r.dir, err)
	}
	if r.opts.Rewind {
		if err := refuseRewind(resolved); err != nil {
			return err
		}
	}
	if r.root, err = openRoot(resolved); err != nil {
		return err
	}
	r.info, err = r.own.checkWorkspace(r.root, r.dir)
	return err
}

// refuseRewind refuses directories that a wrong variable names more often than
// anybody means to empty them.
func refuseRewind(dir string) error {
	if filepath.Dir(dir) == dir {
		return refuse(ErrTargetRefused, dir, "is the root of a file system; it is not rewound")
	}
	target, err := os.Stat(dir)
	if err != nil {
		return pathError(dir, err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil // there is none to protect
	}
	if resolved, err := filepath.EvalSymlinks(home); err == nil {
		home = resolved
	}
	for {
		if info, err := os.Stat(home); err == nil && os.SameFile(info, target) {
			return refuse(ErrTargetRefused, dir, "is or holds the home directory; it is not rewound")
		}
		up := filepath.Dir(home)
		if up == home {
			return nil
		}
		home = up
	}
}

// checkMarker finds out whether an earlier restore did not finish.
func (r *restorer) checkMarker() error {
	if r.root == nil {
		return nil
	}
	state, found, err := readMarker(r.root)
	if err != nil || !found {
		return err
	}
	may := state.CheckpointID == r.id || r.opts.Rewind
	if r.opts.Paths != nil { // the others may be the unfinished ones
		may = state.CheckpointID == r.id && state.Paths == r.chosen.digest
	}
	if !may {
		return coded(ErrRestoreUnfinished, &UnfinishedError{Dir: r.dir, CheckpointID: state.CheckpointID})
	}
	r.resumed = true
	return nil
}

// newScope draws the border for the target.
func (r *restorer) newScope(ctx context.Context, c checkpointdb.Checkpoint) (*scope, error) {
	var policy Policy
	if r.opts.Policy != nil {
		policy = *r.opts.Policy
	} else {
		var err error
		if policy, _, err = policyOf(ctx, c, r.bucket); err != nil {
			return nil, err
		}
		if policy.Filtered && r.opts.Exclude == nil && r.opts.Include == nil && r.opts.Rewind {
			return nil, refuse(ErrTargetRefused, r.dir, "is not rewound to checkpoint %q without the Exclude and Include that it was captured with, or a Policy", r.id)
		}
	}
	s, err := newScope(policy, r.opts.Exclude, r.opts.Include)
	if err != nil || policy.IgnoreFile == "" {
		return s, err
	}
	s.stored = make(ignoreFiles)
	for i := range c.Files {
		e := &c.Files[i]
		if e.Kind != checkpointdb.KindFile || path.Base(e.Path) != policy.IgnoreFile {
			continue
		}
		if e.Size > maxIgnoreFile {
			return nil, refuse(ErrFileTooLarge, e.Path, "is an ignore file of more than %d bytes", maxIgnoreFile)
		}
		text, err := readBlob(ctx, storedBlob{bucket: r.bucket, key: e.BlobKey, size: e.Size, checkpoint: r.id, name: e.Path})
		if err != nil {
			return nil, readError(e.Path, err)
		}
		s.stored.add(parent(e.Path), text)
	}
	if r.resumed {
		s.before, err = readIgnoreState(r.root)
	}
	return s, err
}

// checkBlobs asks the bucket for every blob of the manifest.
func (r *restorer) checkBlobs(ctx context.Context, files []checkpointdb.Entry) error {
	type object struct {
		key  checkpointdb.BlobKey
		size int64
	}
	seen := make(map[object]bool)
	var ask []*checkpointdb.Entry
	for i := range files {
		e := &files[i]
		if o := (object{e.BlobKey, e.Size}); e.Kind == checkpointdb.KindFile && !seen[o] {
			seen[o] = true
			ask = append(ask, e)
		}
	}
	err := forEach(ctx, len(ask), func(ctx context.Context, i int, _ []byte) error {
		e := ask[i]
		var attrs *blob.Attributes
		err := buckets.Retry(ctx, func(ctx context.Context) (err error) {
			attrs, err = r.bucket.Attributes(ctx, string(e.BlobKey))
			return err
		})
		switch {
		case gcerrors.Code(err) == gcerrors.NotFound:
			r.failures.add(e.Path, r.missingBlob(e))
		case err != nil:
			return pathError(e.Path, err)
		case attrs.Size != e.Size:
			r.failures.add(e.Path, r.damagedBlob(e, fmt.Sprintf("has %d bytes, not %d", attrs.Size, e.Size)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if failed := r.failures.error(r.id); failed != nil {
		return coded(checkpointdb.CodeOf(failed), failed)
	}
	return nil
}

func (r *restorer) missingBlob(e *checkpointdb.Entry) error {
	return coded(checkpointdb.ErrBlobMissing, &checkpointdb.BlobError{
		Key: e.BlobKey, CheckpointID: r.id, Path: e.Path, Problem: "is missing"})
}

func (r *restorer) damagedBlob(e *checkpointdb.Entry, problem string) error {
	return coded(checkpointdb.ErrBlobDamaged, &checkpointdb.BlobError{
		Key: e.BlobKey, CheckpointID: r.id, Path: e.Path, Problem: problem})
}

// apply carries out the plan, between setting and removing the marker.
func (r *restorer) apply(ctx context.Context) error {
	if err := r.setMarker(); err != nil {
		return pathError(markerDir, err)
	}
	r.at("marked", "")
	if err := r.checkNames(); err != nil {
		if !r.resumed {
			if markerErr := r.removeMarker(); markerErr != nil {
				err = errors.Join(err, pathError(markerDir, markerErr))
			}
		}
		return err
	}
	r.progress.start(r.opts.Progress, RestoreProgress{
		Total:      len(r.removals) + len(r.mkdirs) + len(r.files) + len(r.links),
		TotalBytes: r.report.Bytes,
	})
	err := r.change(ctx)
	r.progress.end()
	if failed := r.failures.error(r.id); failed != nil {
		err = errors.Join(failed, err)
	}
	if err == nil {
		r.at("unmark", "")
		if err = r.removeMarker(); err != nil {
			err = pathError(markerDir, err)
		}
	}
	if err != nil {
		return coded(ErrRestoreIncomplete, err)
	}
	return nil
}

// change does the removals first, since the names they free may be needed, also
// on file systems that take two names of the plan for one. Links come last, so
// that those of the manifest cannot be in anybody's way.
func (r *restorer) change(ctx context.Context) error {
	for _, p := range r.removals {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.progress.add(1, 0)
		if err := r.remove(p); err != nil {
			r.failures.add(p, err)
			continue
		}
		r.at("removed", p)
	}
	for _, p := range r.mkdirs {
		r.progress.add(1, 0)
		err := r.underMissing(p)
		if err == nil {
			r.made[p], err = r.mkdir(p, 0o777)
		}
		if err != nil {
			r.failures.add(p, err)
			r.missing[p] = true
			continue
		}
		r.at("made", p)
	}
	err := forEach(ctx, len(r.files), func(ctx context.Context, i int, buf []byte) error {
		w := r.files[i]
		err := r.underMissing(w.entry.Path)
		if err == nil {
			err = r.writeFile(ctx, i, w, buf)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.progress.add(1, 0)
		if err != nil {
			r.failures.add(w.entry.Path, err)
			return nil
		}
		r.at("wrote", w.entry.Path)
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range r.links {
		p := w.entry.Path
		r.progress.add(1, 0)
		err := r.underMissing(p)
		if err == nil {
			err = r.writeLink(w)
		}
		if err != nil {
			r.failures.add(p, err)
			continue
		}
		r.at("wrote", p)
	}
	return nil
}

// underMissing gives an error for what lies beneath a directory that could not
// be made. What has the directory's name instead may be a link to somewhere else
// in the target, and that is not where the checkpoint has the path.
func (r *restorer) underMissing(p string) error {
	if len(r.missing) == 0 {
		return nil
	}
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if r.missing[dir] {
			return fmt.Errorf("the directory %q is missing", dir)
		}
	}
	return nil
}

// writeFile makes one file, whole or not at all.
func (r *restorer) writeFile(ctx context.Context, i int, w *wanted, buf []byte) error {
	e := w.entry
	temp := fmt.Sprintf("%s/%d", markerDir, i)
	get := func(ctx context.Context) error { return r.download(ctx, temp, e, buf) }
	var err error
	if r.down.Load() {
		err = get(ctx)
	} else if err = buckets.Retry(ctx, get); buckets.IsTemporary(err) {
		r.down.Store(true)
	}
	if err != nil {
		return err
	}
	err = r.modify(e.Path, func() error {
		if !w.exists && !r.made[path.Dir(e.Path)] {
			// Rename would replace what turned up since the plan was made, or
			// is there under a name that the file system takes for this one.
			if _, err := r.root.Lstat(e.Path); err == nil {
				return fs.ErrExist
			}
		}
		return r.root.Rename(temp, e.Path)
	})
	if err != nil {
		r.root.Remove(temp) // if this fails too, the next restore does it
	}
	return err
}

// download makes the new file temp with the content of e, or nothing.
func (r *restorer) download(ctx context.Context, temp string, e *checkpointdb.Entry, buf []byte) error {
	reader, err := r.bucket.NewReader(ctx, string(e.BlobKey), nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return r.missingBlob(e)
	}
	if err != nil {
		return err
	}
	defer reader.Close()
	perm := fs.FileMode(0o666)
	if e.Executable {
		perm = 0o777
	}
	f, err := r.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	counted := &countingReader{newVerifier(reader, e.Size, e.BlobKey), &r.progress, 0}
	err = fill(f, counted, e.Size, buf)
	if err == errMismatch {
		err = r.damagedBlob(e, err.Error())
	}
	if err == nil && e.Executable {
		err = ensureExecutable(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		r.progress.add(0, -counted.bytes)
		r.root.Remove(temp) // if this fails too, the next restore does it
	}
	return err
}

// holeSize is the shortest stretch of zeros that is left out of a file, where it
// starts at a multiple of this. The file system reads a hole as zeros.
const holeSize = 64 << 10

var zeros [holeSize]byte

// fill writes size bytes from r to the empty file f.
func fill(f *os.File, r io.Reader, size int64, buf []byte) error {
	hole := false
	for off := int64(0); off < size; {
		n, err := io.ReadFull(r, buf[:min(holeSize, size-off)])
		if err != nil {
			return err
		}
		if n == holeSize && bytes.Equal(buf[:n], zeros[:]) {
			hole = true
		} else if _, err := f.WriteAt(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	if _, err := r.Read(buf[:1]); err != io.EOF {
		return err // the first look at the digest when the file is empty
	}
	if hole {
		return f.Truncate(size)
	}
	return nil
}

// ensureExecutable undoes a umask that takes away the one bit a checkpoint keeps.
func ensureExecutable(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !hasExecutableBit || isExecutable(info.Mode()) {
		return err
	}
	return f.Chmod(info.Mode() | 0o100)
}

// writeLink makes a link in place: Windows looks at the target, relative to the
// link, when one is made.
func (r *restorer) writeLink(w *wanted) error {
	p := w.entry.Path
	if w.exists {
		if err := r.remove(p); err != nil {
			return err
		}
	}
	return r.modify(p, func() error { return r.root.Symlink(w.entry.Target, p) })
}

// remove takes away a file, a link or an empty directory.
func (r *restorer) remove(p string) error {
	err := r.modify(p, func() error { return r.root.Remove(p) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mkdir sees to it that p is a directory and reports whether it made it.
func (r *restorer) mkdir(p string, perm fs.FileMode) (made bool, err error) {
	err = r.modify(p, func() error { return r.root.Mkdir(p, perm) })
	if errors.Is(err, fs.ErrExist) {
		if info, statErr := r.root.Lstat(p); statErr == nil && info.IsDir() {
			return false, nil
		}
	}
	return err == nil, err
}

// modify runs op, which adds, replaces or removes the name p, and when that is
// forbidden lets the owner write to p's directory and runs op again. The modes
// of directories are not part of a checkpoint.
func (r *restorer) modify(p string, op func() error) error {
	err := op()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	dir := path.Dir(p)
	info, statErr := r.root.Lstat(dir)
	if statErr != nil || !info.IsDir() || info.Mode()&0o300 == 0o300 {
		return err
	}
	if r.root.Chmod(dir, info.Mode()|0o700) != nil {
		return err
	}
	return op()
}

func (r *restorer) at(point, path string) {
	if r.opts.hook != nil {
		r.opts.hook(point, path)
	}
}

// failures collects what goes wrong for single paths. It may be used from many
// goroutines.
type failures struct {
	mu    sync.Mutex
	count int
	list  []*PathError
}

func (f *failures) add(p string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if len(f.list) < maxListed {
		f.list = append(f.list, pathError(p, err))
	}
}

func (f *failures) error(id checkpointdb.CheckpointID) error {
	if f.count == 0 {
		return nil
	}
	slices.SortFunc(f.list, func(a, b *PathError) int { return strings.Compare(a.Path, b.Path) })
	return &IncompleteError{CheckpointID: id, Count: f.count, Failed: f.list}
}
