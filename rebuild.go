package checkpointdb

import (
	"context"
	"log/slog"
	"time"

	bolt "go.etcd.io/bbolt"

	"checkpointdb/internal/outfile"
)

// builder makes the file of a new store out of what is known of an old one. It is
// for one goroutine. Nothing is durable, and nothing has its final name, until
// finish; there are no leases to hold, for nobody else can have the file.
type builder struct {
	s    *Store
	out  *outfile.File
	tx   *bolt.Tx
	puts int // bytes, roughly, that tx has written
}

// batchBytes is how much the builder writes in one transaction, which bbolt holds
// in memory.
const batchBytes = 8 << 20

// newBuilder begins the store that finish will put at path, where nothing may be:
// the error then matches fs.ErrExist.
func newBuilder(path string, id [16]byte, created time.Time) (b *builder, err error) {
	out, err := outfile.Create(path)
	if err != nil {
		return nil, err
	}
	b = &builder{out: out, s: &Store{path: out.Name(), id: id, deleting: map[blobID]chan struct{}{}}}
	defer func() {
		if err != nil {
			b.abort()
		}
	}()
	b.s.opts = Options{Clock: func() time.Time { return created }, Logger: slog.New(slog.DiscardHandler)}
	if b.s.db, err = openOutfile(out, 0); err != nil {
		return nil, err
	}
	b.s.file = out.File
	if err := b.s.create(); err != nil {
		return nil, err
	}
	if b.tx, err = b.s.db.Begin(true); err != nil {
		return nil, err
	}
	return b, b.tx.Bucket(bucketMeta).Put(keyStoreID, id[:])
}

// wrote commits what has been written when it is time to.
func (b *builder) wrote(bytes int) (err error) {
	if b.puts += bytes; b.puts < batchBytes {
		return nil
	}
	b.puts = 0
	if err := b.tx.Commit(); err != nil {
		return err
	}
	b.tx, err = b.s.db.Begin(true)
	return err
}

// thread returns the number of a thread, which exists from then on.
func (b *builder) thread(id ThreadID) (threadNumber, error) { return createThread(b.tx, id) }

// append makes a checkpoint the head of its thread, whatever its parent is. Id and
// lists must be valid, and the id not be used yet.
func (b *builder) append(n threadNumber, h header, lists content) error {
	head, err := getHead(b.tx, n)
	if err != nil {
		return err
	}
	v := &version{record: &record{header: h}, lists: lists}
	if err := b.s.appendVersion(b.tx, n, head, v); err != nil {
		return err
	}
	return b.wrote(1024 + lists.items()*64)
}

// dropHead leaves the thread without a head, as DeleteHead does where the parent
// was pruned.
func (b *builder) dropHead(n threadNumber) error {
	h, err := getHead(b.tx, n)
	if err != nil {
		return err
	}
	return b.s.dropHead(b.tx, n, h)
}

// fence makes f the last fence that the thread gave out.
func (b *builder) fence(n threadNumber, f Fence) error {
	return b.tx.Bucket(bucketFences).Put(n.key(), u64(uint64(f)))
}

func (b *builder) transcript(n threadNumber, items []string) error {
	size := 0
	for _, item := range items {
		size += len(item)
	}
	if err := putTranscript(b.tx, n, items); err != nil {
		return err
	}
	return b.wrote(size)
}

func (b *builder) instance(in Instance) error {
	v := encodeInstance(in)
	if err := b.tx.Bucket(bucketInstances).Put([]byte(in.Key), v); err != nil {
		return err
	}
	return b.wrote(len(in.Key) + len(v))
}

// garbage remembers a blob that no checkpoint uses; all checkpoints must be there.
func (b *builder) garbage(id blobID, since time.Time) error {
	if isReferenced(b.tx.Bucket(bucketRefcounts).Cursor(), id) {
		return nil
	}
	if err := b.tx.Bucket(bucketGarbage).Put(id[:], appendTime(nil, since)); err != nil {
		return err
	}
	return b.wrote(len(id) + timeLen)
}

// finish checks every invariant of the new store and gives it its name. It is
// durable when finish returns nil; otherwise nothing is left of it. The builder is
// of no use afterwards.
func (b *builder) finish(ctx context.Context) error {
	defer b.abort()
	err := b.tx.Commit()
	if b.tx = nil; err != nil {
		return err
	}
	if err := b.s.Check(ctx); err != nil {
		return err
	}
	return b.out.Commit()
}

// abort ends what finish has not. The file goes first, while its lock keeps its
// name from others; so bbolt finds it closed.
func (b *builder) abort() {
	if b.tx != nil {
		_ = b.tx.Rollback()
		b.tx = nil
	}
	b.out.Abort()
	if b.s.db != nil {
		_ = b.s.db.Close()
	}
}
