package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
	"golang.org/x/sys/unix"
)

// portInterval is how often a port is looked at while somebody waits for it: listen(2) raises no event.
const portInterval = 25 * time.Millisecond

// answerTimeout is how long a server that is waited for may take to answer before it is asked again.
const answerTimeout = 10 * time.Second

// command returns the command that a path names.
func (s *Server) command(c echo.Context) (*backends.Execution, error) {
	return s.controller.Execution(c.Param("id"))
}

// listCommands is GET /command.
func (s *Server) listCommands(c echo.Context) error {
	state := c.QueryParam("state")
	switch state {
	case "", "running", "finished":
	default:
		return badQuery("state must be running or finished, not %q", state)
	}
	all := s.controller.Executions(func(e *backends.Execution) bool {
		if e.Kind != backends.KindCommand && e.Kind != backends.KindBackground {
			return false
		}
		return state == "" || e.Outcome().Running == (state == "running")
	})
	list := make([]openapi.CommandStatus, len(all))
	var done sync.WaitGroup // side by side they share their looks at the process table
	for i, e := range all {
		done.Go(func() { list[i] = status(e) })
	}
	done.Wait()
	return c.JSON(http.StatusOK, list)
}

// signalCommand is POST /command/{id}/signal.
func (s *Server) signalCommand(c echo.Context) error {
	e, err := s.command(c)
	if err != nil {
		return err
	}
	var q openapi.SignalRequest
	if err := s.decode(c, &q, false); err != nil {
		return err
	}
	sig, err := signalNamed(string(q.Signal))
	if err != nil {
		return err
	}
	if err := s.signal(e, sig); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

func (s *Server) signal(e *backends.Execution, sig syscall.Signal) error {
	send := e.Handle().Signal
	if send == nil {
		return &problem{http.StatusBadRequest, openapi.ErrorCodeNotSupported, "this can't be sent signals"}
	}
	err := send(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return &problem{http.StatusConflict, openapi.ErrorCodeConflict, "it doesn't run any more"}
	}
	return err
}

// signalNamed takes SIGTERM, TERM, term or 15.
func signalNamed(name string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	upper := strings.ToUpper(name)
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	if n := unix.SignalNum(upper); n != 0 {
		return n, nil
	}
	return 0, badRequest("unknown signal %q", name)
}

// writeStdin is POST /command/{id}/stdin: the body goes to the command as it is.
func (s *Server) writeStdin(c echo.Context) error {
	e, err := s.command(c)
	if err != nil {
		return err
	}
	eof := false
	if text := c.QueryParam("eof"); text != "" {
		if eof, err = strconv.ParseBool(text); err != nil {
			return badQuery("eof must be 1 or 0, not %q", text)
		}
	}
	write := e.Handle().Stdin
	if write == nil {
		return &problem{http.StatusConflict, openapi.ErrorCodeConflict, "it was not started with stdin_open"}
	}
	data, err := s.body(c)
	if err != nil {
		return err
	}
	if err := write(c.Request().Context(), data, eof); err != nil {
		return err
	}
	return c.NoContent(http.StatusOK)
}

// waitCommand is POST /command/{id}/wait: for the end, a port or a line of output, whichever comes first. The end
// always ends the wait.
func (s *Server) waitCommand(c echo.Context) error {
	e, err := s.command(c)
	if err != nil {
		return err
	}
	var q openapi.WaitRequest
	if err := s.decode(c, &q, true); err != nil {
		return err
	}
	w, err := newWait(&q)
	if err != nil {
		return err
	}
	result, err := w.wait(c.Request().Context(), e)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, result)
}

// wait is what a client waits for.
type wait struct {
	port    int
	path    string // what has to be answered over HTTP; "": listening is enough
	status  int    // with this status; 0: from 200 to 399
	pattern *regexp.Regexp
	timeout time.Duration // 0: none
}

func newWait(q *openapi.WaitRequest) (*wait, error) {
	w := &wait{port: value(q.Port), path: value(q.Path), status: value(q.Status)}
	switch {
	case q.Port != nil && (w.port < 1 || w.port > 65535):
		return nil, badRequest("port must be between 1 and 65535")
	case q.Path != nil && (q.Port == nil || !strings.HasPrefix(w.path, "/") || !validTarget(w.path)):
		return nil, badRequest("path must be one of a URL, begin with / and come with port")
	case q.Status != nil && (q.Path == nil || w.status < 100 || w.status > 599):
		return nil, badRequest("status must be between 100 and 599 and needs path")
	}
	if q.Pattern != nil && *q.Pattern == "" {
		return nil, badRequest("pattern must not be empty")
	}
	if q.Pattern != nil {
		re, err := regexp.Compile(*q.Pattern)
		if err != nil {
			return nil, badRequest("pattern: %v", err)
		}
		w.pattern = re
	}
	d, err := timeout(q.Timeout)
	w.timeout = value(d)
	return w, err
}

