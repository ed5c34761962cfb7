package server

import (
	"context"
	"sync"
)

// ends are the requests that have to be ended when the server ends, since they wouldn't by themselves.
type ends struct {
	mu      sync.Mutex
	over    bool
	cancels map[*context.CancelFunc]struct{}
}

// during returns a context that also ends when the server does. The function has to be called when the request is done.
func (s *Server) during(ctx context.Context) (context.Context, func()) {
	e := &s.ends
	ctx, cancel := context.WithCancel(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		cancel()
		return ctx, cancel
	}
	key := &cancel
	if e.cancels == nil {
		e.cancels = map[*context.CancelFunc]struct{}{}
	}
	e.cancels[key] = struct{}{}
	return ctx, func() {
		e.mu.Lock()
		delete(e.cancels, key)
		e.mu.Unlock()
		cancel()
	}
}

// all ends those under way, and those to come.
func (e *ends) all() {
	e.mu.Lock()
	cancels := e.cancels
	e.over, e.cancels = true, nil
	e.mu.Unlock()
	for cancel := range cancels {
		(*cancel)()
	}
}
