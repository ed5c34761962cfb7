package backends

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/shellrun"
)

// Times between asking a command's processes to end and killing them.
const (
	killGrace    = 3 * time.Second
	timeoutGrace = 500 * time.Millisecond // so that a timed-out command is over within a second of its limit
)

// Command runs one-shot commands, in the foreground and in the background: only who listens differs.
type Command struct {
	Runner *shellrun.Runner
	Envs   EnvFile // read for each command
}

// Prepare implements Backend.
func (b *Command) Prepare(_ context.Context, req Request) (*Run, error) {
	env, err := b.Envs.under(req.Env)
	if err != nil {
		return nil, err
	}
	c := command(req)
	c.Env = env
	return commandRun(b.Runner, c)
}

// command is what the runner is asked for.
func command(req Request) shellrun.Command {
	return shellrun.Command{
		ID: req.ExecutionID, Text: req.Code, Argv: req.Argv, Dir: req.Cwd, Env: req.Env, User: user(req.UID, req.GID),
		Stdin: req.Stdin, StdinOpen: req.StdinOpen, Rlimits: req.Rlimits, Late: req.Late,
	}
}

// commandRun prepares a command.
func commandRun(r *shellrun.Runner, c shellrun.Command) (*Run, error) {
	out, errs := &output{}, &output{}
	c.Stdout, c.Stderr = out, errs
	p, err := r.Prepare(c)
	if err != nil {
		return nil, shellRefusal(err)
	}
	do := func(ctx context.Context, h hooks.Hooks) error {
		out.call, errs.call = h.OnStdout, h.OnStderr
		status, err := p.Run(ctx)
		if err != nil {
			return runError(ctx, err)
		}
		return commandEnd(ctx, "Command", p.Stopped(), status.Code)
	}
	over := make(chan struct{})
	signal := func(sig syscall.Signal) error {
		select {
		case <-p.Started(): // it is known to clients a moment earlier
		case <-over:
		}
		return p.Signal(sig)
	}
	return &Run{Do: do, Release: func() { close(over) }, Exit: true, Handle: Handle{
		PID: p.PID, Signal: signal, Stdin: stdin(p, over), Lingers: p.Lingers, Survivors: p.Survivors,
		Kill: func(ctx context.Context) error { return p.Kill(ctx, killGrace) },
	}}, nil
}

// stdin turns the runner's refusal into ours. A command that was stopped before it began is over without having started.
func stdin(p *shellrun.Prepared, over <-chan struct{}) func(context.Context, []byte, bool) error {
	return func(ctx context.Context, data []byte, eof bool) error {
		err := shellrun.ErrStdinClosed
		select {
		case <-p.Started():
			err = p.Stdin(ctx, data, eof)
		case <-over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if errors.Is(err, shellrun.ErrStdinClosed) {
			return &Error{Fault: Conflict, Message: err.Error(), Err: err}
		}
		return err
	}
}

// shellRefusal makes a refusal of what the runner finds wrong with a request.
func shellRefusal(err error) error {
	var bad *shellrun.RequestError
	switch {
	case errors.As(err, &bad):
		return &Error{Fault: Invalid, Message: bad.Error(), Err: err}
	case errors.Is(err, shellrun.ErrNoShell):
		return &Error{Fault: NotSupported, Message: err.Error(), Err: err}
	}
	return err
}

// runError is what is reported of a command that didn't run after all.
func runError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return stopped(ctx, "Command")
	}
	return &hooks.ExecError{Name: "RuntimeError", Value: err.Error()}
}

// output gives what is written to a hook.
type output struct{ call func(hooks.Output) }

func (o *output) Write(p []byte) (int, error) {
	o.call(hooks.Output{Data: p})
	return len(p), nil
}

func user(uid, gid *uint32) *shellrun.User {
	if uid == nil {
		return nil
	}
	return &shellrun.User{UID: *uid, GID: gid}
}

// Grace is how long a stopped command may take to end by itself, by why it was stopped.
func Grace(cause error) time.Duration {
	if errors.Is(cause, ErrTimeout) {
		return timeoutGrace
	}
	return killGrace
}

// commandEnd makes an error of an exit status that is not 0, and of any status of what was stopped (broken); noun is the
// first word of the errors of its kind.
func commandEnd(ctx context.Context, noun string, broken bool, code int) error {
	if broken {
		e := stopped(ctx, noun)
		e.Value, e.ExitCode = strconv.Itoa(code), &code
		return e
	}
	if code == 0 {
		return nil
	}
	return &hooks.ExecError{Name: "CommandExecError", Value: strconv.Itoa(code), ExitCode: &code,
		Traceback: []string{fmt.Sprintf("exit status %d", code)}}
}
