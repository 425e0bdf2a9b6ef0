package buckets

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"checkpointdb/internal/passblob"

	"github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/drivertest"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"
	"pgregory.net/rapid"
)

// The bucket of a directory passes the tests that gocloud has for drivers, with
// windows so small that a walk has to look for its place all the time.
func TestLocalConformance(t *testing.T) {
	for name, options := range map[string]fileblob.Options{"ours": local, "attribute files": {}} {
		t.Run(name, func(t *testing.T) {
			drivertest.RunConformanceTests(t, func(_ context.Context, t *testing.T) (drivertest.Harness, error) {
				if options.Metadata == fileblob.MetadataDontWrite {
					for _, test := range []string{"ContentType", "TestAttributes", "TestMetadata"} {
						if strings.Contains(t.Name(), test) {
							t.Skip("needs attributes that are stored nowhere")
						}
					}
				}
				return harness{t.TempDir(), options}, nil
			}, nil)
		})
	}
}

type harness struct {
	dir     string
	options fileblob.Options
}

func (h harness) MakeDriver(context.Context) (driver.Bucket, error) {
	options := h.options
	b, err := fileblob.OpenBucket(h.dir, &options)
	return &localBucket{Bucket: passblob.Bucket{B: b}, dir: h.dir, window: 2}, err
}

func (harness) MakeDriverForNonexistentBucket(context.Context) (driver.Bucket, error) {
	return nil, nil // opening it makes it
}
func (harness) HTTPClient() *http.Client         { return nil }
func (harness) SupportsCopy() bool               { return true }
func (harness) SupportsNonSlashDelimiters() bool { return true }
func (harness) SkipDownloadAt() bool             { return true }
func (harness) Close()                           {}

// Listings of any keys, by any prefix, delimiter and page, are those of the
// bucket in memory; also when objects come and go between two pages, and when
// the walk between them is lost.
func TestLocalListing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "listing")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		b, err := fileblob.OpenBucket(dir, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
		if err != nil {
			t.Fatal(err)
		}
		drv := &localBucket{Bucket: passblob.Bucket{B: b}, dir: dir, window: rapid.IntRange(1, 5).Draw(t, "window")}
		local, model := blob.NewBucket(drv), memblob.OpenBucket(nil)
		defer local.Close()
		defer model.Close()

		part := rapid.StringOfN(rapid.SampledFrom([]rune("ab-/._x0\x01é")), 1, 4, -1)
		keys := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), rapid.SampledFrom([]string{"", "/", "__0x2f__"}).Draw(t, "between"))
		}), 0, 20, rapid.ID).Draw(t, "keys")
		for _, key := range keys {
			// The driver takes some keys for others, and can't hold one below another.
			if slices.ContainsFunc(strings.Split("/"+key, "/")[1:], func(s string) bool { return s == "." || s == ".." }) || key[0] == '/' {
				continue
			}
			if err := local.WriteAll(t.Context(), key, []byte(key), nil); err != nil {
				continue
			}
			if err := model.WriteAll(t.Context(), key, []byte(key), nil); err != nil {
				t.Fatal(err)
			}
		}

		opts := &blob.ListOptions{
			Prefix:    rapid.OneOf(rapid.Just(""), part, rapid.Just("a/"), rapid.Just("a/b")).Draw(t, "prefix"),
			Delimiter: rapid.SampledFrom([]string{"", "/", "-"}).Draw(t, "delimiter"),
		}
		size := rapid.IntRange(1, 6).Draw(t, "page")
		token, modelToken := blob.FirstPageToken, blob.FirstPageToken
		for len(token) > 0 && len(modelToken) > 0 {
			got, next := page(t, local, token, size, opts)
			want, modelNext := page(t, model, modelToken, size, opts)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("listing %q by %q, pages of %d (-model +local):\n%s", opts.Prefix, opts.Delimiter, size, diff)
			}
			token, modelToken = next, modelNext
			switch rapid.IntRange(0, 3).Draw(t, "meanwhile") {
			case 0:
				drv.paused = nil
			case 1:
				if len(keys) > 0 { // names that a window holds may be gone
					key := rapid.SampledFrom(keys).Draw(t, "deleted")
					if there, _ := model.Exists(t.Context(), key); there && (len(got) == 0 || key < got[len(got)-1]) {
						if err := local.Delete(t.Context(), key); err != nil {
							t.Fatal(err)
						}
						if err := model.Delete(t.Context(), key); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
		if len(modelToken) > 0 {
			t.Fatalf("the listing ended early")
		}
	})
}

func page(t *rapid.T, b *blob.Bucket, token []byte, size int, opts *blob.ListOptions) (keys []string, next []byte) {
	objects, next, err := b.ListPage(t.Context(), token, size, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if !o.IsDir && o.Size != int64(len(o.Key)) {
			t.Fatalf("%q has size %d", o.Key, o.Size)
		}
		keys = append(keys, o.Key)
	}
	if !slices.IsSorted(keys) {
		t.Fatalf("out of order: %q", keys)
	}
	return keys, next
}
