package jupyter

import (
	"context"
	"errors"
	"time"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/internal/proctree"
)

// The ladder that ends a cell: times count from the first interrupt.
const (
	beginWithin  = 500 * time.Millisecond  // a kernel that was just sent the cell ignores an interrupt before it begins
	timeoutLimit = 900 * time.Millisecond  // a timed-out cell's Execute returns by then
	childrenAt   = time.Second             // interrupt again, and end the cell's child processes
	againEvery   = 1500 * time.Millisecond // and interrupt again
	restartAt    = 4 * time.Second
)

const notStopped = "the cell could not be interrupted and the kernel was restarted; its state is lost"

// stop ends run r, whose ctx is done, and returns the turn, perhaps later.
func (k *Kernel) stop(ctx context.Context, c *conn, r *run) error {
	unwound := make(chan fate, 1)
	k.after(ctx, func(ctx context.Context) {
		f := k.unwind(ctx, c, r)
		if f != untouched { // what doesn't heed interrupts, or was being born, ends with the cell
			k.killChildren(ctx, r)
		}
		unwound <- f
		if f == restarted {
			return
		}
		if rest := k.settle(c, r); rest != nil {
			rest(ctx)
		}
	})
	if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		switch f := <-unwound; {
		case f == restarted:
			return execError(nameInterrupted, notStopped)
		case f == interrupted && (r.unnamed || r.aborted) && r.failure != nil:
			return &hooks.ExecError{Name: nameInterrupted, Value: "the cell was interrupted", Traceback: r.failure.Traceback}
		}
		return r.err
	}
	limit := time.NewTimer(timeoutLimit)
	defer limit.Stop()
	failure := execError(nameTimeout, "the time was up and the cell was interrupted")
	select {
	case f := <-unwound:
		if f == untouched {
			return r.err
		}
		var own *hooks.ExecError
		if errors.As(r.err, &own) {
			failure.Traceback = own.Traceback
		}
	case <-limit.C:
		r.gate.shut()
	}
	return failure
}

// fate is how a run that was to be stopped ended.
type fate int

const (
	untouched   fate = iota // by itself before anything was done
	interrupted             // after an interrupt
	restarted               // with its kernel
)

// unwind interrupts r until it ends. It returns when r has ended and no interrupt is on its way any more, so that
// none can hit the next cell.
func (k *Kernel) unwind(ctx context.Context, c *conn, r *run) fate {
	begun := waitFor(ctx, r.began, r, beginWithin)
	if closed(r.done) {
		return untouched
	}
	first := time.Now()
	if begun && r.replied.Load() { // only its idle is missing: there is nothing to interrupt
		if waitFor(ctx, nil, r, childrenAt) {
			return untouched
		}
	} else if k.interrupt(ctx, r, first.Add(childrenAt)) {
		return interrupted
	}
	if r.idle.Load() != r.replied.Load() {
		if waitFor(ctx, nil, r, childrenAt) { // the other half was on its way
			return interrupted
		}
		// The interrupt came between the kernel's taking the cell and its code, and cost one half of the end.
		c.close(&loss{name: nameInterrupted, detail: "the cell was interrupted"})
		return interrupted
	}
	k.work.Go(func() { k.killChildren(ctx, r) })
	for at := childrenAt; at < k.server.restartAt; {
		at = min(at+againEvery, k.server.restartAt)
		if k.interrupt(ctx, r, first.Add(at)) || ctx.Err() != nil {
			<-r.done
			return interrupted
		}
	}
	k.restart(ctx, c, notStopped)
	if !r.status(hooks.Status{State: hooks.StateKernelRestarted, Detail: notStopped}) {
		k.noteLost(notStopped)
	}
	return restarted
}

// interrupt interrupts the kernel and says whether r has ended by the time until.
func (k *Kernel) interrupt(ctx context.Context, r *run, until time.Time) bool {
	k.mu.Lock()
	client, id := k.client, k.session.Kernel.ID
	k.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, probeLimit)
	_ = client.Interrupt(call, id) // the next step of the ladder is the answer
	cancel()
	return waitFor(ctx, nil, r, time.Until(until))
}

// waitFor waits until r has ended, ch is closed or d has passed, and says whether r has ended or ch is closed.
func waitFor(ctx context.Context, ch <-chan struct{}, r *run, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.done:
		return ch == nil
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	case <-t.C: // perhaps long ago, if this process was held up: what has happened meanwhile counts
		return ch == nil && closed(r.done) || ch != nil && closed(ch)
	}
}

// restart ends the connection with its run and starts the kernel's process anew. If that fails the next cell finds
// out.
func (k *Kernel) restart(ctx context.Context, c *conn, why string) {
	c.close(&loss{name: nameDied, detail: why, fresh: true})
	k.mu.Lock()
	if k.conn == c {
		k.conn = nil // whoever calls tells of the loss
	}
	k.blank, k.process = true, ""
	client, id := k.client, k.session.Kernel.ID
	k.mu.Unlock()
	_ = client.guarded(ctx, "", func(ctx context.Context) error { return client.Restart(ctx, id) })
}

// killChildren ends what r has started, as far as it is ours to see: the kernel's descendants and what carries its
// marker, born since r began, but not the kernel.
func (k *Kernel) killChildren(ctx context.Context, r *run) {
	m := k.server.cfg.Managed
	if m == nil {
		return
	}
	since := ticksAt(r.at)
	_ = proctree.Kill(ctx, time.Second, func(t *proctree.Table) []int {
		return m.children(t, k.req.ID, since)
	})
}
