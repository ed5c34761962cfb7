package shellrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// shell is one bash process. It reads its script from a pipe that holds one write at a time, so that the kernel says
// when it has read all there is: the pipe can be written to again.
type shell struct {
	tree *proctree.Tree
	ctl  *os.File // its script
	raw  syscall.RawConn
	snap int    // descriptor that reads what it says about its state; never at an end
	jobs []int  // its children when the last run ended
	fds  [3]use // what its descriptors 0, 1 and 2 are between runs

	pipes  [errput + 1]*pump // that it writes to: those of output and errput
	bound  bool              // its descriptors are those, and /dev/null
	alone  bool              // nobody else can have the pipes: no process was started since they were made
	reaped string            // how much its dead children had done: see survey
}

// use is what a descriptor of the shell's is.
type use int

const (
	foreign use = iota // somebody's: left alone
	input              // the run's standard input
	output             // the run's standard output
	errput             // the run's standard error
)

// How a shell starts.
type origin int

const (
	fresh    origin = iota // from the configuration
	restored               // from the state as of the last finished run
	rescued                // from as much of that as cannot do harm: variables, functions, aliases, directory
)

// startShell starts a bash and returns when it has answered.
func (s *Session) startShell(ctx context.Context, from origin) (*shell, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	script := os.NewFile(uintptr(fds[0]), "script")
	defer script.Close()
	err := errors.Join(
		unix.SetNonblock(fds[1], true),
		s.own(fds[0]), // bash opens it again, by /proc
	)
	if _, ferr := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 4096); ferr != nil {
		err = errors.Join(err, os.NewSyscallError("fcntl", ferr))
	}
	ctl := os.NewFile(uintptr(fds[1]), "control")
	raw, rerr := ctl.SyscallConn()
	if err = errors.Join(err, rerr); err != nil {
		ctl.Close()
		return nil, fmt.Errorf("make session's control pipe: %w", err)
	}
	sh := &shell{ctl: ctl, raw: raw, snap: -1, fds: [3]use{input, output, errput}}
	if err := s.launch(ctx, sh, script, from); err != nil {
		sh.dispose()
		return nil, err
	}
	return sh, nil
}

func (s *Session) launch(ctx context.Context, sh *shell, script *os.File, from origin) error {
	if err := s.openSnapshots(sh); err != nil {
		return err
	}
	mark := nonce()
	state, dir := s.startState(from)
	err := s.write("init", fill(initScript, "@DIR@", s.dir, "@NONCE@", mark, "@TRAP@", trapCommand(s.dir), "@STATE@", state))
	if err != nil {
		return err
	}
	defer s.clear("init", "restore")
	record := s.awaitRecord(mark)
	sh.tree, err = proctree.Start(proctree.Spec{
		Path:       s.cfg.Bash,
		Argv:       []string{"bash", "--norc", "--noprofile", "/proc/self/fd/3"},
		Env:        s.startEnv(from),
		Dir:        dir,
		Files:      []*os.File{nil, nil, nil, script},
		Credential: s.cfg.Credential,
		Marker:     s.token,
		Census:     &s.hub.census,
		OOMScore:   s.cfg.OOMScore,
	})
	if err != nil {
		return fmt.Errorf("start session %s: %w", s.id, err)
	}
	if err := sh.tell(`\builtin . '` + s.dir + "/init'"); err != nil {
		return fmt.Errorf("start session %s: %w", s.id, err)
	}
	idle := sh.idle()
	select {
	case name := <-record:
		s.clear("r/" + name)
	case <-idle:
		// An event may be on its way.
		s.look()
		select {
		case name := <-record:
			s.clear("r/" + name)
		default:
			return s.failedStart(ctx, sh)
		}
	case <-sh.tree.Done():
		return s.failedStart(ctx, sh)
	case <-ctx.Done():
		return s.failedStart(ctx, sh)
	case <-s.closing:
		return s.failedStart(ctx, sh)
	}
	<-idle
	if from == restored && !sh.dead() {
		setLimits(sh.tree.PID(), s.state.limits)
	}
	return nil
}

// failedStart ends a shell that has not answered.
func (s *Session) failedStart(ctx context.Context, sh *shell) error {
	sh.end(s.hub.patience.end)
	if ctx.Err() != nil {
		return fmt.Errorf("start session %s: %w", s.id, context.Cause(ctx))
	}
	return fmt.Errorf("start session %s: bash has not read %s and ended with status %d", s.id, s.dir, sh.tree.Status().Code)
}

// openSnapshots makes the pipe for snapshots anew.
func (s *Session) openSnapshots(sh *shell) error {
	fd, err := s.fifo("s", unix.O_RDWR)
	if err != nil {
		return err
	}
	sh.closeSnapshots()
	sh.snap = fd
	return nil
}

// startEnv is the environment bash itself is started with. What would change how it starts is set later.
func (s *Session) startEnv(from origin) []string {
	if from != fresh && s.state.saved() {
		return pwd(s.variables())
	}
	var env []string
	for _, e := range s.cfg.BaseEnv {
		if name, _, _ := strings.Cut(e, "="); !delayed[name] {
			env = append(env, e)
		}
	}
	return env
}

// pwd is the entry by which bash learns the name of its directory: it believes one that leads there, by whatever links.
func pwd(variables []byte) []string {
	_, word, ok := bytes.Cut(variable(variables, "PWD"), []byte("="))
	if !ok {
		return nil
	}
	return []string{"PWD=" + unquote(bytes.TrimSuffix(word, []byte("\n")))}
}

// delayed are the variables that bash obeys when it starts. It may not see them then.
var delayed = map[string]bool{"BASH_ENV": true, "ENV": true, "SHELLOPTS": true, "BASHOPTS": true, "POSIXLY_CORRECT": true}

