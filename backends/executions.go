package backends

import (
	"cmp"
	"slices"

	"github.com/celld/celld/hooks"
)

// Executions returns the executions that match, in the order they were started.
func (c *Controller) Executions(match func(*Execution) bool) []*Execution {
	c.mu.Lock()
	all := make([]*Execution, 0, len(c.all))
	for _, e := range c.all {
		all = append(all, e)
	}
	c.mu.Unlock()
	all = slices.DeleteFunc(all, func(e *Execution) bool { return !match(e) })
	slices.SortFunc(all, func(a, b *Execution) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Log returns the execution's output, both streams merged, what survivors wrote after its end included.
func (e *Execution) Log() *hooks.Store { return e.log }
