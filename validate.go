package checkpointdb

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Validate returns nil, or an error that matches [ErrInvalidID].
func (id ThreadID) Validate() error { return validateID("thread id", string(id)) }

// Validate returns nil, or an error that matches [ErrInvalidID]. The empty id,
// which stands for "none" as a parent or an expected head, is not valid.
func (id CheckpointID) Validate() error { return validateID("checkpoint id", string(id)) }

func validateID(what, id string) error {
	switch {
	case id == "":
		return invalidID(what, "is empty")
	case len(id) > MaxIDBytes:
		return invalidID(what, "%.40q… has %d bytes, more than %d", id, len(id), MaxIDBytes)
	case !utf8.ValidString(id):
		return invalidID(what, "%.80q is not well-formed Unicode", id)
	}
	return nil
}

// validateOptionalID takes "" for "none".
func validateOptionalID(what string, id CheckpointID) error {
	if id == "" {
		return nil
	}
	return validateID(what, string(id))
}

// ValidateIDs checks the checkpoint's ids alone, which a store does before it
// looks at anything else. It returns nil or an error that matches [ErrInvalidID].
func (c Checkpoint) ValidateIDs() error {
	if err := c.ID.Validate(); err != nil {
		return err
	}
	if err := c.ThreadID.Validate(); err != nil {
		return err
	}
	return validateOptionalID("parent checkpoint id", c.ParentCheckpointID)
}

// Validate checks all that can be known of a checkpoint without a store: ids
// first, then time, reason, texts, files, conversation and artifacts. It
// returns nil or an error that matches [ErrInvalidID] or [ErrInvalidEntry], the
// latter with an [*InvalidEntryError] that says where. It takes O(n log n) for
// n files, O(n) when they are sorted by path.
func (c Checkpoint) Validate() error { return c.validate(nil, nil) }

// validate skips the files and messages that a valid checkpoint is known to have
// had; matches is known.match(c.Files).
func (c *Checkpoint) validate(known *encoded, matches []int32) error {
	if err := c.ValidateIDs(); err != nil {
		return err
	}
	if err := ValidateTime("createdAt", c.CreatedAt); err != nil {
		return err
	}
	switch c.Reason {
	case ReasonAutomatic, ReasonNamed, ReasonForkRoot:
	default:
		return invalidField("reason", "%q is none of automatic, named, fork-root", c.Reason)
	}
	if !utf8.ValidString(c.Label) {
		return invalidField("label", "not well-formed Unicode")
	}
	if !utf8.ValidString(c.SourceRunID) {
		return invalidField("sourceRunId", "not well-formed Unicode")
	}
	if err := validateFiles(c.Files, matches); err != nil {
		return err
	}
	if err := validateMessages("conversation", c.Conversation, known); err != nil {
		return err
	}
	return validateArtifacts(c.Artifacts)
}

// The times that ECMAScript's Date can hold: 100,000,000 days either side of
// 1970. JSON carries times as its milliseconds.
var (
	minTime = time.UnixMilli(-8.64e15)
	maxTime = time.UnixMilli(8.64e15)
)

// ValidateTime refuses the zero time and times outside the years -271821 to
// 275760, with an error that matches [ErrInvalidEntry] and names field.
func ValidateTime(field string, t time.Time) error {
	switch {
	case t.IsZero():
		return invalidField(field, "zero time")
	case t.Before(minTime) || t.After(maxTime):
		return invalidField(field, "time is more than 8.64e15 ms from 1970")
	}
	return nil
}

// ValidateMessages checks that every message is one JSON value in well-formed
// UTF-8, nested at most 10,000 deep. Nothing else about a message matters to a
// store.
func ValidateMessages(field string, messages []json.RawMessage) error {
	return validateMessages(field, messages, nil)
}

func validateMessages(field string, messages []json.RawMessage, known *encoded) error {
	for i, m := range messages {
		if known.message(m, i) {
			continue
		}
		if !json.Valid(m) {
			return invalidItem(field, i, "", "not one valid JSON value")
		}
		if !utf8.Valid(m) {
			return invalidItem(field, i, "", "not well-formed UTF-8")
		}
	}
	return nil
}

func validateArtifacts(artifacts []Artifact) error {
	for i, a := range artifacts {
		rule := ""
		switch {
		case a.ArtifactID == "" || !utf8.ValidString(a.ArtifactID):
			rule = "artifactId is empty or not well-formed Unicode"
		case a.Name == "" || !utf8.ValidString(a.Name):
			rule = "name is empty or not well-formed Unicode"
		case a.MimeType == "" || !utf8.ValidString(a.MimeType):
			rule = "mimeType is empty or not well-formed Unicode"
		default:
			rule = sizeRule(a.Size)
		}
		if rule == "" {
			if _, ok := a.BlobKey.digest(ArtifactKeyPrefix); !ok {
				rule = fmt.Sprintf("blobKey %.120q is not %s and 64 lower-case hexadecimal digits", string(a.BlobKey), ArtifactKeyPrefix)
			}
		}
		if rule != "" {
			return invalidItem("artifacts", i, a.ArtifactID, "%s", rule)
		}
		if err := ValidateTime("createdAt", a.CreatedAt); err != nil {
			return invalidItem("artifacts", i, a.ArtifactID, "%s", err.(*Error).Err)
		}
	}
	return nil
}

