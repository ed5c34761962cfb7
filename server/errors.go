package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/files"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// problem is an error with the status and code of its answer.
type problem struct {
	status  int
	code    openapi.ErrorCode
	message string
}

func (p *problem) Error() string { return p.message }

func badRequest(format string, args ...any) error {
	return &problem{http.StatusBadRequest, openapi.ErrorCodeInvalidRequestBody, fmt.Sprintf(format, args...)}
}

func badQuery(format string, args ...any) error {
	return &problem{http.StatusBadRequest, openapi.ErrorCodeMissingQuery, fmt.Sprintf(format, args...)}
}

// asProblem chooses the status and the code of every error; nothing else does.
func asProblem(err error) *problem {
	var p *problem
	var refused *backends.Error
	var refusedFile *files.Error
	var httpError *echo.HTTPError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &tooLarge):
		return &problem{http.StatusRequestEntityTooLarge, openapi.ErrorCodeTooLarge,
			fmt.Sprintf("the request is larger than %d bytes", tooLarge.Limit)}
	case errors.As(err, &refused):
		return refusal(refused)
	case errors.As(err, &refusedFile):
		return fileRefusal(refusedFile)
	case errors.As(err, &httpError):
		return routing(httpError)
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{http.StatusServiceUnavailable, openapi.ErrorCodeUnavailable, err.Error()}
	}
	return &problem{http.StatusInternalServerError, openapi.ErrorCodeRuntimeError, err.Error()}
}

func refusal(e *backends.Error) *problem {
	status, code := http.StatusInternalServerError, openapi.ErrorCodeRuntimeError
	switch e.Fault {
	case backends.Invalid:
		status, code = http.StatusBadRequest, openapi.ErrorCodeInvalidRequestBody
	case backends.NotFound:
		status, code = http.StatusNotFound, openapi.ErrorCodeNotFound
	case backends.NoContext:
		status, code = http.StatusNotFound, openapi.ErrorCodeContextNotFound
	case backends.Conflict:
		status, code = http.StatusConflict, openapi.ErrorCodeConflict
	case backends.Busy:
		status, code = http.StatusConflict, openapi.ErrorCodeBusy
	case backends.Limit:
		status, code = http.StatusTooManyRequests, openapi.ErrorCodeLimitExceeded
	case backends.Unavailable:
		status, code = http.StatusServiceUnavailable, openapi.ErrorCodeUnavailable
	case backends.NotSupported:
		status, code = http.StatusBadRequest, openapi.ErrorCodeNotSupported
	}
	return &problem{status, code, e.Message}
}

// routing is what echo says of paths and methods it doesn't know.
func routing(e *echo.HTTPError) *problem {
	message := fmt.Sprint(e.Message)
	switch e.Code {
	case http.StatusNotFound:
		return &problem{e.Code, openapi.ErrorCodeNotFound, "no such path"}
	case http.StatusMethodNotAllowed:
		return &problem{e.Code, openapi.ErrorCodeMethodNotAllowed, "this path doesn't take that method"}
	case http.StatusRequestEntityTooLarge:
		return &problem{e.Code, openapi.ErrorCodeTooLarge, message}
	}
	return &problem{e.Code, openapi.ErrorCodeUnknown, message}
}

// onError answers with an error as JSON, unless the answer has begun.
func (s *Server) onError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	p := asProblem(err)
	if p.status >= 500 && p.status != http.StatusServiceUnavailable && p.status != http.StatusBadGateway { // which are no faults of ours
		s.log.Error("request failed", "method", c.Request().Method, "path", c.Request().URL.Path, "error", err)
	}
	body, _ := json.Marshal(openapi.Error{Code: p.code, Message: p.message}) // strings only: never fails
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	c.Response().WriteHeader(p.status)
	if !headOnly(c) {
		c.Response().Write(body) // a client that is gone needs no answer
	}
}

// catch turns a handler's panic into an answer and keeps the daemon alive. It is the one place besides the Controller
// that recovers.
func (s *Server) catch(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			r := recover()
			if r == nil {
				return
			}
			if r == http.ErrAbortHandler { // net/http's own way to cut a connection
				panic(r)
			}
			s.log.Error("handler panicked", "path", c.Request().URL.Path, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = &problem{http.StatusInternalServerError, openapi.ErrorCodeUnknown, "internal error"}
		}()
		return next(c)
	}
}
