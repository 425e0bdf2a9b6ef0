package checkpointdb

import (
	"fmt"
	"os"
	"strings"
)

// inUse is the error of a file whose lock somebody else holds.
func (s *Store) inUse() error {
	return &Error{Code: ErrInUse, Message: fmt.Sprintf("%s is in use%s (waited %s)", s.path, byWhom(lockHolders(s.path)), s.opts.LockTimeout)}
}

// lockHolder is a process that has a lock on a file.
type lockHolder struct {
	pid  int
	name string // as the process calls itself; anything can be in it
}

// byWhom says who uses a file, as far as the system tells.
func byWhom(holders []lockHolder) string {
	text := ": another process, or another store in this one, has it open"
	var others []string
	for _, h := range holders {
		if h.pid == os.Getpid() {
			text = " by another store in this process"
		} else {
			others = append(others, fmt.Sprintf("%d (%q)", h.pid, h.name))
		}
	}
	switch len(others) {
	case 0:
		return text
	case 1:
		return " by another process, " + others[0]
	}
	return " by other processes, " + strings.Join(others, ", ")
}
