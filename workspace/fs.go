package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb"
	"checkpointdb/buckets"
)

// FS returns a read-only view of a checkpoint, of which it uses ID, CreatedAt
// and Files. So [fs.WalkDir], [net/http.FileServerFS] and [os.CopyFS] work on a
// checkpoint that was never restored. A manifest that is not valid is an error
// that matches [checkpointdb.ErrInvalidEntry].
//
// The view is an [fs.StatFS], [fs.ReadDirFS], [fs.ReadFileFS] and
// [fs.ReadLinkFS]. Directories have mode 0555, and those that only paths imply
// are there too; files have 0444, or 0555 when executable; links have 0777. All
// times are CreatedAt. Sys of a [fs.FileInfo] is the [checkpointdb.Entry], whose
// BlobKey makes a good ETag, or nil for a directory without an entry. Links are
// followed inside the checkpoint and never lead out of it: one that is absolute,
// climbs above the root, goes in a circle or dangles is there for Lstat,
// ReadLink and ReadDir, and otherwise [fs.ErrNotExist].
//
// The bucket is asked for nothing before the first byte of a file is read. An
// open file is an [io.Seeker] and [io.ReaderAt], and fetches from where it is
// read on. A missing blob is [checkpointdb.ErrBlobMissing], one of another size
// [checkpointdb.ErrBlobDamaged], each with a [*checkpointdb.BlobError]. Bytes
// that are read in order from the first to the last, as ReadFile and a copy do,
// or all in one ReadAt, are verified: a damaged blob is ErrBlobDamaged in place
// of its last bytes, so who counts bytes never accepts it, nor who reads to
// io.EOF. What is read from elsewhere is part of a blob of the right size, and no
// more than that is known.
//
// Errors are [*fs.PathError], as package io/fs wants them. Their text has the
// name as it is, not quoted.
//
// ctx bounds all reads of the bucket: once it has ended they fail with its
// error, while names can still be looked up. It cannot come with each call,
// since the methods of fs.FS take none. A bucket that is busy when a stream is
// opened is waited for, see [buckets.Retry]; one that breaks later is an error of
// Read. The view may be used from many
// goroutines, an open file from one at a time, its ReadAt aside. A file must be
// closed, and the bucket must stay open. Memory grows with the number of
// entries; of contents only ReadFile holds more than the caller's buffer.
func FS(ctx context.Context, checkpoint checkpointdb.Checkpoint, bucket *blob.Bucket) (fs.FS, error) {
	if err := checkpointdb.ValidateFiles(checkpoint.Files); err != nil {
		return nil, wrap("fs", err)
	}
	return &checkpointFS{
		ctx:     ctx,
		bucket:  bucket,
		id:      checkpoint.ID,
		modTime: checkpoint.CreatedAt,
		root:    newNodes(checkpoint.Files),
	}, nil
}

// checkpointFS is the view. It is never changed.
type checkpointFS struct {
	ctx     context.Context
	bucket  *blob.Bucket
	id      checkpointdb.CheckpointID
	modTime time.Time
	root    *fsNode
}

// What fails for the kind of thing that has the name.
var (
	errIsDirectory  = errors.New("is a directory")
	errNotDirectory = errors.New("is not a directory")
)

// Open opens the file or directory that name leads to.
func (c *checkpointFS) Open(name string) (fs.File, error) {
	info, err := c.stat("open", name, true)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &fsDir{fsys: c, path: name, info: info}, nil
	}
	return &fsFile{fsys: c, path: name, info: info}, nil
}

// Stat describes the file or directory that name leads to.
func (c *checkpointFS) Stat(name string) (fs.FileInfo, error) {
	return infoOrNil(c.stat("stat", name, true))
}

// Lstat describes what has the name, be it a link.
func (c *checkpointFS) Lstat(name string) (fs.FileInfo, error) {
	return infoOrNil(c.stat("lstat", name, false))
}

// infoOrNil keeps a nil *fsInfo from becoming an interface that is not nil.
func infoOrNil(info *fsInfo, err error) (fs.FileInfo, error) {
	if err != nil {
		return nil, err
	}
	return info, nil
}

