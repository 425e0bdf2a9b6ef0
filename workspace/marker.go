package workspace

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"

	"checkpointdb"
)

// The marker of a restore is the file stateName in the directory markerDir at
// the root of the target. It is made durable before Restore changes anything
// and removed after the last change, so while it is there the target may be a
// mixture, and when it is not there it is not. The directory without the file
// means nothing.
//
// All temporary files of a restore lie in markerDir as well. So they are on the
// file system of the target, which makes renaming them into place atomic, a
// capture cannot take them for content, and what a killed restore left is gone
// with the directory.
//
// The marker holds against the death of the process. Contents are not fsynced,
// so after a power cut soon after Restore returned, the target may be damaged
// without a marker; rewinding it finds and repairs that.
const (
	markerDir = ".checkpointdb-restore"
	stateName = markerDir + "/state.json"

	// ignoreName holds the ignore files that were in the target before the first
	// change. A restore that goes on after it replaced them has to know what they
	// kept outside. There is none where the policy names no ignore file.
	ignoreName = markerDir + "/ignore.json"

	// maxState is well above an id of the longest kind with every byte escaped.
	maxState = 1 << 20
)

type restoreState struct {
	CheckpointID checkpointdb.CheckpointID `json:"checkpointId"`
	Paths        string                    `json:"paths,omitempty"` // chosen.digest
}

// isMarker reports whether p is reserved for the marker. In other letter case
// too: on some file systems that is the same directory.
func isMarker(p string) bool { return strings.EqualFold(p, markerDir) }

// UnfinishedRestore reports whether a Restore into dir did not finish, and of
// which checkpoint; "" when the marker cannot be read. Such a directory is to be
// given to Restore before it is used. It changes nothing.
func UnfinishedRestore(dir string) (checkpointdb.CheckpointID, bool, error) {
	root, err := openRoot(dir)
	if err != nil {
		return "", false, wrap("unfinished restore", err)
	}
	defer root.Close()
	state, found, err := readMarker(root)
	if err != nil {
		return "", false, wrap("unfinished restore", err)
	}
	return state.CheckpointID, found, nil
}

// readMarker looks for the marker. Something odd in its place, which only
// somebody else can have made, counts as one of no known checkpoint.
func readMarker(root *os.Root) (state restoreState, found bool, err error) {
	info, err := root.Lstat(markerDir)
	if err == nil && !info.IsDir() {
		return restoreState{}, true, nil
	}
	if err == nil {
		info, err = root.Lstat(stateName)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return restoreState{}, false, nil
	}
	if err != nil {
		return restoreState{}, false, pathError(stateName, err)
	}
	if !info.Mode().IsRegular() {
		return restoreState{}, true, nil
	}
	f, err := openFile(root, stateName, info)
	if err != nil {
		return restoreState{}, false, pathError(stateName, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxState))
	if err != nil {
		return restoreState{}, false, pathError(stateName, err)
	}
	if json.Unmarshal(data, &state) != nil {
		return restoreState{}, true, nil
	}
	return state, true, nil
}

// setMarker marks the target as being restored, durably, and empties the
// directory of temporary files.
func (r *restorer) setMarker() error {
	data, err := json.Marshal(restoreState{r.id, r.chosen.digest})
	if err != nil {
		return err
	}
	if info, err := r.root.Lstat(markerDir); err == nil && !info.IsDir() {
		if err := r.remove(markerDir); err != nil {
			return err
		}
	}
	if _, err := r.mkdir(markerDir, 0o700); err != nil {
		return err
	}
	if err := r.clearMarkerDir(); err != nil {
		return err
	}
	if err := r.saveIgnoreState(); err != nil {
		return err
	}
	if err := r.writeState(stateName, data); err != nil {
		return err
	}
	return syncDir(r.root, ".")
}

// writeState makes or replaces a file of the marker, durably.
func (r *restorer) writeState(name string, data []byte) error {
	const newName = markerDir + "/state.new"
	f, err := r.root.OpenFile(newName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := r.root.Rename(newName, name); err != nil {
		return err
	}
	return syncDir(r.root, markerDir)
}

// savedIgnoreFile is one of those in ignoreName. Neither is always valid UTF-8.
type savedIgnoreFile struct{ Dir, Text []byte }

// saveIgnoreState saves what the survey found in the target and what an earlier
// restore saved, which comes first.
func (r *restorer) saveIgnoreState() error {
	if r.scope == nil || len(r.scope.here) == 0 && len(r.scope.before) == 0 {
		return nil
	}
	all := maps.Clone(r.scope.here)
	maps.Copy(all, r.scope.before)
	var saved []savedIgnoreFile
	for dir, file := range all {
		saved = append(saved, savedIgnoreFile{[]byte(dir), file.text})
	}
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return r.writeState(ignoreName, data)
}

// readIgnoreState reads what saveIgnoreState saved, if it did.
func readIgnoreState(root *os.Root) (ignoreFiles, error) {
	info, err := root.Lstat(ignoreName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errReplaced
	}
	var data []byte
	if err == nil {
		var f *os.File
		if f, err = openFile(root, ignoreName, info); err == nil {
			data, err = io.ReadAll(f)
			f.Close()
		}
	}
	var saved []savedIgnoreFile
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err != nil {
		return nil, pathError(ignoreName, err)
	}
	files := make(ignoreFiles)
	for _, s := range saved {
		files.add(string(s.Dir), s.Text)
	}
	return files, nil
}

// clearMarkerDir removes everything in the directory but what an earlier restore
// tells this one.
func (r *restorer) clearMarkerDir() error {
	list, err := readDir(r.root, markerDir, nil)
	if err != nil {
		return err
	}
	for _, d := range list {
		p := join(markerDir, d.Name())
		if (p == stateName || p == ignoreName && r.resumed) && d.Type().IsRegular() {
			continue
		}
		if err := r.root.RemoveAll(p); err != nil {
			return err
		}
	}
	return nil
}

// removeMarker declares the target whole. The order of removal does not matter:
// without its file the directory means nothing, and with it the target is whole
// already.
func (r *restorer) removeMarker() error { return r.root.RemoveAll(markerDir) }
