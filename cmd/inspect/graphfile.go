package main

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"checkpointdb"
)

// The measures of a picture, in pixels.
const (
	rowHeight  = 24
	laneWidth  = 18
	charWidth  = 7.3 // of 12 px monospace
	halfMargin = 12
)

// laneColors follow each other from left to right.
var laneColors = []string{"#1f6fb2", "#c4432b", "#2f8f4e", "#8a4fb0", "#b07a12", "#4a5b6c"}

func laneColor(lane int) string { return laneColors[lane%len(laneColors)] }

// svg returns the drawing as a picture.
func (d drawing) svg() string {
	text.DisableColors() // in nodeText
	at := map[*node]int{}
	lanes, longest := 0, 0
	for i, r := range d.rows {
		at[r.node] = i
		lanes = max(lanes, r.lane+1)
		longest = max(longest, text.StringWidth(d.nodeText(r.node)))
	}
	x := func(lane int) int { return halfMargin + lane*laneWidth + laneWidth/2 }
	y := func(row int) int { return halfMargin + row*rowHeight + rowHeight/2 }
	textX := x(lanes)
	width := textX + int(float64(longest)*charWidth) + 2*halfMargin
	height := 2*halfMargin + len(d.rows)*rowHeight

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	fmt.Fprintf(&b, `<g fill="none" stroke-width="2">`+"\n")
	for i, r := range d.rows {
		if r.below == nil {
			continue
		}
		x1, y1, x2, y2 := x(r.lane), y(i), x(d.rows[at[r.below]].lane), y(at[r.below])
		path := fmt.Sprintf("M%d %dV%d", x1, y1, y2)
		if x1 != x2 {
			path = fmt.Sprintf("M%d %dV%dQ%d %d %d %d", x1, y1, y2-rowHeight/2, x1, y2, x2, y2)
		}
		dashed := ""
		if r.gone || r.below.gone {
			dashed = ` stroke-dasharray="3 3"`
		}
		fmt.Fprintf(&b, `<path d="%s" stroke="%s"%s/>`+"\n", path, laneColor(r.lane), dashed)
	}
	b.WriteString("</g>\n" + `<g font-family="monospace" font-size="12">` + "\n")
	for i, r := range d.rows {
		fill := laneColor(r.lane)
		if r.gone {
			fill = "white"
		}
		fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="5" fill="%s" stroke="%s" stroke-width="2"/>`, x(r.lane), y(i), fill, laneColor(r.lane))
		fmt.Fprintf(&b, `<text x="%d" y="%d" xml:space="preserve">`, textX, y(i)+4)
		_ = xml.EscapeText(&b, []byte(d.nodeText(r.node))) // a Builder never fails
		b.WriteString("</text>\n")
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// dot returns the drawing for Graphviz, each thread in a box of its own.
func (d drawing) dot() string {
	text.DisableColors() // in nodeText
	quote := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	}
	names := map[*node]string{}
	threads := map[checkpointdb.ThreadID][]row{}
	var order []checkpointdb.ThreadID
	for i, r := range d.rows {
		names[r.node] = fmt.Sprint("n", i)
		if threads[r.ThreadID] == nil {
			order = append(order, r.ThreadID)
		}
		threads[r.ThreadID] = append(threads[r.ThreadID], r)
	}
	var b strings.Builder
	b.WriteString("digraph checkpoints {\n  rankdir=BT\n  node [shape=box, fontname=monospace, fontsize=10]\n")
	for i, thread := range order {
		indent := "  "
		if thread != "" { // what is gone has none
			fmt.Fprintf(&b, "  subgraph cluster_%d {\n    label=%s\n", i, quote(safe(string(thread))))
			indent = "    "
		}
		for _, r := range threads[thread] {
			style := ""
			if r.gone {
				style = ", style=dashed"
			}
			fmt.Fprintf(&b, "%s%s [label=%s%s]\n", indent, names[r.node], quote(d.nodeText(r.node)), style)
		}
		if thread != "" {
			b.WriteString("  }\n")
		}
	}
	for _, r := range d.rows {
		if r.below != nil {
			fmt.Fprintf(&b, "  %s -> %s\n", names[r.node], names[r.below])
		}
	}
	b.WriteString("}\n")
	return b.String()
}
