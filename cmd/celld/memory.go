package main

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory tells the garbage collector to work harder before the daemon takes half of what the container has, unless
// GOMEMLIMIT says something else.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	cgroups, _ := os.ReadFile("/proc/self/cgroup") // without it there is no limit
	if limit := memoryLimit("/sys/fs/cgroup", string(cgroups)); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 2)
	}
}

// memoryLimit returns the memory that the cgroups allow, in bytes; [math.MaxInt64] if any amount. root is where cgroups
// are mounted and cgroups the text of /proc/self/cgroup (cgroups(7)). A limit of a parent holds as well.
func memoryLimit(root, cgroups string) int64 {
	limit := int64(math.MaxInt64)
	for line := range strings.SplitSeq(cgroups, "\n") {
		_, rest, _ := strings.Cut(line, ":")
		controllers, group, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		mount, file := root, "memory.max" // version 2
		if controllers != "" {
			mount, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		}
		if controllers != "" && controllers != "memory" {
			continue
		}
		for dir := path.Clean("/" + group); ; dir = path.Dir(dir) { // what isn't visible from here has no file
			text, err := os.ReadFile(filepath.Join(mount, dir, file))
			if n, nerr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && nerr == nil && n > 0 {
				limit = min(limit, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}
