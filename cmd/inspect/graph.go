package main

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"checkpointdb"

	"github.com/spf13/cobra"
)

func (a *app) graphCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "graph [THREAD]",
		Short: "Draw chains and forks",
		Long: `Graph draws every checkpoint with a line down to its parent, or to the one that its
thread was forked from; the newest stand at the top. The newest of a thread bears
the thread's name in brackets. A circle that is not filled is a checkpoint that
is gone and that another one still names.

With a THREAD, only what is connected with it is drawn. With --out the drawing
goes to a new file, whose name ends in .svg for a picture or in .dot for
Graphviz.

JSON:

    [{"id", "threadId", "parentCheckpointId", "forkedFrom", "createdAt", "head",
      "gone"}]

from top to bottom. Of one that is gone only the id is known.`,
		Example: `  inspect graph --db agents.db
  inspect graph main --out main.svg --db agents.db
  inspect graph --out all.dot --db agents.db && dot -Tpdf all.dot > all.pdf`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstOnly(1, a.completeThread()),
		RunE: a.do(func(ctx context.Context, args []string) error {
			return a.graph(ctx, checkpointdb.ThreadID(strings.Join(args, "")), out)
		}),
	}
	cmd.Flags().StringVar(&out, "out", "", "draw into this new `FILE`, .svg or .dot")
	return cmd
}

func (a *app) graph(ctx context.Context, thread checkpointdb.ThreadID, out string) error {
	draw := map[string]func(drawing) string{"": nil, ".svg": drawing.svg, ".dot": drawing.dot}
	to, known := draw[filepath.Ext(out)]
	switch {
	case !known || out != "" && to == nil:
		return usageError("--out must end in .svg or .dot")
	case a.json && out != "":
		return usageError("--out and --json exclude each other")
	}
	store, done, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer done()
	all, err := readGraph(ctx, store)
	if err != nil {
		return err
	}
	if thread != "" {
		all = connected(all, thread)
	}
	d := layOut(all)
	d.a, d.when = a, age
	if to != nil {
		d.when = a.time // a file may be looked at much later
	}
	switch {
	case a.json:
		return listJSON(a, sequence(d.rows), rowToJSON)
	case len(d.rows) == 0:
		a.note("no checkpoints")
		return nil
	case to == nil:
		return d.text()
	}
	if err := createFile(out, func(w io.Writer) error {
		_, err := io.WriteString(w, to(d))
		return err
	}); err != nil {
		return err
	}
	a.note("drew %s into %s", count(len(d.rows)-d.gone(), "checkpoint"), safe(out))
	return nil
}

// node is a checkpoint of the graph.
type node struct {
	checkpointdb.CheckpointInfo
	gone   bool  // deleted; nothing but its id is known
	newest bool  // of its thread
	below  *node // its parent, what it was forked from, or what is left of the chain before it; may be nil
	seq    int   // as it was found, which decides among equal times
	waits  int   // nodes above that have no row yet
}

// readGraph reads all checkpoints and links them.
func readGraph(ctx context.Context, store *checkpointdb.Store) ([]*node, error) {
	var all []*node
	byID := map[checkpointdb.CheckpointID]*node{}
	var chains [][]*node
	oldest := map[checkpointdb.ThreadID]*node{}
	for t, err := range store.Threads(ctx) {
		if err != nil {
			return nil, err
		}
		var chain []*node
		for c, err := range store.Log(ctx, t.ID, nil) {
			if err != nil {
				return nil, err
			}
			n := &node{CheckpointInfo: c, newest: len(chain) == 0, seq: len(all)}
			chain, all = append(chain, n), append(all, n)
			byID[c.ID], oldest[t.ID] = n, n
		}
		chains = append(chains, chain)
	}
	gone := map[checkpointdb.CheckpointID]*node{}
	lost := func(id checkpointdb.CheckpointID) *node {
		if gone[id] == nil {
			n := &node{gone: true, seq: len(all)}
			n.ID = id
			all, gone[id] = append(all, n), n
		}
		return gone[id]
	}
	for _, chain := range chains {
		for i, n := range chain {
			switch {
			case n.ParentCheckpointID == "":
				if source := byID[n.ForkedFrom]; source != nil && !leadsTo(source, n.ThreadID, oldest) {
					n.below = source
				} else if n.ForkedFrom != "" {
					n.below = lost(n.ForkedFrom)
				}
			case i+1 < len(chain) && chain[i+1].ID == n.ParentCheckpointID:
				n.below = chain[i+1]
			default:
				n.below = lost(n.ParentCheckpointID)
				if i+1 < len(chain) {
					n.below.below = chain[i+1]
				}
			}
		}
	}
	return all, nil
}

