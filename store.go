package checkpointdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"checkpointdb/internal/syncdir"
)

// Options configure [Open]. The zero value, like a nil pointer, gives the safest
// store there is.
type Options struct {
	// Clock is what "now" means for leases and for the age of garbage. It may be
	// called from any goroutine, never inside a transaction. Nil: time.Now.
	Clock func() time.Time
	// LeaseDuration is how long a lease lasts from when it was acquired or last
	// renewed. Zero: 120 s.
	LeaseDuration time.Duration
	// RenewAfter is how long after that its holder should renew; it must be
	// shorter than LeaseDuration. Zero: 3/8 of LeaseDuration, which is 45 s for
	// the default.
	RenewAfter time.Duration
	// LockTimeout is how long Open waits for another store to close the file.
	// Zero: 5 s.
	LockTimeout time.Duration
	// ReadOnly opens an existing file without changing it. Several read-only
	// stores can share a file; while any is open, no writing one can be.
	ReadOnly bool
	// Logger receives what an operator may want to know and no caller is told:
	// migrations and failures that end the handle. Nil: nothing is logged.
	Logger *slog.Logger
	// Live lets other processes work with the store while this one has its file
	// open, through a socket beside it, see [Live]. Nil: no socket.
	Live *Live
}

const (
	defaultLeaseDuration = 120 * time.Second
	defaultLockTimeout   = 5 * time.Second
)

// withDefaults returns a filled-in copy, or an error that names every
// contradiction.
func (o *Options) withDefaults() (Options, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	var faults []error
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"LeaseDuration", opts.LeaseDuration}, {"RenewAfter", opts.RenewAfter}, {"LockTimeout", opts.LockTimeout}} {
		if d.value < 0 {
			refuse("%s %s is negative", d.name, d.value)
		}
	}
	if opts.LeaseDuration == 0 {
		opts.LeaseDuration = defaultLeaseDuration
	}
	if opts.RenewAfter == 0 {
		opts.RenewAfter = opts.LeaseDuration / 8 * 3
	}
	if opts.LeaseDuration > 0 && opts.RenewAfter >= opts.LeaseDuration {
		refuse("RenewAfter %s is not shorter than LeaseDuration %s", opts.RenewAfter, opts.LeaseDuration)
	}
	if opts.Live != nil && opts.ReadOnly {
		refuse("Live serves the owner of a file, and a ReadOnly store shares it")
	}
	if opts.LockTimeout == 0 {
		opts.LockTimeout = defaultLockTimeout
	}
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if len(faults) > 0 {
		return Options{}, &Error{Code: ErrInvalidOptions, Op: "open", Err: errors.Join(faults...)}
	}
	return opts, nil
}

// Store is the contract on one bbolt file. All methods are safe for concurrent
// use. When a method that changes something returns nil, the change is synced
// to the disk.
type Store struct {
	path   string
	opts   Options
	db     *bolt.DB
	file   *os.File // db's own, to close when db no longer can
	id     [16]byte
	commit committer
	live   *liveServer // nil without Options.Live

	recent recentCache // what was appended lately; guards itself

	// mu guards what follows. It is never held across a transaction.
	mu     sync.Mutex
	closed bool
	failed error // why no more is written, nil while all is well

	// What follows is touched only by the goroutine that leads the commits.
	heads    headCache
	deleting map[blobID]chan struct{} // blobs that a sweep is deleting just now; closed when it is done
	marked   []blobID                 // those that the current transaction added to deleting
}

var (
	_ CheckpointStore = (*Store)(nil)
	_ Forker          = (*Store)(nil)
	_ Pruner          = (*Store)(nil)
	_ PolicyPruner    = (*Store)(nil)
	_ InstanceStore   = (*Store)(nil)
	_ Transcripts     = (*Store)(nil)
	_ ThreadDeleter   = (*Store)(nil)
	_ Protector       = (*Store)(nil)
)

