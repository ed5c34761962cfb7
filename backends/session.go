package backends

import (
	"context"
	"errors"
	"sync"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/shellrun"
)

// Sessions runs commands in live bash sessions, one bash a session. Of KindCode they are cells of bash.
type Sessions struct {
	Hub    *shellrun.Sessions
	Runner *shellrun.Runner
	Bash   string  // absolute path; empty: there is none, and no sessions
	Envs   EnvFile // read for each new session

	mu   sync.Mutex
	open map[string]*shellrun.Session
	made map[string]OpenRequest // what the open ones were made from
}

func (b *Sessions) session(id string) (*shellrun.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.open[id]; s != nil {
		return s, nil
	}
	return nil, Refuse(NoContext, "no session %q", id)
}

// Open implements Stateful.
func (b *Sessions) Open(ctx context.Context, req OpenRequest) (string, error) {
	if b.Bash == "" {
		return "", Refuse(NotSupported, "sessions need bash, which is not installed here")
	}
	env, err := b.Envs.under(req.Env)
	if err != nil {
		return "", err
	}
	at, err := b.Runner.Surroundings(req.Cwd, env, user(req.UID, req.GID))
	if err != nil {
		return "", shellRefusal(err)
	}
	s, err := b.Hub.Open(ctx, shellrun.SessionConfig{
		ID: req.ID, Bash: b.Bash, Dir: at.Dir, BaseEnv: at.Env, Credential: at.Credential, OOMScore: b.Runner.OOMScore,
		Log: req.Late,
	})
	if err != nil {
		return "", shellRefusal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open, b.made = map[string]*shellrun.Session{}, map[string]OpenRequest{}
	}
	b.open[req.ID], b.made[req.ID] = s, req
	return at.Dir, nil
}

// Close implements Stateful.
func (b *Sessions) Close(ctx context.Context, id string) error {
	s, err := b.session(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.open, id)
	delete(b.made, id)
	b.mu.Unlock()
	return s.Close(ctx)
}

// Restart implements Restarter: a new shell, where and with what the first one began.
func (b *Sessions) Restart(ctx context.Context, id string) error {
	b.mu.Lock()
	req := b.made[id]
	b.mu.Unlock()
	if err := b.Close(ctx, id); err != nil {
		return err
	}
	_, err := b.Open(ctx, req)
	return err
}

// Describe implements Describer.
func (b *Sessions) Describe(id string) (cwd string, pid int, err error) {
	s, err := b.session(id)
	if err != nil {
		return "", 0, err
	}
	info := s.Info()
	return info.Cwd, info.PID, nil
}

// Prepare implements Backend.
func (b *Sessions) Prepare(_ context.Context, req Request) (*Run, error) {
	s, err := b.session(req.ContextID)
	if err != nil {
		return nil, err
	}
	if req.Kind == KindBackground {
		return b.beside(s, req)
	}
	out, errs := &output{}, &output{}
	run := shellrun.SessionRun{
		ID: req.ExecutionID, Text: req.Code, Dir: req.Cwd, Env: req.Env, Stdout: out, Stderr: errs,
	}
	if req.Stdin != nil {
		run.Stdin, run.HasStdin = *req.Stdin, true
	}
	if err := s.Check(run); err != nil {
		return nil, shellRefusal(err)
	}
	do := func(ctx context.Context, h hooks.Hooks) error {
		out.call, errs.call = h.OnStdout, h.OnStderr
		run.Note = func(state, detail string) { h.OnStatus(hooks.Status{State: state, Detail: detail}) }
		exit, err := s.Run(ctx, run)
		var refused *shellrun.RequestError
		switch {
		case errors.As(err, &refused): // what was fine when the run was accepted, as a variable that is readonly since
			code := 1
			return &hooks.ExecError{Name: "CommandExecError", Value: "1", ExitCode: &code, Traceback: []string{refused.Error()}}
		case errors.Is(err, shellrun.ErrSessionClosed) && ctx.Err() == nil:
			return &hooks.ExecError{Name: "CommandInterrupted", Value: "the session was deleted"}
		case errors.Is(err, shellrun.ErrSessionLost):
			return &hooks.ExecError{Name: "SessionLost", Value: err.Error()}
		case err != nil:
			return err
		}
		noun := "Command"
		if req.Kind == KindCode {
			noun = "Cell"
		}
		return commandEnd(ctx, noun, exit.Broken, exit.Code)
	}
	return &Run{Do: do, Exit: true}, nil
}

// beside prepares a background command that begins with the session's state and has a life of its own.
func (b *Sessions) beside(s *shellrun.Session, req Request) (*Run, error) {
	c, err := s.Beside(command(req))
	if err != nil {
		return nil, shellRefusal(err)
	}
	return commandRun(b.Runner, c)
}
