package backends

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/hooks"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Config makes a Controller.
type Config struct {
	Table    map[string]Backend // by kind and language; not changed afterwards
	Aliases  map[string]string  // other names of languages
	Fallback Stateful           // asked for languages that aren't in the table; may be nil
	Budget   *hooks.Budget
	// Rings has the kinds whose hooks never wait for a reader, and the budgets of what they print.
	Rings map[string]*hooks.Budget
	// MaxOf limits, by kind, the executions that have not finished; a kind that isn't there has no limit.
	MaxOf       map[string]int
	Keep        time.Duration // how long a finished execution is remembered
	MaxKept     int           // how many finished executions are remembered at the most
	MaxContexts int           // contexts at the same time; 0: any number
	MaxSessions int           // the same for sessions
	Log         *slog.Logger
	Tracer      trace.Tracer // nil: none
	Meter       metric.Meter // nil: none
}

// Controller routes requests to backends and knows every execution and context. It is safe for concurrent use.
type Controller struct {
	config   Config
	log      *slog.Logger
	runs     sync.WaitGroup
	contexts *contexts
	tell     *instruments

	begun chan struct{} // closed: of executions that begin at once

	mu         sync.Mutex // guards what follows; never held across a call to a backend
	all        map[string]*Execution
	unfinished map[string]int          // by kind
	current    map[string][]*Execution // by context: under way and waiting, in order
	finished   []*Execution            // in the order they finished
	texts      int                     // bytes of Content in finished
	draining   bool
}

// maxTexts bounds the texts of finished commands that are remembered, in bytes.
const maxTexts = 32 << 20

// New makes a Controller.
func New(c Config) *Controller {
	ct := &Controller{
		config: c, log: c.Log, begun: make(chan struct{}),
		all: map[string]*Execution{}, unfinished: map[string]int{}, current: map[string][]*Execution{},
	}
	close(ct.begun)
	if ct.log == nil {
		ct.log = slog.New(slog.DiscardHandler)
	}
	if c.Budget == nil {
		ct.config.Budget = hooks.NewBudget("", hooks.DefaultLimits)
	}
	ct.contexts = newContexts(ct)
	ct.tell = newInstruments(c.Tracer, c.Meter, ct)
	return ct
}

// NewID makes an id: 32 lower-case hex digits.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Start prepares req and lets it run. The execution outlives ctx, which is the request's: it ends by itself or by
// Stop. An error, best an *Error, says that nothing was started.
func (c *Controller) Start(ctx context.Context, req Request) (*Execution, error) {
	return c.create(ctx, req, c.begun)
}

// Create is Start for what begins later, by Begin: until then it is known, can be followed and can be stopped.
func (c *Controller) Create(ctx context.Context, req Request) (*Execution, error) {
	return c.create(ctx, req, make(chan struct{}))
}

func (c *Controller) create(ctx context.Context, req Request, begun chan struct{}) (_ *Execution, err error) {
	req.ExecutionID = NewID()
	ctx, span := c.tell.begin(ctx, &req)
	defer func() {
		if err != nil {
			endSpan(span, err)
		}
	}()
	backend, entry, err := c.route(ctx, &req)
	if err != nil {
		return nil, err
	}
	budget, policy := c.config.Budget, hooks.Lossless
	if ring := c.config.Rings[req.Kind]; ring != nil {
		budget, policy = ring, hooks.Ring
	}
	log := budget.Store(req.ExecutionID)
	req.Late = log
	preparing, prepared := c.tell.step(ctx, "prepare")
	run, err := backend.Prepare(preparing, req)
	prepared(err)
	if err != nil {
		return nil, err
	}
	if entry != nil && req.Timeout == nil {
		req.Timeout = entry.Timeout
	}
	e := newExecution(req, run, hooks.NewJournal(hooks.Config{Policy: policy, Store: log}))
	e.begun = begun
	runCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	e.cancel = cancel
	turn, err := c.register(e, entry, req.FailBusy)
	if err != nil {
		cancel(err)
		run.release()
		return nil, err
	}
	if entry != nil && c.contexts.deleted(entry) {
		e.Stop(ErrClosed)
	}
	e.Journal.OnInit(hooks.Init{ExecutionID: e.ID, ID: e.Name})
	if turn != nil && !turn.first() {
		e.Journal.OnStatus(hooks.Status{State: hooks.StateQueued})
	}
	go c.run(runCtx, e, run, turn, req.Timeout)
	return e, nil
}

