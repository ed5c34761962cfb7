package ptyrun

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of input that waits for a program.
const (
	maxPending    = 1 << 20
	inputPatience = 500 * time.Millisecond
	keptPending   = 64 << 10 // the largest buffer that is kept when it is empty
)

// input passes input on to a program in order. What the kernel takes is written by whoever brings it; only for the rest
// there is a goroutine, which waits in the poller.
type input struct {
	work sync.WaitGroup // the goroutine

	mu      sync.Mutex // guards what follows; held across writes, which don't block
	file    *os.File   // nil before the start
	conn    syscall.RawConn
	pending []byte
	waiting bool          // the goroutine is there
	stuck   bool          // the program has read nothing for too long, with pending full
	room    chan struct{} // closed when something was written or dropped; nil when nobody waits
	ended   bool          // nothing comes after pending
	closed  bool
}

// open says where input goes.
func (in *input) open(file *os.File) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.file = file
	in.conn, _ = file.SyscallConn() // fails for nil files only
	in.flush()
	in.shut()
}

// write is Terminal.Write.
func (in *input) write(ctx context.Context, p []byte) error {
	for {
		n, room, err := in.add(p)
		if p = p[n:]; len(p) == 0 || err != nil {
			return err
		}
		if ctx.Err() != nil { // however late it is: who has gone doesn't tell of a program that doesn't read
			return context.Cause(ctx)
		}
		timer := time.NewTimer(inputPatience)
		select {
		case <-room:
		case <-timer.C:
			in.giveUp(room)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// add takes as much of p as there is room for. room is closed when there is more.
func (in *input) add(p []byte) (n int, room <-chan struct{}, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		return 0, nil, os.ErrProcessDone
	case in.ended:
		return 0, nil, ErrInputClosed
	}
	if len(in.pending) == 0 && in.conn != nil {
		n = in.put(p)
	}
	more := min(len(p)-n, maxPending-len(in.pending))
	in.pending = append(in.pending, p[n:n+more]...)
	n += more
	in.flush()
	if n < len(p) && in.stuck {
		return n, nil, ErrInputFull
	}
	if in.room == nil {
		in.room = make(chan struct{})
	}
	return n, in.room, nil
}

// end closes the program's input once it has read what waits.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.shut()
}

// shut closes the program's input if that is to be done and nothing waits any more. The caller holds mu.
func (in *input) shut() {
	if in.ended && in.file != nil && !in.waiting {
		_ = in.file.Close() // it may be closed already
	}
}

// giveUp says that nothing was written since room was got.
func (in *input) giveUp(room <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.room == room {
		in.stuck = true
	}
}

// put writes what the kernel takes of p at once. The caller holds mu.
func (in *input) put(p []byte) (n int) {
	err := in.conn.Control(func(fd uintptr) { n = in.writeTo(fd, p) })
	if err != nil { // the end has come
		return len(p)
	}
	return n
}

// writeTo writes what the kernel takes of p at once. What can't be written at all, since nobody is there to read it,
// counts as written. The caller holds mu.
func (in *input) writeTo(fd uintptr, p []byte) (n int) {
	for n < len(p) {
		k, err := unix.Write(int(fd), p[n:])
		switch err {
		case nil:
			n += k
		case unix.EINTR:
		case unix.EAGAIN:
			return n
		default:
			return len(p)
		}
		in.moved()
	}
	return n
}

// moved says that there is progress. The caller holds mu.
func (in *input) moved() {
	in.stuck = false
	if in.room != nil {
		close(in.room)
		in.room = nil
	}
}

// flush writes what it can and leaves the rest to the goroutine. The caller holds mu.
func (in *input) flush() {
	if in.conn == nil || len(in.pending) == 0 {
		return
	}
	in.advance(in.put(in.pending))
	if len(in.pending) > 0 && !in.waiting {
		in.waiting = true
		in.work.Go(func() {
			if in.conn.Write(in.ready) != nil {
				in.drop() // the end has come
			}
			in.mu.Lock()
			defer in.mu.Unlock()
			in.shut()
		})
	}
}

// advance takes n bytes off pending. The caller holds mu.
func (in *input) advance(n int) {
	if in.pending = in.pending[n:]; len(in.pending) == 0 && cap(in.pending) > keptPending {
		in.pending = nil
	}
}

// ready is called when the program may have read something, and says whether there is nothing left to do.
func (in *input) ready(fd uintptr) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.advance(in.writeTo(fd, in.pending))
	in.waiting = len(in.pending) > 0
	return !in.waiting
}

// drop forgets what waits.
func (in *input) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.advance(len(in.pending))
	in.moved()
}

// close ends it and waits for the goroutine.
func (in *input) close() {
	in.mu.Lock()
	in.closed, in.pending = true, nil
	in.moved()
	if in.file != nil {
		in.file.SetWriteDeadline(time.Unix(1, 0))
	}
	in.mu.Unlock()
	in.work.Wait()
}
