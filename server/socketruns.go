package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/internal/exactjson"
	"github.com/celld/celld/openapi"
)

// message is what a client sends: an operation and its fields. What it runs is decoded from the same text.
type message struct {
	Op          string               `json:"op"`
	Ref         string               `json:"ref,omitempty"`
	Kind        string               `json:"kind,omitempty"`
	SessionID   string               `json:"session_id,omitempty"`
	ExecutionID string               `json:"execution_id,omitempty"`
	After       int64                `json:"after,omitempty"`
	Value       *string              `json:"value,omitempty"`
	Data        *string              `json:"data,omitempty"`
	EOF         bool                 `json:"eof,omitempty"`
	Signal      openapi.NameOrNumber `json:"signal,omitempty"`
	Output      *openapi.OutputMode  `json:"output,omitempty"`
}

// followed is an execution that has a name on a connection.
type followed struct {
	ready   chan struct{}       // closed when e is set, or nothing was started
	e       *backends.Execution // guarded by socket.mu until ready
	stopped bool                // interrupted before it was ready; guarded by socket.mu
	inputs
}

// inputs are what has to be given to one program, in order. socket.mu guards them.
type inputs struct {
	id      string // its key in socket.inputs; "" for what is followed
	waiting []input
	size    int
	busy    bool // a goroutine gives them
}

// input is one operation that may have to wait for a program.
type input struct {
	op, ref string
	size    int
	do      func() error
}

// handle does what a message asks for. It waits for nothing.
func (k *socket) handle(text []byte) {
	var q message
	err := decodeJSON(text, &q, exactjson.Ignore) // of a field of a wrong type too the others are known
	if q.Op == "attach" && q.Ref == "" {
		q.Ref = q.ExecutionID
	}
	live := k.uses(q.Ref)
	if err == nil {
		err = k.operate(&q, text)
	}
	switch {
	case err == nil:
	case (q.Op == "run" || q.Op == "attach") && q.Ref != "" && !live:
		k.reply(k.failure(&q, err))
	default:
		k.refuse(q.Op, q.Ref, err)
	}
}

// uses says whether something is followed as ref.
func (k *socket) uses(ref string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refs[ref] != nil
}

func (k *socket) operate(q *message, text []byte) error {
	switch q.Op {
	case "ping":
		e := k.event(q.Ref, "pong")
		e.end()
		k.reply(e.buf)
		return nil
	case "run":
		return k.run(q, text)
	case "attach":
		return k.attach(q)
	case "interrupt", "input", "stdin", "signal":
		return k.control(q)
	}
	return badRequest("unknown op %q: want run, attach, interrupt, input, stdin, signal or ping", q.Op)
}

// control does something to an execution that the client names by its ref, or by an id.
func (k *socket) control(q *message) error {
	k.mu.Lock()
	f := k.refs[q.Ref]
	if q.ExecutionID != "" {
		f = nil
	}
	var e *backends.Execution
	if f != nil {
		e = f.e
		f.stopped = f.stopped || q.Op == "interrupt"
	}
	k.mu.Unlock()
	switch {
	case q.Ref == "" && q.ExecutionID == "":
		return badRequest("ref or execution_id is missing")
	case f == nil && q.ExecutionID == "":
		return &problem{http.StatusNotFound, openapi.ErrorCodeNotFound, fmt.Sprintf("nothing runs as %q on this connection", q.Ref)}
	case f == nil:
		var err error
		if e, err = k.s.controller.Execution(q.ExecutionID); err != nil {
			return err
		}
	}
	switch {
	case q.Op == "interrupt":
		if e != nil { // else its follower does it
			e.Stop(backends.ErrInterrupted)
		}
		return nil
	case q.Op == "input" && q.Value == nil:
		return badRequest("value is missing")
	case q.Op == "input":
		return k.later(q, f, e, func(e *backends.Execution) error { return k.s.controller.Input(k.ctx, e.ID, *q.Value) })
	case q.Op == "stdin":
		return k.later(q, f, e, func(e *backends.Execution) error {
			if write := e.Handle().Stdin; write != nil {
				return write(k.ctx, []byte(value(q.Data)), q.EOF)
			}
			return &problem{http.StatusConflict, openapi.ErrorCodeConflict, "it was not started with stdin_open"}
		})
	}
	sig, err := signalNamed(string(q.Signal))
	if err != nil {
		return err
	}
	if e != nil && (e.Handle().PID == nil || e.Handle().PID() > 0) { // before what waits: a program that doesn't read has to be reached
		return k.s.signal(e, sig)
	}
	return k.later(q, f, e, func(e *backends.Execution) error { return k.s.signal(e, sig) })
}