// route finds the backend of req and, where it runs in a context, that context. It fills in ContextID and Language.
func (c *Controller) route(ctx context.Context, req *Request) (Backend, *openContext, error) {
	switch req.Kind {
	case KindCode, KindSession:
		entry, err := c.contexts.find(ctx, req)
		if err != nil {
			return nil, nil, err
		}
		req.ContextID, req.Language = entry.ID, entry.Language
		return entry.backend, entry, nil
	case KindBackground:
		if req.ContextID != "" { // beside a session: from its state, but not in its queue
			entry, err := c.contexts.findSession(ctx, req)
			if err != nil {
				return nil, nil, err
			}
			return entry.backend, nil, nil
		}
	}
	backend, ok := c.config.Table[req.Kind]
	if !ok {
		return nil, nil, Refuse(NotSupported, "%s is not available here", req.Kind)
	}
	return backend, nil, nil
}

func newExecution(req Request, run *Run, journal *hooks.Journal) *Execution {
	e := &Execution{
		ID: req.ExecutionID, Name: req.ExecutionID, Kind: req.Kind, Language: req.Language, ContextID: req.ContextID,
		Content: content(req), Output: req.Output, Started: time.Now(), Journal: journal, handle: run.Handle, log: journal.Store(),
	}
	e.shortened = len(e.Content) < len(req.Code) && len(req.Argv) == 0
	if req.ContextID != "" && !req.OwnName {
		e.Name = req.ContextID
	}
	return e
}

// register makes the execution known. One of a context takes its place in the queue and among the context's runs at once,
// so that the first of these is the one under way.
func (c *Controller) register(e *Execution, entry *openContext, ifFree bool) (turn *place, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return nil, Refuse(Unavailable, "the server is shutting down")
	}
	if most, ok := c.config.MaxOf[e.Kind]; ok && c.unfinished[e.Kind] >= most {
		return nil, Refuse(Limit, "there are %d of kind %s already, which is the limit; delete some first", most, e.Kind)
	}
	if entry != nil {
		if turn = entry.queue.take(ifFree); turn == nil {
			return nil, Refuse(Busy, "context %s is busy", e.ContextID)
		}
		c.current[e.ContextID] = append(c.current[e.ContextID], e)
	}
	c.unfinished[e.Kind]++
	c.all[e.ID] = e
	c.runs.Add(1)
	return turn, nil
}

// run is the life of an execution after its acceptance.
func (c *Controller) run(ctx context.Context, e *Execution, run *Run, turn *place, timeout *time.Duration) {
	growStack(0)
	defer c.runs.Done()
	defer e.cancel(nil)
	select {
	case <-e.begun:
	case <-ctx.Done():
	}
	if timeout != nil && *timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, *timeout, ErrTimeout)
		defer cancel()
	}
	defer e.Journal.ReleaseWith(ctx)()
	defer func() { c.tell.endExecution(ctx, e) }()
	err := c.waitAndDo(ctx, e, run, turn)
	c.finish(ctx, e, run, turn, err)
	run.release()
}

// growStack makes the goroutine's stack as large as a short run needs it. Otherwise it would be copied two or three times
// on the way there, which is 4 % of what an SQL SELECT 1 costs.
//
//go:noinline
func growStack(i int) byte {
	var room [5 << 10]byte
	return room[i]
}

func (c *Controller) waitAndDo(ctx context.Context, e *Execution, run *Run, turn *place) (err error) {
	if turn != nil && c.waitFor(ctx, e, turn) != nil {
		return stopped(ctx, e.noun())
	}
	if ctx.Err() != nil {
		return stopped(ctx, e.noun())
	}
	defer func() {
		if p := recover(); p != nil { // a fault of ours ends this execution, not the daemon
			c.log.Error("backend panicked", "execution", e.ID, "panic", fmt.Sprint(p))
			err = &hooks.ExecError{Name: "UNKNOWN", Value: "internal error"}
		}
	}()
	ctx, done := c.tell.step(ctx, "run")
	defer func() { done(err) }()
	return run.Do(ctx, e.Journal)
}

