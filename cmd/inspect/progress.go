package main

import (
	"context"
	"io"
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress shows on a terminal how far some long work has come, with its rate and
// the time left. Elsewhere it shows nothing. As a writer it counts what it is
// given. It is used from one goroutine at a time.
type progress struct {
	a       *app
	all     *mpb.Progress // nil when nothing is shown
	bar     *mpb.Bar      // nil until there is something to show
	what    string
	objects bool // counts objects, not bytes
	total   int64
	before  io.Writer
}

// progress starts a line for work on total bytes, 0 when nobody knows how many.
// Until done, what goes to stderr appears above it.
func (a *app) progress(ctx context.Context, what string, total int64) *progress {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return &progress{}
	}
	all := mpb.NewWithContext(ctx, mpb.WithOutput(os.Stderr), mpb.WithAutoRefresh(), mpb.WithWidth(30))
	return &progress{a: a, all: all, what: what, total: total, before: a.stderr.to(all)}
}

// counter is progress that counts objects.
func (a *app) counter(ctx context.Context, what string, total int64) *progress {
	p := a.progress(ctx, what, total)
	p.objects = true
	return p
}

// isShown tells whether anybody sees it.
func (p *progress) isShown() bool { return p.all != nil }

func (p *progress) Write(b []byte) (int, error) {
	if p.all != nil {
		p.show()
		p.bar.IncrBy(len(b))
	}
	return len(b), nil
}

// set says how much is done, of how much, 0 when nobody knows.
func (p *progress) set(done, total int64) {
	if p.all == nil {
		return
	}
	if p.bar == nil {
		p.total = total
	}
	p.show()
	if total != p.total {
		p.total = total
		p.bar.SetTotal(total, false)
	}
	p.bar.SetCurrent(done)
}

// show makes the bar, or a wheel where there is no total.
func (p *progress) show() {
	if p.bar != nil {
		return
	}
	name := mpb.PrependDecorators(decor.Name(safe(p.what) + " "))
	current, of, speed := decor.CurrentKibiByte(" % .1f"), decor.CountersKibiByte(" % .1f / % .1f"), decor.AverageSpeed(decor.SizeB1024(0), " % .1f")
	if p.objects {
		current, of, speed = decor.CurrentNoUnit(" %d"), decor.CountersNoUnit(" %d / %d"), decor.AverageSpeed(0, " %.0f/s")
	}
	if p.total > 0 {
		p.bar = p.all.AddBar(p.total, name, mpb.AppendDecorators(of, speed, decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 8})))
	} else {
		p.bar = p.all.AddSpinner(0, name, mpb.AppendDecorators(current, speed))
	}
}

// done takes the line away.
func (p *progress) done() {
	if p.all == nil {
		return
	}
	if p.bar != nil {
		p.bar.Abort(true)
	}
	p.all.Wait()
	p.a.stderr.to(p.before)
	p.all = nil
}
