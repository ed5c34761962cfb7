package server

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/internal/exactjson"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// body reads the body of a request. One that says that it is too large is not read at all.
func (s *Server) body(c echo.Context) ([]byte, error) {
	r := c.Request()
	if r.ContentLength > s.config.MaxBody {
		return nil, &http.MaxBytesError{Limit: s.config.MaxBody}
	}
	body, err := readBody(http.MaxBytesReader(c.Response(), r.Body, s.config.MaxBody), r.ContentLength)
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		err = badRequest("read the body: %v", err)
	}
	return body, err
}

// readBody reads all of r, of which length bytes are announced; -1: any number. The buffer ends as large as that, but
// grows with what comes: to announce much costs nobody memory.
func readBody(r io.Reader, length int64) ([]byte, error) {
	const first, most = 512, 1 << 20
	size := int64(first)
	if length >= 0 {
		size = min(length+1, most) // one more, so that the end is seen without growing
	}
	b := make([]byte, 0, size)
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
		if len(b) < cap(b) {
			continue
		}
		size = 2 * int64(cap(b))
		if length >= int64(len(b)) {
			size = min(size, length+1)
		}
		b = append(make([]byte, 0, size), b...)
	}
}

// decode reads a JSON body into v. Without a body v stays as it is, if that is allowed.
func (s *Server) decode(c echo.Context, v any, mayBeEmpty bool) error {
	body, err := s.body(c)
	if err != nil {
		return err
	}
	if mayBeEmpty && len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	return decodeJSON(body, v, exactjson.Ignore)
}

// decodeJSON reads a body or a message.
func decodeJSON(text []byte, v any, unknown exactjson.Unknown) error {
	if err := exactjson.Decode(text, v, unknown); err != nil {
		return badRequest("not the JSON that is wanted here: %v", err)
	}
	return nil
}

// timeout converts milliseconds of the wire. Absent stays absent.
func timeout(ms *openapi.Timeout) (*time.Duration, error) {
	if ms == nil {
		return nil, nil
	}
	if *ms < 0 {
		return nil, badRequest("timeout must not be negative")
	}
	d := time.Duration(math.MaxInt64)
	if *ms < int64(d/time.Millisecond) {
		d = time.Duration(*ms) * time.Millisecond
	}
	return &d, nil
}

func userID(id *openapi.UserID, name string) (*uint32, error) {
	if id == nil {
		return nil, nil
	}
	if *id < 0 || *id >= math.MaxUint32 {
		return nil, badRequest("%s must be between 0 and 4294967294", name)
	}
	n := uint32(*id)
	return &n, nil
}

func users(uid, gid *openapi.UserID) (u, g *uint32, err error) {
	if u, err = userID(uid, "uid"); err != nil {
		return nil, nil, err
	}
	if g, err = userID(gid, "gid"); err != nil {
		return nil, nil, err
	}
	if g != nil && u == nil {
		return nil, nil, badRequest("gid needs uid")
	}
	return u, g, nil
}

func outputMode(m *openapi.OutputMode, otherwise hooks.Mode) (hooks.Mode, error) {
	if m == nil || *m == "" {
		return otherwise, nil
	}
	switch *m {
	case openapi.OutputModeLines:
		return hooks.Lines, nil
	case openapi.OutputModeRaw:
		return hooks.Raw, nil
	case openapi.OutputModeBase64:
		return hooks.Base64, nil
	}
	return 0, badRequest("output must be lines, raw or base64, not %q", *m)
}

// onDisconnect says whether the run ends with its client's connection.
func onDisconnect(p *openapi.OnDisconnect) (ends bool, err error) {
	if p == nil || *p == "" {
		return true, nil
	}
	switch *p {
	case openapi.OnDisconnectKill, openapi.OnDisconnectInterrupt:
		return true, nil
	case openapi.OnDisconnectContinue:
		return false, nil
	}
	return false, badRequest("on_disconnect must be kill, interrupt or continue, not %q", *p)
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// commandRequest makes a request of POST /command.
func (s *Server) commandRequest(q *openapi.RunCommandRequest) (backends.Request, error) {
	req := backends.Request{
		Kind: backends.KindCommand, Code: value(q.Command), Argv: q.Argv, Cwd: value(q.Cwd), Env: q.Envs,
		Stdin: q.Stdin, StdinOpen: value(q.StdinOpen), Rlimits: q.Rlimits,
	}
	switch {
	case q.Command != nil && q.Argv != nil:
		return req, badRequest("command and argv exclude each other")
	case q.Argv != nil && len(q.Argv) == 0:
		return req, badRequest("argv must not be empty")
	case q.Command == nil && q.Argv == nil:
		return req, badRequest("command or argv is missing")
	case strings.TrimSpace(req.Code) == "" && len(q.Argv) == 0:
		return req, badRequest("command must not be empty")
	case len(q.Argv) > 0 && q.Argv[0] == "":
		return req, badRequest("argv[0] must not be empty")
	}
	if value(q.Background) {
		req.Kind = backends.KindBackground
	}
	var err error
	if req.Timeout, err = timeout(q.Timeout); err != nil {
		return req, err
	}
	if req.UID, req.GID, err = users(q.UID, q.GID); err != nil {
		return req, err
	}
	if err = s.chooseSession(&req, q.SessionID); err != nil {
		return req, err
	}
	req.Output, err = outputMode(q.Output, hooks.Lines)
	return req, err
}

// chooseSession lets a command that names a session run in it, and one in the background beside it.
func (s *Server) chooseSession(req *backends.Request, id *string) error {
	switch {
	case id != nil && *id == "":
		return badRequest("session_id must not be empty")
	case id != nil:
		req.ContextID = *id
	case s.config.DefaultSession:
		req.ContextID = backends.DefaultSession
	default:
		return nil
	}
	switch {
	case len(req.Argv) > 0:
		return badRequest("a session takes a command, not argv")
	case req.UID != nil:
		return badRequest("uid and gid are the session's")
	case req.Kind == backends.KindCommand && (req.StdinOpen || len(req.Rlimits) > 0):
		return badRequest("stdin_open and rlimits are for commands of their own")
	}
	if req.Kind == backends.KindCommand {
		req.Kind = backends.KindSession
	}
	req.Create, req.OwnName = true, true
	return nil
}

// codeRequest makes a request of POST /code. Without a language and an id the code is a shell command.
func codeRequest(q *openapi.RunCodeRequest) (backends.Request, error) {
	req := backends.Request{Kind: backends.KindCode, Code: q.Code, AllowInput: value(q.Stdin), Output: hooks.Raw}
	if q.Context != nil {
		req.Language, req.ContextID = value(q.Context.Language), value(q.Context.ID)
	}
	if req.Language == "" && req.ContextID == "" {
		req.Kind, req.Output = backends.KindCommand, hooks.Lines
	}
	// A blank cell is one that does nothing.
	if q.Code == "" || req.Kind == backends.KindCommand && strings.TrimSpace(q.Code) == "" {
		return req, badRequest("code must not be empty")
	}
	switch value(q.OnBusy) {
	case "", openapi.RunCodeRequestOnBusyQueue:
	case openapi.RunCodeRequestOnBusyFail:
		req.FailBusy = true
	default:
		return req, badRequest("on_busy must be queue or fail, not %q", *q.OnBusy)
	}
	var err error
	req.Timeout, err = timeout(q.Timeout)
	return req, err
}
