package checkpointdb

import (
	"context"
	"encoding/json"
	"time"

	bolt "go.etcd.io/bbolt"
)

// putTranscript writes a version byte and the messages as a packed list.
func putTranscript(tx *bolt.Tx, n threadNumber, items []string) error {
	return tx.Bucket(bucketTranscripts).Put(n.key(), appendPacked([]byte{rowVersion}, sectionConversation, items))
}

// parseTranscript returns strings of its own.
func parseTranscript(v []byte) ([]string, error) {
	if len(v) == 0 || v[0] != rowVersion {
		return nil, errRow
	}
	return parsePacked(v[1:], sectionConversation)
}

// LoadThread implements [Transcripts].
func (s *Store) LoadThread(ctx context.Context, thread ThreadID) ([]json.RawMessage, error) {
	const op = "load thread"
	if err := thread.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	var items []string
	err := s.read(ctx, op, func(tx *bolt.Tx) error {
		n, err := getThread(tx, thread)
		if n == 0 || err != nil {
			return err
		}
		v := tx.Bucket(bucketTranscripts).Get(n.key())
		if v == nil {
			return nil
		}
		if items, err = parseTranscript(v); err != nil {
			return damagedAt(bucketTranscripts, n.key(), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return itemMessages(items), nil
}

// SaveThread implements [Transcripts].
func (s *Store) SaveThread(ctx context.Context, thread ThreadID, messages []json.RawMessage) error {
	const op = "save thread"
	if err := thread.Validate(); err != nil {
		return withOp(op, err)
	}
	if err := ValidateMessages("messages", messages); err != nil {
		return withOp(op, err)
	}
	items := messageItems(messages, nil)
	return s.update(ctx, op, func(tx *bolt.Tx, _ time.Time) error {
		n, err := createThread(tx, thread)
		if err != nil {
			return err
		}
		return putTranscript(tx, n, items)
	})
}
