package checkpointdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPathRule(t *testing.T) {
	for path, ok := range map[string]bool{
		"a": true, "a/b": true, ".hidden": true, "..a/b..": true, "c:d": true, "a/c:": true, "ä/ö": true,
		"a\nb": true, "x y": true, "c:d/e": true, "cc:/e": true, "-": true, "a\u0301": true,
		"": false, ".": false, "..": false, "a/": false, "/a": false, "a//b": false, "./a": false, "a/./b": false,
		"a/../b": false, "a/..": false, `a\b`: false, "a\x00": false, "c:": false, "C:/x": false, "a\xff": false,
		"\xed\xa0\x80": false,
	} {
		if rule := PathRule(path); (rule == "") != ok {
			t.Errorf("%q: %q, want ok: %t", path, rule, ok)
		}
	}
}

func TestValidateFilesTree(t *testing.T) {
	file := func(path string) Entry { return Entry{Path: path, Kind: KindFile, BlobKey: testKey(path)} }
	dir := func(path string) Entry { return Entry{Path: path, Kind: KindDir} }
	link := func(path string) Entry { return Entry{Path: path, Kind: KindSymlink, Target: ".."} }
	for _, test := range []struct {
		name  string
		files []Entry
		index int // of the fault, -1 for none
	}{
		{"nothing", nil, -1},
		{"dir and what is in it", []Entry{dir("a"), file("a/b"), dir("a/c")}, -1},
		{"dir after what is in it", []Entry{file("a/b"), dir("a")}, -1},
		{"names that only start alike", []Entry{file("a"), file("a-b"), file("a.b/c"), file("ab")}, -1},
		{"file twice", []Entry{file("a"), file("b"), file("a")}, 2},
		{"file and dir of one name", []Entry{dir("a"), file("a")}, 1},
		{"beneath a file", []Entry{file("a"), file("a/b")}, 1},
		{"beneath a file, listed before it", []Entry{file("a/b"), file("a")}, 0},
		{"beneath a link, far away in order", []Entry{link("a"), file("a-1"), file("a.2"), file("a/b/c")}, 3},
		{"beneath a link, listed before it", []Entry{file("a/b/c"), file("z"), link("a")}, 0},
		{"dir beneath a file", []Entry{file("a"), dir("a/b")}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := ValidateFiles(test.files)
			var detail *InvalidEntryError
			switch {
			case test.index < 0:
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &detail) || !errors.Is(err, ErrInvalidEntry):
				t.Errorf("got %v", err)
			case detail.Index != test.index || detail.Path != test.files[test.index].Path:
				t.Errorf("got %v, want index %d", err, test.index)
			}
		})
	}
}

// TestValidateFilesAgainstPlainRule compares with the rule written down as it
// is said, in O(n²).
func TestValidateFilesAgainstPlainRule(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "ab", "a-", "a.", "a0"})
	path := rapid.Map(rapid.SliceOfN(part, 1, 3), func(parts []string) string { return strings.Join(parts, "/") })
	rapid.Check(t, func(t *rapid.T) {
		var files []Entry
		for _, p := range rapid.SliceOfN(path, 0, 8).Draw(t, "paths") {
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				files = append(files, Entry{Path: p, Kind: KindDir})
			case 1:
				files = append(files, Entry{Path: p, Kind: KindSymlink, Target: "x"})
			default:
				files = append(files, Entry{Path: p, Kind: KindFile, BlobKey: testKey(p)})
			}
		}
		want := true
		for i, a := range files {
			for j, b := range files {
				if i != j && (a.Path == b.Path || a.Kind != KindDir && strings.HasPrefix(b.Path, a.Path+"/")) {
					want = false
				}
			}
		}
		if err := ValidateFiles(files); (err == nil) != want {
			t.Fatalf("%v: %v", files, err)
		}
	})
}

// TestValidatingIsNotQuadratic: shapes on which a rule by rule comparison, or a
// stack that is searched as a whole, would take minutes.
func TestValidatingIsNotQuadratic(t *testing.T) {
	nested := make([]Entry, 3000) // a, aa, aaa, …: each name starts the next
	for i := range nested {
		nested[i] = Entry{Path: strings.Repeat("a", i+1), Kind: KindSymlink, Target: "x"}
	}
	must(t, ValidateFiles(nested))
	deep := []Entry{{Path: strings.Repeat("d/", 1<<20) + "f", Kind: KindDir}}
	must(t, ValidateFiles(deep))
	shuffled := manyFiles(50_000)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	must(t, ValidateFiles(shuffled))
}

