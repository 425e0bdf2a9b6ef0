//go:build unix

package checkpointdb

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestLiveMode: whatever the umask, nobody else can connect at any moment. A
// goroutine looks at the socket as often as it can.
func TestLiveMode(t *testing.T) {
	noLeak(t)
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(liveDir(t), "test.db")
	socket := LiveSocket(path)
	stop, stopped := make(chan bool), make(chan int)
	go func() {
		seen := 0
		defer func() { stopped <- seen }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			for name, want := range map[string]fs.FileMode{socket: fs.ModeSocket | 0o600, socket + ".tmp": fs.ModeDir | 0o700} {
				info, err := os.Lstat(name)
				switch {
				case errors.Is(err, fs.ErrNotExist):
				case err != nil || info.Mode() != want:
					t.Errorf("%s: %v, %v", name, info, err)
				default:
					seen++
				}
			}
		}
	}()
	for range 20 {
		s, err := Open(path, &Options{Live: &Live{}})
		must(t, err)
		must(t, s.Close())
	}
	close(stop)
	if seen := <-stopped; seen == 0 {
		t.Error("nobody looked in time")
	}
}
