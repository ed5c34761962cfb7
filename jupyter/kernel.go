package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/celld/celld/hooks"
)

// ErrNoInput says that no cell waits for input.
var ErrNoInput = errors.New("no cell waits for input")

// ErrPlace says that a kernel could not be given the directory or the environment that was asked for.
var ErrPlace = errors.New("the kernel's directory or environment could not be set")

// ErrClosed says that the kernel was closed here.
var ErrClosed = errors.New("kernel is closed")

// ExecuteRequest is one cell.
type ExecuteRequest struct {
	Code       string
	AllowStdin bool // input() asks by a status event and waits for [Kernel.Input]; else it fails at once
	Silent     bool // nothing is shown, counted or kept in the history
}

// Kernel is a kernel of ours with its session and its one WebSocket. It outlives kernel processes and servers: when
// they die, the next cell gets new ones. Make it with [Server.Open]; its methods may be called from any goroutine,
// but cells run one at a time.
type Kernel struct {
	server *Server
	req    OpenRequest
	spec   Kernelspec

	turn    chan struct{} // held by whoever runs a cell or changes the connection
	closing chan struct{}
	work    sync.WaitGroup // goroutines that outlive the call that started them

	mu      sync.Mutex // guards what follows; never held over I/O
	closed  bool
	client  *Client // the server that session belongs to
	session Session
	conn    *conn
	lost    string // why the kernel's state was lost, until somebody has been told
	stray   bool   // a cell that nobody sees any more may run and couldn't be interrupted
	warm    bool   // its process was started in another directory, for whoever comes
	name    string // the session's name, which a warm kernel's process doesn't know
	blank   bool   // the kernel's process hasn't been prepared
	process string // the kernel process's name for itself; empty: not known
	vague   bool   // it has no stable one
	endless int    // cells in a row whose end got lost
	missed  int    // times in a row that a fresh kernel was not reached
}

// ID returns the id that the kernel was opened with, for a warm one its own.
func (k *Kernel) ID() string { return k.req.ID }

// Spec returns the kernelspec.
func (k *Kernel) Spec() Kernelspec { return k.spec }

// Cwd returns the directory that the kernel starts in.
func (k *Kernel) Cwd() string { return k.req.Cwd }

// KernelID returns Jupyter's id of the kernel. It changes when server or kernel had to be replaced.
func (k *Kernel) KernelID() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session.Kernel.ID
}

// Execute runs one cell and reports to h what it prints and shows; it never calls OnInit, OnError or OnComplete.
// It returns when the kernel has reported both the cell's result and its own being idle, and h isn't called after
// that. Hooks may block: the socket isn't read then.
//
// The error is nil or a [*hooks.ExecError]: the kernel's own, or KernelDied, JupyterUnavailable, CellTimeout,
// CommandInterrupted (ended before it began). After any of them the kernel can be used: the next cell reconnects or
// gets a fresh process, and is told by a status kernel_restarted if the state was lost.
//
// When ctx ends the cell is interrupted, and only it: first the kernel, after a second also the cell's child
// processes (if the server is ours), and after four the kernel is restarted. If the cause wraps
// [context.DeadlineExceeded], the error is CellTimeout and comes within a second of ctx's end; a kernel that hasn't
// stopped by then is dealt with while the next cell waits. Else the error is what the kernel reports, and nil if the
// cell ended well all the same.
func (k *Kernel) Execute(ctx context.Context, req ExecuteRequest, h hooks.Hooks) error {
	if err := k.take(ctx); err != nil {
		return k.notBegun(ctx, err)
	}
	c, err := k.ready(ctx)
	if err != nil {
		k.release()
		return k.notBegun(ctx, err)
	}
	k.tellLost(req, h)
	return k.execute(ctx, c, req, h)
}

// tellLost tells whoever runs a cell that the state was lost, if nobody has been told yet.
func (k *Kernel) tellLost(req ExecuteRequest, h hooks.Hooks) {
	if req.Silent {
		return
	}
	if lost := k.takeLost(); lost != "" {
		h.OnStatus(hooks.Status{State: hooks.StateKernelRestarted, Detail: lost})
	}
}

// execute runs req on c; the caller holds the turn, which is given back.
func (k *Kernel) execute(ctx context.Context, c *conn, req ExecuteRequest, h hooks.Hooks) error {
	skipped := 0
	for retried := false; ; {
		r, err := k.submit(ctx, c, req, h)
		if errors.Is(err, errNotSent) && !retried { // a proxy has cut the connection since the last cell
			retried = true
			if c, err = k.ready(ctx); err == nil {
				k.tellLost(req, h)
				continue
			}
		}
		if err != nil {
			k.release()
			return k.notBegun(ctx, err)
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return k.stop(ctx, c, r)
		}
		if skipped++; r.aborted && skipped < abortedTries && waitToRepeat(ctx) {
			continue
		}
		if rest := k.settle(c, r); rest != nil {
			k.after(ctx, rest)
		} else {
			k.release()
		}
		return r.err
	}
}

// errNotSent says that the kernel never got the cell: the connection was lost before.
var errNotSent = errors.New("the connection to the kernel was lost before the cell was sent")