// leadsTo tells whether the line down from n comes through a thread. The id of a
// checkpoint that is gone may name a new one since, so that forks form a circle.
func leadsTo(n *node, thread checkpointdb.ThreadID, oldest map[checkpointdb.ThreadID]*node) bool {
	for ; n != nil && !n.gone; n = oldest[n.ThreadID].below {
		if n.ThreadID == thread {
			return true
		}
	}
	return false
}

// connected returns the nodes from which lines lead to those of thread.
func connected(all []*node, thread checkpointdb.ThreadID) []*node {
	// In a forest these are the nodes over the same lowest one.
	known := map[*node]*node{}
	lowest := func(n *node) *node {
		var path []*node
		for n.below != nil && known[n] == nil {
			path, n = append(path, n), n.below
		}
		if known[n] != nil {
			n = known[n]
		}
		for _, each := range path {
			known[each] = n
		}
		return n
	}
	wanted := map[*node]bool{}
	for _, n := range all {
		if n.ThreadID == thread {
			wanted[lowest(n)] = true
		}
	}
	var some []*node
	for _, n := range all {
		if wanted[lowest(n)] {
			some = append(some, n)
		}
	}
	return some
}

// drawing has the nodes from top to bottom, each in a row and a lane.
type drawing struct {
	a    *app
	when func(time.Time) string // how times are told
	rows []row
}

// gone counts the nodes that are.
func (d drawing) gone() (n int) {
	for _, r := range d.rows {
		if r.gone {
			n++
		}
	}
	return n
}

type row struct {
	*node
	lane  int
	lanes []*node // which node each lane leads to, above this row; nil for a free lane
	joins []int   // the other lanes that lead to this node
}

// layOut puts every node beneath those that have it below, the newest first as
// far as that allows. A lane belongs to a node until what is below it has its row.
func layOut(all []*node) drawing {
	for _, n := range all {
		if n.below != nil {
			n.below.waits++
		}
	}
	ready := nodeHeap{}
	for _, n := range all {
		if n.waits == 0 {
			ready = append(ready, n)
		}
	}
	heap.Init(&ready)
	var d drawing
	var lanes []*node
	for len(ready) > 0 {
		r := row{node: heap.Pop(&ready).(*node), lane: -1}
		free := len(lanes)
		for i := len(lanes) - 1; i >= 0; i-- {
			switch lanes[i] {
			case nil:
				free = i
			case r.node:
				if r.lane >= 0 {
					r.joins = append([]int{r.lane}, r.joins...)
				}
				r.lane = i
			}
		}
		r.lanes = append(r.lanes, lanes...)
		if r.lane < 0 {
			if r.lane = free; free == len(lanes) {
				lanes = append(lanes, nil)
			}
		}
		for _, i := range r.joins {
			lanes[i] = nil
		}
		lanes[r.lane] = r.below
		for len(lanes) > 0 && lanes[len(lanes)-1] == nil {
			lanes = lanes[:len(lanes)-1]
		}
		d.rows = append(d.rows, r)
		if r.below != nil {
			if r.below.waits--; r.below.waits == 0 {
				heap.Push(&ready, r.below)
			}
		}
	}
	return d
}

