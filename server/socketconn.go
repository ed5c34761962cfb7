package server

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// socketBatch is how much a socketConn sends at once, in bytes.
const socketBatch = 64 << 10

// socketConn is the connection under a WebSocket whose messages are sent in batches. Sending fails when the client
// takes less than a batch within writeTimeout, however much there is to send; what then hasn't been sent is kept, so that
// the connection can still be closed in good order if the client comes back. Deadlines of writes are its own.
type socketConn struct {
	net.Conn
	accepted atomic.Int64 // when the client last took something, in Unix nanoseconds

	mu   sync.Mutex // one write at a time: held while sending, by the writing goroutine and by who finds a protocol error
	hold bool       // keep what is written until send
	held []byte     // whole messages that are not sent yet
	err  error      // of sending; for good
}

// Write implements net.Conn.
func (c *socketConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.held = append(c.held, p...)
	if c.hold {
		return len(p), nil
	}
	return len(p), c.sendHeld()
}

// SetWriteDeadline implements net.Conn. It does nothing.
func (c *socketConn) SetWriteDeadline(time.Time) error { return nil }

// gather keeps what is written from now on until send.
func (c *socketConn) gather() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = true
}

// full says that a batch is gathered.
func (c *socketConn) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held) >= socketBatch
}

// send sends what is gathered.
func (c *socketConn) send() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = false
	if c.err != nil {
		return c.err
	}
	return c.sendHeld()
}

// resume sends what a timed-out write has left and then last, until the connection is closed.
func (c *socketConn) resume(last []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Conn.SetWriteDeadline(time.Time{})
	_, err := c.Conn.Write(append(c.held, last...))
	c.held = nil
	return err
}

// sendHeld sends what is held. The caller holds mu.
func (c *socketConn) sendHeld() error {
	p := c.held
	for len(p) > 0 {
		c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		n, err := c.Conn.Write(p[:min(len(p), socketBatch)])
		p = p[n:]
		if err != nil {
			c.held, c.err = append(c.held[:0], p...), err
			return err
		}
		c.accepted.Store(time.Now().UnixNano())
	}
	if c.held = c.held[:0]; cap(c.held) > maxKeptBuffer {
		c.held = nil
	}
	return nil
}

// Accepted implements hooks.Pacer.
func (c *socketConn) Accepted() time.Time { return time.Unix(0, c.accepted.Load()) }

// hijacker lets a WebSocket be made on a socketConn.
type hijacker struct {
	http.ResponseWriter
	conn *socketConn
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.conn = &socketConn{Conn: conn}
	return h.conn, rw, nil
}
