// Package faultblob puts a hook around every call that a bucket's driver gets,
// for tests that let calls fail, block or be counted.
package faultblob

import (
	"context"
	"sync/atomic"

	"checkpointdb/internal/passblob"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
)

// Kind is the kind of a call.
type Kind string

// The calls that a hook sees. A write is two: opening the writer, and closing
// it, which is when the object gets its name.
const (
	List       Kind = "list"
	Attributes Kind = "attributes"
	Read       Kind = "read"
	Write      Kind = "write"
	Commit     Kind = "commit"
	Copy       Kind = "copy"
	Delete     Kind = "delete"
)

// Call is a call of the driver.
type Call struct {
	Kind Kind
	Key  string // of the object; for a list, its prefix
}

// Hook stands around a call: do makes the call and returns its error. What the
// hook returns is what the caller sees; a hook that does not call do keeps the
// call from happening. It must be safe for concurrent use. ctx is the caller's,
// for a Commit that with which the writer was opened.
type Hook func(ctx context.Context, call Call, do func() error) error

// Wrap returns a bucket that works on b through the hook. Closing it closes b.
func Wrap(b *blob.Bucket, hook Hook) *blob.Bucket { return WrapPaged(b, hook, 0) }

// WrapPaged is Wrap with listings of at most pageSize objects per call, however
// many are asked for, as servers do; 0 is no limit.
func WrapPaged(b *blob.Bucket, hook Hook, pageSize int) *blob.Bucket {
	return blob.NewBucket(&bucket{passblob.Bucket{B: b}, hook, pageSize})
}

// FailNth returns a hook that keeps the n-th call, counted from 1, from
// happening and gives it err, and a function that tells whether it came to that.
func FailNth(n int, err error) (Hook, func() bool) {
	var calls atomic.Int64
	return func(_ context.Context, _ Call, do func() error) error {
		if calls.Add(1) == int64(n) {
			return err
		}
		return do()
	}, func() bool { return calls.Load() >= int64(n) }
}

// Chain returns a hook in which each hook stands around those after it.
func Chain(hooks ...Hook) Hook {
	return func(ctx context.Context, call Call, do func() error) error {
		for i := len(hooks) - 1; i >= 0; i-- {
			inner := do
			do = func() error { return hooks[i](ctx, call, inner) }
		}
		return do()
	}
}

// bucket is a driver on top of another bucket.
type bucket struct {
	passblob.Bucket
	hook     Hook
	pageSize int
}

func (b *bucket) Attributes(ctx context.Context, key string) (attrs *driver.Attributes, err error) {
	err = b.hook(ctx, Call{Attributes, key}, func() error {
		var err error
		attrs, err = b.Bucket.Attributes(ctx, key)
		return err
	})
	return attrs, err
}

func (b *bucket) ListPaged(ctx context.Context, opts *driver.ListOptions) (page *driver.ListPage, err error) {
	err = b.hook(ctx, Call{List, opts.Prefix}, func() error {
		limited := *opts
		if b.pageSize > 0 && (opts.PageSize == 0 || opts.PageSize > b.pageSize) {
			limited.PageSize = b.pageSize
		}
		var err error
		page, err = b.Bucket.ListPaged(ctx, &limited)
		return err
	})
	return page, err
}

func (b *bucket) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (r driver.Reader, err error) {
	err = b.hook(ctx, Call{Read, key}, func() error {
		var err error
		r, err = b.Bucket.NewRangeReader(ctx, key, offset, length, opts)
		return err
	})
	return r, err
}

func (b *bucket) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (w driver.Writer, err error) {
	err = b.hook(ctx, Call{Write, key}, func() error {
		innerCtx, cancel := context.WithCancel(ctx)
		inner, err := b.Bucket.NewTypedWriter(innerCtx, key, contentType, opts)
		if err != nil {
			cancel()
			return err
		}
		w = &writer{inner, ctx, cancel, b.hook, key}
		return nil
	})
	return w, err
}

type writer struct {
	driver.Writer
	ctx    context.Context
	cancel context.CancelFunc
	hook   Hook
	key    string
}

// Close drops the object when the hook keeps it from being committed.
func (w *writer) Close() error {
	defer w.cancel()
	done := false
	err := w.hook(w.ctx, Call{Commit, w.key}, func() error {
		done = true
		return w.Writer.Close()
	})
	if !done {
		w.cancel()
		_ = w.Writer.Close()
	}
	return err
}

func (b *bucket) Copy(ctx context.Context, dst, src string, opts *driver.CopyOptions) error {
	return b.hook(ctx, Call{Copy, dst}, func() error { return b.Bucket.Copy(ctx, dst, src, opts) })
}

func (b *bucket) Delete(ctx context.Context, key string, opts *driver.DeleteOptions) error {
	return b.hook(ctx, Call{Delete, key}, func() error { return b.Bucket.Delete(ctx, key, opts) })
}
