package drivertest

import (
	"path/filepath"
	"strings"
	"testing"

	"checkpointdb/buckets"
	"checkpointdb/internal/blobsuite"
)

// objects is how many a listing is tested with, more than three pages of any of
// the clouds.
const objects = 3001

func TestFile(t *testing.T) {
	url := "file:///" + strings.TrimPrefix(filepath.ToSlash(t.TempDir()), "/")
	blobsuite.Run(t, url, objects)
	runTurns(t, url+"?prefix=turns/")
}

func TestMem(t *testing.T) { blobsuite.Run(t, "mem://", objects) }

func TestS3(t *testing.T) {
	endpoint := startVersity(t)
	const params = "?region=us-east-1&use_path_style=true&endpoint="
	blobsuite.Run(t, "s3://bucket"+params+endpoint, objects)
	blobsuite.Missing(t, "s3://missing"+params+endpoint)
	runTurns(t, "s3://bucket"+params+endpoint+"&prefix=turns/s3/")

	// R2 is the same server, but strict, and of one region.
	strict := startStrict(t, endpoint)
	r2 := "?region=us-east-1&endpoint=" + strict
	blobsuite.WantHint(t, "s3://bucket"+params+strict)
	t.Run("R2", func(t *testing.T) { blobsuite.Run(t, "r2://account/bucket"+r2, 300) })
	blobsuite.Missing(t, "r2://account/missing"+r2)
	runTurns(t, "r2://account/bucket"+r2+"&prefix=turns/r2/")

	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	if b, err := buckets.Open(t.Context(), "s3://bucket"+params+endpoint); err == nil {
		b.Close()
		t.Error("opened with a wrong key")
	}
}

func TestGCS(t *testing.T) {
	startGCS(t)
	blobsuite.Run(t, "gs://bucket", 300) // it takes a minute to write ten times as many
	blobsuite.Missing(t, "gs://missing")
	runTurns(t, "gs://bucket?prefix=turns/")
}

func TestAzure(t *testing.T) {
	params := "?protocol=http&localemu=true&domain=" + startAzure(t)
	blobsuite.Run(t, "azblob://bucket"+params, objects)
	blobsuite.Missing(t, "azblob://missing"+params)
	runTurns(t, "azblob://bucket"+params+"&prefix=turns/")
}
