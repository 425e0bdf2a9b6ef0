// Package storeopen opens bbolt stores for tests, so that every test that uses
// one also tests the invariants of its file.
package storeopen

import (
	"context"
	"errors"

	"checkpointdb"
)

// TB is what Open needs of a test; testing.TB and *rapid.T have it.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Open opens the store at path. When the test ends, the store is checked and
// closed, unless the test has closed it.
func Open(t TB, path string, o *checkpointdb.Options) *checkpointdb.Store {
	t.Helper()
	s, err := checkpointdb.Open(path, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { Close(t, s) })
	return s
}

// Close checks the store and closes it. A store that is closed already is left
// alone.
func Close(t TB, s *checkpointdb.Store) {
	t.Helper()
	err := s.Check(context.Background())
	if errors.Is(err, checkpointdb.ErrClosed) {
		return
	}
	if err != nil {
		t.Errorf("Check: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
