package checkpointdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A pin is a promise that a blob stays until a lease ends, given before any
// checkpoint uses the blob (design §5). It is live while the thread's lease with
// its fence is; a dead one protects nothing, and the next quick sweep makes
// garbage of its blob. Append removes the pins of the blobs it begins to use.

// Protector is the optional capability to protect blobs before an Append. It is
// what lets captures and sweeps run at the same time.
type Protector interface {
	// Protect promises that no sweep deletes the keys' blobs until w's lease
	// ends, or until a checkpoint that uses them is gone again, whichever is
	// later. A blob that a sweep is deleting just now is waited for. So what
	// exists in the bucket after Protect returned, or is uploaded then, stays.
	// It returns those of the keys, each once, that no checkpoint of any thread
	// uses: only these can be missing in the bucket. Checks: id valid
	// ([ErrInvalidID]), keys valid ([ErrInvalidEntry]), w current
	// ([ErrWriterLost]).
	Protect(ctx context.Context, w Writer, keys []BlobKey) (unused []BlobKey, err error)
}

// ProtectFor binds a store's Protect to a writer, which is the form in which
// workspace.CaptureOptions takes it.
func ProtectFor(store Protector, w Writer) func(ctx context.Context, keys []BlobKey) (unused []BlobKey, err error) {
	return func(ctx context.Context, keys []BlobKey) ([]BlobKey, error) { return store.Protect(ctx, w, keys) }
}

func pinKey(id blobID, n threadNumber) []byte {
	return binary.BigEndian.AppendUint64(id[:], uint64(n))
}

// isPinned tells whether a live pin protects the blob. leases remembers the
// fences of leases that are live at this moment, 0 for none.
func isPinned(tx *bolt.Tx, c *bolt.Cursor, id blobID, now time.Time, leases map[threadNumber]Fence) (bool, error) {
	for k, v := c.Seek(id[:]); bytes.HasPrefix(k, id[:]); k, v = c.Next() {
		live, err := isLivePin(tx, k, v, now, leases)
		if live || err != nil {
			return live, err
		}
	}
	return false, nil
}

func isLivePin(tx *bolt.Tx, k, v []byte, now time.Time, leases map[threadNumber]Fence) (bool, error) {
	fence, err := parseU64(v)
	if err == nil && len(k) != 41 {
		err = errRow
	}
	if err != nil {
		return false, damagedAt(bucketPins, k, err)
	}
	n := threadNumber(binary.BigEndian.Uint64(k[33:]))
	live, ok := leases[n]
	if !ok {
		l, held, err := getLease(tx, n)
		if err != nil {
			return false, err
		}
		if held && now.Before(l.expires) {
			live = l.fence
		}
		leases[n] = live
	}
	return live != 0 && live == Fence(fence), nil
}

// Protect implements [Protector]. It writes nothing for blobs that the thread's
// head uses already: the head cannot go while w is current, but by w's own doing.
// The pins are durable when it returns.
func (s *Store) Protect(ctx context.Context, w Writer, keys []BlobKey) (unused []BlobKey, err error) {
	const op = "protect"
	if err := w.ThreadID.Validate(); err != nil {
		return nil, withOp(op, err)
	}
	ids := make([]blobID, 0, len(keys))
	for _, key := range keys {
		id, ok := blobIDOf(key)
		if !ok {
			_, err := ParseBlobKey(string(key))
			return nil, withOp(op, err)
		}
		ids = append(ids, id)
	}
	ids, err = s.notInHead(ctx, op, w, sortBlobs(ids))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	for {
		var deleting chan struct{}
		err := s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
			unused, deleting = nil, nil
			n, err := currentWriter(tx, w, w.ThreadID, now)
			if err != nil {
				return err
			}
			refs := tx.Bucket(bucketRefcounts).Cursor()
			for _, id := range ids {
				if deleting = s.deleting[id]; deleting != nil {
					return nil
				}
				if !isReferenced(refs, id) {
					unused = append(unused, id.key())
				}
			}
			pins := tx.Bucket(bucketPins)
			for _, id := range ids {
				if err := pins.Put(pinKey(id, n), u64(uint64(w.Fence))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if deleting == nil {
			return unused, nil
		}
		select {
		case <-deleting:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// notInHead returns those of the blobs that the head of w's thread does not use.
// It only reads: most blobs of a capture are in the head, and what the head uses
// stays so while w is current.
func (s *Store) notInHead(ctx context.Context, op string, w Writer, ids []blobID) (rest []blobID, err error) {
	now := s.opts.Clock()
	err = s.read(ctx, op, func(tx *bolt.Tx) error {
		n, err := currentWriter(tx, w, w.ThreadID, now)
		if err != nil {
			return err
		}
		refs := tx.Bucket(bucketRefcounts).Cursor()
		for _, id := range ids {
			r, ok, err := lastRun(refs, id, n)
			if err != nil {
				return err
			}
			if !ok || r.last != 0 {
				rest = append(rest, id)
			}
		}
		return nil
	})
	return rest, err
}

// dropPins removes the pins of the blobs in a thread: runs protect them now.
func dropPins(tx *bolt.Tx, n threadNumber, uses []use) error {
	pins := tx.Bucket(bucketPins)
	for _, u := range uses {
		if err := pins.Delete(pinKey(u.blob, n)); err != nil {
			return err
		}
	}
	return nil
}

// deadPins returns the keys of the pins that protect nothing any more.
func deadPins(tx *bolt.Tx, now time.Time) (dead [][]byte, err error) {
	leases := map[threadNumber]Fence{}
	c := tx.Bucket(bucketPins).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		live, err := isLivePin(tx, k, v, now, leases)
		if err != nil {
			return nil, err
		}
		if !live {
			dead = append(dead, bytes.Clone(k))
		}
	}
	return dead, nil
}

// retirePins removes the dead pins and remembers as garbage those of their blobs
// that nothing else protects. Pins are few: those of captures under way, and of
// captures that came to nothing. Where none is dead, it only reads.
func (s *Store) retirePins(ctx context.Context) error {
	const op = "retire pins"
	now, some := s.opts.Clock(), false
	if err := s.read(ctx, op, func(tx *bolt.Tx) error {
		dead, err := deadPins(tx, now)
		some = len(dead) > 0
		return err
	}); err != nil || !some {
		return err
	}
	return s.update(ctx, op, func(tx *bolt.Tx, now time.Time) error {
		dead, err := deadPins(tx, now)
		if err != nil {
			return err
		}
		pins := tx.Bucket(bucketPins)
		for _, k := range dead {
			if err := pins.Delete(k); err != nil {
				return err
			}
		}
		refs, garbage := tx.Bucket(bucketRefcounts).Cursor(), tx.Bucket(bucketGarbage)
		for _, k := range dead {
			id := blobID(k[:len(blobID{})])
			if isReferenced(refs, id) || garbage.Get(id[:]) != nil {
				continue
			}
			if err := garbage.Put(id[:], appendTime(nil, now)); err != nil {
				return err
			}
		}
		return nil
	})
}
