package jupyter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/celld/celld/hooks"
)

// Times of taking a lost connection up again.
const (
	resumeWithin = 8 * time.Second        // from its loss
	resumeAfter  = 250 * time.Millisecond // between the first try and the second; then twice as long each time
	resumeEvery  = time.Second            // but no longer
)

const resumedNote = "the connection to the kernel was lost and taken up again; output of that moment may be missing"

// takeUp connects again after the socket failed with err while a cell ran, so that proxies that cut connections don't
// end it. A Jupyter server keeps what comes for a session whose WebSocket is gone and sends it to the next one of the
// same session. Nothing else is taken up: without a cell a new connection costs nothing. It returns why it is over,
// or nil.
func (c *conn) takeUp(ctx context.Context, err error) error {
	var l *loss
	if c.link.redial == nil || errors.As(err, &l) || c.why.Load() != nil || c.current.Load() == nil {
		return err
	}
	c.reader.Store(readerResumes)
	ctx, cancel := context.WithTimeout(ctx, resumeWithin)
	defer cancel()
	for wait := resumeAfter; ; wait = min(2*wait, resumeEvery) {
		ws, again := c.link.redial(ctx)
		switch {
		case again == nil && (ws.Subprotocol() == subprotocol) != c.v1:
			_ = ws.Close()
			return errors.New("the server speaks another protocol now")
		case again == nil:
			c.ws.Store(&ws)
			c.resumed.Add(1)
			if c.why.Load() != nil { // it may have missed this socket
				c.cut()
			}
			if r := c.current.Load(); r != nil {
				r.status(hooks.Status{State: hooks.StateReconnected, Detail: resumedNote})
			}
			return nil
		case isGone(again) || errors.Is(again, errDeadKernel):
			return &loss{name: nameDied, detail: "the kernel died or was removed; its state is lost", fresh: true}
		case !errors.Is(again, ErrUnavailable):
			return fmt.Errorf("%w; connect again: %w", err, again)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w; connect again: %w", err, again)
		}
	}
}
