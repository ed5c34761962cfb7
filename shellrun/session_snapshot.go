package shellrun

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// parts are what a snapshot says: all of it as commands that bash can read.
type parts struct {
	traps, aliases, others [][]byte // others: umask and positional parameters
	variables              []byte   // with the options among them
	attributes             []byte   // of functions
	functions              []byte
}

// state is what a session's shell was when its last run ended: enough to make a new one like it, and what was taken
// from it to be put back when the next run begins.
type state struct {
	raw    []byte   // the snapshot, when it is small
	file   *os.File // or else where it is
	size   int
	cwd    string // physical
	limits []proctree.Limit

	flags   string // of strippedFlags, those that were on
	traps   []byte // for DEBUG, ERR and RETURN
	builtin []byte // a function of that name
	alias   bool   // some alias has the name of a reserved word
	exec    bool   // some function is called exec, and posix mode is off
	dot     bool   // some function is called .
	status  int    // $?
	frozen  bool   // the marker can't be changed any more

	untrapped bool // our own trap has been taken away
	stuck     bool // a function called exec, or variables of ours, can't be got past
}

// inMemory is the size up to which a snapshot is kept in memory; a typical one has 6 KB.
const inMemory = 32 << 10

// dir is where a new shell starts: where the last one was, if that is still there.
func (st *state) dir() string {
	if fi, err := os.Stat(st.cwd); err == nil && fi.IsDir() {
		return st.cwd
	}
	return "/"
}

func (st *state) saved() bool { return st.size > 0 }

// keep stores a snapshot in place of the last one.
func (st *state) keep(b []byte) error {
	if len(b) <= inMemory {
		st.drop()
		st.raw, st.size = bytes.Clone(b), len(b)
		return nil
	}
	fd, err := unix.MemfdCreate("celld-session", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "snapshot")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return err
	}
	st.drop()
	st.file, st.raw, st.size = f, nil, len(b)
	return nil
}

func (st *state) drop() {
	if st.file != nil {
		st.file.Close()
		st.file = nil
	}
	st.size = 0
}

// load returns the snapshot, if there is one.
func (st *state) load(mark string) (parts, bool) {
	if !st.saved() {
		return parts{}, false
	}
	b := st.raw
	if st.file != nil {
		b = make([]byte, st.size)
		if _, err := st.file.ReadAt(b, 0); err != nil && err != io.EOF {
			return parts{}, false
		}
	}
	return splitSnapshot(b, mark)
}

// splitSnapshot reads what tail writes. It says false for a snapshot that is not whole, or that was written through a
// function called builtin. What it doesn't know it leaves out: a trap may have printed it.
func splitSnapshot(b []byte, mark string) (p parts, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(mark+"\n"))
	if !ok {
		return p, false
	}
	if b, ok = bytes.CutSuffix(b, []byte(mark+" end\n")); !ok {
		return p, false
	}
	// Whatever comes before the variables is small.
	for len(b) > 0 && !bytes.HasPrefix(b, []byte("declare -")) {
		if b[0] == ' ' { // after printf
			b = b[1:]
			continue
		}
		n := commandLen(b)
		switch command := b[:n]; {
		case bytes.HasPrefix(command, []byte("trap -- ")):
			p.traps = append(p.traps, command)
		case bytes.HasPrefix(command, []byte("alias ")):
			p.aliases = append(p.aliases, command)
		case bytes.HasPrefix(command, []byte("umask ")), bytes.HasPrefix(command, []byte(`\builtin set -- `)):
			p.others = append(p.others, command)
		}
		b = b[n:]
	}
	if bytes.Contains(b, []byte("\ndeclare -f")) { // or it is all variables
		p.variables, b = cutCommands(b, "declare -f")
	} else {
		p.variables, b = b, nil
	}
	p.attributes, p.functions = cutCommands(b, "")
	for line := range bytes.Lines(p.attributes) {
		if bytes.HasPrefix(line, []byte("declare -f")) && bytes.HasSuffix(line, []byte(" builtin\n")) {
			return p, false
		}
	}
	return p, len(p.variables) > 0
}

