package checkpointdb_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers lists what each package of this module may import outside tests, beside
// the standard library: a program that embeds a package gets all of that. Of the
// standard library, the packages in guarded count too. Packages in internal are
// free, as those that import them are not.
var layers = map[string][]string{
	".": {
		"checkpointdb/internal/ctxio",
		"checkpointdb/internal/durable",
		"checkpointdb/internal/outfile",
		"checkpointdb/internal/retry",
		"checkpointdb/internal/salvage",
		"checkpointdb/internal/syncdir",
		"github.com/klauspost/compress/zstd",
		"go.etcd.io/bbolt",
		"go.etcd.io/bbolt/errors",
		"gocloud.dev/blob",
		"gocloud.dev/gcerrors",
	},
	"buckets": {
		"checkpointdb",
		"checkpointdb/internal/durable",
		"checkpointdb/internal/passblob",
		"checkpointdb/internal/retry",
		"gocloud.dev/blob",
		"gocloud.dev/blob/driver",
		"gocloud.dev/blob/fileblob",
		"gocloud.dev/blob/memblob",
		"gocloud.dev/gcerrors",
	},
	"buckets/cloud": {
		"checkpointdb/buckets",
		"checkpointdb/internal/passblob",
		"checkpointdb/internal/retry",
		"github.com/Azure/azure-sdk-for-go/sdk/azcore",
		"gocloud.dev/blob",
		"gocloud.dev/blob/azureblob",
		"gocloud.dev/blob/gcsblob",
		"gocloud.dev/blob/s3blob",
		"google.golang.org/api/googleapi",
	},
	"cmd/inspect": {
		"checkpointdb",
		"checkpointdb/buckets",
		"checkpointdb/buckets/cloud",
		"checkpointdb/workspace",
		"github.com/dustin/go-humanize",
		"github.com/jedib0t/go-pretty/v6/table",
		"github.com/jedib0t/go-pretty/v6/text",
		"github.com/rogpeppe/go-internal/diff",
		"github.com/spf13/cobra",
		"github.com/vbauerster/mpb/v8",
		"github.com/vbauerster/mpb/v8/decor",
		"gocloud.dev/blob",
		"golang.org/x/term",
	},
	"examples/runner": {
		"checkpointdb",
		"checkpointdb/buckets",
		"checkpointdb/workspace",
		"flag",
		"gocloud.dev/blob",
	},
	"memstore": {
		"checkpointdb",
	},
	"storetest": {
		"checkpointdb",
		"github.com/google/go-cmp/cmp",
		"github.com/google/go-cmp/cmp/cmpopts",
		"testing",
	},
	"workspace": {
		"checkpointdb",
		"checkpointdb/buckets",
		"checkpointdb/internal/ctxio",
		"github.com/bmatcuk/doublestar/v4",
		"gocloud.dev/blob",
		"gocloud.dev/gcerrors",
		"golang.org/x/sync/errgroup",
	},
}

// guarded packages register flags, print or exit, which is not for a library.
var guarded = []string{"flag", "log", "testing", "testing/fstest", "testing/iotest", "testing/synctest"}

// onlyTagged are the files that a plain build leaves out; TestLinked proves that.
var onlyTagged = []string{"examples/runner/cloud.go"}

// TestImports reads the files of all systems and tags by itself. So go test
// knows when its cached result is out of date.
func TestImports(t *testing.T) {
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || name == "internal" || err == nil) {
				return fs.SkipDir // the last are modules of their own
			}
			return nil
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || slices.Contains(onlyTagged, name):
			return nil
		}
		dir := path.Dir(name)
		allowed, known := layers[dir]
		if !known {
			t.Errorf("%s: say in layers what %s may import", name, dir)
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(name), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			first, _, _ := strings.Cut(imported, "/")
			standard := !strings.Contains(first, ".") && first != "checkpointdb" && !slices.Contains(guarded, imported)
			if !standard && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s, which %s may not", name, imported, dir)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLinked looks at all that a plain build links. An SDK there would be
// downloaded by everybody's first command.
func TestLinked(t *testing.T) {
	for _, pkg := range []string{".", "./buckets", "./examples/runner", "./memstore", "./workspace"} {
		out, err := exec.Command("go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for dep := range strings.Lines(string(out)) {
			for _, sdk := range []string{"cloud.google.com/", "github.com/Azure/", "github.com/aws/", "testing"} {
				if strings.HasPrefix(dep, sdk) {
					t.Errorf("%s links %s", pkg, strings.TrimSpace(dep))
				}
			}
		}
	}
}
