package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/openapi"
	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
	"golang.org/x/sys/unix"
)

// Close codes of terminals, beside those of RFC 6455.
const (
	closeTakenOver = 4001
	closeLagged    = 4002
)

// Times of a terminal's connection.
const (
	pingInterval = 30 * time.Second
	silence      = 75 * time.Second // a client that says nothing for so long, not even a pong, is gone
	closeWithin  = 5 * time.Second  // for the client to close after us
	cutWithin    = time.Second      // for what is being sent when the connection has to end
)

// maxReplies bounds what is waiting to be answered to a client that doesn't read, in bytes.
const maxReplies = 256 << 10

// Why a terminal's connection ends, beside the causes of executions.
var (
	errTakenOver = errors.New("another client has taken over")
	errTooSlow   = errors.New("the client was too slow, output has been dropped")
)

// terminals are the connections to terminals.
type terminals struct {
	mu  sync.Mutex
	all map[*ptySocket]struct{}
}

func (t *terminals) add(k *ptySocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[*ptySocket]struct{}{}
	}
	t.all[k] = struct{}{}
}

func (t *terminals) remove(k *ptySocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, k)
}

// of returns the connections to one terminal.
func (t *terminals) of(e *backends.Execution) []*ptySocket {
	t.mu.Lock()
	defer t.mu.Unlock()
	var some []*ptySocket
	for k := range t.all {
		if k.e == e {
			some = append(some, k)
		}
	}
	return some
}

// dropLost releases a terminal from connections whose clients have closed them, before they are read to their ends: a
// client that comes back at once is not in its own way.
func (t *terminals) dropLost(e *backends.Execution) {
	for _, k := range t.of(e) {
		if k.lost() {
			k.end(backends.ErrClientGone)
			k.release()
		}
	}
}

// ptySocket is a connection to a terminal. One goroutine reads what the client sends and never waits for the client to
// read; one follows the journal and sends output; one sends answers, and the pings that find out whether the client is
// there; and one cuts the connection if it doesn't end when it has to.
type ptySocket struct {
	s      *Server
	conn   *websocket.Conn
	e      *backends.Execution
	t      *backends.Terminal
	holder *backends.Holder // nil: a viewer
	since  int64            // offset of the first byte wanted

	ctx      context.Context // ends with the connection; it belongs to no call
	end      context.CancelCauseFunc
	followed chan struct{} // closed when nothing more will be sent
	kick     chan struct{} // there are replies

	writing sync.Mutex // held while a message is written, by the two goroutines that write

	mu      sync.Mutex // guards what follows
	replies []ptyReply
	waiting int           // bytes of replies
	paused  chan struct{} // closed when the client wants output again; nil when it does
	closing bool          // the close frame has been sent, and the read deadline is final
	heard   time.Time     // when the read deadline was put off
}

// ptyReply is a message that answers one of the client's.
type ptyReply struct {
	kind int
	text []byte
}

// connection is what a client wants of a terminal.
type connection struct {
	pipes, takeover, viewer bool
	since                   int64
}

func connectionOf(c echo.Context) (q connection, err error) {
	for _, x := range []struct {
		name      string
		otherwise bool
		to        *bool
	}{{"pty", true, &q.pipes}, {"takeover", false, &q.takeover}} {
		switch text := c.QueryParam(x.name); text {
		case "":
			*x.to = x.otherwise
		case "0", "1", "true", "false":
			*x.to = text == "1" || text == "true"
		default:
			return q, badQuery("%s must be 0 or 1, not %q", x.name, text)
		}
	}
	q.pipes = !q.pipes
	switch mode := c.QueryParam("mode"); mode {
	case "":
	case "viewer":
		q.viewer = true
	default:
		return q, badQuery("mode must be viewer, not %q", mode)
	}
	if text := c.QueryParam("since"); text != "" {
		q.since, err = strconv.ParseInt(text, 10, 64)
		if err != nil || q.since < 0 {
			return q, badQuery("since must be an offset, a number from 0, not %q", text)
		}
	}
	return q, nil
}

// connectPTY is GET /pty/{id}/ws.
func (s *Server) connectPTY(c echo.Context) error {
	e, err := s.terminal(c)
	if err != nil {
		return err
	}
	q, err := connectionOf(c)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(context.WithoutCancel(c.Request().Context()))
	k := &ptySocket{
		s: s, e: e, t: e.Handle().Terminal, since: q.since, ctx: ctx, end: end,
		followed: make(chan struct{}), kick: make(chan struct{}, 1),
	}
	evicted := func() { end(errTakenOver) }
	if !q.viewer && !q.takeover { // refused before the upgrade
		var ok bool
		if k.holder, ok = k.t.Hold(evicted); !ok {
			s.terminals.dropLost(e)
			k.holder, ok = k.t.Hold(evicted)
		}
		if !ok {
			return &problem{http.StatusConflict, openapi.ErrorCodeAlreadyConnected, "another client holds the terminal"}
		}
	}
	conn, ok := s.upgrade(c, c.Response().Writer)
	if !ok {
		k.release()
		return nil
	}
	k.conn = conn
	if q.takeover && !q.viewer { // after it: who can't connect evicts nobody
		k.holder = k.t.TakeOver(evicted)
	}
	if k.holder != nil {
		k.t.UsePipes(q.pipes)
	}
	s.terminals.add(k)
	s.sockets.Go(k.serve)
	return nil
}

