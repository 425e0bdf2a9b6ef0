package workspace

import (
	"io"
	"sync"
	"time"
)

// RestoreProgress says how far a restore has come.
type RestoreProgress struct {
	Done, Total       int   // paths removed, made or written; those that failed are done too
	Bytes, TotalBytes int64 // of the files written
}

// progressPause is the shortest time between two reports.
const progressPause = 100 * time.Millisecond

// progress reports what it is told, and may be used from many goroutines.
type progress struct {
	mu     sync.Mutex // guards the following, and is held while report runs
	report func(RestoreProgress)
	now    RestoreProgress
	last   time.Time // of the last report
}

// start sets where to report to, nil for nowhere, and what there is to do.
func (p *progress) start(report func(RestoreProgress), all RestoreProgress) {
	p.report, p.now, p.last = report, all, time.Now()
}

func (p *progress) add(paths int, bytes int64) {
	if p.report == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Done += paths
	p.now.Bytes += bytes
	if time.Since(p.last) >= progressPause {
		p.report(p.now)
		p.last = time.Now()
	}
}

// end reports for the last time.
func (p *progress) end() {
	if p.report != nil {
		p.report(p.now)
	}
}

// countingReader tells progress how much was read from r.
type countingReader struct {
	r        io.Reader
	progress *progress
	bytes    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.bytes += int64(n)
	c.progress.add(0, int64(n))
	return n, err
}
