package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// setImmutable makes a file that even root cannot change, or changes it back.
func setImmutable(p string, on bool) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	flags := 0
	if on {
		flags = immutable
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

func TestCase35UnwritableFileIsListed(t *testing.T) {
	bucket, target := memBucket(t), t.TempDir()
	makeTree(t, target, tree{"a": file("old"), "locked": file("old"), "z/locked": file("to be removed"), "z/x": file("x")})
	for _, p := range []string{"locked", "z/locked"} {
		if err := setImmutable(filepath.Join(target, p), true); err != nil {
			t.Skipf("cannot make a file immutable here: %v", err)
		}
		t.Cleanup(func() { setImmutable(filepath.Join(target, p), false) })
	}
	was := tree{"a": file("new"), "b": file("b"), "locked": file("new")}
	c := manifest(t, bucket, was)
	opts := &RestoreOptions{Rewind: true}
	_, err := Restore(t.Context(), bucket, c, target, opts)
	checkError(t, err, ErrRestoreIncomplete, "locked")
	checkError(t, err, ErrRestoreIncomplete, "z/locked")
	incomplete, ok := errors.AsType[*IncompleteError](err)
	if !ok || incomplete.Count != 3 || incomplete.Failed[0].Path != "locked" || !errors.Is(incomplete.Failed[0], os.ErrPermission) {
		t.Fatalf("error: %v", err)
	}
	checkTree(t, target, tree{"a": file("new"), "b": file("b"), "locked": file("old"), "z/locked": file("to be removed"), stateName: file(`{"checkpointId":"c"}`)})
	_, err = Capture(t.Context(), target, bucket, nil)
	checkError(t, err, ErrRestoreUnfinished, "")

	for _, p := range []string{"locked", "z/locked"} {
		must(t, setImmutable(filepath.Join(target, p), false))
	}
	mustRestore(t, bucket, c, target, opts)
	checkTree(t, target, was)
}
