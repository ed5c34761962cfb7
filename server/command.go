package server

import (
	"context"
	"net/http"
	"runtime"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// runCommand is POST /command.
func (s *Server) runCommand(c echo.Context) error {
	var q openapi.RunCommandRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	req, err := s.commandRequest(&q)
	if err != nil {
		return err
	}
	ends, err := onDisconnect(q.OnDisconnect)
	if err != nil {
		return err
	}
	if req.Kind == backends.KindBackground {
		return s.startAndLeave(c, req)
	}
	return s.startAndFollow(c, req, ends)
}

// startAndFollow starts req and streams it to the end.
func (s *Server) startAndFollow(c echo.Context, req backends.Request, endsWithClient bool) error {
	ctx := c.Request().Context()
	e, err := s.controller.Start(ctx, req)
	if err != nil {
		return err
	}
	runtime.Gosched() // it gets going first; init is sent meanwhile
	w := s.newReply(c, e, req.Output, 0)
	if err := e.Journal.Follow(ctx, 0, w); err != nil {
		if endsWithClient {
			e.Stop(backends.ErrClientGone)
		}
		return abort(c)
	}
	return w.finish()
}

// startAndLeave starts req and answers with the two events that clients of background commands wait for: init, and an
// execution_complete that says that it has started. The journal goes on to the real end.
func (s *Server) startAndLeave(c echo.Context, req backends.Request) error {
	e, err := s.controller.Start(c.Request().Context(), req)
	if err != nil {
		return err
	}
	w := s.newReply(c, e, req.Output, 0)
	started(e, w)
	if err := w.Flush(); err != nil {
		return abort(c)
	}
	return w.finish()
}

// started tells w that a background command has started.
func started(e *backends.Execution, w hooks.Hooks) {
	w.OnInit(hooks.Init{Stamp: hooks.Stamp{EID: 1, Time: e.Started}, ExecutionID: e.ID, ID: e.Name})
	w.OnComplete(hooks.Complete{Stamp: hooks.Stamp{Time: e.Started}})
}

func (s *Server) newStream(c echo.Context, mode hooks.Mode, after int64) *stream {
	c.Response().Committed = true // errors can't be answered from here on
	return newStream(c.Response().Writer, c.Request(), mode, after)
}

// abort cuts the connection, so that a client that is still there doesn't take a cut stream for a whole one.
func abort(c echo.Context) error { panic(http.ErrAbortHandler) }

// interruptCommand is DELETE /command?id=.
func (s *Server) interruptCommand(c echo.Context) error {
	ended, err := s.interrupt(c)
	if err != nil {
		return err
	}
	if !ended {
		return &problem{http.StatusConflict, openapi.ErrorCodeConflict, "nothing of it runs any more"}
	}
	return c.NoContent(http.StatusOK)
}

func (s *Server) interrupt(c echo.Context) (bool, error) {
	id := c.QueryParam("id")
	if id == "" {
		return false, badQuery("id is missing")
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), stopWithinRequest)
	defer cancel()
	return s.controller.Interrupt(ctx, id)
}

// commandStatus is GET /command/status/{id}.
func (s *Server) commandStatus(c echo.Context) error {
	e, err := s.controller.Execution(c.Param("id"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, status(e))
}

func status(e *backends.Execution) openapi.CommandStatus {
	o := e.Outcome()
	st := openapi.CommandStatus{
		ID: e.ID, Content: e.Content, Running: o.Running, StartedAt: e.Started.UTC(),
		ExitCode: o.ExitCode, Background: e.Kind == backends.KindBackground,
	}
	if !o.Running {
		finished := o.Finished.UTC()
		st.FinishedAt = &finished
	}
	if o.Failure != nil {
		text := o.Failure.Error()
		st.Error = &text
	}
	if pid := e.Handle().PID; pid != nil {
		if n := pid(); n > 0 {
			st.PID = &n
		}
	}
	if survivors := e.Handle().Survivors; survivors != nil && !o.Running {
		st.Survivors = survivors()
	}
	return st
}
