package proctree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// DaemonEnv is the environment variable that tells which daemon a process comes from; its value is [DaemonMark].
const DaemonEnv = "CELLD_DAEMON"

// mark names a daemon for good, as long as the machine is up: pids and start times mean something within their
// namespaces only.
type mark struct {
	pidNS, timeNS uint64 // inodes; 0 where there are no such namespaces
	pid           int
	start         uint64
}

// DaemonMark is what this process gives all its children as DaemonEnv, so that [KillLeftovers] of a later one can tell
// that they are left over. It is the same after an exec.
func DaemonMark() (string, error) {
	m, err := ownMark()
	if err != nil {
		return "", fmt.Errorf("mark what is started: %w", err)
	}
	return m.String(), nil
}

func ownMark() (mark, error) {
	self, ok := readStat(os.Getpid(), make([]byte, 1024))
	if !ok {
		return mark{}, fmt.Errorf("no process %d in /proc", os.Getpid())
	}
	m := mark{pid: self.PID, start: self.Start}
	for path, inode := range map[string]*uint64{"/proc/self/ns/pid": &m.pidNS, "/proc/self/ns/time": &m.timeNS} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil {
			*inode = st.Ino
		}
	}
	return m, nil
}

func (m mark) String() string { return fmt.Sprintf("%d.%d.%d.%d", m.pidNS, m.timeNS, m.pid, m.start) }

func parseMark(text []byte) (m mark, ok bool) {
	parts := bytes.Split(text, []byte("."))
	if len(parts) != 4 {
		return mark{}, false
	}
	var n [4]uint64
	for i, p := range parts {
		var err error
		if n[i], err = strconv.ParseUint(string(p), 10, 63); err != nil {
			return mark{}, false
		}
	}
	return mark{n[0], n[1], int(n[2]), n[3]}, true
}

// KillLeftovers kills, at once, all processes that come from a daemon that has died, and returns how many it found
// first. A daemon counts as dead if its mark is of these namespaces and no living process has its pid and start time; so
// whatever a living daemon has started is safe, whether it shares anything with this one or not. Processes whose
// environment may not be read, this process and those it descends from are spared.
func KillLeftovers(ctx context.Context) (found int, err error) {
	here, err := ownMark()
	if err != nil {
		return 0, fmt.Errorf("kill leftovers: %w", err)
	}
	table, err := Look()
	if err != nil {
		return 0, fmt.Errorf("kill leftovers: %w", err)
	}
	if found = len(leftovers(table, here)); found == 0 {
		return 0, nil
	}
	if err := Kill(ctx, 0, func(t *Table) []int { return leftovers(t, here) }); err != nil {
		return found, fmt.Errorf("kill leftovers: %w", err)
	}
	return found, nil
}

func leftovers(t *Table, here mark) []int {
	buf := make([]byte, 1024)
	dead := make(map[mark]bool)
	var found []int
	for _, p := range t.Processes {
		env, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/environ")
		if err != nil {
			continue
		}
		m, ok := parseMark(entryIn(env, DaemonEnv))
		if !ok || m.pidNS != here.pidNS || m.timeNS != here.timeNS {
			continue
		}
		if _, known := dead[m]; !known { // looked up after the environment was read: its daemon was there before
			daemon, alive := readStat(m.pid, buf)
			dead[m] = !alive || daemon.Start != m.start
		}
		if dead[m] {
			found = append(found, p.PID)
		}
	}
	ancestors := t.ancestors(os.Getppid())
	return slices.DeleteFunc(found, func(pid int) bool { return ancestors[pid] })
}

// ancestors returns pid and those it descends from.
func (t *Table) ancestors(pid int) map[int]bool {
	all := make(map[int]bool)
	for pid > 0 && !all[pid] {
		all[pid] = true
		p, _ := t.Process(pid)
		pid = p.Parent
	}
	return all
}

// entryIn returns the value of a variable in an environment as /proc has it, nil if it isn't there.
func entryIn(env []byte, name string) []byte {
	for len(env) > 0 {
		entry, rest, _ := bytes.Cut(env, []byte{0})
		if n, value, ok := bytes.Cut(entry, []byte("=")); ok && string(n) == name {
			return value
		}
		env = rest
	}
	return nil
}
