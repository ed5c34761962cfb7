package proctree

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Members returns the living processes of the tree, the leader first if it lives. Zombies don't count. It reads the
// process table; without one the answer is empty.
func (t *Tree) Members() []int {
	table, err := t.census.Look()
	if err != nil {
		return nil
	}
	return t.In(table)
}

// In returns the members of the tree that are in table, as Members does. It is for calls from [Kill]'s pick.
func (t *Tree) In(table *Table) []int {
	t.mu.Lock()
	retired, died := t.retired, t.died
	t.mu.Unlock()

	var marked []int
	if t.marker != "" {
		marked = table.Marked(t.born, func(m string) bool { return m == t.marker })
	}
	var session []int
	ours := !retired
	for _, p := range table.Processes {
		if p.Session != t.pid || p.Start < t.born {
			continue
		}
		session = append(session, p.PID)
		// With the leader gone its number may name another session by now. It doesn't as long as one of the old
		// session lives, and such a one started before the leader was reaped or carries the marker.
		if p.Start <= died || slices.Contains(marked, p.PID) {
			ours = true
		}
	}
	var roots []int
	if _, alive := table.Process(t.pid); alive && !retired {
		roots = append(roots, t.pid)
	}
	if ours {
		roots = append(roots, session...)
	}
	roots = append(roots, marked...)
	return unique(append(roots, table.Descendants(roots...)...))
}

// unique drops what was there before and keeps the order.
func unique(pids []int) []int {
	seen := make(map[int]bool, len(pids))
	return slices.DeleteFunc(pids, func(pid int) bool {
		was := seen[pid]
		seen[pid] = true
		return was
	})
}

// Kill ends the whole tree: SIGTERM and, after grace, SIGKILL for what is left; SIGKILL at once if grace is 0. It
// returns when nobody is left and the leader has been reaped, as soon as that is so, or with ctx's error. Concurrent
// calls are fine.
func (t *Tree) Kill(ctx context.Context, grace time.Duration) error {
	if err := t.census.Kill(ctx, grace, t.In); err != nil {
		return fmt.Errorf("kill tree of %d: %w", t.pid, err)
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill tree of %d: %w", t.pid, context.Cause(ctx))
	}
}

// KillMarked ends every process whose marker satisfies match, as [Kill] does: what an earlier daemon left behind.
// This process and those it descends from are spared.
func KillMarked(ctx context.Context, grace time.Duration, match func(marker string) bool) error {
	err := Kill(ctx, grace, func(t *Table) []int {
		spared := make(map[int]bool)
		for pid := os.Getppid(); pid > 0 && !spared[pid]; {
			spared[pid] = true
			p, _ := t.Process(pid)
			pid = p.Parent
		}
		return slices.DeleteFunc(t.Marked(0, match), func(pid int) bool { return spared[pid] })
	})
	if err != nil {
		return fmt.Errorf("kill leftovers: %w", err)
	}
	return nil
}

// Kill is [Census.Kill] with a census of its own.
func Kill(ctx context.Context, grace time.Duration, pick func(*Table) []int) error {
	return new(Census).Kill(ctx, grace, pick)
}

// Kill ends the processes that pick finds and all they start, until pick finds nobody: it is called again and again,
// each time with a new look at the process table. With a grace above 0 they get SIGTERM first, in the order pick gave.
//
// Before either signal everybody found is stopped, and the search is repeated until it finds nobody new. A stopped
// process cannot fork, so that the set is complete when the signal is sent; and it is still there as a parent, so
// that a child it forked a moment ago is recognised even if the chain of parents is all that ties it to the tree.
// Whoever was found once stays found, also when its parents die first.
//
// A process that may not be signalled is skipped, and is the error at the end. ctx bounds the whole; when it
// ends the search early, who is left may be stopped.
func (c *Census) Kill(ctx context.Context, grace time.Duration, pick func(*Table) []int) error {
	k := &killer{
		census: c, pick: pick, buf: make([]byte, 1024), known: make(map[Process]bool), refused: make(map[Process]error),
	}
	if grace > 0 {
		limited, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		err := k.end(limited, unix.SIGTERM, unix.SIGCONT)
		if err == nil {
			return k.refusal()
		}
		if limited.Err() == nil {
			return err
		}
	}
	if err := k.end(ctx, unix.SIGKILL); err != nil {
		return err
	}
	return k.refusal()
}

