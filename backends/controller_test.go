package backends

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/celld/celld/hooks"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a backend whose runs do what the test says.
type scripted struct {
	do       func(ctx context.Context, req Request, h hooks.Hooks) error
	prepare  func(req Request) error
	opened   atomic.Int32
	closed   atomic.Int32
	released atomic.Int32
	opening  chan struct{} // when set, Open waits for it
}

func (s *scripted) Prepare(ctx context.Context, req Request) (*Run, error) {
	if s.prepare != nil {
		if err := s.prepare(req); err != nil {
			return nil, err
		}
	}
	return &Run{
		Exit:    true,
		Do:      func(ctx context.Context, h hooks.Hooks) error { return s.do(ctx, req, h) },
		Release: func() { s.released.Add(1) },
	}, nil
}

func (s *scripted) Open(ctx context.Context, req OpenRequest) (string, error) {
	s.opened.Add(1)
	if s.opening != nil {
		<-s.opening
	}
	if req.Cwd == "/bad" {
		return "", Refuse(Invalid, "no such directory")
	}
	return req.Cwd, nil
}

func (s *scripted) Close(context.Context, string) error { s.closed.Add(1); return nil }

func newTest(t *testing.T, s *scripted) *Controller {
	t.Helper()
	c := New(Config{
		Table:   map[string]Backend{KindCommand: s, KindSession: s, "python": s},
		Aliases: map[string]string{"py": "python"}, Keep: time.Hour, MaxKept: 100, MaxContexts: 4,
	})
	t.Cleanup(func() {
		if err := c.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c
}

func start(t *testing.T, c *Controller, req Request) *Execution {
	t.Helper()
	e, err := c.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func record(t *testing.T, e *Execution) *hooks.Recorder {
	t.Helper()
	r := &hooks.Recorder{}
	if err := e.Journal.Follow(t.Context(), 0, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func fault(err error) Fault {
	var e *Error
	if errors.As(err, &e) {
		return e.Fault
	}
	return 0
}

func untilStopped(ctx context.Context, _ Request, _ hooks.Hooks) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestEveryEndIsOneTerminalEventThatStatusAgreesWith(t *testing.T) {
	three := 3
	cases := map[string]struct {
		err  error
		name string // of the error; empty: success
		exit *int
	}{
		"success":         {exit: new(int)},
		"program failed":  {err: &hooks.ExecError{Name: "CommandExecError", Value: "3", ExitCode: &three}, name: "CommandExecError", exit: &three},
		"fault of ours":   {err: errors.New("disk gone"), name: "RuntimeError"},
		"wrapped failure": {err: fmt.Errorf("x: %w", &hooks.ExecError{Name: "KernelDied"}), name: "KernelDied"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := &scripted{do: func(_ context.Context, _ Request, h hooks.Hooks) error {
				h.OnStdout(hooks.Output{Data: []byte("out\n")})
				return tc.err
			}}
			c := newTest(t, s)
			e := start(t, c, Request{Kind: KindCommand, Code: "x"})
			r := record(t, e)
			o := e.Outcome()
			if o.Running || o.Finished.IsZero() {
				t.Errorf("after the terminal event the outcome is %+v", o)
			}
			last := r.Calls[len(r.Calls)-1]
			if tc.name == "" {
				if want := []string{"init", "stdout", "complete"}; !slices.Equal(r.Calls, want) {
					t.Errorf("calls %v, want %v", r.Calls, want)
				}
			} else if last != "error" || r.Failure.Name != tc.name || o.Failure.Name != tc.name || len(r.Failure.Traceback) == 0 {
				t.Errorf("ended with %s %+v, outcome %+v; want %s", last, r.Failure, o.Failure, tc.name)
			}
			if (o.ExitCode == nil) != (tc.exit == nil) || o.ExitCode != nil && *o.ExitCode != *tc.exit {
				t.Errorf("exit code %v, want %v", o.ExitCode, tc.exit)
			}
		})
	}
}

func TestPanicOfABackendEndsItsExecutionOnly(t *testing.T) {
	s := &scripted{do: func(context.Context, Request, hooks.Hooks) error { panic("boom") }}
	c := newTest(t, s)
	if r := record(t, start(t, c, Request{Kind: KindCommand})); r.Failure == nil {
		t.Errorf("no error event: %v", r.Calls)
	}
	s.do = func(context.Context, Request, hooks.Hooks) error { return nil }
	if r := record(t, start(t, c, Request{Kind: KindCommand})); r.Complete == nil {
		t.Errorf("the next execution failed: %+v", r.Failure)
	}
}

func TestRefusalOfPrepareStartsNothing(t *testing.T) {
	s := &scripted{prepare: func(Request) error { return Refuse(Invalid, "bad cwd") }}
	c := newTest(t, s)
	_, err := c.Start(t.Context(), Request{Kind: KindCommand})
	if fault(err) != Invalid {
		t.Errorf("got %v", err)
	}
	if memory, _ := c.config.Budget.Used(); memory != 0 {
		t.Errorf("%d bytes held", memory)
	}
}

func TestTimeoutAndInterruptAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTest(t, &scripted{do: untilStopped})
		limit := time.Minute
		began := time.Now()
		r := record(t, start(t, c, Request{Kind: KindCommand, Timeout: &limit}))
		if r.Failure == nil || r.Failure.Name != "CommandTimeout" || time.Since(began) != limit {
			t.Errorf("after %s: %+v", time.Since(began), r.Failure)
		}
		r = record(t, start(t, c, Request{Kind: KindCode, Language: "py", Timeout: &limit}))
		if r.Failure == nil || r.Failure.Name != "CellTimeout" {
			t.Errorf("cell: %+v", r.Failure)
		}
		e := start(t, c, Request{Kind: KindCommand})
		ended, err := c.Interrupt(t.Context(), e.ID)
		if err != nil || !ended {
			t.Errorf("interrupt: %v %v", ended, err)
		}
		if r = record(t, e); r.Failure == nil || r.Failure.Name != "CommandInterrupted" {
			t.Errorf("interrupted: %+v", r.Failure)
		}
		if ended, err = c.Interrupt(t.Context(), e.ID); err != nil || ended {
			t.Errorf("second interrupt: %v %v", ended, err)
		}
		if _, err = c.Interrupt(t.Context(), "unknown"); fault(err) != NotFound {
			t.Errorf("unknown id: %v", err)
		}
	})
}

func TestRunsOfOneContextHappenInOrderOneAtATime(t *testing.T) {
	var mu sync.Mutex
	var order []string
	running := 0
	gate := make(chan struct{})
	s := &scripted{do: func(_ context.Context, req Request, _ hooks.Hooks) error {
		mu.Lock()
		running++
		if running > 1 {
			t.Error("two runs at once")
		}
		order = append(order, req.Code)
		mu.Unlock()
		<-gate
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	}}
	c := newTest(t, s)
	var all []*Execution
	var want []string
	for i := range 20 {
		code := fmt.Sprint(i)
		all = append(all, start(t, c, Request{Kind: KindCode, Language: "python", Code: code}))
		want = append(want, code)
	}
	_, err := c.Start(t.Context(), Request{Kind: KindCode, Language: "python", FailBusy: true})
	if fault(err) != Busy {
		t.Errorf("on_busy fail: %v", err)
	}
	close(gate)
	for i, e := range all {
		r := record(t, e)
		if queued := slices.Contains(r.Calls, hooks.StateQueued); queued != (i > 0) {
			t.Errorf("run %d: calls %v", i, r.Calls)
		}
	}
	if !slices.Equal(order, want) {
		t.Errorf("order %v", order)
	}
	if n := s.opened.Load(); n != 1 {
		t.Errorf("%d contexts were opened", n)
	}
}

// What is started at the same moment is interrupted in the order in which it runs.
func TestInterruptOfAContextEndsTheRunUnderWay(t *testing.T) {
	const n = 8
	for range 200 {
		ran := make(chan string, n)
		c := newTest(t, &scripted{do: func(ctx context.Context, req Request, h hooks.Hooks) error {
			ran <- req.ExecutionID
			return untilStopped(ctx, req, h)
		}})
		x, err := c.OpenContext(t.Context(), OpenRequest{Language: "python"})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range n {
			all.Go(func() { c.Start(t.Context(), Request{Kind: KindCode, ContextID: x.ID}) })
		}
		all.Wait()
		for range n {
			e, err := c.Execution(<-ran)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Interrupt(t.Context(), x.ID); err != nil || e.Outcome().Running {
				t.Fatalf("the run under way goes on: %v", err)
			}
		}
	}
}

func TestDeadlineCountsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTest(t, &scripted{do: untilStopped})
		first := start(t, c, Request{Kind: KindCode, Language: "python"})
		limit := time.Second
		began := time.Now()
		r := record(t, start(t, c, Request{Kind: KindCode, Language: "python", Timeout: &limit}))
		if r.Failure == nil || r.Failure.Name != "CellTimeout" || time.Since(began) != limit {
			t.Errorf("after %s: %+v", time.Since(began), r.Failure)
		}
		if !first.Outcome().Running {
			t.Error("the run ahead was stopped")
		}
	})
}

