package checkpointdb

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code is the class of an error. Every error that this module makes has one: it
// is what [CodeOf] finds, and it matches under [errors.Is], as do the classes of
// its causes. Package workspace has some codes of its own.
type Code string

// Error returns the code itself, so that a Code can be the target of errors.Is.
func (c Code) Error() string { return string(c) }

// The codes of the contract. The strings are those of the reference
// implementation and never change. "Retry" says whether the same call can
// succeed later without the caller changing anything.
const (
	// ErrInvalidID: an id is empty, too long or not well-formed Unicode. Retry: no.
	ErrInvalidID Code = "SANDBOX_SNAPSHOT_INVALID_ID"
	// ErrInvalidEntry: a file, artifact, message, time or text breaks a rule;
	// [*InvalidEntryError] says which. Retry: no.
	ErrInvalidEntry Code = "SANDBOX_SNAPSHOT_INVALID_ENTRY"
	// ErrCheckpointNotFound: no checkpoint has this id. Retry: no.
	ErrCheckpointNotFound Code = "SANDBOX_SNAPSHOT_CHECKPOINT_NOT_FOUND"
	// ErrWriterConflict: somebody holds the lease; [*WriterConflictError] says
	// until when. Retry: after the expiry.
	ErrWriterConflict Code = "SANDBOX_SNAPSHOT_WRITER_CONFLICT"
	// ErrWriterLost: the writer's lease expired, was released or was taken by
	// another; [*WriterLostError] has both fences, except for a writer of another
	// thread, whose fences do not compare. Retry: acquire again first.
	ErrWriterLost Code = "SANDBOX_SNAPSHOT_WRITER_LOST"
	// ErrDuplicateID: a checkpoint of this id exists, in this or another
	// thread. Retry: no.
	ErrDuplicateID Code = "SANDBOX_SNAPSHOT_DUPLICATE_ID"
	// ErrStaleHead: the head is not the expected one; [*StaleHeadError] has
	// both. Retry: read the head first.
	ErrStaleHead Code = "SANDBOX_SNAPSHOT_STALE_HEAD"
	// ErrParentMismatch: the checkpoint's parent is not the expected head.
	// Retry: no.
	ErrParentMismatch Code = "SANDBOX_SNAPSHOT_PARENT_MISMATCH"
	// ErrNotHead: only the head can be deleted, and this id is not it. Retry: no.
	ErrNotHead Code = "SANDBOX_SNAPSHOT_NOT_HEAD"
	// ErrForkSourceNotFound: the checkpoint to fork does not exist. Retry: no.
	ErrForkSourceNotFound Code = "SANDBOX_SNAPSHOT_FORK_SOURCE_NOT_FOUND"
	// ErrForkSourceThreadMismatch: the source is of another thread, or source
	// and destination are one thread. Retry: no.
	ErrForkSourceThreadMismatch Code = "SANDBOX_SNAPSHOT_FORK_SOURCE_THREAD_MISMATCH"
	// ErrForkDestinationNotEmpty: the new thread has state, or the new id is
	// used. Retry: no.
	ErrForkDestinationNotEmpty Code = "SANDBOX_SNAPSHOT_FORK_DESTINATION_NOT_EMPTY"
)

// The codes beyond the contract.
const (
	// ErrInvalidArgument: an argument that is no id and no entry is out of
	// range. Retry: no.
	ErrInvalidArgument Code = "CHECKPOINTDB_INVALID_ARGUMENT"
	// ErrInvalidOptions: Options contradict themselves; the message names every
	// contradiction. Retry: no.
	ErrInvalidOptions Code = "CHECKPOINTDB_INVALID_OPTIONS"
	// ErrInstanceNotFound: no instance has this key. Retry: no.
	ErrInstanceNotFound Code = "CHECKPOINTDB_INSTANCE_NOT_FOUND"
	// ErrThreadNotFound: the store never had a lease or a transcript of this
	// thread. Methods of the contract take such a thread for an empty one. Retry: no.
	ErrThreadNotFound Code = "CHECKPOINTDB_THREAD_NOT_FOUND"
	// ErrNoLease: the thread has no lease that could be broken. Retry: no.
	ErrNoLease Code = "CHECKPOINTDB_NO_LEASE"
	// ErrInUse: another store has the file open. Retry: when it is closed.
	ErrInUse Code = "CHECKPOINTDB_IN_USE"
	// ErrNotAStore: the path is a directory, or a file that is not a bbolt
	// file, or a bbolt file of another program. Retry: no.
	ErrNotAStore Code = "CHECKPOINTDB_NOT_A_STORE"
	// ErrUnknownFormat: the file was written by a later version of this
	// library; [*FormatError] has both numbers. Retry: with that version.
	ErrUnknownFormat Code = "CHECKPOINTDB_UNKNOWN_FORMAT"
	// ErrDamaged: the file breaks its own rules. Nothing was changed. Retry: no.
	ErrDamaged Code = "CHECKPOINTDB_DAMAGED"
	// ErrFailed: an earlier commit failed in a way that leaves unknown what is
	// on the disk, so this handle writes no more. Retry: close, open again, and
	// look whether the change is there.
	ErrFailed Code = "CHECKPOINTDB_FAILED"
	// ErrReadOnly: the store was opened read-only. Retry: no.
	ErrReadOnly Code = "CHECKPOINTDB_READ_ONLY"
	// ErrClosed: the store was closed. Retry: no.
	ErrClosed Code = "CHECKPOINTDB_CLOSED"
	// ErrBlobMissing: a blob that a checkpoint names is not in the bucket;
	// [*BlobError] has key, checkpoint and path. Retry: no.
	ErrBlobMissing Code = "CHECKPOINTDB_BLOB_MISSING"
	// ErrBlobDamaged: a blob's bytes do not have the size or digest that its
	// checkpoint gives; [*BlobError] has key, checkpoint and path. Retry: no.
	ErrBlobDamaged Code = "CHECKPOINTDB_BLOB_DAMAGED"
	// ErrBlobBeingDeleted: a sweep is deleting a blob that the checkpoint uses.
	// Retry: capture again, which uploads the blob anew.
	ErrBlobBeingDeleted Code = "CHECKPOINTDB_BLOB_BEING_DELETED"
	// ErrSweepIncomplete: a sweep ended early or could not delete all that it
	// should have; the report counts what was done, and everything that was not
	// deleted is as it was. Retry: yes, a sweep may be repeated at any time.
	ErrSweepIncomplete Code = "CHECKPOINTDB_SWEEP_INCOMPLETE"
)