// later lets do happen after what was asked before of the same program, without waiting for it. e is nil as long as f
// is not ready.
func (k *socket) later(q *message, f *followed, e *backends.Execution, do func(*backends.Execution) error) error {
	in := input{op: q.Op, ref: q.Ref, size: len(value(q.Data)) + len(value(q.Value)) + countWaitingOp, do: func() error { return do(e) }}
	if e == nil {
		in.do = func() error {
			select {
			case <-f.ready:
			case <-k.ctx.Done():
				return context.Cause(k.ctx)
			}
			if f.e == nil {
				return &problem{http.StatusNotFound, openapi.ErrorCodeNotFound, fmt.Sprintf("nothing was started as %q", q.Ref)}
			}
			return do(f.e)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	to := (*inputs)(nil)
	if f != nil {
		to = &f.inputs
	} else if to = k.inputs[e.ID]; to == nil {
		to = &inputs{id: e.ID}
		k.inputs[e.ID] = to
	}
	if to.size > 0 && to.size+in.size > maxWaitingOps {
		return &problem{http.StatusTooManyRequests, openapi.ErrorCodeLimitExceeded,
			fmt.Sprintf("%d bytes of input wait for the program, which is the limit; this was not taken", to.size)}
	}
	to.size += in.size
	to.waiting = append(to.waiting, in)
	if !to.busy {
		to.busy = true
		k.work.Go(func() { k.feed(to) })
	}
	return nil
}

// feed gives a program what waits for it.
func (k *socket) feed(from *inputs) {
	for {
		k.mu.Lock()
		if len(from.waiting) == 0 {
			from.busy = false
			delete(k.inputs, from.id)
			k.mu.Unlock()
			return
		}
		in := from.waiting[0]
		from.waiting = from.waiting[1:]
		k.mu.Unlock()
		if err := in.do(); err != nil && k.ctx.Err() == nil {
			k.refuse(in.op, in.ref, err)
		}
		k.mu.Lock()
		from.size -= in.size
		k.mu.Unlock()
	}
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
	return k.follow(q, req.Output, ends, func() (*backends.Execution, error) { return k.s.controller.Start(k.ctx, req) })
}

// socketRequest reads the body of the POST that the message stands for.
func (s *Server) socketRequest(q *message, text []byte) (req backends.Request, ends bool, err error) {
	var disconnect *openapi.OnDisconnect
	switch q.Kind {
	case "command":
		var b openapi.RunCommandRequest
		if err = decodeJSON(text, &b, exactjson.Ignore); err == nil {
			disconnect = b.OnDisconnect
			req, err = s.commandRequest(&b)
		}
	case "session":
		var b openapi.RunInSessionRequest
		if err = decodeJSON(text, &b, exactjson.Ignore); err == nil {
			disconnect = b.OnDisconnect
			req, err = sessionRequest(q.SessionID, &b)
		}
	case "code":
		var b openapi.RunCodeRequest
		if err = decodeJSON(text, &b, exactjson.Ignore); err == nil {
			disconnect = b.OnDisconnect
			req, err = codeRequest(&b)
		}
	default:
		return req, false, badRequest("kind must be command, session or code, not %q", q.Kind)
	}
	if err != nil {
		return req, false, err
	}
	ends, err = onDisconnect(disconnect)
	return req, ends && req.Kind != backends.KindBackground, err
}

// attach follows an execution that somebody started, from a position on.
func (k *socket) attach(q *message) error {
	if q.ExecutionID == "" {
		return badRequest("execution_id is missing")
	}
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
	return k.follow(q, mode, false, func() (*backends.Execution, error) { return e, nil })
}

// follow reserves the ref, gets the execution and sends its events from a goroutine of its own. ends: the execution ends
// with the connection.
func (k *socket) follow(q *message, mode hooks.Mode, ends bool, get func() (*backends.Execution, error)) error {
	f := &followed{ready: make(chan struct{})}
	k.mu.Lock()
	_, taken := k.refs[q.Ref]
	full, last := k.runs >= maxSocketRuns, k.last
	if !taken && !full && !last {
		k.refs[q.Ref] = f
		k.runs++
	}
	k.mu.Unlock()
	switch {
	case last:
		return &problem{http.StatusServiceUnavailable, openapi.ErrorCodeUnavailable, "the server is shutting down"}
	case taken:
		return &problem{http.StatusConflict, openapi.ErrorCodeConflict, fmt.Sprintf("ref %q is in use", q.Ref)}
	case full:
		return &problem{http.StatusTooManyRequests, openapi.ErrorCodeLimitExceeded,
			fmt.Sprintf("%d executions are followed on this connection, which is the limit", maxSocketRuns)}
	}
	k.work.Go(func() {
		defer k.left()
		e, err := k.begin(f, get)
		if err != nil {
			k.free(q.Ref)
			k.give(k.failure(q, err))
			return
		}
		w := &socketWriter{encoder: newEncoder(mode, q.After, true), k: k, name: q.Ref}
		w.ref = refField(q.Ref)
		defer w.release()
		if err := k.send(e, q, w); err != nil {
			w.release()
			if errors.Is(err, hooks.ErrStalled) { // nobody on this connection has been taken anything from
				k.end(errLagging)
			}
			k.give(k.failure(q, err))
			if ends {
				e.Stop(backends.ErrClientGone)
			}
		}
	})
	return nil
}

// begin gets what is to be followed.
func (k *socket) begin(f *followed, get func() (*backends.Execution, error)) (*backends.Execution, error) {
	e, err := get()
	k.mu.Lock()
	f.e = e
	stopped := f.stopped
	k.mu.Unlock()
	close(f.ready)
	if err == nil && stopped {
		e.Stop(backends.ErrInterrupted)
	}
	return e, err
}

// send sends the events of an execution: those that the POST would be answered with, or what comes after a position.
func (k *socket) send(e *backends.Execution, q *message, w *socketWriter) error {
	if q.Op == "run" && e.Kind == backends.KindBackground {
		started(e, w)
		return w.Flush()
	}
	if err := e.Journal.Follow(k.ctx, q.After, w); err != nil || w.over {
		return err
	}
	w.begin("status", hooks.Stamp{Time: time.Now()})
	w.text("state", stateEnded)
	w.end()
	w.over = true
	return w.Flush()
}

// stateEnded tells who attaches after the terminal event that nothing follows.
const stateEnded = "ended"

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

// event begins an event that belongs to no journal.
func (k *socket) event(ref, kind string) *encoder {
	e := &encoder{lines: true, ref: refField(ref)}
	e.begin(kind, hooks.Stamp{Time: time.Now()})
	return e
}

// failure tells that there is nothing to follow: the last event of its ref.
func (k *socket) failure(q *message, err error) []byte { return k.problem("error", q.Op, q.Ref, err) }

// refuse tells, without waiting, that an operation could not be done. What is followed as ref goes on.
func (k *socket) refuse(op, ref string, err error) { k.reply(k.problem("refused", op, ref, err)) }

// problem makes an event of the error that a request would have been answered with.
func (k *socket) problem(kind, op, ref string, err error) []byte {
	p := asProblem(err)
	e := k.event(ref, kind)
	e.failure(&hooks.ExecError{Name: string(p.code), Value: p.message, Traceback: []string{p.message}})
	e.buf = appendInt(e.buf, `,"status":`, int64(p.status))
	if op != "" {
		e.text("op", op)
	}
	e.end()
	return e.buf
}

// socketWriter sends events of one execution. It implements hooks.Writer, hooks.Idler and hooks.Pacer.
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

// Accepted implements hooks.Pacer: a client that takes what others have sent is there.
func (w *socketWriter) Accepted() time.Time { return w.k.under.Accepted() }

// Idle implements hooks.Idler.
func (w *socketWriter) Idle() error {
	w.ping(hooks.Stamp{Time: time.Now()})
	return w.Flush()
}
