package buckets_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/internal/faultblob"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

func TestFetch(t *testing.T) {
	ctx := t.Context()
	from, err := buckets.Open(ctx, "mem://")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	local, err := buckets.Open(ctx, filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	large := strings.Repeat("large enough for several pieces ", 1<<14)
	for _, c := range []struct {
		name, want, has string // has is what lies in from; "" is nothing
		before          string // what lies in to
		code            checkpointdb.Code
	}{
		{name: "missing", want: "a", has: "a"},
		{name: "damaged", want: "b", has: "b", before: "x"},
		{name: "large", want: large, has: large, before: "y"},
		{name: "not there either", want: "c", code: checkpointdb.ErrBlobMissing},
		{name: "other bytes there", want: "d", has: "e", before: "z", code: checkpointdb.ErrBlobDamaged},
		{name: "other bytes in a large one", want: large + "!", has: large + "?", code: checkpointdb.ErrBlobDamaged},
		{name: "too short there", want: "ff", has: "f", before: "z", code: checkpointdb.ErrBlobDamaged},
		{name: "too long there", want: "g", has: "gg", code: checkpointdb.ErrBlobDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := checkpointdb.FileKey(sha256.Sum256([]byte(c.want)))
			put := func(b *blob.Bucket, text string) {
				if text == "" {
					return
				}
				if err := b.WriteAll(ctx, string(key), []byte(text), nil); err != nil {
					t.Fatal(err)
				}
			}
			put(from, c.has)
			put(local, c.before)
			err := buckets.Fetch(ctx, local, from, key, int64(len(c.want)))
			if checkpointdb.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), string(key)) {
				t.Errorf("got %v, want code %q", err, c.code)
			}
			after := c.before
			if c.code == "" {
				after = c.want
			}
			got, err := local.ReadAll(ctx, string(key))
			if after == "" {
				if gcerrors.Code(err) != gcerrors.NotFound {
					t.Errorf("there is something: %v", err)
				}
			} else if err != nil || !bytes.Equal(got, []byte(after)) {
				t.Errorf("%d bytes there, want %d: %v", len(got), len(after), err)
			}
		})
	}
	if err := buckets.Fetch(ctx, local, from, "no key", 1); !errors.Is(err, checkpointdb.ErrInvalidEntry) {
		t.Errorf("got %v", err)
	}
}

// Each call to either bucket fails in turn, and no failure is swallowed or
// leaves anything under the name.
func TestFetchFails(t *testing.T) {
	ctx := t.Context()
	content := []byte("content")
	key := checkpointdb.ArtifactKey(sha256.Sum256(content))
	broken := errors.New("broken")
	for n := 1; ; n++ {
		from, err := buckets.Open(ctx, "mem://")
		if err != nil {
			t.Fatal(err)
		}
		to, err := buckets.Open(ctx, "mem://")
		if err != nil {
			t.Fatal(err)
		}
		if err := from.WriteAll(ctx, string(key), content, nil); err != nil {
			t.Fatal(err)
		}
		hook, met := faultblob.FailNth(n, broken)
		failing, target := faultblob.Wrap(from, hook), faultblob.Wrap(to, hook)
		err = buckets.Fetch(ctx, target, failing, key, int64(len(content)))
		there, existsErr := to.Exists(ctx, string(key))
		if existsErr != nil {
			t.Fatal(existsErr)
		}
		if !met() {
			if err != nil || !there {
				t.Errorf("without a failure: %v, there: %t", err, there)
			}
			if n < 3 {
				t.Errorf("only %d calls", n-1)
			}
			return
		}
		if !errors.Is(err, broken) || there {
			t.Errorf("call %d fails: %v, there: %t", n, err, there)
		}
	}
}
