package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb"
	"checkpointdb/buckets"
)

// CaptureOptions says what to capture. The zero value is a good default.
type CaptureOptions struct {
	// Policy decides what is outside.
	Policy Policy
	// Exclude decides in place of Policy.Patterns; nil leaves it to them.
	Exclude Filter
	// Include takes back some of what Exclude, Policy.Patterns and ignore files
	// left out; nil means nothing.
	Include Filter
	// Protect is called after all files are hashed and before the bucket is asked
	// for the first, with the key of every file, each once; and again when the
	// capture has to start again. It promises that no sweep deletes them before
	// they are appended, and returns those that can be missing in the bucket; the
	// others are not looked for. Bind it to [checkpointdb.Store.Protect] and the
	// thread's writer. Nil: nothing is promised, so no sweep may run until the
	// Append.
	Protect func(ctx context.Context, keys []checkpointdb.BlobKey) (unused []checkpointdb.BlobKey, err error)

	// Index is a file in which captures of this directory remember its files, so
	// that the next one does not read those that have not changed since, as told
	// by size, modification and change time, inode and device. It is made when it
	// is missing or damaged, and best lies beside the store. Empty: every file is
	// read every time, as it is anyway on systems other than Linux and macOS.
	Index string

	// Secrets are values, by name, that must not get into the bucket: tokens, keys,
	// passwords. Where they occur in a file, zero bytes are stored in their place,
	// as many, so sizes stay. An error names the secret, never its value; one of
	// fewer than 4 bytes is refused. Only these bytes are found, not other spellings
	// of them, and only in the content of files, not in names and targets of links.
	// Index is not used, since its digests are of other bytes. A Rewind to the
	// checkpoint puts the zeros into the directory.
	Secrets map[string]string

	// Own names files and directories of the program that may lie in dir, such as
	// the store's database, and are left out with the temporary files beside them
	// (name and ".tmp" at the end). They need not be there. The bucket's directory,
	// where it is local, and Index are left out without being named.
	Own []string

	hook func(point, path string) // for tests: called where the tree may change
}

// Captured is the result of a capture.
type Captured struct {
	Files         []checkpointdb.Entry // by the bytes of the path; the caller's own
	Skipped       []Skipped            // what the policy left out for its size or kind, by path
	Policy        Policy               // that was followed; to be stored, see Policy.Artifact
	Uploaded      int                  // blobs that were not in the bucket yet
	UploadedBytes int64
}

// A capture starts again when the tree changes under it, so often and after so
// long a pause. The end of a turn is when editors and watchers tidy up.
const (
	captureAttempts = 3
	capturePause    = 50 * time.Millisecond
)

// Capture stores the bytes of all files under dir in the bucket, each content
// once, and returns the entries of a checkpoint for dir.
//
// A directory has an entry only when nothing beneath it has one, be it empty or
// full of things that are left out, since a restore makes the others anyway.
//
// Bytes that Capture uploads are durable when it returns. A blob that is in the
// bucket already is trusted by its size. After an error the bucket may hold
// blobs that no checkpoint names; they are reused by the next capture or swept.
// Names that no checkpoint can hold, special files and too large files are
// found before anything is stored.
//
// Capture is not a snapshot of one instant: it sees each file as it was at some
// moment while it ran, and size and key in an entry always belong to the stored
// bytes. When a file or directory changes while it is being read, the capture
// starts again, and gives up with ErrTreeChanged after a few times.
//
// A directory in which a Restore did not finish is refused with
// ErrRestoreUnfinished: it is a mixture of two states that nobody ever had.
//
// Capture may be called from many goroutines, for one directory too. Contents
// are streamed; memory does not grow with the size of files, only with their
// number.
func Capture(ctx context.Context, dir string, bucket *blob.Bucket, opts *CaptureOptions) (Captured, error) {
	if opts == nil {
		opts = &CaptureOptions{}
	}
	result, err := capture(ctx, dir, bucket, *opts)
	if err != nil {
		return Captured{}, wrap("capture", err)
	}
	return result, nil
}

func capture(ctx context.Context, dir string, bucket *blob.Bucket, opts CaptureOptions) (Captured, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Captured{}, err
	}
	defer root.Close()
	if state, found, err := readMarker(root); err != nil {
		return Captured{}, err
	} else if found {
		return Captured{}, coded(ErrRestoreUnfinished, &UnfinishedError{Dir: dir, CheckpointID: state.CheckpointID})
	}
	scope, err := newScope(opts.Policy, opts.Exclude, opts.Include)
	if err != nil {
		return Captured{}, err
	}
	secrets, err := newSecrets(opts.Secrets)
	if err != nil {
		return Captured{}, err
	}
	indexFile := opts.Index
	if len(secrets) > 0 {
		indexFile = ""
	}
	own := newOwnFiles(bucket, append([]string{opts.Index}, opts.Own...)...)
	rootInfo, err := own.checkWorkspace(root, dir)
	if err != nil {
		return Captured{}, err
	}
	c := &capturer{
		root:   root,
		info:   rootInfo,
		bucket: bucket,
		opts:   opts,
		scope:  scope,
		own:    own,
		index:  openIndex(indexFile),

		secrets: secrets,
	}
	for attempt := 1; ; attempt++ {
		err := c.attempt(ctx)
		if err == nil {
			c.index.save()
			return c.result, nil
		}
		c.index.distrust()
		if attempt == captureAttempts || !errors.Is(err, ErrTreeChanged) {
			return Captured{}, err
		}
		select {
		case <-ctx.Done():
			return Captured{}, ctx.Err()
		case <-time.After(capturePause):
		}
	}
}

