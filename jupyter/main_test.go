package jupyter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/celld/celld/hooks"
	"go.uber.org/goleak"
)

// longest is how long anything may take before a test fails for it.
const longest = 3 * time.Minute

// suite is what the tests share: one server of our own with real kernels.
type suite struct {
	managed *Managed
	server  *Server
	dir     string
}

var shared suite

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "jt")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared.dir = dir
	shared.managed = newManaged(managedConfig(dir))
	shared.server = newServer(shared.managed)
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	if err := errors.Join(shared.server.Close(ctx), shared.managed.Close(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
		code = 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func managedConfig(dir string) ManagedConfig {
	return ManagedConfig{
		Prefix: prefix(),
		RunDir: filepath.Join(dir, "run"),
		Log:    filepath.Join(dir, "jupyter.log"),
		Env:    append(os.Environ(), "CELLD_SECRET=s", "EXECD_ACCESS_TOKEN=s", "JUPYTER_TOKEN=s", "OTEL_SERVICE_NAME=s"),

		AnswerWithin: longest,
	}
}

// newManaged is a server that may take its time to start: other packages' tests run at the same time.
func newManaged(cfg ManagedConfig) *Managed {
	m := NewManaged(cfg)
	m.readyWithin = longest
	return m
}

// newServer is a server whose kernels may take their time to heed an interrupt.
func newServer(m *Managed) *Server {
	s := NewServer(ServerConfig{Managed: m, Aliases: map[string]string{"py": "python"}})
	s.restartAt = longest
	return s
}

// prefix finds what `make setup` installed: .celld beside go.mod.
func prefix() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, ".celld")
		}
		if dir == filepath.Dir(dir) {
			panic("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}

// needPython fails the test if there is no Jupyter Server to test with.
func needPython(t testing.TB) {
	t.Helper()
	if _, err := Locate(prefix(), nil); err != nil {
		t.Fatalf("%v: run `make setup-tests` first", err)
	}
}

// open opens a python kernel on the shared server for one test.
func open(t testing.TB, mods ...func(*OpenRequest)) *Kernel {
	t.Helper()
	needPython(t)
	return openOn(t, shared.server, mods...)
}

func openOn(t testing.TB, s *Server, mods ...func(*OpenRequest)) *Kernel {
	t.Helper()
	req := OpenRequest{ID: newID(), Language: "python", Cwd: t.TempDir()}
	for _, mod := range mods {
		mod(&req)
	}
	k, err := s.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return k
}

// tape records what hooks are told and lets tests wait for it.
type tape struct {
	mu      sync.Mutex
	events  []any
	changed chan struct{} // closed and replaced at each event
}

func newTape() *tape { return &tape{changed: make(chan struct{})} }

func (p *tape) add(e any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *tape) OnInit(e hooks.Init)         { p.add(e) }
func (p *tape) OnStdout(e hooks.Output)     { p.add(stdout(e.Data)) }
func (p *tape) OnStderr(e hooks.Output)     { p.add(stderr(e.Data)) }
func (p *tape) OnResult(e hooks.Result)     { p.add(e) }
func (p *tape) OnStatus(e hooks.Status)     { p.add(e) }
func (p *tape) OnError(e hooks.Failure)     { p.add(e) }
func (p *tape) OnComplete(e hooks.Complete) { p.add(e) }

type (
	stdout string
	stderr string
)

func (p *tape) all() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]any(nil), p.events...)
}

func (p *tape) out() string {
	var b strings.Builder
	for _, e := range p.all() {
		if s, ok := e.(stdout); ok {
			b.WriteString(string(s))
		}
	}
	return b.String()
}

func (p *tape) err() string {
	var b strings.Builder
	for _, e := range p.all() {
		if s, ok := e.(stderr); ok {
			b.WriteString(string(s))
		}
	}
	return b.String()
}

func (p *tape) results() []hooks.Result {
	var rs []hooks.Result
	for _, e := range p.all() {
		if r, ok := e.(hooks.Result); ok {
			rs = append(rs, r)
		}
	}
	return rs
}

func (p *tape) statuses(state string) []hooks.Status {
	var ss []hooks.Status
	for _, e := range p.all() {
		if s, ok := e.(hooks.Status); ok && s.State == state {
			ss = append(ss, s)
		}
	}
	return ss
}

// wait returns when cond holds.
func (p *tape) wait(t testing.TB, cond func(*tape) bool) {
	t.Helper()
	limit := time.After(longest)
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if cond(p) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("waited in vain; events: %v", p.all())
		}
	}
}

func (p *tape) waitOut(t testing.TB, text string) {
	t.Helper()
	p.wait(t, func(p *tape) bool { return strings.Contains(p.out(), text) })
}

// cell runs code and returns what it told and how it ended.
func cell(t testing.TB, k *Kernel, code string) (*tape, error) {
	t.Helper()
	p := newTape()
	err := k.Execute(t.Context(), ExecuteRequest{Code: code}, p)
	for _, e := range p.all() {
		switch e.(type) {
		case hooks.Init, hooks.Failure, hooks.Complete:
			t.Errorf("a backend must not report %T", e)
		}
	}
	return p, err
}

// want runs code, which must succeed and print out.
func want(t testing.TB, k *Kernel, code, out string) *tape {
	t.Helper()
	p, err := cell(t, k, code)
	if err != nil {
		t.Fatalf("%.200s: %v\n%s", code, err, p.err())
	}
	if p.out() != out {
		t.Fatalf("%.200s printed %.1000q, want %.1000q", code, p.out(), out)
	}
	return p
}

// failed returns err as the failure it must be, with that name.
func failed(t testing.TB, err error, name string) *hooks.ExecError {
	t.Helper()
	var e *hooks.ExecError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a failure called %s", err, name)
	}
	if e.Name != name {
		t.Fatalf("got %v, want a failure called %s", err, name)
	}
	if len(e.Traceback) == 0 {
		t.Errorf("%s has no traceback", name)
	}
	return e
}

// sleeper is the command line of a process that no other test has, and sleeps for longer than any test takes.
func sleeper() string { return fmt.Sprintf("sleep 9797.%08d", rand.N(100_000_000)) }

// background runs code in a goroutine. The channel gives its end.
func background(t testing.TB, ctx context.Context, k *Kernel, req ExecuteRequest) (*tape, <-chan error) {
	t.Helper()
	p, done := newTape(), make(chan error, 1)
	go func() { done <- k.Execute(ctx, req, p) }()
	return p, done
}