// waitFor waits for the execution's turn in its context.
func (c *Controller) waitFor(ctx context.Context, e *Execution, turn *place) error {
	ctx, done := c.tell.step(ctx, "wait")
	err := turn.wait(ctx)
	c.tell.waited.Record(ctx, time.Since(e.Started).Seconds(), c.tell.set(labels{kind: e.Kind, language: e.Language}))
	done(err)
	return err
}

// finish settles the outcome, lets the next run of the context in, then reports the terminal event: who has seen that
// finds the context free.
func (c *Controller) finish(ctx context.Context, e *Execution, run *Run, turn *place, err error) {
	now := time.Now()
	var failure *hooks.ExecError
	if err != nil && !errors.As(err, &failure) {
		if ctx.Err() != nil {
			failure = stopped(ctx, e.noun())
		} else {
			failure = &hooks.ExecError{Name: "RuntimeError", Value: err.Error()}
		}
	}
	if failure != nil && run.Exit && failure.ExitCode == nil && ctx.Err() != nil { // stopped before it began: what SIGTERM would have left
		code := 128 + int(syscall.SIGTERM)
		failure.Value, failure.ExitCode = strconv.Itoa(code), &code
	}
	if failure != nil && len(failure.Traceback) == 0 {
		failure.Traceback = []string{failure.Error()}
	}
	complete := hooks.Complete{Duration: now.Sub(e.Started)}
	e.mu.Lock()
	e.finished, e.failure = now, failure
	switch {
	case failure != nil:
		e.exit = failure.ExitCode
	case run.Exit:
		e.exit = new(int)
		complete.ExitCode = e.exit
	}
	e.mu.Unlock()
	c.retire(e)
	if turn != nil {
		turn.leave()
	}
	_, bytes := e.log.Bounds()
	c.tell.ended(ctx, e, now.Sub(e.Started), bytes)
	if failure != nil {
		e.Journal.OnError(hooks.Failure{ExecError: *failure})
	} else {
		e.Journal.OnComplete(complete)
	}
	runtime.Gosched() // the reader first, then the log
	c.report(ctx, e, now.Sub(e.Started))
}

// retire moves e to the finished ones and forgets those that needn't be remembered any more.
func (c *Controller) retire(e *Execution) {
	c.mu.Lock()
	if e.ContextID != "" {
		rest := without(c.current[e.ContextID], e)
		if len(rest) == 0 {
			delete(c.current, e.ContextID)
		} else {
			c.current[e.ContextID] = rest
		}
	}
	c.unfinished[e.Kind]--
	c.finished = append(c.finished, e)
	c.texts += len(e.Content)
	old := c.forget(4)
	c.mu.Unlock()
	for _, e := range old {
		e.log.Close()
	}
}

// forget drops up to most of the oldest finished executions, as far as there are too many or they are too old. One
// whose children still run is put off. The caller holds mu and closes their logs.
func (c *Controller) forget(most int) []*Execution {
	var old []*Execution
	for range most {
		e := c.finished[0]
		if len(c.finished) <= c.config.MaxKept && c.texts <= maxTexts && time.Since(e.finished) <= c.config.Keep {
			break
		}
		c.finished = c.finished[1:]
		if e.handle.Lingers != nil && e.handle.Lingers() {
			c.finished = append(c.finished, e)
			continue
		}
		c.texts -= len(e.Content)
		delete(c.all, e.ID)
		old = append(old, e)
		if len(c.finished) == 0 {
			break
		}
	}
	return old
}

func without(list []*Execution, e *Execution) []*Execution {
	var rest []*Execution
	for _, x := range list {
		if x != e {
			rest = append(rest, x)
		}
	}
	return rest
}

// report writes the one log line of a finished execution and counts it.
func (c *Controller) report(ctx context.Context, e *Execution, took time.Duration) {
	o := e.Outcome()
	outcome := "ok"
	if o.Failure != nil {
		outcome = o.Failure.Name
	}
	_, bytes := e.log.Bounds()
	attrs := [6]slog.Attr{slog.String("id", e.ID), slog.String("kind", e.what()), slog.String("outcome", outcome),
		slog.Int64("ms", took.Milliseconds()), slog.Int64("bytes", bytes)}
	n := 5
	if o.ExitCode != nil {
		attrs[n], n = slog.Int("exit", *o.ExitCode), n+1
	}
	c.log.LogAttrs(ctx, slog.LevelInfo, "finished", attrs[:n]...)
}

