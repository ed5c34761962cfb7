package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/openapi"
	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
)

// Limits of a shared connection.
const (
	maxSocketMessage = 32 << 20 // bytes of one message of a client, as of a body
	maxSocketRuns    = 4096     // executions followed at the same time
	socketWait       = 5 * time.Second
)

// socket is GET /ws: many executions on one connection. One goroutine reads, one writes, and one follows each execution.
// Whoever has something to send waits until the writer has taken it, so a slow client slows what it follows, each in
// its turn, and nothing is queued for it.
type socket struct {
	s    *Server
	conn *websocket.Conn
	ctx  context.Context // ends with the connection; it belongs to no call
	end  context.CancelCauseFunc

	frames chan frames    // to the writing goroutine
	work   sync.WaitGroup // the followers

	mu   sync.Mutex
	refs map[string]*backends.Execution // by the client's names
	runs int                            // followers
	last bool                           // the connection ends with the last of them
}

// frames are messages on their way to the client: lines of JSON.
type frames struct {
	text []byte
	sent chan<- error
}

// message is what a client sends: an operation and its fields. What it runs is decoded from the same text.
type message struct {
	Op          string              `json:"op"`
	Ref         string              `json:"ref"`
	Kind        string              `json:"kind"`
	SessionID   string              `json:"session_id"`
	ExecutionID string              `json:"execution_id"`
	ID          string              `json:"id"`
	After       int64               `json:"after"`
	Value       string              `json:"value"`
	Data        *string             `json:"data"`
	EOF         bool                `json:"eof"`
	Signal      string              `json:"signal"`
	Output      *openapi.OutputMode `json:"output"`
}

var errLagging = errors.New("the client accepted nothing for 30 s")

// websocket is GET /ws.
func (s *Server) websocket(c echo.Context) error {
	upgrader := websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true }, // access has looked at it
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			s.onError(&problem{status, openapi.ErrorCodeInvalidRequestBody, reason.Error()}, c)
		},
	}
	conn, err := upgrader.Upgrade(c.Response().Writer, c.Request(), nil)
	if err != nil {
		return nil // answered
	}
	c.Response().Committed = true
	ctx, end := context.WithCancelCause(context.WithoutCancel(c.Request().Context()))
	k := &socket{s: s, conn: conn, ctx: ctx, end: end, frames: make(chan frames), refs: map[string]*backends.Execution{}}
	s.sockets.Go(k.serve)
	return nil
}

// serve runs the connection until it ends. All its goroutines have ended when it returns.
func (k *socket) serve() {
	written := make(chan struct{})
	go func() {
		defer close(written)
		k.write()
	}()
	k.conn.SetReadLimit(maxSocketMessage)
	for {
		kind, text, err := k.conn.ReadMessage()
		if err != nil {
			k.end(backends.ErrClientGone)
			break
		}
		if kind != websocket.TextMessage {
			k.refuse("", badRequest("messages are JSON text"))
			continue
		}
		k.handle(text)
	}
	k.work.Wait()
	<-written
}

// write sends what the followers hand over, until the connection ends. It is the only one that writes.
func (k *socket) write() {
	defer k.conn.Close() // wakes the reader
	closing := k.s.closing
	for {
		select {
		case <-closing: // everything that runs has been stopped: let the followers send the ends
			closing = nil
			k.endWithLast()
		case f := <-k.frames:
			err := k.send(f.text)
			f.sent <- err
			if err != nil {
				k.end(errLagging)
				return
			}
		case <-k.ctx.Done():
			code, why := websocket.CloseGoingAway, "shutting down"
			if !errors.Is(context.Cause(k.ctx), backends.ErrShutdown) {
				code, why = websocket.CloseNormalClosure, ""
			}
			k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, why), time.Now().Add(socketWait))
			return
		}
	}
}

func (k *socket) send(text []byte) error {
	for len(text) > 0 {
		i := bytes.IndexByte(text, '\n') // there is none inside JSON
		k.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err := k.conn.WriteMessage(websocket.TextMessage, text[:i]); err != nil {
			return err
		}
		text = text[i+1:]
	}
	return nil
}

