package checkpointdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/ctxio"
	"checkpointdb/internal/outfile"
)

// Backup writes a consistent copy of the store to w, which opens as a store by
// itself. The copy is first made in a temporary file, beside the store or else in
// os.TempDir, at the speed of the disk, and then streamed from there: so w may be
// as slow as it likes without a transaction staying open, and no change waits for
// it. It looks first whether there is room for that file; the error tells how
// much is needed. Blobs are not part of it. Nothing is durable until the caller
// has synced what it wrote; [Store.BackupFile] does all of that.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	copied, _, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer copied.Close()
	_, err = io.Copy(w, ctxio.Reader(ctx, copied))
	return err
}

// snapshot makes the copy that Backup streams. The file is at its start, has so
// many bytes, and is gone when it is closed, also by the end of a killed process.
func (s *Store) snapshot(ctx context.Context) (copied *os.File, size int64, err error) {
	var failures []error
	for _, path := range []string{
		s.path + ".backup.tmp",
		filepath.Join(os.TempDir(), fmt.Sprintf("checkpointdb-%x.backup.tmp", s.id)),
	} {
		copied, err := outfile.Unnamed(path)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		var m meter
		err = s.copyPages(ctx, copied, &m)
		if err == nil {
			_, err = copied.Seek(0, io.SeekStart)
		}
		if err == nil {
			return copied, m.total.Load(), nil
		}
		copied.Close()
		if CodeOf(err) != "" || ctx.Err() != nil { // it is not about the place
			return nil, 0, err
		}
		failures = append(failures, err)
	}
	return nil, 0, fmt.Errorf("checkpointdb: backup: no place for a temporary copy: %w", errors.Join(failures...))
}

// BackupOptions configure [Store.BackupFile].
type BackupOptions struct {
	// Progress, if set, is called every now and then with how many bytes of the
	// file are written, and at the end. It runs on the goroutine that called
	// BackupFile, outside every transaction, and may call the store.
	Progress func(done, total int64)
}

// BackupFile writes a consistent copy of the store to a new file with mode 0600,
// which opens as a store by itself. Nothing may be at path: the error matches
// fs.ErrExist then. The file appears there when it is whole and durable; until
// then it has the name path.tmp, and what a killed run left under that name the
// next one removes. The copy is made in one read transaction at the speed of the
// disk; no change waits for it. It looks first whether there is room; the error
// tells how much is needed. Blobs are not part of the copy.
func (s *Store) BackupFile(ctx context.Context, path string, opts *BackupOptions) error {
	return backUpTo(ctx, path, opts, func(to *os.File, progress func(done, total int64)) error {
		var m meter
		return m.watch(progress, func() error { return s.copyPages(ctx, to, &m) })
	})
}

// backUpTo makes a backup at path of what copy writes.
func backUpTo(ctx context.Context, path string, opts *BackupOptions, copy func(to *os.File, progress func(done, total int64)) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var progress func(done, total int64)
	if opts != nil {
		progress = opts.Progress
	}
	out, err := outfile.Create(path)
	if err != nil {
		return fmt.Errorf("checkpointdb: backup: %w", err)
	}
	defer out.Abort()
	if err := copy(out.File, progress); err != nil {
		return err
	}
	if err := out.Commit(); err != nil {
		return fmt.Errorf("checkpointdb: backup: %w", err)
	}
	return nil
}

// copyPages copies the file as one transaction sees it.
func (s *Store) copyPages(ctx context.Context, to *os.File, m *meter) error {
	const op = "backup"
	return s.read(ctx, op, func(tx *bolt.Tx) error {
		m.total.Store(tx.Size())
		err := outfile.Room(filepath.Dir(to.Name()), tx.Size())
		if err == nil {
			w := &meteredWriter{ctx: ctx, w: to, m: m}
			if _, err = tx.WriteTo(w); w.err != nil {
				err = w.err
			}
		}
		if err != nil {
			return fmt.Errorf("checkpointdb: %s: %w", op, err)
		}
		return nil
	})
}

// meter tells another goroutine how far some work is.
type meter struct{ done, total atomic.Int64 }

// watch runs work, which moves the meter, and calls progress meanwhile. work has
// a goroutine of its own, so that nothing of the caller's runs inside its
// transaction or holds it up.
func (m *meter) watch(progress func(done, total int64), work func() error) error {
	if progress == nil {
		return work()
	}
	ended := make(chan error, 1)
	go func() { ended <- work() }()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if total := m.total.Load(); total > 0 {
				progress(m.done.Load(), total)
			}
		case err := <-ended:
			if err == nil {
				progress(m.done.Load(), m.total.Load())
			}
			return err
		}
	}
}

const progressInterval = 100 * time.Millisecond

// meteredWriter counts what is written and ends with ctx.
type meteredWriter struct {
	ctx context.Context
	w   io.Writer
	m   *meter
	err error // the first one; bbolt makes some of them text
}

func (w *meteredWriter) Write(p []byte) (n int, err error) {
	if err = w.ctx.Err(); err == nil {
		n, err = w.w.Write(p)
		w.m.done.Add(int64(n))
	}
	if w.err == nil {
		w.err = err
	}
	return n, err
}
