package hostinfo

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroups are this process's cgroups, as paths of folders, the innermost first, then those around it as far as they can
// be seen. Without a hierarchy there is none.
type cgroups struct {
	v2                   []string
	memory, cpu, cpuacct []string // v1
}

// findCgroups looks into /proc/self/cgroup and /proc/self/mountinfo (cgroups(7), proc(5)).
func findCgroups(root string) cgroups {
	var c cgroups
	mine, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	paths := map[string]string{} // by controller; "" is v2
	for line := range strings.Lines(string(mine)) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			paths[controller] = fields[2]
		}
	}
	mounts, _ := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(line, " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(rest) < 3 {
			continue
		}
		from, at := fields[3], fields[4]
		switch rest[0] {
		case "cgroup2":
			if mine, ok := paths[""]; ok {
				c.v2 = levels(mine, from, at)
			}
		case "cgroup":
			for option := range strings.SplitSeq(rest[2], ",") {
				mine, ok := paths[option]
				if !ok {
					continue
				}
				switch option {
				case "memory":
					c.memory = levels(mine, from, at)
				case "cpu":
					c.cpu = levels(mine, from, at)
				case "cpuacct":
					c.cpuacct = levels(mine, from, at)
				}
			}
		}
	}
	return c
}

// levels are the folders of cgroup mine and of those around it, where the cgroup from is mounted at a folder. A cgroup that
// isn't below from can't be seen: that of the mount itself then is the nearest.
func levels(mine, from, at string) []string {
	inside, ok := strings.CutPrefix(mine, strings.TrimSuffix(from, "/"))
	if !ok || inside != "" && inside[0] != '/' || strings.Contains(inside, "/..") {
		inside = "/"
	}
	var all []string
	for dir := path.Clean("/" + inside); ; dir = path.Dir(dir) {
		all = append(all, path.Join(at, dir))
		if dir == "/" {
			return all
		}
	}
}

// cpuCount is how many CPUs there are to use: what the scheduler allows, or the smallest quota if that is less.
func (r *Reader) cpuCount() (float64, Source) {
	n, from := float64(r.cpus), Host
	limit := func(quota, period string, source Source) {
		q, err1 := strconv.ParseFloat(quota, 64) // "max" and -1 are none
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && q > 0 && p > 0 && q/p < n {
			n, from = q/p, source
		}
	}
	for _, dir := range r.at.v2 {
		if f := strings.Fields(r.read(dir + "/cpu.max")); len(f) == 2 {
			limit(f[0], f[1], Cgroup2)
		}
	}
	for _, dir := range r.at.cpu {
		limit(strings.TrimSpace(r.read(dir+"/cpu.cfs_quota_us")), strings.TrimSpace(r.read(dir+"/cpu.cfs_period_us")), Cgroup1)
	}
	return n, from
}

// cpuTime is the CPU time that has been used: by the cgroup, else by the machine.
func (r *Reader) cpuTime() (time.Duration, Source) {
	if len(r.at.v2) > 0 && r.has(r.at.v2[0], "cpu") {
		if us, ok := keyed(r.read(r.at.v2[0]+"/cpu.stat"), "usage_usec"); ok {
			return time.Duration(us) * time.Microsecond, Cgroup2
		}
	}
	if len(r.at.cpuacct) > 0 {
		if ns, ok := number(r.read(r.at.cpuacct[0] + "/cpuacct.usage")); ok {
			return time.Duration(ns), Cgroup1
		}
	}
	return r.hostCPUTime()
}

// has says that the hierarchy of v2 has a controller. In a hybrid set-up v1 has it, and what v2 tells there is about other
// processes or about none.
func (r *Reader) has(dir, controller string) bool {
	for _, name := range strings.Fields(r.read(dir + "/cgroup.controllers")) {
		if name == controller {
			return true
		}
	}
	return false
}

// memory fills in the tightest limit that holds for this process, and what is used of that.
func (r *Reader) memory(s *Stats) {
	total, available, ok := r.hostMemory()
	if ok {
		s.MemoryTotal, s.MemoryTotalFrom = total, Host
		s.MemoryUsed, s.MemoryUsedFrom = total-available, Host
	}
	for _, v := range []struct {
		dirs                   []string
		limit, usage, inactive string
		source                 Source
	}{
		{r.at.v2, "/memory.max", "/memory.current", "inactive_file", Cgroup2},
		{r.at.memory, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file", Cgroup1},
	} {
		found := false
		for _, dir := range v.dirs {
			used, ok := number(r.read(dir + v.usage))
			if !ok {
				continue // the root of v2, or a part of the tree without the controller
			}
			cached, _ := keyed(r.read(dir+"/memory.stat"), v.inactive)
			used -= min(used, cached)
			limit, limited := number(r.read(dir + v.limit))
			limited = limited && limit > 0 && (s.MemoryTotal == 0 || limit < s.MemoryTotal) // v1 has a huge number for none
			if limited {
				s.MemoryTotal, s.MemoryTotalFrom = limit, v.source
			}
			if limited || !found && (v.source == Cgroup2 || dir != v.dirs[len(v.dirs)-1]) { // the root of v1 is the machine's
				s.MemoryUsed, s.MemoryUsedFrom = used, v.source
			}
			found = true
		}
		if found {
			return
		}
	}
}

// number reads a file that holds one number.
func number(text string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return n, err == nil
}

// keyed reads a number out of lines of a key and a number.
func keyed(text, key string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, " "); ok && name == key {
			return number(value)
		}
	}
	return 0, false
}
