package jupyter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/internal/proctree"
)

// processes returns the command lines of living processes that hold text.
func processes(t testing.TB, text string) []string {
	t.Helper()
	table, err := proctree.Look()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range table.Processes {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err == nil && strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), text) {
			found = append(found, fmt.Sprint(p.PID))
		}
	}
	return found
}

var errInterrupted = errors.New("interrupted")

func TestInterruptEndsTheLoopAndNothingElse(t *testing.T) {
	k := open(t)
	want(t, k, "v = 5", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, done := background(t, ctx, k, ExecuteRequest{Code: "import time\nprint('go', flush=True)\nwhile True: time.sleep(0.1)"})
	p.waitOut(t, "go")
	cancel(errInterrupted)
	failed(t, <-done, "KeyboardInterrupt")
	for range 20 {
		want(t, k, "print(v)", "5\n")
	}
}

func TestInterruptReachesABusyLoop(t *testing.T) {
	k := open(t)
	want(t, k, "v = 5", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, done := background(t, ctx, k, ExecuteRequest{Code: "print('go', flush=True)\nwhile True: pass"})
	p.waitOut(t, "go")
	cancel(errInterrupted)
	failed(t, <-done, "KeyboardInterrupt")
	want(t, k, "print(v)", "5\n")
}

func TestInterruptEndsShellChildren(t *testing.T) {
	k := open(t)
	want(t, k, "v = 5", "")
	nap := sleeper()
	for _, code := range []string{
		"!echo go; " + nap,
		"import subprocess\nprint('go', flush=True)\nsubprocess.run('" + nap + "'.split())",
		"import os\nprint('go', flush=True)\nos.system('" + nap + "; true')",
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		p, done := background(t, ctx, k, ExecuteRequest{Code: code})
		p.waitOut(t, "go")
		cancel(errInterrupted)
		err := <-done
		if err != nil {
			failed(t, err, "KeyboardInterrupt")
		}
		if left := processes(t, nap); len(left) > 0 {
			t.Errorf("%s: left after the interrupt (%v): %v", code, err, left)
		}
		want(t, k, "print(v)", "5\n")
	}
}

func TestInterruptBeforeTheKernelBegins(t *testing.T) {
	k := open(t)
	want(t, k, "import time; v = 5", "")
	for range 30 {
		ctx, cancel := context.WithCancelCause(t.Context())
		_, done := background(t, ctx, k, ExecuteRequest{Code: "while True: time.sleep(0.1)"})
		cancel(errInterrupted)
		err := <-done
		var e *hooks.ExecError
		if !errors.As(err, &e) || e.Name != nameStopped && e.Name != nameInterrupted {
			t.Fatalf("got %v", err)
		}
		want(t, k, "print(v)", "5\n")
	}
}

func TestLateInterruptsNeverHitTheNextCell(t *testing.T) {
	k := open(t)
	want(t, k, "v = 5", "")
	for i := range 100 {
		ctx, cancel := context.WithCancelCause(t.Context())
		p, done := background(t, ctx, k, ExecuteRequest{Code: "print('go', flush=True)"})
		if i%2 == 0 {
			p.waitOut(t, "go")
		}
		cancel(errInterrupted)
		if err := <-done; err != nil {
			var e *hooks.ExecError
			if !errors.As(err, &e) || e.Name != nameStopped && e.Name != nameInterrupted {
				t.Fatalf("got %v", err)
			}
		}
		if p := want(t, k, "print(v)", "5\n"); len(p.statuses(hooks.StateKernelRestarted)) > 0 {
			t.Fatalf("round %d: the kernel was restarted", i)
		}
	}
}

func TestTimeoutIsCellTimeout(t *testing.T) {
	k := open(t)
	want(t, k, "v = 5", "")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, done := background(t, ctx, k, ExecuteRequest{Code: "import time; print('first', flush=True); time.sleep(97); print('A')"})
	p.waitOut(t, "first\n")
	cancel(context.DeadlineExceeded) // as if the time were up now
	failed(t, <-done, nameTimeout)
	if p.out() != "first\n" {
		t.Errorf("printed %q", p.out())
	}
	want(t, k, "print('B', v)", "B 5\n")
}

// TestStubbornCellEndsWithItsKernel interrupts a cell that doesn't heed interrupts.
func TestStubbornCellEndsWithItsKernel(t *testing.T) {
	needPython(t)
	_, s := ownServer(t)
	s.restartAt = restartAt
	k := openOn(t, s)
	nap := sleeper()
	stubborn := `import signal, subprocess, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen('` + nap + `'.split(), start_new_session=True)
print('go', flush=True)
while True: time.sleep(0.1)`
	t.Run("interrupt", func(t *testing.T) {
		want(t, k, "v = 5", "")
		ctx, cancel := context.WithCancelCause(t.Context())
		p, done := background(t, ctx, k, ExecuteRequest{Code: stubborn})
		p.waitOut(t, "go")
		cancel(errInterrupted)
		failed(t, <-done, nameInterrupted)
		if len(p.statuses(hooks.StateKernelRestarted)) != 1 {
			t.Errorf("the restart was not told: %v", p.all())
		}
		if left := processes(t, nap); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		if p := want(t, k, "print('v' in globals())", "False\n"); len(p.statuses(hooks.StateKernelRestarted)) != 0 {
			t.Error("the restart was told twice")
		}
	})
	t.Run("timeout", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		p, done := background(t, ctx, k, ExecuteRequest{Code: stubborn})
		p.waitOut(t, "go")
		cancel(context.DeadlineExceeded)
		failed(t, <-done, nameTimeout)
		events := len(p.all())
		next := want(t, k, "print('v' in globals())", "False\n")
		if len(next.statuses(hooks.StateKernelRestarted)) != 1 {
			t.Errorf("the restart was not told: %v", next.all())
		}
		if len(p.all()) != events {
			t.Error("hooks were called after the end")
		}
	})
}