// Open opens the store in the file at path, and makes a new one where there is
// none (mode 0600, its directory must exist), unless ReadOnly is set. It waits
// up to LockTimeout for another store to let go of the file.
//
// Errors: [ErrInvalidOptions]; [ErrInUse] when another process, or this one, has
// the file open; [ErrNotAStore] for a directory or a foreign file;
// [ErrUnknownFormat] for a file of a later version; [ErrDamaged] for a file that
// breaks its own rules; [ErrNotLive] when the socket of Live cannot be made;
// fs.ErrNotExist and the like from the file system. Every message names the path,
// and no error leaves a file changed.
func Open(path string, options *Options) (*Store, error) {
	opts, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, opts: opts, deleting: map[blobID]chan struct{}{}}
	if err := s.open(); err != nil {
		return nil, withOp("open", err)
	}
	return s, nil
}

func (s *Store) open() error {
	info, err := os.Stat(s.path)
	isNew := errors.Is(err, fs.ErrNotExist) && !s.opts.ReadOnly
	switch {
	case isNew:
	case err != nil:
		return err
	case info.IsDir():
		return &Error{Code: ErrNotAStore, Message: s.path + " is a directory; a store is one file"}
	case !info.Mode().IsRegular():
		return &Error{Code: ErrNotAStore, Message: s.path + " is no regular file"}
	case info.Size() == 0 && s.opts.ReadOnly:
		return &Error{Code: ErrNotAStore, Message: s.path + " is empty"}
	case info.Size() > 0:
		if err := precheck(s.path); err != nil {
			return err
		}
	}
	bopts := &bolt.Options{
		Timeout:      s.opts.LockTimeout,
		ReadOnly:     s.opts.ReadOnly,
		FreelistType: bolt.FreelistMapType,
		// Damage of the freelist shows here, where guard can name it.
		PreLoadFreelist: true,
		InitialMmapSize: initialMmapSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (file *os.File, err error) {
			file, err = os.OpenFile(name, flag, mode)
			if s.file == nil { // Backup comes here too
				s.file = file
			}
			return file, err
		},
	}
	err = s.guard(func() (err error) {
		s.db, err = bolt.Open(s.path, 0o600, bopts)
		return err
	})
	switch {
	case err == nil:
	case errors.Is(err, bolterrors.ErrTimeout):
		return s.inUse()
	case errors.Is(err, errNoLocks):
		return &Error{Code: ErrInUse, Message: s.path + " cannot be locked, so nobody can tell whether it is in use; its file system has no file locks", Err: err}
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return s.damaged("%v", err)
	default:
		if errors.Is(err, ErrDamaged) && s.file != nil {
			s.abandon()
		}
		return err
	}
	if moved, err := s.moved(); err != nil || moved {
		s.db.Close()
		s.db, s.file = nil, nil
		if err != nil {
			return err
		}
		return s.open()
	}
	// bbolt grows a file by AllocSize, 16 MiB, as soon as its map is larger, and
	// the map is large from the start here.
	s.db.AllocSize = 1 << 20
	live, err := s.listenLive()
	if err == nil {
		err = s.initialize(isNew)
	}
	if err != nil {
		live.stop()
		s.db.Close()
		return err
	}
	s.live = live
	s.live.start()
	return nil
}

// moved tells whether the path names another file than the one that is open. A
// compaction in place may have put a new one there while this store waited for
// the lock of the old one, which nobody will read again.
func (s *Store) moved() (bool, error) {
	opened, err := s.file.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return err == nil && !os.SameFile(opened, named), err
}

// initialMmapSize reserves address space, so that a growing file needs no new
// map: remapping waits for every reader, and a waiting writer blocks the next
// one. Windows grows the file itself to the size of its map.
var initialMmapSize = func() int {
	if runtime.GOOS == "windows" || ^uint(0)>>32 == 0 {
		return 0
	}
	gib := 1 << 30 // a variable, for 32-bit compilers
	return 16 * gib
}()

