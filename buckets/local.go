package buckets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"checkpointdb/internal/passblob"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/fileblob"
)

// local makes the buckets of directories. No attribute files: a torn one makes
// its object unreadable, and writing them doubles the cost. Temporary files
// beside the objects: elsewhere they may be on another file system, from which
// they can't be renamed.
var local = fileblob.Options{
	CreateDir:   true,
	DirFileMode: 0o700,
	Metadata:    fileblob.MetadataDontWrite,
	NoTempDir:   true,
}

// attributeFile ends the names of the driver's attribute files.
const attributeFile = ".attrs"

// localOpener opens file URLs with the options above where gocloud's own opener
// would use the driver's.
type localOpener struct{}

func (localOpener) OpenBucketURL(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	b, err := (&fileblob.URLOpener{Options: local}).OpenBucketURL(ctx, u)
	if err != nil {
		return nil, err
	}
	dir := u.Path
	if u.Host == "." || os.PathSeparator != '/' { // as the driver understands it
		dir = strings.TrimPrefix(dir, "/")
	}
	return withListing(b, filepath.FromSlash(dir))
}

func openLocal(dir string) (*blob.Bucket, error) {
	options := local
	b, err := fileblob.OpenBucket(dir, &options)
	if err != nil {
		return nil, err
	}
	return withListing(b, dir)
}

// withListing puts a localBucket on top of b, the driver's bucket of dir.
func withListing(b *blob.Bucket, dir string) (*blob.Bucket, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return blob.NewBucket(&localBucket{Bucket: passblob.Bucket{B: b}, dir: dir, window: defaultWindow}), nil
}

// localBucket is the driver's bucket of a directory with another listing. The
// driver's walks the directory anew for every page, which takes minutes where
// there are many objects, and fails when a file vanishes meanwhile, as files do
// beside a sweep. This one reads a directory once for every window of names and
// goes on, page by page, from where it stands.
type localBucket struct {
	passblob.Bucket
	dir    string // absolute
	window int    // of its walks

	uploads uploads

	mu     sync.Mutex
	paused []*walk // walks between two pages, the oldest first; guarded by mu
}

const (
	// defaultPage is the size of a page when the caller names none.
	defaultPage = 1000
	// defaultWindow is how many names of a directory are in memory at a time, and
	// twice as many while the directory is read. A directory of a million objects
	// takes four readings and, with what is garbage by then, some 100 MB.
	defaultWindow = 1 << 18
	// maxPaused is how many listings of a bucket may be under way at a time
	// before one of them has to find its place again. One that nobody continues
	// stays, with its window, until it is crowded out.
	maxPaused = 4
)

// As also gives the directory, as a *string. Whoever gets it knows that pages
// of a listing may be small here.
func (b *localBucket) As(i any) bool {
	if dir, ok := i.(*string); ok {
		*dir = b.dir
		return true
	}
	return b.Bucket.As(i)
}

func (b *localBucket) Close() error {
	b.mu.Lock()
	b.paused = nil
	b.mu.Unlock()
	b.uploads.close()
	return b.Bucket.Close()
}

func (b *localBucket) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	if opts.BeforeList != nil {
		if err := opts.BeforeList(func(any) bool { return false }); err != nil {
			return nil, err
		}
	}
	// A directory that nobody has made yet has no objects. One that was there
	// when the bucket was opened and is not now, a lost mount, is an error.
	if _, err := os.Stat(b.dir); err != nil {
		return nil, err
	}
	w := b.resume(opts.Prefix, opts.Delimiter, string(opts.PageToken))
	page := &driver.ListPage{}
	size := cmp.Or(opts.PageSize, defaultPage)
	for len(page.Objects) < size {
		object, err := w.next(ctx)
		if err == io.EOF {
			return page, nil
		}
		if err != nil {
			return nil, err
		}
		page.Objects = append(page.Objects, object)
	}
	if !w.done() {
		page.NextPageToken = []byte(w.token())
		b.pause(w)
	}
	return page, nil
}

// resume returns the walk that the token is of, if it is still there, or one that
// begins where that one stopped.
func (b *localBucket) resume(prefix, delimiter, token string) *walk {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range b.paused {
		if w.token() == token {
			b.paused = slices.Delete(b.paused, i, i+1)
			return w
		}
	}
	w := &walk{id: fmt.Sprintf("%016x", rand.Uint64()), prefix: prefix, delimiter: delimiter, window: b.window}
	if len(token) > len(w.id) {
		w.after = token[len(w.id):]
	}
	// The object whose key is the prefix, "a/", is a file beside the directory.
	start := plainDirs.FindString(strings.TrimSuffix(prefix, "/"))
	w.enter(filepath.Join(b.dir, filepath.FromSlash(start)), start)
	return w
}

func (b *localBucket) pause(w *walk) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.paused) == maxPaused {
		b.paused = slices.Delete(b.paused, 0, 1)
	}
	b.paused = append(b.paused, w)
}

// walk goes through the objects of a directory in the order of their keys. It
// holds no file open between two steps.
type walk struct {
	id                string // so that no listing goes on with the old names of another
	prefix, delimiter string
	window            int
	after             string   // keys up to this one are behind
	levels            []*level // the directories that it is in, the innermost last
}

// level is a directory that a walk is in.
type level struct {
	path  string
	key   string  // begins the keys of what is in the directory
	names []entry // what comes next, in order
	more  bool    // there are names after these
	last  entry   // the one that was visited last
}

// entry is a name in a directory. Its key is what the name adds to the key of
// the level, and ends in "/" for a directory, since that is how it sorts.
type entry struct {
	name, key string
	dir       bool
}

