package backends

import (
	"context"
	"slices"
	"sync"
)

// queue lets the runs of one context happen one at a time, in the order in which they took their place.
type queue struct {
	mu     sync.Mutex
	places []*place // the first is the run under way
}

// place is one run's place in a queue.
type place struct {
	q    *queue
	turn chan struct{} // closed when it is first
}

// take takes the last place. With ifFree it returns nil when it would have to wait.
func (q *queue) take(ifFree bool) *place {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ifFree && len(q.places) > 0 {
		return nil
	}
	p := &place{q: q, turn: make(chan struct{})}
	q.places = append(q.places, p)
	if len(q.places) == 1 {
		close(p.turn)
	}
	return p
}

// first says whether the place's turn has come.
func (p *place) first() bool {
	select {
	case <-p.turn:
		return true
	default:
		return false
	}
}

// wait returns when the place's turn has come, or with ctx's cause. The place must be left either way.
func (p *place) wait(ctx context.Context) error {
	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave gives the place up, wherever in the queue it is.
func (p *place) leave() {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	i := slices.Index(p.q.places, p)
	p.q.places = slices.Delete(p.q.places, i, i+1)
	if i == 0 && len(p.q.places) > 0 {
		close(p.q.places[0].turn)
	}
}
