package ptyrun

import (
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ttyBuffer  = 16 << 10
	pipeBuffer = 64 << 10
	// ttyRead is about the most that one read of a terminal gives; with less there is no more.
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
	n    int // bytes in buf, of the last read
}

func newPump(file *os.File, to io.Writer, f *flow, size int) *pump {
	conn, _ := file.SyscallConn() // fails for nil files only
	return &pump{file: file, conn: conn, to: to, flow: f, buf: make([]byte, size)}
}

// run reads until settle is called or nobody can write any more, then takes what is left.
func (p *pump) run() {
	for {
		p.flow.wait()
		if p.conn.Read(p.ready) != nil || p.n == 0 {
			break
		}
		p.pass()
	}
	for rest := 0; rest < maxRest; rest += p.n {
		if p.conn.Control(func(fd uintptr) { p.ready(fd) }) != nil || p.n == 0 {
			return
		}
		p.pass()
	}
}

// settle tells run that the first process has ended.
func (p *pump) settle() { p.file.SetReadDeadline(time.Unix(1, 0)) }

func (p *pump) pass() {
	p.to.Write(p.buf[:p.n])
	p.flow.add(p.n)
}

// ready reads what is there and says whether there was something, or the end.
func (p *pump) ready(fd uintptr) bool {
	p.n = 0
	for p.n < len(p.buf) {
		n, err := unix.Read(int(fd), p.buf[p.n:])
		if err == unix.EINTR {
			continue
		}
		if n > 0 {
			p.n += n
		}
		if n < ttyRead {
			return p.n > 0 || err != unix.EAGAIN
		}
	}
	return true
}
