package server

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// events is GET /executions/{id}/events and GET /command/{id}/resume: what comes after a position. With wait it is a
// long poll: it answers with what is there as soon as there is something.
func (s *Server) events(c echo.Context) error {
	e, err := s.controller.Execution(c.Param("id"))
	if err != nil {
		return err
	}
	after, err := s.after(c)
	if err != nil {
		return err
	}
	mode := openapi.OutputMode(c.QueryParam("output"))
	output, err := outputMode(&mode, e.Output)
	if err != nil {
		return err
	}
	follow := true
	if f := c.QueryParam("follow"); f != "" {
		if follow, err = strconv.ParseBool(f); err != nil {
			return badQuery("follow must be true or false, not %q", f)
		}
	}
	ctx := c.Request().Context()
	if text := c.QueryParam("wait"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			return badQuery("wait must be milliseconds from 0, not %q", text)
		}
		follow = false
		waiting, cancel := context.WithTimeout(ctx, time.Duration(min(ms, maxLongPoll.Milliseconds()))*time.Millisecond)
		defer cancel()
		if err := e.Journal.Wait(waiting, after); err != nil && ctx.Err() != nil {
			return abort(c)
		}
	}
	pos, ended := e.Journal.Position()
	if after >= pos && (ended || !follow) {
		return c.NoContent(http.StatusNoContent)
	}
	w := s.newReply(c, e, output, after)
	read := e.Journal.Follow
	if !follow {
		read = e.Journal.Replay
	}
	if err := read(ctx, after, w); err != nil {
		return abort(c)
	}
	return w.finish()
}

// maxLongPoll is the longest wait of a long poll.
const maxLongPoll = 10 * time.Minute

// after reads the position to resume from: the query, or the header that browsers send when they reconnect.
func (s *Server) after(c echo.Context) (int64, error) {
	for _, text := range []string{c.QueryParam("after"), c.QueryParam("after_eid"), c.Request().Header.Get("Last-Event-ID")} {
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return 0, badQuery("after must be an event id, a number from 0, not %q", text)
		}
		return n, nil
	}
	return 0, nil
}

// listExecutions is GET /executions: everything that runs or ran, the oldest first.
func (s *Server) listExecutions(c echo.Context) error {
	kind, state := c.QueryParam("kind"), c.QueryParam("state")
	if state != "" && state != "running" && state != "finished" {
		return badQuery("state must be running or finished, not %q", state)
	}
	if kind != "" && !slices.Contains(backends.Kinds, kind) {
		return badQuery("kind must be one of %s, not %q", strings.Join(backends.Kinds, ", "), kind)
	}
	list := []openapi.Execution{}
	for _, e := range s.controller.Executions(func(e *backends.Execution) bool {
		return (kind == "" || e.Kind == kind) && (state == "" || e.Outcome().Running == (state == "running"))
	}) {
		list = append(list, execution(e))
	}
	return c.JSON(http.StatusOK, list)
}

// getExecution is GET /executions/{id}.
func (s *Server) getExecution(c echo.Context) error {
	e, err := s.controller.Execution(c.Param("id"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, execution(e))
}

func execution(e *backends.Execution) openapi.Execution {
	o := e.Outcome()
	pos, _ := e.Journal.Position()
	x := openapi.Execution{
		ExecutionID: e.ID, Kind: e.Kind, Content: e.Content, Running: o.Running, StartedAt: e.Started.UTC(),
		ExitCode: o.ExitCode, EID: pos,
	}
	if e.Language != "" {
		x.Language = &e.Language
	}
	if e.ContextID != "" {
		x.ContextID = &e.ContextID
	}
	if !o.Running {
		finished := o.Finished.UTC()
		x.FinishedAt = &finished
	}
	if o.Failure != nil {
		text := o.Failure.Error()
		x.Error = &text
	}
	return x
}
