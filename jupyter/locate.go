package jupyter

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Installation is a Jupyter Server on this machine.
type Installation struct {
	Server string // the jupyter-server script
	Python string // the interpreter it belongs to
}

// Locate looks for jupyter-server in prefix/python/bin and then in the PATH of env. The error wraps [ErrUnavailable]
// and says where it looked.
func Locate(prefix string, env []string) (Installation, error) {
	var dirs []string
	if prefix != "" {
		dirs = append(dirs, filepath.Join(prefix, "python", "bin"))
	}
	for _, e := range env {
		if list, ok := strings.CutPrefix(e, "PATH="); ok {
			dirs = append(dirs, filepath.SplitList(list)...)
		}
	}
	for _, dir := range dirs {
		server := filepath.Join(dir, "jupyter-server")
		if python, ok := interpreter(server); ok {
			return Installation{Server: server, Python: python}, nil
		}
	}
	where := "PATH"
	if prefix != "" {
		where = filepath.Join(prefix, "python", "bin") + " or on PATH"
	}
	return Installation{}, fmt.Errorf("%w: there is no jupyter-server in %s (make setup installs one)", ErrUnavailable, where)
}

// interpreter reads the first line of a script that pip wrote.
func interpreter(script string) (string, bool) {
	f, err := os.Open(script)
	if err != nil {
		return "", false
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 512)).ReadString('\n')
	if err != nil {
		return "", false
	}
	python, ok := strings.CutPrefix(strings.TrimSpace(line), "#!")
	if !ok || !strings.HasPrefix(filepath.Base(python), "python") {
		return "", false
	}
	return python, filepath.IsAbs(python)
}

// ticksAt is a time of ours on the clock of process start times, in hundredths of a second since boot. It is a tick
// early, since both clocks round down.
func ticksAt(at time.Time) uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	const tick = int64(10 * time.Millisecond)
	return uint64(max(0, (now.Nano()-int64(time.Since(at)))/tick-1))
}

// activity tells how much processor time a process of ours has used, in ticks, and whether it runs, waits for a processor or
// for a disk right now (proc_pid_stat(5)).
func activity(pid int) (ticks uint64, running bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // our own process: no parenthesis in its name
	fields := strings.Fields(rest)                // from the third on
	if len(fields) < 13 {
		return 0, false
	}
	for _, text := range fields[11:13] { // utime, stime
		n, _ := strconv.ParseUint(text, 10, 64) // it is a number
		ticks += n
	}
	return ticks, fields[0] == "R" || fields[0] == "D"
}
