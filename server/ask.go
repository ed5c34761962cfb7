package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// completeCode is POST /code/contexts/{id}/complete.
func (s *Server) completeCode(c echo.Context) error {
	reply := openapi.Completion{Matches: []string{}}
	if err := s.ask(c, backends.AskComplete, &reply); err != nil {
		return err
	}
	if reply.Matches == nil { // the kernel said null
		reply.Matches = []string{}
	}
	return c.JSON(http.StatusOK, reply)
}

// inspectCode is POST /code/contexts/{id}/inspect.
func (s *Server) inspectCode(c echo.Context) error {
	reply := openapi.Inspection{}
	if err := s.ask(c, backends.AskInspect, &reply); err != nil {
		return err
	}
	if reply.Data == nil {
		reply.Data = map[string]any{}
	}
	return c.JSON(http.StatusOK, reply)
}

// isCodeComplete is POST /code/contexts/{id}/is_complete.
func (s *Server) isCodeComplete(c echo.Context) error {
	reply := openapi.Completeness{}
	if err := s.ask(c, backends.AskIsComplete, &reply); err != nil {
		return err
	}
	if !reply.Status.Valid() {
		reply.Status = openapi.CompletenessStatusUnknown
	}
	return c.JSON(http.StatusOK, reply)
}

// ask asks the context's kernel and decodes the content of its reply into v.
func (s *Server) ask(c echo.Context, question string, v any) error {
	var q openapi.CodeAtRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	length := utf8.RuneCountInString(q.Code)
	at := backends.Question{Ask: question, Code: q.Code, Cursor: length, Detail: value(q.Detail)}
	if q.Cursor != nil {
		at.Cursor = *q.Cursor
	}
	if at.Cursor < 0 || at.Cursor > length {
		return badRequest("cursor must be between 0 and %d, the length of the code in characters", length)
	}
	if at.Detail < 0 || at.Detail > 1 {
		return badRequest("detail must be 0 or 1")
	}
	content, err := s.controller.Ask(c.Request().Context(), c.Param("id"), at)
	if err != nil {
		return err
	}
	var failure struct {
		Status string `json:"status"`
		Name   string `json:"ename"`
		Value  string `json:"evalue"`
	}
	if json.Unmarshal(content, &failure) == nil && (failure.Status == "error" || failure.Status == "aborted") {
		return backends.Refuse(backends.Unavailable, "the kernel could not answer: %s: %s", failure.Name, failure.Value)
	}
	if err := json.Unmarshal(content, v); err != nil {
		return fmt.Errorf("the kernel's answer: %w", err)
	}
	return nil
}
