package checkpointdb_test

import (
	"iter"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/internal/storeopen"
	"checkpointdb/memstore"
	"checkpointdb/storetest"
)

// fullStore is the contract with all optional capabilities.
type fullStore interface {
	checkpointdb.CheckpointStore
	checkpointdb.Forker
	checkpointdb.Pruner
	checkpointdb.PolicyPruner
	checkpointdb.InstanceStore
	checkpointdb.Transcripts
	checkpointdb.ThreadDeleter
}

// storeConfig is what tests over both stores set.
type storeConfig struct {
	path          string // the file of a store that has one
	clock         func() time.Time
	leaseDuration time.Duration
	renewAfter    time.Duration
}

// storeKind is one of our stores. Open ends the test when it fails; when the
// test ends, the store is checked and closed.
type storeKind struct {
	name string
	open func(t storeopen.TB, c storeConfig) fullStore
}

var storeKinds = []storeKind{
	{"memstore", func(t storeopen.TB, c storeConfig) fullStore {
		s, err := memstore.New(&memstore.Options{Clock: c.clock, LeaseDuration: c.leaseDuration, RenewAfter: c.renewAfter})
		if err != nil {
			t.Fatalf("New: %v", err)
		}
		return s
	}},
	{"bbolt", func(t storeopen.TB, c storeConfig) fullStore {
		return storeopen.Open(t, c.path, &checkpointdb.Options{Clock: c.clock, LeaseDuration: c.leaseDuration, RenewAfter: c.renewAfter})
	}},
}

// testClock stands still until it is set. It is safe for concurrent use.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func TestConformance(t *testing.T) {
	for _, kind := range storeKinds {
		t.Run(kind.name, func(t *testing.T) {
			options := &storetest.Options{}
			if kind.name == "memstore" {
				options.Volatile = "memstore keeps nothing when it is closed"
			}
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				t.Parallel()
				return &harness{t: t, kind: kind, path: filepath.Join(t.TempDir(), "store.db")}
			}, options)
		})
	}
}

// harness opens one file, again and again.
type harness struct {
	t     *testing.T
	kind  storeKind
	path  string
	store fullStore
}

func (h *harness) Open(s storetest.Settings) (checkpointdb.CheckpointStore, error) {
	h.store = h.kind.open(h.t, storeConfig{h.path, s.Clock, s.LeaseDuration, s.RenewAfter})
	return h.store, nil
}

func (h *harness) Close() error {
	closeStore(h.t, h.store)
	return nil
}

// closeStore checks and closes a store before its test ends.
func closeStore(t storeopen.TB, s fullStore) {
	if s, ok := s.(*checkpointdb.Store); ok {
		storeopen.Close(t, s)
	}
}

// collect reads an iterator up to its first error.
func collect[T any](seq iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for item, err := range seq {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, nil
}
