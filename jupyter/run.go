package jupyter

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/celld/celld/hooks"
)

// Names of failures that are not the kernel's own.
const (
	nameDied        = "KernelDied"
	nameUnavailable = "JupyterUnavailable"
	nameTimeout     = "CellTimeout"
	nameStopped     = "CommandInterrupted" // ended before it began
	nameInterrupted = "KeyboardInterrupt"  // as Python kernels call it
	nameTooLarge    = "ResultTooLarge"
)

func execError(name, value string) *hooks.ExecError {
	return &hooks.ExecError{Name: name, Value: value, Traceback: []string{name + ": " + value}}
}

// run is one cell on its way through a kernel. The reader of the connection owns it, but for what is said otherwise.
type run struct {
	id      string // msg_id of the execute_request
	process string // the kernel process that is expected; empty: any
	hooks   hooks.Hooks
	sent    atomic.Bool   // the server has taken it
	began   chan struct{} // closed at the first sign that the kernel works on it
	done    chan struct{} // closed when it has ended; err is valid then
	err     error
	at      time.Time
	gate    gate
	asking  atomic.Pointer[requestHeader] // the input_request that waits for an answer

	seen          atomic.Uint64 // messages
	started       bool
	replied, idle atomic.Bool // own execute_reply and own idle have been seen; watch reads them
	tooLarge      string      // what was dropped for its size
	count         int
	exits         bool // the kernel was asked to end
	aborted       bool // the kernel skipped the cell
	failure       *hooks.ExecError
	inReply       *hooks.ExecError // how the reply says that the cell failed, which may be less than the error message says
	unnamed       bool             // the kernel said that the cell failed, but not how
	stderr        []byte           // the end of what the cell printed there
	pages         []hooks.Result
	first, last   string // the kernel's name for itself, in the first and in the last message
}

func newRun(h hooks.Hooks, id string) *run {
	return &run{id: id, hooks: h, began: make(chan struct{}), done: make(chan struct{}), at: time.Now()}
}

// finish ends a run whose end won't come from the kernel.
func (r *run) finish(err error) {
	r.err = err
	close(r.done)
}

// handle takes a message of this run and says whether it was the last one: the kernel's reply and its idle have both
// been seen, in whatever order (Jupyter messaging, "Request-Reply" and "Kernel status"). err is set then.
func (r *run) handle(m *message) bool {
	r.seen.Add(1)
	if !r.started {
		r.started = true
		r.first = m.header.Session
		if r.process != "" && r.process != r.first {
			r.status(hooks.Status{State: hooks.StateKernelRestarted, Detail: "the kernel was restarted meanwhile; its state is lost"})
		}
	}
	r.last = m.header.Session
	if !closed(r.began) && m.header.Type != "status" {
		close(r.began)
	}
	switch m.channel {
	case iopubChannel:
		r.handleOutput(m)
	case stdinChannel:
		if m.header.Type == "input_request" {
			r.handleInput(m)
		}
	case shellChannel:
		if m.header.Type == "execute_reply" {
			r.handleReply(m)
		}
	}
	if !r.replied.Load() || !r.idle.Load() {
		return false
	}
	for _, page := range r.pages {
		r.result(page)
	}
	if r.unnamed = r.unnamed && r.failure == nil; r.unnamed { // by now all that it printed is here
		r.failure = failureIn(r.stderr)
	} else if r.failure == nil {
		r.failure = r.inReply
	}
	if r.tooLarge != "" {
		dropped := execError(nameTooLarge, r.tooLarge)
		if r.failure == nil {
			r.failure = dropped
		} else {
			r.failure.Traceback = append(r.failure.Traceback, dropped.Traceback...)
		}
	}
	if r.failure != nil {
		r.err = r.failure
	}
	return true
}

// outlived says whether m comes from another process than the one that began r, where these have names.
func (r *run) outlived(m *message) bool {
	return r.process != "" && r.started && m.header.Session != r.last
}

func (r *run) handleOutput(m *message) {
	switch m.header.Type {
	case "stream":
		var content struct {
			Name string `json:"name"`
			Text string `json:"text"`
		}
		if json.Unmarshal(m.content, &content) == nil && r.gate.enter() {
			if out := (hooks.Output{Data: []byte(content.Text)}); content.Name == "stderr" {
				r.stderr = keepStderr(r.stderr, content.Text)
				r.hooks.OnStderr(out)
			} else {
				r.hooks.OnStdout(out)
			}
			r.gate.leave()
		}
	case "execute_result", "display_data", "update_display_data":
		r.handleResult(m)
	case "status":
		var content struct {
			State string `json:"execution_state"`
		}
		if json.Unmarshal(m.content, &content) == nil && content.State == "idle" {
			r.idle.Store(true)
		}
	case "execute_input":
		var content struct {
			Count int `json:"execution_count"`
		}
		if json.Unmarshal(m.content, &content) == nil && r.count == 0 { // the reply may have come first
			r.counted(content.Count)
		}
	case "error":
		var content errorContent
		if json.Unmarshal(m.content, &content) == nil && r.failure == nil {
			r.failure = content.failure()
		}
	case "clear_output":
		var content struct {
			Wait bool `json:"wait"`
		}
		if json.Unmarshal(m.content, &content) == nil {
			r.status(hooks.Status{State: hooks.StateClear, Wait: content.Wait})
		}
	}
}

