package checkpointdb

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// drawnLeaf is one arrow of the drawing in bucketlayout.go.
type drawnLeaf struct{ key, value string }

// readDrawing takes the drawing at the head of bucketlayout.go apart.
func readDrawing(t *testing.T) map[string][]drawnLeaf {
	t.Helper()
	source, err := os.ReadFile("bucketlayout.go")
	if err != nil {
		t.Fatal(err)
	}
	drawing := map[string][]drawnLeaf{}
	bucket := ""
	bucketLine := regexp.MustCompile(`^//\t([a-z]+)( |$)`)
	leafLine := regexp.MustCompile(`^//\t[├└]─ (.*?)\s*→ (.*)$`)
	for line := range strings.Lines(string(source)) {
		line = strings.TrimRight(line, "\n")
		if m := leafLine.FindStringSubmatch(line); m != nil {
			drawing[bucket] = append(drawing[bucket], drawnLeaf{m[1], m[2]})
		} else if m := bucketLine.FindStringSubmatch(line); m != nil {
			bucket = m[1]
			if drawing[bucket] != nil {
				t.Errorf("the drawing has bucket %s twice", bucket)
			}
			drawing[bucket] = []drawnLeaf{}
		}
	}
	return drawing
}

// fitsKey tells whether a key has the shape that the drawing gives.
func fitsKey(shape string, key []byte) bool {
	if literal, ok := strings.CutPrefix(shape, `"`); ok {
		return string(key) == strings.TrimSuffix(literal, `"`)
	}
	if strings.HasSuffix(shape, ", as it is") {
		return len(key) > 0
	}
	lengths := map[string]int{"thread": 8, "position": 8, "blob": 33}
	total := 0
	for part := range strings.SplitSeq(shape, " ‖ ") {
		n, ok := lengths[part]
		if !ok {
			return false
		}
		total += n
	}
	return len(key) == total
}

// fitsValue tells whether a value reads as what the drawing says. A text that
// is not known here fails, so the drawing cannot say more than is checked.
func fitsValue(text string, v []byte) error {
	length := func(n int) error {
		if len(v) != n {
			return fmt.Errorf("has %d bytes, not %d", len(v), n)
		}
		return nil
	}
	var err error
	switch text, _, _ = strings.Cut(text, ","); text {
	case "u64", "thread":
		err = length(8)
	case "16 random bytes", "thread ‖ position":
		err = length(16)
	case "time", "time of that":
		_, err = parseTime(v)
	case "checkpoint record (record.go)":
		_, err = parseRecord(v)
	case "head row (headRow below)":
		_, err = parseHeadRow(v)
	case "version":
		if len(v) == 0 || v[0] != rowVersion {
			err = errRow
		}
	case "run":
		_, err = parseRun(make([]byte, 49), v)
	case "instance record (instance.go)":
		_, err = parseInstance([]byte("k"), v)
	default:
		err = fmt.Errorf("this test does not know the value %q", text)
	}
	return err
}

// fillStore brings something into every bucket that is in use.
func fillStore(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.Background()
	lease, err := s.AcquireWriter(ctx, "a thread")
	must(t, err)
	w := lease.Writer
	head := CheckpointID("")
	for i := range 12 {
		c := testCheckpoint("a thread", i, head)
		must(t, s.Append(ctx, w, c, head))
		head = c.ID
	}
	_, err = s.Prune(ctx, w, PrunePolicy{KeepLast: 4, KeepNamed: true})
	must(t, err)
	must(t, s.DeleteHead(ctx, w, head))
	other, err := s.AcquireWriter(ctx, "another\x00thread")
	must(t, err)
	_, err = s.Fork(ctx, other.Writer, ForkRequest{
		SourceThreadID: "a thread", SourceCheckpointID: "cp-10",
		DestinationThreadID: "another\x00thread", DestinationCheckpointID: "a fork", CreatedAt: testTime(99),
	})
	must(t, err)
	protect(t, s, w, testKey("on its way"))
	must(t, s.SaveThread(ctx, "only a transcript", []json.RawMessage{json.RawMessage(`{"a":1}`)}))
	must(t, s.UpsertInstance(ctx, Instance{Key: "k", Provider: "p", ProviderSandboxID: "sb", ThreadID: "a thread", UpdatedAt: testTime(1)}))
}

