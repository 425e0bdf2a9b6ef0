package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"
	"unicode"
)

func TestSafe(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		"src/main.go":  "src/main.go",
		"two words":    "two words",
		"Zürich 日本 é":  "Zürich 日本 é",
		`it's "so"`:    `it's "so"`,
		`"so"`:         `"\"so\""`, // or it would look like so, quoted
		" x":           `" x"`,
		"x ":           `"x "`,
		"a\x1b[31mb":   `"a\x1b[31mb"`,
		"a\tb\r\n":     `"a\tb\r\n"`,
		"a\u202eb":     `"a\u202eb"`,
		"a\u009bb\x7f": `"a\u009bb\x7f"`,
		"a\u00a0b":     `"a\u00a0b"`,
		"a\xffb":       `"a\xffb"`,
		"a\ufffdb":     "a\ufffdb",
	} {
		if got := safe(in); got != want {
			t.Errorf("safe(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzSafe: what safe returns is shown as it is and says what it was given.
func FuzzSafe(f *testing.F) {
	f.Add(evil)
	f.Add(`"`)
	f.Add("\xff\\")
	f.Fuzz(func(t *testing.T, s string) {
		shown := safe(s)
		for _, r := range shown {
			if !unicode.IsPrint(r) {
				t.Fatalf("safe(%q) has %U", s, r)
			}
		}
		if shown == s {
			return
		}
		if back, err := strconv.Unquote(shown); err != nil || back != s {
			t.Fatalf("safe(%q) = %s, which means %q (%v)", s, shown, back, err)
		}
	})
}

// FuzzEscapeJSON: the same for JSON, where invalid UTF-8 cannot be.
func FuzzEscapeJSON(f *testing.F) {
	f.Add(evil)
	f.Add("\U000e0001 \u2028 \U0001f600")
	f.Fuzz(func(t *testing.T, s string) {
		plain, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		escaped := escapeJSON(plain)
		if i := bytes.IndexFunc(escaped, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%s has something not printable at %d", escaped, i)
		}
		var want, got string
		if err := json.Unmarshal(plain, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(escaped, &got); err != nil || got != want {
			t.Fatalf("%s means %q (%v), want %q", escaped, got, err, want)
		}
	})
}

func TestEscaper(t *testing.T) {
	var b bytes.Buffer
	e := &escaper{w: &b}
	text := "one\x1b[2J\ntwo\ttabs\r\n\"x\" \xff"
	if n, err := e.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatal(n, err)
	}
	if got, want := b.String(), "one\\x1b[2J\ntwo\\ttabs\\r\n\"x\" \\xff"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
