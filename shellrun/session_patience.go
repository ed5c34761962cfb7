package shellrun

import "time"

// patience is how long sessions wait for what hardly takes any time on a machine that isn't busy, and for those who are
// asked to end.
type patience struct {
	exit    time.Duration // an EXIT trap may take when a session is closed
	end     time.Duration // a shell that doesn't execute any more, to see the end of its script
	settle  time.Duration // a shell, to tell its state
	restart time.Duration // a new shell, to become what the last one was
	kill    time.Duration // those who are asked to end when a session is closed
	stop    time.Duration // those who are asked to end when a run is interrupted
	unwind  time.Duration // a shell that is told to return from all it is in, each time
	unwinds int           // how often it is told: a signal that comes just before a system call doesn't end it
	holds   int           // how often more because the machine is too busy to let it run

	// How long killing may take where a process can't be killed: all that a session has started, and, each time, what an
	// interrupted run has.
	killBound, stopBound time.Duration
}

func usualPatience() patience {
	return patience{
		exit: 2 * time.Second, end: 3 * time.Second, settle: 3 * time.Second, restart: 5 * time.Second,
		kill: 250 * time.Millisecond, stop: 300 * time.Millisecond, unwind: 100 * time.Millisecond, unwinds: 7, holds: 100,
		killBound: 10 * time.Second, stopBound: 3 * time.Second,
	}
}