type killer struct {
	census  *Census
	pick    func(*Table) []int
	buf     []byte           // scratch for readStat
	known   map[Process]bool // found at some time
	refused map[Process]error
	quiet   bool // nobody vanished at the last look before it could be examined
}

func (k *killer) refusal() error {
	for _, err := range k.refused {
		return err
	}
	return nil
}

// enough is how sure the search must be that nobody is left: two looks in a row at a quiet table, more at one where
// processes vanish before they can be examined.
const (
	enough    = 16
	quietLook = 8
)

// end stops everybody, sends sigs and waits, again and again until nobody is found or ctx is done.
func (k *killer) end(ctx context.Context, sigs ...unix.Signal) error {
	for sure := 0; sure < enough; {
		stopped, any, err := k.stop(ctx)
		if err != nil {
			return err
		}
		switch {
		case any:
			sure = 0
		case k.quiet:
			sure += quietLook
		default:
			sure++
		}
		for _, p := range stopped {
			k.send(p, sigs...)
		}
		if err := k.await(ctx, stopped); err != nil {
			return err
		}
	}
	return nil
}

// stop stops all that can be found, and returns them. any says whether it found somebody, be it that they were gone
// when they should have been stopped.
func (k *killer) stop(ctx context.Context) (all []Process, any bool, err error) {
	stopped := make(map[Process]bool)
	for {
		if ctx.Err() != nil {
			return nil, any, context.Cause(ctx)
		}
		table, err := k.census.Look()
		if err != nil {
			return nil, any, err
		}
		found := k.find(table)
		k.quiet = table.quiet()
		var fresh []Process
		for _, p := range found {
			any = true
			if !stopped[p.identity()] && k.send(p, unix.SIGSTOP) {
				stopped[p.identity()] = true
				fresh = append(fresh, p)
			}
		}
		if len(fresh) == 0 {
			return all, any, nil
		}
		all = append(all, fresh...)
		stopGroups(table, found, stopped)
	}
}

// find returns who is picked, was known or descends from one of these, without those who refused.
func (k *killer) find(table *Table) []Process {
	pids := k.pick(table)
	for old := range k.known {
		if p, ok := table.Process(old.PID); ok && p.Start == old.Start {
			pids = append(pids, p.PID)
		}
	}
	var found []Process
	for _, pid := range unique(append(pids, table.Descendants(pids...)...)) {
		p, ok := table.Process(pid)
		if id := p.identity(); ok && k.refused[id] == nil {
			k.known[id] = true
			found = append(found, p)
		}
	}
	return found
}

// stopGroups stops the groups that consist of found processes only. A signal to a group is atomic: it reaches also the
// process that forks and exits faster than anybody can look. A stopped member keeps the group's number from being reused.
func stopGroups(table *Table, found []Process, stopped map[Process]bool) {
	picked := make(map[int]bool, len(found))
	pinned := make(map[int]bool)
	for _, p := range found {
		picked[p.PID] = true
		if stopped[p.identity()] {
			pinned[p.Group] = true
		}
	}
	for _, p := range table.Processes {
		if !picked[p.PID] {
			delete(pinned, p.Group)
		}
	}
	own := unix.Getpgrp()
	for group := range pinned {
		if group > 1 && group != own {
			_ = unix.Kill(-group, unix.SIGSTOP) // nobody left in it is fine
		}
	}
}

// open opens a pidfd and makes sure that it names p.
func (k *killer) open(p Process) (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, err
	}
	if now, ok := readStat(p.PID, k.buf); !ok || now.Start != p.Start {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// send signals p and says whether it was there to get it.
func (k *killer) send(p Process, sigs ...unix.Signal) bool {
	fd, err := k.open(p)
	if err == nil {
		defer unix.Close(fd)
		for _, sig := range sigs {
			if err = unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
				break
			}
		}
	}
	if err != nil && err != unix.ESRCH {
		k.refused[p.identity()] = fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return err == nil
}

// await returns when all of ps have died or refused, or with ctx's error. One after the other will do: it needs
// one descriptor, however many they are.
func (k *killer) await(ctx context.Context, ps []Process) error {
	for _, p := range ps {
		if k.refused[p.identity()] != nil {
			continue
		}
		fd, err := k.open(p)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
		if err := waitDead(ctx, fd); err != nil {
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
	}
	return nil
}

// waitDead returns when the process behind pidfd has died, be it a child or not. It closes pidfd.
func waitDead(ctx context.Context, pidfd int) error {
	f, err := pollable(pidfd)
	if err != nil {
		return err
	}
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })()
	err = rc.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		return err == nil && n == 1
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
