package checkpointdb

import (
	"context"
	"encoding/json"
	"iter"
)

// CheckpointStore is the sandbox-checkpoint contract of TanStack AI, in Go.
// [Store] and memstore.Store implement it; package storetest proves it for any
// other.
//
// Rules for every method. A call checks in the order that its comment gives,
// the first check that fails decides the error, and a call that returns an
// error has changed nothing. Every call is safe from many goroutines. A value
// that is passed in is not kept; a value that comes back belongs to the caller.
// When a changing method of a persistent store returns nil, the change is
// durable. A context that is already done gives its error before anything is
// read or written; a context that ends while a change is being committed does
// not stop the commit.
//
// Errors match the sentinels of this package under [errors.Is].
type CheckpointStore interface {
	// Get returns a checkpoint. Checks: id valid ([ErrInvalidID]), exists
	// ([ErrCheckpointNotFound]).
	Get(ctx context.Context, id CheckpointID) (Checkpoint, error)

	// List yields all checkpoints of a thread by CreatedAt, and those of one
	// time by the bytes of their id; this is not the order of the chain. An
	// unknown thread yields nothing. The list of ids is taken when the loop
	// starts; a checkpoint that is deleted before its turn is left out. The
	// loop's body may call the store. An error is yielded once, last. Checks:
	// id valid.
	List(ctx context.Context, thread ThreadID) iter.Seq2[Checkpoint, error]

	// Head returns the id of the newest checkpoint, "" when there is none.
	// Checks: id valid.
	Head(ctx context.Context, thread ThreadID) (CheckpointID, error)

	// Append adds the checkpoint, makes it the head of its thread and counts
	// the blob keys it uses, each once. expectedHead is "" for a thread without
	// a head. Checks: all ids valid, w's too ([ErrInvalidID]); CreatedAt, reason, texts,
	// files, conversation, artifacts valid ([ErrInvalidEntry]); w is of this
	// thread and current ([ErrWriterLost]); the id is unused in every thread
	// ([ErrDuplicateID]); the head is expectedHead ([ErrStaleHead]); the parent
	// is expectedHead ([ErrParentMismatch]).
	Append(ctx context.Context, w Writer, c Checkpoint, expectedHead CheckpointID) error

	// DeleteHead removes the head of w's thread and makes its parent the head.
	// Where the parent was pruned, the thread has no head afterwards. Checks:
	// ids valid, w current, id is the head ([ErrNotHead]).
	DeleteHead(ctx context.Context, w Writer, id CheckpointID) error

	// AcquireWriter takes the lease of a thread, or fails at once with
	// [ErrWriterConflict] (and a [*WriterConflictError]) while an unexpired
	// lease exists, whoever holds it. The fence is the last fence of the thread
	// plus one, 1 at first. Checks: id valid, no unexpired lease.
	AcquireWriter(ctx context.Context, thread ThreadID) (Lease, error)

	// Renew moves the expiry to now plus the lease duration. It may be
	// repeated. Checks: id valid, w current; a lease that lapsed is lost even
	// when nobody else took it.
	Renew(ctx context.Context, w Writer) (Lease, error)

	// Release ends the lease if token and fence match, and does nothing
	// otherwise. It may be repeated. Checks: id valid.
	Release(ctx context.Context, w Writer) error

	// BlobReferences yields every key in use by any checkpoint with its count,
	// by the bytes of the key. The loop's body may call the store; a key whose
	// count changes meanwhile may show the count before or after. An error is
	// yielded once, last.
	BlobReferences(ctx context.Context) iter.Seq2[BlobReference, error]
}

// Forker is the optional capability to start a thread from a checkpoint of
// another.
type Forker interface {
	// Fork stores one checkpoint of reason fork-root, without parent, label or
	// run id, with the files, conversation and artifacts of the source, as the
	// head of the new thread, and saves the conversation as the new thread's
	// transcript, all or nothing. Checks: ids valid, w's too, CreatedAt valid, threads
	// differ ([ErrForkSourceThreadMismatch]), source exists
	// ([ErrForkSourceNotFound]), source is of the source thread
	// ([ErrForkSourceThreadMismatch]), w is of the new thread and current
	// ([ErrWriterLost]), new thread has no checkpoint, head or transcript and
	// the new id is unused ([ErrForkDestinationNotEmpty]).
	Fork(ctx context.Context, w Writer, req ForkRequest) (Checkpoint, error)
}

// Pruner is the optional capability to shorten the chain of a thread.
type Pruner interface {
	// DeleteCheckpoints keeps the head and the keep-1 newest before it on the
	// chain, deletes the thread's other checkpoints and returns their ids,
	// oldest first. Checks: id valid, keep at least 1 ([ErrInvalidArgument]), w
	// current.
	DeleteCheckpoints(ctx context.Context, w Writer, keep int) ([]CheckpointID, error)
}

// InstanceStore is the optional capability to remember sandboxes.
type InstanceStore interface {
	// GetInstance returns the record under key. Checks: key valid as an id,
	// exists ([ErrInstanceNotFound]).
	GetInstance(ctx context.Context, key string) (Instance, error)
	// UpsertInstance replaces the whole record under in.Key, so an optional
	// field that is left out is cleared. Checks: key and thread id valid
	// ([ErrInvalidID]), texts and time valid ([ErrInvalidEntry]).
	UpsertInstance(ctx context.Context, in Instance) error
	// DeleteInstance removes the record under key; a missing one is no error.
	// Checks: key valid.
	DeleteInstance(ctx context.Context, key string) error
}

// Transcripts is the optional capability to keep the running conversation of a
// thread, beside those in its checkpoints. A saved transcript, even an empty
// one, makes a thread a thread with state: [Forker.Fork] refuses to enter it.
type Transcripts interface {
	// LoadThread returns the transcript, empty for an unknown thread. Checks:
	// id valid.
	LoadThread(ctx context.Context, thread ThreadID) ([]json.RawMessage, error)
	// SaveThread replaces the transcript. Checks: id valid, every message one
	// JSON value ([ErrInvalidEntry]).
	SaveThread(ctx context.Context, thread ThreadID, messages []json.RawMessage) error
}

// ThreadDeleter is the optional capability to delete a thread as a whole.
type ThreadDeleter interface {
	// DeleteThread removes the checkpoints, head, reference counts, transcript
	// and lease of w's thread; its fence stays, so that w and every older
	// writer are lost and the next lease gets a larger fence. It may be
	// repeated with the same w until somebody else takes the lease: w is then the
	// last writer of a thread that has neither state nor lease. Checks: id valid,
	// w current or that last writer ([ErrWriterLost]).
	DeleteThread(ctx context.Context, w Writer) error
}