// nodeHeap has what comes next at its top: what is gone, so that it stands close
// to who names it, and then the newest.
type nodeHeap []*node

func (h nodeHeap) Len() int { return len(h) }
func (h nodeHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.gone != b.gone {
		return a.gone
	}
	if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
		return c > 0
	}
	return a.seq < b.seq
}
func (h nodeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *nodeHeap) Push(n any)   { *h = append(*h, n.(*node)) }
func (h *nodeHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	return n
}

// text draws on a terminal.
func (d drawing) text() error {
	for i, r := range d.rows {
		if i > 0 && d.rows[i-1].below == nil && d.rows[i-1].lane == r.lane {
			// Nothing leads here: this must not look like the parent of what is above.
			fmt.Fprintln(d.a.stdout, strings.TrimRight(r.lanesLine(" "), " "))
		}
		if len(r.joins) > 0 {
			fmt.Fprintln(d.a.stdout, strings.TrimRight(r.joinLine(), " "))
		}
		dot := "●"
		if r.gone {
			dot = "○"
		}
		fmt.Fprintf(d.a.stdout, "%s %s\n", strings.TrimRight(r.lanesLine(dot), " "), d.nodeText(r.node))
	}
	return nil
}

// lanesLine draws all lanes, the one of the node with dot.
func (r row) lanesLine(dot string) string {
	var line strings.Builder
	for i := range max(len(r.lanes), r.lane+1) {
		switch {
		case i == r.lane:
			line.WriteString(dot + " ")
		case i < len(r.lanes) && r.lanes[i] != nil && r.lanes[i] != r.node:
			line.WriteString("│ ")
		default:
			line.WriteString("  ")
		}
	}
	return line.String()
}

// joinLine draws how other lanes come to the one of the node.
func (r row) joinLine() string {
	ends := map[int]string{}
	for _, i := range r.joins {
		ends[i] = "┴"
	}
	last := r.joins[len(r.joins)-1]
	ends[last] = "╯"
	var line strings.Builder
	for i, n := range r.lanes {
		beside := " "
		if i >= r.lane && i < last {
			beside = "─"
		}
		switch {
		case i == r.lane:
			line.WriteString("├")
		case ends[i] != "":
			line.WriteString(ends[i])
		case n != nil:
			line.WriteString("│") // the line passes beneath
		default:
			line.WriteString(beside)
		}
		line.WriteString(beside)
	}
	return line.String()
}

// nodeText says in a line what a node is.
func (d drawing) nodeText(n *node) string {
	parts := []string{yellow.Sprint(safe(string(n.ID)))}
	if n.gone {
		return parts[0] + " gone"
	}
	if n.newest {
		name := safe(string(n.ThreadID))
		if !n.Head {
			name += ", no head"
		}
		parts = append(parts, green.Sprint("["+name+"]"))
	}
	parts = append(parts, d.when(n.CreatedAt))
	if n.Reason != checkpointdb.ReasonAutomatic {
		parts = append(parts, safe(string(n.Reason)))
	}
	if n.Label != "" {
		parts = append(parts, safe(n.Label))
	}
	return strings.Join(parts, "  ")
}

func rowToJSON(r row) any {
	return struct {
		ID                 checkpointdb.CheckpointID `json:"id"`
		ThreadID           checkpointdb.ThreadID     `json:"threadId,omitempty"`
		ParentCheckpointID checkpointdb.CheckpointID `json:"parentCheckpointId,omitempty"`
		ForkedFrom         checkpointdb.CheckpointID `json:"forkedFrom,omitempty"`
		CreatedAt          string                    `json:"createdAt,omitempty"`
		Head               bool                      `json:"head"`
		Gone               bool                      `json:"gone"`
	}{r.ID, r.ThreadID, r.ParentCheckpointID, r.ForkedFrom, stamp(r.CreatedAt), r.Head, r.gone}
}
