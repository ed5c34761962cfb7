package shellrun

import "golang.org/x/sys/unix"

// limits are the resources that bash's ulimit sets.
var resources = []int{
	unix.RLIMIT_AS, unix.RLIMIT_CORE, unix.RLIMIT_CPU, unix.RLIMIT_DATA, unix.RLIMIT_FSIZE, unix.RLIMIT_LOCKS,
	unix.RLIMIT_MEMLOCK, unix.RLIMIT_MSGQUEUE, unix.RLIMIT_NICE, unix.RLIMIT_NOFILE, unix.RLIMIT_NPROC,
	unix.RLIMIT_RSS, unix.RLIMIT_RTPRIO, unix.RLIMIT_RTTIME, unix.RLIMIT_SIGPENDING, unix.RLIMIT_STACK,
}

// readLimits returns a process's limits.
func readLimits(pid int) []limit {
	into := make([]limit, 0, len(resources))
	for _, r := range resources {
		l := limit{resource: r}
		if unix.Prlimit(pid, r, nil, &l.value) == nil {
			into = append(into, l)
		}
	}
	return into
}

// restoreLimits gives a new shell the limits of the last one. What may not be set stays.
func (s *Session) restoreLimits(pid int) {
	for _, l := range s.state.limits {
		unix.Prlimit(pid, l.resource, &l.value, nil)
	}
}
