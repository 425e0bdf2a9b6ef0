package checkpointdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"checkpointdb/internal/salvage"
)

// precheck tells by plain reads whether the file at path can be what it should,
// so that a cut or foreign file gives an error that says so. Through the memory
// map it would be a fault, and a page that leads back to itself would have bbolt
// run in circles until its stack is full, which nothing can catch.
func precheck(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	damaged := func(format string, args ...any) error {
		return &Error{Code: ErrDamaged, Message: path + " is damaged: " + fmt.Sprintf(format, args...)}
	}
	head := make([]byte, 4096)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	metas, isBolt := salvage.FindMetas(f)
	switch {
	case len(metas) > 0:
	case isBolt:
		return damaged("neither of its two meta pages is whole")
	case isZero(head[:n]):
		return damaged("its first page is all zero")
	default:
		return &Error{Code: ErrNotAStore, Message: path + " is not a bbolt file"}
	}
	// As long as somebody may write, what a meta page names may be gone by the time
	// that it is read. Such a file cannot be opened anyway.
	held := lockShared(f) == lockHeld
	if held {
		metas, _ = salvage.FindMetas(f)
	}
	info, err := f.Stat()
	if err != nil || len(metas) == 0 {
		return err
	}
	meta := metas[0]
	if need := int64(meta.Pages) * meta.PageSize; need > info.Size() {
		return damaged("it has %d bytes of at least %d, so it was cut", info.Size(), need)
	}
	if !held {
		return nil
	}
	// All that opening reads: the list of buckets, the bucket meta, the freelist.
	file := salvage.New(f, info.Size(), meta.PageSize)
	tree, err := file.Walk(context.Background(), meta.Root, meta.Pages, func(bucket string) bool { return bucket == string(bucketMeta) }, nil)
	if err == nil && len(tree.Problems) > 0 {
		err = damaged("%v", tree.Problems[0])
	}
	if err != nil || !meta.HasFreelist() {
		return err
	}
	if _, _, err := file.Freelist(meta); err != nil {
		return damaged("%v", err)
	}
	return nil
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
