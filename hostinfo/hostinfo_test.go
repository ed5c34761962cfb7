package hostinfo

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const meminfo = "MemTotal:       8388608 kB\nMemFree:          100000 kB\nMemAvailable:    6291456 kB\n"

// tree writes files below a root, by their paths.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const gib = 1 << 30

func TestFiguresComeFromTheCgroupWhereThereIsOne(t *testing.T) {
	const v2Mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
	host := map[string]string{"proc/meminfo": meminfo, "proc/stat": "cpu  100 50 50 9999 77 10 5 3 0 0\ncpu0 1 1 1 1\n"}
	for name, c := range map[string]struct {
		files                      map[string]string
		cpus                       float64
		cpuTime                    time.Duration
		total, used                uint64
		cpusFrom, cpuFrom, memFrom Source
		usedFrom                   Source
	}{
		"nothing but the machine": {nil, 4, 2150 * time.Millisecond, 8 * gib, 2 * gib, Host, Host, Host, Host},
		"v2 in a namespace of its own": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n", "sys/fs/cgroup/cpu.max": "150000 100000\n",
			"sys/fs/cgroup/cpu.stat": "usage_usec 2000000\nuser_usec 1\n", "sys/fs/cgroup/memory.max": "1073741824\n",
			"sys/fs/cgroup/memory.current": "536870912\n", "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 268435456\n",
		}, 1.5, 2 * time.Second, gib, gib / 4, Cgroup2, Cgroup2, Cgroup2, Cgroup2},
		"v2 without limits": {map[string]string{
			"proc/self/cgroup": "0::/box\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/box/cgroup.controllers": "cpu memory\n", "sys/fs/cgroup/box/cpu.max": "max 100000\n",
			"sys/fs/cgroup/box/cpu.stat": "usage_usec 3000000\n", "sys/fs/cgroup/box/memory.max": "max\n",
			"sys/fs/cgroup/box/memory.current": "1073741824\n", "sys/fs/cgroup/box/memory.stat": "inactive_file 0\n",
		}, 4, 3 * time.Second, 8 * gib, gib, Host, Cgroup2, Host, Cgroup2},
		"v2, the limits further out": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/a/b/cgroup.controllers": "cpu memory\n", "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
			"sys/fs/cgroup/a/b/cpu.stat": "usage_usec 1\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "1000\n",
			"sys/fs/cgroup/a/cpu.max": "50000 100000\n", "sys/fs/cgroup/a/memory.max": "2147483648\n", "sys/fs/cgroup/a/memory.current": "1073741824\n",
		}, 0.5, time.Microsecond, 2 * gib, gib, Cgroup2, Cgroup2, Cgroup2, Cgroup2},
		"v1 of a container that sees the machine's paths": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n",
			"proc/self/mountinfo":                        "40 30 0:27 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n41 30 0:28 /docker/x /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "536870912\n",
			"sys/fs/cgroup/memory/memory.stat":           "inactive_file 7\ntotal_inactive_file 268435456\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": "5000000000\n",
		}, 2, 5 * time.Second, gib, gib / 4, Cgroup1, Cgroup1, Cgroup1, Cgroup1},
		"v1 without limits, v2 beside it for other things": {map[string]string{
			"proc/self/cgroup": "4:memory:/box\n2:cpuacct:/\n1:cpu:/\n0::/\n",
			"proc/self/mountinfo": "40 30 0:27 / /c/memory rw - cgroup cgroup rw,memory\n41 30 0:28 / /c/cpu rw - cgroup cgroup rw,cpu\n" +
				"42 30 0:29 / /c/cpuacct rw - cgroup cgroup rw,cpuacct\n43 30 0:30 / /c/unified rw - cgroup2 cgroup2 rw\n",
			"c/memory/box/memory.limit_in_bytes": "9223372036854771712\n", "c/memory/box/memory.usage_in_bytes": "1073741824\n",
			"c/memory/memory.limit_in_bytes": "9223372036854771712\n", "c/memory/memory.usage_in_bytes": "3221225472\n",
			"c/cpu/cpu.cfs_quota_us": "-1\n", "c/cpu/cpu.cfs_period_us": "100000\n", "c/cpuacct/cpuacct.usage": "7000000000\n",
			"c/unified/cgroup.controllers": "\n", "c/unified/cpu.stat": "usage_usec 1\n",
		}, 4, 7 * time.Second, 8 * gib, gib, Host, Cgroup1, Host, Cgroup1},
		"a cgroup that can't be seen": {map[string]string{
			"proc/self/cgroup": "0::/../../x\n", "proc/self/mountinfo": v2Mount, "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
			"sys/fs/cgroup/cpu.stat": "usage_usec 9000000\n", "sys/fs/cgroup/memory.current": "2147483648\n", "sys/fs/cgroup/memory.max": "4294967296\n",
		}, 4, 9 * time.Second, 4 * gib, 2 * gib, Host, Cgroup2, Cgroup2, Cgroup2},
		"files that say nothing": {map[string]string{
			"proc/self/cgroup": "nonsense\n0::/\n", "proc/self/mountinfo": "x - y\n" + v2Mount, "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
			"sys/fs/cgroup/cpu.stat": "usage_usec\n", "sys/fs/cgroup/cpu.max": "\n", "sys/fs/cgroup/memory.current": "x\n",
		}, 4, 2150 * time.Millisecond, 8 * gib, 2 * gib, Host, Host, Host, Host},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{}
			for _, files := range []map[string]string{host, c.files} {
				for path, text := range files {
					all[path] = text
				}
			}
			s := newReader(tree(t, all), t.TempDir(), 4).Read()
			if s.CPUs != c.cpus || s.CPUTime != c.cpuTime || s.MemoryTotal != c.total || s.MemoryUsed != c.used {
				t.Errorf("%v CPUs, %v used, %d of %d bytes", s.CPUs, s.CPUTime, s.MemoryUsed, s.MemoryTotal)
			}
			if s.CPUsFrom != c.cpusFrom || s.CPUFrom != c.cpuFrom || s.MemoryTotalFrom != c.memFrom || s.MemoryUsedFrom != c.usedFrom {
				t.Errorf("from %v, %v, %v, %v", s.CPUsFrom, s.CPUFrom, s.MemoryTotalFrom, s.MemoryUsedFrom)
			}
			if s.DiskTotal == 0 || s.DiskUsed > s.DiskTotal || s.DiskAvail > s.DiskTotal || s.DiskFrom != Statfs {
				t.Errorf("disk: %+v", s)
			}
		})
	}
}

