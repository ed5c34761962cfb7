package hostinfo

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// userHZ is the unit of /proc/stat, the same on all architectures that Go runs on (time(7)).
const userHZ = 100

// hostCPUTime sums up what all CPUs have done since the start, but idling, waiting for I/O and what was done for others
// (proc(5)); guests are counted in user and nice already.
func (r *Reader) hostCPUTime() (time.Duration, Source) {
	line, _, _ := strings.Cut(r.read("proc/stat"), "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, ""
	}
	var ticks uint64
	for _, i := range []int{1, 2, 3, 6, 7} { // user nice system (idle iowait) irq softirq (steal guest guest_nice)
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return 0, ""
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / userHZ), Host
}

// hostMemory returns the machine's memory in bytes.
func (r *Reader) hostMemory() (total, available uint64, ok bool) {
	for line := range strings.Lines(r.read("proc/meminfo")) {
		name, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			total = n << 10
		case "MemAvailable":
			available, ok = n<<10, true
		}
	}
	return total, min(available, total), ok && total > 0
}

// statfs fills in what the filesystem says of itself (statfs(2)).
func (r *Reader) statfs(s *Stats) {
	var fs unix.Statfs_t
	if err := unix.Statfs(r.disk, &fs); err != nil {
		return
	}
	size := uint64(fs.Bsize)
	s.DiskTotal, s.DiskUsed, s.DiskAvail = fs.Blocks*size, (fs.Blocks-fs.Bfree)*size, fs.Bavail*size
	s.DiskFrom = Statfs
}
