package checkpointdb

import (
	"checkpointdb/internal/ctxio"
	"context"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// Backup writes a consistent copy of the store to w, which opens as a store by
// itself. The copy is first made in a temporary file, beside the store or else in
// os.TempDir, at the speed of the disk, and then streamed from there: so w may be
// as slow as it likes without a transaction staying open. Blobs are not part of
// it. Nothing is durable until the caller has synced what it wrote.
func (s *Store) Backup(ctx context.Context, w io.Writer) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".backup-*.tmp") // mode 0600
	if err != nil {
		if tmp, err = os.CreateTemp("", "checkpointdb-backup-*.tmp"); err != nil {
			return err
		}
	}
	// Without its name at once, where the system allows that, so that not even a
	// killed process leaves it behind.
	_ = os.Remove(tmp.Name())
	defer func() {
		tmp.Close()
		_ = os.Remove(tmp.Name())
	}()
	if err := s.read(ctx, "backup", func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(tmp)
		return err
	}); err != nil {
		return err
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(w, ctxio.Reader(ctx, tmp))
	return err
}