// compare orders the entries of a directory by the keys of their objects. The
// object "a/" is a file and comes before those of the directory a.
func compare(a, b entry) int {
	if c := cmp.Compare(a.key, b.key); c != 0 || a.dir == b.dir {
		return c
	}
	if b.dir {
		return -1
	}
	return 1
}

// plainDirs matches the directories at the beginning of a prefix whose names are
// surely what the keys say. The walk starts there, without reading those above.
var plainDirs = regexp.MustCompile(`^(?:[A-Za-z0-9-]+(?:[._][A-Za-z0-9-]+)*/)*`)

// enter steps into a directory, past the names that are behind.
func (w *walk) enter(path, key string) {
	l := &level{path: path, key: key, more: true}
	if rest, inside := strings.CutPrefix(w.after, key); inside {
		l.last.key, _, _ = strings.Cut(rest, "/") // a directory of this name sorts after it
	}
	w.levels = append(w.levels, l)
}

// token stands for the walk where it is: its id, of fixed length, and the key.
func (w *walk) token() string { return w.id + w.after }

// done tells whether the walk is at its end for sure.
func (w *walk) done() bool {
	for len(w.levels) > 0 {
		if l := w.levels[len(w.levels)-1]; len(l.names) > 0 || l.more {
			return false
		}
		w.levels = w.levels[:len(w.levels)-1]
	}
	return true
}

// next returns the next object, io.EOF after the last. Keys come in strictly
// ascending order, whatever happens in the directory: what would break it, such
// as a file that was replaced while its directory was read, is left out.
func (w *walk) next(ctx context.Context) (*driver.ListObject, error) {
	for !w.done() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l := w.levels[len(w.levels)-1]
		if len(l.names) == 0 {
			if err := w.read(ctx, l); err != nil {
				return nil, err
			}
			continue
		}
		e := l.names[0]
		l.names, l.last = l.names[1:], e
		path, key, collapsed := filepath.Join(l.path, e.name), l.key+e.key, false
		if rest, ok := strings.CutPrefix(key, w.prefix); ok && w.delimiter != "" {
			if i := strings.Index(rest, w.delimiter); i >= 0 {
				key, collapsed = w.prefix+rest[:i+len(w.delimiter)], true
			}
		}
		switch {
		case key <= w.after && !(e.dir && !collapsed && strings.HasPrefix(w.after, key)):
			continue // behind
		case e.dir:
			w.enter(path, l.key+e.key)
			continue
		case collapsed:
			for len(w.levels) > 0 && strings.HasPrefix(w.levels[len(w.levels)-1].key, key) {
				w.levels = w.levels[:len(w.levels)-1] // all the rest collapses into the same
			}
			w.after = key
			return &driver.ListObject{Key: key, IsDir: true}, nil
		}
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir():
			continue // vanished, or turned into another thing
		case err != nil:
			return nil, err
		}
		w.after = key
		return &driver.ListObject{
			Key: key, ModTime: info.ModTime(), Size: info.Size(),
			AsFunc: func(i any) bool {
				p, ok := i.(*os.FileInfo)
				if ok {
					*p = info
				}
				return ok
			},
		}, nil
	}
	return nil, io.EOF
}

// read fills the window of a level with the names after the last.
func (w *walk) read(ctx context.Context, l *level) error {
	l.names, l.more = nil, false
	dir, err := os.Open(l.path)
	if err != nil {
		return vanished(err)
	}
	defer dir.Close()
	var names []entry
	for {
		batch, err := dir.ReadDir(4096)
		for _, d := range batch {
			e := entry{name: d.Name(), key: unescape(d.Name()), dir: d.IsDir()}
			if e.dir {
				e.key += "/"
			}
			if compare(e, l.last) <= 0 || l.more && compare(e, names[w.window-1]) > 0 || !w.wants(l.key, e) {
				continue
			}
			if names = append(names, e); len(names) == 2*w.window {
				names, l.more = w.first(names), true
			}
		}
		switch {
		case err == io.EOF:
			l.more = l.more || len(names) > w.window
			l.names = w.first(names)
			return nil
		case err != nil:
			return vanished(err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// vanished returns nil for the error of a directory that is no longer there.
func vanished(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// first sorts the names and returns those of the first window.
func (w *walk) first(names []entry) []entry {
	slices.SortFunc(names, compare)
	if len(names) > w.window {
		clear(names[w.window:])
		names = names[:w.window]
	}
	return names
}

// wants tells whether there can be objects of the listing at or below an entry
// of the directory whose key is key.
func (w *walk) wants(key string, e entry) bool {
	if !e.dir && (strings.HasSuffix(e.name, attributeFile) || key == "" && e.name == markerName) {
		return false
	}
	if len(w.prefix) <= len(key) { // then the directory is below the prefix
		return true
	}
	rest := w.prefix[len(key):]
	return strings.HasPrefix(e.key, rest) || e.dir && strings.HasPrefix(rest, e.key)
}

// unescape turns the name of a file into the part of a key that it stands for.
// The driver writes characters that file systems do not take as "__0x2f__", by
// their number.
func unescape(name string) string {
	const begin, end = "__0x", "__"
	if !strings.Contains(name, begin) {
		return name
	}
	var key strings.Builder
	for name != "" {
		if hex, ok := strings.CutPrefix(name, begin); ok {
			if i := strings.IndexByte(hex, '_'); i >= 0 && strings.HasPrefix(hex[i:], end) {
				if n, err := strconv.ParseInt(hex[:i], 16, 32); err == nil {
					key.WriteRune(rune(n))
					name = hex[i+len(end):]
					continue
				}
			}
		}
		key.WriteByte(name[0])
		name = name[1:]
	}
	return key.String()
}
