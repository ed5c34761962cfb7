package proctree

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// oomDistance is how much likelier than the daemon a child is to be killed when memory runs out: half of all memory
// (proc_pid_oom_score_adj(5)).
const oomDistance = 500

// ChildOOMScore is the oom_score_adj that makes children be killed for want of memory before this process is. That is
// more than its own: to lower its own takes a privilege, and what a child starts in the moment before it gets its score
// would have the low one for good.
func ChildOOMScore() (int, error) {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, fmt.Errorf("choose children's oom score: %w", err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("choose children's oom score: %w", err)
	}
	return min(1000, own+oomDistance), nil
}

// setOOMScoreAdj gives a process a value, and what it has forked before it got it. It is best effort: where it fails,
// memory is short for everybody alike.
func setOOMScoreAdj(pid, value int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, strconv.AppendInt(nil, int64(value), 10))
	unix.Close(fd)
	var buf [512]byte
	name := strconv.Itoa(pid)
	n, _ := readFile("/proc/"+name+"/task/"+name+"/children", buf[:])
	for _, child := range strings.Fields(string(buf[:n])) {
		if pid, err := strconv.Atoi(child); err == nil {
			setOOMScoreAdj(pid, value)
		}
	}
}
