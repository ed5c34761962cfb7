package server

import (
	"net/http"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// runCode is POST /code.
func (s *Server) runCode(c echo.Context) error {
	var q openapi.RunCodeRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	req, err := codeRequest(&q)
	if err != nil {
		return err
	}
	ends, err := onDisconnect(q.OnDisconnect)
	if err != nil {
		return err
	}
	return s.startAndFollow(c, req, ends)
}

// interruptCode is DELETE /code?id=. Nothing running is fine.
func (s *Server) interruptCode(c echo.Context) error {
	if _, err := s.interrupt(c); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

// createContext is POST /code/context.
func (s *Server) createContext(c echo.Context) error {
	var q openapi.CreateContextRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	if q.Language == "" {
		return badRequest("language is empty")
	}
	made, err := s.controller.OpenContext(c.Request().Context(), backends.OpenRequest{
		Language: q.Language, Cwd: value(q.Cwd), Env: q.Envs,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, codeContext(made))
}

func codeContext(x backends.Context) openapi.CodeContext {
	cc := openapi.CodeContext{ID: x.ID, Language: x.Language}
	if x.Cwd != "" {
		cc.Cwd = &x.Cwd
	}
	return cc
}

// listContexts is GET /code/contexts.
func (s *Server) listContexts(c echo.Context) error {
	if headOnly(c) { // to know a language may take a kernels' server
		c.Response().Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		return c.NoContent(http.StatusOK)
	}
	all, err := s.controller.Contexts(c.Request().Context(), c.QueryParam("language"))
	if err != nil {
		return err
	}
	list := make([]openapi.CodeContext, 0, len(all))
	for _, x := range all {
		list = append(list, codeContext(x))
	}
	return c.JSON(http.StatusOK, list)
}

// getContext is GET /code/contexts/{id}.
func (s *Server) getContext(c echo.Context) error {
	x, err := s.controller.Context(c.Param("id"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, codeContext(x))
}

// deleteContext is DELETE /code/contexts/{id}.
func (s *Server) deleteContext(c echo.Context) error {
	if err := s.controller.CloseContext(c.Request().Context(), c.Param("id")); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

// deleteContexts is DELETE /code/contexts?language=: all contexts of a language.
func (s *Server) deleteContexts(c echo.Context) error {
	language := c.QueryParam("language")
	if language == "" {
		return badQuery("language is missing")
	}
	ctx := c.Request().Context()
	all, err := s.controller.Contexts(ctx, language)
	if err != nil {
		return err
	}
	for _, x := range all {
		if err := s.controller.CloseContext(ctx, x.ID); err != nil {
			s.log.Debug("delete context", "id", x.ID, "error", err) // somebody else deleted it
		}
	}
	return c.NoContent(http.StatusOK)
}

// restartContext is POST /code/contexts/{id}/restart.
func (s *Server) restartContext(c echo.Context) error {
	if err := s.controller.RestartContext(c.Request().Context(), c.Param("id")); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

// codeInput is POST /code/input: the answer to an input_request, by context or execution id.
func (s *Server) codeInput(c echo.Context) error {
	var q openapi.CodeInputRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	if q.ID == "" {
		return badRequest("id is missing")
	}
	if err := s.controller.Input(c.Request().Context(), q.ID, q.Value); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}
