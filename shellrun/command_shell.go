package shellrun

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// scriptFD is the child's descriptor for text that is too long for an argument.
const scriptFD = 3

// shellProgram is what runs a command's text.
type shellProgram struct {
	path   string // empty: there is none
	after  string // what comes after the text, so that $0 is bash
	loader string // runs the text on scriptFD instead
}

func (s shellProgram) argv(text string) []string {
	argv := []string{"bash", "-c", text}
	if s.after != "" {
		argv = []string{"sh", "-c", text, s.after}
	}
	return argv
}

// settleIn finds out what doesn't change while celld runs.
func (r *Runner) settleIn() {
	r.room = argumentRoom()
	var ok bool
	if r.shell, ok = findShell(r.Env, "bash"); !ok {
		r.shell, _ = findShell(r.Env, "sh")
	}
}

// findShell looks for bash or sh.
func findShell(env []string, name string) (shellProgram, bool) {
	for _, path := range append(candidates(name, env, "/"), "/bin/"+name, "/usr/bin/"+name, "/usr/local/bin/"+name) {
		if !isProgram(path) {
			continue
		}
		if name == "sh" {
			return shellProgram{path: path, after: "bash", loader: `. /proc/self/fd/3`}, true
		}
		// read takes the bytes as they are, and eval runs them as -c would: return is as illegal, and $0, BASH_SOURCE and
		// the positional parameters are the same.
		const loader = `IFS= read -rd "" -u 3 CELLD_TEXT || :; exec 3<&-; eval "unset CELLD_TEXT; $CELLD_TEXT"`
		return shellProgram{path: path, loader: loader}, true
	}
	return shellProgram{}, false
}

func isProgram(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// candidates are the files that name can mean for a process with env in dir, in the order in which they are tried
// (execvp(3)).
func candidates(name string, env []string, dir string) []string {
	if strings.Contains(name, "/") {
		return []string{name} // relative to the directory in which it is executed
	}
	path, _ := proctree.Lookup(env, "PATH")
	var found []string
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) { // also an empty one
			d = filepath.Join(dir, d)
		}
		file := filepath.Join(d, name)
		if fi, err := os.Stat(file); err == nil && !fi.IsDir() {
			found = append(found, file)
		}
	}
	return found
}

// What execve(2) takes, on all architectures with pages of 4 KiB; larger pages take more.
const (
	maxArgument = 128 << 10 // one string, with its NUL
	minRoom     = 128 << 10 // all strings and their pointers
	maxRoom     = 6 << 20
	roomToSpare = 4 << 10 // the path of the program and of its interpreter
)

func argumentRoom() int {
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return minRoom
	}
	return int(max(minRoom, min(maxRoom, stack.Cur/4)))
}

// tooLarge says whether the kernel would refuse argv and env.
func (r *Runner) tooLarge(argv, env []string) bool {
	const pointer = 8
	sum := roomToSpare + len(proctree.MarkerEnv) + 64
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			if len(s) >= maxArgument {
				return true
			}
			sum += len(s) + 1 + pointer
		}
	}
	return sum > r.room
}

// memoryFile makes a file of text that has no name and starts at its beginning.
func memoryFile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err = f.WriteString(text); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
