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
	return killLeftovers(ctx, here)
}

func killLeftovers(ctx context.Context, here mark) (found int, err error) {
	buf := make([]byte, 1024)
	return killMarked(ctx, here, func(m mark) bool { // asked after the mark was read: its daemon was there before
		daemon, alive := readStat(m.pid, buf)
		if !alive {
			return !hidden(m.pid, buf)
		}
		return daemon.Start != m.start
	})
}

// hidden says whether there is a process with that pid that /proc doesn't show, as with hidepid=2 (proc(5)) a daemon whose
// memory nobody may look at isn't shown to its own user. Nobody knows whether it is a daemon: what may be its own is spared.
func hidden(pid int, buf []byte) bool {
	_, shown := readFile("/proc/"+strconv.Itoa(pid)+"/stat", buf)
	return !shown && unix.Kill(pid, 0) != unix.ESRCH
}

// KillOwn kills, at once, all processes that come from this daemon, whoever their parents are.
func KillOwn(ctx context.Context) error {
	here, err := ownMark()
	if err == nil {
		err = killOwn(ctx, here)
	}
	if err != nil {
		return fmt.Errorf("kill what is left: %w", err)
	}
	return nil
}

func killOwn(ctx context.Context, here mark) error {
	_, err := killMarked(ctx, here, func(m mark) bool { return m == here })
	return err
}

// daemon is the mark of the daemon that a process comes from, nil if it has none.
func (t *Table) daemon(p Process) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return entryIn(t.environ(p), DaemonEnv)
}

// killMarked kills the processes with a mark of this process's namespaces that satisfies match.
func killMarked(ctx context.Context, here mark, match func(mark) bool) (found int, err error) {
	pick := func(t *Table) []int {
		matches := make(map[mark]bool)
		var pids []int
		for _, p := range t.Processes {
			m, ok := parseMark(t.daemon(p))
			if !ok || m.pidNS != here.pidNS || m.timeNS != here.timeNS {
				continue
			}
			if _, known := matches[m]; !known {
				matches[m] = match(m)
			}
			if matches[m] {
				pids = append(pids, p.PID)
			}
		}
		ancestors := t.ancestors(os.Getppid())
		return slices.DeleteFunc(pids, func(pid int) bool { return ancestors[pid] })
	}
	table, err := Look()
	if err != nil {
		return 0, err
	}
	if found = len(pick(table)); found == 0 {
		return 0, nil
	}
	return found, Kill(ctx, 0, pick)
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
