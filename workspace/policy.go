package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"gocloud.dev/blob"

	"checkpointdb"
	"checkpointdb/buckets"
)

// Policy says what of a directory is outside of its checkpoints, in a form that
// can be stored with them. The zero value leaves out DefaultPatterns, has no
// limits, and refuses special files.
type Policy struct {
	// Patterns leave out what they match, in the syntax of .gitignore files,
	// relative to the directory; a later one with "!" in front takes back what
	// earlier ones left out. nil means DefaultPatterns, an empty list nothing.
	Patterns []string `json:"patterns"`
	// IgnoreFile is the name of files in the directory, at all levels, that leave
	// out more; for example ".gitignore". They cannot take back what Patterns
	// leaves out, as they come from the workspace. Empty: there are none.
	IgnoreFile string `json:"ignoreFile,omitempty"`
	// MaxFileSize is the largest size of a file in bytes, holes included, and
	// MaxTotalSize that of all files together. A file that goes beyond one of them
	// is an error, ErrFileTooLarge or ErrTotalTooLarge. 0 means no limit.
	MaxFileSize  int64 `json:"maxFileSize,omitempty"`
	MaxTotalSize int64 `json:"maxTotalSize,omitempty"`
	// SkipTooLarge leaves out such a file, and SkipSpecial named pipes, sockets
	// and devices, instead of failing with an error. Captured.Skipped lists them.
	SkipTooLarge bool `json:"skipTooLarge,omitempty"`
	SkipSpecial  bool `json:"skipSpecial,omitempty"`

	// Skipped and Filtered are set by Capture, in Captured.Policy, and mean
	// nothing to it: the paths it skipped, and that Exclude or Include decided
	// too, which cannot be stored.
	Skipped  []string `json:"skipped,omitempty"`
	Filtered bool     `json:"filtered,omitempty"`
}

// DefaultPatterns returns the patterns that say what DefaultExclude does: .git,
// node_modules and .env*. The slice is the caller's.
func DefaultPatterns() []string { return []string{".git", "node_modules", ".env*"} }

// validate refuses what a capture or a restore cannot work with.
func (p *Policy) validate() error {
	var errs []error
	for _, pattern := range p.Patterns {
		r, ok := parseRule(pattern)
		if !ok || strings.Contains(pattern, "\n") || !doublestar.ValidatePattern(r.glob) {
			errs = append(errs, fmt.Errorf("%q is no pattern", pattern))
		}
	}
	if name := p.IgnoreFile; name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		errs = append(errs, fmt.Errorf("the ignore file's name %q is not that of a file", name))
	}
	if p.MaxFileSize < 0 || p.MaxTotalSize < 0 {
		errs = append(errs, fmt.Errorf("a size limit is negative: %d for a file, %d for all", p.MaxFileSize, p.MaxTotalSize))
	}
	if err := errors.Join(errs...); err != nil {
		return coded(checkpointdb.ErrInvalidArgument, err)
	}
	return nil
}

// PolicyMimeType is that of the artifact that holds a Policy. A checkpoint should
// have one such artifact at most; the first counts.
const PolicyMimeType = "application/vnd.checkpointdb.policy+json"

// maxPolicy bounds what is read of a policy; the skipped paths make it long.
const maxPolicy = 64 << 20

// Artifact stores the policy in the bucket and returns the artifact to append
// with the checkpoint, which is how a later Restore knows what was outside when
// the checkpoint was made. Give it Captured.Policy. Forks of the checkpoint have
// it too. Like PutArtifact it needs a Protect where sweeps run.
func (p Policy) Artifact(ctx context.Context, bucket *blob.Bucket, createdAt time.Time, opts *ArtifactOptions) (checkpointdb.Artifact, error) {
	if p.Patterns == nil {
		p.Patterns = DefaultPatterns()
	}
	data, err := json.Marshal(p)
	if err != nil {
		return checkpointdb.Artifact{}, wrap("policy", err)
	}
	return PutArtifact(ctx, bucket, bytes.NewReader(data), checkpointdb.Artifact{
		ArtifactID: "checkpointdb-policy",
		Name:       "policy.json",
		MimeType:   PolicyMimeType,
		CreatedAt:  createdAt,
	}, opts)
}

// PolicyOf returns the policy that was stored with the checkpoint, and whether
// there is one. A policy that this version does not understand in full is an
// error that matches [checkpointdb.ErrInvalidEntry]: what it cannot read may be
// what keeps a file from being removed.
func PolicyOf(ctx context.Context, c checkpointdb.Checkpoint, bucket *blob.Bucket) (Policy, bool, error) {
	p, found, err := policyOf(ctx, c, bucket)
	if err != nil {
		return Policy{}, false, wrap("policy", err)
	}
	return p, found, nil
}

func policyOf(ctx context.Context, c checkpointdb.Checkpoint, bucket *blob.Bucket) (p Policy, found bool, err error) {
	i := slices.IndexFunc(c.Artifacts, func(a checkpointdb.Artifact) bool { return a.MimeType == PolicyMimeType })
	if i < 0 {
		return Policy{}, false, nil
	}
	a := c.Artifacts[i]
	if a.Size > maxPolicy {
		return Policy{}, false, badPolicy(fmt.Errorf("has %d bytes", a.Size))
	}
	data, err := readBlob(ctx, storedBlob{bucket: bucket, key: a.BlobKey, size: a.Size, checkpoint: c.ID, name: a.ArtifactID})
	if err != nil {
		return Policy{}, false, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Policy{}, false, badPolicy(err)
	}
	if p.Patterns == nil {
		return Policy{}, false, badPolicy(errors.New("has no patterns"))
	}
	if err := p.validate(); err != nil {
		return Policy{}, false, badPolicy(err)
	}
	return p, true, nil
}

func badPolicy(err error) error {
	return coded(checkpointdb.ErrInvalidEntry, fmt.Errorf("the checkpoint's policy: %w", err))
}

// readBlob reads a small blob, whole.
func readBlob(ctx context.Context, b storedBlob) (data []byte, err error) {
	err = buckets.Retry(ctx, func(ctx context.Context) error {
		r, err := b.open(ctx, 0, b.size)
		if err != nil {
			return err
		}
		defer r.Close()
		data, err = io.ReadAll(r)
		return err
	})
	return data, err
}
