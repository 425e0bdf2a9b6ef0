package checkpointdb

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ThreadID names one conversation with its workspace. Any non-empty,
// well-formed Unicode of at most [MaxIDBytes] bytes is a valid id; NUL and
// '/' have no special meaning (contract, design §2).
type ThreadID string

// CheckpointID names one checkpoint. Ids are unique over all threads of a
// store. The rules for its text are those of [ThreadID].
type CheckpointID string

// Fence is the number of a writer lease. It grows with every lease of a
// thread and never goes down, not even when the thread is deleted, so the
// larger of two fences is always the later writer.
type Fence uint64

// MaxIDBytes is the longest valid id in bytes. It is the largest key that
// bbolt can hold.
const MaxIDBytes = 32768

// MaxSize is the largest size in bytes of a file or an artifact: 2^53-1, the
// largest integer that JSON numbers carry safely.
const MaxSize = 1<<53 - 1

// Reason says why a checkpoint was made.
type Reason string

// The three reasons of the contract.
const (
	ReasonAutomatic Reason = "automatic" // made by the runner, after a turn
	ReasonNamed     Reason = "named"     // asked for by a person or the agent
	ReasonForkRoot  Reason = "fork-root" // first checkpoint of a forked thread
)

// EntryKind is the kind of a workspace entry.
type EntryKind string

// The kinds of workspace entries.
const (
	KindFile    EntryKind = "file"
	KindDir     EntryKind = "dir"
	KindSymlink EntryKind = "symlink"
)

// BlobKey is the content-addressed name of a blob in the bucket:
// [FileKeyPrefix] or [ArtifactKeyPrefix] followed by the SHA-256 of the bytes
// in 64 lower-case hexadecimal digits. Equal keys mean equal bytes.
type BlobKey string

// The two prefixes under which blobs live in the bucket. A sweep never looks
// outside them.
const (
	FileKeyPrefix     = "sandbox-files/sha256/"
	ArtifactKeyPrefix = "sandbox-artifacts/sha256/"
)

// Digest is the SHA-256 of a blob's bytes.
type Digest [sha256.Size]byte

// FileKey returns the key under which a workspace file with this digest lies.
func FileKey(d Digest) BlobKey { return BlobKey(FileKeyPrefix + hex.EncodeToString(d[:])) }

// ArtifactKey returns the key under which an artifact with this digest lies.
func ArtifactKey(d Digest) BlobKey { return BlobKey(ArtifactKeyPrefix + hex.EncodeToString(d[:])) }

// ParseBlobKey returns s as a key, or an error that matches [ErrInvalidEntry]
// and says what is wrong with it.
func ParseBlobKey(s string) (BlobKey, error) {
	k := BlobKey(s)
	if _, ok := k.digest(FileKeyPrefix); ok {
		return k, nil
	}
	if _, ok := k.digest(ArtifactKeyPrefix); ok {
		return k, nil
	}
	return "", &Error{Code: ErrInvalidEntry, Message: fmt.Sprintf("blob key %q is not %s or %s and 64 lower-case hexadecimal digits", s, FileKeyPrefix, ArtifactKeyPrefix)}
}

// Digest returns the digest that the key carries, and false when k is not a
// well-formed key of either prefix.
func (k BlobKey) Digest() (Digest, bool) {
	if d, ok := k.digest(FileKeyPrefix); ok {
		return d, true
	}
	return k.digest(ArtifactKeyPrefix)
}

func (k BlobKey) digest(prefix string) (d Digest, ok bool) {
	text, ok := strings.CutPrefix(string(k), prefix)
	if !ok || len(text) != 2*len(d) {
		return Digest{}, false
	}
	for i := range d {
		hi, lo := hexValue[text[2*i]], hexValue[text[2*i+1]]
		if hi|lo > 15 {
			return Digest{}, false
		}
		d[i] = hi<<4 | lo
	}
	return d, true
}

