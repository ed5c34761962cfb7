package sqlrun

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"
)

// tap is the connection that go-sql-driver authenticates on and that is ours afterwards. It learns from the client's
// first packet what the two sides have agreed on. TLS is begun here, behind the driver's back: what the driver encrypts
// itself could not become ours. One goroutine reads and writes; any may close.
type tap struct {
	net.Conn // raw, or TLS on it
	raw      net.Conn

	secure       *tls.Config // nil: no TLS
	fallback     bool        // a server without TLS will do
	capabilities uint32      // of the first packet written; 0 before that
	serverTLS    bool        // the server's greeting offers it
	failed       error       // why there is no TLS, which the driver doesn't pass on

	// Since there is TLS the two count differently: the request for it was a packet that the driver knows nothing of.
	shifted bool
	greeted bool
	pending []byte // of a packet from the server
}

const capTLS = 1 << 11

// headSize is that of the part of the client's first packet that a request for TLS consists of.
const headSize = 32

// Write implements net.Conn. The driver writes a packet by one call.
func (t *tap) Write(b []byte) (int, error) {
	if t.capabilities == 0 && len(b) >= 4+headSize {
		t.capabilities = binary.LittleEndian.Uint32(b[4:])
		if t.failed = t.begin(b); t.failed != nil {
			return 0, t.failed
		}
	}
	if !t.shifted {
		return t.Conn.Write(b)
	}
	b = append([]byte(nil), b...)
	b[3]++
	return t.Conn.Write(b)
}

// begin begins TLS before the client's first packet, b, which is changed to say so.
func (t *tap) begin(b []byte) error {
	if t.secure == nil || !t.serverTLS && t.fallback {
		return nil
	}
	if !t.serverTLS {
		return mysql.ErrNoTLS
	}
	binary.LittleEndian.PutUint32(b[4:], t.capabilities|capTLS)
	request := append([]byte{headSize, 0, 0, 1}, b[4:4+headSize]...)
	if _, err := t.raw.Write(request); err != nil {
		return err
	}
	c := tls.Client(t.raw, t.secure)
	if err := c.Handshake(); err != nil { // closing raw ends it
		return err
	}
	t.Conn, t.shifted = c, true
	return nil
}

// Read implements net.Conn.
func (t *tap) Read(b []byte) (int, error) {
	if len(t.pending) == 0 {
		if t.greeted && !t.shifted {
			return t.Conn.Read(b)
		}
		if err := t.packet(); err != nil {
			return 0, err
		}
	}
	n := copy(b, t.pending)
	t.pending = t.pending[n:]
	return n, nil
}

// packet reads a packet of the handshake: the greeting, or what comes encrypted until the server lets us in or doesn't.
func (t *tap) packet() error {
	head := make([]byte, 4)
	if _, err := io.ReadFull(t.Conn, head); err != nil {
		return err
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	b := append(head, make([]byte, n)...)
	if _, err := io.ReadFull(t.Conn, b[4:]); err != nil {
		return err
	}
	t.pending = b
	if !t.greeted {
		t.greeted, t.serverTLS = true, offersTLS(b[4:])
		return nil
	}
	b[3]--
	t.shifted = n > 0 && b[4] != packetOK && b[4] != packetError
	return nil
}

// offersTLS reads the server's greeting (Protocol::HandshakeV10).
func offersTLS(b []byte) bool {
	for i, c := range b {
		if i > 0 && c == 0 { // the end of the version; then the connection's id, a salt and a filler
			at := i + 1 + 4 + 8 + 1
			return len(b) >= at+2 && binary.LittleEndian.Uint16(b[at:])&capTLS != 0
		}
	}
	return false
}

// Close implements net.Conn; the driver's end of it and ours may both call it.
func (t *tap) Close() error { return t.raw.Close() }

// tapped returns a configuration for the driver whose connections are taps; take is called with each.
func tapped(config *mysql.Config, take func(*tap)) *mysql.Config {
	c := config.Clone()
	secure, fallback := c.TLS, c.AllowFallbackToPlaintext
	c.TLS, c.TLSConfig = nil, ""
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		t := &tap{Conn: raw, raw: raw, secure: secure, fallback: fallback}
		take(t)
		return t, nil
	}
	return c
}