type capturer struct {
	root   *os.Root
	info   fs.FileInfo // of root
	bucket *blob.Bucket
	opts   CaptureOptions
	scope  *scope
	own    ownFiles
	index  *index // may be nil

	secrets secrets

	found []found // of the current attempt
	total int64   // bytes of the files found

	mu     sync.Mutex // guards result during the upload
	result Captured
}

// found is an entry and, for a regular file, what was last said about it: by the
// listing, then by the file that was read.
type found struct {
	entry checkpointdb.Entry
	info  fs.FileInfo
}

// attempt lists, hashes and uploads, in this order and each for the whole tree:
// nothing is stored before all names are known to be good, and all keys are
// known before the bucket is asked for the first.
func (c *capturer) attempt(ctx context.Context) error {
	c.found, c.total, c.result.Skipped = nil, 0, nil
	c.scope.reset()
	c.index.begin()
	dirs, err := c.readTree(ctx)
	if err != nil {
		return err
	}
	if _, err := c.list(dirs, ""); err != nil {
		return err
	}
	slices.SortFunc(c.result.Skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(c.found, func(a, b found) int { return strings.Compare(a.entry.Path, b.entry.Path) })
	// The keys are not known yet, but everything else is checked as it will be.
	if err := checkpointdb.ValidateFiles(c.entries()); err != nil {
		return err
	}
	if err := forEach(ctx, len(c.found), c.hash); err != nil {
		return err
	}
	if err := c.upload(ctx); err != nil {
		return err
	}
	for _, f := range c.found {
		if digest, ok := f.entry.BlobKey.Digest(); ok {
			c.index.remember(f.entry.Path, f.info, digest)
		}
	}
	c.result.Files = c.entries()
	c.result.Policy = c.policy()
	return nil
}

// policy returns what a restore has to know of this capture.
func (c *capturer) policy() Policy {
	p := c.scope.policy
	p.Patterns = slices.Clone(p.Patterns)
	p.Skipped = nil
	for _, s := range c.result.Skipped {
		p.Skipped = append(p.Skipped, s.Path)
	}
	p.Filtered = c.opts.Exclude != nil || c.opts.Include != nil
	return p
}

func (c *capturer) entries() []checkpointdb.Entry {
	entries := make([]checkpointdb.Entry, len(c.found))
	for i := range c.found {
		entries[i] = c.found[i].entry
	}
	return entries
}

// list collects the entries beneath dir, in an order that is always the same, and
// reports whether there are any.
func (c *capturer) list(dirs map[string]*listing, dir string) (some bool, err error) {
	for _, d := range dirs[dir].children {
		p := join(dir, d.Name())
		f := found{entry: checkpointdb.Entry{Path: p}}
		switch d.Type() {
		case 0:
			f.entry.Kind = checkpointdb.KindFile
			f.entry.BlobKey = checkpointdb.FileKey(checkpointdb.Digest{})
			if f.info, err = d.Info(); err != nil {
				break
			}
			// A name that is not valid could not be kept in the policy.
			if err = c.checkSize(p, f.info.Size()); err != nil && c.scope.policy.SkipTooLarge && utf8.ValidString(p) {
				c.result.Skipped = append(c.result.Skipped, Skipped{p, checkpointdb.CodeOf(err), f.info.Size()})
				continue
			}
		case fs.ModeSymlink:
			f.entry.Kind = checkpointdb.KindSymlink
			if f.entry.Target, err = c.root.Readlink(p); err != nil {
				err = errReplaced
			}
		case fs.ModeDir:
			var within bool
			within, err = c.list(dirs, p)
			if err == nil && within {
				some = true
				continue
			}
			f.entry.Kind = checkpointdb.KindDir
		default:
			if c.scope.policy.SkipSpecial {
				c.result.Skipped = append(c.result.Skipped, Skipped{Path: p, Reason: ErrSpecialFile})
				continue
			}
			err = refuse(ErrSpecialFile, p, "is a %s", describe(d.Type()))
		}
		if err != nil {
			return false, readError(p, err)
		}
		some = true
		c.found = append(c.found, f)
	}
	return some, nil
}

// hash reads a file and completes its entry.
func (c *capturer) hash(_ context.Context, i int, buf []byte) error {
	e := &c.found[i].entry
	if e.Kind != checkpointdb.KindFile {
		return nil
	}
	if digest, ok := c.index.lookup(e.Path, c.found[i].info); ok {
		e.BlobKey, e.Size = checkpointdb.FileKey(digest), c.found[i].info.Size()
		e.Executable = isExecutable(c.found[i].info.Mode())
		return nil
	}
	c.at("open", e.Path)
	f, err := openFile(c.root, e.Path, c.found[i].info)
	if err != nil {
		return readError(e.Path, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return readError(e.Path, err)
	}
	if p := c.scope.policy; max(p.MaxFileSize, p.MaxTotalSize) > 0 && before.Size() > c.found[i].info.Size() {
		return readError(e.Path, errWritten) // the limits were checked with the size in the listing
	}
	c.at("read", e.Path)
	// No further than the size it had, or a file that grows would never end.
	h := sha256.New()
	n, err := io.CopyBuffer(h, c.secrets.blank(io.LimitReader(f, before.Size()), before.Size()), buf)
	if err != nil {
		return readError(e.Path, err)
	}
	after, err := f.Stat()
	if err != nil {
		return readError(e.Path, err)
	}
	if n != before.Size() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return readError(e.Path, errWritten)
	}
	e.BlobKey = checkpointdb.FileKey(checkpointdb.Digest(h.Sum(nil)))
	e.Size = n
	e.Executable = isExecutable(before.Mode())
	c.found[i].info = after
	return nil
}

// upload puts what the bucket lacks. Files of equal content are one upload:
// stores limit how often one object may be written, and who is refused for that
// waits.
func (c *capturer) upload(ctx context.Context) error {
	first := make(map[checkpointdb.BlobKey]int) // of the files with that content
	for i := range c.found {
		if e := &c.found[i].entry; e.Kind == checkpointdb.KindFile {
			if _, ok := first[e.BlobKey]; !ok {
				first[e.BlobKey] = i
			}
		}
	}
	keys := slices.Sorted(maps.Keys(first))
	if c.opts.Protect != nil {
		var err error
		if keys, err = c.opts.Protect(ctx, keys); err != nil {
			return err
		}
	}
	var todo []int
	for _, key := range keys {
		if i, ok := first[key]; ok {
			todo = append(todo, i)
			delete(first, key)
		}
	}
	var reused checkpointdb.BlobKey // any one of those that were there; guarded by mu
	err := forEach(ctx, len(todo), func(ctx context.Context, i int, _ []byte) error {
		f := &c.found[todo[i]]
		var there bool
		// To look again, after a put that was refused, is part of it: the store may
		// have refused because somebody else was just putting the same.
		err := buckets.Retry(ctx, func(ctx context.Context) (err error) {
			there, err = hasBlob(ctx, c.bucket, f.entry.BlobKey, f.entry.Size)
			if err == nil && !there {
				err = c.put(ctx, f)
			}
			return err
		})
		if err != nil {
			return readError(f.entry.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if there {
			reused = f.entry.BlobKey
		} else {
			c.result.Uploaded++
			c.result.UploadedBytes += f.entry.Size
		}
		return nil
	})
	if err != nil || reused == "" {
		return err
	}
	// Another process may have given a blob its name and not yet made the name
	// durable. All file blobs lie in one directory, so one call serves for all.
	return buckets.Sync(ctx, c.bucket, string(reused))
}

// hasBlob reports whether the blob is in the bucket with the right size. A crash
// can leave an object of another size under a right name where a program wrote
// it without fsync; uploading it again heals that.
func hasBlob(ctx context.Context, bucket *blob.Bucket, key checkpointdb.BlobKey, size int64) (bool, error) {
	attrs, err := bucket.Attributes(ctx, string(key))
	if gcerrors.Code(err) == gcerrors.NotFound {
		return false, nil
	}
	return err == nil && attrs.Size == size, err
}

// put uploads the bytes that were hashed, or nothing.
func (c *capturer) put(ctx context.Context, f *found) error {
	c.at("put", f.entry.Path)
	file, err := openFile(c.root, f.entry.Path, f.info)
	if err != nil {
		return err
	}
	defer file.Close()
	v := newVerifier(c.secrets.blank(io.LimitReader(file, f.entry.Size), f.entry.Size), f.entry.Size, f.entry.BlobKey)
	err = buckets.WriteDurable(ctx, c.bucket, string(f.entry.BlobKey), f.entry.Size, v)
	if err != nil && v.err == errMismatch {
		return errWritten // whatever the driver made of it
	}
	return err
}

// checkSize counts a file, or says which limit it goes beyond.
func (c *capturer) checkSize(p string, size int64) error {
	if limit := c.scope.policy.MaxFileSize; limit > 0 && size > limit {
		return refuse(ErrFileTooLarge, p, "has %d bytes, more than the limit of %d", size, limit)
	}
	if limit := c.scope.policy.MaxTotalSize; limit > 0 && size > limit-c.total {
		return refuse(ErrTotalTooLarge, p, "has %d bytes, with which all files have more than the limit of %d", size, limit)
	}
	c.total += size
	return nil
}

func (c *capturer) at(point, path string) {
	if c.opts.hook != nil {
		c.opts.hook(point, path)
	}
}
