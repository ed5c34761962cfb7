package proctree

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Subreaper makes this process the parent of its descendants' orphans (PR_SET_CHILD_SUBREAPER in prctl(2)), so that
// they stay within reach and [ReapOrphans] can reap them. Process 1 of a pid namespace is that anyway.
func Subreaper() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// ReapOrphans reaps adopted orphans until ctx is done; it returns nil then. It never takes the status of a child that
// [Start] started.
//
// It must be called by the main goroutine after that has locked itself to the main thread, before any child is started.
// The kernel gives orphans to a process's first living thread, the main one, and a child belongs to the thread that
// forked it; a thread locked by a goroutine that never forks has orphans only. __WNOTHREAD (waitid(2)) keeps the rest
// out of sight.
func ReapOrphans(ctx context.Context) error {
	return reapOrphans(ctx, func(int) {})
}

func reapOrphans(ctx context.Context, reaped func(pid int)) error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("reap orphans: not on the main thread")
	}
	dead := make(chan os.Signal, 1) // one is enough: each look reaps all there are
	signal.Notify(dead, unix.SIGCHLD)
	defer signal.Stop(dead)
	for {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil || pid == 0 { // ECHILD: none at all
				break
			}
			reaped(pid)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-dead:
		}
	}
}
