package shellrun

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// What a run has bash read is three files deep: the line on the control pipe reads w, which reads bash, the user's
// text. In w everything is called with \builtin, which neither an alias nor a function named like a builtin can catch;
// a function called builtin has been taken away after the last run. The record needs no builtin at all: it is a
// redirection that makes a file, and it carries the status in the file's name.
//
// The text is read by "! \builtin . bash". The ! keeps set -e, which the text may turn on, from ending the shell when the
// text's last command fails in a way that set -e forgives; the status is in PIPESTATUS.

// wrapper is what is in w.
func (s *Session) wrapper(run *SessionRun, sh *shell, files runFiles) string {
	var b strings.Builder
	d := s.dir
	if s.state.alias {
		b.WriteString("\\builtin shopt -u expand_aliases\n")
	}
	if s.state.untrapped {
		b.WriteString(trapCommand(d) + "\n")
	}
	if !s.state.frozen {
		fmt.Fprintf(&b, "\\builtin export CELLD_EXECUTION_ID=%s\n", quote(run.ID))
	}
	if run.Dir != "" {
		fmt.Fprintf(&b, "\\builtin cd -- %s 2>/dev/null||\\builtin return 0 >|'%s/r/cd...%s'\n", quote(run.Dir), d, files.mark)
	}
	set, unset := s.wrapEnv(run.Env)
	b.WriteString(set)
	if redirect := s.redirect(sh, files); redirect != "" {
		before, after := s.execGuard()
		b.WriteString(before + `\exec` + redirect + "\n" + after)
	}
	status := ""
	if files.status {
		status = fmt.Sprintf("\\builtin . '%s/status';", d)
	}
	fmt.Fprintf(&b, "[[ ! -v CELLD_I ]]&&{ %s! \\builtin . '%s/bash';};{ %s\\builtin set -T;\\builtin . '%s/tail';} 2>/dev/null", status, d, unset, d)
	fmt.Fprintf(&b, " >|\"%s/r/${CELLD_S:=${PIPESTATUS[0]}}.${CELLD_F:-$-}.${CELLD_P-}.%s\" 9>'%s/s'\n", d, files.mark, d)
	return b.String()
}

// again asks for the record once more, when the folder was not there to take it.
func (s *Session) again(mark string) string {
	return fmt.Sprintf("{ \\builtin set -T;\\builtin . '%s/tail';} 2>/dev/null"+
		" >|\"%s/r/${CELLD_S-x}.${CELLD_F:-$-}.${CELLD_P-}.%s\" 9>'%s/s'\n", s.dir, s.dir, mark, s.dir)
}

// redirect rebinds the shell's descriptors to this run's, where they aren't.
func (s *Session) redirect(sh *shell, f runFiles) string {
	var b strings.Builder
	for fd, u := range sh.fds {
		switch {
		case u == input && f.stdin:
			fmt.Fprintf(&b, " %d<'%s/i'", fd, s.dir)
		case u == input && !sh.bound:
			fmt.Fprintf(&b, " %d</dev/null", fd)
		case u == output && f.rebind, u == errput && f.rebind:
			fmt.Fprintf(&b, " %d>'%s/%s'", fd, s.dir, sh.pipes[u].name)
		}
	}
	return b.String()
}

// execGuard returns what to put around exec, which unlike everything else can't be called with builtin, when there is
// a function of that name: only posix mode finds the builtin then. What posix mode changes besides is changed back.
func (s *Session) execGuard() (before, after string) {
	if !s.state.exec {
		return "", ""
	}
	after = "\\builtin set +o posix\n"
	on := optionList(s.variables(), "BASHOPTS")
	for _, o := range []string{"expand_aliases", "inherit_errexit", "shift_verbose"} {
		flag := "-u"
		if slices.Contains(on, o) {
			flag = "-s"
		}
		after += fmt.Sprintf("\\builtin shopt %s %s\n", flag, o)
	}
	return "POSIXLY_CORRECT=1\n", after
}

// runFiles names what belongs to one run.
type runFiles struct {
	mark   string // of its record
	record string // the name of that
	stdin  bool   // there is a file for its input
	status bool   // there is a file that sets $?
	rebind bool   // the shell has to open the pipes
}

// special are variables that lose what is special about them when they are unset.
var special = map[string]bool{
	"BASHPID": true, "BASH_ARGV0": true, "BASH_COMMAND": true, "BASH_SUBSHELL": true, "COMP_WORDBREAKS": true,
	"DIRSTACK": true, "EPOCHREALTIME": true, "EPOCHSECONDS": true, "FUNCNAME": true, "GROUPS": true, "HISTCMD": true,
	"LINENO": true, "RANDOM": true, "SECONDS": true, "SRANDOM": true,
}

// wrapEnv returns what sets a run's own variables, and what makes them again what they were.
func (s *Session) wrapEnv(env map[string]string) (set, unset string) {
	if len(env) == 0 {
		return "", ""
	}
	variables := s.variables()
	var sb, ub strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !special[name] {
			fmt.Fprintf(&sb, "\\builtin unset -n %s;\\builtin unset -v %s;", name, name)
		}
		sb.WriteString(export(name, env[name]) + "\n")
		fmt.Fprintf(&ub, "\\builtin unset -n %s;\\builtin unset -v %s;", name, name)
		if was := variable(variables, name); was != nil {
			ub.WriteString(redeclare(was))
		}
	}
	return sb.String(), ub.String()
}

// redeclare makes of a command of declare -p one that works where declare is a function or an alias. After \builtin bash
// takes an assignment for any word, and what it does to words: so that what has a value is assigned apart.
func redeclare(command []byte) string {
	text := strings.TrimSuffix(string(command), "\n")
	attributes, name, _ := declared(command)
	if head, value, ok := strings.Cut(text, "="); ok && !strings.Contains(attributes, "n") {
		return `\builtin ` + head + ";" + name + "=" + value + ";"
	}
	return `\builtin ` + text + ";"
}

// export sets a variable and exports it; see redeclare.
func export(name, value string) string {
	return name + "=" + quote(value) + `;\builtin export ` + name + ";"
}

// prologue goes before the user's text, on its first line so that line numbers stay right. It puts back what tail
// took away. Usually it is empty.
func (st *state) prologue() string {
	if st.flags == "" && len(st.traps) == 0 && len(st.builtin) == 0 && !st.alias {
		return ""
	}
	var b strings.Builder
	b.WriteString("CELLD_P=1;")
	var debug string
	for trap := range commands(st.traps) {
		line := `\builtin ` + strings.TrimSuffix(string(trap), "\n") + ";"
		if bytes.HasSuffix(trap, []byte(" DEBUG\n")) {
			debug = line
		} else {
			b.WriteString(line)
		}
	}
	if st.alias {
		b.WriteString(`\builtin shopt -s expand_aliases;`)
	}
	if quiet := strings.Trim(st.flags, "x"); quiet != "" {
		fmt.Fprintf(&b, `\builtin set -%s;`, quiet)
	}
	if x := strings.Contains(st.flags, "x"); x || debug != "" {
		b.WriteString("{ ")
		if x {
			b.WriteString(`\builtin set -x;`)
		}
		b.WriteString(debug + "} 2>/dev/null;")
	}
	b.Write(st.builtin)
	return b.String()
}
