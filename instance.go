package checkpointdb

import (
	"context"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// An instance record is a version byte, provider, provider's sandbox id, thread
// id, latest run id and latest snapshot id as uvarint lengths and bytes, and
// updatedAt as time. Its key is the key of its row.

func encodeInstance(in Instance) []byte {
	b := []byte{rowVersion}
	b = appendText(b, in.Provider)
	b = appendText(b, in.ProviderSandboxID)
	b = appendText(b, in.ThreadID)
	b = appendText(b, in.LatestRunID)
	b = appendText(b, in.LatestSnapshotID)
	return appendTime(b, in.UpdatedAt)
}

func parseInstance(k, v []byte) (Instance, error) {
	r := reader{rest: v}
	version := r.byte()
	in := Instance{
		Key: string(k), Provider: r.text(), ProviderSandboxID: r.text(), ThreadID: ThreadID(r.text()),
		LatestRunID: r.text(), LatestSnapshotID: r.text(), UpdatedAt: r.time(),
	}
	if r.bad || version != rowVersion || len(r.rest) > 0 {
		return Instance{}, damagedAt(bucketInstances, k, errRow)
	}
	return in, nil
}

// GetInstance implements [InstanceStore].
func (s *Store) GetInstance(ctx context.Context, key string) (in Instance, err error) {
	const op = "get instance"
	if err := validateID("instance key", key); err != nil {
		return Instance{}, withOp(op, err)
	}
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		v := tx.Bucket(bucketInstances).Get([]byte(key))
		if v == nil {
			return &Error{Code: ErrInstanceNotFound, Message: fmt.Sprintf("no instance %q", key)}
		}
		in, err = parseInstance([]byte(key), v)
		return err
	})
	return in, err
}

// UpsertInstance implements [InstanceStore].
func (s *Store) UpsertInstance(ctx context.Context, in Instance) error {
	const op = "upsert instance"
	if err := in.Validate(); err != nil {
		return withOp(op, err)
	}
	return s.update(ctx, op, func(tx *bolt.Tx, _ time.Time) error {
		return tx.Bucket(bucketInstances).Put([]byte(in.Key), encodeInstance(in))
	})
}

// DeleteInstance implements [InstanceStore].
func (s *Store) DeleteInstance(ctx context.Context, key string) error {
	const op = "delete instance"
	if err := validateID("instance key", key); err != nil {
		return withOp(op, err)
	}
	return s.update(ctx, op, func(tx *bolt.Tx, _ time.Time) error {
		return tx.Bucket(bucketInstances).Delete([]byte(key))
	})
}
