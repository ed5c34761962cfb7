package shellrun

import (
	_ "embed"
	"fmt"
	"strings"
	"syscall"
)

// The scripts that a session's shell reads beside its users' text. They say what they do; comments are for readers.
var (
	//go:embed session_init.bash
	initScript string
	//go:embed session_tail.bash
	tailScript string
	//go:embed session_interrupt.bash
	interruptScript string
	//go:embed session_unwind.bash
	unwindScript string
	//go:embed session_mend.bash
	mendScript string
)

// interruptSignal makes a session's shell give up what it is doing. It is SIGRTMAX-2 in bash's list.
const interruptSignal = syscall.Signal(62)

// fill replaces the names in a script and leaves its comments out: bash would have to read them.
func fill(script string, names ...string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return strings.NewReplacer(names...).Replace(b.String())
}

// trapCommand sets the trap that interrupts runs. What a user sees of it is this one line in the output of trap.
func trapCommand(dir string) string {
	return fmt.Sprintf(`\builtin trap -- '{ CELLD_F=${CELLD_F-$-};\builtin set +xe -T;\builtin . "%s/interrupt";} 2>/dev/null&&\builtin return 130' %d`,
		dir, interruptSignal)
}

// quote makes one word of s for bash. s holds no NUL.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
