package checkpointdb

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lockHolders returns the processes that hold bbolt's lock on a file, as far as
// the kernel tells: it leaves out those that this process may not see, such as
// the host's in a container, and some file systems number their files otherwise
// there.
func lockHolders(path string) (holders []lockHolder) {
	var stat syscall.Stat_t
	if syscall.Stat(path, &stat) != nil {
		return nil
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	dev := uint64(stat.Dev)
	major := dev>>8&0xfff | dev>>32&^0xfff
	minor := dev&0xff | dev>>12&^0xff
	file := fmt.Sprintf("%02x:%02x:%d", major, minor, stat.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 08:01:131085 0 EOF
		// Those that wait have an arrow before FLOCK.
		field := strings.Fields(line)
		if len(field) < 6 || field[1] != "FLOCK" || field[5] != file {
			continue
		}
		pid, err := strconv.Atoi(field[4])
		if err != nil || pid <= 0 {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		holders = append(holders, lockHolder{pid, strings.TrimSuffix(string(name), "\n")})
	}
	return holders
}
