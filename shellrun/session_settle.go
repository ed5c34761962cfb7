package shellrun

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settle gets the session ready for the next run, and gives the turn to it.
func (r *running) settle() {
	s := r.s
	defer func() { <-s.turn }()
	good := !r.sh.dying() && r.snapshot() && r.awaitIdle() && (!r.cut || r.calm())
	if good {
		s.survey(r.sh)
		limits := readLimits(r.sh.tree.PID())
		cwd := s.Info().Cwd
		s.mu.Lock()
		s.state.limits, s.state.cwd = limits, cwd
		s.mu.Unlock()
	}
	r.leave()
	select {
	case <-s.closing:
	default:
		if !good {
			s.replace(context.Background()) // an error is the next run's, which tries again
		}
	}
}

// leave removes the run's files and lets its pumps go on for as long as somebody holds the other ends.
func (r *running) leave() {
	s := r.s
	for _, p := range r.pumps {
		// A pipe that was never opened for writing has no end to see: open it once.
		fd, err := unix.Open(s.dir+"/"+p.file.Name(), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err == nil {
			unix.Close(fd)
		}
	}
	s.clear("w", "bash", "i", "status", "debug", "builtin", r.files.out, r.files.err)
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
	s := r.s
	b, release := s.readSnapshot(r.sh, r.idle)
	ok := r.take(b)
	release()
	if ok {
		return true
	}
	if r.sh.dying() {
		return false
	}
	return r.mend()
}

// take makes b the session's state.
func (r *running) take(b []byte) bool {
	s := r.s
	next := s.state
	split, ok := next.take(b, s.mark())
	if !ok {
		return false
	}
	if r.whole { // else what was taken from the shell is still to be put back
		next.flags = pick(r.flags, strippedFlags)
		next.traps = bytes.Clone(split[partOwnTraps])
		next.builtin = nil
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
	b, release := s.readSnapshot(r.sh, r.idle)
	defer release()
	if !r.take(b) {
		return false
	}
	if f := s.readBack("builtin"); r.whole && len(f) > 0 {
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
	return b[:n]
}

// calm makes sure that an interruption which came late doesn't meet the next run.
func (r *running) calm() bool {
	if r.tell(`\builtin :;\builtin unset CELLD_I CELLD_S CELLD_F CELLD_O`) != nil {
		return false
	}
	return r.awaitIdle()
}

// settlePatience is how long a shell may be silent while it tells its state.
const settlePatience = time.Second

func (r *running) awaitIdle() bool {
	patience := time.NewTimer(settlePatience)
	defer patience.Stop()
	select {
	case <-r.idle:
		return !r.sh.dying()
	case <-r.sh.tree.Done():
	case <-patience.C:
	}
	return false
}

// readSnapshot reads from the shell until the end of a snapshot, or until there is no more to come. release gives back
// what b is in.
func (s *Session) readSnapshot(sh *shell, idle <-chan struct{}) (b []byte, release func()) {
	buf := s.bufs.get()
	b = (*buf)[:0]
	end := []byte(s.mark() + " end\n")
	stop, over := make(chan struct{}), make(chan struct{})
	patience := time.NewTimer(settlePatience)
	defer patience.Stop()
	go func() {
		defer close(over)
		select {
		case <-idle:
		case <-sh.tree.Done():
		case <-patience.C:
		case <-stop:
			return
		}
		sh.snap.SetReadDeadline(time.Unix(1, 0))
	}()
	for !bytes.HasSuffix(b, end) {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := sh.snap.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			b = sh.restOfSnapshot(b)
		}
		if err != nil {
			break
		}
		patience.Reset(settlePatience)
	}
	close(stop)
	<-over
	sh.snap.SetReadDeadline(time.Time{})
	return b, func() { s.bufs.put(buf) }
}

// restOfSnapshot appends what is in the pipe.
func (sh *shell) restOfSnapshot(b []byte) []byte {
	raw, err := sh.snap.SyscallConn()
	if err != nil {
		return b
	}
	raw.Control(func(fd uintptr) {
		buf := make([]byte, 4096)
		for {
			n, err := unix.Read(int(fd), buf)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n <= 0 {
				return
			}
			b = append(b, buf[:n]...)
		}
	})
	return b
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
	sh, err := s.startShell(ctx, restored)
	if err != nil && ctx.Err() == nil {
		sh, err = s.startShell(ctx, rescued)
	}
	if err != nil {
		return errors.Join(ErrSessionLost, err)
	}
	s.mu.Lock()
	s.shell = sh
	s.mu.Unlock()
	return nil
}

// bury ends what is left of a shell. What outlived it is still the session's.
func (s *Session) bury(sh *shell) {
	sh.dispose()
	if len(sh.tree.Members()) == 0 {
		return
	}
	s.mu.Lock()
	s.past = append(s.past, sh.tree)
	s.mu.Unlock()
}
