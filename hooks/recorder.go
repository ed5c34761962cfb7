package hooks

import (
	"bytes"
	"sync"
)

// Recorder is a Writer that remembers what it was told, for tests. It is safe for concurrent use; read its fields
// only when nobody writes any more.
type Recorder struct {
	mu       sync.Mutex
	Calls    []string // names of the hooks in order, a run of the same kind of output once
	Init     Init
	Stdout   bytes.Buffer
	Stderr   bytes.Buffer
	Results  []Result
	Statuses []Status
	Failure  *Failure
	Complete *Complete
	LastEID  int64
	Flushes  int
	Err      error // what Flush returns
}

func (r *Recorder) note(name string, s Stamp) {
	if n := len(r.Calls); n == 0 || r.Calls[n-1] != name || (name != "stdout" && name != "stderr") {
		r.Calls = append(r.Calls, name)
	}
	if s.EID > 0 {
		r.LastEID = s.EID
	}
}

func (r *Recorder) output(name string, b *bytes.Buffer, o Output) {
	if o.End {
		r.LastEID = o.EID
		return
	}
	r.note(name, o.Stamp)
	b.Write(o.Data)
}

// OnInit implements Hooks.
func (r *Recorder) OnInit(e Init) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("init", e.Stamp)
	r.Init = e
}

// OnStdout implements Hooks.
func (r *Recorder) OnStdout(o Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output("stdout", &r.Stdout, o)
}

// OnStderr implements Hooks.
func (r *Recorder) OnStderr(o Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output("stderr", &r.Stderr, o)
}

// OnResult implements Hooks.
func (r *Recorder) OnResult(e Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("result", e.Stamp)
	r.Results = append(r.Results, e)
}

// OnStatus implements Hooks.
func (r *Recorder) OnStatus(e Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(e.State, e.Stamp)
	r.Statuses = append(r.Statuses, e)
}

// OnError implements Hooks.
func (r *Recorder) OnError(e Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("error", e.Stamp)
	r.Failure = &e
}

// OnComplete implements Hooks.
func (r *Recorder) OnComplete(e Complete) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("complete", e.Stamp)
	r.Complete = &e
}

// Flush implements Writer.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Flushes++
	return r.Err
}
