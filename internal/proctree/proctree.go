// Package proctree starts processes, learns how they ended and ends them with everything they started.
//
// Every child of the daemon is started through [Start]. The child leads a session and a process group of its own,
// starts with default signal dispositions and an empty signal mask, and is killed by the kernel when the daemon
// dies. A goroutine of its own waits for it on a pidfd through the runtime's poller, so that waiting costs no thread.
//
// # Invariants
//
//   - A signal never goes to a reused pid. The leader is reaped and marked as retired under one lock, and signalled
//     only under that lock while it is not retired. Everybody else is signalled through a pidfd whose start time was
//     compared after it was opened.
//   - The status of a child is taken by its own [Tree] and nobody else: [ReapOrphans] runs on the main thread, which
//     never forks, and looks at that thread's children only. Orphans are handed to exactly that thread.
//   - A process that forks while its tree is being killed is caught: members are stopped before they are killed, and
//     the search is repeated until it finds nobody. See [Kill].
//   - Nothing polls: deaths are waited for on pidfds. One thing alone tells nobody of its end, an exec: whoever is in the
//     middle of one has no environment to be recognised by, and is looked at again until it has.
//
// # Who belongs to a tree
//
// The leader; every process in the leader's session; every process that carries the tree's marker in its
// environment, whatever session it has moved to; and every descendant of one of these. The one that gets away is a
// process that has done all of this before anybody looked: left the session, lost its parents and cleared its
// environment.
//
// # Threads
//
// The kernel ends a child when the thread that forked it ends, not the process. The Go runtime ends a thread only if
// a goroutine exits while locked to it: nobody in this process may do that.
//
//	tree, err := proctree.Start(proctree.Spec{Path: "/bin/bash", Argv: []string{"bash", "-c", "sleep 9 & wait"}, Marker: id})
//	…
//	err = tree.Kill(ctx, 3*time.Second)
//	<-tree.Done()
//	fmt.Println(tree.Status().Code) // 143
package proctree

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MarkerEnv is the environment variable that carries a tree's marker.
const MarkerEnv = "CELLD_EXECUTION_ID"

// Spec says what to start.
type Spec struct {
	Path       string              // absolute, or relative to Dir; it is not looked up in a PATH
	Argv       []string            // with argv[0]
	Env        []string            // the complete environment; entries called MarkerEnv are left out
	Dir        string              // working directory; empty: the daemon's
	Files      []*os.File          // the child's descriptors 0, 1, 2, …; nil is /dev/null. They stay the caller's
	Credential *syscall.Credential // nil: as the daemon
	Marker     string              // goes into the environment as MarkerEnv; empty: none
	TTY        bool                // Files[0] becomes the controlling terminal
	Limits     []Limit             // hold from the first instruction of the program on
	OOMScore   *int                // oom_score_adj, set as soon as it runs; nil: the daemon's; see ChildOOMScore
	Census     *Census             // shared by trees that may be killed at the same time; nil: one of its own
}

// Limit is a resource limit (setrlimit(2)).
type Limit struct {
	Resource   int // RLIMIT_…
	Soft, Hard uint64
}

// Status is how a process ended.
type Status struct {
	Code       int            // 0 to 255, as a shell has it: 128+n for signal n. -1 if somebody else took the status
	Signal     syscall.Signal // what ended it; 0 if it exited
	UserTime   time.Duration
	SystemTime time.Duration
	MaxRSS     int64 // bytes
}

// Tree is a started process and all it starts. Its methods may be called from any goroutine.
type Tree struct {
	pid    int
	marker string
	census *Census
	born   uint64 // clock ticks since boot, not after the fork
	done   chan struct{}

	mu      sync.Mutex
	retired bool   // reaped: pid may be somebody else's
	died    uint64 // clock ticks since boot, not before the leader was reaped
	status  Status
	extinct bool // nobody is left
}

// Start starts spec. The error wraps a [syscall.Errno] that errors.Is can test: ENOENT, EACCES, ENOEXEC, E2BIG, and
// EPERM or EINVAL for a Credential that may not be taken. Like exec(2) it does not say whether Path or its
// interpreter is missing; a bad Dir is an [os.PathError] with Op "chdir".
func Start(spec Spec) (*Tree, error) {
	files := make([]uintptr, len(spec.Files))
	var null *os.File
	for i, f := range spec.Files {
		if f == nil {
			if null == nil {
				var err error
				if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
					return nil, err
				}
				defer null.Close()
			}
			f = null
		}
		files[i] = f.Fd()
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   environ(spec.Env, spec.Marker),
		Files: files,
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    spec.TTY,
			Pdeathsig:  syscall.SIGKILL,
			Credential: spec.Credential,
			PidFD:      &pidfd,
			Ptrace:     len(spec.Limits) > 0,
		},
	}
	t := &Tree{marker: spec.Marker, census: spec.Census, born: bootTicks(), done: make(chan struct{})}
	if t.census == nil {
		t.census = new(Census)
	}
	pid, err := fork(spec.Path, spec.Argv, attr, spec.Limits)
	runtime.KeepAlive(spec.Files)
	if err != nil {
		return nil, startError(spec, err)
	}
	t.pid = pid
	if spec.OOMScore != nil {
		setOOMScoreAdj(pid, *spec.OOMScore) // the pid is the child's until wait reaps it
	}
	go t.wait(pidfd)
	return t, nil
}

