package backends

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/shellrun"
)

func prints(text string) func(context.Context, Request, hooks.Hooks) error {
	return func(_ context.Context, _ Request, h hooks.Hooks) error {
		h.OnStdout(hooks.Output{Data: []byte(text)})
		return nil
	}
}

func TestCreatedExecutionRunsOnceItIsLet(t *testing.T) {
	c := newTest(t, &scripted{do: prints("out\n")})
	e, err := c.Create(t.Context(), Request{Kind: KindCommand, Code: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := c.Execution(e.ID); err != nil || found != e || e.Begun() || !e.Outcome().Running {
		t.Fatalf("before it begins: %v %v, begun %v, %+v", found, err, e.Begun(), e.Outcome())
	}
	if pos, _ := e.Journal.Position(); pos != 1 {
		t.Fatalf("before it begins its journal is at %d", pos)
	}
	e.Begin()
	e.Begin()
	if r := record(t, e); !slices.Equal(r.Calls, []string{"init", "stdout", "complete"}) || !e.Begun() {
		t.Errorf("calls %v, begun %v", r.Calls, e.Begun())
	}
}

func TestCreatedExecutionThatIsStoppedNeverRuns(t *testing.T) {
	s := &scripted{do: prints("out\n")}
	c := newTest(t, s)
	e, err := c.Create(t.Context(), Request{Kind: KindCommand, Code: "x"})
	if err != nil {
		t.Fatal(err)
	}
	e.Stop(ErrInterrupted)
	r := record(t, e)
	if !slices.Equal(r.Calls, []string{"init", "error"}) || r.Failure.Name != "CommandInterrupted" {
		t.Errorf("calls %v, failure %+v", r.Calls, r.Failure)
	}
	e.Begin() // too late
	if err := c.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.released.Load(); n != 1 {
		t.Errorf("released %d times", n)
	}
}

func TestCommandThatIsStoppedBeforeItBeginsTakesNoInput(t *testing.T) {
	c := New(Config{Table: map[string]Backend{KindCommand: &Command{Runner: &shellrun.Runner{Workspace: "/"}}}})
	e, err := c.Create(t.Context(), Request{Kind: KindCommand, Code: "cat", StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() { asked <- e.Handle().Stdin(t.Context(), []byte("x"), false) }()
	e.Stop(ErrInterrupted)
	record(t, e)
	for range 2 {
		if err := <-asked; fault(err) != Conflict {
			t.Errorf("%v", err)
		}
		asked <- e.Handle().Stdin(t.Context(), []byte("x"), false)
	}
	if err := c.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestDeletedExecutionIsForgottenWithItsOutput(t *testing.T) {
	c := newTest(t, &scripted{do: func(ctx context.Context, _ Request, h hooks.Hooks) error {
		h.OnStdout(hooks.Output{Data: []byte("out\n")})
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	e := start(t, c, Request{Kind: KindCommand, Code: "x"})
	other := start(t, c, Request{Kind: KindCommand, Code: "y"})
	if err := c.Delete(t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
	if e.Outcome().Running || !other.Outcome().Running {
		t.Error("not the one that was named has ended")
	}
	if _, err := c.Execution(e.ID); fault(err) != NotFound {
		t.Errorf("afterwards: %v", err)
	}
	if base, end := e.Log().Bounds(); base != end {
		t.Errorf("bytes %d..%d are still kept", base, end)
	}
	if err := c.Delete(t.Context(), e.ID); fault(err) != NotFound {
		t.Errorf("deleting it again: %v", err)
	}
}

func TestKindWithALimitRefusesMoreUntilOneHasEnded(t *testing.T) {
	c := New(Config{
		Table: map[string]Backend{KindCommand: &scripted{do: untilStopped}}, MaxOf: map[string]int{KindCommand: 2},
		Keep: time.Hour, MaxKept: 100,
	})
	defer c.Shutdown(t.Context())
	req := Request{Kind: KindCommand, Code: "x"}
	first := start(t, c, req)
	if _, err := c.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), req); fault(err) != Limit {
		t.Fatalf("the third: %v", err)
	}
	if err := c.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	start(t, c, req)
}

func TestHooksOfARingNeverWaitForAReader(t *testing.T) {
	printed := make(chan struct{})
	ring := hooks.NewBudget("", hooks.Limits{Memory: 1 << 20, MemoryTotal: 1 << 20})
	c := New(Config{
		Table: map[string]Backend{KindCommand: &scripted{do: func(_ context.Context, _ Request, h hooks.Hooks) error {
			for range 64 {
				h.OnStdout(hooks.Output{Data: make([]byte, 1<<20)})
			}
			close(printed)
			return nil
		}}},
		Rings: map[string]*hooks.Budget{KindCommand: ring}, Keep: time.Hour, MaxKept: 100,
	})
	defer c.Shutdown(t.Context())
	e, err := c.Create(t.Context(), Request{Kind: KindCommand, Code: "x"})
	if err != nil {
		t.Fatal(err)
	}
	stuck := &stuckReader{began: make(chan struct{}), until: printed}
	read := make(chan error)
	go func() { read <- e.Journal.Follow(t.Context(), 0, stuck) }()
	<-stuck.began
	e.Begin()
	if err := <-read; err != hooks.ErrLagged {
		t.Errorf("the reader that didn't read got %v", err)
	}
	if held, _ := ring.Used(); held > 1<<20 {
		t.Errorf("%d bytes are held", held)
	}
}

// stuckReader accepts the first event and then nothing until a channel is closed.
type stuckReader struct {
	hooks.Recorder
	began chan struct{}
	until <-chan struct{}
	stuck bool
}

func (r *stuckReader) Flush() error {
	if !r.stuck {
		r.stuck = true
		close(r.began)
		return nil
	}
	<-r.until
	return nil
}
