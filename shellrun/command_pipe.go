package shellrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// plumbing is the descriptors of a command: the child's and ours.
type plumbing struct {
	child []*os.File // nil is /dev/null
	pumps []*pump    // of standard output and standard error
	input *feeder    // nil if there is none
}

func (p *Prepared) plumb() (ends *plumbing, err error) {
	ends = &plumbing{child: make([]*os.File, scriptFD, scriptFD+1)}
	defer func() {
		if err != nil {
			ends.closeChild()
			ends.closeOurs()
		}
	}()
	if ends.child[0], ends.input, err = newInput(p.stdin, p.open); err != nil {
		return ends, err
	}
	for i, out := range []io.Writer{p.out, p.errs} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return ends, os.NewSyscallError("pipe2", err)
		}
		ends.child[i+1] = os.NewFile(uintptr(fds[1]), "output")
		if err := unix.SetNonblock(fds[0], true); err != nil {
			unix.Close(fds[0])
			return ends, err
		}
		pump, err := newPump(fds[0], "output", out)
		if err != nil {
			return ends, err
		}
		ends.pumps = append(ends.pumps, pump)
	}
	if p.script != "" {
		script, err := memoryFile(p.script)
		if err != nil {
			return ends, err
		}
		ends.child = append(ends.child, script)
	}
	if p.prelude != "" {
		prelude, err := memoryFile(preludeHead(len(ends.child)) + p.prelude)
		if err != nil {
			return ends, err
		}
		p.spec.Env = proctree.Overlay(p.spec.Env, fmt.Sprintf("BASH_ENV=/proc/self/fd/%d", len(ends.child)))
		ends.child = append(ends.child, prelude)
	}
	return ends, nil
}

func (e *plumbing) closeChild() {
	for _, f := range e.child {
		if f != nil {
			f.Close()
		}
	}
}

// closeOurs is for when the command hasn't started.
func (e *plumbing) closeOurs() {
	for _, p := range e.pumps {
		p.file.Close()
	}
	if e.input != nil {
		e.input.file.Close()
	}
}

// feeder feeds a command's standard input: first what it was given, then, if it is open, what comes through write.
type feeder struct {
	file *os.File // the writing end
	open bool
	turn chan struct{} // who has its token writes
	fed  chan struct{} // closed when the given text is through
	over chan struct{} // closed when the command is: nothing more is taken

	mu    sync.Mutex
	given string // what is still to be fed
}

// newInput makes the child's standard input, nil for /dev/null. What fits into the pipe goes in at once, so that a
// short text needs nobody to feed it; then input is nil.
func newInput(text *string, open bool) (child *os.File, in *feeder, err error) {
	if text == nil && !open {
		return nil, nil, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	child = os.NewFile(uintptr(fds[0]), "input")
	if err := unix.SetNonblock(fds[1], true); err != nil {
		unix.Close(fds[1])
		return child, nil, err
	}
	rest := ""
	if text != nil {
		n, _ := unix.Write(fds[1], []byte((*text)[:min(len(*text), pumpBuffer)]))
		rest = (*text)[max(n, 0):]
	}
	if rest == "" && !open {
		return child, nil, unix.Close(fds[1])
	}
	in = &feeder{
		file: os.NewFile(uintptr(fds[1]), "input"), open: open, given: rest,
		turn: make(chan struct{}, 1), fed: make(chan struct{}), over: make(chan struct{}),
	}
	return child, in, nil
}

// feed writes what was given. It goes on after the command's end, as long as somebody can read.
func (in *feeder) feed() {
	_, _ = io.WriteString(in.file, in.given)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.given = ""
	select {
	case <-in.over:
		in.file.Close()
	default:
		if !in.open {
			in.file.Close()
		}
	}
	in.turn <- struct{}{}
	close(in.fed) // not after mu: end leaves closing to us until then
}

// end refuses more input and closes what is open, but for a text that is still being fed.
func (in *feeder) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.over)
	select {
	case <-in.fed:
		in.file.Close()
	default:
	}
}

// write writes data and, with eof, closes.
func (in *feeder) write(ctx context.Context, data []byte, eof bool) error {
	if !in.open {
		return ErrStdinClosed
	}
	select {
	case <-in.turn:
	case <-in.over:
		return ErrStdinClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { in.turn <- struct{}{} }()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { in.file.SetWriteDeadline(time.Unix(1, 0)); close(woken) })
	_, err := in.file.Write(data)
	if !stop() {
		<-woken
		in.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EPIPE):
		in.file.Close()
		return ErrStdinClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	if eof {
		in.file.Close()
	}
	return nil
}
