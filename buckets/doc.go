// Package buckets opens the bucket that holds the bytes of checkpoints, and
// writes to it so that the bytes are there after a power cut.
//
// [Open] takes a URL or a directory. It knows local directories and memory by
// itself, and the clouds when checkpointdb/buckets/cloud is linked; that package
// shows their URLs. [WriteDurable] writes one object into any bucket of
// gocloud.dev/blob, opened here or elsewhere; on a local directory it does the
// fsync calls that the driver leaves out. [Retry] waits for a store that is busy.
//
// The bucket that Open makes of a local directory is gocloud's, except that it
// lists a million objects in seconds, in pages of any size and in little memory,
// also while files come and go. Its As gives the directory as a *string, beside
// what the driver's gives.
package buckets