func TestDeletedContextEndsItsRuns(t *testing.T) {
	s := &scripted{do: untilStopped}
	c := newTest(t, s)
	x, err := c.OpenContext(t.Context(), OpenRequest{Language: "python", Cwd: "/"})
	if err != nil {
		t.Fatal(err)
	}
	current := start(t, c, Request{Kind: KindCode, ContextID: x.ID})
	waiting := start(t, c, Request{Kind: KindCode, ContextID: x.ID, Language: "PY"})
	if current.Name != x.ID || current.ID == x.ID {
		t.Errorf("named %s, id %s", current.Name, current.ID)
	}
	if err := c.CloseContext(t.Context(), x.ID); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*Execution{current, waiting} {
		if r := record(t, e); r.Failure == nil || r.Failure.Name != "CommandInterrupted" {
			t.Errorf("%+v", r.Failure)
		}
	}
	if err := c.CloseContext(t.Context(), x.ID); fault(err) != NoContext {
		t.Errorf("second delete: %v", err)
	}
	if _, err := c.Start(t.Context(), Request{Kind: KindCode, ContextID: x.ID}); fault(err) != NoContext {
		t.Errorf("run in a deleted context: %v", err)
	}
	if s.closed.Load() != 1 {
		t.Errorf("closed %d times", s.closed.Load())
	}
}

