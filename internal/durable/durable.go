// Package durable writes objects so that a power cut cannot take them back. It is
// the core of buckets.WriteDurable and buckets.Sync, whose comments say what it
// promises, and imports nothing that could not import it.
package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"

	"gocloud.dev/blob"

	"checkpointdb/internal/ctxio"
)

// contentType is that of every object written here. It must not be empty: with
// an empty one the bucket holds back the first bytes to guess a type from them,
// and they would reach the file only after it was synced.
const contentType = "application/octet-stream"

// SizeError says that a reader does not yield as many bytes as were announced.
type SizeError struct{ Problem string }

func (e *SizeError) Error() string { return e.Problem }

// Write writes the size bytes of r to key; size must not be negative.
func Write(ctx context.Context, b *blob.Bucket, key string, size int64, r io.Reader) error {
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
	if err := copyExactly(ctx, w, size, r); err != nil {
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

// Sync makes durable an object that is in the bucket already.
func Sync(ctx context.Context, b *blob.Bucket, key string) error {
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
func copyExactly(ctx context.Context, w io.Writer, size int64, r io.Reader) error {
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
		return wrongSize("ended after %d bytes, %d were announced", n, size)
	case n > size:
		return wrongSize("goes on after the announced %d bytes", size)
	}
	return nil
}

func wrongSize(format string, args ...any) error {
	return &SizeError{fmt.Sprintf(format, args...)}
}

// buffers holds the copy buffers, so that a capture of many small files does
// not allocate one for each.
var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}
