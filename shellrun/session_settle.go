package shellrun

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// settle gets the session ready for the next run, and gives the turn to it.
func (r *running) settle(ctx context.Context) {
	s := r.s
	defer s.turns.pass()
	defer close(s.settled)
	good := !r.sh.dying() && r.snapshot() && (!r.cut || r.calm()) && !s.state.stuck
	r.leave() // not before: whoever waits for the run needs the processor that the shell leaves
	if good {
		s.survey(r.sh)
		limits, cwd := readLimits(r.sh.tree.PID()), r.sh.cwd()
		s.mu.Lock()
		s.state.limits, s.state.cwd = limits, cwd
		s.mu.Unlock()
	}
	if !good || !r.sh.alone {
		s.remember(r.run.ID)
	}
	if r.cut || r.again {
		s.clear("w", "debug")
	}
	select {
	case <-s.closing:
	default:
		if good {
			break
		}
		if !r.told {
			s.untold = "the shell was lost after the last run; a new one has the state as of the run before"
		}
		_ = s.replace(ctx) // an error will be the next run's, which tries again
	}
}

// leave removes the run's files. Its pumps go on for as long as somebody holds the other ends.
func (r *running) leave() {
	s := r.s
	for _, p := range r.made {
		// A pipe that was never opened for writing has no end to see: open it once.
		fd, err := unix.Open(s.dir+"/"+p.name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err == nil {
			unix.Close(fd)
		}
		s.clear(p.name)
	}
	if r.files.record != "" {
		s.clear("r/" + r.files.record)
	}
	s.clear("w", "bash")
	if r.files.stdin {
		s.clear("i")
	}
	if r.files.status {
		s.clear("status")
	}
}

// pump starts a pump that Close can stop.
func (s *Session) pump(fd int, name string, to io.Writer) (*pump, error) {
	p, err := newPump(fd, name, to)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.pumps[p] = true
	s.mu.Unlock()
	go func() {
		p.run(s.bufs)
		s.mu.Lock()
		delete(s.pumps, p)
		s.mu.Unlock()
	}()
	return p, nil
}

// snapshot takes the shell's state. It says false when the shell is no good any more.
func (r *running) snapshot() bool {
	b, release, ok := r.readSnapshot()
	took := ok && r.take(b)
	release()
	return took || ok && r.mend()
}

// take makes b the session's state.
func (r *running) take(b []byte) bool {
	s := r.s
	next := s.state
	p, ok := next.take(b, s.mark())
	if !ok {
		return false
	}
	if r.whole { // else what was taken from the shell is still to be put back
		next.flags = pick(r.flags, strippedFlags)
		next.builtin = nil
		next.traps = nil
		for _, c := range p.traps {
			if isTrap(c, debugTrap, errTrap, returnTrap) {
				next.traps = append(next.traps, c...)
			}
		}
	}
	s.mu.Lock()
	s.state = next
	s.mu.Unlock()
	return true
}

// strippedFlags are the options that tail turns off because they would disturb what is ours.
const strippedFlags = "exvkTt"

// pick returns the letters of s that are in set.
func pick(s, set string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(set, c) {
			return c
		}
		return -1
	}, s)
}

// mend asks for the state once more when something has swallowed it: a function called builtin, or somebody who
// removed the folder.
func (r *running) mend() bool {
	s := r.s
	if s.furnish() != nil || s.openSnapshots(r.sh) != nil {
		return false
	}
	s.clear("builtin")
	if r.tell(`{ CELLD_O=$BASHOPTS:$SHELLOPTS;POSIXLY_CORRECT=1;\set -T;\. '`+s.dir+`/mend';} 2>/dev/null`) != nil {
		return false
	}
	b, release, ok := r.readSnapshot()
	defer release()
	if !ok || !r.take(b) {
		return false
	}
	f := s.readBack("builtin")
	s.clear("builtin")
	if r.whole && len(f) > 0 {
		s.mu.Lock()
		s.state.builtin = f
		s.mu.Unlock()
	}
	return true
}

