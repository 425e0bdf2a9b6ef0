// Package buckets opens the bucket that holds the bytes of checkpoints, and
// writes to it so that the bytes are there after a power cut.
//
// [Open] takes a URL or a directory and knows local directories and memory by
// itself. [WriteDurable] writes one object into any bucket of gocloud.dev/blob,
// opened here or elsewhere; on a local directory it does the fsync calls that
// the driver leaves out.
package buckets