// Error is the error type of the module: a class, what was tried, and the facts.
type Error struct {
	Code    Code
	Op      string // the method that failed, such as "append"; "" when a caller adds it
	Message string // what is wrong and where, with ids in quotes
	Err     error  // typed detail or cause, may be nil
}

// Error puts the package first, so that a log line says where it came from.
func (e *Error) Error() string {
	parts := []string{"checkpointdb"}
	for _, part := range []string{e.Op, e.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ") + " (" + string(e.Code) + ")"
}

// Unwrap gives errors.Is the class and errors.As the detail.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Err}
}

// CodeOf returns the class of err, "" when it has none.
func CodeOf(err error) Code {
	var code Code
	if errors.As(err, &code) {
		return code
	}
	return ""
}

// WriterConflictError tells who holds a lease and how long. The owner's token
// is left out: whoever has it can write.
type WriterConflictError struct {
	ThreadID  ThreadID
	Fence     Fence // of the holder
	ExpiresAt time.Time
}

func (e *WriterConflictError) Error() string {
	return fmt.Sprintf("thread %q is leased under fence %d until %s", e.ThreadID, e.Fence, e.ExpiresAt.Format(time.RFC3339Nano))
}

// WriterLostError tells a writer by what it was fenced off.
type WriterLostError struct {
	ThreadID ThreadID
	Held     Fence // of the writer that was refused
	Last     Fence // highest fence given out for the thread so far
}

func (e *WriterLostError) Error() string {
	if e.Held == e.Last {
		return fmt.Sprintf("the lease of thread %q under fence %d has expired or was released", e.ThreadID, e.Held)
	}
	return fmt.Sprintf("the writer of thread %q holds fence %d, the last lease is fence %d", e.ThreadID, e.Held, e.Last)
}

// StaleHeadError has the head that was expected and the one that is; "" is none.
type StaleHeadError struct {
	ThreadID         ThreadID
	Expected, Actual CheckpointID
}

func (e *StaleHeadError) Error() string {
	return fmt.Sprintf("head of thread %q is %q, not the expected %q", e.ThreadID, e.Actual, e.Expected)
}

// InvalidEntryError says which rule is broken and where.
type InvalidEntryError struct {
	Field string // JSON name: "files", "artifacts", "conversation", "createdAt", …
	Index int    // in that list; -1 for a field that is no list
	Path  string // of a file, or id of an artifact, as far as it is known
	Rule  string // the rule that is broken
}

func (e *InvalidEntryError) Error() string {
	switch {
	case e.Index < 0:
		return fmt.Sprintf("%s: %s", e.Field, e.Rule)
	case e.Path == "":
		return fmt.Sprintf("%s[%d]: %s", e.Field, e.Index, e.Rule)
	default:
		return fmt.Sprintf("%s[%d] %q: %s", e.Field, e.Index, e.Path, e.Rule)
	}
}

// FormatError has the format of a file and the newest this library knows.
type FormatError struct {
	Path      string
	Found     uint64
	Supported uint64
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format %d, this library knows formats up to %d", e.Path, e.Found, e.Supported)
}

// BlobError names a blob that is missing or damaged, and who needs it.
type BlobError struct {
	Key          BlobKey
	CheckpointID CheckpointID // "" when unknown
	Path         string       // of the file, or id of the artifact; "" when unknown
	Problem      string       // such as "missing" or "has 3 bytes, not 5"
}

func (e *BlobError) Error() string {
	text := fmt.Sprintf("blob %s %s", e.Key, e.Problem)
	if e.Path != "" {
		text += fmt.Sprintf(", needed for %q", e.Path)
	}
	if e.CheckpointID != "" {
		text += fmt.Sprintf(" of checkpoint %q", e.CheckpointID)
	}
	return text
}

func invalidID(what, format string, args ...any) error {
	return &Error{Code: ErrInvalidID, Message: what + " " + fmt.Sprintf(format, args...)}
}

func invalidField(field, format string, args ...any) error {
	return invalidItem(field, -1, "", format, args...)
}

func invalidItem(field string, index int, path, format string, args ...any) error {
	return &Error{Code: ErrInvalidEntry, Err: &InvalidEntryError{
		Field: field, Index: index, Path: path, Rule: fmt.Sprintf(format, args...),
	}}
}

// withOp names the operation in an *Error that does not name one yet.
func withOp(op string, err error) error {
	if e, ok := err.(*Error); ok && e.Op == "" {
		named := *e
		named.Op = op
		return &named
	}
	return err
}
