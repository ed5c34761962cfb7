package ptyrun

import (
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signal sends a signal to the terminal's foreground process group, or on pipes to the program's. SIGINT, SIGQUIT and
// SIGTSTP are what keys of the terminal send, and like these they drop input that has not been read, unless the
// terminal is set not to (termios(3): ISIG, NOFLSH). Before the start and after the end the error is
// [os.ErrProcessDone].
func (t *Terminal) Signal(sig syscall.Signal) error {
	t.mu.Lock()
	running, tty := t.ends != nil, t.ends != nil && t.ends.slave != nil
	tree := t.tree
	t.mu.Unlock()
	switch {
	case !running:
		return os.ErrProcessDone
	case !tty:
		return tree.SignalGroup(sig)
	}
	if sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGTSTP {
		return t.key(sig)
	}
	return t.signalForeground(sig)
}

// withTTY calls f with the descriptors of the running terminal.
func (t *Terminal) withTTY(f func(master, slave int) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ends == nil || t.ends.slave == nil {
		return os.ErrProcessDone
	}
	return control(t.ends.master, func(master int) error {
		return control(t.ends.slave, func(slave int) error { return f(master, slave) })
	})
}

// key does what the key for sig would do. The kernel sends the signal (TIOCSIG, pty(4) of BSD): no process group that it
// names can be another one by then.
func (t *Terminal) key(sig syscall.Signal) error {
	flush := false
	err := t.withTTY(func(_, slave int) error {
		termios, err := unix.IoctlGetTermios(slave, unix.TCGETS)
		flush = err == nil && termios.Lflag&unix.ISIG != 0 && termios.Lflag&unix.NOFLSH == 0
		return err
	})
	if err != nil {
		return err
	}
	if flush {
		t.input.drop()
	}
	err = t.withTTY(func(master, slave int) error {
		if flush {
			if err := unix.IoctlSetInt(slave, unix.TCFLSH, unix.TCIFLUSH); err != nil {
				return os.NewSyscallError("tcflush", err)
			}
		}
		return unix.IoctlSetInt(master, unix.TIOCSIG, int(sig))
	})
	if err == nil || err == os.ErrProcessDone {
		return err
	}
	return t.signalForeground(sig) // no such ioctl here
}

// endKey is the key that ends input, or what it is in most terminals.
func (t *Terminal) endKey() byte {
	key := byte('D' - '@')
	_ = t.withTTY(func(_, slave int) error { // before the start it is the usual one
		termios, err := unix.IoctlGetTermios(slave, unix.TCGETS)
		if err == nil && termios.Cc[unix.VEOF] != 0 {
			key = termios.Cc[unix.VEOF]
		}
		return err
	})
	return key
}

// signalForeground sends a signal to the foreground process group. One that isn't the first process's is named by a
// number only, so it is made sure first that a process of this tree is in it.
func (t *Terminal) signalForeground(sig syscall.Signal) error {
	group := 0
	err := t.withTTY(func(master, _ int) (err error) {
		group, err = unix.IoctlGetInt(master, unix.TIOCGPGRP)
		return os.NewSyscallError("tcgetpgrp", err)
	})
	if err != nil {
		return err
	}
	tree := t.started()
	if group == tree.PID() || group <= 1 {
		return tree.SignalGroup(sig)
	}
	if !slices.ContainsFunc(tree.Members(), func(pid int) bool {
		g, err := unix.Getpgid(pid)
		return err == nil && g == group
	}) {
		return os.ErrProcessDone
	}
	return os.NewSyscallError("kill", unix.Kill(-group, sig))
}
