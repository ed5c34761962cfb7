package shellrun

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// beside is what makes a command begin where a session is.
type beside struct {
	Surroundings
	limits  []proctree.Limit
	prelude string // what bash reads first, after preludeHead
}

// Beside makes c a command that begins with the state that the session had when its last run had finished: directory,
// variables, functions, aliases, options, umask and limits, but no traps, jobs and descriptors. It runs as the
// session's user, in a bash of its own that has no more to do with the session, but that Close ends it. c.Dir is
// relative to the session's directory and c.Env comes on top; c.User is not looked at. A run that is under way
// makes no difference and is not waited for.
//
// What is wrong with c is a [*RequestError].
func (s *Session) Beside(c Command) (Command, error) {
	if c.Argv != nil {
		return c, &RequestError{"argv", "can't be run in or beside a session"}
	}
	if err := checkEnv(c.Env); err != nil {
		return c, err
	}
	dir, err := s.resolve(SessionRun{Dir: c.Dir, Env: c.Env})
	if err != nil {
		return c, err
	}
	if err := s.checkFrozen(c.Env); err != nil {
		return c, err
	}
	st, p, ok := s.lastState()
	b := &beside{Surroundings: Surroundings{Dir: dir, Credential: s.cfg.Credential}, limits: changedLimits(st.limits)}
	if ok {
		if dir == "" {
			b.Dir, b.Env = st.dir(), pwd(p.variables)
		} else {
			b.Env = []string{"PWD=" + dir}
		}
		b.prelude = besideScript(p, c.Env, dir != "")
	} else {
		if dir == "" {
			b.Dir = s.cfg.Dir
		}
		b.Env = proctree.Overlay(proctree.Overlay(s.cfg.BaseEnv, entries(s.cfg.Env)...), entries(c.Env)...)
	}
	c.beside = b
	s.remember(c.ID)
	return c, nil
}

// preludeHead closes the descriptor that bash reads the prelude from.
func preludeHead(fd int) string {
	return fmt.Sprintf("\\exec %d<&-\n\\builtin unset BASH_ENV\n", fd)
}

// besideScript makes a bash that runs a command what a snapshot says, with env on top.
func besideScript(p parts, env map[string]string, moved bool) string {
	p.traps = nil
	p.others = slices.DeleteFunc(slices.Clone(p.others), func(c []byte) bool { return !bytes.HasPrefix(c, []byte("umask ")) })
	if moved {
		p.variables = without(p.variables, "PWD", "OLDPWD")
	}
	var b strings.Builder
	for _, entry := range entries(env) {
		name, value, _ := strings.Cut(entry, "=")
		fmt.Fprintf(&b, "\\builtin unset -n %s;\\builtin unset -v %s;%s\n", name, name, export(name, value))
	}
	return "\\builtin eval " + quote(restoreScript(p, restored, b.String())) + " >/dev/null 2>&1\n"
}

// without leaves out what declares names.
func without(variables []byte, names ...string) []byte {
	for _, name := range names {
		if command := variable(variables, name); command != nil {
			before, after, _ := strings.Cut(string(variables), string(command))
			variables = []byte(before + after)
		}
	}
	return variables
}

// changedLimits leaves out the limits that are celld's own.
func changedLimits(limits []proctree.Limit) []proctree.Limit {
	var changed []proctree.Limit
	for _, l := range limits {
		var own unix.Rlimit
		if unix.Getrlimit(l.Resource, &own) != nil || own.Cur != l.Soft || own.Max != l.Hard {
			changed = append(changed, l)
		}
	}
	return changed
}