// upgrade makes a WebSocket of the connection, or answers why not. Access has been checked, Origin included. The
// WebSocket uses the buffers of net/http.
func (s *Server) upgrade(c echo.Context, w http.ResponseWriter) (*websocket.Conn, bool) {
	upgrader := websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true },
		Error: func(_ http.ResponseWriter, _ *http.Request, status int, reason error) {
			s.onError(&problem{status, openapi.ErrorCodeInvalidRequestBody, reason.Error()}, c)
		},
	}
	conn, err := upgrader.Upgrade(w, c.Request(), nil)
	if err != nil {
		return nil, false
	}
	c.Response().Committed, c.Response().Status = true, http.StatusSwitchingProtocols
	return conn, true
}

// serve runs the connection until it ends. All its goroutines have ended when it returns.
func (k *ptySocket) serve() {
	defer k.s.terminals.remove(k)
	var work sync.WaitGroup
	work.Go(k.follow)
	work.Go(k.answer)
	gone := make(chan struct{})
	work.Go(func() { k.cut(gone) })
	k.read()
	close(gone)
	k.release()
	k.end(backends.ErrClientGone)
	k.conn.Close()
	work.Wait()
}

// lost says that the client has closed the connection, or that it was reset (tcp(7)).
func (k *ptySocket) lost() bool {
	const established = 1
	conn, ok := k.conn.NetConn().(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State != established
	})
	return closed || err != nil
}

// release gives the terminal up.
func (k *ptySocket) release() {
	if k.holder != nil {
		k.holder.Release()
	}
}

// cut closes the connection if it doesn't end by itself when it has to. gone is closed when it has ended.
func (k *ptySocket) cut(gone <-chan struct{}) {
	select {
	case <-gone:
		return
	case <-k.ctx.Done():
	case <-k.s.closing:
	}
	timer := time.NewTimer(cutWithin)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
		k.conn.Close()
	}
}

// follow sends output until the end of the terminal or of the connection, then the close frame.
func (k *ptySocket) follow() {
	defer close(k.followed)
	if k.holder != nil {
		k.e.Begin()
		select {
		case <-k.t.Launched():
		case <-k.e.Journal.Done(): // stopped before
		case <-k.ctx.Done():
		}
	}
	code, reason := 0, ""
	switch err := k.replayAndFollow(); {
	case err == nil && k.t.Failed():
		code, reason = websocket.CloseInternalServerErr, string(openapi.PTYServerMessageCodeStartFailed)
	case err == nil:
		code = websocket.CloseNormalClosure
	case errors.Is(err, hooks.ErrLagged), errors.Is(err, errTooSlow):
		k.fault(openapi.PTYServerMessageCodeLagged, errTooSlow)
		code, reason = closeLagged, string(openapi.PTYServerMessageCodeLagged)
	case errors.Is(err, errTakenOver):
		code, reason = closeTakenOver, "TAKEN_OVER"
	case errors.Is(err, backends.ErrDeleted):
		code = websocket.CloseNormalClosure
	default: // the client is gone, or can't be written to
		k.end(err)
	}
	k.release()
	k.close(code, reason)
}

// close sends what has to be answered and the close frame, and gives the client a while to close on its side: to close
// the connection with something of it unread would take back from it what it hasn't read yet.
func (k *ptySocket) close(code int, reason string) {
	if code != 0 {
		k.sendReplies()
		k.write(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closing = true
	k.conn.SetReadDeadline(time.Now().Add(closeWithin))
}

// alive puts the deadline of reads off, now and then.
func (k *ptySocket) alive() {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closing && now.Sub(k.heard) > silence/16 {
		k.heard = now
		k.conn.SetReadDeadline(now.Add(silence))
	}
}

// write sends one message.
func (k *ptySocket) write(kind int, data []byte) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	deadline := time.Now().Add(writeTimeout)
	if kind == websocket.BinaryMessage || kind == websocket.TextMessage {
		k.conn.SetWriteDeadline(deadline)
		return k.conn.WriteMessage(kind, data)
	}
	return k.conn.WriteControl(kind, data, deadline)
}

// answer sends replies and pings until nothing more is to be sent.
func (k *ptySocket) answer() {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		var err error
		select {
		case <-k.kick:
			err = k.sendReplies()
		case <-ticker.C:
			err = k.write(websocket.PingMessage, nil)
		case <-k.followed:
			return
		case <-k.ctx.Done():
			return
		}
		if err != nil {
			k.end(err)
			return
		}
	}
}

func (k *ptySocket) sendReplies() error {
	k.mu.Lock()
	replies := k.replies
	k.replies, k.waiting = nil, 0
	k.mu.Unlock()
	for _, r := range replies {
		if err := k.write(r.kind, r.text); err != nil {
			return err
		}
	}
	return nil
}

// reply queues a message. It doesn't wait.
func (k *ptySocket) reply(kind int, text []byte) {
	k.mu.Lock()
	k.replies = append(k.replies, ptyReply{kind, text})
	k.waiting += len(text)
	full := k.waiting > maxReplies
	k.mu.Unlock()
	if full {
		k.end(errTooSlow)
		return
	}
	select {
	case k.kick <- struct{}{}:
	default: // it is known
	}
}

// pause stops output to this client, and the program if the client holds the terminal, or lets it go on.
func (k *ptySocket) pause(on bool) {
	if k.holder != nil {
		k.holder.Pause(on)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case on && k.paused == nil:
		k.paused = make(chan struct{})
	case !on && k.paused != nil:
		close(k.paused)
		k.paused = nil
	}
}

// unpaused returns when the client wants output, or all of it has been printed, or the connection ends: with its cause.
func (k *ptySocket) unpaused() error {
	k.mu.Lock()
	paused := k.paused
	k.mu.Unlock()
	if paused == nil {
		return nil
	}
	select {
	case <-paused:
	case <-k.e.Journal.Done():
	case <-k.ctx.Done():
		return context.Cause(k.ctx)
	}
	return nil
}
