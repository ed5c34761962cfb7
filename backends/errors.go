package backends

import (
	"context"
	"errors"
	"fmt"

	"github.com/celld/celld/hooks"
)

// Fault says what kind of refusal an Error is; the transport makes a status of it.
type Fault uint8

// The faults.
const (
	Invalid      Fault = iota + 1 // the request is wrong
	NotFound                      // no such execution
	NoContext                     // no such context or session
	Conflict                      // the id is taken, the thing is in another state
	Busy                          // something runs there and the caller didn't want to wait
	Limit                         // too many
	Unavailable                   // what it needs can't be had now
	NotSupported                  // it can't be done to this
)

// Error is a refusal before anything has run. Message is for the caller.
type Error struct {
	Fault   Fault
	Message string
	Err     error // what lies behind it, if anything; not for the caller
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Err }

// Refuse makes an Error.
func Refuse(f Fault, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Fault: f, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Why an execution was stopped: the causes of its context.
var (
	ErrTimeout     = error(timedOut{})
	ErrInterrupted = errors.New("interrupted")
	ErrClientGone  = errors.New("interrupted: the client went away")
	ErrClosed      = errors.New("interrupted: its context was deleted")
	ErrDeleted     = errors.New("interrupted: it was deleted")
	ErrShutdown    = errors.New("interrupted: the server shuts down")
)

// stopped is the failure of an execution that was stopped before its program had a status of its own. kind is Command
// or Cell.
func stopped(ctx context.Context, kind string) *hooks.ExecError {
	cause := context.Cause(ctx)
	name := "CommandInterrupted"
	if errors.Is(cause, ErrTimeout) {
		name = kind + "Timeout"
	}
	return &hooks.ExecError{Name: name, Value: cause.Error(), Traceback: []string{cause.Error()}}
}

// timedOut is a context.DeadlineExceeded with a shorter message.
type timedOut struct{}

func (timedOut) Error() string        { return "timed out" }
func (timedOut) Is(target error) bool { return target == context.DeadlineExceeded }
