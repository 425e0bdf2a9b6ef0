// Package checkpointdb keeps the checkpoints of coding agents: for each thread,
// which files and which conversation it had after every good turn, so that a
// program that runs agents can go back to any of them after any crash.
//
// A [Checkpoint] is one immutable version of a thread. Its records lie in one
// bbolt file, which [Open] opens as a [Store]. The bytes of its files lie in a
// bucket of gocloud.dev/blob under content-addressed keys, equal bytes once. A
// Store never touches them: package workspace moves a directory into the bucket
// and back, package buckets opens the bucket, and here only [Sweep], [CheckBlobs],
// Export and Import are given one.
//
// # A turn
//
// One writer at a time changes a thread. [WithLease] makes the caller that
// writer and keeps it so while a function runs:
//
//  1. WithLease, and in it Head: where the thread is.
//  2. workspace.Restore, where the workspace is not there yet.
//  3. The agent works.
//  4. workspace.Capture: the bytes become durable in the bucket.
//  5. Append: the record that names them becomes durable, and the new head.
//
// Bytes come before records, so a crash at any point leaves the old head or the
// new one, never a checkpoint without its bytes; it may leave bytes without a
// checkpoint, which [Sweep] deletes when they are old enough. Package
// examples/runner is this in one file.
//
// # Leases and fences
//
// A lease has a token, which its holder keeps secret, an expiry and a [Fence].
// Expiry decides only who may take a lease. Whose write lands is decided by
// token and fence, in the transaction that writes: so a writer that lost its
// lease without noticing, because the machine slept or the clock jumped, is
// refused with [ErrWriterLost] and cannot overwrite its successor.
//
// # The chain
//
// Checkpoints of a thread are a chain from the head along
// [Checkpoint.ParentCheckpointID]. The head is what [CheckpointStore].Head says;
// neither times nor ids tell. DeleteHead goes one step back, Fork starts another
// thread from any checkpoint without copying a blob, and Prune and
// DeleteCheckpoints shorten the chain from its old end. A survivor keeps the id
// of a pruned parent; when such a head is deleted, the thread has none.
//
// # Errors
//
// Every error of this module matches one [Code] under errors.Is, and [CodeOf]
// finds it; the comment of each code says whether a retry can help. Types such as
// [WriterConflictError], [StaleHeadError] and [BlobError] carry the facts for
// errors.As. Texts may change. Ids and names in them are quoted, because they come
// from sandboxes.
//
// # Durability
//
// When a method that changes something returns nil, the change was synced to the
// disk. When it returns an error nothing was changed, with one exception: after
// [ErrFailed] only closing the store and opening it again shows whether the last
// change is there, and until then it takes no more.
//
// # Concurrency
//
// All methods are safe for concurrent use. Values that are passed in are not
// kept, values that come back are the caller's own. Writers that arrive together
// share one transaction and its sync; readers do not wait for writers. List and
// BlobReferences hold no transaction while the body of the loop runs, so it may
// call the store. A file is open in one process at a time, read-only ones aside.
//
// # Operators
//
// Command cmd/inspect looks into stores, checks and repairs them. It stands on
// what this package exports for the purpose: Threads, Log, Usage and the like,
// Check, [CheckBlobs], [Repair], BackupFile, Compact, Export and Import. bbolt locks
// the file for one process; with [Options.Live] others get in through its owner.
//
// # Other stores
//
// [CheckpointStore] is the contract; [Forker], [Pruner] and the other small
// interfaces are optional parts of it. WithLease and Sweep work with every
// implementation. Package memstore is one in memory, for tests, and package
// storetest proves yours.
package checkpointdb
