// Package ctxio ends streams with their context.
package ctxio

import (
	"context"
	"io"
)

// Reader returns a reader that ends with ctx, between two reads of r. Whoever
// buffers what it reads would look at its own context much later.
func Reader(ctx context.Context, r io.Reader) io.Reader { return &reader{ctx, r} }

type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
