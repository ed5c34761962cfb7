package gokernel

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// queued is how many messages wait for a peer that doesn't read before who sends more has to wait.
const queued = 64

// wire is a connection whose small writes are collected, once the handshake is over, until they are flushed.
type wire struct {
	net.Conn
	r       *bufio.Reader
	w       *bufio.Writer
	collect bool
}

// Read implements io.Reader.
func (c *wire) Read(p []byte) (int, error) { return c.r.Read(p) }

// Write implements io.Writer.
func (c *wire) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err == nil && !c.collect {
		err = c.w.Flush()
	}
	return n, err
}

// peer is a connection to one of the kernel's sockets (ZMTP 3.0, RFC 23). A goroutine of its own writes.
type peer struct {
	wire  *wire
	zmtp  *zmq4.Conn // nil until the handshake is over
	out   chan [][]byte
	gone  chan struct{} // closed when the connection has ended
	ready bool          // may be sent to; guarded by socket.mu
}

// send queues a message. It waits while the peer doesn't read and returns at once when the peer is gone.
func (p *peer) send(frames [][]byte) {
	select {
	case p.out <- frames:
	case <-p.gone:
	}
}

// identity is the peer's routing id: a client has the same on all sockets.
func (p *peer) identity() string { return p.zmtp.Peer.Meta["Identity"] }

func (p *peer) write() {
	for {
		select {
		case frames := <-p.out:
			err := p.zmtp.SendMsg(zmq4.NewMsgFrom(frames...))
			if err == nil && len(p.out) == 0 {
				err = p.wire.w.Flush()
			}
			if err != nil {
				p.wire.Close() // ends the reader, too
				return
			}
		case <-p.gone:
			return
		}
	}
}

// socket is one bound ZeroMQ socket of a kernel.
type socket struct {
	kind     zmq4.SocketType
	listener net.Listener
	take     func(*peer, [][]byte) // gets each message, by its peer's reader; of a Pub socket, each subscription
	work     sync.WaitGroup

	mu     sync.Mutex // guards what follows; held over no I/O
	peers  []*peer    // in order of arrival
	closed bool
}

// listen binds a socket and lets clients in until it is closed.
func listen(ctx context.Context, kind zmq4.SocketType, network, address string, take func(*peer, [][]byte)) (*socket, error) {
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("bind a %s socket: %w", kind, err)
	}
	s := &socket{kind: kind, listener: l, take: take}
	s.work.Go(s.accept)
	return s, nil
}

func (s *socket) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		p := &peer{
			wire: &wire{Conn: c, r: bufio.NewReaderSize(c, 64<<10), w: bufio.NewWriterSize(c, 64<<10)},
			out:  make(chan [][]byte, queued), gone: make(chan struct{}),
		}
		if !s.add(p) {
			c.Close()
			return
		}
		s.work.Go(func() { s.attend(p) })
	}
}

// attend serves one connection until it ends.
func (s *socket) attend(p *peer) {
	defer s.remove(p)
	defer close(p.gone)
	defer p.wire.Close()
	var err error
	p.zmtp, err = zmq4.Open(p.wire, null.Security(), s.kind, nil, true, nil)
	if err != nil {
		return // gone, or no ZeroMQ peer
	}
	p.wire.collect = true
	s.work.Go(p.write)
	s.admit(p, s.kind != zmq4.Pub)
	for {
		m, err := p.zmtp.RecvMsg()
		if err != nil {
			return
		}
		if s.kind != zmq4.Pub {
			s.take(p, m.Frames)
		} else if len(m.Frames) == 1 && len(m.Frames[0]) > 0 && m.Frames[0][0] <= 1 { // subscribes, or no more
			on := m.Frames[0][0] == 1
			s.admit(p, on)
			if on {
				s.take(p, nil)
			}
		}
	}
}

// add remembers the connection, so that close can end it; it says no when that has happened already.
func (s *socket) add(p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.peers = append(s.peers, p)
	}
	return !s.closed
}

func (s *socket) admit(p *peer, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ready = ready
}

func (s *socket) remove(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []*peer
	for _, other := range s.peers {
		if other != p {
			rest = append(rest, other)
		}
	}
	s.peers = rest
}

// all returns the peers that can be sent to, the latest last. The list isn't changed afterwards.
func (s *socket) all() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ready []*peer
	for _, p := range s.peers {
		if p.ready {
			ready = append(ready, p)
		}
	}
	return ready
}

// publish sends to all peers.
func (s *socket) publish(frames [][]byte) {
	for _, p := range s.all() {
		p.send(frames)
	}
}

// close ends the socket and its connections and returns when its goroutines have ended. What is queued is lost.
func (s *socket) close() {
	s.mu.Lock()
	s.closed = true
	peers := s.peers
	s.mu.Unlock()
	s.listener.Close()
	for _, p := range peers {
		p.wire.Close()
	}
	s.work.Wait()
}