func TestNothingToReadIsSaid(t *testing.T) {
	s := newReader(t.TempDir(), "/nowhere", 2).Read()
	if s.CPUs != 2 || s.CPUFrom != "" || s.MemoryTotalFrom != "" || s.DiskFrom != "" || s.MemoryTotal != 0 || s.CPUPercent != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCPUUseIsThatSinceAnEarlierReading moves the clock and the counter.
func TestCPUUseIsThatSinceAnEarlierReading(t *testing.T) {
	root := tree(t, map[string]string{"proc/stat": "cpu 0 0 0 0 0 0 0 0\n"})
	use := func(ticks string) {
		if err := os.WriteFile(filepath.Join(root, "proc/stat"), []byte("cpu "+ticks+" 0 0 0 0 0 0 0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newReader(root, "/", 2)
		if s := r.Read(); s.CPUPercent != 0 || s.Window != 0 {
			t.Errorf("at once: %v over %v", s.CPUPercent, s.Window)
		}
		check := func(want float64, window time.Duration) {
			t.Helper()
			if s := r.Read(); math.Abs(s.CPUPercent-want) > 0.01 || s.Window != window {
				t.Errorf("%v over %v, want %v over %v", s.CPUPercent, s.Window, want, window)
			}
		}
		time.Sleep(time.Second)
		use("100") // one of two CPUs
		check(50, time.Second)
		check(50, time.Second) // asked again at once, the window is the one before
		time.Sleep(100 * time.Millisecond)
		check(100*1/1.1/2, 1100*time.Millisecond)
		time.Sleep(150 * time.Millisecond)
		check(0, 250*time.Millisecond)
		time.Sleep(750 * time.Millisecond)
		use("500") // more than there is
		check(100, time.Second)
		use("0") // never less than nothing
		time.Sleep(time.Second)
		check(0, time.Second)
		w := r.Watcher()
		for n, ticks := range []string{"50", "150", "150"} {
			time.Sleep(time.Second)
			use(ticks)
			if s := w.Read(); math.Abs(s.CPUPercent-[]float64{25, 50, 0}[n]) > 0.01 || s.Window != time.Second {
				t.Errorf("watcher: %v over %v", s.CPUPercent, s.Window)
			}
		}
	})
}

// TestThisMachine checks the figures of the real machine for sense.
func TestThisMachine(t *testing.T) {
	s := New(".").Read()
	if s.CPUs <= 0 || s.CPUs > float64(runtime.NumCPU()) || s.CPUTime <= 0 || s.CPUFrom == "" {
		t.Errorf("CPU: %+v", s)
	}
	if s.MemoryTotal < 64<<20 || s.MemoryUsed == 0 || s.MemoryUsed > s.MemoryTotal || s.MemoryUsedFrom == "" {
		t.Errorf("memory: %+v", s)
	}
	if s.DiskTotal == 0 {
		t.Errorf("disk: %+v", s)
	}
}

func FuzzFiles(f *testing.F) {
	f.Add("0::/a/b\n", "30 20 0:26 / /c rw - cgroup2 cgroup2 rw\n", "cpu 1 2 3 4 5 6 7 8\n", meminfo)
	f.Add("4:memory:/docker/x\n", "40 30 0:27 /docker/x /m ro - cgroup cgroup rw,memory\n", "", "MemTotal: x kB\n")
	f.Fuzz(func(t *testing.T, mine, mounts, stat, mem string) {
		root := tree(t, map[string]string{"proc/self/cgroup": mine, "proc/self/mountinfo": mounts, "proc/stat": stat, "proc/meminfo": mem})
		s := newReader(root, root, 1).Read()
		if s.CPUPercent < 0 || s.CPUPercent > 100 || s.MemoryUsed > s.MemoryTotal && s.MemoryUsedFrom == Host {
			t.Errorf("%+v", s)
		}
		for _, dirs := range [][]string{newReader(root, root, 1).at.v2, newReader(root, root, 1).at.memory} {
			for _, dir := range dirs {
				if strings.Contains(dir, "..") && !strings.Contains(mounts, "..") {
					t.Errorf("%s from %q", dir, mine)
				}
			}
		}
	})
}
