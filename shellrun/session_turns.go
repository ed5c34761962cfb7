package shellrun

import (
	"context"
	"slices"
	"sync"
)

// turns gives turns in the order in which they were asked for.
type turns struct {
	mu      sync.Mutex
	held    bool
	waiting []chan struct{} // closed when the turn has come
}

// ask takes a place in the queue.
func (t *turns) ask() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	place := make(chan struct{})
	if t.held {
		t.waiting = append(t.waiting, place)
	} else {
		t.held = true
		close(place)
	}
	return place
}

// wait returns when the turn of place has come. Otherwise, if ctx is done or closing is closed, it gives the place up: once closing
// is closed nobody gets a turn.
func (t *turns) wait(ctx context.Context, closing <-chan struct{}, place chan struct{}) error {
	var err error
	select {
	case <-place:
		select {
		case <-closing: // which came first, however late this is noticed
			t.pass()
			return ErrSessionClosed
		default:
			return nil
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-closing:
		err = ErrSessionClosed
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, place)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // it has just come
		t.pass()
	}
	return err
}

// pass gives the turn to the next.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.held = false
		return
	}
	close(t.waiting[0])
	t.waiting = t.waiting[1:]
}
