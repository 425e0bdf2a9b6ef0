// Package passblob is a driver that passes every call on to another bucket, for
// drivers that embed it and change some of them.
package passblob

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// Bucket is the driver. Its errors are those of B, classes included. Closing it
// closes B.
type Bucket struct{ B *blob.Bucket }

// B puts words, key and class before an error, and so will the bucket on top of
// this driver. Where that can be undone it is said once.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e
	}
	return err
}

// defaultPage is the size of a page when the caller names none.
const defaultPage = 1000

func (b Bucket) ErrorCode(err error) gcerrors.ErrorCode {
	code := gcerrors.Code(err)
	if code == gcerrors.Unknown && errors.Is(err, fs.ErrNotExist) { // bare took the class away
		return gcerrors.NotFound
	}
	return code
}

func (b Bucket) As(i any) bool                 { return b.B.As(i) }
func (b Bucket) ErrorAs(err error, i any) bool { return b.B.ErrorAs(err, i) }
func (b Bucket) Close() error                  { return b.B.Close() }

func (b Bucket) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	a, err := b.B.Attributes(ctx, key)
	if err != nil {
		return nil, bare(err)
	}
	return &driver.Attributes{
		CacheControl: a.CacheControl, ContentDisposition: a.ContentDisposition,
		ContentEncoding: a.ContentEncoding, ContentLanguage: a.ContentLanguage, ContentType: a.ContentType,
		Metadata: a.Metadata, CreateTime: a.CreateTime, ModTime: a.ModTime, Size: a.Size,
		MD5: a.MD5, ETag: a.ETag, AsFunc: a.As,
	}, nil
}

func (b Bucket) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	token, size := opts.PageToken, opts.PageSize
	if len(token) == 0 {
		token = blob.FirstPageToken
	}
	if size == 0 {
		size = defaultPage
	}
	objects, next, err := b.B.ListPage(ctx, token, size, &blob.ListOptions{
		Prefix: opts.Prefix, Delimiter: opts.Delimiter, BeforeList: opts.BeforeList,
	})
	if err != nil {
		return nil, bare(err)
	}
	page := &driver.ListPage{NextPageToken: next}
	for _, o := range objects {
		page.Objects = append(page.Objects, &driver.ListObject{
			Key: o.Key, ModTime: o.ModTime, Size: o.Size, MD5: o.MD5, IsDir: o.IsDir, AsFunc: o.As,
		})
	}
	return page, nil
}

func (b Bucket) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	r, err := b.B.NewRangeReader(ctx, key, offset, length, &blob.ReaderOptions{BeforeRead: opts.BeforeRead})
	if err != nil {
		return nil, bare(err)
	}
	return reader{r}, nil
}

type reader struct{ *blob.Reader }

func (r reader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{ContentType: r.ContentType(), ModTime: r.ModTime(), Size: r.Size()}
}

func (b Bucket) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (driver.Writer, error) {
	w, err := b.B.NewWriter(ctx, key, &blob.WriterOptions{
		BufferSize: opts.BufferSize, MaxConcurrency: opts.MaxConcurrency,
		CacheControl: opts.CacheControl, ContentDisposition: opts.ContentDisposition,
		ContentEncoding: opts.ContentEncoding, ContentLanguage: opts.ContentLanguage, ContentType: contentType,
		DisableContentTypeDetection: opts.DisableContentTypeDetection || contentType == "",
		ContentMD5:                  opts.ContentMD5, Metadata: opts.Metadata, BeforeWrite: opts.BeforeWrite, IfNotExist: opts.IfNotExist,
	})
	if err != nil {
		return nil, bare(err)
	}
	return writer{w}, nil
}

// writer hides the methods of blob.Writer that are no driver's.
type writer struct{ w *blob.Writer }

func (w writer) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	return n, bare(err)
}

func (w writer) Close() error { return bare(w.w.Close()) }

func (b Bucket) Copy(ctx context.Context, dst, src string, opts *driver.CopyOptions) error {
	return bare(b.B.Copy(ctx, dst, src, &blob.CopyOptions{BeforeCopy: opts.BeforeCopy}))
}

func (b Bucket) Delete(ctx context.Context, key string, opts *driver.DeleteOptions) error {
	return bare(b.B.DeleteWithOptions(ctx, key, &blob.DeleteOptions{BeforeDelete: opts.BeforeDelete}))
}

func (b Bucket) SignedURL(ctx context.Context, key string, opts *driver.SignedURLOptions) (string, error) {
	return b.B.SignedURL(ctx, key, &blob.SignedURLOptions{
		Expiry: opts.Expiry, Method: opts.Method, ContentType: opts.ContentType,
		EnforceAbsentContentType: opts.EnforceAbsentContentType, BeforeSign: opts.BeforeSign,
	})
}