// ReadLink returns the target of a link as the checkpoint holds it.
func (c *checkpointFS) ReadLink(name string) (string, error) {
	const op = "readlink"
	info, err := c.stat(op, name, false)
	if err != nil {
		return "", err
	}
	if !info.node.isLink() {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return info.node.entry.Target, nil
}

// ReadDir lists a directory, sorted by name.
func (c *checkpointFS) ReadDir(name string) ([]fs.DirEntry, error) {
	const op = "readdir"
	info, err := c.stat(op, name, true)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &fs.PathError{Op: op, Path: name, Err: errNotDirectory}
	}
	return c.list(info.node.children), nil
}

// ReadFile returns the verified content of a file. It allocates nothing for a
// size that only the manifest claims.
func (c *checkpointFS) ReadFile(name string) ([]byte, error) {
	const op = "readfile"
	info, err := c.stat(op, name, true)
	if err != nil {
		return nil, err
	}
	data, err := c.readAll(info)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return data, nil
}

func (c *checkpointFS) readAll(info *fsInfo) ([]byte, error) {
	if info.IsDir() {
		return nil, errIsDirectory
	}
	r, err := c.blobOf(info).open(c.ctx, 0, info.Size())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The bucket has said that the blob has this size.
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	if _, err := r.Read(nil); err != io.EOF { // the first look at the digest when the file is empty
		return nil, err
	}
	return data, nil
}

func (c *checkpointFS) blobOf(info *fsInfo) storedBlob {
	e := info.node.entry
	return storedBlob{bucket: c.bucket, key: e.BlobKey, size: e.Size, checkpoint: c.id, name: e.Path}
}

func (c *checkpointFS) list(nodes []*fsNode) []fs.DirEntry {
	entries := make([]fs.DirEntry, len(nodes))
	for i, n := range nodes {
		entries[i] = fs.FileInfoToDirEntry(&fsInfo{node: n, name: n.name, modTime: c.modTime})
	}
	return entries
}

func (c *checkpointFS) stat(op, name string, follow bool) (*fsInfo, error) {
	err := fs.ErrInvalid
	if fs.ValidPath(name) {
		var n *fsNode
		if n, err = c.find(name, follow); err == nil {
			return &fsInfo{node: n, name: path.Base(name), modTime: c.modTime}, nil
		}
	}
	return nil, &fs.PathError{Op: op, Path: name, Err: err}
}

// maxHops is how many links one lookup follows, as many as on Linux.
const maxHops = 40

// find walks from the root to what has the name, and on to where that leads when
// it is a link and follow is set. A ".." in a link's target means the directory
// that holds the one reached so far, which need not be the one before it in the
// text.
func (c *checkpointFS) find(name string, follow bool) (*fsNode, error) {
	at, link, hops := c.root, "", 0
	for rest, more := name, true; more; {
		var part string
		part, rest, more = strings.Cut(rest, "/")
		if part == "" || part == "." {
			continue
		}
		if part == ".." { // only links have it, fs.ValidPath does not let it pass
			if at = at.parent; at == nil {
				return nil, leadsOut(link)
			}
			continue
		}
		n := at.child(part)
		switch {
		case n == nil:
			return nil, fs.ErrNotExist
		case n.isDir():
			at = n
		case n.isLink() && (more || follow):
			link = n.entry.Path
			if hops++; hops > maxHops {
				return nil, fmt.Errorf("more than %d links, the last is %q: %w", maxHops, link, fs.ErrNotExist)
			}
			target := n.entry.Target
			if target[0] == '/' {
				return nil, leadsOut(link)
			}
			if more {
				target += "/" + rest
			}
			rest, more = target, true
		case more:
			return nil, fs.ErrNotExist // beneath a file
		default:
			return n, nil
		}
	}
	return at, nil
}

func leadsOut(link string) error {
	return fmt.Errorf("the link %q leads out of the checkpoint: %w", link, fs.ErrNotExist)
}

// fsNode is an entry, or a directory that paths imply.
type fsNode struct {
	name     string
	parent   *fsNode             // nil for the root
	entry    *checkpointdb.Entry // nil for a directory without one
	children []*fsNode           // by name
}

