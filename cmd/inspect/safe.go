package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Paths, labels, names and messages come from sandboxes, and a terminal obeys
// control characters wherever they stand. So nothing of the kind is printed as it
// is: every cell goes through safe, all of stderr through an escaper, all JSON
// through escapeJSON.

// isShown tells whether a terminal shows r as itself. Spaces other than U+0020,
// controls, and the format characters that turn writing around are not.
func isShown(r rune, size int) bool {
	return unicode.IsPrint(r) && (r != utf8.RuneError || size > 1)
}

// safe returns s as it is when it can be shown so and is not mistaken for
// something else, and in Go's quotes otherwise.
func safe(s string) string {
	if s == "" {
		return s
	}
	if s[0] == '"' || s[0] == ' ' || s[len(s)-1] == ' ' || escape(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// escape writes with Go's escapes what cannot be shown, and nothing else; so the
// result may be ambiguous, which names must not be but prose may.
func escape(s string, keep ...rune) string {
	var b strings.Builder
	for i, r := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		kept := false
		for _, k := range keep {
			kept = kept || r == k
		}
		if kept || isShown(r, size) {
			b.WriteString(s[i : i+size])
			continue
		}
		quoted := strconv.Quote(s[i : i+size])
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// escapeJSON writes as \u escapes whatever in valid JSON on one line cannot be
// shown. Only strings can hold such, so the values stay the same.
func escapeJSON(b []byte) []byte {
	if bytes.IndexFunc(b, func(r rune) bool { return r >= utf8.RuneSelf || r < ' ' || r == 0x7f }) < 0 {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		switch {
		case isShown(r, size):
			out = append(out, b[:size]...)
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[size:]
	}
	return out
}

// escaper is a writer of whole lines that escapes all but their ends.
type escaper struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (e *escaper) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := io.WriteString(e.w, escape(string(p), '\n')); err != nil {
		return 0, err
	}
	return len(p), nil
}

// to makes e write to w, and returns what it wrote to before.
func (e *escaper) to(w io.Writer) (before io.Writer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, e.w = e.w, w
	return before
}