// what names the execution's kind for logs: the language of a cell, else the kind.
func (e *Execution) what() string {
	if e.Language != "" {
		return e.Language
	}
	return e.Kind
}

// noun is the first word of the error names of this kind.
func (e *Execution) noun() string {
	if e.Kind == KindCode {
		return "Cell"
	}
	return "Command"
}

// Execution returns the execution with this id.
func (c *Controller) Execution(id string) (*Execution, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.all[id]; e != nil {
		return e, nil
	}
	return nil, Refuse(NotFound, "no execution %q", id)
}

// Interrupt ends the execution with this id, or the current run of the session or context with this id, and returns
// when it has ended or ctx is done. For an execution that has ended it ends what survived it. ended tells
// whether there was anything to end.
func (c *Controller) Interrupt(ctx context.Context, id string) (ended bool, err error) {
	e, isExecution := c.named(id)
	if e == nil {
		if c.contexts.get(id) == nil && id != DefaultSession { // which need not have been used yet
			return false, Refuse(NotFound, "no command, execution, session or context %q", id)
		}
		return false, nil
	}
	if !e.Outcome().Running {
		return e.killSurvivors(ctx)
	}
	e.Stop(ErrInterrupted)
	select {
	case <-e.Journal.Done():
		if isExecution {
			_, err = e.killSurvivors(ctx)
		}
		return true, err
	case <-ctx.Done():
		return true, Refuse(Unavailable, "%s is being stopped and has not ended yet", id)
	}
}

// named returns the execution with this id, or the current run of the session or context with this id; nil for neither.
func (c *Controller) named(id string) (e *Execution, isExecution bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e = c.all[id]; e != nil {
		return e, true
	}
	if running := c.current[id]; len(running) > 0 {
		return running[0], false
	}
	return nil, false
}

// Input answers the input request of the execution with this id, or of the current run of the context with this id.
func (c *Controller) Input(ctx context.Context, id, value string) error {
	e, _ := c.named(id)
	switch {
	case e == nil && c.contexts.get(id) == nil:
		return Refuse(NoContext, "no execution or context %q", id)
	case e == nil || !e.Outcome().Running:
		return Refuse(Conflict, "nothing that runs there waits for input")
	case e.handle.Input == nil:
		return Refuse(NotSupported, "this can't be given input")
	}
	return e.handle.Input(ctx, value)
}

// Delete ends the execution with this id and what survived it, then forgets it and its output.
func (c *Controller) Delete(ctx context.Context, id string) error {
	e, err := c.Execution(id)
	if err != nil {
		return err
	}
	e.Stop(ErrDeleted)
	select {
	case <-e.Journal.Done():
	case <-ctx.Done():
		return Refuse(Unavailable, "%s is being stopped and has not ended yet", id)
	}
	if _, err := e.killSurvivors(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	if c.all[id] == e { // not another Delete
		delete(c.all, id)
		c.finished = without(c.finished, e)
		c.texts -= len(e.Content)
	}
	c.mu.Unlock()
	e.log.Close()
	return nil
}

// killSurvivors ends the processes that outlived the execution and reports whether there were any.
func (e *Execution) killSurvivors(ctx context.Context) (bool, error) {
	if e.handle.Survivors == nil || len(e.handle.Survivors()) == 0 {
		return false, nil
	}
	return true, e.handle.Kill(ctx)
}

// Shutdown refuses new executions, stops those that run, closes all contexts and kills what survived. It returns when
// all of that is done, or when ctx is.
func (c *Controller) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.draining = true
	var all []*Execution
	for _, e := range c.all {
		all = append(all, e)
	}
	c.mu.Unlock()
	c.contexts.refuse()
	for _, e := range all {
		e.Stop(ErrShutdown)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.runs.Wait()
		c.contexts.closeAll(ctx)
		var ends sync.WaitGroup // side by side they share their looks at the process table
		for _, e := range all {
			ends.Go(func() {
				e.killSurvivors(ctx)
				e.log.Close()
			})
		}
		ends.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop everything: %w", context.Cause(ctx))
	}
}

func (r *Run) release() {
	if r.Release != nil {
		r.Release()
	}
}
