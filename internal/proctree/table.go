package proctree

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Process is one living process as /proc shows it.
type Process struct {
	PID     int
	Parent  int
	Group   int
	Session int
	Start   uint64 // clock ticks since boot; with PID it names the process for good
}

// Table is one look at all living processes but this one. Zombies are not among them. It is not safe for
// concurrent use.
type Table struct {
	Processes []Process // by ascending PID

	index map[int]int // PID to place in Processes
}

// Look reads the process table.
func Look() (*Table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	t := &Table{index: make(map[int]int)}
	self := os.Getpid()
	buf := make([]byte, 1024)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		if p, ok := readStat(pid, buf); ok {
			t.Processes = append(t.Processes, p)
		}
	}
	slices.SortFunc(t.Processes, func(a, b Process) int { return a.PID - b.PID })
	for i, p := range t.Processes {
		t.index[p.PID] = i
	}
	return t, nil
}

// Process returns the process with that pid.
func (t *Table) Process(pid int) (Process, bool) {
	i, ok := t.index[pid]
	if !ok {
		return Process{}, false
	}
	return t.Processes[i], true
}

// Descendants returns the living descendants of the processes pids, without pids themselves unless one descends from
// another. The chain breaks where a process in between has died.
func (t *Table) Descendants(pids ...int) []int {
	children := make(map[int][]int)
	for _, p := range t.Processes {
		children[p.Parent] = append(children[p.Parent], p.PID)
	}
	var found []int
	seen := make(map[int]bool)
	for queue := slices.Clone(pids); len(queue) > 0; queue = queue[1:] {
		for _, pid := range children[queue[0]] {
			if !seen[pid] {
				seen[pid] = true
				found = append(found, pid)
				queue = append(queue, pid)
			}
		}
	}
	return found
}

// Marked returns the processes whose marker satisfies match and that started at clock tick since or later. A process
// without a marker, or whose environment may not be read, has none.
func (t *Table) Marked(since uint64, match func(marker string) bool) []int {
	var found []int
	for _, p := range t.Processes {
		if p.Start < since {
			continue
		}
		if m, ok := markerOf(p.PID); ok && match(m) {
			found = append(found, p.PID)
		}
	}
	return found
}

// markerOf reads the marker from a process's environment as it was at its last exec.
func markerOf(pid int) (string, bool) {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return "", false
	}
	for len(env) > 0 {
		entry, rest, _ := bytes.Cut(env, []byte{0})
		if m, ok := bytes.CutPrefix(entry, []byte(MarkerEnv+"=")); ok {
			return string(m), true
		}
		env = rest
	}
	return "", false
}

// readStat reads /proc/PID/stat (proc_pid_stat(5)) with buf as scratch. It says false if the process is dead.
func readStat(pid int, buf []byte) (Process, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Process{}, false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil || n <= 0 {
		return Process{}, false
	}
	return parseStat(pid, buf[:n])
}

// parseStat takes the fields from the state on: the name before it may hold blanks and parentheses.
func parseStat(pid int, stat []byte) (Process, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return Process{}, false
	}
	f := bytes.Fields(stat[i+1:])
	if len(f) < 20 {
		return Process{}, false
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(string(f[i]))
		return n
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return Process{}, false
	}
	switch f[0][0] {
	case 'X':
		return Process{}, false
	case 'Z': // a dead main thread makes no dead process while other threads run
		if number(17) <= 1 {
			return Process{}, false
		}
	}
	return Process{PID: pid, Parent: number(1), Group: number(2), Session: number(3), Start: start}, true
}
