package shellrun

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// rlimits are the limits that a command can have, by their names on the wire.
var rlimits = map[string]int{
	"cpu_s":        unix.RLIMIT_CPU,    // seconds of CPU time of each process: SIGXCPU, a second later SIGKILL
	"memory_bytes": unix.RLIMIT_AS,     // address space of each process
	"nofile":       unix.RLIMIT_NOFILE, // descriptors of each process
	"nproc":        unix.RLIMIT_NPROC,  // processes of the user; does not bind root
	"fsize_bytes":  unix.RLIMIT_FSIZE,  // size of a file that is written: SIGXFSZ
}

// limits makes resource limits of a request's. One above celld's own hard limit is that one.
func limits(asked map[string]int64) ([]proctree.Limit, error) {
	var all []proctree.Limit
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		resource, ok := rlimits[name]
		if !ok {
			return nil, &RequestError{"rlimits", fmt.Sprintf("there is no limit called %q", name)}
		}
		if asked[name] < 0 {
			return nil, &RequestError{"rlimits", name + " is negative"}
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(resource, &own); err != nil {
			return nil, fmt.Errorf("read limit %s: %w", name, err)
		}
		l := proctree.Limit{Resource: resource, Soft: uint64(asked[name]), Hard: uint64(asked[name])}
		if resource == unix.RLIMIT_CPU {
			l.Hard++
		}
		l.Soft, l.Hard = min(l.Soft, own.Max), min(l.Hard, own.Max)
		all = append(all, l)
	}
	return all, nil
}
