package checkpointdb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestRecordRoundTrip(t *testing.T) {
	for i := range 12 {
		want := testCheckpoint("t", i, "")
		rec := &record{header: headerOf(&want)}
		lists := contentOf(&want)
		for kind := range sections {
			rec.sections[kind] = fullSection(kind, lists[kind])
		}
		raw := rec.encode()
		read, err := parseRecord(raw)
		must(t, err)
		var back content
		for kind := range sections {
			back[kind], err = buildList(kind, []section{read.sections[kind]}, nil)
			must(t, err)
			must(t, read.sections[kind].verify(back[kind]))
		}
		got, err := read.checkpoint(back)
		must(t, err)
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("checkpoint %d came back different (-want +got):\n%s", i, d)
		}
		if !bytes.Equal(read.encode(), raw) {
			t.Errorf("checkpoint %d encodes differently the second time", i)
		}
	}
}

// TestRecordNoticesEveryFlippedByte is restic's and pebble's lesson: what was
// damaged is an error, never another value.
func TestRecordNoticesEveryFlippedByte(t *testing.T) {
	c := testCheckpoint("t", 4, "")
	rec := &record{header: headerOf(&c)}
	for kind, items := range contentOf(&c) {
		rec.sections[kind] = fullSection(sectionKind(kind), items)
	}
	raw := rec.encode()
	for i := range raw {
		damaged := bytes.Clone(raw)
		damaged[i] ^= 0x10
		if _, err := parseRecord(damaged); err == nil {
			t.Errorf("byte %d flipped, and the record still reads", i)
		}
	}
	for i := range raw {
		if _, err := parseRecord(raw[:i]); err == nil {
			t.Errorf("cut to %d bytes, and the record still reads", i)
		}
	}
}

func TestDiffAndPatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		item := rapid.Map(rapid.IntRange(0, 9), func(n int) string { return strings.Repeat(fmt.Sprint(n), n) })
		old := rapid.SliceOf(item).Draw(t, "old")
		new := rapid.SliceOf(item).Draw(t, "new")
		if rapid.Bool().Draw(t, "edit") { // new grows out of old, as in life
			new = slices.Clone(old)
			for range rapid.IntRange(0, 3).Draw(t, "edits") {
				at := rapid.IntRange(0, len(new)).Draw(t, "at")
				switch {
				case at == len(new) || rapid.Bool().Draw(t, "insert"):
					new = slices.Insert(new, at, item.Draw(t, "item"))
				default:
					new = slices.Delete(new, at, at+1)
				}
			}
		}
		d := diff(old, new)
		got, err := patch(nil, old, d.script, d.inserted, uint64(len(new)))
		if err != nil || !slices.Equal(got, new) {
			t.Fatalf("patch(%q, diff to %q) = %q, %v", old, new, got, err)
		}
		for _, dropped := range d.dropped {
			if !slices.Contains(old, dropped) {
				t.Fatalf("dropped %q was not there", dropped)
			}
		}
		for _, o := range old { // what is gone must be known to be gone
			if !slices.Contains(new, o) && !slices.Contains(d.dropped, o) {
				t.Fatalf("%q vanished without being dropped", o)
			}
		}
		for _, n := range new { // what is new must be known to be new
			if !slices.Contains(old, n) && !slices.Contains(d.inserted, n) {
				t.Fatalf("%q appeared without being inserted", n)
			}
		}
	})
}

func TestDiffOfFewChangesIsSmall(t *testing.T) {
	old := make([]string, 10_000)
	for i := range old {
		old[i] = fmt.Sprintf("path/to/file-%d\x01", i)
	}
	changed := slices.Clone(old)
	for i := range 10 {
		changed[i*997] += "changed"
	}
	changed = slices.Insert(changed, 5000, "path/to/a new file")
	changed = slices.Delete(changed, 7000, 7003)
	d := diff(old, changed)
	if len(d.inserted) != 11 || len(d.dropped) != 13 {
		t.Errorf("%d inserted, %d dropped; want 11 and 13", len(d.inserted), len(d.dropped))
	}
	if len(d.script) > 200 {
		t.Errorf("the script has %d bytes", len(d.script))
	}
	moved := append(slices.Clone(old[5000:]), old[:5000]...)
	if d := diff(old, moved); len(d.inserted) > 1 {
		t.Errorf("two halves that change places store %d items again", len(d.inserted))
	}
}

func TestPackedListKeepsEveryKindOfItem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for kind := range sections {
		for n := range 40 {
			items := []string{}
			for range n {
				head := make([]byte, r.IntN(40))
				for i := range head {
					head[i] = byte(r.IntN(256))
				}
				item := string(head)
				if kind == sectionArtifacts || kind == sectionFiles && item != "" && (item[0] == flagFile || item[0] == flagExecutable) {
					item += strings.Repeat("d", len(Digest{}))
				}
				items = append(items, item)
			}
			got, err := parsePacked(appendPacked(nil, kind, items), kind)
			if err != nil || !slices.Equal(got, items) {
				t.Fatalf("%s: %q came back as %q, %v", kind, items, got, err)
			}
		}
	}
}

// sealed puts the checksum behind the body of a record.
func sealed(body []byte) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
}

// FuzzRecord: any bytes give a value or an error, never a panic or a hang.
func FuzzRecord(f *testing.F) {
	base := testCheckpoint("t", 3, "")
	next := testCheckpoint("t", 4, "cp-3")
	from, to := contentOf(&base), contentOf(&next)
	rec := &record{header: headerOf(&next)}
	for kind := range sections {
		rec.sections[kind] = nextSection(kind, fullSection(kind, from[kind]), to[kind], diff(from[kind], to[kind]))
	}
	rec.base = 1
	f.Add(rec.encode()[:len(rec.encode())-4])
	f.Fuzz(func(t *testing.T, body []byte) {
		// The checksum would hide everything behind it from the fuzzer.
		read, err := parseRecord(sealed(body))
		if err != nil {
			return
		}
		var lists content
		for kind := range sections {
			if lists[kind], err = buildList(kind, []section{read.sections[kind]}, from[kind]); err != nil {
				return
			}
			_ = read.sections[kind].verify(lists[kind])
			_ = blobsOf(kind, lists[kind])
		}
		if c, err := read.checkpoint(lists); err == nil && c.Validate() == nil {
			again := contentOf(&c)
			for kind := range sections {
				if !slices.Equal(again[kind], lists[kind]) && len(again[kind])+len(lists[kind]) > 0 {
					// Numbers may be spelled longer than need be, nothing else.
					var back Checkpoint
					must(t, again.decode(&back))
					back.ID, back.ThreadID = c.ID, c.ThreadID
					if d := cmp.Diff(c.Files, back.Files, cmpopts.EquateEmpty()); d != "" {
						t.Errorf("files came back different:\n%s", d)
					}
				}
			}
		}
	})
}