func sizeRule(size int64) string {
	if size < 0 || size > MaxSize {
		return fmt.Sprintf("size %d is not within 0 and 2^53-1", size)
	}
	return ""
}

// ValidateFiles checks a manifest: each entry by itself, then that no two have
// one path and that nothing lies beneath a file or a symlink, in whatever order
// they are listed. The error matches [ErrInvalidEntry].
func ValidateFiles(files []Entry) error { return validateFiles(files, nil) }

func validateFiles(files []Entry, matches []int32) error {
	sorted := true
	for i := range files {
		if matches == nil || matches[i] < 0 {
			if rule := entryRule(&files[i]); rule != "" {
				return invalidItem("files", i, files[i].Path, "%s", rule)
			}
		}
		sorted = sorted && (i == 0 || files[i-1].Path < files[i].Path)
	}
	order := func(i int) int { return i }
	if !sorted {
		byPath := make([]int, len(files))
		for i := range byPath {
			byPath[i] = i
		}
		slices.SortFunc(byPath, func(a, b int) int {
			if c := strings.Compare(files[a].Path, files[b].Path); c != 0 {
				return c
			}
			return a - b
		})
		order = func(i int) int { return byPath[i] }
	}
	// In byte order all paths that start with some text follow each other. So a
	// stack of the leaves whose whole path starts the current one holds every
	// leaf the current path could lie beneath. It is never deeper than the path
	// is long, so the walk costs no more than reading all paths.
	var leaves []int
	for i := range files {
		at := order(i)
		path := files[at].Path
		if i > 0 {
			if before := order(i - 1); files[before].Path == path {
				return invalidItem("files", at, path, "files[%d] has the same path", before)
			}
		}
		for len(leaves) > 0 && !strings.HasPrefix(path, files[leaves[len(leaves)-1]].Path) {
			leaves = leaves[:len(leaves)-1]
		}
		for _, leaf := range leaves {
			if path[len(files[leaf].Path)] == '/' {
				return invalidItem("files", at, path, "lies beneath files[%d], which is a %s", leaf, files[leaf].Kind)
			}
		}
		if files[at].Kind != KindDir {
			leaves = append(leaves, at)
		}
	}
	return nil
}

// entryRule returns the rule that e breaks by itself, "" for none.
func entryRule(e *Entry) string {
	if rule := PathRule(e.Path); rule != "" {
		return rule
	}
	if e.Kind != KindFile && (e.BlobKey != "" || e.Size != 0 || e.Executable) {
		return fmt.Sprintf("a %s has no blobKey, size or executable flag", e.Kind)
	}
	if e.Kind != KindSymlink && e.Target != "" {
		return fmt.Sprintf("a %s has no target", e.Kind)
	}
	switch e.Kind {
	case KindFile:
		if _, ok := e.BlobKey.digest(FileKeyPrefix); !ok {
			return fmt.Sprintf("blobKey %.120q is not %s and 64 lower-case hexadecimal digits", string(e.BlobKey), FileKeyPrefix)
		}
		return sizeRule(e.Size)
	case KindDir:
		return ""
	case KindSymlink:
		switch {
		case e.Target == "":
			return "target is empty"
		case strings.IndexByte(e.Target, 0) >= 0:
			return "target has a NUL"
		case !utf8.ValidString(e.Target):
			return "target is not well-formed Unicode"
		}
		return ""
	}
	return fmt.Sprintf("kind %q is none of file, dir, symlink", e.Kind)
}

// PathRule returns the rule for workspace paths that path breaks, "" when it
// breaks none: relative, '/'-separated, no empty, "." or ".." part, no '\', no
// NUL, no drive prefix, well-formed Unicode.
func PathRule(path string) string {
	if path == "" {
		return "path is empty"
	}
	if path[0] == '/' {
		return "path is absolute"
	}
	start := 0
	for i := 0; i <= len(path); i++ {
		if i < len(path) {
			switch path[i] {
			case 0:
				return "path has a NUL"
			case '\\':
				return `path has a '\'`
			case '/':
			default:
				continue
			}
		}
		switch part := path[start:i]; {
		case part == "":
			return "path has an empty part"
		case part == "." || part == "..":
			return fmt.Sprintf("path has the part %q", part)
		case start == 0 && len(part) == 2 && part[1] == ':' && isASCIILetter(part[0]):
			return "path has a drive prefix"
		}
		start = i + 1
	}
	if !utf8.ValidString(path) {
		return "path is not well-formed Unicode"
	}
	return ""
}

func isASCIILetter(c byte) bool { c |= 0x20; return 'a' <= c && c <= 'z' }
