package memstore

import (
	"context"
	"encoding/json"

	"checkpointdb"
)

// LoadThread implements checkpointdb.Transcripts.
func (s *Store) LoadThread(ctx context.Context, id checkpointdb.ThreadID) (messages []json.RawMessage, err error) {
	err = s.do(ctx, "load thread", func() error {
		if err := id.Validate(); err != nil {
			return err
		}
		if t := s.threads[id]; t != nil && t.transcript != nil {
			messages = cloneMessages(*t.transcript)
		}
		return nil
	})
	return messages, err
}

// SaveThread implements checkpointdb.Transcripts.
func (s *Store) SaveThread(ctx context.Context, id checkpointdb.ThreadID, messages []json.RawMessage) error {
	return s.do(ctx, "save thread", func() error {
		if err := id.Validate(); err != nil {
			return err
		}
		if err := checkpointdb.ValidateMessages("messages", messages); err != nil {
			return err
		}
		s.createThread(id).save(messages)
		return nil
	})
}

// DeleteThread implements checkpointdb.ThreadDeleter.
func (s *Store) DeleteThread(ctx context.Context, w checkpointdb.Writer) error {
	return s.do(ctx, "delete thread", func() error {
		if err := w.ThreadID.Validate(); err != nil {
			return err
		}
		t, err := s.current(w, w.ThreadID)
		if err != nil {
			// The token went with the lease, so that a repeat is known by its
			// fence alone. It has nothing to delete: one that would is refused.
			t = s.threads[w.ThreadID]
			if t != nil && t.lease == nil && t.fence == w.Fence && t.isEmpty() {
				return nil
			}
			return err
		}
		for _, c := range t.chain {
			delete(s.checkpoints, c.ID)
		}
		*t = thread{fence: t.fence}
		return nil
	})
}

// GetInstance implements checkpointdb.InstanceStore.
func (s *Store) GetInstance(ctx context.Context, key string) (in checkpointdb.Instance, err error) {
	err = s.do(ctx, "get instance", func() error {
		if err := validateKey(key); err != nil {
			return err
		}
		found, ok := s.instances[key]
		if !ok {
			return fail(checkpointdb.ErrInstanceNotFound, "no instance %q", key)
		}
		in = found
		return nil
	})
	return in, err
}

// UpsertInstance implements checkpointdb.InstanceStore.
func (s *Store) UpsertInstance(ctx context.Context, in checkpointdb.Instance) error {
	return s.do(ctx, "upsert instance", func() error {
		if err := in.Validate(); err != nil {
			return err
		}
		in.UpdatedAt = in.UpdatedAt.UTC()
		s.instances[in.Key] = in
		return nil
	})
}

// DeleteInstance implements checkpointdb.InstanceStore.
func (s *Store) DeleteInstance(ctx context.Context, key string) error {
	return s.do(ctx, "delete instance", func() error {
		if err := validateKey(key); err != nil {
			return err
		}
		delete(s.instances, key)
		return nil
	})
}

// validateKey holds an instance key to the rules for ids.
func validateKey(key string) error {
	if checkpointdb.ThreadID(key).Validate() != nil {
		return fail(checkpointdb.ErrInvalidID, "instance key %.80q is empty, too long or not well-formed Unicode", key)
	}
	return nil
}