// startState is what bash reads first, and where it starts.
func (s *Session) startState(from origin) (script, dir string) {
	if from != fresh {
		if p, ok := s.state.load(s.mark()); ok && s.write("restore", restoreScript(p, from, "")) == nil {
			return `\builtin . '` + s.dir + `/restore' >/dev/null 2>&1`, s.state.dir()
		}
	}
	var b strings.Builder
	for _, e := range s.cfg.BaseEnv {
		if name, value, ok := strings.Cut(e, "="); ok && delayed[name] && name != "SHELLOPTS" && name != "BASHOPTS" {
			b.WriteString(export(name, value) + "\n")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Env)) {
		b.WriteString(export(name, s.cfg.Env[name]) + "\n")
	}
	return b.String(), s.cfg.Dir
}

// tell writes one line and an empty one: when that has been read, the line has been executed.
func (sh *shell) tell(line string) error {
	_, err := sh.ctl.WriteString(line + "\n\n")
	return err
}

// idle returns a channel that is closed when the shell has read all it was told, or its pipe has been closed.
func (sh *shell) idle() <-chan struct{} {
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		_ = sh.raw.Write(func(fd uintptr) bool {
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			if err != nil || n == 0 {
				return true
			}
			broken := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			unix.Poll(broken, 0)
			return broken[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		})
	}()
	return idle
}

// dead says whether the shell has ended.
func (sh *shell) dead() bool {
	select {
	case <-sh.tree.Done():
		return true
	default:
		return false
	}
}

// dying says whether the shell has ended or is about to, or has become another program: nobody reads its script.
func (sh *shell) dying() bool {
	if sh.dead() {
		return true
	}
	broken := false
	err := sh.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		unix.Poll(p, 0)
		broken = p[0].Revents&unix.POLLERR != 0
	})
	return err != nil || broken
}

// kill ends the shell and waits for that.
func (sh *shell) kill() {
	_ = sh.tree.Signal(syscall.SIGKILL) // or it is gone
	<-sh.tree.Done()
}

// end lets the shell come to the end of its script, and kills it if it takes too long.
func (sh *shell) end(limit time.Duration) {
	sh.ctl.Close()
	patience := time.NewTimer(limit)
	defer patience.Stop()
	select {
	case <-sh.tree.Done():
	case <-patience.C:
		sh.kill()
	}
}

// dispose gives back what the shell holds.
func (sh *shell) dispose() {
	if sh.tree != nil && !sh.dead() {
		sh.kill()
	}
	sh.ctl.Close()
	sh.closeSnapshots()
}

func (sh *shell) closeSnapshots() {
	if sh.snap >= 0 {
		unix.Close(sh.snap)
		sh.snap = -1
	}
}

// survey learns what the shell's descriptors are and who its children are, for the next run. A shell that has started
// no process keeps its pipes, for nobody else can hold them. Every child ends up among the living or in the count of
// page faults of the reaped: each has had some.
func (s *Session) survey(sh *shell) {
	sh.bound = true
	for fd := range sh.fds {
		link, err := os.Readlink(sh.proc("fd/" + strconv.Itoa(fd)))
		name, ours := strings.CutPrefix(strings.TrimSuffix(link, " (deleted)"), s.dir+"/")
		switch {
		case err != nil: // closed
			sh.fds[fd] = [3]use{input, output, errput}[fd]
			sh.bound = false
		case ours && name[0] == 'o':
			sh.bind(fd, output, name)
		case ours && name[0] == 'e':
			sh.bind(fd, errput, name)
		case fd == 0 && link == os.DevNull:
			sh.fds[fd] = input
		case ours && name[0] == 'i':
			sh.fds[fd] = input
			sh.bound = false
		default:
			sh.fds[fd] = foreign
		}
	}
	was := sh.reaped
	sh.jobs, sh.reaped = children(sh.tree.PID()), sh.reapedFaults()
	sh.alone = len(sh.jobs) == 0 && sh.reaped == was && was != ""
}

func (sh *shell) bind(fd int, u use, name string) {
	sh.fds[fd] = u
	if p := sh.pipes[u]; p == nil || p.name != name {
		sh.bound = false
	}
}

// reapedFaults is cminflt in proc_pid_stat(5).
func (sh *shell) reapedFaults() string {
	stat, err := readFile(sh.proc("stat"))
	if err != nil {
		return ""
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 9 {
		return ""
	}
	return string(f[8])
}

// cwd is where the shell is, without links.
func (sh *shell) cwd() string {
	cwd, _ := os.Readlink(sh.proc("cwd"))
	return strings.TrimSuffix(cwd, " (deleted)")
}

// proc is the path of a file about the shell.
func (sh *shell) proc(name string) string {
	return "/proc/" + strconv.Itoa(sh.tree.PID()) + "/" + name
}

// readFile is os.ReadFile for small files that are read often: it doesn't ask first what kind of file that is.
func readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readAll(fd, make([]byte, 0, 512)), nil
}

// readAll appends what can be read from fd without waiting.
func readAll(fd int, b []byte) []byte {
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return b
		}
		b = b[:len(b)+n]
	}
}

// children lists a process's children.
func children(pid int) []int {
	id := strconv.Itoa(pid)
	list, err := readFile("/proc/" + id + "/task/" + id + "/children")
	if err != nil { // a kernel without it
		table, err := proctree.Look()
		if err != nil {
			return nil
		}
		var pids []int
		for _, p := range table.Processes {
			if p.Parent == pid {
				pids = append(pids, p.PID)
			}
		}
		return pids
	}
	var pids []int
	for _, f := range strings.Fields(string(list)) {
		var pid int
		if _, err := fmt.Sscan(f, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