// cutCommands cuts before the first command that begins with next, or, if next is empty, after the last line that
// declares something.
func cutCommands(b []byte, next string) (before, after []byte) {
	rest := b
	for len(rest) > 0 {
		if next != "" && bytes.HasPrefix(rest, []byte(next)) || !bytes.HasPrefix(rest, []byte("declare -")) && next == "" {
			break
		}
		rest = rest[commandLen(rest):]
	}
	return b[:len(b)-len(rest)], rest
}

// reserved are the words that would break our own lines as aliases.
var reserved = [][]byte{[]byte(`!`), []byte(`{`), []byte(`}`), []byte(`[[`)}

// take makes st what a snapshot says.
func (st *state) take(b []byte, mark string) (p parts, ok bool) {
	if p, ok = splitSnapshot(b, mark); !ok || st.keep(b) != nil {
		return p, false
	}
	st.alias = false
	for _, c := range p.aliases {
		c = bytes.TrimPrefix(bytes.TrimPrefix(c, []byte("alias ")), []byte("-- "))
		for _, word := range reserved {
			if bytes.HasPrefix(c, append(word[:len(word):len(word)], '=')) {
				st.alias = true
			}
		}
	}
	st.exec, st.dot = false, false
	for line := range bytes.Lines(p.attributes) {
		switch {
		case bytes.HasSuffix(line, []byte(" exec\n")):
			st.exec = !slices.Contains(optionList(p.variables, "SHELLOPTS"), "posix")
		case bytes.HasSuffix(line, []byte(" .\n")):
			st.dot = true
		}
	}
	st.frozen = isReadonly(p.variables, "CELLD_EXECUTION_ID")
	st.stuck = st.exec && isReadonly(p.variables, "POSIXLY_CORRECT")
	for _, name := range ownVariables { // tail has unset those it could
		st.stuck = st.stuck || variable(p.variables, name) != nil
	}
	st.untrapped = !slices.ContainsFunc(p.traps, func(c []byte) bool { return isTrap(c, ownTrap) })
	return p, true
}

func isReadonly(variables []byte, name string) bool {
	attributes, _, _ := declared(variable(variables, name))
	return strings.Contains(attributes, "r")
}

// How the commands end that set the traps which need care.
const (
	ownTrap    = " SIGRTMAX-2\n"
	debugTrap  = " DEBUG\n"
	errTrap    = " ERR\n"
	returnTrap = " RETURN\n"
)

func isTrap(command []byte, ends ...string) bool {
	return slices.ContainsFunc(ends, func(end string) bool { return bytes.HasSuffix(command, []byte(end)) })
}

// optionList returns the value of SHELLOPTS or BASHOPTS.
func optionList(variables []byte, name string) []string {
	_, value, _ := bytes.Cut(variable(variables, name), []byte(`="`))
	value, _, _ = bytes.Cut(value, []byte(`"`))
	return strings.Split(string(value), ":")
}

// variable returns the command that declares name, or nil.
func variable(variables []byte, name string) []byte {
	key := []byte(" " + name)
	for from := 0; ; {
		i := bytes.Index(variables[from:], key)
		if i < 0 {
			return nil
		}
		i += from
		from = i + len(key)
		if from < len(variables) && variables[from] != '=' && variables[from] != '\n' {
			continue
		}
		start := bytes.LastIndexByte(variables[:i], '\n') + 1
		command := variables[start:]
		if _, found, ok := declared(command); ok && found == name {
			return command[:commandLen(command)]
		}
	}
}

// ownVariables hold something of ours between the end of a run's text and the snapshot.
var ownVariables = []string{"CELLD_S", "CELLD_P", "CELLD_F", "CELLD_I", "CELLD_O"}

// unsaved are the variables that bash keeps itself or that are ours.
var unsaved = map[string]bool{
	"BASHOPTS": true, "BASHPID": true, "BASH_ALIASES": true, "BASH_ARGC": true, "BASH_ARGV": true, "BASH_ARGV0": true,
	"BASH_CMDS": true, "BASH_COMMAND": true, "BASH_LINENO": true, "BASH_SOURCE": true, "BASH_SUBSHELL": true,
	"BASH_VERSINFO": true, "BASH_XTRACEFD": true, "CELLD_EXECUTION_ID": true,
	"COMP_WORDBREAKS": true, "DIRSTACK": true, "EPOCHREALTIME": true, "EPOCHSECONDS": true, "EUID": true,
	"FUNCNAME": true, "GROUPS": true, "HISTCMD": true, "LINENO": true, "PIPESTATUS": true, "PPID": true,
	"SHELLOPTS": true, "SRANDOM": true, "UID": true, "_": true,
}

