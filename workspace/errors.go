package workspace

import (
	"fmt"
	"io/fs"
	"os"

	"checkpointdb"
)

// The codes of this package, beside those of package checkpointdb. "Retry" says
// whether the same call can succeed later without the caller changing anything.
const (
	// ErrSpecialFile: a named pipe, socket or device is in the workspace;
	// [*PathError] says where. Nothing was stored. Retry: when it is gone.
	ErrSpecialFile checkpointdb.Code = "CHECKPOINTDB_SPECIAL_FILE"
	// ErrFileTooLarge: a file is larger than Policy.MaxFileSize, or an ignore file
	// too large to be one; [*PathError] says which. Nothing was stored. Retry: no.
	ErrFileTooLarge checkpointdb.Code = "CHECKPOINTDB_FILE_TOO_LARGE"
	// ErrTotalTooLarge: all files together are larger than Policy.MaxTotalSize;
	// [*PathError] says with which one. Nothing was stored. Retry: no.
	ErrTotalTooLarge checkpointdb.Code = "CHECKPOINTDB_TOTAL_TOO_LARGE"
	// ErrTreeChanged: the directory kept changing while it was read;
	// [*PathError] says where. Retry: when the writer is done.
	ErrTreeChanged checkpointdb.Code = "CHECKPOINTDB_TREE_CHANGED"
	// ErrRestoreUnfinished: the directory is part of the way through a restore;
	// [*UnfinishedError] says of which checkpoint. Retry: after a Restore that
	// succeeds.
	ErrRestoreUnfinished checkpointdb.Code = "CHECKPOINTDB_RESTORE_UNFINISHED"
	// ErrRestoreIncomplete: a restore changed the directory and could not
	// finish; [*IncompleteError] lists why. Retry: yes, it goes on from there.
	ErrRestoreIncomplete checkpointdb.Code = "CHECKPOINTDB_RESTORE_INCOMPLETE"
	// ErrTargetNotEmpty: the directory holds something that the restore would
	// have to replace or remove, and RestoreOptions.Rewind is not set;
	// [*PathError] names the first. Nothing was changed. Retry: no.
	ErrTargetNotEmpty checkpointdb.Code = "CHECKPOINTDB_TARGET_NOT_EMPTY"
	// ErrTargetRefused: a restore would have to remove what it must never remove:
	// a whole file system, a home directory, something excluded or not chosen, one
	// of the program's own files; or it was not told what is excluded. Nothing was
	// changed. Retry: no.
	ErrTargetRefused checkpointdb.Code = "CHECKPOINTDB_TARGET_REFUSED"
	// ErrNameClash: the file system of the target cannot hold a name, or not
	// beside another one of the checkpoint; [*PathError] says which. Nothing
	// was changed. Retry: no.
	ErrNameClash checkpointdb.Code = "CHECKPOINTDB_NAME_CLASH"
)

// PathError is a problem with one path of a workspace.
type PathError struct {
	Path    string // relative to the workspace's directory, or that directory
	Problem string // "" when Err says it
	Err     error  // cause, may be nil
}

// Error quotes the path: names come from the sandbox and may carry anything.
func (e *PathError) Error() string {
	text := fmt.Sprintf("%q", e.Path)
	if e.Problem != "" {
		text += " " + e.Problem
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *PathError) Unwrap() error { return e.Err }

// UnfinishedError says which restore a directory is part of the way through.
type UnfinishedError struct {
	Dir          string
	CheckpointID checkpointdb.CheckpointID // "" when the marker is unreadable
}

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("%q holds an unfinished restore of checkpoint %q; restore that one again, or any with Rewind (to keep the mixture that is there, delete %s in it)",
		e.Dir, e.CheckpointID, markerDir)
}

// IncompleteError lists what kept a restore from being complete.
type IncompleteError struct {
	CheckpointID checkpointdb.CheckpointID
	Count        int          // of failed paths
	Failed       []*PathError // by path; the first to fail when there are very many
}

// maxListed bounds what an IncompleteError holds: a bucket that is down fails
// for every file.
const maxListed = 100

func (e *IncompleteError) Error() string {
	text := fmt.Sprintf("%d failures for checkpoint %q", e.Count, e.CheckpointID)
	for _, f := range e.Failed {
		text += "\n\t" + f.Error()
	}
	if more := e.Count - len(e.Failed); more > 0 {
		text += fmt.Sprintf("\n\tand %d more", more)
	}
	return text
}

// Unwrap gives errors.Is and errors.As every listed failure.
func (e *IncompleteError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f
	}
	return errs
}

// pathError says that err happened at p. It drops the path that package os put
// into err, which is not quoted and may be the name of a temporary file.
func pathError(p string, err error) *PathError {
	if p == "" {
		p = "." // the root itself
	}
	if e, ok := err.(*fs.PathError); ok {
		err = fmt.Errorf("%s: %w", e.Op, e.Err)
	} else if e, ok := err.(*os.LinkError); ok {
		err = fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return &PathError{Path: p, Err: err}
}

// wrap names the operation that failed in an error that is to be returned.
func wrap(op string, err error) error {
	if e, ok := err.(*checkpointdb.Error); ok && e.Op == "" {
		named := *e
		named.Op = op
		return &named
	}
	return fmt.Errorf("checkpointdb: %s: %w", op, err)
}

func coded(code checkpointdb.Code, err error) error {
	return &checkpointdb.Error{Code: code, Err: err}
}

func refuse(code checkpointdb.Code, p, problem string, args ...any) error {
	return coded(code, &PathError{Path: p, Problem: fmt.Sprintf(problem, args...)})
}
