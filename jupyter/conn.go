package jupyter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/celld/celld/hooks"
	"github.com/gorilla/websocket"
)

// maxMessage bounds one message of a kernel; a longer one is skipped and the cell it belongs to fails. It lies above
// the 64 MiB that an event may have.
const maxMessage = 256 << 20

// keepBuffer is how much of the read buffer an idle connection keeps.
const keepBuffer = 256 << 10

// meetEvery is how often a kernel is asked whether it is there.
const meetEvery = 100 * time.Millisecond

// loss is why a connection ended.
type loss struct {
	name    string // KernelDied or JupyterUnavailable
	detail  string
	fresh   bool // the kernel's state is gone
	endless bool // the kernel is there, but a cell's end got lost
}

func (l *loss) Error() string { return l.name + ": " + l.detail }

func (l *loss) failure() *hooks.ExecError { return execError(l.name, l.detail) }

// conn is one WebSocket to one kernel, kept open. Its reader calls the hooks of the run that is on, so that a hook
// that blocks keeps the socket from being read.
type conn struct {
	ws      atomic.Pointer[socket] // the reader replaces it when it takes the connection up again
	link    link
	v1      bool
	session string // our end's name, new for each connection: what the server kept for the old one is stale

	writing chan struct{}       // holds the right to write
	current atomic.Pointer[run] // set by who holds the kernel
	reader  atomic.Int32        // what the reader does
	resumed atomic.Int32        // times it was taken up again
	wake    chan struct{}       // tells watch that there is a run
	deaf    int                 // dead sockets in a row on which nothing had come; watch's own
	giveUp  context.CancelFunc  // ends what the goroutines wait for

	mu    sync.Mutex
	asked map[string]question // requests other than cells, by msg_id

	why  atomic.Pointer[loss] // first reason wins
	lost chan struct{}        // closed when the reader has ended
	done sync.WaitGroup
}

// What a connection's reader does.
const (
	readerWaits   int32 = iota // for a frame to begin
	readerReads                // the rest of a frame
	readerHandles              // a frame, and may be in a hook
	readerResumes              // takes the connection up again
)

// link is how a connection reaches its kernel beside the WebSocket.
type link struct {
	probe  func(context.Context) (KernelModel, error) // the kernel's state by REST
	forget func()                                     // closes connections for REST, so that the next call makes one; set with redial
	redial func(context.Context) (socket, error)      // the WebSocket of the same session again; nil: what is lost is lost
}

// question is a request that is no cell. Both channels have room for one.
type question struct {
	reply chan json.RawMessage
	idle  chan struct{} // its idle has come on iopub
	after *run          // it was sent after this cell; nil: after any
}

// newConn takes ws over, which was dialed as session. close ends it, the end of ctx doesn't.
func newConn(ctx context.Context, ws socket, session string, l link) *conn {
	c := &conn{
		link:    l,
		v1:      ws.Subprotocol() == subprotocol,
		session: session,
		writing: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		asked:   make(map[string]question),
		lost:    make(chan struct{}),
	}
	c.ws.Store(&ws)
	ctx, c.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	c.done.Go(func() { defer c.giveUp(); c.read(ctx) })
	c.done.Go(func() { c.watch(ctx) })
	return c
}

// fail ends the connection for a reason of ours. The run that is on ends with it, when its hook has returned.
func (c *conn) fail(l *loss) {
	c.why.CompareAndSwap(nil, l)
	c.giveUp()
	c.cut()
}

// cut closes the socket that there is.
func (c *conn) cut() { _ = c.ws.Load().NetConn().Close() }

// close ends the connection and returns when its goroutines have.
func (c *conn) close(l *loss) {
	c.fail(l)
	c.done.Wait()
}

