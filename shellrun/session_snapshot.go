package shellrun

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The parts of a snapshot, in the order in which tail writes them.
const (
	partOwnTraps = iota // DEBUG, ERR, RETURN
	partOptions         // shopt -p
	partVariables
	partFunctions
	partFunctionAttributes
	partAliases
	partTraps
	partSettings // set +o, umask, positional parameters
	partDirectory
	parts
)

// state is what a session's shell was when its last run ended: enough to make a new one like it, and what was taken
// from it to be put back when the next run begins.
type state struct {
	raw    []byte   // the snapshot, when it is small
	file   *os.File // or else where it is
	size   int
	cwd    string // physical
	limits []limit

	flags   string // of strippedFlags, those that were on
	traps   []byte // for DEBUG, ERR and RETURN
	builtin []byte // a function of that name
	alias   bool   // some alias has the name of a reserved word
	exec    bool   // some function is called exec, and posix mode is off
	// posixOptions sets what leaving posix mode would change.
	posixOptions string
	status       int  // $?
	frozen       bool // the marker can't be changed any more
}

type limit struct {
	resource int
	value    unix.Rlimit
}

// inMemory is the size up to which a snapshot is kept in memory; a typical one has 6 KB.
const inMemory = 32 << 10

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

// load returns the parts of the snapshot, or nil.
func (st *state) load(mark string) [][]byte {
	if !st.saved() {
		return nil
	}
	b := st.raw
	if st.file != nil {
		b = make([]byte, st.size)
		if _, err := st.file.ReadAt(b, 0); err != nil && err != io.EOF {
			return nil
		}
	}
	split, _ := splitSnapshot(b, mark)
	return split
}

// splitSnapshot cuts a snapshot at the lines that hold mark. It says false for one that is not whole, or that was
// written through a function called builtin.
func splitSnapshot(b []byte, mark string) ([][]byte, bool) {
	b, ok := bytes.CutPrefix(b, []byte(mark+" \n"))
	if !ok {
		return nil, false
	}
	if b, ok = bytes.CutSuffix(b, []byte(mark+" end\n")); !ok {
		return nil, false
	}
	var split [][]byte
	sep := []byte(mark + "\n")
	for len(split) < parts-1 {
		i := bytes.Index(b, sep)
		for i > 0 && b[i-1] != '\n' {
			j := bytes.Index(b[i+1:], sep)
			if j < 0 {
				return nil, false
			}
			i += 1 + j
		}
		if i < 0 {
			return nil, false
		}
		split = append(split, b[:i])
		b = b[i+len(sep):]
	}
	return append(split, b), true
}

// reserved are the words that would break our own lines as aliases.
var reserved = [][]byte{[]byte(`!`), []byte(`{`), []byte(`}`), []byte(`[[`)}