// readBack reads a small file that the shell has written.
func (s *Session) readBack(name string) []byte {
	f, err := os.OpenFile(s.dir+"/"+name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	n, _ := f.Read(b)
	if n == len(b) { // not small
		return nil
	}
	return b[:n]
}

// calm makes sure that an interruption which came late doesn't meet the next run.
func (r *running) calm() bool {
	if r.tell(`\builtin :;\builtin unset CELLD_I CELLD_S CELLD_F CELLD_O`) != nil {
		return false
	}
	return r.awaitIdle()
}

func (r *running) awaitIdle() bool {
	patience := time.NewTimer(r.s.hub.patience.settle)
	defer patience.Stop()
	select {
	case <-r.idle:
		return !r.sh.dying()
	case <-r.sh.tree.Done():
	case <-patience.C:
	}
	return false
}

// readSnapshot returns what the shell has told about its state, once it has read all it was told to do. It says false
// when the shell is no good any more. A snapshot that doesn't fit in the pipe is read while it is written; a smaller one is
// left alone until it is there, for each write would wake us.
func (r *running) readSnapshot() (b []byte, release func(), ok bool) {
	buf := r.s.bufs.get()
	release = func() { r.s.bufs.put(buf) }
	patience := time.NewTimer(fitPatience)
	defer patience.Stop()
	select {
	case <-r.idle:
		b = readAll(r.sh.snap, (*buf)[:0])
		return b, release, !r.sh.dying()
	case <-r.sh.tree.Done():
		return nil, release, false
	case <-patience.C:
	}
	return r.streamSnapshot((*buf)[:0], release)
}

// fitPatience is how long a snapshot may take before we suspect that it doesn't fit.
const fitPatience = 5 * time.Millisecond

// streamSnapshot is readSnapshot for a large one.
func (r *running) streamSnapshot(b []byte, release func()) ([]byte, func(), bool) {
	fd, err := unix.FcntlInt(uintptr(r.sh.snap), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, release, false
	}
	f := os.NewFile(uintptr(fd), "snapshot")
	defer f.Close()
	more := make(chan struct{})
	go func() {
		defer close(more)
		for {
			if len(b) == cap(b) {
				b = append(b, 0)[:len(b)]
			}
			n, err := f.Read(b[len(b):cap(b)])
			b = b[:len(b)+n]
			if err != nil {
				return
			}
		}
	}()
	ok := r.awaitIdle()
	f.SetReadDeadline(time.Unix(1, 0))
	<-more
	return readAll(r.sh.snap, b), release, ok
}

// replace starts a new shell in place of the last one.
func (s *Session) replace(ctx context.Context) error {
	s.mu.Lock()
	old := s.shell
	s.shell = nil
	s.mu.Unlock()
	if old != nil {
		s.bury(old)
	}
	sh, err := s.restart(ctx, restored)
	if err != nil && ctx.Err() == nil {
		sh, err = s.restart(ctx, rescued)
	}
	if err != nil {
		return errors.Join(ErrSessionLost, err)
	}
	s.mu.Lock()
	s.shell = sh
	s.mu.Unlock()
	return nil
}

func (s *Session) restart(ctx context.Context, from origin) (*shell, error) {
	ctx, cancel := context.WithTimeout(ctx, s.hub.patience.restart)
	defer cancel()
	if err := s.furnish(); err != nil { // the last one's folder may be gone
		return nil, err
	}
	return s.startShell(ctx, from)
}

// bury ends what is left of a shell. What outlived it is still the session's.
func (s *Session) bury(sh *shell) {
	sh.dispose()
	past := append(s.past, sh.tree)
	if table, err := s.hub.census.Look(); err == nil {
		past = slices.DeleteFunc(slices.Clone(past), func(tree *proctree.Tree) bool { return len(tree.In(table)) == 0 })
	}
	s.past = past
}
