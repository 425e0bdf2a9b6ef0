package buckets

import (
	"checkpointdb/internal/ctxio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"

	"checkpointdb"

	"gocloud.dev/blob"
)

// contentType is that of every object written here. It must not be empty: with
// an empty one the bucket holds back the first bytes to guess a type from them,
// and they would reach the file only after it was synced.
const contentType = "application/octet-stream"

// WriteDurable writes the size bytes that r yields to key, in place of what is
// there. When it returns nil, they are durable under key: on a local directory
// the file, its name and the directories above it were synced; a server's word
// is taken for the rest.
//
// When it fails, or ctx ends first, key is as it was before. One failure is
// different: when the complete file has its name and only syncing the directory
// fails, the object stays, because removing it could take away what another
// writer of key was promised.
//
// r is read in the calling goroutine, never beyond one byte after size, in
// pieces of bounded size and not at all after WriteDurable returned. A number
// of bytes other than size is an error that matches
// [checkpointdb.ErrBlobDamaged]; errors of r and of the bucket are wrapped, so
// errors.Is and gcerrors.Code see them. Any number of goroutines and processes
// may write, also the same key: one of them wins, whole. (Not so in a directory
// with attribute files, which [Open] leaves out and gocloud's own URL does not:
// the driver rewrites those in place.)
//
// Windows cannot sync a directory; there the file's bytes are synced and its
// name is left to the journal of NTFS.
func WriteDurable(ctx context.Context, b *blob.Bucket, key string, size int64, r io.Reader) error {
	if size < 0 {
		return &checkpointdb.Error{Code: checkpointdb.ErrInvalidArgument, Op: "write blob",
			Message: fmt.Sprintf("%q: size %d is negative", key, size)}
	}
	err := write(ctx, b, key, size, r)
	if err != nil && checkpointdb.CodeOf(err) == "" { // an error of this module says enough
		err = fmt.Errorf("checkpointdb: write blob %q: %w%s", key, err, hint(err))
	}
	return err
}

func write(ctx context.Context, b *blob.Bucket, key string, size int64, r io.Reader) error {
	if err := ctx.Err(); err != nil {
		return err // the local driver would first make directories and a file
	}
	writeCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var file *os.File // stays nil on every driver but the local one
	w, err := b.NewWriter(writeCtx, key, &blob.WriterOptions{
		ContentType: contentType,
		BeforeWrite: func(as func(any) bool) error { as(&file); return nil },
	})
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed { // failed, or r panicked: a writer closed after cancel drops what it has
			cancel()
			_ = w.Close()
		}
	}()
	if err := copyExactly(ctx, w, key, size, r); err != nil {
		return err
	}
	if file != nil {
		if err := file.Sync(); err != nil {
			return err
		}
	}
	closed = true
	if err := w.Close(); err != nil {
		return err
	}
	if file == nil {
		return nil
	}
	// The object has its name by now, so the end of ctx no longer matters.
	path, err := localPath(context.WithoutCancel(ctx), b, key)
	if err != nil {
		return err
	}
	return syncName(path)
}

// Sync makes durable an object that is already in the bucket, and with it the
// names of all objects in the same directory. After [WriteDurable] there is
// nothing left to sync; Sync is for who finds an object and means to rely on it
// without writing it: its writer may just be between giving the object its name
// and syncing the directory. For objects that WriteDurable wrote one call per
// directory is enough. Where objects are not files Sync does nothing.
func Sync(ctx context.Context, b *blob.Bucket, key string) error {
	if err := syncObject(ctx, b, key); err != nil {
		return fmt.Errorf("checkpointdb: sync blob %q: %w", key, err)
	}
	return nil
}

func syncObject(ctx context.Context, b *blob.Bucket, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var info os.FileInfo
	if !b.As(&info) { // not local, and asking a server for the object would be for nothing
		return nil
	}
	path, err := localPath(ctx, b, key)
	if err != nil || path == "" {
		return err
	}
	if err := syncFile(path); err != nil {
		return err
	}
	return syncName(path)
}

// localPath returns the file of an object, "" when objects are not files.
func localPath(ctx context.Context, b *blob.Bucket, key string) (string, error) {
	// Only a reader tells: a writer shows its temporary file, which may lie in
	// another directory.
	var file *os.File
	r, err := b.NewRangeReader(ctx, key, 0, 0, &blob.ReaderOptions{
		BeforeRead: func(as func(any) bool) error { as(&file); return nil },
	})
	if err != nil {
		return "", err
	}
	defer r.Close()
	if file == nil {
		return "", nil
	}
	return file.Name(), nil
}

// syncName makes durable all that a reader needs to find the bytes of the file
// at path.
func syncName(path string) error {
	// A bucket that was not opened by Open may keep attributes beside the
	// object, and refuses to read the object when they are torn.
	if err := syncFile(path + ".attrs"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDirs(filepath.Dir(path))
}

// copyExactly copies r to w and fails unless r yields size bytes.
func copyExactly(ctx context.Context, w io.Writer, key string, size int64, r io.Reader) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	// The wrappers hide every method but Read and Write: blob.Writer's ReadFrom
	// allocates a megabyte per call. Reading goes one byte too far on purpose.
	var limit int64 = math.MaxInt64
	if size < limit {
		limit = size + 1
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, ctxio.Reader(ctx, io.LimitReader(r, limit)), *buf)
	switch {
	case err != nil:
		return err
	case n < size:
		return wrongSize(key, "ended after %d bytes, %d were announced", n, size)
	case n > size:
		return wrongSize(key, "goes on after the announced %d bytes", size)
	}
	return nil
}

func wrongSize(key, format string, args ...any) error {
	return &checkpointdb.Error{Code: checkpointdb.ErrBlobDamaged, Op: "write blob", Err: &checkpointdb.BlobError{
		Key: checkpointdb.BlobKey(key), Problem: fmt.Sprintf(format, args...),
	}}
}

// buffers holds the copy buffers, so that a capture of many small files does
// not allocate one for each.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}