func (c *conn) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// start makes r the current run. It is told of the connection's loss, also when that has happened already.
func (c *conn) start(r *run) {
	c.current.Store(r)
	if c.isLost() {
		if c.current.CompareAndSwap(r, nil) {
			r.finish(c.why.Load().failure())
		}
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// read runs until the connection ends.
func (c *conn) read(ctx context.Context) {
	err := c.readMessages()
	for err = c.takeUp(ctx, err); err == nil; err = c.takeUp(ctx, err) {
		err = c.readMessages()
	}
	var l *loss
	if !errors.As(err, &l) {
		l = &loss{name: nameUnavailable, detail: fmt.Sprintf("the connection to the kernel was lost: %v", err)}
	}
	c.fail(l)
	close(c.lost)
	if r := c.current.Swap(nil); r != nil {
		r.finish(c.why.Load().failure())
	}
}

func (c *conn) readMessages() error {
	var buf bytes.Buffer
	ws := c.ws.Load()
	for {
		c.reader.Store(readerWaits)
		kind, r, err := ws.NextReader()
		if err != nil {
			return err
		}
		c.reader.Store(readerReads)
		if buf.Cap() > keepBuffer && buf.Len() < keepBuffer/4 { // the burst is over
			buf = bytes.Buffer{}
		}
		buf.Reset()
		n, err := buf.ReadFrom(io.LimitReader(r, maxMessage+1))
		if err != nil {
			return err
		}
		if n > maxMessage {
			if _, err := io.Copy(io.Discard, r); err != nil {
				return err
			}
			if r := c.current.Load(); r != nil {
				r.tooLarge = fmt.Sprintf("a message of the kernel, longer than %d MiB, was dropped: the limit of a result is %d MiB", maxMessage>>20, maxResult>>20)
			}
			continue
		}
		c.reader.Store(readerHandles)
		m, err := c.parse(kind, buf.Bytes())
		if err != nil {
			continue // not a message: whoever waits for one that was in it is told by watch
		}
		if err := c.dispatch(&m); err != nil {
			return err
		}
	}
}

func (c *conn) parse(kind int, frame []byte) (message, error) {
	switch {
	case kind == websocket.TextMessage:
		return parseJSON(frame)
	case c.v1:
		return parseV1(frame)
	default:
		return parseBuffers(frame)
	}
}

// dispatch hands a message to the run or request it belongs to. Messages that belong to nobody here are other
// clients' or late output; a few of them say that the kernel is gone.
func (c *conn) dispatch(m *message) error {
	r := c.current.Load()
	if r != nil && m.parent == r.id {
		if r.handle(m) {
			c.current.CompareAndSwap(r, nil)
			close(r.done)
		}
		return nil
	}
	if m.channel == iopubChannel && m.header.Type == "status" {
		return c.heedStatus(m)
	}
	if m.header.Type == "shutdown_reply" {
		return &loss{name: nameDied, detail: "the kernel was shut down or restarted by another client; its state is lost", fresh: true}
	}
	if m.channel == shellChannel || m.channel == controlChannel {
		if q, ok := c.question(m.parent); ok {
			if q.after != nil && q.after == r && r.outlived(m) {
				return &loss{name: nameDied, detail: "the kernel was restarted by another client; its state is lost", fresh: true}
			}
			select {
			case q.reply <- bytes.Clone(m.content):
			default: // a second reply
			}
		}
	}
	return nil
}

// heedStatus takes a status that belongs to no run: a question's idle, or the server's word that the kernel died.
func (c *conn) heedStatus(m *message) error {
	var content struct {
		State string `json:"execution_state"`
	}
	if json.Unmarshal(m.content, &content) != nil {
		return nil
	}
	switch content.State {
	case "restarting", "dead":
		return &loss{name: nameDied, detail: "the kernel died; its state is lost", fresh: true}
	case "idle":
		if q, ok := c.question(m.parent); ok {
			select {
			case q.idle <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

func (c *conn) question(id string) (question, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.asked[id]
	return q, ok
}

// write sends one message. Concurrent calls are fine. It blocks while the server doesn't read.
func (c *conn) write(ctx context.Context, r request) error {
	frame, err := r.encode(c.v1)
	if err != nil {
		return err
	}
	kind := websocket.TextMessage
	if c.v1 {
		kind = websocket.BinaryMessage
	}
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.writing }()
	return c.ws.Load().WriteMessage(kind, frame)
}

// ask sends a request that is no cell and returns the content of its reply.
func (c *conn) ask(ctx context.Context, r request) (json.RawMessage, error) {
	return c.await(ctx, r, newQuestion())
}

// await sends r and returns the content of its reply.
func (c *conn) await(ctx context.Context, r request, q question) (json.RawMessage, error) {
	c.expect(r.header.ID, q)
	defer c.forget(r.header.ID)
	if err := c.write(ctx, r); err != nil {
		return nil, err
	}
	select {
	case content := <-q.reply:
		return content, nil
	case <-c.lost:
		return nil, c.why.Load()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// meet returns when a question has been answered on both channels. A server that takes the kernel for busy, as after
// its restart, lets a WebSocket in before the kernel's output is subscribed to: what a cell then prints, and its
// end, would be lost.
func (c *conn) meet(ctx context.Context) error {
	q := newQuestion()
	again := time.NewTicker(meetEvery)
	defer again.Stop()
	for replied, idle := false, false; !replied || !idle; {
		// A new message each time: a kernel drops one that it has seen before.
		r := request{channel: shellChannel, header: c.header("kernel_info_request"), content: emptyObject}
		c.expect(r.header.ID, q)
		defer c.forget(r.header.ID)
		if err := c.write(ctx, r); err != nil {
			return err
		}
		select {
		case <-q.reply:
			replied = true
			select { // most often it is here already or comes at once
			case <-q.idle:
				idle = true
			case <-again.C:
			}
		case <-q.idle:
			idle = true
		case <-again.C:
		case <-c.lost:
			return c.why.Load()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func newQuestion() question {
	return question{reply: make(chan json.RawMessage, 1), idle: make(chan struct{}, 1)}
}

// expect has what comes for request id told to q.
func (c *conn) expect(id string, q question) {
	c.mu.Lock()
	c.asked[id] = q
	c.mu.Unlock()
}

func (c *conn) forget(id string) {
	c.mu.Lock()
	delete(c.asked, id)
	c.mu.Unlock()
}

// header makes the header of a new message.
func (c *conn) header(kind string) requestHeader {
	return requestHeader{
		ID:       newID(),
		Session:  c.session,
		Username: "celld",
		Date:     time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
		Type:     kind,
		Version:  protocolVersion,
	}
}