// fork forks with an empty signal mask: the child gets the mask of the thread that forks, and that one has what
// the daemon was started with.
func fork(path string, argv []string, attr *syscall.ProcAttr, limits []Limit) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, new(unix.Sigset_t), nil); err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil || len(limits) == 0 {
		return pid, err
	}
	if alive, err := limit(pid, limits); err != nil {
		if alive {
			unix.Kill(pid, unix.SIGKILL)
			unix.Wait4(pid, nil, unix.WALL, nil)
		}
		unix.Close(*attr.Sys.PidFD)
		return 0, err
	}
	return pid, nil
}

// limit sets limits on a child that is traced by this thread and stops at its exec, and lets it go. Set on this side
// of the exec they would bind the exec itself, and set on a running program they would come late. alive says whether the
// child is still there to be waited for.
func limit(pid int, limits []Limit) (alive bool, err error) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, os.NewSyscallError("wait4", err)
		}
		if !ws.Stopped() {
			return false, errors.New("killed before it could be limited")
		}
		break
	}
	for _, l := range limits {
		if err := unix.Prlimit(pid, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return true, os.NewSyscallError("prlimit", err)
		}
	}
	return true, os.NewSyscallError("ptrace", unix.PtraceDetach(pid))
}

func startError(spec Spec, err error) error {
	if spec.Dir != "" && !errors.Is(err, unix.E2BIG) {
		if fi, serr := os.Stat(spec.Dir); serr != nil {
			return &os.PathError{Op: "chdir", Path: spec.Dir, Err: errors.Unwrap(serr)}
		} else if !fi.IsDir() {
			return &os.PathError{Op: "chdir", Path: spec.Dir, Err: unix.ENOTDIR}
		}
	}
	return &os.PathError{Op: "exec", Path: spec.Path, Err: err}
}

// environ is env with the marker as its only entry called MarkerEnv.
func environ(env []string, marker string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, MarkerEnv+"=") {
			out = append(out, e)
		}
	}
	if marker != "" {
		out = append(out, MarkerEnv+"="+marker)
	}
	return out
}

// wait reaps the leader as soon as it has died. pidfd is closed.
func (t *Tree) wait(pidfd int) {
	if !t.waitPidfd(pidfd) {
		for { // no pidfds here: a thread has to wait
			err := unix.Waitid(unix.P_PID, t.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if err != unix.EINTR && t.reap() {
				break
			}
		}
	}
	close(t.done)
}

func (t *Tree) waitPidfd(pidfd int) bool {
	if pidfd < 0 {
		return false
	}
	f, err := pollable(pidfd)
	if err != nil {
		return false
	}
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	return rc.Read(func(uintptr) bool { return t.reap() }) == nil
}

// pollable makes a file of a descriptor whose readiness the runtime's poller reports. The descriptor is taken over,
// also on an error.
func pollable(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// reap takes the leader's status if it has died, and says whether the leader is gone.
func (t *Tree) reap() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retired {
		return true
	}
	var ws unix.WaitStatus
	var ru unix.Rusage
	for {
		pid, err := unix.Wait4(t.pid, &ws, unix.WNOHANG|unix.WALL, &ru)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD: reaped by somebody who had no right to
			t.status = Status{Code: -1}
		case pid == 0:
			return false
		default:
			t.status = statusOf(ws, ru)
		}
		t.retired = true
		t.died = bootTicks()
		return true
	}
}

func statusOf(ws unix.WaitStatus, ru unix.Rusage) Status {
	s := Status{
		UserTime:   time.Duration(ru.Utime.Nano()),
		SystemTime: time.Duration(ru.Stime.Nano()),
		MaxRSS:     ru.Maxrss * 1024,
	}
	if ws.Signaled() {
		s.Signal = ws.Signal()
		s.Code = 128 + int(s.Signal)
	} else {
		s.Code = ws.ExitStatus()
	}
	return s
}

// PID is the leader's process id, also after it has ended.
func (t *Tree) PID() int { return t.pid }

// Done is closed when the leader has been reaped. Others of the tree may live on.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Status is how the leader ended. It is valid once Done is closed.
func (t *Tree) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// Signal sends sig to the leader alone. Once that has ended the error is [os.ErrProcessDone].
func (t *Tree) Signal(sig syscall.Signal) error { return t.signal(t.pid, sig) }

// SignalGroup sends sig to the leader's process group. Once the leader has ended the error is [os.ErrProcessDone],
// and what is left of the tree can be reached by Members and Kill.
func (t *Tree) SignalGroup(sig syscall.Signal) error { return t.signal(-t.pid, sig) }

func (t *Tree) signal(target int, sig syscall.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retired {
		return os.ErrProcessDone
	}
	if err := unix.Kill(target, sig); err != nil {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// ticksPerSecond is the unit of start times in /proc, the same on every architecture Go runs on.
const ticksPerSecond = 100

// bootTicks is the time since boot in the unit and with the rounding of start times in /proc.
func bootTicks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Sec)*ticksPerSecond + uint64(ts.Nsec)/(1e9/ticksPerSecond)
}
