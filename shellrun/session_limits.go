package shellrun

import (
	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// shellLimits are the resources that bash's ulimit sets.
var shellLimits = []int{
	unix.RLIMIT_AS, unix.RLIMIT_CORE, unix.RLIMIT_CPU, unix.RLIMIT_DATA, unix.RLIMIT_FSIZE, unix.RLIMIT_LOCKS,
	unix.RLIMIT_MEMLOCK, unix.RLIMIT_MSGQUEUE, unix.RLIMIT_NICE, unix.RLIMIT_NOFILE, unix.RLIMIT_NPROC,
	unix.RLIMIT_RSS, unix.RLIMIT_RTPRIO, unix.RLIMIT_RTTIME, unix.RLIMIT_SIGPENDING, unix.RLIMIT_STACK,
}

// readLimits returns a process's limits.
func readLimits(pid int) []proctree.Limit {
	limits := make([]proctree.Limit, 0, len(shellLimits))
	for _, resource := range shellLimits {
		var l unix.Rlimit
		if unix.Prlimit(pid, resource, nil, &l) == nil {
			limits = append(limits, proctree.Limit{Resource: resource, Soft: l.Cur, Hard: l.Max})
		}
	}
	return limits
}

// setLimits gives a new shell the limits of the last one. What may not be set stays.
func setLimits(pid int, limits []proctree.Limit) {
	for _, l := range limits {
		_ = unix.Prlimit(pid, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil)
	}
}
