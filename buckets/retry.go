package buckets

import (
	"context"

	"checkpointdb/internal/retry"
)

// Retry calls f until it succeeds, fails with an error that is not temporary
// ([IsTemporary]), or ctx ends, with pauses in between that double from a quarter
// of a second to half a minute and are spread by chance. After a dozen calls,
// some two minutes, it gives up. The error wraps the last one of f; if ctx ended a
// pause, it matches that error too.
//
// f runs in the calling goroutine with ctx, and must do the whole piece of work
// each time: for a write, open the source again, because [WriteDurable] reads it
// once. The SDKs of the clouds try again by themselves, but for seconds only, and
// not every request: GCS and R2 take about one write a second of one key, and the
// same small file is captured by many.
func Retry(ctx context.Context, f func(context.Context) error) error { return retry.Do(ctx, f) }

// IsTemporary reports whether the same call may succeed later: the store was busy
// (429, 503), failed inside (500, 502, 504), took too long (408) or saw another
// writer of the key (409 of S3), or the connection broke. The end of a context is
// not temporary. The errors of GCS and Azure, apart from 429 of GCS, are known
// only where checkpointdb/buckets/cloud is linked.
func IsTemporary(err error) bool { return retry.Temporary(err) }
