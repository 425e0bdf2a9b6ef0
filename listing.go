package checkpointdb

import (
	"context"
	"fmt"
	"iter"
	"os"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"checkpointdb/internal/retry"
)

// The listing comes in pages, each of which is held in memory as a whole.
const (
	// localPage is for directories that buckets.Open lists.
	localPage = 10_000
	// walkedPage is for directories that gocloud's own driver lists: it walks the
	// whole directory again for every page.
	walkedPage = 1_000_000
	// remotePage is for all others. Servers return less at a time anyway; memory
	// sorts all its keys for every page.
	remotePage = 50_000
)

// lister lists the objects below [FileKeyPrefix] and [ArtifactKeyPrefix].
type lister struct {
	bucket   *blob.Bucket
	pageSize int
}

func newLister(bucket *blob.Bucket) lister { return lister{bucket, pageSizeFor(bucket)} }

func pageSizeFor(bucket *blob.Bucket) int {
	var dir string
	var info os.FileInfo
	switch {
	case bucket.As(&dir):
		return localPage
	case bucket.As(&info):
		return walkedPage
	}
	return remotePage
}

// all yields the objects, those with well-formed keys in the order of the keys
// if the bucket lists in order, as it should. An error ends it.
func (l lister) all(ctx context.Context) iter.Seq2[*blob.ListObject, error] {
	return func(yield func(*blob.ListObject, error) bool) {
		for _, prefix := range []string{ArtifactKeyPrefix, FileKeyPrefix} {
			token := blob.FirstPageToken
			for len(token) > 0 {
				var (
					page []*blob.ListObject
					err  error
				)
				if page, token, err = l.page(ctx, prefix, token); err != nil {
					yield(nil, fmt.Errorf("listing %s: %w", prefix, err))
					return
				}
				for i, object := range page {
					page[i] = nil // large pages can go while they are worked on
					if !yield(object, nil) {
						return
					}
				}
			}
		}
	}
}

// Listing a local directory fails when a file vanishes in the meantime, as it
// does while another sweep deletes. So a page is asked for again, some seconds
// at the most, for that is also how a bucket answers that does not exist.
const (
	listTries    = 30
	listPauseMax = 250 * time.Millisecond
)

// page returns a page of the listing and the token of the next, empty after the
// last. It returns a moment after ctx ended even when the bucket does not answer.
func (l lister) page(ctx context.Context, prefix string, token []byte) ([]*blob.ListObject, []byte, error) {
	pause := time.Millisecond
	for try := 1; ; try++ {
		page, next, err := l.pageOnce(ctx, prefix, token)
		if !isGone(err) || try == listTries {
			return page, next, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		pause = min(2*pause, listPauseMax)
	}
}

func (l lister) pageOnce(ctx context.Context, prefix string, token []byte) ([]*blob.ListObject, []byte, error) {
	type result struct {
		page []*blob.ListObject
		next []byte
		err  error
	}
	results := make(chan result, 1)
	go func() {
		var r result
		r.err = retry.Do(ctx, func(ctx context.Context) (err error) {
			r.page, r.next, err = l.bucket.ListPage(ctx, token, l.pageSize, &blob.ListOptions{Prefix: prefix})
			return err
		})
		results <- r
	}()
	select {
	case r := <-results:
		return r.page, r.next, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-results: // with the error of a driver that heeds ctx
		return r.page, r.next, r.err
	case <-time.After(patience):
		return nil, nil, ctx.Err()
	}
}

// patience is how long to wait for the bucket after ctx ended. Drivers that heed
// the context need far less; the others are left behind.
const patience = 250 * time.Millisecond

func isGone(err error) bool { return gcerrors.Code(err) == gcerrors.NotFound }
