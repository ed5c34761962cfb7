package jupyter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/celld/celld/hooks"
)

// ready returns a connection that can take a cell. The caller has the turn.
func (k *Kernel) ready(ctx context.Context) (*conn, error) {
	k.mu.Lock()
	c, shut := k.conn, k.closed
	k.mu.Unlock()
	switch {
	case shut:
		return nil, ErrClosed
	case c != nil && !c.isLost():
		return c, nil
	}
	return k.revive(ctx, c)
}

// revive connects again after old was lost, to the same kernel if it is there, else to a new one.
func (k *Kernel) revive(ctx context.Context, old *conn) (*conn, error) {
	if old != nil {
		old.close(&loss{name: nameUnavailable, detail: "the connection was replaced"})
		why := old.why.Load()
		if why.name == nameUnavailable {
			k.server.suspect(k.usedClient())
		}
		k.mu.Lock()
		if k.conn = nil; why.fresh && k.lost == "" {
			k.lost, k.blank, k.process = why.detail, true, ""
		}
		k.mu.Unlock()
	}
	client, err := k.server.client(ctx)
	if err != nil {
		return nil, err
	}
	c, err := k.connect(ctx, client)
	if errors.Is(err, errDeadKernel) && ctx.Err() == nil {
		// Once more: many kernels that start at the same time can be given the same ports.
		c, err = k.connect(ctx, client)
	}
	if errors.Is(err, ErrUnavailable) {
		k.server.suspect(client)
	}
	return c, err
}

// maxMissed is how often in a row a kernel that has run nothing yet may be out of reach before it is given up: it may just
// be slow once.
const maxMissed = 2

// missedAgain notes that session's kernel was not reached, and says whether it is given up, so that the next try makes a
// new one. A kernel that has run something has a state to lose and is kept.
func (k *Kernel) missedAgain(session Session) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.blank || k.session.ID != session.ID {
		return false
	}
	if k.missed++; k.missed < maxMissed {
		return false
	}
	k.session, k.missed = Session{}, 0
	return true
}

func (k *Kernel) usedClient() *Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.client
}

