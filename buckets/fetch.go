package buckets

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb"
	"checkpointdb/internal/retry"
)

// Fetch copies the blob of size bytes under key from one bucket to another, in
// place of what is there, and verifies it on the way: nothing takes the name but
// bytes of that size and of the digest in key. When it returns nil, they are
// durable as [WriteDurable] makes them; when it fails, the object in to is as it
// was. Busy buckets are waited for. Any number of goroutines may fetch.
//
// Errors: [checkpointdb.ErrBlobMissing] and [checkpointdb.ErrBlobDamaged] when
// from has not what key and size say; [checkpointdb.ErrInvalidEntry] for a key
// that is none; others are of the buckets.
func Fetch(ctx context.Context, to, from *blob.Bucket, key checkpointdb.BlobKey, size int64) error {
	if _, err := checkpointdb.ParseBlobKey(string(key)); err != nil {
		return err
	}
	return retry.Do(ctx, func(ctx context.Context) error {
		r, err := from.NewReader(ctx, string(key), nil)
		if gcerrors.Code(err) == gcerrors.NotFound {
			return &checkpointdb.Error{Code: checkpointdb.ErrBlobMissing, Op: "fetch blob", Err: &checkpointdb.BlobError{Key: key, Problem: "missing"}}
		} else if err != nil {
			return fmt.Errorf("checkpointdb: fetch blob %q: %w", key, err)
		}
		defer r.Close()
		return WriteDurable(ctx, to, string(key), size, &digestReader{r, sha256.New(), key})
	})
}

// digestReader gives an error instead of the end when the bytes are not those of
// the key.
type digestReader struct {
	r   io.Reader
	sum hash.Hash
	key checkpointdb.BlobKey
}

func (d *digestReader) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	d.sum.Write(p[:n])
	if want, _ := d.key.Digest(); err == io.EOF && checkpointdb.Digest(d.sum.Sum(nil)) != want {
		err = &checkpointdb.Error{Code: checkpointdb.ErrBlobDamaged, Op: "fetch blob", Err: &checkpointdb.BlobError{Key: d.key, Problem: "has other bytes than its key says"}}
	}
	return n, err
}
