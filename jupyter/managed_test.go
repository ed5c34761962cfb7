package jupyter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/celld/celld/internal/proctree"
)

func TestMissingServerIsNamed(t *testing.T) {
	empty := t.TempDir()
	m := newManaged(ManagedConfig{Prefix: empty, RunDir: filepath.Join(empty, "run"), Env: []string{"PATH=" + empty}, AnswerWithin: longest})
	defer m.Close(t.Context())
	for range 2 {
		_, err := m.Client(t.Context())
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "jupyter-server") || !strings.Contains(err.Error(), empty) {
			t.Errorf("got %v", err)
		}
	}
}

// fakeInstall makes a prefix whose jupyter-server belongs to a python that does what script says.
func fakeInstall(t *testing.T, script string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "python", "bin")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(dir, "python")
	for path, text := range map[string]string{python: "#!/bin/sh\n" + script + "\n", filepath.Join(dir, "jupyter-server"): "#!" + python + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Dir(filepath.Dir(dir))
}

func TestServerThatFailsToStartSaysWhy(t *testing.T) {
	prefix := fakeInstall(t, `cat >/dev/null; echo "Traceback" >&2; echo "ModuleNotFoundError: No module named 'jupyter_server'" >&2; exit 1`)
	m := newManaged(ManagedConfig{Prefix: prefix, RunDir: filepath.Join(prefix, "run"), AnswerWithin: longest})
	defer m.Close(t.Context())
	_, err := m.Client(t.Context())
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "No module named 'jupyter_server'") {
		t.Errorf("got %v", err)
	}
}

func TestServerThatFailsToStartSaysWhyWhoeverHoldsItsOutput(t *testing.T) {
	away := filepath.Join(t.TempDir(), "away")
	// The one that gets away has left its session, its environment and its parents when the server ends.
	prefix := fakeInstall(t, `cat >/dev/null; (env -i setsid sh -c 'echo $$ >`+away+`; exec sleep 9797' 3>&- &)
while ! [ -s `+away+` ]; do :; done; echo "No module named 'jupyter_server'" >&2; exit 1`)
	m := newManaged(ManagedConfig{Prefix: prefix, RunDir: filepath.Join(prefix, "run"), AnswerWithin: longest})
	_, err := m.Client(t.Context())
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "No module named 'jupyter_server'") {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(away)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // else it proves nothing
		t.Error(err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestServerThatNeverStartsIsGivenUp(t *testing.T) {
	nap := sleeper()
	prefix := fakeInstall(t, `cat >/dev/null; `+nap)
	m := NewManaged(ManagedConfig{Prefix: prefix, RunDir: filepath.Join(prefix, "run"), AnswerWithin: 100 * time.Millisecond})
	if _, err := m.Client(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := processes(t, nap); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := m.Client(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestCloseWithoutTimeEndsTheServerAllTheSame(t *testing.T) {
	naps := []string{sleeper(), sleeper(), sleeper()}
	prefix := fakeInstall(t, fmt.Sprintf(`trap '' TERM; cat >/dev/null; echo ready >&3; setsid %s & %s; %s`, naps[0], naps[1], naps[2]))
	m := newManaged(ManagedConfig{Prefix: prefix, RunDir: filepath.Join(prefix, "run"), AnswerWithin: longest})
	if _, err := m.Client(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	for _, what := range naps {
		if left := processes(t, what); len(left) > 0 {
			t.Errorf("left of %s: %v", what, left)
		}
	}
	if _, err := os.Stat(filepath.Join(prefix, "run")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run directory: %v", err)
	}
}

func TestServerThatHangsAtItsStartIsToldOf(t *testing.T) {
	prefix := fakeInstall(t, `cat >/dev/null; `+sleeper())
	m := newManaged(ManagedConfig{Prefix: prefix, RunDir: filepath.Join(prefix, "run"), AnswerWithin: longest})
	defer m.Close(t.Context())
	for range 2 {
		if _, err := m.Client(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "hangs") {
			t.Errorf("got %v", err)
		}
	}
}

func TestServerThatStartsSlowlyIsWaitedFor(t *testing.T) {
	needPython(t)
	found, err := Locate(prefix(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := fakeInstall(t, fmt.Sprintf(`timeout 5 sh -c 'while :; do :; done'; exec %s "$@"`, found.Python))
	m := newManaged(ManagedConfig{Prefix: p, RunDir: filepath.Join(t.TempDir(), "run"), AnswerWithin: longest})
	defer m.Close(t.Context())
	c, err := m.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRunDirectoryThatIsTooDeepIsNamed(t *testing.T) {
	needPython(t)
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	m := newManaged(ManagedConfig{Prefix: prefix(), RunDir: deep, AnswerWithin: longest})
	defer m.Close(t.Context())
	if _, err := m.Client(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
}

func TestServerIsStartedOnceForAll(t *testing.T) {
	needPython(t)
	m, _ := ownServer(t)
	clients := make([]*Client, 8)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			var err error
			if clients[i], err = m.Client(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range clients {
		if c != clients[0] {
			t.Fatal("different clients")
		}
	}
	if m.count != 1 {
		t.Errorf("started %d times", m.count)
	}
}

func TestDeadServerIsStartedAgain(t *testing.T) {
	needPython(t)
	m, _ := ownServer(t)
	first, err := m.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.now.tree.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-m.now.tree.Done()
	second, err := m.Client(t.Context())
	if err != nil || second == first {
		t.Fatalf("%v", err)
	}
	if err := second.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeftInTMPDIR looks at what servers and kernels leave there, however they end.
func TestNothingIsLeftInTMPDIR(t *testing.T) {
	needPython(t)
	for how, end := range map[string]func(*Managed) error{
		"closed": func(m *Managed) error { return m.Close(t.Context()) },
		"killed": func(m *Managed) error {
			err := m.now.tree.Signal(syscall.SIGKILL)
			<-m.now.gone
			return err
		},
	} {
		tmp := t.TempDir()
		m, s := ownServer(t, func(c *ManagedConfig) { c.Env = proctree.Overlay(c.Env, "TMPDIR="+tmp) })
		k := openOn(t, s)
		want(t, k, "import tempfile; print(tempfile.gettempdir())", tmp+"\n") // the kernel's is where it was said to be
		if err := end(m); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v", how, left, err)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := openLog(path)
	l.copy(r)
	line := []byte(strings.Repeat("x", 999) + "\n")
	for range 5000 {
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.WriteString("the end\n\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got := l.lastLine(); got != "the end" {
		t.Errorf("last line %q", got)
	}
	l.Close()
	for _, p := range []string{path, path + ".1"} {
		if fi, err := os.Stat(p); err != nil || fi.Size() > maxLog+64<<10 {
			t.Errorf("%v, %v", fi, err)
		}
	}
}
