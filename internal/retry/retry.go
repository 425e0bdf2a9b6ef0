// Package retry waits for object stores that refuse a request for the moment.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"gocloud.dev/gcerrors"
)

// Pauses double from the first to the longest. Stores allow one change a second
// of one object and want seconds of rest when they are busy; whoever holds out
// for minutes does not come to reason.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 30 * time.Second
	tries      = 12 // two and a half minutes at the most, and what the calls take
)

// Do calls f until it succeeds or fails for good, ctx ends, or f has been tried
// often enough. Between two calls it pauses, a random time around one that
// doubles. The error wraps the last one of f, and that of ctx if it ended a pause.
func Do(ctx context.Context, f func(context.Context) error) error {
	begin := time.Now()
	for try, pause := 1, firstPause; ; try, pause = try+1, min(2*pause, maxPause) {
		err := f(ctx)
		switch {
		case err == nil || !Temporary(err):
			return err
		case try == tries:
			return fmt.Errorf("%w (tried %d times in %s)", err, try, time.Since(begin).Round(time.Second))
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w while waiting after: %w", ctx.Err(), err)
		}
	}
}

// Status tells the HTTP status of the errors of drivers that keep it to
// themselves, 0 for other errors. The package that links them sets it when it is
// initialized; nil is none.
var Status func(error) int

// Temporary reports whether the same request may succeed later, by the word of
// the store or because the connection broke.
func Temporary(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	switch status(err) {
	case http.StatusRequestTimeout, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
		http.StatusGone: // of an upload in pieces: to be begun anew
		return true
	}
	if e, ok := errors.AsType[interface {
		error
		ErrorCode() string
	}](err); ok { // of S3
		switch e.ErrorCode() {
		case "ConditionalRequestConflict", "OperationAborted", // 409: somebody else is writing the key
			"RequestTimeout": // 400: the body came too slowly
			return true
		}
	}
	if gcerrors.Code(err) == gcerrors.ResourceExhausted {
		return true
	}
	_, broken := errors.AsType[*net.OpError](err)
	return broken
}

func status(err error) int {
	if e, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok { // of S3
		return e.HTTPStatusCode()
	}
	if Status != nil {
		return Status(err)
	}
	return 0
}
