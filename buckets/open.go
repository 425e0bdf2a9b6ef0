package buckets

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"checkpointdb"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"
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

// files understands ?prefix= like gocloud's own mux.
var files = func() *blob.URLMux {
	mux := new(blob.URLMux)
	mux.RegisterBucket(fileblob.Scheme, localOpener{})
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
// precedence. The first upload after a process was killed in the middle of one
// removes the temporary files of blobs that it left, on systems with flock; who
// uploads blobs into the directory at that time must have opened it with Open.
//
// Other schemes work when their driver is linked: importing
// checkpointdb/buckets/cloud links s3, r2, gs and azblob, and shows their URLs; a
// driver that the program registers with blob.DefaultURLMux works too. These are
// asked for the first key before Open returns, so that a missing bucket or wrong
// credentials are found at once and not when a turn is to be saved.
//
// Errors of a URL that can't be right match [checkpointdb.ErrInvalidArgument] and
// show one that is; what a driver or the file system refuses is wrapped.
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
	_, known := examples[u.Scheme]
	if problem := urlProblem(u); known && problem != "" {
		return nil, invalid(rawURL, u.Scheme, "%s", problem)
	}
	mux := blob.DefaultURLMux()
	switch {
	case u.Scheme == fileblob.Scheme:
		mux = files
	case mux.ValidBucketScheme(u.Scheme):
	case known:
		return nil, invalid(rawURL, u.Scheme, "this program lacks the driver for %s, which it gets by importing %s", u.Scheme, cloudImport)
	default:
		return nil, invalid(rawURL, fileblob.Scheme, "unknown scheme %q, want one of file, mem, s3, r2, gs, azblob", u.Scheme)
	}
	b, err := mux.OpenBucketURL(ctx, u)
	if err == nil && u.Scheme != fileblob.Scheme && u.Scheme != memblob.Scheme {
		err = probe(ctx, b)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpointdb: open bucket %q: %w", rawURL, err)
	}
	return b, nil
}

// probePatience is how long a server may take to answer at first. The SDK of GCS
// would ask for ever where nobody listens.
const probePatience = time.Minute

// probe closes b and returns an error unless it can be listed. Drivers open
// anything; later a bucket that is missing looks like a bucket without the key.
func probe(ctx context.Context, b *blob.Bucket) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	_, _, err := b.ListPage(ctx, blob.FirstPageToken, 1, nil)
	if err == nil {
		return nil
	}
	_ = b.Close()
	if gcerrors.Code(err) == gcerrors.NotFound { // GCS says this for both
		return fmt.Errorf("there is no such bucket, or these credentials may not list it: %w", err)
	}
	return err
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
	b, err := openLocal(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpointdb: open bucket %q: %w", dir, err)
	}
	return b, nil
}

// urlProblem says why u, whose scheme is known, names no bucket, "" if it may.
// The drivers would take all of these, and work in a place that nobody meant.
func urlProblem(u *url.URL) string {
	path := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case memblob.Scheme:
		if u.Host+u.Path+u.Opaque != "" {
			return "memory has no name or path, each opening gives a new bucket"
		}
		return ""
	case fileblob.Scheme:
		switch {
		case u.Opaque != "":
			return "no slash after the colon"
		case u.Host != "" && u.Host != "." && u.Host != "localhost":
			return fmt.Sprintf("names the host %q where a directory should begin, which takes three slashes", u.Host)
		case path == "":
			return "names no directory"
		case u.Fragment != "":
			return "a # in a directory's name is written %23"
		}
		return ""
	}
	switch {
	case u.Opaque != "":
		return "no slashes after the colon"
	case u.User != nil:
		return "credentials come from the environment, see " + cloudImport
	case u.Scheme == "r2" && (u.Host == "" || path == "" || strings.Contains(path, "/")):
		return "must name an account and a bucket and nothing more; keys below a path are opened with ?prefix="
	case u.Scheme != "r2" && u.Host == "":
		return "names no bucket"
	case u.Scheme != "r2" && path != "":
		return "a bucket has no path; keys below one are opened with ?prefix=" + path + "/"
	}
	return ""
}

// invalid says what is wrong with a URL and shows a right one of the scheme.
func invalid(rawURL, scheme, format string, args ...any) error {
	return &checkpointdb.Error{Code: checkpointdb.ErrInvalidArgument, Op: "open bucket",
		Message: fmt.Sprintf("%q: %s; a right one is %q", rawURL, fmt.Sprintf(format, args...), examples[scheme])}
}