// initialize makes the buckets of a new file and checks those of an old one.
func (s *Store) initialize(isNew bool) error {
	empty := false
	err := s.view(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			first, _ := tx.Cursor().First()
			if empty = first == nil; empty && !s.opts.ReadOnly {
				return nil
			}
			return &Error{Code: ErrNotAStore, Message: s.path + " is a bbolt file, but not a store of this library"}
		}
		format, err := parseU64(meta.Get(keyFormat))
		switch {
		case err != nil:
			return s.damaged("its format row is malformed")
		case format == 0 || format > formatVersion:
			return &Error{Code: ErrUnknownFormat, Err: &FormatError{Path: s.path, Found: format, Supported: formatVersion}}
		case format < formatVersion && s.opts.ReadOnly:
			return &Error{Code: ErrUnknownFormat, Message: "open it writable once, to migrate it", Err: &FormatError{Path: s.path, Found: format, Supported: formatVersion}}
		case format == formatVersion:
			for _, name := range allBuckets {
				if tx.Bucket(name) == nil {
					return s.damaged("bucket %q is missing", name)
				}
			}
		}
		if id := meta.Get(keyStoreID); copy(s.id[:], id) != len(s.id) {
			return s.damaged("its store id is malformed")
		}
		return nil
	})
	if err != nil || s.opts.ReadOnly {
		return err
	}
	if empty {
		if err := s.create(); err != nil {
			return err
		}
	}
	if isNew {
		// The file's name must survive a power cut as surely as its first commit.
		return syncdir.Sync(filepath.Dir(s.path))
	}
	return s.migrate()
}

func (s *Store) create() error {
	now := s.opts.Clock()
	if _, err := rand.Read(s.id[:]); err != nil {
		return err
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		for _, name := range allBuckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		return errors.Join(
			meta.Put(keyFormat, u64(formatVersion)),
			meta.Put(keyStoreID, s.id[:]),
			meta.Put(keyCreated, appendTime(nil, now)),
		)
	})
}

// migrate brings an older file to formatVersion, all steps in one transaction.
func (s *Store) migrate() error {
	var from uint64
	if err := s.view(func(tx *bolt.Tx) (err error) {
		from, err = parseU64(tx.Bucket(bucketMeta).Get(keyFormat))
		return err
	}); err != nil || from == formatVersion {
		return err
	}
	s.opts.Logger.Info("checkpointdb: migrating", "path", s.path, "from", from, "to", formatVersion)
	return s.db.Update(func(tx *bolt.Tx) error {
		for _, step := range migrations[from-1:] {
			if err := step(tx); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, u64(formatVersion))
	})
}

// Close ends what [Live] serves, waits for running calls and closes the file.
// Calls that come later get [ErrClosed]; a second Close does nothing.
func (s *Store) Close() error {
	s.live.stop()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	failed := s.failed
	s.mu.Unlock()
	if errors.Is(failed, ErrDamaged) {
		return s.abandon()
	}
	return s.db.Close()
}

// abandon closes the file under a bbolt that has panicked and may hold its own
// locks for ever. The memory map stays until the process ends.
func (s *Store) abandon() error {
	unlock(s.file)
	return s.file.Close()
}

// Path returns the path the store was opened with.
func (s *Store) Path() string { return s.path }

// view runs fn in a read transaction. fn must be short, copy what it returns,
// and call nothing of the caller's.
func (s *Store) view(fn func(*bolt.Tx) error) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return s.closedError()
	}
	err := s.guard(func() error { return s.db.View(fn) })
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return s.closedError()
	}
	return err
}

// read is view for exported methods.
func (s *Store) read(ctx context.Context, op string, fn func(*bolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return withOp(op, s.inFile(s.view(fn)))
}

// inFile names the file in an error about one of its rows.
func (s *Store) inFile(err error) error {
	if e, ok := err.(*Error); ok && e.Code == ErrDamaged && !strings.HasPrefix(e.Message, s.path) {
		located := *e
		located.Message = s.path + ": " + e.Message
		return &located
	}
	return err
}

func (s *Store) closedError() error {
	return &Error{Code: ErrClosed, Message: s.path + " is closed"}
}

func (s *Store) damaged(format string, args ...any) error {
	return &Error{Code: ErrDamaged, Message: s.path + " is damaged: " + fmt.Sprintf(format, args...)}
}

// damagedAt names the row that does not make sense.
func damagedAt(bucket, key []byte, err error) error {
	return &Error{Code: ErrDamaged, Message: fmt.Sprintf("damaged row %x in bucket %s", key, bucket), Err: err}
}

// guard turns the panics and memory faults with which bbolt answers damaged
// pages into an error. bbolt trusts every page but the first two and reads
// through a memory map.
func (s *Store) guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			s.opts.Logger.Error("checkpointdb: damaged file", "path", s.path, "panic", r, "stack", string(debug.Stack()))
			err = s.damaged("%v", r)
		}
	}()
	return fn()
}