// newNodes makes the nodes of a valid manifest and returns the root. For n
// entries it costs O(n log n) and reading all paths, however deep they are.
func newNodes(files []checkpointdb.Entry) *fsNode {
	files = slices.Clone(files) // the nodes point into it
	type place struct {
		parent *fsNode
		name   string
	}
	root := &fsNode{name: "."}
	dirs := make(map[place]*fsNode)
	add := func(parent *fsNode, name string) *fsNode {
		n := &fsNode{name: name, parent: parent}
		parent.children = append(parent.children, n)
		return n
	}
	makeDir := func(parent *fsNode, name string) *fsNode {
		n := dirs[place{parent, name}]
		if n == nil {
			n = add(parent, name)
			dirs[place{parent, name}] = n
		}
		return n
	}
	at, atPath := root, "" // entries of one directory mostly follow each other
	for i := range files {
		e := &files[i]
		slash := strings.LastIndexByte(e.Path, '/')
		if dir := e.Path[:max(slash, 0)]; dir != atPath {
			at, atPath = root, dir
			if slash >= 0 {
				for part := range strings.SplitSeq(dir, "/") {
					at = makeDir(at, part)
				}
			}
		}
		if name := e.Path[slash+1:]; e.Kind == checkpointdb.KindDir {
			makeDir(at, name).entry = e
		} else {
			add(at, name).entry = e // new for sure, since the manifest is valid
		}
	}
	byName := func(a, b *fsNode) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(root.children, byName)
	for _, n := range dirs {
		slices.SortFunc(n.children, byName)
	}
	return root
}

func (n *fsNode) isDir() bool  { return n.entry == nil || n.entry.Kind == checkpointdb.KindDir }
func (n *fsNode) isLink() bool { return n.entry != nil && n.entry.Kind == checkpointdb.KindSymlink }

// child returns the node of that name in a directory, nil when there is none.
func (n *fsNode) child(name string) *fsNode {
	i, found := slices.BinarySearchFunc(n.children, name, func(c *fsNode, name string) int {
		return strings.Compare(c.name, name)
	})
	if !found {
		return nil
	}
	return n.children[i]
}

// fsInfo is an [fs.FileInfo].
type fsInfo struct {
	node    *fsNode
	name    string // that it was asked for by, not that of a link's target
	modTime time.Time
}

func (i *fsInfo) Name() string       { return i.name }
func (i *fsInfo) ModTime() time.Time { return i.modTime }
func (i *fsInfo) IsDir() bool        { return i.node.isDir() }

func (i *fsInfo) Size() int64 {
	switch {
	case i.node.isDir():
		return 0
	case i.node.isLink():
		return int64(len(i.node.entry.Target))
	}
	return i.node.entry.Size
}

func (i *fsInfo) Mode() fs.FileMode {
	switch {
	case i.node.isDir():
		return fs.ModeDir | 0o555
	case i.node.isLink():
		return fs.ModeSymlink | 0o777
	case i.node.entry.Executable:
		return 0o555
	}
	return 0o444
}

func (i *fsInfo) Sys() any {
	if i.node.entry == nil {
		return nil
	}
	return *i.node.entry
}

// fsDir is an open directory.
type fsDir struct {
	fsys   *checkpointFS
	path   string // for errors
	info   *fsInfo
	next   int // index of the next child that ReadDir returns
	closed bool
}

func (d *fsDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *fsDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.path, Err: errIsDirectory}
}

func (d *fsDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.path, Err: fs.ErrClosed}
	}
	rest := d.info.node.children[d.next:]
	if n > 0 {
		if len(rest) == 0 {
			return nil, io.EOF
		}
		rest = rest[:min(n, len(rest))]
	}
	d.next += len(rest)
	return d.fsys.list(rest), nil
}

func (d *fsDir) Close() error {
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.path, Err: fs.ErrClosed}
	}
	d.closed = true
	return nil
}

// fsFile is an open file. Seeking costs nothing: only a Read that goes on
// elsewhere than the last one ended opens another stream.
type fsFile struct {
	fsys   *checkpointFS
	path   string // for errors
	info   *fsInfo
	offset int64       // where the next Read begins
	stream *blobReader // nil before the first Read
	pos    int64       // where stream is
	closed bool
}

func (f *fsFile) Stat() (fs.FileInfo, error) { return f.info, nil }

func (f *fsFile) Read(p []byte) (int, error) {
	switch {
	case f.closed:
		return 0, f.error("read", fs.ErrClosed)
	case f.offset > 0 && f.offset >= f.info.Size() && (f.stream == nil || f.pos != f.offset):
		return 0, io.EOF
	}
	n, err := f.read(p)
	f.offset += int64(n)
	f.pos = f.offset
	if err != nil && err != io.EOF {
		err = f.error("read", err)
	}
	return n, err
}

