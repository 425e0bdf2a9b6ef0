package checkpointdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// getThread returns the number of a thread, 0 for an unknown one.
func getThread(tx *bolt.Tx, id ThreadID) (threadNumber, error) {
	v := tx.Bucket(bucketThreads).Get([]byte(id))
	if v == nil {
		return 0, nil
	}
	n, err := parseU64(v)
	if err != nil {
		return 0, damagedAt(bucketThreads, []byte(id), err)
	}
	return threadNumber(n), nil
}

// knownThread is getThread for methods that refuse an unknown one.
func knownThread(tx *bolt.Tx, id ThreadID) (threadNumber, error) {
	n, err := getThread(tx, id)
	if n == 0 && err == nil {
		err = &Error{Code: ErrThreadNotFound, Message: fmt.Sprintf("no thread %q", id)}
	}
	return n, err
}

func createThread(tx *bolt.Tx, id ThreadID) (threadNumber, error) {
	n, err := getThread(tx, id)
	if n != 0 || err != nil {
		return n, err
	}
	b := tx.Bucket(bucketThreads)
	seq, err := b.NextSequence()
	if err != nil {
		return 0, err
	}
	return threadNumber(seq), b.Put([]byte(id), u64(seq))
}

// DeleteThread implements [ThreadDeleter].
func (s *Store) DeleteThread(ctx context.Context, w Writer) error {
	const op = "delete thread"
	if err := w.ThreadID.Validate(); err != nil {
		return withOp(op, err)
	}
	return s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			if n != 0 && isDeletedBy(tx, w, n) {
				return nil
			}
			return err
		}
		h, err := getHead(tx, n)
		if err != nil {
			return err
		}
		rows, err := listRows(tx, n)
		if err != nil {
			return err
		}
		h.head = 0
		if err := s.deleteRows(tx, n, h, nil, rows, now); err != nil {
			return err
		}
		if err := tx.Bucket(bucketTranscripts).Delete(n.key()); err != nil {
			return err
		}
		return tx.Bucket(bucketWriters).Delete(n.key())
	})
}

// isDeletedBy tells whether w is the last writer of a thread that has neither
// state nor lease, as DeleteThread leaves it. The token is gone with the lease;
// the fence alone must do, and nothing is changed on its word.
func isDeletedBy(tx *bolt.Tx, w Writer, n threadNumber) bool {
	return tx.Bucket(bucketHeads).Get(n.key()) == nil &&
		tx.Bucket(bucketTranscripts).Get(n.key()) == nil &&
		tx.Bucket(bucketWriters).Get(n.key()) == nil &&
		bytes.Equal(tx.Bucket(bucketFences).Get(n.key()), binary.BigEndian.AppendUint64(nil, uint64(w.Fence)))
}
