package main

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"checkpointdb"
)

// forest makes nodes of lines "id below thread", the oldest first; "-" is none,
// and an id with an exclamation mark is of a node that is gone.
func forest(lines string) []*node {
	var all []*node
	byID := map[string]*node{}
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		n := &node{seq: len(all), below: byID[f[1]], gone: strings.HasSuffix(f[0], "!")}
		n.ID, n.ThreadID = checkpointdb.CheckpointID(f[0]), checkpointdb.ThreadID(f[2])
		n.CreatedAt = nowInTests.Add(time.Duration(len(all)-100) * time.Second)
		n.Reason = checkpointdb.ReasonAutomatic
		all, byID[f[0]] = append(all, n), n
	}
	return all
}

func TestDraw(t *testing.T) {
	now = func() time.Time { return nowInTests }
	for _, test := range []struct{ name, nodes, want string }{
		{"nothing", "", ""},
		{"a chain", `
			a1 - a
			a2 a1 a`, `
● a2
● a1`},
		{"two chains", `
			a1 - a
			b1 - b
			a2 a1 a
			b2 b1 b`, `
● b2
│ ● a2
● │ b1
  ● a1`},
		{"a lane is used again", `
			b1 - b
			a1 - a
			c1 - c
			a2 a1 a
			c2 c1 c`, `
● c2
│ ● a2
● │ c1
  ● a1
● b1`},
		{"a fork", `
			a1 - a
			a2 a1 a
			b1 a1 b
			a3 a2 a`, `
● a3
│ ● b1
● │ a2
├─╯
● a1`},
		{"three forks from one", `
			a1 - a
			b1 a1 b
			c1 a1 c
			a2 a1 a`, `
● a2
│ ● c1
│ │ ● b1
├─┴─╯
● a1`},
		{"a lane between", `
			x1 - x
			a1 - a
			b1 a1 b
			x2 x1 x
			a2 a1 a`, `
● a2
│ ● x2
│ │ ● b1
├─│─╯
● │ a1
  ● x1`},
		{"a fork of a fork", `
			a1 - a
			b1 a1 b
			c1 b1 c
			b2 b1 b
			a2 a1 a`, `
● a2
│ ● b2
│ │ ● c1
│ ├─╯
│ ● b1
├─╯
● a1`},
		{"the source is gone", `
			old! - -
			a1 - a
			b1 old! b
			c1 old! c`, `
● c1
│ ● b1
├─╯
○ old! gone

● a1`},
	} {
		var out bytes.Buffer
		d := layOut(forest(test.nodes))
		d.a, d.when = &app{stdout: bufio.NewWriter(&out)}, age
		if err := d.text(); err != nil {
			t.Fatal(err)
		}
		d.a.stdout.Flush()
		var got strings.Builder
		for line := range strings.Lines(out.String()) {
			line, _, _ = strings.Cut(line, "  1m ago")
			got.WriteString("\n" + strings.TrimRight(line, "\n"))
		}
		if got.String() != test.want {
			t.Errorf("%s: got%s\nwant%s", test.name, got.String(), test.want)
		}
	}
}

func TestConnected(t *testing.T) {
	var ids []string
	for _, n := range connected(forest(`
		a1 - a
		x1 - x
		a2 a1 a
		b1 a1 b
		c1 b1 c
		x2 x1 x`), "b") {
		ids = append(ids, string(n.ID))
	}
	if got := strings.Join(ids, " "); got != "a1 a2 b1 c1" {
		t.Error("connected with b:", got)
	}
}

// TestFiles: whatever things are called, a picture is XML and a graph is DOT.
func TestFiles(t *testing.T) {
	now = func() time.Time { return nowInTests }
	all := forest("a1 - a\nb1 a1 b")
	all[0].Label = evil + `<&>"\N` + "]]>"
	all[1].ThreadID = evil + `"]; x`
	d := layOut(all)
	d.a, d.when = &app{}, age
	picture := xml.NewDecoder(strings.NewReader(d.svg()))
	texts := 0
	for {
		token, err := picture.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "text" {
			texts++
		}
	}
	if texts != 2 {
		t.Errorf("%d texts in the picture, want 2", texts)
	}
	for line := range strings.Lines(d.dot()) {
		// Outside of quotes there is nothing but our own words.
		open := false
		for i := 0; i < len(line); i++ {
			switch {
			case open && line[i] == '\\':
				i++
			case line[i] == '"':
				open = !open
			case !open && strings.IndexByte("\x1b<&;", line[i]) >= 0:
				t.Errorf("%q has %q outside of quotes", line, line[i])
			}
		}
		if open {
			t.Errorf("%q has an open quote", line)
		}
	}
}

// TestLargeGraph: a chain of many needs neither a deep stack nor long.
func TestLargeGraph(t *testing.T) {
	const many = 100_000
	all := make([]*node, many)
	for i := range all {
		all[i] = &node{seq: i}
		all[i].ThreadID = checkpointdb.ThreadID(fmt.Sprint(i % 2))
		if i > 1 {
			all[i].below = all[i-2]
		}
	}
	if rows := layOut(connected(all, "1")).rows; len(rows) != many/2 {
		t.Errorf("%d rows, want %d", len(rows), many/2)
	}
}
