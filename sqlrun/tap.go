package sqlrun

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// tap is the connection that go-sql-driver authenticates on and that is ours afterwards. It learns from the client's
// first packet what the two sides have agreed on.
type tap struct {
	net.Conn
	capabilities uint32 // of the first packet written
	written      bool
	closed       sync.Once
}

// Write implements net.Conn. The driver writes a packet by one call.
func (t *tap) Write(b []byte) (int, error) {
	if !t.written && len(b) >= 8 {
		t.written, t.capabilities = true, binary.LittleEndian.Uint32(b[4:])
	}
	return t.Conn.Write(b)
}

// Close implements net.Conn; the driver's end of it and ours may both call it.
func (t *tap) Close() (err error) {
	t.closed.Do(func() { err = t.Conn.Close() })
	return err
}

// dialer makes a tap of each connection and gives it to take.
func dialer(take func(*tap)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		t := &tap{Conn: c}
		take(t)
		return t, nil
	}
}

var _ io.Closer = (*tap)(nil)
