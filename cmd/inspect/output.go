package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// encodeJSON returns v on one line that a terminal can show.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// printJSON prints one object.
func (a *app) printJSON(v any) error {
	b, err := encodeJSON(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", b)
	return err
}

// listJSON prints what each returns for the elements of seq as an array, one
// element on a line. An array that ends in an error is left open, so that nobody
// takes it for whole.
func listJSON[T any](a *app, seq iter.Seq2[T, error], each func(T) any) error {
	before := "[\n"
	for item, err := range seq {
		if err != nil {
			return err
		}
		b, err := encodeJSON(each(item))
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "%s%s", before, b)
		before = ",\n"
	}
	if before == "[\n" {
		_, err := a.stdout.WriteString("[]\n")
		return err
	}
	_, err := a.stdout.WriteString("\n]\n")
	return err
}

// list prints seq as an array, or as the rows of t; with nothing to show, it
// notes that there is none.
func list[T any](a *app, seq iter.Seq2[T, error], none string, each func(T) any, t *grid, row func(T) []any) error {
	if a.json {
		return listJSON(a, seq, each)
	}
	for item, err := range seq {
		if err != nil {
			return err
		}
		t.row(row(item)...)
	}
	if t.w.Length() == 0 {
		a.note("%s", none)
		return nil
	}
	return t.print()
}

// sequence makes of a slice what list takes.
func sequence[T any](items []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// grid is a table without lines. It makes every cell safe.
type grid struct {
	a *app
	w table.Writer
}

// shown is text that is safe already, such as one that safe returned.
type shown string

// painted is a cell in colour, where there are colours.
type painted struct {
	text   string
	colors text.Colors
}

func (p painted) String() string { return p.colors.Sprint(safe(p.text)) }

var (
	green  = text.Colors{text.FgGreen}
	red    = text.Colors{text.FgRed}
	yellow = text.Colors{text.FgYellow}
)

// grid makes a table with these columns. Names that begin with > are of numbers,
// which stand at the right.
func (a *app) grid(columns ...string) *grid {
	w := table.NewWriter()
	w.SetStyle(table.Style{
		Box:     table.BoxStyle{PaddingRight: "  ", MiddleVertical: ""},
		Format:  table.FormatOptions{},
		Options: table.OptionsNoBordersAndSeparators,
	})
	w.SuppressTrailingSpaces()
	header := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, name := range columns {
		configs[i] = table.ColumnConfig{Number: i + 1, Align: text.AlignLeft}
		if name[0] == '>' {
			name = name[1:]
			configs[i].Align, configs[i].AlignHeader, configs[i].AlignFooter = text.AlignRight, text.AlignRight, text.AlignRight
		}
		header[i] = name
	}
	w.AppendHeader(header)
	w.SetColumnConfigs(configs)
	return &grid{a: a, w: w}
}

func (g *grid) row(cells ...any) { g.w.AppendRow(safeRow(cells)) }

// total adds the line that sums up.
func (g *grid) total(cells ...any) { g.w.AppendFooter(safeRow(cells)) }

func safeRow(cells []any) table.Row {
	for i, c := range cells {
		switch c := c.(type) {
		case shown:
			cells[i] = string(c)
		case painted:
			cells[i] = c.String()
		default:
			cells[i] = safe(fmt.Sprint(c))
		}
	}
	return cells
}

func (g *grid) print() error {
	_, err := g.a.stdout.WriteString(g.w.Render() + "\n")
	return err
}

// field prints a name and its value, which it makes safe, on a line.
func (a *app) field(name string, value any) {
	fmt.Fprintf(a.stdout, "%-13s %s\n", name, safeRow([]any{value})[0])
}

// time returns t to the second, for people.
func (a *app) time(t time.Time) string { return a.zone(t).Format(time.RFC3339) }

// exactTime returns t to the nanosecond, for people.
func (a *app) exactTime(t time.Time) string { return a.zone(t).Format(time.RFC3339Nano) }

func (a *app) zone(t time.Time) time.Time {
	if a.utc {
		return t.UTC()
	}
	return t.Local()
}

// stamp returns t for JSON, "" for no time. Years beyond 9999, which
// time.Time.MarshalJSON refuses, are written with their five or six digits.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// age tells how long ago t was, or how far ahead it lies, in its largest unit.
func age(t time.Time) string {
	if d := now().Sub(t); d >= 0 {
		return length(d) + " ago"
	}
	return "in " + length(t.Sub(now()))
}

func length(d time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{365 * day, "y"}, {day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= unit.size {
			return strconv.FormatInt(int64(d/unit.size), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(max(d, 0)/time.Second), 10) + "s"
}

// size returns a number of bytes, for people.
func (a *app) size(n int64) string {
	if a.exact || n < 0 {
		return strconv.FormatInt(n, 10)
	}
	return humanize.IBytes(uint64(n))
}

// count returns a number with what it counts.
func count[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// createFile makes a file that must not exist, for its owner alone: what is in it
// is nobody else's business. It is removed again when write fails.
func createFile(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		os.Remove(path)
		return err
	}
	return nil
}
