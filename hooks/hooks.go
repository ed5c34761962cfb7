package hooks

import (
	"encoding/json"
	"fmt"
	"time"
)

// Hooks receives what an execution does. Backends call it; the Journal and every writer implement it.
//
// Calls may come from several goroutines and may block: that is how a slow reader slows a program. A call never
// blocks once the execution's context is done. Data passed in belongs to the caller again when the call returns.
type Hooks interface {
	OnInit(Init)
	OnStdout(Output)
	OnStderr(Output)
	OnResult(Result)
	OnStatus(Status)
	OnError(Failure)
	OnComplete(Complete)
}

// Writer is what a journal replays to. One goroutine calls it. Flush is called when nothing more is ready, and
// after at most [FlushBytes] of output; its error ends the reader it belongs to and nothing else.
type Writer interface {
	Hooks
	Flush() error
}

// Stamp is the place of an event: set by the journal, zero before.
type Stamp struct {
	EID  int64     // position after the event, ≥ 1; 0 for a gap, which has none
	Time time.Time // when the journal took it
}

// Init opens an execution.
type Init struct {
	Stamp
	ExecutionID string // 32 lower-case hex digits, unique
	ID          string // what clients call it by: the command's, session's or context's id
}

// Output is a piece of a stream, in the largest chunk the source gave. Backends set Data only.
type Output struct {
	Stamp
	Data []byte

	// Cut is the state of the stream's line cutter before Data, where Data doesn't follow the stream's previous output:
	// at a reader's start and after a gap. Else nil. Set by the journal. If its Len isn't 0, the beginning of the piece
	// is no longer kept.
	Cut *Cutter
	// End says that the stream ended inside a line or a character; Data is empty. Set by the journal.
	End bool
}

// Result is a MIME bundle: a value, a display, the update of a display, or a table.
type Result struct {
	Stamp
	Data           map[string]json.RawMessage // MIME type to JSON value: a string for text, base64 for binary types
	Metadata       json.RawMessage            // as the kernel sent it; nil when there is none
	DisplayID      string                     // names a display that may be updated
	Update         bool                       // this bundle replaces the display DisplayID
	ExecutionCount int                        // the cell's number, for its value; 0 for a display
	Table          *Table                     // for a result set: its columns
	Partial        bool                       // more rows of the same result set follow in the next Result
}

// Table describes a result set, or what a statement without one did.
type Table struct {
	Columns []Column

	Truncated    bool   // rows were left out
	RowCount     int64  // with Truncated: how many there were
	LastInsertID uint64 // 0: none
	Warnings     int    // how many the database has
	Info         string // the database's own words about what it did; may be empty
}

// Column is one column of a Table.
type Column struct {
	Name     string
	Type     string // the database's own name of the type
	Nullable *bool  // nil: the driver doesn't say
}

// States of a Status.
const (
	StateQueued          = "queued"             // waits for its turn
	StateCount           = "execution_count"    // Count is the cell's number
	StateClear           = "clear_output"       // Wait: clear when the next output comes
	StateInput           = "input_request"      // Prompt, Password: the cell waits for input
	StateGap             = "gap"                // From, To: positions dropped before this reader saw them
	StateKernelRestarted = "kernel_restarted"   // the context has a fresh kernel; its state is lost
	StateReconnected     = "kernel_reconnected" // the cell goes on; what the kernel sent at that moment may be missing
	StateSessionReplaced = "session_replaced"   // the session has a new shell
	StateUnwound         = "unwound"            // a run was interrupted and the shell kept
	StateConnectionLost  = "connection_lost"    // the context gets a new connection to its database
)

// Status is a note in between: a state and what belongs to it.
type Status struct {
	Stamp
	State    string
	Detail   string // for people
	Count    int    // StateCount
	Wait     bool   // StateClear
	Prompt   string // StateInput
	Password bool   // StateInput: don't echo
	From, To int64  // StateGap: positions From..To, both included, are gone
}

// Failure ends an execution that failed, was stopped, or that we failed.
type Failure struct {
	Stamp
	ExecError
}

// Complete ends an execution that succeeded.
type Complete struct {
	Stamp
	Duration time.Duration
	ExitCode *int // nil where there is none, as for a cell
}

// ExecError is a failure as data: what a program, a cell or a query reported. It is not a fault of ours.
type ExecError struct {
	Name      string   // CommandExecError, KeyboardInterrupt, DBQueryError, …
	Value     string   // for commands the decimal exit status
	Traceback []string // at least one line on the wire
	ExitCode  *int     // commands and sessions only
	Code      int      // the database's error number, else 0
	SQLState  string   // the database's SQLSTATE, else empty
}

// Error says the name and the value.
func (e *ExecError) Error() string { return fmt.Sprintf("%s: %s", e.Name, e.Value) }
