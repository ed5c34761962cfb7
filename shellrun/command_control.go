package shellrun

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// PID is the process id of the command's first process; 0 if that has not been started.
func (p *Prepared) PID() int {
	select {
	case <-p.started:
		if p.tree != nil {
			return p.tree.PID()
		}
	default:
	}
	return 0
}

// Started is closed when the command has been started, or could not be. It never is if Run isn't called.
func (p *Prepared) Started() <-chan struct{} { return p.started }

// Signal sends a signal to the command's process group, as a terminal would. Before the start and after the end the
// error is [os.ErrProcessDone].
func (p *Prepared) Signal(sig syscall.Signal) error {
	select {
	case <-p.started:
		if p.tree != nil {
			return p.tree.SignalGroup(sig)
		}
	default:
	}
	return os.ErrProcessDone
}

// Stdin writes to the standard input of a command with StdinOpen, after what was written before; with eof it
// closes it then. It waits for the command to start and to read, or until ctx is done: then a part of data may have been
// written. The error is [ErrStdinClosed] if it was never open, was closed, or the command has ended.
func (p *Prepared) Stdin(ctx context.Context, data []byte, eof bool) error {
	select {
	case <-p.started:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.input == nil {
		return ErrStdinClosed
	}
	return p.input.write(ctx, data, eof)
}

// Stopped says, after Run, whether the command was ended because ctx was done. One that ended by itself just before
// that was not.
func (p *Prepared) Stopped() bool { return p.stopped.Load() }

// Lingers says whether somebody can still write to the command's pipes. It is cheap, unlike Survivors, and doesn't
// see processes that have turned away from them.
func (p *Prepared) Lingers() bool {
	select {
	case <-p.started:
	default:
		return false
	}
	for _, pump := range p.pumps {
		select {
		case <-pump.done:
		default:
			return true
		}
	}
	return false
}

// Survivors returns the command's living processes after its end, and nobody before.
func (p *Prepared) Survivors() []int {
	select {
	case <-p.started:
	default:
		return nil
	}
	if p.tree == nil {
		return nil
	}
	select {
	case <-p.tree.Done():
		return p.tree.Members()
	default:
		return nil
	}
}

// Kill ends what is left of the command, by SIGTERM and after grace by SIGKILL, and returns when it is gone and all it
// has written is with Late, or ctx is done. The running command is ended by its context instead; for one that has not
// started there is nothing to do.
func (p *Prepared) Kill(ctx context.Context, grace time.Duration) error {
	select {
	case <-p.started:
	default:
		return nil
	}
	if p.tree == nil {
		return nil
	}
	if err := p.tree.Kill(ctx, grace); err != nil {
		return err
	}
	for _, pump := range p.pumps {
		select {
		case <-pump.done:
		case <-ctx.Done():
			return fmt.Errorf("read what killed processes wrote: %w", context.Cause(ctx))
		}
	}
	return nil
}
