package server

import (
	"context"
	"net/http"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/internal/exactjson"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// partWithin is how long clients of a terminal may take to get its end before it is forgotten.
const partWithin = time.Second

// terminalRoutes are the routes of terminals.
func (s *Server) terminalRoutes() {
	s.echo.POST("/pty", s.createPTY)
	s.get("/pty", s.listPTYs)
	s.echo.POST("/pty/operations", s.createPTYOperation)
	s.get("/pty/:id", s.getPTY)
	s.echo.DELETE("/pty/:id", s.deletePTY)
	s.echo.GET("/pty/:id/ws", s.connectPTY)
}

// createPTY is POST /pty. The body may be empty.
func (s *Server) createPTY(c echo.Context) error {
	var q openapi.CreatePTYRequest
	if err := s.decode(c, &q, true); err != nil {
		return err
	}
	req, err := terminalRequest(&q)
	if err != nil {
		return err
	}
	e, err := s.controller.Create(c.Request().Context(), req)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, openapi.CreatePTYResponse{SessionID: e.ID})
}

func terminalRequest(q *openapi.CreatePTYRequest) (backends.Request, error) {
	req := backends.Request{
		Kind: backends.KindPTY, Code: value(q.Command), Cwd: value(q.Cwd), Env: q.Envs,
		Cols: value(q.Cols), Rows: value(q.Rows),
	}
	var err error
	req.UID, req.GID, err = users(q.UID, q.GID)
	return req, err
}

// createPTYOperation is POST /pty/operations: a terminal, once.
func (s *Server) createPTYOperation(c echo.Context) error {
	body, err := s.body(c)
	if err != nil {
		return err
	}
	var q openapi.PTYOperationRequest
	if err := decodeJSON(body, &q, exactjson.Refuse); err != nil {
		return err
	}
	req, err := terminalRequest(&openapi.CreatePTYRequest{
		Command: q.Command, Cwd: q.Cwd, Cols: q.Cols, Rows: q.Rows, Envs: q.Envs, UID: q.UID, GID: q.GID,
	})
	if err != nil {
		return err
	}
	return s.createOnce(c, q.OperationID, openapi.OperationKindPTY, q, func(ctx context.Context) (*backends.Execution, error) {
		return s.controller.Create(ctx, req)
	})
}

// terminal returns the terminal that a path names.
func (s *Server) terminal(c echo.Context) (*backends.Execution, error) {
	e, err := s.controller.Execution(c.Param("id"))
	if err != nil || e.Kind != backends.KindPTY {
		return nil, backends.Refuse(backends.NoContext, "no terminal %q", c.Param("id"))
	}
	return e, nil
}

// listPTYs is GET /pty.
func (s *Server) listPTYs(c echo.Context) error {
	list := []openapi.PTYStatus{}
	for _, e := range s.controller.Executions(func(e *backends.Execution) bool { return e.Kind == backends.KindPTY }) {
		list = append(list, terminalStatus(e))
	}
	return c.JSON(http.StatusOK, list)
}

// getPTY is GET /pty/{id}.
func (s *Server) getPTY(c echo.Context) error {
	e, err := s.terminal(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, terminalStatus(e))
}

func terminalStatus(e *backends.Execution) openapi.PTYStatus {
	o, t := e.Outcome(), e.Handle().Terminal
	_, end := e.Log().Bounds()
	st := openapi.PTYStatus{
		SessionID: e.ID, OutputOffset: end, LaunchAttempted: e.Begun(), LaunchFailed: t.Failed(), Command: e.Content,
		Mode: terminalMode(t), Connected: t.Held(), ExitCode: o.ExitCode, CreatedAt: e.Started.UTC(),
	}
	st.Cols, st.Rows = t.Size()
	if pid := e.Handle().PID(); pid > 0 {
		st.PID, st.Running = &pid, o.Running
	}
	return st
}

func terminalMode(t *backends.Terminal) openapi.PTYMode {
	if t.Pipes() {
		return openapi.PTYModePipe
	}
	return openapi.PTYModeTerminal
}

// deletePTY is DELETE /pty/{id}. Who is connected gets the end.
func (s *Server) deletePTY(c echo.Context) error {
	e, err := s.terminal(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), stopWithinRequest)
	defer cancel()
	if _, err := s.controller.Interrupt(ctx, e.ID); err != nil {
		return err
	}
	part, cancel := context.WithTimeout(ctx, partWithin)
	defer cancel()
	for _, k := range s.terminals.of(e) {
		select {
		case <-k.followed:
		case <-part.Done():
			k.end(backends.ErrDeleted)
		}
	}
	if err := s.controller.Delete(ctx, e.ID); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}
