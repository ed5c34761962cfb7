package backends

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// askWithin is how long a question may wait for the cell that runs.
const askWithin = 5 * time.Second

var errAskedTooLong = errors.New("no answer in time")

// The questions about code that is being written.
const (
	AskComplete   = "complete"
	AskInspect    = "inspect"
	AskIsComplete = "is_complete"
)

// Question is about code that isn't run.
type Question struct {
	Ask    string // one of the Ask constants
	Code   string
	Cursor int // in Unicode characters
	Detail int // AskInspect: 0 or 1
}

// Assistant is a Stateful that can be asked about code.
type Assistant interface {
	// Ask returns the content of the kernel's reply (Jupyter messaging). It waits for the cell that runs.
	Ask(ctx context.Context, id string, q Question) (json.RawMessage, error)
	// Kernel says what kernel runs the context's cells.
	Kernel(id string) (KernelInfo, error)
}

// KernelInfo describes a kernel as notebooks do.
type KernelInfo struct {
	Name        string // of the kernelspec
	DisplayName string
	Language    string
}

// Ask asks the context with this id about code. One that is busy for 5 s is a Busy.
func (c *Controller) Ask(ctx context.Context, id string, q Question) (json.RawMessage, error) {
	entry, err := c.contexts.named(id, false)
	if err != nil {
		return nil, err
	}
	if entry, err = c.contexts.use(ctx, entry); err != nil {
		return nil, err
	}
	a, ok := entry.backend.(Assistant)
	if !ok {
		return nil, Refuse(NotSupported, "a context of %s can't be asked about code", entry.Language)
	}
	limited, cancel := context.WithTimeoutCause(ctx, askWithin, errAskedTooLong)
	defer cancel()
	reply, err := a.Ask(limited, id, q)
	if !errors.Is(err, errAskedTooLong) {
		return reply, err
	}
	if e, _ := c.named(id); e != nil {
		return nil, Refuse(Busy, "context %s runs a cell; it answers between cells", id)
	}
	return nil, Refuse(Unavailable, "the kernel gave no answer within %v", askWithin)
}

// Cells returns the context and its cells that are remembered, in the order in which they were accepted, with what is
// known of its kernel, which may be nothing.
func (c *Controller) Cells(id string) (Context, []*Execution, KernelInfo, error) {
	entry, err := c.contexts.named(id, false)
	if err != nil {
		return Context{}, nil, KernelInfo{}, err
	}
	var kernel KernelInfo
	if a, ok := entry.backend.(Assistant); ok {
		kernel, _ = a.Kernel(id) // one that is being opened has none yet
	}
	cells := c.Executions(func(e *Execution) bool { return e.Kind == KindCode && e.ContextID == id })
	return c.contexts.copyOf(entry), cells, kernel, nil
}
