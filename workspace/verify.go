package workspace

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"checkpointdb"
)

// verifier reads exactly size bytes and hands out the last of them only when
// all of them together have the digest. So whoever reads from it to the end,
// or counts the bytes, never accepts wrong ones.
type verifier struct {
	src  io.Reader
	hash hash.Hash
	left int64
	want checkpointdb.Digest
	err  error // sticky
}

// errMismatch: the bytes are too few or have another digest.
var errMismatch = errors.New("has other bytes than its key says")

func newVerifier(src io.Reader, size int64, key checkpointdb.BlobKey) *verifier {
	digest, _ := key.Digest()
	return &verifier{src: src, hash: sha256.New(), left: size, want: digest}
}

func (v *verifier) Read(p []byte) (n int, err error) {
	if v.err != nil {
		return 0, v.err
	}
	if v.left > 0 {
		n, err = v.src.Read(p[:min(int64(len(p)), v.left)])
		v.hash.Write(p[:n])
		v.left -= int64(n)
	}
	switch {
	case v.left == 0:
		v.err = io.EOF
		if checkpointdb.Digest(v.hash.Sum(nil)) != v.want {
			v.err, n = errMismatch, 0
		}
		if n > 0 {
			return n, nil
		}
	case err == io.EOF:
		v.err = errMismatch
	default:
		v.err = err
	}
	return n, v.err
}
