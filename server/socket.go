package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/openapi"
	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
)

// Limits of a shared connection.
const (
	maxSocketRuns  = 4096        // executions followed at the same time
	socketTurn     = 128 << 10   // bytes of one execution that are sent before it is another's turn
	lagGrace       = time.Minute // for a client that has taken nothing to learn, when it comes back, that it was given up
	maxWaitingOps  = 8 << 20     // bytes of input that wait for one program
	countWaitingOp = 64          // what an operation without data counts for
)

// socket is GET /ws: many executions on one connection. One goroutine reads what the client asks for, and never waits
// for the client to read or for a program; one writes; one follows each execution, and one gives a program its input
// while there is some; and one cuts the connection if it doesn't end when it has to. A follower waits until the writer
// has sent what it has, so a slow client slows what it follows. Each gets its turn, and nothing is queued.
type socket struct {
	s     *Server
	conn  *websocket.Conn
	under *socketConn
	ctx   context.Context // ends with the connection; it belongs to no call
	end   context.CancelCauseFunc

	frames chan frames   // to the writing goroutine
	pongs  chan string   // the newest ping of the protocol
	kick   chan struct{} // there are replies
	work   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	refs    map[string]*followed
	inputs  map[string]*inputs // of executions that the client names by their ids
	runs    int                // followers
	last    bool               // the connection ends with the last of them
	replies []byte             // lines of JSON that answer the client's messages
}

// frames are messages on their way to the client: lines of JSON. sent is told once all of them have been written.
type frames struct {
	text []byte
	sent chan<- struct{}
}

var errLagging = errors.New("the client accepted nothing for 30 s")

// websocket is GET /ws.
func (s *Server) websocket(c echo.Context) error {
	h := &hijacker{ResponseWriter: c.Response().Writer}
	conn, ok := s.upgrade(c, h)
	if !ok {
		return nil // answered
	}
	ctx, end := context.WithCancelCause(context.WithoutCancel(c.Request().Context()))
	k := &socket{
		s: s, conn: conn, under: h.conn, ctx: ctx, end: end, frames: make(chan frames), pongs: make(chan string, 1),
		kick: make(chan struct{}, 1), refs: map[string]*followed{}, inputs: map[string]*inputs{},
	}
	s.sockets.Go(k.serve)
	return nil
}

// serve runs the connection until it ends. All its goroutines have ended when it returns.
func (k *socket) serve() {
	var writing, cutting sync.WaitGroup
	over := make(chan struct{})
	writing.Go(k.write)
	cutting.Go(func() { k.cut(over) })
	k.read()
	k.end(backends.ErrClientGone)
	writing.Wait()
	close(over)
	cutting.Wait()
	k.work.Wait()
}

// read does what the client asks for until it goes away or, once the connection is to end, closes on its side.
func (k *socket) read() {
	k.conn.SetReadLimit(k.s.config.MaxBody)
	k.conn.SetPingHandler(func(data string) error {
		select {
		case <-k.pongs: // the newest is enough (RFC 6455 section 5.5.3)
		default:
		}
		k.pongs <- data
		return nil
	})
	k.conn.SetCloseHandler(func(int, string) error { return nil }) // close answers
	for {
		kind, text, err := k.conn.ReadMessage()
		switch {
		case err != nil:
			return
		case k.ctx.Err() != nil: // too late
		case kind != websocket.TextMessage:
			k.refuse("", "", badRequest("messages are JSON text"))
		default:
			k.handle(text)
		}
	}
}

// cut closes the connection when it is over, or when it doesn't end by itself although it has to.
func (k *socket) cut(over <-chan struct{}) {
	defer k.conn.Close()
	within, closing := cutWithin, (<-chan struct{})(nil)
	select {
	case <-over:
		return
	case <-k.s.closing: // what was stopped reports its end
	case <-k.ctx.Done():
		if errors.Is(context.Cause(k.ctx), errLagging) {
			within, closing = lagGrace, k.s.closing
		}
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	case <-closing:
	}
}

