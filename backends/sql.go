package backends

import (
	"context"
	"errors"
	"sync"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/shellrun"
	"github.com/celld/celld/sqlrun"
)

// SQL runs statements, one connection a context. A context connects at its first statement, so that one can be made
// while there is no server yet.
type SQL struct {
	Server  *sqlrun.Server
	Runner  *shellrun.Runner // checks the directory and the environment that a context is given, although nothing uses them
	Envs    EnvFile
	MaxRows int64 // of one result set; what comes after them is left out. 0: any number

	mu   sync.Mutex
	open map[string]*sqlrun.Session // by context
}

func (b *SQL) session(id string) (*sqlrun.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.open[id]; s != nil {
		return s, nil
	}
	return nil, Refuse(NoContext, "no context %q", id)
}

// Open implements Stateful.
func (b *SQL) Open(_ context.Context, req OpenRequest) (string, error) {
	env, err := b.Envs.under(req.Env)
	if err != nil {
		return "", err
	}
	at, err := b.Runner.Surroundings(req.Cwd, env, nil)
	if err != nil {
		return "", shellRefusal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[string]*sqlrun.Session{}
	}
	b.open[req.ID] = b.Server.Session()
	return at.Dir, nil
}

// Close implements Stateful.
func (b *SQL) Close(ctx context.Context, id string) error {
	s, err := b.session(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.open, id)
	b.mu.Unlock()
	return s.Close(ctx)
}

// Restart implements Restarter: the context gets a new connection.
func (b *SQL) Restart(ctx context.Context, id string) error {
	s, err := b.session(id)
	if err != nil {
		return err
	}
	return s.Reset(ctx)
}

// Prepare implements Backend.
func (b *SQL) Prepare(_ context.Context, req Request) (*Run, error) {
	s, err := b.session(req.ContextID)
	if err != nil {
		return nil, err
	}
	do := func(ctx context.Context, h hooks.Hooks) error {
		t := &table{h: h, max: b.MaxRows}
		err := s.Run(ctx, req.Code, t)
		if err == nil {
			err = t.err
		}
		if err == nil {
			return nil
		}
		if lost := errors.Is(err, sqlrun.ErrLost); ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			if lost {
				h.OnStatus(hooks.Status{State: hooks.StateConnectionLost, Detail: err.Error()})
			}
			return err // the Controller words it
		}
		return sqlFailure(err, t.open || sqlrun.IsQuery(req.Code))
	}
	return &Run{Do: do}, nil
}

// Numbers that clients of MySQL have for what no server can tell.
const (
	serverLost = 2013 // CR_SERVER_LOST
	noServer   = 2002 // CR_CONNECTION_ERROR
)

// sqlFailure makes data of what a statement failed of.
func sqlFailure(err error, query bool) *hooks.ExecError {
	f := &hooks.ExecError{Name: "DBExecError", Value: err.Error()}
	if query {
		f.Name = "DBQueryError"
	}
	var said *sqlrun.Error
	switch {
	case errors.Is(err, sqlrun.ErrNoServer):
		f.Name, f.Code, f.SQLState = "DBInitError", noServer, "HY000"
	case errors.Is(err, sqlrun.ErrLost):
		f.Code, f.SQLState = serverLost, "HY000"
	case errors.As(err, &said):
		f.Code, f.SQLState = said.Code, said.SQLState
	}
	f.Traceback = []string{f.Value}
	return f
}
