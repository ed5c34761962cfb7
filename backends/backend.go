// Package backends runs what clients ask for. Its Controller looks up who runs a kind or a language in one table, asks
// it to prepare, gives the execution an id, a journal and a context that ends with a cause, and runs it. What runs
// reports to hooks; who listens is the transport's affair.
//
// Invariants: an execution has exactly one terminal event, which the Controller reports, from what the backend
// returned; by then its outcome can be asked for. Runs of one context happen one at a time, in the order they
// were accepted. The only way to stop an execution is to cancel its context with a cause.
//
//	c := backends.New(backends.Config{Table: map[string]backends.Backend{backends.KindCommand: command}})
//	e, err := c.Start(ctx, backends.Request{Kind: backends.KindCommand, Code: "echo hi"})
//	err = e.Journal.Follow(ctx, 0, hooks.Print(os.Stdout))
package backends

import (
	"context"
	"io"
	"syscall"
	"time"

	"github.com/celld/celld/hooks"
)

// Keys of the table that aren't languages.
const (
	KindCommand    = "command"
	KindBackground = "background-command"
	KindSession    = "session"
	KindPTY        = "pty"
	KindSQL        = "sql"
	KindCode       = "code" // not a key: the language is
)

// Kinds are all of them.
var Kinds = []string{KindCommand, KindBackground, KindSession, KindPTY, KindSQL, KindCode}

// Request asks for one execution. The backend that gets it says which fields it uses.
type Request struct {
	ExecutionID string // set by the Controller: 32 lower-case hex digits
	Kind        string // one of the Kind constants
	Language    string // KindCode: as the client named it
	ContextID   string // a context or a session
	Code        string // a command's text or a cell
	Argv        []string
	Cwd         string
	Env         map[string]string
	UID, GID    *uint32
	Timeout     *time.Duration // from acceptance, waiting included; nil: the context's default; 0: none
	Stdin       *string        // nil: nothing to read
	StdinOpen   bool           // stdin comes later through Handle.Stdin
	AllowInput  bool           // a cell may ask for input
	FailBusy    bool           // refuse rather than wait in the queue
	Create      bool           // KindSession: make the session when it isn't there
	OwnName     bool           // clients call the run by its own id although it is in a context
	Rlimits     map[string]int64
	Cols, Rows  int        // KindPTY: 0 is the usual size
	Output      hooks.Mode // how the client wants output cut; backends ignore it
	Late        io.Writer  // set by the Controller: takes what survivors write after the end; never blocks for long
}

// Backend runs one kind of thing. It is safe for concurrent use.
type Backend interface {
	// Prepare checks req and reserves what it needs; it runs nothing of the user's. Its error, best an *Error, is
	// the answer to the client. ctx is the request's.
	Prepare(ctx context.Context, req Request) (*Run, error)
}

// Run is a prepared execution.
type Run struct {
	// Do executes and reports to h until the end or until ctx is done, which it obeys promptly; context.Cause says
	// why. It never calls OnInit, OnError or OnComplete. A failing user program is a *hooks.ExecError.
	Do func(ctx context.Context, h hooks.Hooks) error
	// Release gives back what Prepare reserved. It is called once, after Do or instead of it. May be nil.
	Release func()
	// Exit says that success has an exit code, 0.
	Exit bool
	Handle
}

// Handle controls a running execution. A nil function means that it can't be done to this kind. All are safe for
// concurrent use and return promptly.
type Handle struct {
	PID       func() int // 0 before it has started
	Signal    func(syscall.Signal) error
	Stdin     func(ctx context.Context, data []byte, eof bool) error
	Input     func(ctx context.Context, value string) error // answers an input request
	Lingers   func() bool                                   // something that outlived the run may still write; cheap
	Survivors func() []int                                  // processes that outlived the run
	Kill      func(ctx context.Context) error               // ends the survivors
	Terminal  *Terminal                                     // of KindPTY; nil for others
}

// OpenRequest asks for a context: a kernel, a session, a connection.
type OpenRequest struct {
	ID       string // unique among all contexts
	Language string
	Cwd      string
	Env      map[string]string
	UID, GID *uint32
	Timeout  *time.Duration // default of its runs
	Late     io.Writer      // set by the Controller: takes what jobs write between runs
}

// Context describes an open context.
type Context struct {
	ID       string
	Language string
	Cwd      string
	Created  time.Time
	Timeout  *time.Duration // default of its runs; nil: none
}

// Stateful is a Backend whose runs happen in contexts.
type Stateful interface {
	Backend
	// Open makes a context and returns where it is; the Controller keeps the rest. It is usable when Open returns.
	Open(ctx context.Context, req OpenRequest) (cwd string, err error)
	// Close ends the context and everything in it. The Controller has stopped its runs.
	Close(ctx context.Context, id string) error
}

// Restarter is a Stateful whose contexts can be given a fresh state under the same id.
type Restarter interface {
	Restart(ctx context.Context, id string) error
}

// Finder is a Backend that may know languages that aren't in the table. Canonical returns the name under which the
// language is known, or an *Error that lists what there is.
type Finder interface {
	Canonical(ctx context.Context, language string) (string, error)
}

// Describer is a Stateful that can tell how a context stands.
type Describer interface {
	// Describe returns where the context is now and the pid of its process, 0 when there is none. It doesn't wait.
	Describe(id string) (cwd string, pid int, err error)
}
