package workspace

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"checkpointdb"
)

// blankSlow is what secrets.blank does, in the simplest way.
func blankSlow(data []byte, values secrets) []byte {
	out := bytes.Clone(data)
	for _, value := range values {
		for i := range data {
			if bytes.HasPrefix(data[i:], value) {
				clear(out[i : i+len(value)])
			}
		}
	}
	return out
}

func TestBlank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letter := rapid.SampledFrom([]byte("aab"))
		byName := map[string]string{}
		for _, value := range rapid.SliceOfN(rapid.SliceOfN(letter, minSecret, 12), 1, 4).Draw(t, "secrets") {
			byName[string(value)] = string(value)
		}
		values, err := newSecrets(byName)
		if err != nil {
			t.Fatal(err)
		}
		pieces := [][]byte{[]byte("a"), []byte("b"), []byte("aaab")}
		for _, value := range values {
			pieces = append(pieces, value, value, value[:len(value)-1])
		}
		data := bytes.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 40).Draw(t, "data"), nil)
		var src io.Reader = bytes.NewReader(data)
		for _, wrap := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			if rapid.Bool().Draw(t, "wrap") {
				src = wrap(src)
			}
		}
		// The size decides how large the window is: from one byte more than the
		// longest secret on.
		size := rapid.Int64Range(0, 20).Draw(t, "size")
		got, err := io.ReadAll(iotest.OneByteReader(values.blank(src, size)))
		if want := blankSlow(data, values); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%q without %q:\n got %q, %v\nwant %q", data, values, got, err, want)
		}
	})
}

func TestBlankFails(t *testing.T) {
	values, err := newSecrets(map[string]string{"A": "password"})
	must(t, err)
	src := io.MultiReader(strings.NewReader("it is password pass"), iotest.ErrReader(errInjected))
	got, err := io.ReadAll(values.blank(src, 100))
	if string(got) != "it is \x00\x00\x00\x00\x00\x00\x00\x00 pass" || !errors.Is(err, errInjected) {
		t.Errorf("got %q, %v", got, err)
	}
}

// No blob has a secret in it, wherever in a file the secret is: also across the
// borders of the buffers. The workspace keeps it.
func TestCaptureBlanksSecrets(t *testing.T) {
	t.Parallel()
	const secret, other = "hunter2-hunter2", "2-hunter2-and-more"
	root, bucket := t.TempDir(), memBucket(t)
	is := tree{"plain": file("nothing to hide"), "env": script("TOKEN=" + secret), "both": file(secret + "-and-more " + secret[:14])}
	for _, border := range []string{"buffer", "window"} {
		at := map[string]int{"buffer": bufferSize, "window": bufferSize + len(other)}[border]
		for i := range 40 {
			is[border+strings.Repeat("+", i)] = file(strings.Repeat("x", at-20+i) + secret + strings.Repeat("y", 100))
		}
	}
	makeTree(t, root, is)
	byName := map[string]string{"PASSWORD": secret, "OTHER": other, "SAME": secret}
	opts := &CaptureOptions{Secrets: byName, Index: filepath.Join(t.TempDir(), "index")}
	if hasStamps {
		settle() // or the index would not be used in any case
	}
	c := mustCapture(t, root, bucket, opts)
	checkTree(t, root, is)
	checkBucket(t, bucket)
	values, err := newSecrets(byName)
	must(t, err)
	was := tree{}
	for p, what := range is {
		was[p] = string(blankSlow([]byte(what), values))
	}
	target := filepath.Join(t.TempDir(), "new")
	mustRestore(t, bucket, c, target, nil)
	checkTree(t, target, was)

	// Neither direction of the index: digests of blanked files are not remembered,
	// and those of files that were captured with their secrets are not believed,
	// not even where the bucket has such blobs.
	if _, err := os.Stat(opts.Index); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an index was written: %v", err)
	}
	mustCapture(t, root, bucket, &CaptureOptions{Index: opts.Index})
	again := mustCapture(t, root, bucket, opts)
	if diff := gocmp.Diff(c.Files, again.Files); diff != "" {
		t.Errorf("captured again (-want +got):\n%s", diff)
	}
}

func TestShortSecretIsRefused(t *testing.T) {
	bucket := memBucket(t)
	_, err := Capture(t.Context(), t.TempDir(), bucket, &CaptureOptions{Secrets: map[string]string{"GOOD": "long enough", "PIN": "xyz"}})
	checkError(t, err, checkpointdb.ErrInvalidArgument, "PIN")
	if strings.Contains(err.Error(), "xyz") || strings.Contains(err.Error(), "GOOD") {
		t.Errorf("error says too much: %v", err)
	}
}
