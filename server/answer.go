package server

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/labstack/echo/v4"
)

// maxAnswer is how much of each stream one JSON answer carries, in bytes; the middle of a longer one is left out.
const maxAnswer = 1 << 20

// maxAnswerResults is how much of the results it carries, in bytes; those that come after it are left out.
const maxAnswerResults = 16 << 20

// oneAnswer collects a whole run and sends it as one JSON object. The header goes out when the run has begun, and then a
// line end, which means nothing in JSON, after each silence: who waits for either sees that celld is there. It
// implements hooks.Writer and hooks.Idler.
type oneAnswer struct {
	c         echo.Context
	control   *http.ResponseController
	enc       encoder // for results and errors, which look as they do in events
	id        string  // of the execution
	exact     bool    // give streams in base64 too
	after     int64   // what is at or before it is known to the client
	started   time.Time
	out, errs excerpt
	results   []json.RawMessage
	size      int  // of results
	fewer     bool // some were left out
	failure   json.RawMessage
	exit      *int
	took      time.Duration
	begun     bool // the header is out
	over      bool // the terminal event was seen
}

func newAnswer(c echo.Context, e *backends.Execution, mode hooks.Mode, after int64) *oneAnswer {
	c.Response().Committed = true // errors can't be answered from here on
	return &oneAnswer{
		c: c, control: http.NewResponseController(c.Response().Writer), id: e.ID, exact: mode == hooks.Base64, after: after, started: e.Started,
	}
}

// OnInit implements hooks.Hooks.
func (a *oneAnswer) OnInit(hooks.Init) {}

// OnStdout implements hooks.Hooks.
func (a *oneAnswer) OnStdout(o hooks.Output) { a.output(&a.out, o) }

// OnStderr implements hooks.Hooks.
func (a *oneAnswer) OnStderr(o hooks.Output) { a.output(&a.errs, o) }

// output leaves out the beginning of a line that is given again to who resumes inside it.
func (a *oneAnswer) output(x *excerpt, o hooks.Output) {
	if o.EID > a.after {
		x.add(o.Data)
	}
}

// OnResult implements hooks.Hooks.
func (a *oneAnswer) OnResult(e hooks.Result) {
	for _, value := range e.Data {
		a.size += len(value)
	}
	if a.fewer = a.fewer || a.size > maxAnswerResults; a.fewer {
		return
	}
	a.enc.buf = nil // the item keeps it
	a.enc.resultFields(e, sortedTypes(e))
	if e.Partial {
		a.enc.flag("partial", true)
	}
	a.enc.buf[0] = '{' // instead of the comma
	a.results = append(a.results, append(a.enc.buf, '}'))
}

// OnStatus implements hooks.Hooks.
func (a *oneAnswer) OnStatus(hooks.Status) {}

// OnError implements hooks.Hooks.
func (a *oneAnswer) OnError(e hooks.Failure) {
	a.enc.buf = nil
	a.enc.failure(&e.ExecError)
	a.failure = a.enc.buf[len(`,"error":`):]
	a.exit, a.took, a.over = e.ExitCode, e.Time.Sub(a.started), true
}

// OnComplete implements hooks.Hooks.
func (a *oneAnswer) OnComplete(e hooks.Complete) {
	a.exit, a.took, a.over = e.ExitCode, e.Duration, true
}

// Flush implements hooks.Writer.
func (a *oneAnswer) Flush() error {
	if a.begun || a.over {
		return nil
	}
	a.begin()
	return a.control.Flush()
}

// Idle implements hooks.Idler.
func (a *oneAnswer) Idle() error {
	if !a.begun {
		a.begin()
	}
	if err := send(a.c.Response().Writer, a.control, newline, nil); err != nil {
		return err
	}
	return a.control.Flush()
}

func (a *oneAnswer) begin() {
	a.begun = true
	w := a.c.Response().Writer
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(http.StatusOK)
}

// finish sends the answer.
func (a *oneAnswer) finish() error {
	e := &encoder{}
	e.raw(`{"execution_id":`)
	e.buf = appendJSON(e.buf, a.id)
	out, errs := a.out.text(), a.errs.text()
	e.text("stdout", out)
	e.text("stderr", errs)
	if a.exact {
		e.text("stdout_base64", base64.StdEncoding.EncodeToString([]byte(out)))
		e.text("stderr_base64", base64.StdEncoding.EncodeToString([]byte(errs)))
	}
	e.raw(`,"results":[`)
	for i, r := range a.results {
		if i > 0 {
			e.raw(",")
		}
		e.buf = append(e.buf, r...)
	}
	e.raw("]")
	if a.failure != nil {
		e.raw(`,"error":`)
		e.buf = append(e.buf, a.failure...)
	}
	if a.exit != nil {
		e.buf = appendInt(e.buf, `,"exit_code":`, int64(*a.exit))
	}
	e.buf = appendInt(e.buf, `,"execution_time":`, a.took.Milliseconds())
	if a.out.cut || a.errs.cut || a.fewer {
		e.flag("truncated", true)
	}
	e.raw("}")
	if !a.begun {
		a.begin()
	}
	if err := send(a.c.Response().Writer, a.control, e.buf, nil); err != nil {
		return abort(a.c)
	}
	return nil
}

// excerpt keeps the beginning and the end of a stream, half of maxAnswer each.
type excerpt struct {
	head, tail []byte
	cut        bool
}

func (x *excerpt) add(p []byte) {
	n := min(len(p), maxAnswer/2-len(x.head))
	x.head = append(x.head, p[:n]...)
	x.tail = append(x.tail, p[n:]...)
	if over := len(x.tail) - maxAnswer/2; over > maxAnswer/2 { // now and then, not for each piece
		x.tail = append(x.tail[:0], x.tail[over:]...)
		x.cut = true
	}
}

// text is what is kept, byte for byte; who makes JSON of it repairs bad ones. A character that the cut went through is left out.
func (x *excerpt) text() string {
	tail := x.tail
	if over := len(tail) - maxAnswer/2; over > 0 {
		tail = tail[over:]
		x.cut = true
	}
	if !x.cut {
		return string(x.head) + string(tail)
	}
	head := x.head[:len(x.head)-hooks.UnfinishedChar(x.head)]
	for i := 0; i < 3 && len(tail) > 0 && tail[0]&0xC0 == 0x80; i++ {
		tail = tail[1:]
	}
	var b strings.Builder
	b.Write(head)
	b.Write(tail)
	return b.String()
}
