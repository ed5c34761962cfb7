package proctree

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

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

// identity is what never changes about a process.
func (p Process) identity() Process { return Process{PID: p.PID, Start: p.Start} }

// Table is one look at all living processes but this one. Zombies are not among them. Its methods may be called from
// any goroutine.
type Table struct {
	Processes []Process // by ascending PID; not to be changed

	index    map[int]int // PID to place in Processes
	children func() map[int][]int

	mu       sync.Mutex
	newest   []Process // by descending Start
	read     int       // how many of newest have their marker in markers
	markers  map[int]string
	vanished bool        // somebody died before its environment could be read
	execing  bool        // somebody is replacing itself and has no environment yet
	stuck    *stuckExecs // shared by the looks of a Census
}

// maxChase bounds how often Look goes after processes that were started meanwhile.
const maxChase = 64

// Look reads the process table. What is started while it looks is looked at too, so that a process that forks and
// exits over and over doesn't slip through between two directory entries.
func Look() (*Table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	defer dir.Close()
	buf := make([]byte, 1024)
	last := lastPID(buf)
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	found := make(map[int]Process)
	self := os.Getpid()
	add := func(pid int) {
		if p, ok := readStat(pid, buf); ok && pid != self {
			found[pid] = p
		}
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			add(pid)
		}
	}
	for range maxChase {
		newest := lastPID(buf)
		if newest == last {
			break
		}
		for pid := last + 1; pid <= newest; pid++ { // nothing if the numbers have started over
			if leadsThreads(pid) {
				add(pid)
			}
		}
		last = newest
	}
	return newTable(found), nil
}