func TestContextsAreFoundAndRefused(t *testing.T) {
	s := &scripted{do: func(context.Context, Request, hooks.Hooks) error { return nil }}
	c := newTest(t, s)
	ctx := t.Context()
	if all, err := c.Contexts(ctx, ""); err != nil || len(all) != 0 {
		t.Errorf("at first: %v %v", all, err)
	}
	x, err := c.OpenContext(ctx, OpenRequest{Language: "Py"})
	if err != nil || x.Language != "python" {
		t.Fatalf("%+v %v", x, err)
	}
	refusals := map[string]struct {
		err  func() error
		want Fault
	}{
		"unknown language": {func() error { _, err := c.OpenContext(ctx, OpenRequest{Language: "cobol"}); return err }, Invalid},
		"bad directory":    {func() error { _, err := c.OpenContext(ctx, OpenRequest{Language: "py", Cwd: "/bad"}); return err }, Invalid},
		"other language": {func() error {
			_, err := c.Start(ctx, Request{Kind: KindCode, ContextID: x.ID, Language: "go"})
			return err
		}, Invalid},
		"unknown context": {func() error { _, err := c.Start(ctx, Request{Kind: KindCode, ContextID: "nope"}); return err }, NoContext},
		"unknown session": {func() error { _, err := c.Start(ctx, Request{Kind: KindSession, ContextID: "nope"}); return err }, NoContext},
		"context as session": {func() error {
			_, err := c.Start(ctx, Request{Kind: KindSession, ContextID: x.ID, Create: true})
			return err
		}, NoContext},
		"bad session id": {func() error {
			_, err := c.Start(ctx, Request{Kind: KindSession, ContextID: "a/../b", Create: true})
			return err
		}, Invalid},
		"unknown kind": {func() error { _, err := c.Start(ctx, Request{Kind: "teapot"}); return err }, NotSupported},
	}
	for name, r := range refusals {
		if err := r.err(); fault(err) != r.want {
			t.Errorf("%s: %v (fault %d, want %d)", name, err, fault(err), r.want)
		}
	}
	for range 3 {
		c.OpenContext(ctx, OpenRequest{Language: "python"})
	}
	if _, err := c.OpenContext(ctx, OpenRequest{Language: "python"}); fault(err) != Limit {
		t.Errorf("fifth context: %v", err)
	}
	if all, _ := c.Contexts(ctx, "py"); len(all) != 4 || all[0].ID != x.ID {
		t.Errorf("list: %+v", all)
	}
}

func TestManyFirstUsesMakeOneContext(t *testing.T) {
	s := &scripted{do: func(context.Context, Request, hooks.Hooks) error { return nil }, opening: make(chan struct{})}
	c := newTest(t, s)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := c.Start(t.Context(), Request{Kind: KindCode, Language: "python"}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := c.Start(t.Context(), Request{Kind: KindSession, ContextID: DefaultSession}); err != nil {
				t.Error(err)
			}
		})
	}
	close(s.opening)
	wg.Wait()
	if n := s.opened.Load(); n != 2 {
		t.Errorf("%d opened, want one kernel and one session", n)
	}
}

func TestFinishedExecutionsAreForgottenInOrder(t *testing.T) {
	s := &scripted{do: func(context.Context, Request, hooks.Hooks) error { return nil }}
	c := newTest(t, s)
	var all []*Execution
	for range 110 {
		e := start(t, c, Request{Kind: KindCommand})
		record(t, e)
		all = append(all, e)
	}
	for i, e := range all {
		if _, err := c.Execution(e.ID); (err == nil) != (i >= 10) {
			t.Errorf("execution %d: %v", i, err)
		}
	}
}

func TestShutdownEndsEverythingAndRefusesMore(t *testing.T) {
	s := &scripted{do: untilStopped}
	c := newTest(t, s)
	var all []*Execution
	for range 5 {
		all = append(all, start(t, c, Request{Kind: KindCommand}), start(t, c, Request{Kind: KindCode, Language: "python"}))
	}
	if err := c.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if o := e.Outcome(); o.Running || o.Failure == nil || o.Failure.Name != "CommandInterrupted" {
			t.Errorf("%+v", o)
		}
	}
	if _, err := c.Start(t.Context(), Request{Kind: KindCommand}); fault(err) != Unavailable {
		t.Errorf("after shutdown: %v", err)
	}
	if s.released.Load() != int32(len(all))+1 {
		t.Errorf("%d of %d released", s.released.Load(), len(all)+1)
	}
	if s.closed.Load() != 1 {
		t.Errorf("%d contexts closed", s.closed.Load())
	}
}
