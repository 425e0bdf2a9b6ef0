package buckets

import (
	"context"
	"os"
	"sync"

	"gocloud.dev/blob/driver"
)

// uploads is what a bucket of a directory does so that uploads of killed
// processes do not pile up as temporary files (case 49). While it may upload, it
// holds a lock on a marker in the directory. A marker that nobody holds is that of
// a process that was killed, and only then, before the first upload, the
// directory is searched for what that one left. So the search costs nothing
// where nothing has happened, and can never meet the upload of a process that is
// alive: that one holds the marker.
//
// It does what it can: where there are no locks, or no marker can be made,
// uploads work as well, and temporary files stay until a sweep deletes them as
// foreign objects. Should locks not reach a process on another machine, an upload
// of that one can lose its temporary file and then fails, as its last step is to
// rename it.
type uploads struct {
	mu      sync.Mutex
	marker  *os.File // nil before the first upload, and where there are no locks
	entered bool     // whether the first upload has begun
	running int
	closed  bool
}

// markerName is the marker's, in the directory of the bucket. It is no object.
const markerName = ".checkpointdb-uploads"

// begin waits while leftovers are removed from dir. Each begin needs an end.
func (u *uploads) begin(dir string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.entered {
		u.entered, u.marker = true, holdMarker(dir)
	}
	u.running++
}

func (u *uploads) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running--
	u.leave()
}

// close lets the marker go, when the last upload has ended.
func (u *uploads) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	u.leave()
}

func (u *uploads) leave() {
	if u.closed && u.running == 0 && u.marker != nil {
		releaseMarker(u.marker)
		u.marker = nil
	}
}

// upload is a writer of which uploads knows.
type upload struct {
	driver.Writer
	end func()
}

func (w *upload) Close() error {
	defer w.end()
	return w.Writer.Close()
}

func (b *localBucket) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (driver.Writer, error) {
	b.uploads.begin(b.dir)
	w, err := b.Bucket.NewTypedWriter(ctx, key, contentType, opts)
	if err != nil {
		b.uploads.end()
		return nil, err
	}
	return &upload{w, b.uploads.end}, nil
}

func (b *localBucket) Copy(ctx context.Context, dst, src string, opts *driver.CopyOptions) error {
	b.uploads.begin(b.dir)
	defer b.uploads.end()
	return b.Bucket.Copy(ctx, dst, src, opts)
}
