package sqlrun

import (
	"context"
	"errors"
	"fmt"
)

// Errors of a Session. They come wrapped.
var (
	ErrNoServer = errors.New("no SQL server") // it can't be had, or doesn't let us in
	ErrLost     = errors.New("the connection to the SQL server was lost")
	ErrClosed   = errors.New("the context is closed")
)

// lost is what ErrLost means for whoever had it.
const lost = "its database in use, variables, temporary tables, locks and open transaction are gone; the next statement gets a new connection"

// Session is one connection, opened at the first statement and kept until Close. Its methods may be called from any
// goroutine; runs wait for each other.
type Session struct {
	server *Server
	turn   chan struct{} // holds one: whoever has taken it has what follows
	conn   *conn         // nil: not yet, or no more
	closed bool
}

// Run executes text, which may be several statements, and reports what they answer to to. It returns an *Error if the
// server refused one, an error that wraps ErrNoServer or ErrLost, or, if ctx was done before the end, its cause: then
// the statement has been stopped at the server, within 3 s.
func (s *Session) Run(ctx context.Context, text string, to Answer) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if s.closed {
		return ErrClosed
	}
	if s.conn != nil && !s.conn.alive() {
		s.drop()
		return fmt.Errorf("%w before the statement was sent: %s", ErrLost, lost)
	}
	if s.conn == nil {
		c, err := s.server.connect(ctx)
		if err != nil {
			return err
		}
		s.conn = c
	}
	killed, err := s.conn.runUntil(ctx, text, to)
	if !inStep(err) {
		s.drop()
		if killed {
			return fmt.Errorf("%w; %w, since the statement did not stop in time: %s", context.Cause(ctx), ErrLost, lost)
		}
		return fmt.Errorf("%w during the statement (%w): %s", ErrLost, err, lost)
	}
	if killed {
		return context.Cause(ctx)
	}
	return err
}

// Reset gives up the connection; the next statement gets a new one.
func (s *Session) Reset(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	s.drop()
	return nil
}

// Close ends the session once its run, which its caller has stopped, is over.
func (s *Session) Close(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	s.drop()
	s.closed = true
	return nil
}

func (s *Session) take(ctx context.Context) error {
	select {
	case <-s.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Session) give() { s.turn <- struct{}{} }

func (s *Session) drop() {
	if s.conn != nil {
		s.conn.close()
		s.conn = nil
	}
}

// IsQuery says whether a statement asks for rows, by its first word: how its error is called depends on it.
func IsQuery(text string) bool {
	switch verb(text) {
	case "SELECT", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "WITH", "VALUES", "TABLE", "CALL", "ANALYZE", "CHECK", "HELP":
		return true
	}
	return false
}
