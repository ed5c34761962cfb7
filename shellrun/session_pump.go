package shellrun

import (
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// pump copies a pipe to a writer until nobody can write to the pipe any more. Where the bytes go can be switched: what
// is there when a run ends is the run's, what comes later is its session's. It holds a buffer only while there is
// something to copy.
type pump struct {
	name string
	file *os.File
	raw  syscall.RawConn
	turn chan struct{} // holds one token; who has it reads and writes, and may change out
	out  io.Writer
	done chan struct{} // closed when the pipe is
}

// buffers are shared by all pumps.
type buffers struct{ pool sync.Pool }

const pumpBuffer = 64 << 10

// largePipe is the size of a pipe through which much comes, in bytes: fewer switches between its two ends. Pipes start
// small, since what users may have in pipes is limited (pipe(7)).
const largePipe = 1 << 20

func (b *buffers) get() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, pumpBuffer)
	return &p
}

func (b *buffers) put(p *[]byte) { b.pool.Put(p) }

// newPump takes over fd, the reading end of a pipe in non-blocking mode. Somebody has to call run.
func newPump(fd int, name string, out io.Writer) (*pump, error) {
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	p := &pump{name: name, file: f, raw: raw, turn: make(chan struct{}, 1), out: out, done: make(chan struct{})}
	p.turn <- struct{}{}
	return p, nil
}

// run copies until the end. It is called once.
func (p *pump) run(bufs *buffers) {
	defer close(p.done)
	defer p.file.Close()
	grown := false
	for {
		var buf *[]byte
		n := 0
		err := p.raw.Read(func(fd uintptr) bool {
			<-p.turn
			buf = bufs.get()
			var ready bool
			if n, ready = readPipe(int(fd), *buf); ready {
				return true
			}
			bufs.put(buf)
			p.turn <- struct{}{}
			return false
		})
		if err != nil { // closed
			return
		}
		if n == pumpBuffer && !grown {
			grown = true
			p.raw.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, largePipe) }) // it may be refused
		}
		if n > 0 {
			p.out.Write((*buf)[:n])
		}
		bufs.put(buf)
		p.turn <- struct{}{}
		if n <= 0 {
			return
		}
	}
}

// readPipe reads without waiting. ready says that it is of no use to wait: there were bytes, or there will be none.
func readPipe(fd int, buf []byte) (n int, ready bool) {
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, false
		case err != nil:
			return 0, true
		case n == 0:
			// Nobody has it open for writing. A named pipe that nobody has opened yet looks the same.
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			unix.Poll(ready, 0)
			return 0, ready[0].Revents&unix.POLLHUP != 0
		default:
			return n, true
		}
	}
}

// aim sends what comes to another writer.
func (p *pump) aim(out io.Writer) {
	<-p.turn
	p.out = out
	p.turn <- struct{}{}
}

// settle copies what is in the pipe now and sends what comes after it to late.
func (p *pump) settle(bufs *buffers, late io.Writer) {
	<-p.turn
	defer func() {
		if f, ok := p.out.(interface{ Flush() }); ok {
			f.Flush()
		}
		p.out = late
		p.turn <- struct{}{}
	}()
	left := 0
	p.raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if left == 0 {
		return
	}
	buf := bufs.get()
	defer bufs.put(buf)
	for left > 0 {
		n := 0
		p.raw.Control(func(fd uintptr) { n, _ = readPipe(int(fd), (*buf)[:min(left, len(*buf))]) })
		if n <= 0 {
			return
		}
		p.out.Write((*buf)[:n])
		left -= n
	}
}

// stop ends the copying, whoever may still write.
func (p *pump) stop() {
	p.file.Close()
	<-p.done
}
