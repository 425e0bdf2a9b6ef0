package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"checkpointdb"
	"checkpointdb/memstore"
)

// That memstore keeps the contract is proven by TestConformance and TestTraces
// of package checkpointdb.

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		options              *memstore.Options
		duration, renewAfter time.Duration
	}{
		{nil, 120 * time.Second, 45 * time.Second},
		{&memstore.Options{}, 120 * time.Second, 45 * time.Second},
		{&memstore.Options{LeaseDuration: 8 * time.Second}, 8 * time.Second, 3 * time.Second},
		{&memstore.Options{RenewAfter: time.Second}, 120 * time.Second, time.Second},
		{&memstore.Options{LeaseDuration: 2, RenewAfter: 1}, 2, 1},
		{&memstore.Options{LeaseDuration: 1 << 62}, 1 << 62, 1 << 59 * 3},
	} {
		s, err := memstore.New(c.options)
		if err != nil {
			t.Errorf("New(%+v): %v", c.options, err)
			continue
		}
		before := time.Now()
		l, err := s.AcquireWriter(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		if l.RenewAfter != c.renewAfter {
			t.Errorf("New(%+v): renew after %s, want %s", c.options, l.RenewAfter, c.renewAfter)
		}
		if lasts := l.ExpiresAt.Sub(before); lasts < c.duration || lasts > c.duration+time.Minute {
			t.Errorf("New(%+v): the lease lasts for %s, want %s", c.options, lasts, c.duration)
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	for _, c := range []struct {
		options memstore.Options
		named   []string
	}{
		{memstore.Options{LeaseDuration: -1}, []string{"LeaseDuration"}},
		{memstore.Options{RenewAfter: -1}, []string{"RenewAfter"}},
		{memstore.Options{LeaseDuration: -1, RenewAfter: -2}, []string{"LeaseDuration -1ns", "RenewAfter -2ns"}},
		{memstore.Options{LeaseDuration: time.Second, RenewAfter: time.Second}, []string{"RenewAfter 1s"}},
		{memstore.Options{RenewAfter: 120 * time.Second}, []string{"RenewAfter 2m0s", "lease of 2m0s"}},
	} {
		_, err := memstore.New(&c.options)
		if !errors.Is(err, checkpointdb.ErrInvalidOptions) {
			t.Errorf("New(%+v): got error %v, want %v", c.options, err, checkpointdb.ErrInvalidOptions)
			continue
		}
		for _, name := range c.named {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("New(%+v): error %q does not name %q", c.options, err, name)
			}
		}
	}
}

func ExampleNew() {
	ctx := context.Background()
	store, err := memstore.New(nil)
	if err != nil {
		panic(err)
	}
	lease, err := store.AcquireWriter(ctx, "thread")
	if err != nil {
		panic(err)
	}
	_, err = store.AcquireWriter(ctx, "thread")
	fmt.Println(lease.Fence, errors.Is(err, checkpointdb.ErrWriterConflict))
	// Output: 1 true
}
