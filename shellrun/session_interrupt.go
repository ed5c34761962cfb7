package shellrun

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// interrupt ends the run: the shell gets a signal whose trap makes it return from all it is in, and what it waits for
// is ended. That is done again if the shell doesn't come back, and in the end it is killed.
func (r *running) interrupt(ctx context.Context) {
	r.cut = true
	r.back, r.stopped = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(r.stopped)
		kill := func(grace time.Duration, pick func(*proctree.Table) []int) {
			bound, cancel := context.WithTimeout(ctx, r.s.hub.patience.stopBound)
			defer cancel()
			_ = r.s.hub.census.Kill(bound, grace, pick) // who can't be killed is left
		}
		patience := r.s.hub.patience
		grace := patience.stop
		held := 0 // how often the shell hadn't even got the signal
		for tries := 0; tries < patience.unwinds; {
			pick := r.members
			if !r.unwind() { // not our bash any more, or one that has lost its trap
				pick = r.everyone
			}
			kill(grace, pick)
			grace = 0
			enough := time.NewTimer(patience.unwind)
			select {
			case <-r.back:
				enough.Stop()
				kill(0, r.members) // what the shell was about to start when it was told
				return
			case <-enough.C:
			}
			if held < patience.holds && r.sh.signals("ShdPnd")&bit(interruptSignal) != 0 { // nobody lets it run
				held++
			} else {
				tries++
			}
		}
		r.sh.tree.Signal(unix.SIGKILL)
	}()
}

// unwind tells the shell to return from all it is in. It says false if there is nobody who would understand.
func (r *running) unwind() bool {
	if !r.sh.catches(interruptSignal) {
		return false
	}
	r.sh.tree.Signal(interruptSignal)
	r.sh.tree.Signal(unix.SIGCONT)
	return true
}

// awaitStop returns when an interruption, if there was one, has done all it does. The run has ended.
func (r *running) awaitStop() {
	if r.cut {
		close(r.back)
		<-r.stopped
	}
}

// members finds what the run has started: what carries its marker, what descends from the shell, and what is in the
// shell's session and was born during the run; but nothing that belongs to the jobs of earlier runs.
func (r *running) members(t *proctree.Table) []int {
	shell := r.sh.tree.PID()
	spared := map[int]bool{shell: true}
	spare := func(pids ...int) {
		for _, pid := range pids {
			spared[pid] = true
		}
	}
	for _, pid := range r.sh.jobs {
		if p, ok := t.Process(pid); ok && p.Start <= r.tick {
			spare(pid)
			spare(t.Descendants(pid)...)
		}
	}
	ours := func(m string) bool { return m == r.run.ID }
	spare(t.Marked(r.tick, func(m string) bool { return !ours(m) && m != r.s.token })...)
	found := t.Marked(r.tick, ours)
	if !r.sh.dead() {
		found = append(found, t.Descendants(shell)...)
		for _, p := range t.Processes {
			if p.Session == shell && p.Start >= r.tick {
				found = append(found, p.PID)
			}
		}
	}
	found = append(found, t.Descendants(found...)...)
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(pid int) bool { return spared[pid] })
}

// everyone finds the shell and what the run has started.
func (r *running) everyone(t *proctree.Table) []int {
	found := r.members(t)
	// Not reaped yet after the look: then who had its number in the look was the shell.
	if _, ok := t.Process(r.sh.tree.PID()); ok && !r.sh.dead() {
		found = append(found, r.sh.tree.PID())
	}
	return found
}

// catches says whether the shell has a handler for sig.
func (sh *shell) catches(sig unix.Signal) bool { return sh.signals("SigCgt")&bit(sig) != 0 }

// signals returns one of the shell's sets of signals (proc_pid_status(5)).
func (sh *shell) signals(set string) uint64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", sh.tree.PID()))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("\n"+set+":"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, _ := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return mask
}

// bit is that of a signal in a set.
func bit(sig unix.Signal) uint64 { return 1 << (sig - 1) }

// bootTick is the time since boot in the unit of start times in /proc, rounded down.
func bootTick() uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	const perSecond = 100
	return uint64(ts.Sec)*perSecond + uint64(ts.Nsec)/(1e9/perSecond)
}

// killAll ends everything that the session has started.
func (s *Session) killAll(ctx context.Context) error {
	trees := s.past
	if s.shell != nil {
		trees = append(slices.Clone(trees), s.shell.tree)
	}
	s.mu.Lock()
	marks := maps.Clone(s.marks)
	s.mu.Unlock()
	err := s.hub.census.Kill(ctx, s.hub.patience.kill, func(t *proctree.Table) []int {
		found := t.Marked(s.born, func(m string) bool { _, ours := marks[m]; return ours || m == s.token })
		for _, tree := range trees {
			found = append(found, tree.In(t)...)
		}
		found = append(found, t.Descendants(found...)...)
		slices.Sort(found)
		return slices.Compact(found)
	})
	if err != nil {
		return fmt.Errorf("end session %s: %w", s.id, err)
	}
	return nil
}

// remember keeps the mark of something that starts processes, for killAll. Now and then those are forgotten of whom
// nobody is left.
func (s *Session) remember(mark string) {
	if !s.addMark(mark) {
		return
	}
	table, err := s.hub.census.Look()
	if err != nil {
		return
	}
	living := make(map[string]bool)
	table.Marked(s.born, func(m string) bool { living[m] = true; return false })
	s.mu.Lock()
	defer s.mu.Unlock()
	for m, suspected := range s.marks {
		if !living[m] && suspected {
			delete(s.marks, m)
		} else {
			s.marks[m] = !living[m] // it may be about to start: the next look decides
		}
	}
	s.prune = 2*len(s.marks) + firstPrune
}

const firstPrune = 64

// addMark says whether there are so many marks that it is time to look which are still needed.
func (s *Session) addMark(mark string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks[mark] = false
	return len(s.marks) > s.prune
}
