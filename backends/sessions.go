package backends

import (
	"context"
	"time"

	"github.com/celld/celld/hooks"
)

// Session describes a living session.
type Session struct {
	ID       string
	Cwd      string
	PID      int
	Running  bool
	Created  time.Time
	LastUsed time.Time
}

// OpenSession makes a session. An empty id gets one of 32 hex digits.
func (c *Controller) OpenSession(ctx context.Context, req OpenRequest) (Session, error) {
	entry, err := c.contexts.openSession(ctx, req)
	if err != nil {
		return Session{}, err
	}
	return c.session(entry), nil
}

// Session returns the session with this id; the default one is made if need be.
func (c *Controller) Session(ctx context.Context, id string) (Session, error) {
	entry, err := c.contexts.findSession(ctx, &Request{ContextID: id})
	if err != nil {
		return Session{}, err
	}
	return c.session(entry), nil
}

// Sessions returns all sessions, in the order they were made; the default one is always among them.
func (c *Controller) Sessions(ctx context.Context) ([]Session, error) {
	if _, err := c.contexts.findSession(ctx, &Request{ContextID: DefaultSession}); err != nil {
		return nil, err
	}
	var all []Session
	for _, entry := range c.contexts.list(func(e *openContext) bool { return e.Language == "" }) {
		select {
		case <-entry.ready:
			all = append(all, c.session(entry))
		default: // still starting
		}
	}
	return all, nil
}

func (c *Controller) session(entry *openContext) Session {
	c.contexts.mu.Lock()
	s := Session{ID: entry.ID, Cwd: entry.Cwd, Created: entry.Created, LastUsed: entry.used}
	c.contexts.mu.Unlock()
	c.mu.Lock()
	s.Running = len(c.current[entry.ID]) > 0
	c.mu.Unlock()
	if d, ok := entry.backend.(Describer); ok {
		if cwd, pid, err := d.Describe(entry.ID); err == nil {
			s.Cwd, s.PID = cwd, pid
		}
	}
	return s
}

// CloseSession deletes a session, what it runs and its jobs.
func (c *Controller) CloseSession(ctx context.Context, id string) error {
	if id == DefaultSession {
		return Refuse(Conflict, "the session %q can't be deleted; a restart of celld resets it", id)
	}
	entry, err := c.contexts.named(id, true)
	if err != nil {
		return err
	}
	return c.contexts.close(ctx, entry)
}

// InterruptSession ends the current run of a session, never the session. It reports whether there was one.
func (c *Controller) InterruptSession(ctx context.Context, id string) (bool, error) {
	if id != DefaultSession {
		if _, err := c.contexts.named(id, true); err != nil {
			return false, err
		}
	}
	return c.Interrupt(ctx, id)
}

// SessionLog returns what jobs of a session wrote between its runs; the default one is made if need be.
func (c *Controller) SessionLog(ctx context.Context, id string) (*hooks.Store, error) {
	entry, err := c.contexts.findSession(ctx, &Request{ContextID: id})
	if err != nil {
		return nil, err
	}
	return entry.log, nil
}