// manyFiles makes n files, sorted by path, in directories of a hundred.
func manyFiles(n int) []Entry {
	files := make([]Entry, n)
	for i := range files {
		files[i] = Entry{
			Path: fmt.Sprintf("src/package-%04d/some/deeper/module/file_%06d.go", i/100, i),
			Kind: KindFile, Size: int64(i), BlobKey: testKey(fmt.Sprint("content ", i)),
		}
	}
	return files
}

func BenchmarkValidate50000Entries(b *testing.B) {
	files := manyFiles(50_000)
	for _, order := range []string{"sorted", "shuffled"} {
		b.Run(order, func(b *testing.B) {
			files := slices.Clone(files)
			if order == "shuffled" {
				rand.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
			}
			for b.Loop() {
				must(b, ValidateFiles(files))
			}
		})
	}
}

func TestCheckpointJSON(t *testing.T) {
	for i := range 6 {
		want := testCheckpoint("t\x00/ö", i, "")
		want.CreatedAt = testTime(i).Add(500 * time.Microsecond)
		text, err := want.MarshalJSON()
		must(t, err)
		var got Checkpoint
		must(t, json.Unmarshal(text, &got))
		if d := cmp.Diff(want, got, equateNil); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if strings.Contains(string(text), `"parentCheckpointId":null`) != (got.ParentCheckpointID == "") {
			t.Errorf("parent in %s", text)
		}
	}
}

var equateNil = cmp.Transformer("nilIsEmpty", func(list []Artifact) []Artifact {
	if list == nil {
		return []Artifact{}
	}
	return slices.Clone(list)
})

func TestCheckpointJSONRefuses(t *testing.T) {
	base := func() map[string]any {
		return map[string]any{
			"id": "c", "threadId": "t", "parentCheckpointId": nil, "createdAt": 1, "reason": "named",
			"files": []any{}, "conversation": []any{}, "artifacts": []any{},
		}
	}
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	for _, test := range []struct {
		field string
		value any // nil: left out
		want  Code
		part  string
	}{
		{"", nil, "", ""},
		{"surprise", 1, ErrInvalidEntry, `unknown field "surprise"`},
		{"id", "", ErrInvalidID, "empty"},
		{"id", raw(`"\ud800"`), ErrInvalidID, "lone surrogate"},
		{"id", raw(`"\ud83d\ude00"`), "", ""},
		{"id", raw(`"\\ud800"`), "", ""},
		{"id", raw(`"\ud800\u0041"`), ErrInvalidID, "lone surrogate"},
		{"id", raw(`"\udc00\ud800"`), ErrInvalidID, "lone surrogate"},
		{"id", 5, ErrInvalidID, "not a string"},
		{"id", nil, ErrInvalidID, "missing"},
		{"id", strings.Repeat("x", MaxIDBytes), "", ""},
		{"id", strings.Repeat("x", MaxIDBytes+1), ErrInvalidID, "32769 bytes"},
		{"parentCheckpointId", "", ErrInvalidID, "empty"},
		{"createdAt", raw("1.5"), "", ""},
		{"createdAt", raw("-1"), "", ""},
		{"createdAt", raw("1e3"), "", ""},
		{"createdAt", raw("1e400"), ErrInvalidEntry, "finite"},
		{"createdAt", raw("1e-300"), ErrInvalidEntry, "exponent"},
		{"createdAt", raw("1e-999999999999"), ErrInvalidEntry, "createdAt"},
		{"createdAt", raw("0.0000001"), ErrInvalidEntry, "finer than a nanosecond"},
		{"createdAt", raw("-62135596800000"), ErrInvalidEntry, "zero time"},
		{"createdAt", raw("9e15"), ErrInvalidEntry, "8.64e15"},
		{"createdAt", "1", ErrInvalidEntry, "createdAt"},
		{"reason", "because", ErrInvalidEntry, "because"},
		{"reason", nil, ErrInvalidEntry, "reason"},
		{"label", raw("null"), ErrInvalidEntry, "label"},
		{"files", raw("null"), ErrInvalidEntry, "files"},
		{"files", raw("[null]"), ErrInvalidEntry, "files[0]"},
		{"files", raw(`[{"path":"d","kind":"dir","size":0}]`), ErrInvalidEntry, "size"},
		{"files", raw(`[{"path":"d","kind":"dir","mode":7}]`), ErrInvalidEntry, `"mode"`},
		{"files", raw(`[{"path":"d","path":"e","kind":"dir"}]`), ErrInvalidEntry, "twice"},
		{"files", raw(`[{"path":"\udfff","kind":"dir"}]`), ErrInvalidEntry, "lone surrogate"},
		{"files", raw(`[{"path":"d","kind":"dir"},{"path":"l","kind":"symlink"}]`), ErrInvalidEntry, "files[1]"},
		{"files", raw(`[{"path":"l","kind":"symlink","target":"x"}]`), "", ""},
		{"conversation", raw(`[{"text":"\ud800","n":9007199254740993}, 1e400]`), "", ""},
		{"conversation", raw(`{}`), ErrInvalidEntry, "conversation"},
		{"artifacts", raw("null"), ErrInvalidEntry, "artifacts"},
	} {
		t.Run(fmt.Sprintf("%s %.40s", test.field, test.value), func(t *testing.T) {
			object := base()
			if test.field != "" {
				object[test.field] = test.value
				if test.value == nil {
					delete(object, test.field)
				}
			}
			text, err := json.Marshal(object)
			must(t, err)
			var c Checkpoint
			err = c.UnmarshalJSON(text)
			if CodeOf(err) != test.want || err != nil && !strings.Contains(err.Error(), test.part) {
				t.Errorf("got %v, want %q with %q", err, test.want, test.part)
			}
		})
	}
}

