package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"gocloud.dev/blob"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/internal/ctxio"
)

// ErrArtifactNotFound: the checkpoint has no artifact of this id. Retry: no.
const ErrArtifactNotFound checkpointdb.Code = "CHECKPOINTDB_ARTIFACT_NOT_FOUND"

// ArtifactOptions says how to store an artifact. The zero value is a good
// default.
type ArtifactOptions struct {
	// Protect is called with the artifact's key when the key is known and the
	// bucket has not been asked yet. What it promises and returns is the same as
	// in CaptureOptions.
	Protect func(ctx context.Context, keys []checkpointdb.BlobKey) (unused []checkpointdb.BlobKey, err error)
}

// PutArtifact stores all that r yields in the bucket, unless it is there already,
// and returns a with Size and BlobKey filled in, for a checkpoint that is to be
// appended. ArtifactID, Name, MimeType and CreatedAt are the caller's to give;
// when one of them is not valid, the error matches
// [checkpointdb.ErrInvalidEntry] and r is not read.
//
// The bytes are durable when PutArtifact returns nil. A blob that is in the
// bucket already is trusted by its size. A busy bucket is waited for, see
// [buckets.Retry]. After an error the bucket holds nothing new under the key, or
// the whole blob.
//
// r is read to its end in the calling goroutine and not closed. Nothing is
// stored before the end, since the key is the digest; until then 1 MiB is kept in
// memory and the rest in a temporary file, which is removed again. For a file,
// PutArtifactFile needs no such copy.
//
// PutArtifact may be called from many goroutines, with equal content too.
func PutArtifact(ctx context.Context, bucket *blob.Bucket, r io.Reader, a checkpointdb.Artifact, opts *ArtifactOptions) (checkpointdb.Artifact, error) {
	err := putReader(ctx, bucket, r, &a, opts)
	return putResult(a, err)
}

// PutArtifactFile is PutArtifact for a file. Its path is relative to the
// directory dir and leads nowhere else, whatever links are in it. A directory or
// special file is refused with ErrSpecialFile and never waited for.
//
// The file is read twice, first for its key and again for the upload, and not at
// all the second time when the blob is there. When it is written to meanwhile,
// the error is ErrTreeChanged: what is stored under the key are always the bytes
// of the key.
func PutArtifactFile(ctx context.Context, bucket *blob.Bucket, dir, path string, a checkpointdb.Artifact, opts *ArtifactOptions) (checkpointdb.Artifact, error) {
	err := putFile(ctx, bucket, dir, path, &a, opts)
	return putResult(a, err)
}

func putResult(a checkpointdb.Artifact, err error) (checkpointdb.Artifact, error) {
	if err != nil {
		return checkpointdb.Artifact{}, wrap("put artifact", err)
	}
	return a, nil
}

func putReader(ctx context.Context, bucket *blob.Bucket, r io.Reader, a *checkpointdb.Artifact, opts *ArtifactOptions) error {
	if err := checkArtifact(*a); err != nil {
		return err
	}
	var s spool
	defer s.close()
	h := sha256.New()
	var err error
	if a.Size, err = s.fill(io.TeeReader(ctxio.Reader(ctx, r), h)); err != nil {
		return artifactError(a.ArtifactID, err)
	}
	a.BlobKey = checkpointdb.ArtifactKey(checkpointdb.Digest(h.Sum(nil)))
	if err := putBlob(ctx, bucket, s.content, a, opts); err != nil {
		return artifactError(a.ArtifactID, err)
	}
	return nil
}

func putFile(ctx context.Context, bucket *blob.Bucket, dir, path string, a *checkpointdb.Artifact, opts *ArtifactOptions) error {
	if err := checkArtifact(*a); err != nil {
		return err
	}
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := openRegular(root, path)
	if err != nil {
		return readError(path, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return readError(path, err)
	}
	// No further than the size it had, or a file that grows would never end.
	h := sha256.New()
	a.Size, err = io.Copy(h, ctxio.Reader(ctx, io.LimitReader(f, before.Size())))
	if err != nil {
		return readError(path, err)
	}
	after, err := f.Stat()
	if err != nil {
		return readError(path, err)
	}
	if a.Size != before.Size() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return readError(path, errWritten)
	}
	a.BlobKey = checkpointdb.ArtifactKey(checkpointdb.Digest(h.Sum(nil)))
	content := func() (io.Reader, error) {
		_, err := f.Seek(0, io.SeekStart)
		return f, err
	}
	if err := putBlob(ctx, bucket, content, a, opts); err != nil {
		return readError(path, err)
	}
	return nil
}

