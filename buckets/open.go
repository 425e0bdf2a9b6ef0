package buckets

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"checkpointdb"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"
)

// cloudImport is the package that links the drivers of the clouds.
const cloudImport = "checkpointdb/buckets/cloud"

// examples has, for every scheme this module knows of, a URL that is right.
var examples = map[string]string{
	fileblob.Scheme: "file:///var/lib/runner/blobs",
	memblob.Scheme:  "mem://",
	"s3":            "s3://bucket?region=us-east-1",
	"r2":            "r2://account/bucket",
	"gs":            "gs://bucket",
	"azblob":        "azblob://container",
}

// local makes the buckets of directories. No attribute files: a torn one makes
// its object unreadable, and writing them doubles the cost. Temporary files
// beside the objects: elsewhere they may be on another file system, from which
// they can't be renamed.
var local = fileblob.Options{
	CreateDir:   true,
	DirFileMode: 0o700,
	Metadata:    fileblob.MetadataDontWrite,
	NoTempDir:   true,
}

// files opens file URLs with the options above where gocloud's own mux would
// use the driver's, and like that one understands ?prefix=.
var files = func() *blob.URLMux {
	mux := new(blob.URLMux)
	mux.RegisterBucket(fileblob.Scheme, &fileblob.URLOpener{Options: local})
	return mux
}()

// Open opens the bucket at a URL or in a local directory. The caller closes it.
//
//	/var/lib/runner/blobs, ./blobs, C:\blobs   a directory, taken as it stands
//	file:///var/lib/runner/blobs               the same; file:///C:/blobs on Windows
//	file://./blobs                             relative to the working directory
//	mem://                                     memory; each Open gives a new, empty bucket
//
// Every URL takes ?prefix=, text that is put before each key and should end in
// "/". A directory that does not exist is made, with those above it, for its
// owner alone (0700). Its files come from [WriteDurable], else they are not
// durable. The other parameters of gocloud's file URLs may be given and take
// precedence.
//
// Other schemes work when their driver is linked: importing
// checkpointdb/buckets/cloud links s3, r2, gs and azblob; a driver that the
// program registers with blob.DefaultURLMux works too. Errors of a URL that
// can't be right match [checkpointdb.ErrInvalidArgument] and show one that is;
// what a driver or the file system refuses is wrapped.
func Open(ctx context.Context, rawURL string) (*blob.Bucket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !hasScheme.MatchString(rawURL) {
		return openDir(rawURL)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, invalid(rawURL, fileblob.Scheme, "%v", errors.Unwrap(err))
	}
	if _, secret := u.User.Password(); secret {
		rawURL = u.Redacted() // from here on it only goes into errors
	}
	mux := blob.DefaultURLMux()
	switch _, known := examples[u.Scheme]; {
	case u.Scheme == fileblob.Scheme:
		if problem := fileURLProblem(u); problem != "" {
			return nil, invalid(rawURL, u.Scheme, "%s", problem)
		}
		mux = files
	case u.Scheme == memblob.Scheme && u.Host+u.Path+u.Opaque != "":
		return nil, invalid(rawURL, u.Scheme, "memory has no name or path, each opening gives a new bucket")
	case mux.ValidBucketScheme(u.Scheme):
	case known:
		return nil, invalid(rawURL, u.Scheme, "this program lacks the driver for %s, which it gets by importing %s", u.Scheme, cloudImport)
	default:
		return nil, invalid(rawURL, fileblob.Scheme, "unknown scheme %q, want one of file, mem, s3, r2, gs, azblob", u.Scheme)
	}
	b, err := mux.OpenBucketURL(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("checkpointdb: open bucket %q: %w", rawURL, err)
	}
	return b, nil
}

// hasScheme tells URLs from paths. A single letter before the colon is a drive
// of Windows. A relative path that looks like a URL can be written ./a:b.
var hasScheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`)

func openDir(dir string) (*blob.Bucket, error) {
	switch {
	case dir == "":
		return nil, invalid(dir, fileblob.Scheme, "empty")
	case strings.Contains(dir, "?prefix="): // would be a directory of that name
		return nil, invalid(dir, fileblob.Scheme, "a plain path takes no parameters, a URL does")
	}
	options := local
	b, err := fileblob.OpenBucket(dir, &options)
	if err != nil {
		return nil, fmt.Errorf("checkpointdb: open bucket %q: %w", dir, err)
	}
	return b, nil
}

// fileURLProblem says why u names no directory, "" if it may. The driver would
// take all of these, and make a directory that nobody meant.
func fileURLProblem(u *url.URL) string {
	switch {
	case u.Opaque != "":
		return "no slash after the colon"
	case u.Host != "" && u.Host != "." && u.Host != "localhost":
		return fmt.Sprintf("names the host %q where a directory should begin, which takes three slashes", u.Host)
	case strings.Trim(u.Path, "/") == "":
		return "names no directory"
	case u.Fragment != "":
		return "a # in a directory's name is written %23"
	}
	return ""
}

// invalid says what is wrong with a URL and shows a right one of the scheme.
func invalid(rawURL, scheme, format string, args ...any) error {
	return &checkpointdb.Error{Code: checkpointdb.ErrInvalidArgument, Op: "open bucket",
		Message: fmt.Sprintf("%q: %s; a right one is %q", rawURL, fmt.Sprintf(format, args...), examples[scheme])}
}
