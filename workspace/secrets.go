package workspace

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"checkpointdb"
)

// minSecret is the shortest secret in bytes. A shorter one is everywhere by
// chance, and files would be destroyed for nothing.
const minSecret = 4

// secrets are values that no blob may have in it, the longest first.
type secrets [][]byte

// newSecrets never puts a value into an error.
func newSecrets(byName map[string]string) (secrets, error) {
	var values secrets
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		value := byName[name]
		if len(value) < minSecret {
			return nil, coded(checkpointdb.ErrInvalidArgument, fmt.Errorf("the secret %q has fewer than %d bytes", name, minSecret))
		}
		values = append(values, []byte(value))
	}
	slices.SortFunc(values, func(a, b []byte) int { return cmp.Or(cmp.Compare(len(b), len(a)), bytes.Compare(a, b)) })
	return slices.CompactFunc(values, bytes.Equal), nil
}

// blank returns a reader of the bytes of src, of which there are about size, with
// zeros in place of all that belongs to an occurrence of a secret.
func (s secrets) blank(src io.Reader, size int64) io.Reader {
	if len(s) == 0 {
		return src
	}
	keep := len(s[0]) - 1
	return &blanker{
		src:    src,
		values: s,
		keep:   keep,
		window: make([]byte, 0, int(min(size, bufferSize))+keep+1),
	}
}

// blanker looks at a window of what it read. An occurrence may go on beyond the
// window's end, so the last bytes stay in the window, as they were read, until
// those that follow are there too.
type blanker struct {
	src    io.Reader
	values secrets
	keep   int    // one less than the longest secret
	window []byte // as read; its capacity is more than keep
	drop   int    // bytes at the start of window that were handed out
	ready  []byte // to be handed out, all of it within the first drop bytes
	until  int    // as many bytes after those belong to a secret that began in them
	err    error  // of src
}

func (b *blanker) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil && b.drop == len(b.window) {
			return 0, b.err
		}
		b.advance()
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

// advance fills the window and makes ready what nothing that follows can change.
func (b *blanker) advance() {
	b.window = b.window[:copy(b.window, b.window[b.drop:])]
	for b.err == nil && len(b.window) < cap(b.window) {
		var n int
		n, b.err = b.src.Read(b.window[len(b.window):cap(b.window)])
		b.window = b.window[:len(b.window)+n]
	}
	b.drop = len(b.window)
	if b.err == nil {
		b.drop -= b.keep
	}
	// First all are found, then blanked: they may overlap.
	type span struct{ from, to int }
	spans := []span{{0, b.until}}
	for _, value := range b.values {
		for from := 0; from < b.drop; from++ {
			at := bytes.Index(b.window[from:], value)
			if at < 0 || from+at >= b.drop {
				break
			}
			from += at
			spans = append(spans, span{from, from + len(value)})
		}
	}
	b.until = 0
	for _, s := range spans {
		clear(b.window[s.from:min(s.to, b.drop)])
		b.until = max(b.until, s.to-b.drop)
	}
	b.ready = b.window[:b.drop]
}
