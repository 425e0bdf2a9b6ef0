package checkpointdb

import (
	"bytes"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"
)

// addSizes is the step from format 1 to 2: it writes the size of its blob into
// every run, as the records have it. The records stay as they are.
func addSizes(tx *bolt.Tx) error {
	return tx.Bucket(bucketHeads).ForEach(func(k, _ []byte) error {
		n, err := parseU64(k)
		if err != nil {
			return damagedAt(bucketHeads, k, err)
		}
		return addSizesOf(tx, threadNumber(n))
	})
}

func addSizesOf(tx *bolt.Tx, n threadNumber) error {
	rows, err := listRows(tx, n)
	if err != nil {
		return err
	}
	refs := tx.Bucket(bucketRefcounts)
	var before *version
	for _, r := range rows {
		v, err := loadVersion(tx, r.place, before)
		if err != nil {
			return err
		}
		var came []use
		for kind := range sections {
			var old []string
			if before != nil {
				old = before.lists[kind]
			}
			came = append(came, usesOf(kind, diff(old, v.lists[kind]).inserted)...)
		}
		for _, u := range came {
			if err := addSizeTo(refs, u, v, before); err != nil {
				return err
			}
		}
		before = v
	}
	return nil
}

// addSizeTo rewrites the run of a blob that v begins: it starts there, or where a
// checkpoint was that is pruned. In format 1 a value was the last position alone.
func addSizeTo(refs *bolt.Bucket, u use, v, before *version) error {
	prefix := runPrefix(u.blob, v.thread)
	var sized []run
	c := refs.Cursor()
	for k, last := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, last = c.Next() {
		r, err := parseRunKey(k)
		if err != nil {
			return damagedAt(bucketRefcounts, k, err)
		}
		if r.first > v.pos || before != nil && r.first <= before.pos {
			continue // of another version, and perhaps done
		}
		switch r.size = u.size; len(last) {
		case 0:
		case 8:
			r.last = position(binary.BigEndian.Uint64(last))
		default:
			return damagedAt(bucketRefcounts, k, errRow)
		}
		sized = append(sized, r)
	}
	for _, r := range sized {
		if err := refs.Put(r.key(), r.value()); err != nil {
			return err
		}
	}
	return nil
}