func (f *fsFile) read(p []byte) (int, error) {
	if f.stream != nil && f.pos != f.offset {
		f.stream.Close() // it was only read from, and to the satisfaction of who did
		f.stream = nil
	}
	if f.stream == nil {
		var err error
		if f.stream, err = f.fsys.blobOf(f.info).open(f.fsys.ctx, f.offset, f.info.Size()-f.offset); err != nil {
			return 0, err
		}
	}
	return f.stream.Read(p)
}

// ReadAt asks the bucket for these bytes and no more. It may be called from many
// goroutines and has nothing to do with Read and Seek.
func (f *fsFile) ReadAt(p []byte, off int64) (int, error) {
	const op = "readat"
	switch {
	case f.closed:
		return 0, f.error(op, fs.ErrClosed)
	case off < 0:
		return 0, f.error(op, fs.ErrInvalid)
	case off >= f.info.Size():
		return 0, io.EOF
	}
	want := min(int64(len(p)), f.info.Size()-off)
	if want == 0 {
		return 0, nil
	}
	r, err := f.fsys.blobOf(f.info).open(f.fsys.ctx, off, want)
	if err != nil {
		return 0, f.error(op, err)
	}
	defer r.Close()
	n, err := io.ReadFull(r, p[:want])
	if err != nil {
		return n, f.error(op, err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *fsFile) Seek(offset int64, whence int) (int64, error) {
	const op = "seek"
	if f.closed {
		return 0, f.error(op, fs.ErrClosed)
	}
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.info.Size()
	default:
		return 0, f.error(op, fs.ErrInvalid)
	}
	if offset < 0 {
		return 0, f.error(op, fs.ErrInvalid)
	}
	f.offset = offset
	return offset, nil
}

func (f *fsFile) Close() error {
	if f.closed {
		return f.error("close", fs.ErrClosed)
	}
	f.closed = true
	if f.stream != nil {
		if err := f.stream.Close(); err != nil {
			return f.error("close", err)
		}
	}
	return nil
}

func (f *fsFile) error(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.path, Err: err}
}

// storedBlob says where a blob of a checkpoint lies, what size it has, and what
// needs it.
type storedBlob struct {
	bucket     *blob.Bucket
	key        checkpointdb.BlobKey
	size       int64
	checkpoint checkpointdb.CheckpointID
	name       string // path of the file, or id of the artifact
}

// open opens length bytes from offset on, which must lie within the size. When
// these are all of the blob they are verified while they are read.
func (b storedBlob) open(ctx context.Context, offset, length int64) (*blobReader, error) {
	whole := offset == 0 && length == b.size
	if whole {
		length = -1 // an empty range is not a valid one everywhere
	}
	var body *blob.Reader
	err := buckets.Retry(ctx, func(ctx context.Context) (err error) {
		body, err = b.bucket.NewRangeReader(ctx, string(b.key), offset, length, nil)
		return err
	})
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, b.error(checkpointdb.ErrBlobMissing, "is missing")
	}
	if err != nil && !whole {
		// Servers refuse a range beyond the end of a blob that is too short.
		if attrs, attrsErr := b.bucket.Attributes(ctx, string(b.key)); attrsErr == nil && attrs.Size != b.size {
			return nil, b.wrongSize(attrs.Size)
		}
	}
	if err != nil {
		return nil, err
	}
	if body.Size() != b.size {
		body.Close()
		return nil, b.wrongSize(body.Size())
	}
	r := &blobReader{ctx: ctx, blob: b, body: body, src: body, left: length}
	if whole {
		r.src, r.left = newVerifier(body, b.size, b.key), b.size
	}
	return r, nil
}

func (b storedBlob) wrongSize(size int64) error {
	return b.error(checkpointdb.ErrBlobDamaged, fmt.Sprintf("has %d bytes, not %d", size, b.size))
}

func (b storedBlob) error(code checkpointdb.Code, problem string) error {
	return coded(code, &checkpointdb.BlobError{Key: b.key, CheckpointID: b.checkpoint, Path: b.name, Problem: problem})
}

// blobReader reads part or all of a blob, until ctx ends, and gives io.EOF only
// when all bytes have come.
type blobReader struct {
	ctx  context.Context
	blob storedBlob
	body *blob.Reader
	src  io.Reader // body, or a verifier of it
	left int64     // bytes to come
}

func (r *blobReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.src.Read(p)
	r.left -= int64(n)
	if err == errMismatch || err == io.EOF && r.left > 0 {
		err = r.blob.error(checkpointdb.ErrBlobDamaged, errMismatch.Error())
	}
	return n, err
}

func (r *blobReader) Close() error { return r.body.Close() }