// give hands lines to the writing goroutine and returns when they are sent.
func (k *socket) give(text []byte) error {
	sent := make(chan error, 1)
	select {
	case k.frames <- frames{text, sent}:
		return <-sent
	case <-k.ctx.Done():
		return context.Cause(k.ctx)
	}
}

// handle does what a message asks for. It doesn't wait for what it starts.
func (k *socket) handle(text []byte) {
	var q message
	if err := json.Unmarshal(text, &q); err != nil {
		k.refuse("", badRequest("the message is not the JSON that is wanted here: %v", err))
		return
	}
	if err := k.operate(&q, text); err != nil {
		k.refuse(q.Ref, err)
	}
}

func (k *socket) operate(q *message, text []byte) error {
	switch q.Op {
	case "ping":
		k.note(q.Ref, "pong")
		return nil
	case "run":
		return k.run(q, text)
	case "attach":
		return k.attach(q)
	}
	e, err := k.execution(q)
	if err != nil {
		return err
	}
	switch q.Op {
	case "interrupt":
		e.Stop(backends.ErrInterrupted)
		return nil
	case "input":
		return k.s.controller.Input(k.ctx, e.ID, q.Value)
	case "stdin":
		if write := e.Handle().Stdin; write != nil {
			return write(k.ctx, []byte(value(q.Data)), q.EOF)
		}
		return &problem{http.StatusConflict, openapi.ErrorCodeConflict, "it was not started with stdin_open"}
	case "signal":
		sig, err := signalNamed(q.Signal)
		if err != nil {
			return err
		}
		return k.s.signal(e, sig)
	}
	return badRequest("unknown op %q: want run, attach, interrupt, input, stdin, signal or ping", q.Op)
}

// execution returns what a message is about: by the client's name for it, or by an id.
func (k *socket) execution(q *message) (*backends.Execution, error) {
	k.mu.Lock()
	e := k.refs[q.Ref]
	k.mu.Unlock()
	if q.ExecutionID == "" && e != nil {
		return e, nil
	}
	return k.s.controller.Execution(q.ExecutionID)
}

// run starts something and follows it.
func (k *socket) run(q *message, text []byte) error {
	if q.Ref == "" {
		return badRequest("ref is missing")
	}
	req, ends, err := k.s.socketRequest(q, text)
	if err != nil {
		return err
	}
	return k.follow(q.Ref, 0, req.Output, ends, func() (*backends.Execution, error) { return k.s.controller.Start(k.ctx, req) })
}

// socketRequest reads the body of the POST that the message stands for.
func (s *Server) socketRequest(q *message, text []byte) (req backends.Request, ends bool, err error) {
	var disconnect *openapi.OnDisconnect
	switch q.Kind {
	case "command":
		var b openapi.RunCommandRequest
		if err = json.Unmarshal(text, &b); err == nil {
			disconnect = b.OnDisconnect
			req, err = s.commandRequest(&b)
		}
	case "session":
		var b openapi.RunInSessionRequest
		if err = json.Unmarshal(text, &b); err == nil {
			disconnect = b.OnDisconnect
			req, err = sessionRequest(q.SessionID, &b)
		}
	case "code":
		var b openapi.RunCodeRequest
		if err = json.Unmarshal(text, &b); err == nil {
			disconnect = b.OnDisconnect
			if req, err = codeRequest(&b); err == nil {
				req.Output, err = outputMode(q.Output, req.Output)
			}
		}
	default:
		return req, false, badRequest("kind must be command, session or code, not %q", q.Kind)
	}
	if err != nil {
		var p *problem
		if !errors.As(err, &p) {
			err = badRequest("the message is not the JSON that is wanted here: %v", err)
		}
		return req, false, err
	}
	ends, err = onDisconnect(disconnect)
	return req, ends && req.Kind != backends.KindBackground, err
}

// attach follows an execution that somebody started, from a position on.
func (k *socket) attach(q *message) error {
	e, err := k.s.controller.Execution(q.ExecutionID)
	if err != nil {
		return err
	}
	if q.After < 0 {
		return badRequest("after must not be negative")
	}
	mode, err := outputMode(q.Output, e.Output)
	if err != nil {
		return err
	}
	if q.Ref == "" {
		q.Ref = e.ID
	}
	return k.follow(q.Ref, q.After, mode, false, func() (*backends.Execution, error) { return e, nil })
}

