package proctree

import "sync"

// Census looks at the process table for many who want to know at the same time: whoever asks while it looks shares
// the next look, so that a thousand trees can be killed at once at the price of one. The zero value is ready; its
// methods may be called from any goroutine.
type Census struct {
	stuck stuckExecs

	mu   sync.Mutex
	busy bool
	next *look // begins when the current one is over
}

type look struct {
	done  chan struct{}
	table *Table
	err   error
}

// Look is like the function of that name. The look has begun after the call.
func (c *Census) Look() (*Table, error) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &look{done: make(chan struct{})}
	}
	mine := c.next
	if !c.busy {
		c.busy = true
		go c.serve()
	}
	c.mu.Unlock()
	<-mine.done
	return mine.table, mine.err
}

// serve looks until nobody waits.
func (c *Census) serve() {
	for {
		c.mu.Lock()
		l := c.next
		c.next = nil
		c.busy = l != nil
		c.mu.Unlock()
		if l == nil {
			return
		}
		if l.table, l.err = Look(); l.err == nil {
			l.table.stuck = &c.stuck
		}
		close(l.done)
	}
}
