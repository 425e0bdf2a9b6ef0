package workspace

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Files and requests in flight at once. Enough to keep a local disk's fsyncs
// and a remote bucket's round trips overlapping; with one buffer each this is
// also all the memory that file contents ever take.
const (
	workers    = 16
	bufferSize = 128 << 10
)

// forEach calls do for every i below n, several at once, each with a buffer that
// is its own during the call. It returns the first error, which also ends the
// context of the other calls, and only after all calls have returned.
func forEach(ctx context.Context, n int, do func(ctx context.Context, i int, buf []byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(n, workers) {
		g.Go(func() error {
			buf := make([]byte, bufferSize)
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := do(ctx, i, buf); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}
