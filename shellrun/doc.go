// Package shellrun runs shell commands: one-shot commands, each in a shell of its own, and sessions, each a bash that
// stays alive from one command to the next. It speaks plain Go: output goes to an io.Writer, how it ended is a value.
//
// Invariants: output is passed on byte for byte, stdout and stderr apart; a command is over when its shell has ended,
// and what was written until then has been passed on before Run returns; what outlives it is read on, so that it never
// dies of a closed pipe; a done context ends the whole tree of a command, but in a session only the run.
// docs/SESSION_EXECUTION.md says how sessions work and what must not be changed there.
//
//	r := &shellrun.Runner{Workspace: dir, Env: proctree.BaseEnv(os.Environ())}
//	p, err := r.Prepare(shellrun.Command{ID: id, Text: "echo hi", Stdout: os.Stdout})
//	…
//	status, err := p.Run(ctx)
package shellrun
