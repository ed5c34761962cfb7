package sqlrun

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

const (
	maxPacket  = 1<<24 - 1 // longer payloads come in several packets
	readBuffer = 64 << 10
	// MaxRow is the size of the largest row, in bytes, as the server sends it.
	MaxRow = 16 << 20
)

// errTooLarge says that a payload was longer than MaxRow and has been skipped.
var errTooLarge = errors.New("larger than a row may be")

// errMalformed says that the server and we are out of step.
var errMalformed = errors.New("the server's answer can't be understood")

// packets reads and writes the packets of a connection: three bytes of length, one of sequence, payload. One goroutine
// uses it.
type packets struct {
	w    net.Conn
	r    *bufio.Reader
	skip int    // bytes of the last payload that are still in r
	long []byte // the last payload, if it wasn't whole in r
}

func newPackets(c net.Conn) *packets {
	return &packets{w: c, r: bufio.NewReaderSize(c, readBuffer)}
}

// read returns the next payload, which is valid until the next call. One that is too large is skipped, and the error
// is errTooLarge.
func (p *packets) read() ([]byte, error) {
	if _, err := p.r.Discard(p.skip); err != nil {
		return nil, err
	}
	p.skip = 0
	n, err := p.length()
	if err != nil {
		return nil, err
	}
	if n <= readBuffer {
		payload, err := p.r.Peek(n)
		p.skip = len(payload)
		return payload, unexpected(err)
	}
	return p.readLong(n)
}

func (p *packets) length() (int, error) {
	head, err := p.r.Peek(4)
	if err != nil {
		return 0, unexpected(err)
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	_, err = p.r.Discard(4)
	return n, err
}

// readLong reads a payload that doesn't fit into the buffer, and perhaps not into one packet.
func (p *packets) readLong(n int) ([]byte, error) {
	p.long = p.long[:0]
	large := false
	for {
		if large = large || len(p.long)+n > MaxRow; large {
			if _, err := io.CopyN(io.Discard, p.r, int64(n)); err != nil {
				return nil, unexpected(err)
			}
		} else {
			at := len(p.long)
			p.long = append(p.long, make([]byte, n)...)
			if _, err := io.ReadFull(p.r, p.long[at:]); err != nil {
				return nil, unexpected(err)
			}
		}
		if n < maxPacket {
			break
		}
		var err error
		if n, err = p.length(); err != nil {
			return nil, err
		}
	}
	payload := p.long
	if cap(payload) > 1<<20 {
		p.long = nil // one large row is no reason to hold its memory for good
	}
	if large {
		return nil, errTooLarge
	}
	return payload, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// command sends a command, which begins a new sequence.
func (p *packets) command(kind byte, text string) error {
	payload := make([]byte, 0, 5+len(text))
	payload = append(append(append(payload, 0, 0, 0, 0), kind), text...)
	return p.write(payload, 0)
}

// write sends the payload that stands after four free bytes, with the sequence number seq.
func (p *packets) write(payload []byte, seq byte) error {
	for {
		n := min(len(payload)-4, maxPacket)
		payload[0], payload[1], payload[2], payload[3] = byte(n), byte(n>>8), byte(n>>16), seq
		if _, err := p.w.Write(payload[:4+n]); err != nil {
			return err
		}
		if n < maxPacket {
			return nil
		}
		payload = payload[n:] // the last four bytes sent make room for the next head
		seq++
	}
}

// lenenc takes an integer of variable length off the front of b. ok is false for the NULL of a row; at the end of b
// the error is errMalformed.
func lenenc(b []byte) (n uint64, ok bool, rest []byte, err error) {
	if len(b) == 0 {
		return 0, false, nil, errMalformed
	}
	size := 0
	switch b[0] {
	case 0xFB:
		return 0, false, b[1:], nil
	case 0xFC:
		size = 2
	case 0xFD:
		size = 3
	case 0xFE:
		size = 8
	case 0xFF:
		return 0, false, nil, errMalformed
	default:
		return uint64(b[0]), true, b[1:], nil
	}
	if len(b) < 1+size {
		return 0, false, nil, errMalformed
	}
	var word [8]byte
	copy(word[:], b[1:1+size])
	return binary.LittleEndian.Uint64(word[:]), true, b[1+size:], nil
}

// text takes a string of variable length off the front of b; nil is NULL.
func text(b []byte) (s, rest []byte, err error) {
	n, ok, rest, err := lenenc(b)
	if err != nil || !ok {
		return nil, rest, err
	}
	if n > uint64(len(rest)) {
		return nil, nil, errMalformed
	}
	return rest[:n:n], rest[n:], nil
}

// Error is what the server says of a statement that failed. Its text is go-sql-driver's.
type Error struct {
	Code     int    // the server's number
	SQLState string // five characters, or empty
	Message  string
}

func (e *Error) Error() string {
	if e.SQLState != "" {
		return fmt.Sprintf("Error %d (%s): %s", e.Code, e.SQLState, e.Message)
	}
	return fmt.Sprintf("Error %d: %s", e.Code, e.Message)
}

// parseError reads an ERR packet.
func parseError(b []byte) error {
	if len(b) < 3 {
		return errMalformed
	}
	e := &Error{Code: int(binary.LittleEndian.Uint16(b[1:]))}
	b = b[3:]
	if len(b) >= 6 && b[0] == '#' {
		e.SQLState, b = string(b[1:6]), b[6:]
	}
	e.Message = string(b)
	return e
}