func (r *run) handleResult(m *message) {
	var content struct {
		Data      map[string]json.RawMessage `json:"data"`
		Metadata  json.RawMessage            `json:"metadata"`
		Count     int                        `json:"execution_count"`
		Transient struct {
			DisplayID string `json:"display_id"`
		} `json:"transient"`
	}
	if json.Unmarshal(m.content, &content) != nil {
		return
	}
	r.result(hooks.Result{
		Data:           content.Data,
		Metadata:       metadata(content.Metadata),
		DisplayID:      content.Transient.DisplayID,
		Update:         m.header.Type == "update_display_data",
		ExecutionCount: content.Count,
	})
}

// metadata is m, or nil if it says nothing.
func metadata(m json.RawMessage) json.RawMessage {
	if s := string(m); s == "{}" || s == "null" {
		return nil
	}
	return m
}

func (r *run) handleInput(m *message) {
	var content struct {
		Prompt   string `json:"prompt"`
		Password bool   `json:"password"`
	}
	if json.Unmarshal(m.content, &content) != nil {
		return
	}
	r.asking.Store(&requestHeader{ID: m.header.ID, Session: m.header.Session, Type: m.header.Type, Version: protocolVersion})
	r.status(hooks.Status{State: hooks.StateInput, Prompt: content.Prompt, Password: content.Password})
}

// errorContent is what an error message and a reply with status error say.
type errorContent struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
}

func (e errorContent) failure() *hooks.ExecError {
	if e.Name == "" {
		e.Name = "Error"
	}
	if len(e.Traceback) > 0 {
		e.Name, e.Value = nameInTrace(e.Name, e.Value, e.Traceback[0])
	}
	if len(e.Traceback) == 0 {
		e.Traceback = []string{e.Name + ": " + e.Value}
	}
	return &hooks.ExecError{Name: e.Name, Value: e.Value, Traceback: e.Traceback}
}

func (r *run) handleReply(m *message) {
	var content struct {
		errorContent
		Status  string `json:"status"`
		Count   int    `json:"execution_count"`
		Payload []struct {
			Source string                     `json:"source"`
			Data   map[string]json.RawMessage `json:"data"`
			Keep   bool                       `json:"keepkernel"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(m.content, &content); err != nil {
		content.Status, content.Value = "error", "the kernel's reply could not be read"
	}
	r.replied.Store(true)
	switch content.Status {
	case "error":
		r.unnamed = content.Name == "" && content.Value == ""
		r.inReply = content.failure()
	case "abort", "aborted":
		r.aborted = true
		r.failure = execError("CellAborted", "the kernel skipped the cell")
	}
	if r.count == 0 && content.Count > 0 {
		r.counted(content.Count)
	}
	for _, p := range content.Payload {
		switch p.Source {
		case "page": // the pager's text, as for `print?`
			if len(p.Data) == 0 {
				continue
			}
			r.pages = append(r.pages, hooks.Result{Data: p.Data})
		case "ask_exit":
			r.exits = !p.Keep
		}
	}
}

func (r *run) counted(n int) {
	r.count = n
	r.status(hooks.Status{State: hooks.StateCount, Count: n})
}

func (r *run) status(s hooks.Status) bool {
	if !r.gate.enter() {
		return false
	}
	r.hooks.OnStatus(s)
	r.gate.leave()
	return true
}

// maxResult bounds a value or display with all its types, as events hold it.
const maxResult = 64 << 20

// sizeOf is about what the events of a result take.
func sizeOf(res hooks.Result) int {
	const envelope = 4 << 10
	size := envelope + len(res.Metadata)
	for mime, value := range res.Data {
		n := len(value)
		for _, escaped := range []string{"\u0085", "\u2028", "\u2029"} { // as six bytes
			n += bytes.Count(value, []byte(escaped)) * (6 - len(escaped))
		}
		if mime == "text/plain" {
			n *= 2 // it is there under two names
		}
		size += n
	}
	return size
}

func (r *run) result(res hooks.Result) {
	if size := sizeOf(res); size > maxResult {
		r.tooLarge = fmt.Sprintf("a result of %d MiB was dropped: the limit is %d MiB", (size+1<<20-1)>>20, maxResult>>20)
		return
	}
	if r.gate.enter() {
		r.hooks.OnResult(res)
		r.gate.leave()
	}
}

// gate lets one goroutine at a time into the hooks until it is shut; shut returns when nobody is inside. It is no
// mutex since a hook may block.
type gate struct {
	state atomic.Int32
	left  atomic.Pointer[chan struct{}]
}

const (
	gateFree int32 = iota
	gateTaken
	gateShut
)

// enter says whether the hooks may be called; leave must follow then.
func (g *gate) enter() bool { return g.state.CompareAndSwap(gateFree, gateTaken) }

func (g *gate) leave() {
	if !g.state.CompareAndSwap(gateTaken, gateFree) {
		close(*g.left.Load())
	}
}

// shut keeps everybody out from now on. It is called once.
func (g *gate) shut() {
	left := make(chan struct{})
	g.left.Store(&left)
	if g.state.Swap(gateShut) == gateTaken {
		<-left
	}
}

// newID returns 32 random hex digits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
