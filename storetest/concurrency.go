package storetest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"checkpointdb"
)

// together runs n functions at once and waits for all. The first error of each
// fails the test.
func (e *env) together(n int, f func(i int) error) {
	e.Helper()
	errs := make([]error, n)
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		done.Go(func() {
			start.Wait()
			errs[i] = f(i)
		})
	}
	start.Done()
	done.Wait()
	for i, err := range errs {
		if err != nil {
			e.Errorf("goroutine %d: %v", i, err)
		}
	}
}

var concurrencyCases = []testCase{
	{"Threads", "Writers of different threads do not get into each other's way.", func(e *env) {
		const writers, appends = 64, 5
		e.together(writers, func(i int) error {
			thread := checkpointdb.ThreadID(fmt.Sprint("t", i))
			e.touch(thread)
			l, err := e.store.AcquireWriter(e.Context(), thread)
			if err != nil {
				return err
			}
			parent := checkpointdb.CheckpointID("")
			for n := range appends {
				c := e.checkpoint(thread, checkpointdb.CheckpointID(fmt.Sprintf("t%d-%d", i, n)), parent)
				if err := e.store.Append(e.Context(), l.Writer, c, parent); err != nil {
					return err
				}
				head, err := e.store.Head(e.Context(), thread)
				if err != nil || head != c.ID {
					return fmt.Errorf("head is %q right after the append of %q (error %v)", head, c.ID, err)
				}
				parent = c.ID
			}
			return nil
		})
		for i := range writers {
			if all := e.list(checkpointdb.ThreadID(fmt.Sprint("t", i))); len(all) != appends {
				e.Errorf("thread t%d has %d checkpoints, want %d", i, len(all), appends)
			}
		}
		e.wantCount(file("", "common").BlobKey, writers*appends)
	}},

	{"Acquire", "Of many that acquire one thread at once, exactly one gets the lease; all others get ErrWriterConflict.", func(e *env) {
		for round := range 5 {
			var mu sync.Mutex
			var won []checkpointdb.Writer
			e.together(32, func(int) error {
				l, err := e.store.AcquireWriter(e.Context(), "t")
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					won = append(won, l.Writer)
					return nil
				}
				if !errors.Is(err, checkpointdb.ErrWriterConflict) {
					return err
				}
				return nil
			})
			if len(won) != 1 {
				e.Fatalf("%d of 32 got the lease", len(won))
			}
			if won[0].Fence != checkpointdb.Fence(round+1) {
				e.Errorf("lease no. %d has fence %d", round+1, won[0].Fence)
			}
			e.touch("t")
			e.release(won[0])
		}
	}},

	{"OneHead", "Of many appends at once that expect one head, exactly one succeeds; all others get ErrStaleHead.", func(e *env) {
		w := e.acquire("t")
		parent := checkpointdb.CheckpointID("")
		for round := range 5 {
			var mu sync.Mutex
			var won []checkpointdb.CheckpointID
			e.together(16, func(i int) error {
				c := e.checkpoint("t", checkpointdb.CheckpointID(fmt.Sprintf("%d-%d", round, i)), parent)
				err := e.store.Append(e.Context(), w, c, parent)
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					won = append(won, c.ID)
					return nil
				}
				if !errors.Is(err, checkpointdb.ErrStaleHead) {
					return err
				}
				return nil
			})
			if len(won) != 1 {
				e.Fatalf("%d of 16 appends expecting head %q succeeded", len(won), parent)
			}
			parent = won[0]
			e.wantHead("t", parent)
		}
	}},

	{"OneID", "Of many threads that append one id at once, exactly one succeeds; all others get ErrDuplicateID.", func(e *env) {
		var writers []checkpointdb.Writer
		for i := range 16 {
			writers = append(writers, e.acquire(checkpointdb.ThreadID(fmt.Sprint("t", i))))
		}
		var mu sync.Mutex
		won := 0
		e.together(len(writers), func(i int) error {
			err := e.store.Append(e.Context(), writers[i], e.checkpoint(writers[i].ThreadID, "c", ""), "")
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				won++
				return nil
			}
			if !errors.Is(err, checkpointdb.ErrDuplicateID) {
				return err
			}
			return nil
		})
		if won != 1 {
			e.Errorf("%d of %d appends of one id succeeded", won, len(writers))
		}
	}},

	{"RenewRelease", "A renewal that crosses a release does not revive the lease: the next one can be taken at once.", func(e *env) {
		rounds := 1000
		if testing.Short() {
			rounds = 50
		}
		for range rounds {
			w := e.acquire("t")
			renewed := make(chan error, 1)
			go func() {
				_, err := e.store.Renew(e.Context(), w)
				renewed <- err
			}()
			e.release(w)
			next, err := e.store.AcquireWriter(e.Context(), "t")
			if err != nil {
				e.Errorf("AcquireWriter right after Release, with a renewal on its way: %v", err)
			}
			if err := <-renewed; err != nil && !errors.Is(err, checkpointdb.ErrWriterLost) {
				e.Errorf("Renew during Release: %v", err)
			}
			if e.Failed() {
				return
			}
			e.release(next.Writer)
		}
	}},

	{"ReadWhileWriting", "Reading, from within a loop as well, does not hold up writers, nor they it.", func(e *env) {
		reader, writer := e.acquire("read"), e.acquire("write")
		for i := range 50 {
			e.chain(reader, checkpointdb.CheckpointID(fmt.Sprint("r", i)))
		}
		// Random text, so that the store has to grow a good deal meanwhile.
		random := make([]byte, 1<<20)
		_, _ = rand.Read(random)
		message, _ := json.Marshal(random)
		e.together(2, func(i int) error {
			if i == 0 {
				parent := checkpointdb.CheckpointID("")
				for n := range 16 {
					c := e.checkpoint("write", checkpointdb.CheckpointID(fmt.Sprint("w", n)), parent)
					message[1+n] ^= 1 // still base64, or at least still JSON
					c.Conversation = []json.RawMessage{message}
					if err := e.store.Append(e.Context(), writer, c, parent); err != nil {
						return err
					}
					parent = c.ID
				}
				return nil
			}
			for c, err := range e.store.List(e.Context(), "read") {
				if err != nil {
					return err
				}
				if _, err := e.store.Get(e.Context(), c.ID); err != nil {
					return err
				}
				if _, err := collect(e.store.BlobReferences(e.Context())); err != nil {
					return err
				}
			}
			return nil
		})
	}},
}