// hexValue maps a lower-case hexadecimal digit to its value and every other
// byte to 255. hex.Decode would take upper case too, and the contract does not.
var hexValue = func() (t [256]byte) {
	for i := range t {
		t[i] = 255
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	return t
}()

// Entry is one path of a workspace manifest. Only a file has BlobKey, Size and
// Executable; only a symlink has Target.
type Entry struct {
	Path       string // relative, '/'-separated
	Kind       EntryKind
	BlobKey    BlobKey
	Size       int64 // bytes
	Executable bool
	Target     string // as the link holds it; never followed
}

// Artifact is something the agent produced beside its workspace.
type Artifact struct {
	ArtifactID string
	Name       string
	MimeType   string
	Size       int64 // bytes
	BlobKey    BlobKey
	CreatedAt  time.Time
}

// Checkpoint is one immutable version of a thread. The order of Files,
// Conversation and Artifacts is kept, and so is every byte of the messages.
type Checkpoint struct {
	ID                 CheckpointID
	ThreadID           ThreadID
	ParentCheckpointID CheckpointID // "" for a root
	CreatedAt          time.Time    // kept to the nanosecond, returned in UTC
	Reason             Reason
	Label              string // optional
	SourceRunID        string // optional
	Files              []Entry
	Conversation       []json.RawMessage // one JSON value each
	Artifacts          []Artifact
}

// Clone returns a copy that shares no memory with c that either could change.
func (c Checkpoint) Clone() Checkpoint {
	c.Files = slices.Clone(c.Files)
	c.Artifacts = slices.Clone(c.Artifacts)
	c.Conversation = cloneMessages(c.Conversation)
	return c
}

func cloneMessages(messages []json.RawMessage) []json.RawMessage {
	messages = slices.Clone(messages)
	for i, m := range messages {
		messages[i] = bytes.Clone(m)
	}
	return messages
}

// BlobKeys returns every key that the checkpoint uses, each once, sorted as
// text. This is what it counts in the store's references.
func (c Checkpoint) BlobKeys() []BlobKey {
	keys := make([]BlobKey, 0, len(c.Files)+len(c.Artifacts))
	for i := range c.Files {
		if c.Files[i].Kind == KindFile {
			keys = append(keys, c.Files[i].BlobKey)
		}
	}
	for i := range c.Artifacts {
		keys = append(keys, c.Artifacts[i].BlobKey)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Writer proves the right to write one thread. It is current while the store
// holds an unexpired lease with the same token and fence.
type Writer struct {
	ThreadID   ThreadID `json:"threadId"`
	OwnerToken string   `json:"ownerToken"`
	Fence      Fence    `json:"fence"`
}

// Lease is what [CheckpointStore.AcquireWriter] and [CheckpointStore.Renew]
// return: the writer and how long it lasts.
//
// ExpiresAt is compared with the clock of the store, on the machine that has
// the file open. Expiry decides only who may take a lease; whose write lands is
// decided by token and fence, in the transaction that writes. So a clock that
// jumps can cost a writer its lease, but can never let two writers of one
// thread both succeed.
type Lease struct {
	Writer
	ExpiresAt  time.Time     // the lease is lost at this very moment, not after it
	RenewAfter time.Duration // how long after acquiring or renewing to renew
}

// BlobReference is a key and the number of checkpoints that use it, over all
// threads; always above 0.
type BlobReference struct {
	Key   BlobKey `json:"key"`
	Count int64   `json:"references"`
}

// ForkRequest says what [Forker.Fork] copies to where.
type ForkRequest struct {
	SourceThreadID          ThreadID
	SourceCheckpointID      CheckpointID
	DestinationThreadID     ThreadID
	DestinationCheckpointID CheckpointID
	CreatedAt               time.Time
}

// Instance records which sandbox of which provider serves a thread.
type Instance struct {
	Key               string
	Provider          string
	ProviderSandboxID string
	ThreadID          ThreadID
	LatestRunID       string // optional
	LatestSnapshotID  string // optional
	UpdatedAt         time.Time
}
