// Package hostinfo tells how much CPU, memory and disk there is and how much of it is used: of the container, from its
// cgroup (v2, else v1), and of the machine where the cgroup doesn't say. Each figure names its source.
//
// Invariants: Read never waits. A figure that can't be had is 0 with the source "". CPU use is that since an earlier
// reading, which Window says how long ago it was.
//
//	r := hostinfo.New("/workspace")
//	s := r.Read()
//	fmt.Printf("%.1f %% of %.1f CPUs\n", s.CPUPercent, s.CPUs)
package hostinfo

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Source is where a figure comes from.
type Source string

// The sources.
const (
	Cgroup2 Source = "cgroup2"
	Cgroup1 Source = "cgroup1"
	Host    Source = "host"
	Statfs  Source = "statfs"
)

// Stats are figures at one time. Sizes are in bytes.
type Stats struct {
	Time time.Time

	CPUs       float64 // a limit may be a fraction
	CPUPercent float64 // of those CPUs, 0 to 100, over Window
	Window     time.Duration
	CPUTime    time.Duration // used since the cgroup or the machine began

	MemoryTotal, MemoryUsed uint64 // less what is only cached from files that nobody uses

	Disk                           string // a path on the filesystem that the next are about
	DiskTotal, DiskUsed, DiskAvail uint64

	CPUsFrom, CPUFrom, MemoryTotalFrom, MemoryUsedFrom, DiskFrom Source
}

// Reader reads figures. It is safe for concurrent use.
type Reader struct {
	root string // of the files it reads; "/" but in tests
	disk string
	cpus int // that the scheduler lets this process use
	at   cgroups

	mu   sync.Mutex // guards what follows; not held across reading
	old  reading
	last reading
}

// reading is how much CPU had been used at a time.
type reading struct {
	at   time.Time
	used time.Duration
}

// Windows of CPU use: one shorter than minWindow says nothing, since the kernel counts in steps; a reading is kept for
// later ones when it is keepAfter newer than the last that was.
const (
	minWindow = 200 * time.Millisecond
	keepAfter = 500 * time.Millisecond
)

// New makes a Reader that looks at the filesystem of disk. It takes a first reading of the CPU.
func New(disk string) *Reader { return newReader("/", disk, runtime.NumCPU()) }

func newReader(root, disk string, cpus int) *Reader {
	r := &Reader{root: root, disk: disk, cpus: cpus}
	r.at = findCgroups(root)
	used, _ := r.cpuTime()
	r.last = reading{time.Now(), used}
	r.old = r.last
	return r
}

// Watcher returns a Reader of the same figures that keeps readings of its own: its CPU use is that since its own last one.
func (r *Reader) Watcher() *Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Reader{root: r.root, disk: r.disk, cpus: r.cpus, at: r.at, old: r.old, last: r.last}
}

// Read returns how things stand now.
func (r *Reader) Read() Stats {
	s := Stats{Disk: r.disk}
	s.CPUs, s.CPUsFrom = r.cpuCount()
	s.CPUTime, s.CPUFrom = r.cpuTime()
	s.Time = time.Now()
	if s.CPUFrom != "" {
		r.percent(&s)
	}
	r.memory(&s)
	r.statfs(&s)
	return s
}

// percent fills in the use since the newest reading that is old enough.
func (r *Reader) percent(s *Stats) {
	r.mu.Lock()
	since := r.last
	if s.Time.Sub(since.at) < minWindow {
		since = r.old
	}
	if s.Time.Sub(r.last.at) >= keepAfter {
		r.old, r.last = r.last, reading{s.Time, s.CPUTime}
	}
	r.mu.Unlock()
	s.Window = s.Time.Sub(since.at)
	if s.Window <= 0 || s.CPUs <= 0 {
		return
	}
	s.CPUPercent = max(0, min(100, 100*float64(s.CPUTime-since.used)/float64(s.Window)/s.CPUs))
}

// read returns the text of a file below root; "" when it can't be read.
func (r *Reader) read(path string) string {
	text, err := os.ReadFile(filepath.Join(r.root, path))
	if err != nil {
		return ""
	}
	return string(text)
}
