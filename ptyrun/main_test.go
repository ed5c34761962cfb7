package ptyrun

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/celld/celld/internal/proctree"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// screen keeps what a terminal prints and lets a test wait for text.
type screen struct {
	t *testing.T

	mu   sync.Mutex
	more *sync.Cond
	all  []byte
	seen int // up to here a test has waited
	over bool
	why  string // it is over
}

func newScreen(t *testing.T) *screen {
	s := &screen{t: t}
	s.more = sync.NewCond(&s.mu)
	return s
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, p...)
	s.more.Broadcast()
	return len(p), nil
}

func (s *screen) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.more.Broadcast()
}

// until waits for text and returns what came before it since the last call.
func (s *screen) until(text string) string {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if i := bytes.Index(s.all[s.seen:], []byte(text)); i >= 0 {
			before := string(s.all[s.seen : s.seen+i])
			s.seen += i + len(text)
			return before
		}
		if s.over {
			s.t.Fatalf("the terminal ended %s, without %q, after %q", s.why, text, s.all[max(s.seen, len(s.all)-2000):])
		}
		s.more.Wait()
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.all)
}

// running is a terminal that runs.
type running struct {
	*Terminal
	*screen
	errs   *screen
	stop   context.CancelFunc
	ended  chan struct{}
	status proctree.Status // after ended, as is err
	err    error
}

var ids atomic.Int64

func config(t *testing.T) (Runner, Config) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	env := proctree.Overlay(proctree.BaseEnv(os.Environ()), "TERM="+Term, "PS1=$ ", "HOME="+t.TempDir())
	return Runner{Shell: bash}, Config{ID: fmt.Sprintf("ptyrun-test-%d-%d", os.Getpid(), ids.Add(1)), Dir: t.TempDir(), Env: env}
}

// run starts a terminal; change, if any, is for what isn't as usual. It ends with the test at the latest, with
// all that it has left behind.
func run(t *testing.T, pipes bool, change func(*Config)) *running {
	t.Helper()
	r, c := config(t)
	x := &running{screen: newScreen(t), errs: newScreen(t), ended: make(chan struct{})}
	c.Stdout, c.Stderr = x.screen, x.errs
	if change != nil {
		change(&c)
	}
	var err error
	if x.Terminal, err = r.Prepare(c); err != nil {
		t.Fatal(err)
	}
	x.UsePipes(pipes)
	ctx, stop := context.WithCancel(t.Context())
	x.stop = stop
	go func() {
		defer close(x.ended)
		x.status, x.err = x.Run(ctx)
		x.why = fmt.Sprintf("with %d, %v", x.status.Code, x.err)
		x.finish()
		x.errs.finish()
	}()
	t.Cleanup(func() {
		stop()
		<-x.ended
		if left := x.Survivors(); len(left) > 0 {
			if err := x.Kill(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	<-x.Launched()
	return x
}

func (x *running) send(text string) {
	x.t.Helper()
	if err := x.Terminal.Write(x.t.Context(), []byte(text)); err != nil {
		x.t.Fatal(err)
	}
}

// end waits for the end and returns the exit code.
func (x *running) end() int {
	x.t.Helper()
	<-x.ended
	if x.err != nil {
		x.t.Fatal(x.err)
	}
	return x.status.Code
}
