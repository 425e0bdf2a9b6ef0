package buckets_test

import (
	"path/filepath"
	"strings"
	"testing"

	"checkpointdb/internal/blobsuite"
)

func TestSuite(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		dir := filepath.ToSlash(t.TempDir())
		blobsuite.Run(t, "file:///"+strings.TrimPrefix(dir, "/"), 3001)
	})
	t.Run("mem", func(t *testing.T) { blobsuite.Run(t, "mem://", 3001) })
}