func newTable(found map[int]Process) *Table {
	t := &Table{
		Processes: make([]Process, 0, len(found)), index: make(map[int]int, len(found)), markers: make(map[int]string),
		stuck: new(stuckExecs),
	}
	for _, p := range found {
		t.Processes = append(t.Processes, p)
	}
	slices.SortFunc(t.Processes, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	for i, p := range t.Processes {
		t.index[p.PID] = i
	}
	t.newest = slices.Clone(t.Processes)
	slices.SortFunc(t.newest, func(a, b Process) int { return cmp.Compare(b.Start, a.Start) })
	t.children = sync.OnceValue(func() map[int][]int {
		children := make(map[int][]int)
		for _, p := range t.Processes {
			children[p.Parent] = append(children[p.Parent], p.PID)
		}
		return children
	})
	return t
}

// lastPID is the pid or thread id given out last: the fifth field of /proc/loadavg. 0 if there is none.
func lastPID(buf []byte) int {
	n, ok := readFile("/proc/loadavg", buf)
	if f := bytes.Fields(buf[:n]); ok && len(f) == 5 {
		pid, _ := strconv.Atoi(string(f[4]))
		return pid
	}
	return 0
}

// leadsThreads says whether pid is that of a process: /proc answers for the ids of other threads too, but doesn't
// list them.
func leadsThreads(pid int) bool {
	var status [1024]byte
	n, ok := readFile("/proc/"+strconv.Itoa(pid)+"/status", status[:])
	return ok && bytes.Contains(status[:n], []byte("\nTgid:\t"+strconv.Itoa(pid)+"\n"))
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
	children := t.children()
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
// without a marker, or whose environment may not be read, has none. match may be called in any order.
func (t *Table) Marked(since uint64, match func(marker string) bool) []int {
	t.readMarkers(since)
	var found []int
	for _, p := range t.newest {
		if p.Start < since {
			break
		}
		t.mu.Lock()
		marker, ok := t.markers[p.PID]
		t.mu.Unlock()
		if ok && match(marker) {
			found = append(found, p.PID)
		}
	}
	slices.Sort(found)
	return found
}

// readMarkers reads the markers that haven't been read. The lock is held while it does: others want the same. The newest
// processes come first: they are the likeliest to be gone soon.
func (t *Table) readMarkers(since uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; t.read < len(t.newest) && t.newest[t.read].Start >= since; t.read++ {
		p := t.newest[t.read]
		if m := entryIn(t.environ(p), MarkerEnv); m != nil {
			t.markers[p.PID] = string(m)
		}
	}
}

// environ reads the environment of a process, and waits for one that is in the middle of an exec. It is nil for one that
// may not be read, and for one that has none. The caller holds mu.
func (t *Table) environ(p Process) []byte {
	path := "/proc/" + strconv.Itoa(p.PID) + "/environ"
	patience := execPatience
	if t.stuck.has(p) {
		patience = 0
	}
	env, err := awaitExec(patience, func() ([]byte, error) {
		env, err := os.ReadFile(path)
		if err == nil && len(env) == 0 && inExec(p.PID) {
			err = errExec
		}
		return env, err
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		t.vanished = true
	case err == errExec:
		t.execing = true
		t.stuck.add(p)
	}
	return env
}

// An exec takes microseconds, but the machine may let the process wait in the middle of it. Only one that reads a
// file that doesn't come takes longer than this.
const execPatience = 3 * time.Second

var errExec = errors.New("in the middle of an exec")

// awaitExec calls read until it has another error than errExec, for as long as patience has it. Nothing tells of the end
// of an exec: this is the one thing that is looked for again and again.
func awaitExec(patience time.Duration, read func() ([]byte, error)) ([]byte, error) {
	for pause := 20 * time.Microsecond; ; pause *= 2 {
		env, err := read()
		if err != errExec || patience <= 0 {
			return env, err
		}
		pause = min(pause, patience, 10*time.Millisecond)
		time.Sleep(pause)
		patience -= pause
	}
}

// stuckExecs are those who were waited for in vain, so that nobody is twice.
type stuckExecs struct {
	mu  sync.Mutex
	who map[Process]bool
}

func (s *stuckExecs) has(p Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.who[p.identity()]
}

func (s *stuckExecs) add(p Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.who == nil {
		s.who = make(map[Process]bool)
	}
	s.who[p.identity()] = true
}

// quiet says whether every marker that was asked for could be read.
func (t *Table) quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.vanished && !t.execing
}

// inExec says whether a process whose environment was read, and was empty, will have one: it has memory, and either no
// place for an environment yet (env_end in proc_pid_stat(5)), or one that is not empty, and so has just come.
func inExec(pid int) bool {
	var buf [1024]byte
	n, ok := readFile("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	f := bytes.Fields(buf[max(0, bytes.LastIndexByte(buf[:n], ')')):n])
	const vsize, envStart, envEnd = 23 - 2, 50 - 2, 51 - 2 // the name, with its blanks, counts as the first
	return ok && len(f) > envEnd && string(f[vsize]) != "0" &&
		(string(f[envEnd]) == "0" || string(f[envStart]) != string(f[envEnd]))
}

// readStat reads /proc/PID/stat (proc_pid_stat(5)) with buf as scratch. It says false if the process is dead.
func readStat(pid int, buf []byte) (Process, bool) {
	n, ok := readFile("/proc/"+strconv.Itoa(pid)+"/stat", buf)
	if !ok {
		return Process{}, false
	}
	return parseStat(pid, buf[:n])
}

// readFile reads the beginning of a small file of /proc.
func readFile(path string, buf []byte) (n int, ok bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	n, err = unix.Read(fd, buf)
	return max(n, 0), err == nil && n > 0
}

// parseStat takes the fields from the state on: the name before it may hold blanks and parentheses.
func parseStat(pid int, stat []byte) (Process, bool) {
	end := bytes.LastIndex(stat, []byte(") "))
	if end < 0 || end+2 == len(stat) {
		return Process{}, false
	}
	rest := stat[end+2:]
	const parent, group, session, threads, start = 1, 2, 3, 17, 19 // places after the state
	state := rest[0]
	var n [start + 1]uint64
	field := -1
	for _, c := range rest {
		if c == ' ' || c == '\n' {
			if field++; field == start {
				break
			}
			continue
		}
		if i := field + 1; '0' <= c && c <= '9' {
			n[i] = n[i]*10 + uint64(c-'0')
		}
	}
	if field < start || state == 'X' {
		return Process{}, false
	}
	if state == 'Z' && n[threads] <= 1 { // a dead main thread makes no dead process while other threads run
		return Process{}, false
	}
	return Process{
		PID: pid, Parent: int(n[parent]), Group: int(n[group]), Session: int(n[session]), Start: n[start],
	}, true
}
