package ptyrun

import (
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ttyBuffer  = 16 << 10
	pipeBuffer = 64 << 10
	// ttyRead is about the most that one read of a terminal gives; with less there is hardly more.
	ttyRead = 2 << 10
	// maxRest bounds what is read after the end: background jobs may go on printing for ever, and what the first process
	// wrote is not more than fits into the kernel's buffers.
	maxRest = 2 << 20
)

// pump passes on what comes from a descriptor until the end.
type pump struct {
	file *os.File
	conn syscall.RawConn
	to   io.Writer
	flow *flow
	buf  []byte
	over atomic.Bool // the first process has ended
}

func newPump(file *os.File, to io.Writer, f *flow, size int) *pump {
	conn, _ := file.SyscallConn() // fails for nil files only
	return &pump{file: file, conn: conn, to: to, flow: f, buf: make([]byte, size)}
}

// run passes on what comes until settle is called or nobody can write any more, then what is left. It stays inside one
// call to the poller, which would forget an event that came between two calls.
func (p *pump) run() {
	p.conn.Read(func(fd uintptr) bool {
		for {
			p.flow.wait()
			if n, more := p.read(int(fd)); n == 0 || !more {
				return n == 0 && more
			}
			if p.over.Load() { // the poller stops those only who wait for it
				return true
			}
		}
	})
	for rest, n, more := 0, 1, true; more && n > 0 && rest < maxRest; rest += n {
		if p.conn.Control(func(fd uintptr) { n, more = p.read(int(fd)) }) != nil {
			return
		}
	}
}

// settle tells run that the first process has ended.
func (p *pump) settle() {
	p.over.Store(true)
	p.file.SetReadDeadline(time.Unix(1, 0))
}

// read passes on what is there. There may be more unless more is false; with more and nothing read, it is the end.
func (p *pump) read(fd int) (n int, more bool) {
	for n < len(p.buf) {
		k, err := unix.Read(fd, p.buf[n:])
		if err == unix.EINTR {
			continue
		}
		if k <= 0 {
			more = err != unix.EAGAIN
			break
		}
		n += k
		more = true
		if k < ttyRead {
			break
		}
	}
	if n > 0 {
		p.to.Write(p.buf[:n])
		p.flow.add(n)
		runtime.Gosched() // whoever sends it goes first
	}
	return n, more
}
