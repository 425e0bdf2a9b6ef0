// Package workspace moves a directory into a checkpoint and back.
//
// [Capture] reads a directory, puts the bytes of its files into a bucket, each
// content once, and returns the entries of a checkpoint. [Restore] makes a
// directory equal to a checkpoint. Neither touches a checkpoint store: the
// caller appends what Capture returned, and gets from the store what Restore
// is given. All blobs of a capture are durable when Capture returns, so a
// checkpoint that is appended afterwards never names bytes that a crash could
// take away.
//
// # What a checkpoint keeps
//
// The bytes of regular files and whether their owner may execute them, the text
// of symbolic links, and empty directories. Not kept: other permission bits,
// owners, times, hard links (each name becomes a file of its own), extended
// attributes. Holes in sparse files are not kept as such either; Restore makes
// a hole of every stretch of zeros that is long enough. Windows has no
// executable bit, so a capture there records none and a restore ignores it.
//
// # What is left out
//
// Exclude and Include, the same pair in [CaptureOptions] and [RestoreOptions],
// draw the border of the workspace. Exclude decides what is outside, by default
// [DefaultExclude]; Include takes back some of that and always wins. Both are
// asked about every path from the top down, and what lies beneath a directory
// that is outside is outside too, without being asked about. So to take one
// file out of an excluded directory, Include has to answer true for the
// directory as well, and Exclude is then asked about the directory's content.
// Capture does not read what is outside. Restore does not remove it.
//
// # Untrusted directories
//
// The content of a workspace, and of a manifest, may come from a sandbox. All
// access goes through [os.Root], so no link leads outside, whoever made it and
// whenever. A named pipe never blocks a capture. Names are quoted in errors.
package workspace
