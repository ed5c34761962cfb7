package ptyrun

import (
	"errors"
	"io"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// ends are this side's descriptors of a terminal or of pipes, and the child's until it has been started.
type ends struct {
	master *os.File // nil on pipes
	slave  *os.File // the same
	stdin  *os.File // what input is written to
	pumps  []*pump
	child  []*os.File // descriptors 0, 1, 2
	own    []*os.File // to be closed at the end
}

func (t *Terminal) open(pipes bool, cols, rows int) (*ends, error) {
	if pipes {
		return openPipes(&t.flow, t.out, t.errs)
	}
	return openTTY(&t.flow, t.out, cols, rows, t.owner())
}

// owner is whom the terminal belongs to: the uid of its program, or -1 for this process's.
func (t *Terminal) owner() int {
	if t.spec.Credential == nil {
		return -1
	}
	return int(t.spec.Credential.Uid)
}

// openTTY opens a pseudo-terminal of a given size.
func openTTY(f *flow, out io.Writer, cols, rows, owner int) (*ends, error) {
	opened, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	master, err := pollable(opened)
	if err == nil {
		err = setSize(slave, cols, rows)
	}
	if err == nil {
		err = setUTF8(slave)
	}
	if err == nil && owner >= 0 {
		err = slave.Chown(owner, -1) // as grantpt(3) would; the group stays
	}
	if err != nil {
		slave.Close()
		master.Close()
		return nil, err
	}
	e := &ends{
		master: master, slave: slave, stdin: master, child: []*os.File{slave, slave, slave}, own: []*os.File{master, slave},
	}
	e.pumps = []*pump{newPump(master, out, f, ttyBuffer)}
	return e, nil
}

// pollable returns a file for the same open terminal whose reads and writes wait in the runtime's poller, and closes f:
// taking the descriptor out of it has made it block a thread.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func setSize(slave *os.File, cols, rows int) error {
	return pty.Setsize(slave, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
}

// setUTF8 lets the terminal erase whole characters of what is typed while no program edits the line itself (termios(3): IUTF8).
func setUTF8(slave *os.File) error {
	return control(slave, func(fd int) error {
		termios, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return os.NewSyscallError("ioctl", err)
		}
		termios.Iflag |= unix.IUTF8
		return os.NewSyscallError("ioctl", unix.IoctlSetTermios(fd, unix.TCSETS, termios))
	})
}

// openPipes opens a pipe for each of stdin, stdout and stderr.
func openPipes(f *flow, out, errs io.Writer) (*ends, error) {
	e := &ends{}
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			e.closeChild()
			e.close()
			return nil, err
		}
		if i == 0 {
			e.stdin, e.child, e.own = w, append(e.child, r), append(e.own, w)
			continue
		}
		e.child, e.own = append(e.child, w), append(e.own, r)
		e.pumps = append(e.pumps, newPump(r, []io.Writer{out, errs}[i-1], f, pipeBuffer))
	}
	return e, nil
}

// closeChild closes the child's descriptors on this side, but for a terminal's slave.
func (e *ends) closeChild() {
	if e.slave == nil {
		for _, f := range e.child {
			f.Close()
		}
	}
	e.child = nil
}

// close closes this side. A terminal is hung up by it: whoever still uses it gets EIO.
func (e *ends) close() {
	for _, f := range e.own {
		f.Close()
	}
}

// control calls f with the descriptor of a file that may be closed at the same time.
func control(file *os.File, f func(fd int) error) error {
	rc, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(rc.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}