func validTarget(path string) bool {
	_, err := url.ParseRequestURI(path)
	return err == nil
}

// wait returns what came first. Its goroutines have ended when it returns.
func (w *wait) wait(ctx context.Context, e *backends.Execution) (*openapi.WaitResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	first := make(chan *openapi.WaitResult, 2)
	running := 0
	watch := func(f func(context.Context, *backends.Execution) *openapi.WaitResult) {
		running++
		go func() { first <- f(ctx, e) }()
	}
	if w.pattern != nil {
		watch(w.untilLine)
	}
	if w.port > 0 {
		watch(w.untilPort)
	}
	defer func() {
		cancel()
		for ; running > 0; running-- {
			<-first
		}
	}()
	var expired <-chan time.Time
	if w.timeout > 0 {
		timer := time.NewTimer(w.timeout)
		defer timer.Stop()
		expired = timer.C
	}
	over := e.Journal.Done()
	for over != nil || running > 0 {
		select {
		case r := <-first:
			running--
			if r != nil {
				return r, nil
			}
		case <-over:
			over = nil // but the line may be in what was written last: let those who watch finish
		case <-expired:
			return &openapi.WaitResult{Event: openapi.WaitResultEventTimeout}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return &openapi.WaitResult{Event: openapi.WaitResultEventExit, ExitCode: e.Outcome().ExitCode}, nil
}

// untilPort returns when somebody listens on the port and, if that is wanted, answers over HTTP; nil when ctx is done or
// the command has ended.
func (w *wait) untilPort(ctx context.Context, e *backends.Execution) *openapi.WaitResult {
	ticker := time.NewTicker(portInterval)
	defer ticker.Stop()
	for {
		if r := w.tryPort(ctx); r != nil {
			return r
		}
		select {
		case <-ticker.C:
		case <-e.Journal.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// tryPort returns nil when nobody is there yet.
func (w *wait) tryPort(ctx context.Context) *openapi.WaitResult {
	address := net.JoinHostPort("localhost", strconv.Itoa(w.port))
	found := &openapi.WaitResult{Event: openapi.WaitResultEventPort, Port: &w.port}
	dialer := net.Dialer{Timeout: time.Second}
	if w.path == "" {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil
		}
		conn.Close()
		return found
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+w.path, nil)
	if err != nil {
		return nil
	}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, ResponseHeaderTimeout: answerTimeout}
	resp, err := transport.RoundTrip(req) // no proxy, no redirects
	if err != nil {
		return nil
	}
	resp.Body.Close()
	if w.status == 0 && resp.StatusCode >= 200 && resp.StatusCode < 400 || resp.StatusCode == w.status {
		found.Status = &resp.StatusCode
		return found
	}
	return nil
}

// untilLine returns the first line that matches, nil when there is none.
func (w *wait) untilLine(ctx context.Context, e *backends.Execution) *openapi.WaitResult {
	m := &matcher{pattern: w.pattern}
	m.emit = m.line
	err := e.Journal.Follow(ctx, 0, m)
	if !errors.Is(err, errMatched) {
		return nil
	}
	return &openapi.WaitResult{Event: openapi.WaitResultEventPattern, Line: &m.found}
}

var errMatched = errors.New("matched")

// matcher is a hooks.Writer that ends its reader at the first line that matches. A line that isn't finished, such as a
// prompt, counts as well.
type matcher struct {
	hooks.Recorder
	pattern  *regexp.Regexp
	out, err hooks.Text
	emit     func([]byte, int64, bool)
	matched  bool
	found    string
}

func (m *matcher) line(text []byte, _ int64, _ bool) {
	if !m.matched && m.pattern.Match(text) {
		m.matched, m.found = true, strings.ToValidUTF8(string(text), "\uFFFD")
	}
}

// OnStdout implements hooks.Hooks.
func (m *matcher) OnStdout(o hooks.Output) { m.out.Feed(o, m.emit) }

// OnStderr implements hooks.Hooks.
func (m *matcher) OnStderr(o hooks.Output) { m.err.Feed(o, m.emit) }

// Flush implements hooks.Writer.
func (m *matcher) Flush() error {
	for _, t := range []*hooks.Text{&m.out, &m.err} {
		if text := t.Unfinished(); len(text) > 0 { // nothing is no line
			m.line(text, 0, true)
		}
	}
	if m.matched {
		return errMatched
	}
	return nil
}

// listPorts is GET /ports: TCP ports on which somebody listens (proc_net_tcp(5)).
func (s *Server) listPorts(c echo.Context) error {
	list := []openapi.Port{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return err
		}
		list = listening(list, f)
		f.Close()
	}
	return c.JSON(http.StatusOK, list)
}
