package checkpointdb

import (
	"slices"
	"strings"
)

// ChangeKind is what happened to a path between two checkpoints.
type ChangeKind string

// The kinds of changes. A path that turned into another kind of entry is changed.
const (
	ChangeAdded   ChangeKind = "added"
	ChangeChanged ChangeKind = "changed"
	ChangeRemoved ChangeKind = "removed"
)

// Change is a path that differs between two checkpoints.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	From *Entry     `json:"from,omitempty"` // nil when added
	To   *Entry     `json:"to,omitempty"`   // nil when removed
}

// Changes returns what differs between the files of two checkpoints, of any
// threads, by bytes of the path. The order of the entries does not matter. The
// result shares no memory with the checkpoints.
func Changes(from, to Checkpoint) []Change {
	old := make(map[string]*Entry, len(from.Files))
	for _, e := range from.Files {
		old[e.Path] = &e
	}
	var changes []Change
	for _, e := range to.Files {
		before, ok := old[e.Path]
		delete(old, e.Path)
		switch {
		case !ok:
			changes = append(changes, Change{Path: e.Path, Kind: ChangeAdded, To: &e})
		case *before != e:
			changes = append(changes, Change{Path: e.Path, Kind: ChangeChanged, From: before, To: &e})
		}
	}
	for path, e := range old {
		changes = append(changes, Change{Path: path, Kind: ChangeRemoved, From: e})
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}
