package server

import (
	"net/http"
	"strings"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// createSession is POST /session. The body may be empty.
func (s *Server) createSession(c echo.Context) error {
	var q openapi.CreateSessionRequest
	if err := s.decode(c, &q, true); err != nil {
		return err
	}
	req := backends.OpenRequest{ID: value(q.ID), Cwd: value(q.Cwd), Env: q.Envs}
	if q.ID != nil && *q.ID == "" {
		return badRequest("id must not be empty")
	}
	var err error
	if req.Timeout, err = timeout(q.Timeout); err != nil {
		return err
	}
	if req.UID, req.GID, err = users(q.UID, q.GID); err != nil {
		return err
	}
	made, err := s.controller.OpenSession(c.Request().Context(), req)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, openapi.CreateSessionResponse{SessionID: made.ID})
}

// runInSession is POST /session/{id}/run.
func (s *Server) runInSession(c echo.Context) error {
	var q openapi.RunInSessionRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	req, err := sessionRequest(c.Param("id"), &q)
	if err != nil {
		return err
	}
	ends, err := onDisconnect(q.OnDisconnect)
	if err != nil {
		return err
	}
	return s.startAndFollow(c, req, ends)
}

// sessionRequest makes a request of POST /session/{id}/run.
func sessionRequest(id string, q *openapi.RunInSessionRequest) (backends.Request, error) {
	req := backends.Request{
		Kind: backends.KindSession, ContextID: id, Code: q.Command, Cwd: value(q.Cwd), Env: q.Envs,
		Stdin: q.Stdin, Create: value(q.Create),
	}
	if strings.TrimSpace(q.Command) == "" {
		return req, badRequest("command must not be empty")
	}
	var err error
	if req.Timeout, err = timeout(q.Timeout); err != nil {
		return req, err
	}
	req.Output, err = outputMode(q.Output, hooks.Lines)
	return req, err
}

// interruptSession is DELETE /session/{id}/run.
func (s *Server) interruptSession(c echo.Context) error {
	if _, err := s.controller.InterruptSession(c.Request().Context(), c.Param("id")); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

// listSessions is GET /session.
func (s *Server) listSessions(c echo.Context) error {
	all, err := s.controller.Sessions(c.Request().Context())
	if err != nil {
		return err
	}
	list := make([]openapi.Session, 0, len(all))
	for _, x := range all {
		list = append(list, session(x))
	}
	return c.JSON(http.StatusOK, list)
}

// getSession is GET /session/{id}.
func (s *Server) getSession(c echo.Context) error {
	x, err := s.controller.Session(c.Request().Context(), c.Param("id"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, session(x))
}

func session(x backends.Session) openapi.Session {
	o := openapi.Session{ID: x.ID, Cwd: x.Cwd, Running: x.Running, CreatedAt: x.Created.UTC(), LastUsedAt: x.LastUsed.UTC()}
	if x.PID > 0 {
		o.PID = &x.PID
	}
	return o
}

// deleteSession is DELETE /session/{id}.
func (s *Server) deleteSession(c echo.Context) error {
	if err := s.controller.CloseSession(c.Request().Context(), c.Param("id")); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

// sessionLog is GET /session/{id}/logs.
func (s *Server) sessionLog(c echo.Context) error {
	log, err := s.controller.SessionLog(c.Request().Context(), c.Param("id"))
	if err != nil {
		return err
	}
	return sendLog(c, log, whole(log))
}