// openRegular opens a regular file. It follows links inside root and does not
// touch what is no file, since opening a pipe waits and opening a device may do
// anything.
func openRegular(root *os.Root, path string) (*os.File, error) {
	want, err := root.Stat(path)
	if err != nil {
		return nil, err
	}
	switch {
	case want.IsDir():
		return nil, refuse(ErrSpecialFile, path, "is a directory")
	case !want.Mode().IsRegular():
		return nil, refuse(ErrSpecialFile, path, "is a %s", describe(want.Mode()))
	}
	f, err := root.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	if err := checkSame(f, want); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// putBlob uploads the bytes that were hashed, or nothing. content gives them from
// the first on, each time it is called.
func putBlob(ctx context.Context, bucket *blob.Bucket, content func() (io.Reader, error), a *checkpointdb.Artifact, opts *ArtifactOptions) error {
	if opts != nil && opts.Protect != nil {
		unused, err := opts.Protect(ctx, []checkpointdb.BlobKey{a.BlobKey})
		if err != nil {
			return err
		}
		if !slices.Contains(unused, a.BlobKey) {
			return nil
		}
	}
	return buckets.Retry(ctx, func(ctx context.Context) error {
		there, err := hasBlob(ctx, bucket, a.BlobKey, a.Size)
		if err != nil {
			return err
		}
		if there {
			// Whoever wrote it may not have made its name durable yet.
			return buckets.Sync(ctx, bucket, string(a.BlobKey))
		}
		r, err := content()
		if err != nil {
			return err
		}
		v := newVerifier(r, a.Size, a.BlobKey)
		err = buckets.WriteDurable(ctx, bucket, string(a.BlobKey), a.Size, v)
		if err != nil && v.err == errMismatch {
			return errWritten // whatever the driver made of it
		}
		return err
	})
}

// checkArtifact checks what the caller gives of an artifact.
func checkArtifact(a checkpointdb.Artifact) error {
	a.Size, a.BlobKey = 0, checkpointdb.ArtifactKey(checkpointdb.Digest{})
	return checkpointdb.Checkpoint{
		ID: "any", ThreadID: "any", CreatedAt: a.CreatedAt, Reason: checkpointdb.ReasonAutomatic,
		Artifacts: []checkpointdb.Artifact{a},
	}.Validate()
}

// CheckpointGetter is what ReadArtifact needs of a
// [checkpointdb.CheckpointStore].
type CheckpointGetter interface {
	Get(ctx context.Context, id checkpointdb.CheckpointID) (checkpointdb.Checkpoint, error)
}

// ReadArtifact opens an artifact of a checkpoint of a thread, and returns its
// content and what the checkpoint says about it. Where two have the same id it
// is the first.
//
// Checks: ids valid ([checkpointdb.ErrInvalidID]); the checkpoint exists and is
// of the thread ([checkpointdb.ErrCheckpointNotFound]; which of the two it is, the
// error does not tell); it has the artifact ([ErrArtifactNotFound]); the blob is
// in the bucket ([checkpointdb.ErrBlobMissing]) and has the right size
// ([checkpointdb.ErrBlobDamaged]).
//
// The digest is verified while the content is read. When it is wrong, the error
// is ErrBlobDamaged in place of the last bytes, so a reader that reaches io.EOF,
// or counts Size bytes, has read what was stored.
//
// The content is streamed, until ctx ends, by one goroutine at a time. It must
// be closed. A bucket that is busy when the content is opened is waited for, see
// [buckets.Retry].
func ReadArtifact(ctx context.Context, store CheckpointGetter, bucket *blob.Bucket, thread checkpointdb.ThreadID, id checkpointdb.CheckpointID, artifactID string) (io.ReadCloser, checkpointdb.Artifact, error) {
	r, a, err := readArtifact(ctx, store, bucket, thread, id, artifactID)
	if err != nil {
		return nil, checkpointdb.Artifact{}, wrap("read artifact", err)
	}
	return r, a, nil
}

func readArtifact(ctx context.Context, store CheckpointGetter, bucket *blob.Bucket, thread checkpointdb.ThreadID, id checkpointdb.CheckpointID, artifactID string) (r io.ReadCloser, a checkpointdb.Artifact, err error) {
	if err := thread.Validate(); err != nil {
		return nil, a, err
	}
	c, err := store.Get(ctx, id)
	if errors.Is(err, checkpointdb.ErrCheckpointNotFound) || err == nil && c.ThreadID != thread {
		return nil, a, &checkpointdb.Error{Code: checkpointdb.ErrCheckpointNotFound,
			Message: fmt.Sprintf("thread %q has no checkpoint %q", thread, id)}
	}
	if err != nil {
		return nil, a, err
	}
	i := slices.IndexFunc(c.Artifacts, func(a checkpointdb.Artifact) bool { return a.ArtifactID == artifactID })
	if i < 0 {
		return nil, a, &checkpointdb.Error{Code: ErrArtifactNotFound,
			Message: fmt.Sprintf("checkpoint %q has no artifact %q", id, artifactID)}
	}
	a = c.Artifacts[i]
	b := storedBlob{bucket: bucket, key: a.BlobKey, size: a.Size, checkpoint: id, name: a.ArtifactID}
	if r, err = b.open(ctx, 0, a.Size); err != nil {
		return nil, a, artifactError(artifactID, err)
	}
	return r, a, nil
}

// artifactError gives err the id, unless it is one of this module's and says
// enough.
func artifactError(id string, err error) error {
	if checkpointdb.CodeOf(err) != "" {
		return err
	}
	return fmt.Errorf("artifact %q: %w", id, err)
}

// spoolMemory is how much of an artifact is kept in memory.
const spoolMemory = 1 << 20

// spool keeps bytes that are to be read again: the first in memory, the others
// in a temporary file.
type spool struct {
	head bytes.Buffer
	tail *os.File // nil while there are none
	gone bool     // tail has no name any more
}

// fill reads r to its end and returns how much that was.
func (s *spool) fill(r io.Reader) (int64, error) {
	n, err := io.CopyN(&s.head, r, spoolMemory)
	if err == io.EOF {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	if s.tail, err = os.CreateTemp("", "checkpointdb-artifact-"); err != nil {
		return n, err
	}
	// Where open files can be removed, nothing stays when the process is killed.
	s.gone = os.Remove(s.tail.Name()) == nil
	more, err := io.Copy(s.tail, r)
	return n + more, err
}

// content returns what was filled in, from the first byte on.
func (s *spool) content() (io.Reader, error) {
	head := bytes.NewReader(s.head.Bytes())
	if s.tail == nil {
		return head, nil
	}
	_, err := s.tail.Seek(0, io.SeekStart)
	return io.MultiReader(head, s.tail), err
}

func (s *spool) close() {
	if s.tail == nil {
		return
	}
	s.tail.Close()
	if !s.gone {
		os.Remove(s.tail.Name())
	}
}
