package backends

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/ptyrun"
	"github.com/celld/celld/shellrun"
)

// MaxReplay is how much of a terminal's newest output can be had again, in bytes.
const MaxReplay = 1 << 20

// RingLimits are the limits of the budget of terminals: what each has printed last is in memory, and nowhere else. Three
// segments more than MaxReplay are kept, since whole ones are dropped, and with them the record that is cut by it.
func RingLimits(total int64) hooks.Limits {
	return hooks.Limits{Memory: MaxReplay + 3<<16, MemoryTotal: total}
}

// Terminals runs programs in terminals, or on pipes. What they print goes to the hooks; the rest is Handle.Terminal's.
//
// A terminal reports nothing but output between OnInit and the end, so byte n of its output, the first being 0, is at
// position n+2 of its journal.
type Terminals struct {
	Runner *ptyrun.Runner
	Shell  *shellrun.Runner // where and as whom
	Envs   EnvFile          // read for each new terminal
}

// Prepare implements Backend. It uses Code, empty for an interactive shell, Cwd, Env, UID, GID, Cols and Rows.
func (b *Terminals) Prepare(_ context.Context, req Request) (*Run, error) {
	given, err := b.Envs.under(req.Env)
	if err != nil {
		return nil, err
	}
	env := map[string]string{"TERM": ptyrun.Term, "SHELL": b.Runner.Shell}
	maps.Copy(env, given)
	at, err := b.Shell.Surroundings(req.Cwd, env, user(req.UID, req.GID))
	if err != nil {
		return nil, shellRefusal(err)
	}
	out, errs := &output{}, &output{}
	t, err := b.Runner.Prepare(ptyrun.Config{
		ID: req.ExecutionID, Command: req.Code, Dir: at.Dir, Env: at.Env, Credential: at.Credential,
		Cols: req.Cols, Rows: req.Rows, Stdout: out, Stderr: errs,
	})
	if err != nil {
		return nil, terminalRefusal(err)
	}
	do := func(ctx context.Context, h hooks.Hooks) error {
		out.call, errs.call = h.OnStdout, h.OnStderr
		status, err := t.Run(ctx)
		if err != nil {
			return runError(ctx, err)
		}
		return commandEnd(ctx, "Command", ctx.Err() != nil, status.Code)
	}
	return &Run{Do: do, Exit: true, Handle: Handle{
		PID: t.PID, Signal: t.Signal, Survivors: t.Survivors, Kill: t.Kill, Terminal: &Terminal{t: t},
	}}, nil
}

func terminalRefusal(err error) error {
	var bad *ptyrun.RequestError
	switch {
	case errors.As(err, &bad):
		return &Error{Fault: Invalid, Message: bad.Error(), Err: err}
	case errors.Is(err, ptyrun.ErrNoShell):
		return &Error{Fault: NotSupported, Message: err.Error(), Err: err}
	}
	return err
}

// ErrInputFull says that a terminal's program doesn't read its input, and that there is no room for more.
var ErrInputFull = ptyrun.ErrInputFull

// ErrInputClosed says that a program on pipes has been told the end of its input.
var ErrInputClosed = ptyrun.ErrInputClosed

// Terminal is what can be done to a terminal beside reading what it prints. It has one holder at a time, and only that
// one may type. It is safe for concurrent use.
type Terminal struct {
	t *ptyrun.Terminal

	mu     sync.Mutex
	holder *Holder
}

// Holder is the one client that may type. Once it has been released or taken over, its methods do nothing.
type Holder struct {
	terminal *Terminal
	evicted  func()
}

// Hold makes a holder, if there is none. evicted is called, once, when another takes the terminal over; it must return
// at once.
func (t *Terminal) Hold(evicted func()) (h *Holder, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holder != nil {
		return nil, false
	}
	t.holder = &Holder{terminal: t, evicted: evicted}
	return t.holder, true
}

// TakeOver makes a holder in place of the one that is there.
func (t *Terminal) TakeOver(evicted func()) *Holder {
	t.mu.Lock()
	old := t.holder
	h := &Holder{terminal: t, evicted: evicted}
	t.holder = h
	t.free()
	t.mu.Unlock()
	if old != nil {
		old.evicted()
	}
	return h
}

// free ends what the holder had asked for. The caller holds mu.
func (t *Terminal) free() {
	t.t.Pause(false)
	t.t.Taken(-1)
}

// Held says whether there is a holder.
func (t *Terminal) Held() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holder != nil
}

// UsePipes decides between pipes and a terminal; only the first call counts, and none after the start.
func (t *Terminal) UsePipes(pipes bool) { t.t.UsePipes(pipes) }

// Pipes says whether the program is, or will be, on pipes.
func (t *Terminal) Pipes() bool { return t.t.Pipes() }

// Size returns the terminal's size.
func (t *Terminal) Size() (cols, rows int) { return t.t.Size() }

// Launched is closed when the program runs or could not be started; for one that is stopped before, it never is.
func (t *Terminal) Launched() <-chan struct{} { return t.t.Launched() }

// Failed says that the program could not be started.
func (t *Terminal) Failed() bool { return t.t.Failed() }

// Release gives the terminal up. It may be called more than once.
func (h *Holder) Release() {
	h.do(func(t *ptyrun.Terminal) {
		h.terminal.holder = nil
		h.terminal.free()
	})
}

// do calls f while h is the holder. f must not wait.
func (h *Holder) do(f func(t *ptyrun.Terminal)) {
	h.terminal.mu.Lock()
	defer h.terminal.mu.Unlock()
	if h.terminal.holder == h {
		f(h.terminal.t)
	}
}

// Holds says whether h still is the holder.
func (h *Holder) Holds() (yes bool) {
	h.do(func(*ptyrun.Terminal) { yes = true })
	return yes
}

// Write gives input to the program; see ptyrun. The errors are ErrInputFull, ErrInputClosed, os.ErrProcessDone after
// the end, and ctx's.
func (h *Holder) Write(ctx context.Context, p []byte) error {
	if !h.Holds() {
		return nil
	}
	return h.terminal.t.Write(ctx, p)
}

// EndInput ends the program's input, behind what has been written; see ptyrun. The errors are those of Write.
func (h *Holder) EndInput(ctx context.Context) error {
	if !h.Holds() {
		return nil
	}
	return h.terminal.t.EndInput(ctx)
}

// Resize changes the size; zeros are ignored. A size that can't be is an *Error.
func (h *Holder) Resize(cols, rows int) (err error) {
	h.do(func(t *ptyrun.Terminal) { err = t.Resize(cols, rows) })
	if err != nil {
		return terminalRefusal(err)
	}
	return nil
}

// Pause holds the program back, or lets it go on.
func (h *Holder) Pause(on bool) { h.do(func(t *ptyrun.Terminal) { t.Pause(on) }) }

// Taken says up to which byte of the output the holder has got it: one who reads, but not fast enough, is waited for
// a little.
func (h *Holder) Taken(off int64) { h.do(func(t *ptyrun.Terminal) { t.Taken(off) }) }
