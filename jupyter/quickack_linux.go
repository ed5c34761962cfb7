package jupyter

import (
	"net"
	"syscall"
)

// quickConn acknowledges at once what it reads. A Jupyter server leaves Nagle's algorithm on, so that the second
// small frame of an answer waits for the acknowledgement of the first: 40 ms by default. The kernel forgets the
// option, so it is set again after each read (tcp(7), TCP_QUICKACK).
type quickConn struct {
	*net.TCPConn
	raw syscall.RawConn
	arm func(fd uintptr)
}

func newQuickConn(c *net.TCPConn) net.Conn {
	raw, err := c.SyscallConn()
	if err != nil {
		return c
	}
	q := &quickConn{TCPConn: c, raw: raw, arm: func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) // only slower without
	}}
	_ = raw.Control(q.arm)
	return q
}

func (c *quickConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	_ = c.raw.Control(c.arm)
	return n, err
}