func TestLayout(t *testing.T) {
	drawing := readDrawing(t)
	var drawn, known []string
	for bucket := range drawing {
		drawn = append(drawn, bucket)
	}
	for _, name := range allBuckets {
		known = append(known, string(name))
	}
	slices.Sort(drawn)
	slices.Sort(known)
	if !slices.Equal(drawn, known) {
		t.Fatalf("the drawing has the buckets\n\t%q, the code\n\t%q", drawn, known)
	}
	s := openTest(t, nil)
	fillStore(t, s)
	used := map[string]bool{}
	must(t, s.view(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			leaves, ok := drawing[string(name)]
			if !ok {
				t.Errorf("the drawing lacks bucket %q", name)
			}
			return b.ForEach(func(k, v []byte) error {
				used[string(name)] = true
				if v == nil {
					t.Errorf("the drawing lacks the bucket %q in %q", k, name)
					return nil
				}
				i := slices.IndexFunc(leaves, func(l drawnLeaf) bool { return fitsKey(l.key, k) })
				if i < 0 {
					t.Errorf("the drawing of %q lacks a leaf like %q", name, k)
				} else if err := fitsValue(leaves[i].value, v); err != nil {
					t.Errorf("%q in %q is drawn as %q: %v", k, name, leaves[i].value, err)
				}
				return nil
			})
		})
	}))
	for _, name := range known {
		if !used[name] {
			t.Errorf("bucket %q stayed empty, so nothing was compared", name)
		}
	}
}

func TestFormatNumbersArePinned(t *testing.T) {
	if formatVersion != 2 || recordVersion != 2 || rowVersion != 1 {
		t.Errorf("format %d, record version %d, row version %d: a new number needs a migration, a file in testdata, and this test", formatVersion, recordVersion, rowVersion)
	}
	if len(migrations) != formatVersion-1 {
		t.Errorf("%d migrations lead to format %d", len(migrations), formatVersion)
	}
}

func TestHeadRow(t *testing.T) {
	h := headRow{next: 1}
	for range 10 {
		h = h.add()
	}
	h = h.only([]position{2, 3, 7, 10})
	if got := h.count(3, 9); got != 2 {
		t.Errorf("count(3, 9) = %d, want 2", got)
	}
	for p, want := range map[position]position{10: 7, 7: 3, 3: 2, 2: 0} {
		if got := h.before(p); got != want {
			t.Errorf("before(%d) = %d, want %d", p, got, want)
		}
	}
	again, err := parseHeadRow(h.encode())
	if err != nil || fmt.Sprint(again) != fmt.Sprint(h) {
		t.Errorf("reads back as %v, %v; want %v", again, err, h)
	}
	h = h.withoutNewest()
	if h.head = 7; h.newest() != 7 || h.next != 11 || h.isLive(10) {
		t.Errorf("without its newest: %v", h)
	}
	if h = h.add(); h.head != 11 {
		t.Errorf("a position was given out twice: %v", h)
	}
}

func FuzzRows(f *testing.F) {
	h := headRow{head: 9, next: 10, live: []span{{1, 3}, {9, 9}}}
	f.Add(h.encode())
	f.Add(leaseRow{fence: 3, expires: testTime(4), token: "token"}.encode())
	f.Add(encodeInstance(Instance{Key: "k", ThreadID: "t", UpdatedAt: testTime(5)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHeadRow(b); err == nil && b != nil {
			if again, err := parseHeadRow(h.encode()); err != nil || fmt.Sprint(again) != fmt.Sprint(h) {
				t.Errorf("head row %v reads back as %v, %v", h, again, err)
			}
		}
		if l, err := parseLeaseRow(b); err == nil {
			if again, err := parseLeaseRow(l.encode()); err != nil || again != l {
				t.Errorf("lease row %v reads back as %v, %v", l, again, err)
			}
		}
		if in, err := parseInstance([]byte("k"), b); err == nil {
			if again, err := parseInstance([]byte("k"), encodeInstance(in)); err != nil || again != in {
				t.Errorf("instance %v reads back as %v, %v", in, again, err)
			}
		}
		if _, err := parseRun(b[:len(b)/2], b[len(b)/2:]); err == nil && len(b) < 50 {
			t.Error("a short run was taken")
		}
	})
}
