package buckets_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"checkpointdb"
	"checkpointdb/buckets"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	bucket, err := buckets.Open(ctx, filepath.Join(dir, "blobs")) // or a URL
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()

	err = buckets.WriteDurable(ctx, bucket, "greetings/english", 5, strings.NewReader("hello"))
	fmt.Println("written:", err == nil)
	err = buckets.WriteDurable(ctx, bucket, "greetings/german", 5, strings.NewReader("hallo, Welt"))
	fmt.Println(checkpointdb.CodeOf(err))
	there, err := bucket.Exists(ctx, "greetings/german")
	fmt.Println(there, err)
	// Output:
	// written: true
	// CHECKPOINTDB_BLOB_DAMAGED
	// false <nil>
}

// A write that is tried again opens its source again.
func ExampleRetry() {
	ctx := context.Background()
	bucket, err := buckets.Open(ctx, "mem://")
	if err != nil {
		log.Fatal(err)
	}
	defer bucket.Close()

	err = buckets.Retry(ctx, func(ctx context.Context) error {
		f, err := os.Open("example_test.go")
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return buckets.WriteDurable(ctx, bucket, "sources/example", info.Size(), f)
	})
	fmt.Println(err)
	// Output: <nil>
}
