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
