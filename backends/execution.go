package backends

import (
	"context"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/celld/celld/hooks"
)

// Execution is one thing that runs or ran. Its fields don't change; its methods are safe for concurrent use.
type Execution struct {
	ID        string // 32 lower-case hex digits
	Name      string // what clients call it by: a command's own id, else the session's or context's
	Kind      string
	Language  string
	ContextID string
	Content   string     // what was run, cut when very long
	Output    hooks.Mode // how its starter wanted output cut
	Started   time.Time
	Journal   *hooks.Journal

	cancel    context.CancelCauseFunc
	shortened bool
	handle    Handle
	log       *hooks.Store
	begun     chan struct{} // closed by Begin

	mu       sync.Mutex // guards the closing of begun and what follows
	finished time.Time
	failure  *hooks.ExecError
	exit     *int
}

// Outcome is how an execution stands.
type Outcome struct {
	Running  bool
	Finished time.Time
	ExitCode *int             // nil while it runs and where there is none
	Failure  *hooks.ExecError // nil unless it failed
}

// Outcome returns how the execution stands. It is final before the terminal event can be read.
func (e *Execution) Outcome() Outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Outcome{Running: e.finished.IsZero(), Finished: e.finished, ExitCode: e.exit, Failure: e.failure}
}

// Handle controls the execution while it runs and what survives it.
func (e *Execution) Handle() Handle { return e.handle }

// Begin lets an execution run that was made by Create. It may be called more than once.
func (e *Execution) Begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.Begun() {
		close(e.begun)
	}
}

// Begun says whether the execution was let run.
func (e *Execution) Begun() bool {
	select {
	case <-e.begun:
		return true
	default:
		return false
	}
}

// Stop cancels the execution with a cause; it doesn't wait.
func (e *Execution) Stop(cause error) { e.cancel(cause) }

// Shortened says that Content isn't all of what was run.
func (e *Execution) Shortened() bool { return e.shortened }

// maxContent bounds what is kept of a command's text for status and lists.
const maxContent = 64 << 10

func content(req Request) string {
	text := req.Code
	for i, arg := range req.Argv {
		if i > 0 {
			text += " "
		}
		text += arg
		if len(text) > maxContent {
			break
		}
	}
	if len(text) > maxContent {
		text = text[:maxContent]
		text = text[:len(text)-hooks.UnfinishedChar([]byte(text[maxContent-utf8.UTFMax:]))]
	}
	return text
}
