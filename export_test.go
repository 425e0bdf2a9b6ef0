package checkpointdb

import "context"

// SteppedStore is a Store that announces each of its transactions, for the tests
// that put captures and sweeps into every order. A nil Step does nothing.
type SteppedStore struct {
	*Store
	Step func(what string)
	// NoPins makes Protect promise nothing, as if there were no pins.
	NoPins bool
}

var _ garbageKeeper = (*SteppedStore)(nil)

func (s *SteppedStore) Append(ctx context.Context, w Writer, c Checkpoint, head CheckpointID) error {
	s.Step("append " + string(c.ID))
	return s.Store.Append(ctx, w, c, head)
}

func (s *SteppedStore) DeleteHead(ctx context.Context, w Writer, id CheckpointID) error {
	s.Step("delete head " + string(id))
	return s.Store.DeleteHead(ctx, w, id)
}

func (s *SteppedStore) Prune(ctx context.Context, w Writer, p PrunePolicy) ([]CheckpointID, error) {
	s.Step("prune")
	return s.Store.Prune(ctx, w, p)
}

func (s *SteppedStore) Release(ctx context.Context, w Writer) error {
	s.Step("release")
	return s.Store.Release(ctx, w)
}

func (s *SteppedStore) AcquireWriter(ctx context.Context, thread ThreadID) (Lease, error) {
	s.Step("acquire")
	return s.Store.AcquireWriter(ctx, thread)
}

func (s *SteppedStore) Protect(ctx context.Context, w Writer, keys []BlobKey) ([]BlobKey, error) {
	s.Step("protect")
	if s.NoPins {
		return keys, nil
	}
	return s.Store.Protect(ctx, w, keys)
}

func (s *SteppedStore) claimUnused(ctx context.Context, keys []BlobKey) ([]BlobKey, error) {
	s.Step("claim")
	return s.Store.claimUnused(ctx, keys)
}

func (s *SteppedStore) settleDeleted(ctx context.Context, gone, kept []BlobKey) error {
	s.Step("settle")
	return s.Store.settleDeleted(ctx, gone, kept)
}

func (s *SteppedStore) retirePins(ctx context.Context) error {
	s.Step("retire pins")
	return s.Store.retirePins(ctx)
}

func (s *SteppedStore) listGarbage(ctx context.Context, after BlobKey, limit int) ([]garbageRow, error) {
	s.Step("list garbage")
	return s.Store.listGarbage(ctx, after, limit)
}

// SkipSync makes commits of s fast and not durable.
func (s *Store) SkipSync() { s.db.NoSync = true; s.db.NoGrowSync = true }
