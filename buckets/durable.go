package buckets

import (
	"context"
	"errors"
	"fmt"
	"io"

	"gocloud.dev/blob"

	"checkpointdb"
	"checkpointdb/internal/durable"
)

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
	err := durable.Write(ctx, b, key, size, r)
	if wrong, ok := errors.AsType[*durable.SizeError](err); ok {
		return &checkpointdb.Error{Code: checkpointdb.ErrBlobDamaged, Op: "write blob", Err: &checkpointdb.BlobError{
			Key: checkpointdb.BlobKey(key), Problem: wrong.Problem,
		}}
	}
	if err != nil && checkpointdb.CodeOf(err) == "" { // an error of this module says enough
		err = fmt.Errorf("checkpointdb: write blob %q: %w%s", key, err, hint(err))
	}
	return err
}

// Sync makes durable an object that is already in the bucket, and with it the
// names of all objects in the same directory. After [WriteDurable] there is
// nothing left to sync; Sync is for who finds an object and means to rely on it
// without writing it: its writer may just be between giving the object its name
// and syncing the directory. For objects that WriteDurable wrote one call per
// directory is enough. Where objects are not files Sync does nothing.
func Sync(ctx context.Context, b *blob.Bucket, key string) error {
	if err := durable.Sync(ctx, b, key); err != nil {
		return fmt.Errorf("checkpointdb: sync blob %q: %w", key, err)
	}
	return nil
}