// write sends what the followers hand over and replies, until the connection ends. It is the only one that sends.
func (k *socket) write() {
	var waiting []frames
	closing := k.s.closing
	for {
		if len(waiting) == 0 {
			select {
			case f := <-k.frames:
				waiting = append(waiting, f)
			case <-k.kick:
			case data := <-k.pongs:
				k.pong(data)
			case <-closing: // everything that runs has been stopped: let the followers send the ends
				closing = nil
				k.endWithLast()
			case <-k.ctx.Done():
				k.close()
				return
			}
		}
		var err error
		if waiting, err = k.turn(k.others(waiting)); errors.Is(err, os.ErrDeadlineExceeded) {
			k.end(errLagging)
		} else if err != nil {
			k.end(backends.ErrClientGone)
		}
		if k.ctx.Err() != nil {
			waiting = nil
		}
	}
}

// others adds what others hand over at the moment.
func (k *socket) others(waiting []frames) []frames {
	for {
		select {
		case f := <-k.frames:
			waiting = append(waiting, f)
		case data := <-k.pongs:
			k.pong(data)
		default:
			return waiting
		}
	}
}

func (k *socket) pong(data string) {
	k.conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(writeTimeout)) // the next write tells of errors
}

// turn sends replies and something of each of waiting, and returns those that have more.
func (k *socket) turn(waiting []frames) ([]frames, error) {
	k.under.gather()
	if err := k.put(k.takeReplies()); err != nil {
		return nil, err
	}
	for i := range waiting {
		f := &waiting[i]
		n := turnOf(f.text)
		if err := k.put(f.text[:n]); err != nil {
			return nil, err
		}
		f.text = f.text[n:]
	}
	if err := k.under.send(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(waiting, func(f frames) bool {
		if len(f.text) > 0 {
			return false
		}
		f.sent <- struct{}{}
		return true
	}), nil
}

// turnOf returns how much of text is sent in one turn: whole lines.
func turnOf(text []byte) int {
	if len(text) <= socketTurn {
		return len(text)
	}
	if i := bytes.LastIndexByte(text[:socketTurn], '\n'); i >= 0 {
		return i + 1
	}
	return bytes.IndexByte(text, '\n') + 1
}

// put gathers a message for each line of text.
func (k *socket) put(text []byte) error {
	for len(text) > 0 {
		i := bytes.IndexByte(text, '\n') // there is none inside JSON
		if err := k.conn.WriteMessage(websocket.TextMessage, text[:i]); err != nil {
			return err
		}
		text = text[i+1:]
		if k.under.full() {
			if err := k.under.send(); err != nil {
				return err
			}
			k.under.gather()
		}
	}
	return nil
}

// close sends the close frame.
func (k *socket) close() {
	code, why := websocket.CloseNormalClosure, ""
	switch cause := context.Cause(k.ctx); {
	case errors.Is(cause, errLagging):
		last := websocket.FormatCloseMessage(closeLagged, string(openapi.PTYServerMessageCodeLagged))
		k.under.resume(append([]byte{0x80 | websocket.CloseMessage, byte(len(last))}, last...)) // RFC 6455 section 5.2
		return
	case errors.Is(cause, backends.ErrShutdown):
		k.put(k.takeReplies())
		k.under.send()
		code, why = websocket.CloseGoingAway, "shutting down"
	}
	k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, why), time.Now().Add(writeTimeout))
}

// give hands lines to the writing goroutine and returns when they are sent.
func (k *socket) give(text []byte) error {
	sent := make(chan struct{}, 1)
	select {
	case k.frames <- frames{text, sent}:
	case <-k.ctx.Done():
		return context.Cause(k.ctx)
	}
	select {
	case <-sent:
		return nil
	case <-k.ctx.Done():
		return context.Cause(k.ctx)
	}
}

// reply sends a line without waiting.
func (k *socket) reply(line []byte) {
	k.mu.Lock()
	k.replies = append(k.replies, line...)
	full := len(k.replies) > maxReplies
	k.mu.Unlock()
	if full {
		k.end(errLagging)
		return
	}
	select {
	case k.kick <- struct{}{}:
	default: // it is known
	}
}

func (k *socket) takeReplies() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.replies
	k.replies = nil
	return r
}
