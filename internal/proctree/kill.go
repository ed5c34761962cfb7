package proctree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Members returns the living processes of the tree, the leader first if it lives. Zombies don't count. It reads the
// process table; without one the answer is empty.
func (t *Tree) Members() []int {
	if t.isExtinct() {
		return nil
	}
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
	if t.isExtinct() {
		return nil
	}
	if err := t.census.Kill(ctx, grace, t.In); err != nil {
		return fmt.Errorf("kill tree of %d: %w", t.pid, err)
	}
	select {
	case <-t.done:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.extinct = true
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill tree of %d: %w", t.pid, context.Cause(ctx))
	}
}

// isExtinct says whether a Kill has made sure that nobody is left.
func (t *Tree) isExtinct() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.extinct
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
// A process that may not be signalled is skipped, and is the error at the end. The grace begins when SIGTERM has
// been sent. ctx bounds the whole; when it ends the search early, those who were stopped by then get the signal all the
// same, so that nobody stays stopped.
func (c *Census) Kill(ctx context.Context, grace time.Duration, pick func(*Table) []int) error {
	k := &killer{
		census: c, pick: pick, buf: make([]byte, 1024), known: make(map[Process]bool), refused: make(map[Process]error),
	}
	if grace > 0 {
		patience := &patience{ctx: ctx, grace: grace}
		defer patience.end()
		err := k.end(ctx, patience, unix.SIGTERM, unix.SIGCONT)
		if err == nil {
			return k.refusal()
		}
		if !patience.over() {
			return err
		}
	}
	if err := k.end(ctx, &patience{ctx: ctx}, unix.SIGKILL); err != nil {
		return err
	}
	return k.refusal()
}

// patience is a context that ends a grace after it was first asked for, if there is a grace at all.
type patience struct {
	ctx     context.Context
	grace   time.Duration
	limited context.Context
	cancel  context.CancelFunc
}

func (p *patience) context() context.Context {
	if p.grace == 0 {
		return p.ctx
	}
	if p.limited == nil {
		p.limited, p.cancel = context.WithTimeout(p.ctx, p.grace)
	}
	return p.limited
}

// over says whether the grace is over, and not the context that bounds it.
func (p *patience) over() bool {
	return p.limited != nil && p.limited.Err() != nil && p.ctx.Err() == nil
}

func (p *patience) end() {
	if p.cancel != nil {
		p.cancel()
	}
}

type killer struct {
	census  *Census
	pick    func(*Table) []int
	buf     []byte            // scratch for readStat
	known   map[Process]bool  // found at some time
	refused map[Process]error // may not be signalled
	sure    int               // that nobody unknown is left: see enough
}

func (k *killer) refusal() error {
	for _, err := range k.refused {
		return err
	}
	return nil
}

// A process that forks and exits all the time may be missed. So the search must come up empty twice in a row, and more
// often if somebody could not be examined.
const (
	enough    = 16
	quietLook = 8
)

// end stops everybody, sends sigs and waits as long as patience has it, again and again until nobody is found.
func (k *killer) end(ctx context.Context, patience *patience, sigs ...unix.Signal) error {
	for k.sure = 0; ; {
		found, err := k.stop(ctx)
		if err != nil {
			for _, p := range found {
				_, _ = k.send(p, sigs...) // the first error is the one that counts
			}
			return err
		}
		if len(found) == 0 {
			if k.sure >= enough {
				return nil
			}
			continue
		}
		for _, p := range found {
			if _, err := k.send(p, sigs...); err != nil {
				return err
			}
		}
		if err := k.await(patience.context(), found); err != nil {
			return err
		}
	}
}

// stop stops all that can be found, and returns them; with an error those who have been stopped.
func (k *killer) stop(ctx context.Context) ([]Process, error) {
	var all []Process
	stopped := make(map[Process]bool)
	for {
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
		table, err := k.census.Look()
		if err != nil {
			return all, err
		}
		found := k.find(table)
		before := len(all)
		strangers := false // that were gone when they should have been stopped
		for _, p := range found {
			if stopped[p.identity()] {
				continue
			}
			there, err := k.send(p, unix.SIGSTOP)
			if err != nil {
				return all, err
			}
			if there {
				stopped[p.identity()] = true
				all = append(all, p)
			} else {
				strangers = true
			}
		}
		switch {
		case strangers || len(all) > before:
			k.sure = 0
		case table.quiet():
			k.sure += quietLook
		default:
			k.sure++
		}
		if len(all) == before {
			return all, nil
		}
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

// send signals p and says whether it was there to get it. An error is one that concerns all.
func (k *killer) send(p Process, sigs ...unix.Signal) (there bool, err error) {
	fd, err := k.open(p)
	if err == nil {
		defer unix.Close(fd)
		for _, sig := range sigs {
			if err = unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
				break
			}
		}
	}
	switch err {
	case nil:
		return true, nil
	case unix.ESRCH:
		return false, nil
	}
	err = fmt.Errorf("signal process %d: %w", p.PID, err)
	if errors.Is(err, unix.EPERM) {
		k.refused[p.identity()] = err
		return false, nil
	}
	return false, err
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