// connect finds or makes the kernel and opens its WebSocket.
func (k *Kernel) connect(ctx context.Context, client *Client) (*conn, error) {
	k.mu.Lock()
	session, had, stray := k.session, k.client, k.stray
	k.mu.Unlock()
	gone := ""
	switch {
	case had == nil:
		gone = "new"
	case had != client:
		gone = "the Jupyter server was replaced; the kernel's state is lost"
	case session.ID == "":
		gone = "the kernel was gone; its state is lost"
	default:
		model, err := client.Kernel(ctx, session.Kernel.ID)
		if err != nil && !isGone(err) {
			return nil, err
		}
		if err != nil || model.ExecutionState == "dead" {
			gone = "the kernel was gone; its state is lost"
			_ = client.DeleteSession(ctx, session.ID)
		}
	}
	if stray && gone == "" {
		if err := client.Interrupt(ctx, session.Kernel.ID); err != nil {
			return nil, err
		}
	}
	if gone != "" {
		var err error
		if session, err = k.server.startSession(ctx, client, k); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	k.client, k.session, k.stray = client, session, false
	if gone != "" {
		if k.blank, k.process, k.warm = true, "", false; had != nil && k.lost == "" {
			k.lost = gone
		}
	}
	k.mu.Unlock()
	c, err := k.dial(ctx, client, session.Kernel.ID, had != nil)
	if err == nil {
		if err = k.adopt(ctx, c); err == nil {
			return c, nil
		}
		c.close(&loss{name: nameUnavailable, detail: err.Error()})
	}
	if ctx.Err() == nil && k.missedAgain(session) { // one that lives but never answers would never be replaced
		_ = client.DeleteSession(ctx, session.ID)
	}
	if closed(k.closing) { // Close may not have seen the session
		_ = client.DeleteSession(context.WithoutCancel(ctx), session.ID)
	}
	return nil, err
}

// reachWithin is how long the first try to reach a kernel of another's server again may take; each further one may take
// twice as long. The server starts a kernel that died again by itself, on other ports, and may let whoever connects
// meanwhile wait for the old ones.
const reachWithin = 2 * time.Second

var errNotReached = errors.New("the kernel was not reached in time")

// dial opens the WebSocket; again says that there was one before. A kernel that died at its start is forgotten, so
// that the next try makes a new one.
func (k *Kernel) dial(ctx context.Context, client *Client, kernelID string, again bool) (*conn, error) {
	var c *conn
	err := client.guarded(ctx, kernelID, func(ctx context.Context) (err error) {
		if k.server.cfg.Managed != nil || !again {
			c, err = k.reach(ctx, client, kernelID, again)
			return err
		}
		for within := reachWithin; ; within *= 2 {
			limited, cancel := context.WithTimeoutCause(ctx, within, errNotReached)
			c, err = k.reach(limited, client, kernelID, again)
			cancel()
			// The dialer sets the deadline on the socket too, whose error may come first.
			if ctx.Err() != nil || !errors.Is(err, errNotReached) && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			if c != nil {
				c.close(&loss{name: nameUnavailable, detail: err.Error()})
			}
		}
	})
	if err == nil {
		return c, nil
	}
	if c != nil {
		c.close(&loss{name: nameUnavailable, detail: err.Error()})
	}
	var l *loss
	if isGone(err) || errors.As(err, &l) && l.name == nameDied {
		err = errDeadKernel
	}
	if errors.Is(err, errDeadKernel) {
		k.giveUp(ctx, client)
	}
	return nil, err
}

// giveUp forgets the kernel, so that the next connection is to a new one.
func (k *Kernel) giveUp(ctx context.Context, client *Client) {
	k.mu.Lock()
	session := k.session
	k.session = Session{}
	k.mu.Unlock()
	_ = client.DeleteSession(ctx, session.ID)
}

// reach opens the WebSocket and makes sure that the kernel listens, on a server that isn't ours only if again is set. Our
// server may let one in to a kernel that has just died, as for want of its ports. The connection may be there although the
// error isn't nil.
func (k *Kernel) reach(ctx context.Context, client *Client, kernelID string, again bool) (*conn, error) {
	session := newID()
	ws, err := client.dial(ctx, kernelID, session)
	if err != nil {
		return nil, fmt.Errorf("connect to kernel %s: %w", kernelID, err)
	}
	l := link{probe: func(ctx context.Context) (KernelModel, error) {
		model, err := client.Kernel(ctx, kernelID)
		return model, client.excuse(err)
	}}
	if k.server.cfg.Managed == nil {
		l.forget = client.Close
		l.redial = func(ctx context.Context) (ws socket, err error) {
			err = client.guarded(ctx, kernelID, func(ctx context.Context) (err error) {
				ws, err = client.dial(ctx, kernelID, session)
				return err
			})
			return ws, err
		}
	}
	c := newConn(ctx, ws, session, l)
	if again {
		return c, c.meet(ctx)
	}
	if k.server.cfg.Managed != nil {
		_, err = c.ask(ctx, request{channel: shellChannel, header: c.header("kernel_info_request"), content: emptyObject})
	}
	return c, err
}

// adopt makes c the kernel's connection and brings a fresh kernel of a server that isn't ours to its directory and
// environment.
func (k *Kernel) adopt(ctx context.Context, c *conn) error {
	k.mu.Lock()
	blank := k.blank
	k.mu.Unlock()
	if code := k.server.setup(k); blank && code != "" {
		r, err := k.submit(ctx, c, ExecuteRequest{Code: code, Silent: true}, nothing{})
		if err != nil {
			return err
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if r.err != nil {
			if c.why.Load() == nil {
				return fmt.Errorf("%w: %w", ErrPlace, r.err)
			}
			return fmt.Errorf("prepare kernel: %w", r.err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return ErrClosed
	}
	k.conn, k.blank, k.missed = c, false, 0
	return nil
}

// nothing are hooks of a run that nobody listens to.
type nothing struct{}

func (nothing) OnInit(hooks.Init)         {}
func (nothing) OnStdout(hooks.Output)     {}
func (nothing) OnStderr(hooks.Output)     {}
func (nothing) OnResult(hooks.Result)     {}
func (nothing) OnStatus(hooks.Status)     {}
func (nothing) OnError(hooks.Failure)     {}
func (nothing) OnComplete(hooks.Complete) {}

// Restart starts the kernel's process anew: id, directory and environment stay, the state goes. A cell that runs
// ends with KernelDied. It returns when the new process is connected.
func (k *Kernel) Restart(ctx context.Context) error {
	const why = "the kernel was restarted on request; its state is lost"
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	if c != nil {
		c.fail(&loss{name: nameDied, detail: why, fresh: true})
	}
	if err := k.take(ctx); err != nil {
		return fmt.Errorf("restart kernel: %w", err)
	}
	defer k.release()
	k.mu.Lock()
	client, id := k.client, k.session.Kernel.ID
	k.mu.Unlock()
	if client != nil && id != "" {
		err := client.guarded(ctx, "", func(ctx context.Context) error { return client.Restart(ctx, id) })
		var refused *StatusError
		switch {
		case err == nil || isGone(err) || errors.Is(err, ErrUnavailable):
		case errors.As(err, &refused) && refused.Code >= http.StatusInternalServerError:
			k.giveUp(ctx, client) // it died meanwhile, say: a new one does as well
		default:
			return err
		}
	}
	if _, err := k.ready(ctx); err != nil {
		return fmt.Errorf("restart kernel: %w", err)
	}
	k.takeLost() // who asked for it knows
	return nil
}

// Close ends the kernel, what it started and its session. A cell that runs ends with CommandInterrupted. It returns
// when all of the kernel's goroutines have; further calls do nothing.
func (k *Kernel) Close(ctx context.Context) error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil
	}
	k.closed = true
	c, client, session := k.conn, k.client, k.session
	k.mu.Unlock()
	close(k.closing)
	if c != nil {
		c.close(&loss{name: nameStopped, detail: "the context was deleted"})
	}
	k.server.forget(k)
	var err error
	if client != nil && session.ID != "" {
		err = client.DeleteSession(ctx, session.ID)
	}
	if m := k.server.cfg.Managed; m != nil {
		if errors.Is(err, ErrUnavailable) { // the server is dead or will be; its kernels don't need it to end
			m.suspect(client)
			err = nil
		}
		err = errors.Join(err, m.killKernel(ctx, k.req.ID))
	}
	k.work.Wait()
	return err
}