// preset are the variables that bash sets when it starts. Those that a session has unset are unset again.
var preset = []string{
	"BASH", "BASH_VERSION", "HOSTNAME", "HOSTTYPE", "IFS", "MACHTYPE", "OPTERR", "OPTIND", "OSTYPE", "PATH",
	"PS4", "RANDOM", "SECONDS", "SHLVL", "TERM", "BASH_LOADABLES_PATH", "MAILCHECK",
}

// restoreScript makes a new shell what a snapshot says; then is done when the variables are there and functions are
// not. Aliases come before functions but are not expanded in them, options last.
func restoreScript(p parts, from origin, then string) string {
	var b strings.Builder
	shopts := optionList(p.variables, "BASHOPTS")
	b.WriteString("IFS=:\n\\builtin shopt -u $BASHOPTS\n")
	expand := "-u"
	if i := slices.Index(shopts, "expand_aliases"); i >= 0 {
		shopts = slices.Delete(shopts, i, i+1)
		expand = "-s"
	}
	if from == rescued { // extglob changes what a function means
		shopts = slices.DeleteFunc(shopts, func(o string) bool { return o != "extglob" })
	}
	fmt.Fprintf(&b, "\\builtin shopt -s %s\n", strings.Join(shopts, " "))
	posix := restoreVariables(&b, p.variables)
	b.WriteString(then)
	for _, c := range p.aliases {
		b.WriteString(`\builtin ` + string(c))
	}
	if from == restored {
		for _, c := range p.others {
			b.WriteString(`\builtin ` + string(bytes.TrimPrefix(c, []byte(`\builtin `))))
		}
		for _, c := range p.traps {
			if !isTrap(c, ownTrap, debugTrap, errTrap, returnTrap) {
				b.WriteString(`\builtin ` + string(c))
			}
		}
	}
	b.Write(p.functions)
	for line := range bytes.Lines(p.attributes) {
		if !bytes.HasPrefix(line, []byte("declare -f ")) {
			b.WriteString(`\builtin ` + string(line))
		}
	}
	fmt.Fprintf(&b, "\\builtin shopt %s expand_aliases\n", expand)
	if from == restored {
		b.WriteString("\\builtin set +BhET\n") // those that are on in a new shell, or by extdebug
		for _, o := range optionList(p.variables, "SHELLOPTS") {
			switch o {
			case "posix", "allexport": // which would export what turns posix on
			default:
				fmt.Fprintf(&b, "\\builtin set -o %s\n", o)
			}
		}
		b.WriteString(posix)
		if slices.Contains(optionList(p.variables, "SHELLOPTS"), "allexport") {
			b.WriteString("\\builtin set -o allexport\n")
		}
	}
	return b.String()
}

// restoreVariables writes what sets the variables, and returns what sets those that change how bash reads.
func restoreVariables(b *strings.Builder, variables []byte) (posix string) {
	seen := make(map[string]bool)
	for command := range commands(variables) {
		attributes, name, ok := declared(command)
		if !ok || unsaved[name] || slices.Contains(ownVariables, name) {
			continue
		}
		seen[name] = true
		if name == "POSIXLY_CORRECT" {
			if _, value, ok := strings.Cut(string(command), "="); ok {
				posix = "POSIXLY_CORRECT=" + value // not readonly: see stuck
			}
			if strings.Contains(attributes, "x") {
				posix += "\\builtin export POSIXLY_CORRECT\n"
			}
			continue
		}
		b.Write(command) // with \builtin it could hold no array
	}
	for _, name := range preset {
		if !seen[name] {
			fmt.Fprintf(b, "\\builtin unset %s\n", name)
		}
	}
	return posix
}

// variables is what the snapshot says of them.
func (s *Session) variables() []byte {
	p, _ := s.state.load(s.mark())
	return p.variables
}
