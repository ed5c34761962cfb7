package jupyter

import (
	"regexp"
	"strings"

	"github.com/celld/celld/hooks"
)

// keptStderr is how much of a cell's newest text on stderr is kept to read an error's name from, in bytes.
const keptStderr = 16 << 10

var (
	// TypeError: text; java.lang.IllegalStateException: text
	namedError = regexp.MustCompile(`^(?:Uncaught )?((?:[\pL_$][\pL\pN_$]*\.)*[\pL_$][\pL\pN_$]*(?:Error|Exception|Interrupt)|Error)(?::\s?(.*))?$`)
	// Boom: text, where a stack follows
	named = regexp.MustCompile(`^([\pL_$][\pL\pN_$.]*): (.*)$`)
	// 3:14 - text, as compilers write
	diagnostic = regexp.MustCompile(`^(?:\S+ )?\d+:\d+ - (.+)$`)
	escapes    = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
)

// keepStderr appends to what is kept.
func keepStderr(kept []byte, text string) []byte {
	kept = append(kept, text...)
	if over := len(kept) - keptStderr; over > 0 {
		kept = append(kept[:0], kept[over:]...)
	}
	return kept
}

// failureIn reads from stderr how a cell failed. Some kernels only say that one has, and print the rest: either an
// error with its stack, or the compiler's diagnostics, in both cases last. What has no name is called Error.
func failureIn(stderr []byte) *hooks.ExecError {
	text := strings.ToValidUTF8(string(stderr), "\uFFFD")
	lines := strings.Split(strings.TrimRight(escapes.ReplaceAllString(text, ""), "\n"), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSuffix(lines[i], "\r")
		found := namedError.FindStringSubmatch(line)
		if found == nil && i+1 < len(lines) && inStack(lines[i+1]) {
			found = named.FindStringSubmatch(line)
		}
		if found != nil {
			return &hooks.ExecError{Name: found[1], Value: value(found[2], lines[i+1:]), Traceback: lines[i:]}
		}
		if diagnostic.MatchString(line) {
			for i > 0 && diagnostic.MatchString(lines[i-1]) {
				i--
			}
			return &hooks.ExecError{Name: "CompileError", Value: lines[i], Traceback: lines[i:]}
		}
	}
	trace := lines
	for len(lines) > 1 && inStack(lines[len(lines)-1]) {
		lines = lines[:len(lines)-1]
	}
	last := lines[len(lines)-1]
	if last == "" {
		last = "the cell failed; the kernel doesn't say how"
	}
	return &hooks.ExecError{Name: "Error", Value: last, Traceback: append([]string{last}, trace[len(lines):]...)}
}

// value is an error's message: first, and what follows it before the stack.
func value(first string, rest []string) string {
	for i, line := range rest {
		if text := strings.TrimSpace(line); inStack(line) || text == "" || text == "{" {
			rest = rest[:i]
			break
		}
	}
	return strings.Join(append([]string{first}, rest...), "\n")
}

// nameInTrace returns an error's name and value. Some kernels give the kind of failure for the name and put the real one
// before the value, as they do in the first line of the trace, which then decides.
func nameInTrace(name, value, first string) (string, string) {
	found := namedError.FindStringSubmatch(escapes.ReplaceAllString(first, ""))
	if found == nil || found[1] == name || !strings.HasPrefix(value, found[1]) {
		return name, value
	}
	return found[1], found[2]
}

func inStack(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "at ") }