// follow reserves ref, gets the execution and sends its events from a goroutine of its own. ends: the execution ends
// with the connection.
func (k *socket) follow(ref string, after int64, mode hooks.Mode, ends bool, get func() (*backends.Execution, error)) error {
	k.mu.Lock()
	_, taken := k.refs[ref]
	full := k.runs >= maxSocketRuns || k.last
	if !taken && !full {
		k.refs[ref] = nil
		k.runs++
	}
	k.mu.Unlock()
	switch {
	case taken:
		return &problem{http.StatusConflict, openapi.ErrorCodeConflict, fmt.Sprintf("ref %q is in use", ref)}
	case full:
		return &problem{http.StatusTooManyRequests, openapi.ErrorCodeLimitExceeded,
			fmt.Sprintf("%d executions are followed on this connection, which is the limit", maxSocketRuns)}
	}
	k.work.Go(func() {
		defer k.left()
		e, err := get()
		if err != nil {
			k.free(ref)
			k.refuse(ref, err)
			return
		}
		k.mu.Lock()
		k.refs[ref] = e
		k.mu.Unlock()
		w := &socketWriter{encoder: newEncoder(mode, after, true), k: k, name: ref}
		w.ref = refField(ref)
		defer w.release()
		if err := e.Journal.Follow(k.ctx, after, w); err != nil && ends {
			e.Stop(backends.ErrClientGone)
		}
	})
	return nil
}

// free lets the client use ref again.
func (k *socket) free(ref string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.refs, ref)
}

// left says that a follower has ended.
func (k *socket) left() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runs--
	if k.last && k.runs == 0 {
		k.end(backends.ErrShutdown)
	}
}

// endWithLast ends the connection when nothing is followed on it any more.
func (k *socket) endWithLast() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last = true; k.runs == 0 {
		k.end(backends.ErrShutdown)
	}
}

func refField(ref string) string {
	if ref == "" {
		return ""
	}
	return string(appendJSON([]byte(`,"ref":`), ref))
}

// refuse tells that something could not be done: the error that the POST would have been answered with.
func (k *socket) refuse(ref string, err error) {
	p := asProblem(err)
	e := &encoder{lines: true, ref: refField(ref)}
	e.begin("error", hooks.Stamp{Time: time.Now()})
	e.failure(&hooks.ExecError{Name: string(p.code), Value: p.message, Traceback: []string{p.message}})
	e.buf = appendInt(e.buf, `,"status":`, int64(p.status))
	e.end()
	k.give(e.buf) // a connection that has ended needs no answer
}

// note sends an event without fields of its own.
func (k *socket) note(ref, kind string) {
	e := &encoder{lines: true, ref: refField(ref)}
	e.begin(kind, hooks.Stamp{Time: time.Now()})
	e.end()
	k.give(e.buf)
}

// socketWriter sends events of one execution. It implements hooks.Writer and hooks.Idler.
type socketWriter struct {
	*encoder
	k     *socket
	name  string // its ref
	over  bool   // the terminal event is in buf, or sent
	freed bool
}

// OnError implements hooks.Hooks.
func (w *socketWriter) OnError(e hooks.Failure) {
	w.over = true
	w.encoder.OnError(e)
}

// OnComplete implements hooks.Hooks.
func (w *socketWriter) OnComplete(e hooks.Complete) {
	w.over = true
	w.encoder.OnComplete(e)
}

// release gives the ref back, once: before the client can have seen the end, so that it may use it again at once.
func (w *socketWriter) release() {
	if !w.freed {
		w.freed = true
		w.k.free(w.name)
	}
}

// Flush implements hooks.Writer.
func (w *socketWriter) Flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if w.over {
		w.release()
	}
	err := w.k.give(w.buf)
	if w.buf = w.buf[:0]; cap(w.buf) > maxKeptBuffer {
		w.buf = nil
	}
	return err
}

// Idle implements hooks.Idler.
func (w *socketWriter) Idle() error {
	w.ping(hooks.Stamp{Time: time.Now()})
	return w.Flush()
}
