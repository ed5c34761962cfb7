package jupyter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Times of the watch over a run. A silent cell is nothing unusual; what has to be told apart is a server or kernel
// that will never say anything again.
const (
	watchEvery  = 1250 * time.Millisecond // looks this often while a run is on
	watchLooks  = 3                       // looks in a row with nothing new that make up the mind
	beginLooks  = 40                      // the same for a cell of which nothing was heard: a fresh kernel may be slow
	probeLimit  = 2500 * time.Millisecond // a server that takes longer for a REST call, and isn't seen to work, is hung
	patience    = 2 * time.Second         // before a start is looked at
	watchStarts = time.Second             // and how often then
)

// watch looks after the runs of the connection and ends it when the server or the kernel can't be there any more.
// It sleeps while there is no run. Since a blocked hook keeps the socket from being read, liveness goes by REST.
func (c *conn) watch(ctx context.Context) {
	for {
		select {
		case <-c.wake:
		case <-c.lost:
			return
		}
		if l := c.watchRuns(ctx); l != nil {
			c.fail(l)
			return
		}
	}
}

// watchRuns returns nil when there is no run any more or the connection has ended.
func (c *conn) watchRuns(ctx context.Context) *loss {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var w vigil
	for {
		select {
		case <-ticker.C:
		case <-c.lost:
			return nil
		}
		r := c.current.Load()
		if r == nil {
			return nil
		}
		if l := c.look(ctx, &w, r); l != nil {
			return l
		}
	}
}

// vigil is what the watch remembers of one run from one look to the next.
type vigil struct {
	run       *run
	seen      uint64          // messages of the run
	received  uint64          // bytes
	pings     int             // in a row to which nothing came
	fence     <-chan struct{} // closed once the kernel has answered a request sent after the cell
	over      int             // looks in a row at which the cell seemed to be over
	unreached bool            // the server wasn't reached at the last look
	resumed   int32           // times the connection had been taken up again
}

// look finds out whether r can still end. It sees three things: a server that doesn't answer, a socket that is dead
// although nobody closed it, and a cell that is over although its end hasn't come. A run that makes progress is left
// alone.
func (c *conn) look(ctx context.Context, w *vigil, r *run) *loss {
	ws, resumed := c.ws.Load(), c.resumed.Load()
	seen, received, reader := r.seen.Load(), ws.received.Load(), c.reader.Load()
	if w.run != r || w.seen != seen || w.resumed != resumed || reader == readerReads && w.received != received || reader == readerResumes {
		*w = vigil{run: r, seen: seen, received: received, resumed: resumed}
		return nil
	}
	pctx, cancel := context.WithTimeout(ctx, probeLimit)
	model, err := c.link.probe(pctx)
	cancel()
	switch {
	case ctx.Err() != nil || c.current.Load() != r || r.seen.Load() != w.seen:
		return nil
	case err != nil && isGone(err):
		return &loss{name: nameDied, detail: "the kernel died or was removed; its state is lost", fresh: true}
	case errors.Is(err, ErrUnavailable) && c.link.redial != nil && !w.unreached:
		// Perhaps it was but a connection that something on the way has forgotten.
		w.unreached = true
		c.link.forget()
		return nil
	case errors.Is(err, ErrUnavailable):
		return &loss{name: nameUnavailable, detail: err.Error()}
	case errors.Is(err, errAtWork):
		w.pings = 0 // it has had no time for them either
		return nil
	case err != nil || reader == readerHandles || c.reader.Load() != reader:
		return nil
	}
	w.unreached = false
	if received != w.received {
		w.received, w.pings, c.deaf = received, 0, 0
	} else if w.pings == watchLooks { // the first of them was sent before the server answered two other looks
		if c.deaf++; c.link.redial != nil && c.deaf < watchLooks {
			_ = ws.NetConn().Close() // the reader takes it up again
			return nil
		}
		return &loss{name: nameUnavailable, detail: "the connection to the kernel is dead"}
	}
	w.pings++
	_ = ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second)) // no pong then
	return c.lookForEnd(ctx, w, r, model)
}

// lookForEnd finds the end that got lost on its way: nothing came for some looks, and either half of the end had
// come, whose other half follows within milliseconds; or the kernel was idle although it has answered what was asked after
// the cell, or although the cell has not begun for much longer. An idle kernel alone says nothing: some servers call a
// kernel idle that answers small questions during a cell, and some kernels do.
func (c *conn) lookForEnd(ctx context.Context, w *vigil, r *run, model KernelModel) *loss {
	if !r.sent.Load() { // large code takes its time
		return nil
	}
	if w.fence == nil {
		w.fence = c.askAfter(ctx, r)
	}
	half := r.replied.Load() != r.idle.Load()
	if !half && model.ExecutionState != "idle" {
		w.over = 0
		return nil
	}
	w.over++
	switch passed := closed(w.fence); {
	case w.over < watchLooks:
	case half || passed && closed(r.began):
		return &loss{name: nameUnavailable, detail: "the kernel is done, but the end of the cell never came", endless: true}
	case !closed(r.began) && (passed || w.over >= beginLooks):
		return &loss{name: nameUnavailable, detail: "the kernel never told that it began the cell, which may have been lost on its way", endless: true}
	}
	return nil
}

// askAfter asks the kernel something small on the channel of the cells, where it queues behind r, which runs. If
// another process than r's answers, r has ended with its own.
func (c *conn) askAfter(ctx context.Context, r *run) <-chan struct{} {
	answered := make(chan struct{})
	q := newQuestion()
	q.after = r
	small := request{channel: shellChannel, header: c.header("kernel_info_request"), content: emptyObject}
	c.done.Go(func() {
		if _, err := c.await(ctx, small, q); err == nil {
			close(answered)
		}
	})
	return answered
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// errDeadKernel says that a kernel died while it was started.
var errDeadKernel = errors.New("the kernel died at its start")

// guarded runs op, which may take as long as a kernel's start. While it does, it asks whether the server still
// answers and, with a kernel's id, whether that is still there, and ends op if not: the server itself lets one wait
// for a minute.
func (c *Client) guarded(ctx context.Context, kernelID string, op func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := c.watchStart(watching, kernelID); err != nil {
			give(err)
		}
	})
	err := op(ctx)
	stop()
	watch.Wait()
	return err
}

func (c *Client) watchStart(ctx context.Context, kernelID string) error {
	for wait := time.NewTimer(patience); ; wait.Reset(watchStarts) {
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil
		}
		probe, cancel := context.WithTimeout(ctx, probeLimit)
		err := c.alive(probe, kernelID)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// alive returns an error if the server doesn't answer or the kernel is gone.
func (c *Client) alive(ctx context.Context, kernelID string) error {
	if kernelID == "" {
		if err := c.excuse(c.Ping(ctx)); errors.Is(err, ErrUnavailable) {
			return err
		}
		return nil
	}
	model, err := c.Kernel(ctx, kernelID)
	err = c.excuse(err)
	switch {
	case err != nil && isGone(err), err == nil && model.ExecutionState == "dead":
		return errDeadKernel
	case errors.Is(err, ErrUnavailable):
		return err
	}
	return nil
}