// take makes st what a snapshot says, but for what is carried over apart.
func (st *state) take(b []byte, mark string) ([][]byte, bool) {
	split, ok := splitSnapshot(b, mark)
	if !ok || st.keep(b) != nil {
		return nil, false
	}
	st.alias = false
	for c := range commands(split[partAliases]) {
		c = bytes.TrimPrefix(bytes.TrimPrefix(c, []byte("alias ")), []byte("-- "))
		for _, word := range reserved {
			if bytes.HasPrefix(c, append(word[:len(word):len(word)], '=')) {
				st.alias = true
			}
		}
	}
	st.exec = false
	for line := range bytes.Lines(split[partFunctionAttributes]) {
		if bytes.HasPrefix(line, []byte("declare -")) && bytes.HasSuffix(line, []byte(" exec\n")) {
			st.exec = !bytes.Contains(split[partSettings], []byte("set -o posix\n"))
		}
	}
	st.posixOptions = ""
	for line := range bytes.Lines(split[partOptions]) {
		switch f := bytes.Fields(line); string(f[len(f)-1]) {
		case "expand_aliases", "inherit_errexit", "shift_verbose":
			st.posixOptions += `\builtin ` + string(line)
		}
	}
	attributes, _, _ := declared(variable(split[partVariables], "CELLD_EXECUTION_ID"))
	st.frozen = strings.Contains(attributes, "r")
	return split, true
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

// unsaved are the variables that bash keeps itself or that are ours.
var unsaved = map[string]bool{
	"BASHOPTS": true, "BASHPID": true, "BASH_ALIASES": true, "BASH_ARGC": true, "BASH_ARGV": true, "BASH_ARGV0": true,
	"BASH_CMDS": true, "BASH_COMMAND": true, "BASH_LINENO": true, "BASH_SOURCE": true, "BASH_SUBSHELL": true,
	"BASH_VERSINFO": true, "BASH_XTRACEFD": true, "CELLD_EXECUTION_ID": true, "CELLD_SESSION_ID": true,
	"COMP_WORDBREAKS": true, "DIRSTACK": true, "EPOCHREALTIME": true, "EPOCHSECONDS": true, "EUID": true,
	"FUNCNAME": true, "GROUPS": true, "HISTCMD": true, "LINENO": true, "PIPESTATUS": true, "PPID": true,
	"SHELLOPTS": true, "SRANDOM": true, "UID": true, "_": true,
}

// preset are the variables that bash sets when it starts. Those that a session has unset are unset again.
var preset = []string{
	"BASH", "BASH_VERSION", "HOSTNAME", "HOSTTYPE", "IFS", "MACHTYPE", "OLDPWD", "OPTERR", "OPTIND", "OSTYPE", "PATH",
	"PS4", "PWD", "RANDOM", "SECONDS", "SHLVL", "TERM", "BASH_LOADABLES_PATH", "MAILCHECK",
}

// restoreScript makes a new shell what the parts of a snapshot say. Aliases come before functions but are not
// expanded in them, options last.
func restoreScript(split [][]byte, from origin) string {
	var b strings.Builder
	cwd := strings.TrimSuffix(string(split[partDirectory]), "\n")
	fmt.Fprintf(&b, "\\builtin shopt -u expand_aliases\n\\builtin cd -- %s\n", quote(cwd))
	expand := "-u"
	for line := range strings.Lines(string(split[partOptions])) {
		if strings.HasSuffix(line, " expand_aliases\n") {
			expand = strings.Fields(line)[1]
		} else if from == restored {
			b.WriteString(`\builtin ` + line)
		}
	}
	posix := restoreVariables(&b, split[partVariables])
	b.Write(split[partAliases])
	if from == restored {
		for trap := range commands(split[partTraps]) {
			if !bytes.HasSuffix(trap, []byte(" SIGRTMAX-2\n")) {
				b.WriteString(`\builtin ` + string(trap))
			}
		}
	}
	b.Write(split[partFunctions])
	for line := range strings.Lines(string(split[partFunctionAttributes])) {
		if !strings.HasPrefix(line, "declare -f ") {
			b.WriteString(`\builtin ` + line)
		}
	}
	fmt.Fprintf(&b, "\\builtin shopt %s expand_aliases\n", expand)
	if from == restored {
		b.WriteString(posix)
		for line := range strings.Lines(string(split[partSettings])) {
			b.WriteString(`\builtin ` + strings.TrimPrefix(line, `\builtin `))
		}
	}
	return b.String()
}

// restoreVariables writes what sets the variables, and returns what sets those that change how bash reads.
func restoreVariables(b *strings.Builder, variables []byte) (posix string) {
	seen := make(map[string]bool)
	for command := range commands(variables) {
		_, name, ok := declared(command)
		if !ok || unsaved[name] {
			continue
		}
		seen[name] = true
		if name == "POSIXLY_CORRECT" {
			posix = `\builtin ` + string(command)
			continue
		}
		b.WriteString(`\builtin `)
		b.Write(command)
	}
	for _, name := range preset {
		if !seen[name] {
			fmt.Fprintf(b, "\\builtin unset %s\n", name)
		}
	}
	return posix
}

// variables is the part of the snapshot that declares the variables, or nil.
func (s *Session) variables() []byte {
	if split := s.state.load(s.mark()); split != nil {
		return split[partVariables]
	}
	return nil
}
