package storetest_test

import (
	"path/filepath"
	"testing"

	"checkpointdb"
	"checkpointdb/storetest"
)

// harness opens the store under test on one file. Here that is this module's
// own store; with another one, the type of store and the call of Open change.
type harness struct {
	path  string
	store *checkpointdb.Store
}

func (h *harness) Open(s storetest.Settings) (checkpointdb.CheckpointStore, error) {
	store, err := checkpointdb.Open(h.path, &checkpointdb.Options{
		Clock:         s.Clock,
		LeaseDuration: s.LeaseDuration,
		RenewAfter:    s.RenewAfter,
	})
	if err != nil {
		return nil, err
	}
	h.store = store
	return store, nil
}

func (h *harness) Close() error { return h.store.Close() }

// The whole adoption: a harness, and a test with this body.
func Example() {
	TestStore := func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return &harness{path: filepath.Join(t.TempDir(), "store.db")}
		}, nil)
	}
	_ = TestStore // go test finds it when it is declared as a function
}
