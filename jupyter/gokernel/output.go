package gokernel

import (
	"os"
	"sync"
	"syscall"
	"unicode/utf8"
)

// stream is one of a kernel's output streams: a pipe whose write end cells get, and whatever reads it. Its read end is
// read by pump and by drain; a lock keeps what they take in order.
type stream struct {
	write *os.File
	read  *os.File
	raw   syscall.RawConn
	say   func([]byte) // gets what was written; may block

	order sync.Mutex // an order lock: held while say runs, so that nothing overtakes
	buf   [64 << 10]byte
	kept  int // bytes at the start of buf: a character whose rest hasn't come
}

func newStream(say func([]byte)) (*stream, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{write: w, read: r, raw: raw, say: say}, nil
}

// take says what is in the pipe, and reports whether it has ended.
func (s *stream) take(fd uintptr) (ended bool) {
	s.order.Lock()
	defer s.order.Unlock()
	for {
		n, err := syscall.Read(int(fd), s.buf[s.kept:])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err != syscall.EAGAIN
		case n == 0:
			return true
		default:
			n += s.kept
			s.kept = unfinished(s.buf[:n])
			if whole := n - s.kept; whole > 0 {
				s.say(s.buf[:whole])
				copy(s.buf[:], s.buf[whole:n])
			}
		}
	}
}

// unfinished returns how many bytes at the end of text are the beginning of a character.
func unfinished(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return n
			}
			break
		}
	}
	return 0
}

// pump runs until the pipe has ended.
func (s *stream) pump() {
	_ = s.raw.Read(func(fd uintptr) bool { return s.take(fd) })
}

// drain returns when what was written before the call has been said.
func (s *stream) drain() {
	_ = s.raw.Control(func(fd uintptr) { s.take(fd) })
	s.order.Lock()
	defer s.order.Unlock()
	if s.kept > 0 { // there is no more of it
		s.say(s.buf[:s.kept])
		s.kept = 0
	}
}

func (s *stream) close() {
	s.write.Close()
	s.read.Close()
}
