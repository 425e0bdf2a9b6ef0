package buckets_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"checkpointdb"
	"checkpointdb/buckets"
)

func TestOpenDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	base, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	slashed := filepath.ToSlash(base)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // a drive letter
	}
	cases := []struct{ url, dir string }{
		{filepath.Join(base, "abs"), "abs"},
		{"rel", "rel"},
		{"./a:b?c#d", "a:b?c#d"},
		{filepath.Join("deep", "er"), "deep/er"},
		{"file://" + slashed + "/url/deep", "url/deep"},
		{"file://localhost" + slashed + "/localhost", "localhost"},
		{"file:" + slashed + "/one-slash", "one-slash"},
		{"FILE://./dotted", "dotted"},
		{"file://" + slashed + "/sp%20ace%23", "sp ace#"},
		{"file://" + slashed + "/given?metadata=skip&no_tmp_dir=1&create_dir=1&dir_file_mode=0700", "given"},
	}
	for _, c := range cases {
		t.Run(c.dir, func(t *testing.T) {
			if runtime.GOOS == "windows" && strings.ContainsAny(c.dir, `:?`) {
				t.Skip("no file name on Windows")
			}
			for range 2 { // making the directory, and finding it
				b, err := buckets.Open(t.Context(), c.url)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				if err := buckets.WriteDurable(t.Context(), b, key, 1, strings.NewReader("x")); err != nil {
					t.Fatal(err)
				}
			}
			object := filepath.Join(base, filepath.FromSlash(c.dir+"/"+key))
			names, err := os.ReadDir(filepath.Dir(object))
			if err != nil || len(names) != 1 {
				t.Errorf("beside the object: %v, %v, want the object alone", names, err)
			}
			for dir := filepath.Dir(object); dir != base; dir = filepath.Dir(dir) {
				info, err := os.Stat(dir)
				if err != nil {
					t.Fatal(err)
				}
				if mode := info.Mode().Perm(); mode != 0o700 && runtime.GOOS != "windows" {
					t.Errorf("%s has mode %o, want 700", dir, mode)
				}
			}
		})
	}
}

func TestOpenMemory(t *testing.T) {
	one, err := buckets.Open(t.Context(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	two, err := buckets.Open(t.Context(), "mem://")
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	if err := buckets.WriteDurable(t.Context(), one, key, 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if there, err := two.Exists(t.Context(), key); there || err != nil {
		t.Errorf("the object of one bucket is in the other: %v, %v", there, err)
	}
}

func TestOpenPrefix(t *testing.T) {
	dir := filepath.ToSlash(t.TempDir())
	if !strings.HasPrefix(dir, "/") {
		dir = "/" + dir
	}
	all, err := buckets.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	part, err := buckets.Open(t.Context(), "file://"+dir+"?prefix=team/one/")
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if err := buckets.WriteDurable(t.Context(), part, key, 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if there, err := all.Exists(t.Context(), "team/one/"+key); !there || err != nil {
		t.Errorf("the object is not below the prefix: %v, %v", there, err)
	}
	mem, err := buckets.Open(t.Context(), "mem://?prefix=a/")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	if err := buckets.WriteDurable(t.Context(), mem, key, 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	cases := []struct{ url, says string }{
		{"", "file:///"},
		{"blobs?prefix=a/", "file:///"},
		{"file://", "names no directory"},
		{"file:///", "names no directory"},
		{"file://.", "names no directory"},
		{"file:blobs", "no slash"},
		{"file://blobs/here", `host "blobs"`},
		{"file:///blobs#1", "%23"},
		{"file:///%zz", "file:///var/"},
		{"mem://name", "mem://"},
		{"mem:///name", "mem://"},
		{"ftp://host/dir", "file:///"},
		{"s3://bucket", "checkpointdb/buckets/cloud"},
		{"S3://bucket", "checkpointdb/buckets/cloud"},
		{"r2://account/bucket", "checkpointdb/buckets/cloud"},
		{"gs://bucket", "checkpointdb/buckets/cloud"},
		{"azblob://container", "checkpointdb/buckets/cloud"},
		{"s3:bucket", "s3://bucket"},
		{"s3://", "names no bucket"},
		{"s3://bucket/team/one", "?prefix=team/one/"},
		{"s3://user:secret@bucket", "credentials come from the environment"},
		{"gs://bucket/team", "?prefix=team/"},
		{"azblob://container/team/", "?prefix=team/"},
		{"r2://bucket", "an account and a bucket"},
		{"r2:///bucket", "an account and a bucket"},
		{"r2://account/bucket/team", "?prefix="},
	}
	for _, c := range cases {
		b, err := buckets.Open(t.Context(), c.url)
		if err == nil {
			b.Close()
			t.Errorf("%q was opened", c.url)
			continue
		}
		if !errors.Is(err, checkpointdb.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: error %q, want an ErrInvalidArgument that says %q", c.url, err, c.says)
		}
	}

	if err := os.WriteFile("plain", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"plain", "file://./plain", "plain/below", "file://./blobs?unknown=1", "mem://?unknown=1"} {
		b, err := buckets.Open(t.Context(), url)
		if err == nil {
			b.Close()
			t.Errorf("%q was opened", url)
		} else if !strings.Contains(err.Error(), url) {
			t.Errorf("%q: error %q does not name it", url, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := buckets.Open(ctx, "new"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if names, err := os.ReadDir("."); err != nil || len(names) != 1 {
		t.Errorf("refused openings left %v, %v", names, err)
	}
}
