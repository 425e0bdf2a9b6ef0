package storetest

import (
	"time"

	"checkpointdb"
)

var leaseCases = []testCase{
	{"Acquire", "A lease has a token of its own and fence 1 at first, and lasts for the duration that the store was opened with.", func(e *env) {
		l := e.acquireLease("t")
		if l.OwnerToken == "" {
			e.Error("the owner token is empty")
		}
		e.wantEqual("lease", l, checkpointdb.Lease{
			Writer:     checkpointdb.Writer{ThreadID: "t", OwnerToken: l.OwnerToken, Fence: 1},
			ExpiresAt:  e.now().Add(leaseDuration),
			RenewAfter: renewAfter,
		})
		if other := e.acquire("other"); other.OwnerToken == l.OwnerToken {
			e.Error("two leases have one token")
		}
	}},

	{"Conflict", "AcquireWriter fails at once with ErrWriterConflict while an unexpired lease exists, and says until when and under which fence.", func(e *env) {
		e.release(e.acquire("t"))
		l := e.acquireLease("t")
		for range 2 {
			err := e.refused(checkpointdb.ErrWriterConflict, "AcquireWriter", func() error {
				_, err := e.store.AcquireWriter(e.Context(), "t")
				return err
			})
			want := &checkpointdb.WriterConflictError{ThreadID: "t", Fence: 2, ExpiresAt: l.ExpiresAt}
			e.wantEqual("detail", detail[*checkpointdb.WriterConflictError](e, err), want)
		}
		e.chain(l.Writer, "c1") // the refusals cost the holder nothing
		if w := e.acquire("other"); w.Fence != 1 {
			e.Errorf("the first lease of another thread has fence %d", w.Fence)
		}
	}},

	{"LostAtExpiry", "A lease is lost at the very moment of its expiry, even when nobody else took it.", func(e *env) {
		l := e.acquireLease("t")
		e.chain(l.Writer, "c1")
		e.setNow(l.ExpiresAt.Add(-1))
		e.chain(l.Writer, "c2")
		e.setNow(l.ExpiresAt)
		e.refusedWriter(l.Writer, 1)
		e.advance(time.Hour)
		e.refusedWriter(l.Writer, 1)
	}},

	{"TakenAtExpiry", "A lease can be taken at the very moment of its expiry, and not before.", func(e *env) {
		l := e.acquireLease("t")
		e.setNow(l.ExpiresAt.Add(-1))
		e.refused(checkpointdb.ErrWriterConflict, "AcquireWriter just before the expiry", func() error {
			_, err := e.store.AcquireWriter(e.Context(), "t")
			return err
		})
		e.setNow(l.ExpiresAt)
		next := e.acquireLease("t")
		if next.Fence != 2 || next.OwnerToken == l.OwnerToken {
			e.Errorf("the next lease has fence %d and token %q, the last had %d and %q", next.Fence, next.OwnerToken, l.Fence, l.OwnerToken)
		}
		e.refusedWriter(l.Writer, 2)
		e.chain(next.Writer, "c1")
	}},

	{"FenceGrows", "The fence is the last fence of the thread plus one, after a release as after an expiry.", func(e *env) {
		var writers []checkpointdb.Writer
		for i := range 6 {
			w := e.acquire("t")
			if w.Fence != checkpointdb.Fence(i+1) {
				e.Fatalf("lease no. %d has fence %d", i+1, w.Fence)
			}
			writers = append(writers, w)
			if i%2 == 0 {
				e.release(w)
			} else {
				e.advance(leaseDuration)
			}
		}
		w := e.acquire("t")
		e.chain(w, "c1")
		for _, old := range writers {
			e.refusedWriter(old, 7)
		}
	}},

	{"Renew", "Renew moves the expiry to now plus the lease duration, and may be repeated.", func(e *env) {
		l := e.acquireLease("t")
		for _, wait := range []time.Duration{0, 0, time.Second, leaseDuration - 1, leaseDuration / 2} {
			e.advance(wait)
			renewed, err := e.store.Renew(e.Context(), l.Writer)
			if err != nil {
				e.Fatalf("Renew: %v", err)
			}
			l.ExpiresAt = e.now().Add(leaseDuration)
			e.wantEqual("renewed lease", renewed, l)
		}
		e.setNow(l.ExpiresAt.Add(-1))
		e.chain(l.Writer, "c1")
		e.setNow(l.ExpiresAt)
		e.refusedWriter(l.Writer, 1)
	}},

	{"RenewShortens", "Renew counts from now, also when the clock has gone back.", func(e *env) {
		l := e.acquireLease("t")
		e.advance(-time.Hour)
		renewed, err := e.store.Renew(e.Context(), l.Writer)
		if err != nil {
			e.Fatalf("Renew: %v", err)
		}
		e.wantEqual("expiry", renewed.ExpiresAt, e.now().Add(leaseDuration))
		e.setNow(renewed.ExpiresAt)
		e.refusedWriter(l.Writer, 1)
	}},

	{"Release", "Release ends the lease, so that the next one can be taken at once; it may be repeated.", func(e *env) {
		w := e.acquire("t")
		e.release(w)
		e.release(w)
		e.refusedWriter(w, 1)
		next := e.acquire("t")
		e.release(w) // the lease is another's now
		e.chain(next, "c1")
		e.refused(checkpointdb.ErrWriterConflict, "AcquireWriter after a late release", func() error {
			_, err := e.store.AcquireWriter(e.Context(), "t")
			return err
		})
	}},

	{"ReleaseOfOther", "Release does nothing unless token and fence match.", func(e *env) {
		w := e.acquire("t")
		for _, forge := range []func(*checkpointdb.Writer){
			func(w *checkpointdb.Writer) { w.Fence++ },
			func(w *checkpointdb.Writer) { w.Fence = 0 },
			func(w *checkpointdb.Writer) { w.OwnerToken += "x" },
			func(w *checkpointdb.Writer) { w.OwnerToken = "" },
			func(w *checkpointdb.Writer) { w.ThreadID = "other" },
			func(w *checkpointdb.Writer) { w.ThreadID = "unknown" },
		} {
			other := e.acquire("other")
			forged := w
			forge(&forged)
			e.release(forged)
			if _, err := e.store.Renew(e.Context(), w); err != nil {
				e.Fatalf("Renew after the release of %+v: %v", forged, err)
			}
			if _, err := e.store.Renew(e.Context(), other); err != nil {
				e.Fatalf("Renew of another thread after the release of %+v: %v", forged, err)
			}
			e.release(other)
		}
	}},

	{"Threads", "The leases of two threads never touch.", func(e *env) {
		a, b := e.acquire("a"), e.acquire("b")
		e.release(a)
		e.chain(b, "b1")
		e.refusedWriter(a, 1)
		e.advance(leaseDuration / 2)
		again := e.acquire("a")
		e.advance(leaseDuration / 2)
		e.refusedWriter(b, 1)
		e.chain(again, "a1")
	}},

	{"KeepsState", "A thread's checkpoints outlive its leases.", func(e *env) {
		w := e.acquire("t")
		e.chain(w, "c1")
		e.release(w)
		e.wantHead("t", "c1")
		w = e.acquire("t")
		e.chain(w, "c2")
		e.advance(2 * leaseDuration)
		e.wantList("t", "c1", "c2")
		e.chain(e.acquire("t"), "c3")
	}},
}
