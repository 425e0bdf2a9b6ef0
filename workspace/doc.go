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
// Four things draw the border of the workspace. A [Policy] says with patterns
// what is outside, by default .git, node_modules and .env*, and may let ignore
// files in the workspace say more. An Exclude function decides in place of the
// patterns. An Include function takes back some of what these left out, and always
// wins. All are asked about every path from the top down, and what lies beneath a
// directory that is outside is outside too, without being asked about. So to take
// one file out of an excluded directory, Include has to answer true for the
// directory as well, and Exclude is then asked about the directory's content.
// Limits of the policy are asked last, and Include cannot lift them. Capture does
// not read what is outside. Restore does not remove it.
//
// The policy can be stored with a checkpoint, see [Policy.Artifact], so that a
// later Restore knows what was outside when the checkpoint was made. To such a
// restore, what the ignore files of the checkpoint say is outside, and what those
// that are in the directory now say is too: the last capture may have left that
// out as well. The price is that the next capture after it may find more files
// than the checkpoint has. Functions cannot be stored, so whoever captures with
// them has to restore with them.
//
// Files of the program itself, such as the store's database, are named by Own in
// the options. They and the directory of a local bucket are neither captured nor
// changed by a restore, even where Include or a checkpoint has them.
//
// # Untrusted directories
//
// The content of a workspace, and of a manifest, may come from a sandbox. All
// access goes through [os.Root], so no link leads outside, whoever made it and
// whenever. A named pipe never blocks a capture. Names are quoted in errors.
package workspace