// submit sends the cell. The error is errNotSent, on a server that isn't ours only, or that of ctx.
func (k *Kernel) submit(ctx context.Context, c *conn, req ExecuteRequest, h hooks.Hooks) (*run, error) {
	head := c.header("execute_request")
	r := newRun(h, head.ID)
	k.mu.Lock()
	process := k.process
	k.mu.Unlock()
	r.process = process
	c.start(r)
	err := c.write(ctx, request{channel: shellChannel, header: head, content: executeContent{
		Code:         req.Code,
		Silent:       req.Silent,
		StoreHistory: !req.Silent,
		Expressions:  emptyObject,
		AllowStdin:   req.AllowStdin,
	}})
	if err != nil && ctx.Err() == nil {
		c.close(&loss{name: nameUnavailable, detail: fmt.Sprintf("the cell could not be sent: %v", err)})
		if why := c.why.Load(); k.server.cfg.Managed == nil && why.name == nameUnavailable && !why.fresh {
			return nil, errNotSent
		}
	} else if err != nil && c.current.CompareAndSwap(r, nil) {
		return nil, err
	}
	r.sent.Store(true)
	return r, nil // if the connection is lost the end of r says why
}

// executeContent is the content of an execute_request. stop_on_error is false: a failing cell must not make the
// kernel skip what others have sent meanwhile.
type executeContent struct {
	Code         string          `json:"code"`
	Silent       bool            `json:"silent"`
	StoreHistory bool            `json:"store_history"`
	Expressions  json.RawMessage `json:"user_expressions"`
	AllowStdin   bool            `json:"allow_stdin"`
	StopOnError  bool            `json:"stop_on_error"`
}

// Some kernels skip what comes within a moment after a failed cell and say so: such a cell is sent again.
const (
	abortedTries = 20
	abortedEvery = 50 * time.Millisecond
)

// waitToRepeat waits before a skipped cell is sent once more. It returns false if ctx is done.
func waitToRepeat(ctx context.Context) bool {
	wait := time.NewTimer(abortedEvery)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// maxEndless is how many cells in a row may lose their end, which happens on the way, before the kernel is taken for broken.
const maxEndless = 2

// settle notes what a run that has ended told about the kernel. It returns what is left to do before the next cell,
// nil if nothing is.
func (k *Kernel) settle(c *conn, r *run) func(context.Context) {
	k.mu.Lock()
	if r.first != "" && !k.vague {
		k.process, k.vague = r.last, r.first != r.last || r.first == c.session
	}
	if k.vague {
		k.process = ""
	}
	client, id := k.client, k.session.Kernel.ID
	switch {
	case r.replied.Load() && r.idle.Load():
		k.endless = 0
	case c.isLost() && c.why.Load().endless:
		k.endless++
	}
	broken := k.endless >= maxEndless
	if broken {
		k.endless = 0
	}
	k.mu.Unlock()
	switch {
	case broken:
		return func(ctx context.Context) {
			const why = "the kernel lost the ends of cells and was restarted; its state is lost"
			k.noteLost(why)
			k.restart(ctx, c, why)
		}
	case r.exits:
		return func(ctx context.Context) {
			const why = "the cell ended the kernel; its state is lost"
			k.noteLost(why)
			k.restart(ctx, c, why)
		}
	case c.isLost() && c.why.Load().name == nameUnavailable && r.started:
		// The cell may still run, unseen: it would hold up the next one and do what nobody can stop.
		return func(ctx context.Context) {
			if client.Interrupt(ctx, id) != nil {
				k.mu.Lock()
				k.stray = true
				k.mu.Unlock()
			}
		}
	}
	return nil
}

// after runs f, which has the turn and gives it back, while the caller goes on. f's ctx ends when the kernel is
// closed.
func (k *Kernel) after(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.work.Go(func() {
		defer k.release()
		defer cancel()
		f(ctx)
	})
	k.work.Go(func() {
		select {
		case <-k.closing:
			cancel()
		case <-ctx.Done():
		}
	})
}

// take waits for the turn.
func (k *Kernel) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-k.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *Kernel) release() { <-k.turn }

// takeLost returns why the state was lost if nobody has been told yet.
func (k *Kernel) takeLost() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	lost := k.lost
	k.lost = ""
	return lost
}

// noteLost remembers for the next cell that the state is gone.
func (k *Kernel) noteLost(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost, k.blank, k.process = why, true, ""
}

// notBegun is the failure of a cell that the kernel never got.
func (k *Kernel) notBegun(ctx context.Context, err error) error {
	var l *loss
	switch {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return execError(nameTimeout, "the time was up before the cell began")
	case ctx.Err() != nil:
		return execError(nameStopped, fmt.Sprintf("stopped before the cell began: %v", context.Cause(ctx)))
	case errors.Is(err, ErrClosed):
		return execError(nameStopped, "the context was deleted")
	case errors.As(err, &l):
		return l.failure()
	case errors.Is(err, errDeadKernel):
		return execError(nameDied, err.Error())
	}
	return execError(nameUnavailable, err.Error())
}

// Input answers the input_request of the cell that runs. [ErrNoInput] if none waits; a request is answered once.
func (k *Kernel) Input(ctx context.Context, value string) error {
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	if c == nil {
		return ErrNoInput
	}
	r := c.current.Load()
	if r == nil {
		return ErrNoInput
	}
	asked := r.asking.Swap(nil)
	if asked == nil {
		return ErrNoInput
	}
	parent, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	content := struct {
		Value string `json:"value"`
	}{value}
	if err := c.write(ctx, request{channel: stdinChannel, header: c.header("input_reply"), parent: parent, content: content}); err != nil {
		return fmt.Errorf("answer the kernel's question: %w", err)
	}
	return nil
}
