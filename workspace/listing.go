package workspace

import (
	"context"
	"io/fs"
	"slices"
	"sync"
)

// readers is how many directories are read at a time. Most of it is asking for
// the infos of their files, one after the other.
const readers = 8

// listing is what lies in a directory, without what is outside of the workspace.
type listing struct {
	dir      string // "" for the root
	info     fs.FileInfo
	children []fs.DirEntry // by name
	err      error
}

// readTree reads all directories of the workspace, several at a time, and returns
// them by path. What is outside, this goroutine decides: filters are the caller's,
// and need not be safe for use by several. The first error ends it.
func (c *capturer) readTree(ctx context.Context) (map[string]*listing, error) {
	todo, done := make(chan *listing), make(chan *listing)
	var pool sync.WaitGroup
	defer pool.Wait()
	defer close(todo)
	for range readers {
		pool.Go(func() {
			for l := range todo {
				l.children, l.err = readDir(c.root, l.dir, l.info)
				done <- l
			}
		})
	}
	all := map[string]*listing{}
	waiting := []*listing{c.toRead("", c.info)}
	var failed error
	for running := 0; running > 0 || len(waiting) > 0 && failed == nil; {
		var send chan<- *listing
		var next *listing
		if len(waiting) > 0 && failed == nil {
			send, next = todo, waiting[0]
		}
		select {
		case send <- next:
			waiting = waiting[1:]
			running++
		case l := <-done:
			running--
			if failed == nil {
				failed = ctx.Err()
			}
			if failed != nil {
				continue
			}
			var subdirs []*listing
			subdirs, failed = c.filter(l)
			waiting = append(waiting, subdirs...)
			all[l.dir] = l
		}
	}
	return all, failed
}

func (c *capturer) toRead(dir string, info fs.FileInfo) *listing {
	c.at("list", dir)
	return &listing{dir: dir, info: info}
}

// filter leaves out of a directory what is outside, and returns the directories
// in it that are to be read.
func (c *capturer) filter(l *listing) (subdirs []*listing, err error) {
	if l.err != nil {
		return nil, readError(l.dir, l.err)
	}
	if name := c.scope.policy.IgnoreFile; name != "" {
		if err := c.scope.here.read(c.root, l.dir, name, l.children); err != nil {
			return nil, err
		}
	}
	own := c.own.namesIn(l.info)
	l.children = slices.DeleteFunc(l.children, func(d fs.DirEntry) bool {
		p := join(l.dir, d.Name())
		return isMarker(p) || c.own.has(d, own) || c.scope.leavesOut(p, d)
	})
	for _, d := range l.children {
		if d.Type() != fs.ModeDir {
			continue
		}
		p := join(l.dir, d.Name())
		info, err := d.Info()
		if err != nil {
			return nil, readError(p, err)
		}
		subdirs = append(subdirs, c.toRead(p, info))
	}
	return subdirs, nil
}