func TestMillis(t *testing.T) {
	for text, want := range map[string]time.Time{
		"0": time.Unix(0, 0), "1.5": time.Unix(0, 1_500_000), "-1": time.Unix(0, -1_000_000),
		"-1.5": time.Unix(0, -1_500_000), "-0.25": time.Unix(0, -250_000), "1700000000000.123456": time.Unix(1_700_000_000, 123_456),
		"-1000.000001": time.Unix(-1, -1),
	} {
		got, err := parseMillis(json.RawMessage(text))
		if err != nil || !got.Equal(want) {
			t.Errorf("%s reads as %v, %v", text, got, err)
		}
		if again := formatMillis(want); again != text {
			t.Errorf("%v is written as %s, not %s", want, again, text)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := time.Unix(rapid.Int64Range(-8.64e12, 8.64e12-1).Draw(t, "sec"), rapid.Int64Range(0, 999_999_999).Draw(t, "nsec")).UTC()
		got, err := parseMillis(json.RawMessage(formatMillis(want)))
		if err != nil || !got.Equal(want) {
			t.Fatalf("%v comes back as %v, %v", want, got, err)
		}
	})
}

// FuzzCheckpointJSON: what is read can be written, and reads back the same.
func FuzzCheckpointJSON(f *testing.F) {
	for i := range 3 {
		text, err := testCheckpoint("t", i, "").MarshalJSON()
		must(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var c, again Checkpoint
		err := c.UnmarshalJSON(text)
		if err != nil {
			if code := CodeOf(err); code != ErrInvalidID && code != ErrInvalidEntry {
				t.Errorf("code %q for %v", code, err)
			}
			return
		}
		written, err := c.MarshalJSON()
		must(t, err)
		must(t, again.UnmarshalJSON(written))
		if d := cmp.Diff(c, again); d != "" {
			t.Error(d)
		}
		lists := contentOf(&c)
		var back Checkpoint
		must(t, lists.decode(&back))
		if d := cmp.Diff(c.Files, back.Files); d != "" {
			t.Error(d)
		}
	})
}

func TestErrorsCarryTheirFacts(t *testing.T) {
	err := withOp("append", &Error{Code: ErrStaleHead, Err: &StaleHeadError{ThreadID: "t", Expected: "a", Actual: "b"}})
	var stale *StaleHeadError
	if !errors.Is(err, ErrStaleHead) || errors.Is(err, ErrNotHead) || !errors.As(err, &stale) || stale.Actual != "b" {
		t.Errorf("%v", err)
	}
	if want := `checkpointdb: append: head of thread "t" is "b", not the expected "a" (SANDBOX_SNAPSHOT_STALE_HEAD)`; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if CodeOf(nil) != "" || CodeOf(errors.New("x")) != "" {
		t.Error("a code out of nothing")
	}
}
