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

	"github.com/celld/celld/hooks"
)

// freshly checks that the next cell works on a kernel without v and is told that the state was lost.
func freshly(t *testing.T, k *Kernel) {
	t.Helper()
	p := want(t, k, "print('v' in globals())", "False\n")
	if n := len(p.statuses(hooks.StateKernelRestarted)); n != 1 {
		t.Errorf("told %d times of the lost state: %v", n, p.all())
	}
	p = want(t, k, "v = 1; print(v)", "1\n")
	if n := len(p.statuses(hooks.StateKernelRestarted)); n != 0 {
		t.Errorf("told again: %v", p.all())
	}
}

func TestDeathOfTheKernelIsOneFailure(t *testing.T) {
	k := open(t)
	gate := filepath.Join(k.Cwd(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, die := range []string{"import os; os._exit(3)", "import os,signal; os.kill(os.getpid(), signal.SIGKILL)"} {
		want(t, k, "v = 1", "")
		// What it has printed is on its way in another process until it is here.
		p, done := background(t, t.Context(), k, ExecuteRequest{Code: "print('before')\nwith open('gate') as f: f.read()\n" + die})
		p.waitOut(t, "before\n")
		if err := os.WriteFile(gate, nil, 0); err != nil {
			t.Fatal(err)
		}
		failed(t, <-done, nameDied)
		if p.out() != "before\n" {
			t.Errorf("%s: printed %q", die, p.out())
		}
		freshly(t, k)
	}
}

func TestExitEndsTheCellAndTheKernel(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	for _, code := range []string{"exit()", "quit()"} {
		want(t, k, code, "")
		freshly(t, k)
	}
}

func TestSysExitIsAFailureAndKeepsTheKernel(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	_, err := cell(t, k, "import sys; sys.exit(3)")
	failed(t, err, "SystemExit")
	want(t, k, "print(v)", "1\n")
}

func TestDeathBetweenCellsIsToldToTheNext(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	if err := syscall.Kill(kernelPID(t, k), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.lost // the server has noticed
	freshly(t, k)
}

// kernelPID asks the kernel for its pid.
func kernelPID(t *testing.T, k *Kernel) int {
	t.Helper()
	p, err := cell(t, k, "import os; print(os.getpid())")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(p.out()))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRestartBySomebodyElseEndsTheCell(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: "import time\nprint('go', flush=True)\ntime.sleep(97)"})
	p.waitOut(t, "go")
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Restart(t.Context(), k.KernelID()); err != nil {
		t.Fatal(err)
	}
	failed(t, <-done, nameDied)
	freshly(t, k)
}

// TestRestartOfAKernelThatHangsEndsTheCell has somebody else restart a kernel that doesn't get to say that it goes.
func TestRestartOfAKernelThatHangsEndsTheCell(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	pid := kernelPID(t, k)
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: "import time\nprint('go', flush=True)\ntime.sleep(97)"})
	p.waitOut(t, "go")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Restart(t.Context(), k.KernelID()); err != nil {
		t.Fatal(err)
	}
	failed(t, <-done, nameDied)
	freshly(t, k)
}

func TestRestartBySomebodyElseIsToldToTheNextCell(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Restart(t.Context(), k.KernelID()); err != nil {
		t.Fatal(err)
	}
	// A cell that is sent before the old process's goodbye is here would end by it. It is here when the new process has
	// answered on the same way, if it has not ended the connection.
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	if c.meet(t.Context()) != nil {
		<-c.lost
	}
	freshly(t, k)
}

func TestKernelRemovedBySomebodyElseIsReplaced(t *testing.T) {
	k := open(t)
	want(t, k, "v = 1", "")
	id := k.KernelID()
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: "import time\nprint('go', flush=True)\ntime.sleep(97)"})
	p.waitOut(t, "go")
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.DeleteKernel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	failed(t, <-done, nameDied)
	freshly(t, k)
	if k.KernelID() == id {
		t.Error("the kernel is the same")
	}
}

func TestRestartKeepsIDDirectoryAndEnvironment(t *testing.T) {
	k := open(t, func(r *OpenRequest) { r.Env = map[string]string{"GREETING": "hé\n😀"} })
	const look = "import os; print([os.getcwd(), os.environ['GREETING'], 'v' in globals()])"
	wantOut := fmt.Sprintf("['%s', 'hé\\n😀', %%s]\n", k.Cwd())
	want(t, k, look+"; v = 1", fmt.Sprintf(wantOut, "False"))
	id := k.KernelID()
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: "import time\nprint('go', flush=True)\ntime.sleep(97)"})
	p.waitOut(t, "go")
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	failed(t, <-done, nameDied)
	next := want(t, k, look, fmt.Sprintf(wantOut, "False"))
	if len(next.statuses(hooks.StateKernelRestarted)) != 0 {
		t.Error("who asked for a restart is told of it")
	}
	if c := next.statuses(hooks.StateCount); len(c) != 1 || c[0].Count != 1 {
		t.Errorf("count %+v", c)
	}
	if k.KernelID() != id {
		t.Error("the kernel's id changed")
	}
}

func TestCloseEndsTheRunningCellAndAllItsProcesses(t *testing.T) {
	needPython(t)
	k, err := shared.server.Open(t.Context(), OpenRequest{ID: newID(), Language: "python", Cwd: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	nap := sleeper()
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: `import subprocess, time
subprocess.Popen('` + nap + `'.split(), start_new_session=True)
subprocess.Popen(['sh', '-c', 'trap "" TERM; ` + nap + `; ` + nap + `'])
print('go', flush=True)
while True:
    try: time.sleep(97)
    except KeyboardInterrupt: pass`})
	p.waitOut(t, "go")
	if err := k.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	failed(t, <-done, nameStopped)
	if left := processes(t, nap); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	_, err = cell(t, k, "1")
	failed(t, err, nameStopped)
	if err := k.Close(t.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// TestServerKilledUnderTenCells kills the server with ten cells running in ten kernels.
func TestServerKilledUnderTenCells(t *testing.T) {
	needPython(t)
	m, s := ownServer(t)
	kernels := make([]*Kernel, 10)
	var wg sync.WaitGroup
	for i := range kernels {
		wg.Go(func() { kernels[i] = openOn(t, s) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	ends, nap := make([]<-chan error, len(kernels)), sleeper()
	for i, k := range kernels {
		var p *tape
		p, ends[i] = background(t, t.Context(), k, ExecuteRequest{Code: "import time\nv = 1\nprint('go', flush=True)\n!" + nap})
		p.waitOut(t, "go")
	}
	first := m.now
	if err := first.tree.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, end := range ends {
		failed(t, <-end, nameUnavailable)
	}
	for _, k := range kernels {
		wg.Go(func() { freshly(t, k) })
	}
	wg.Wait()
	<-first.gone
	if left := processes(t, nap); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if left := processes(t, first.dir+"/kernel-"); len(left) > 0 {
		t.Errorf("kernels left: %v", left)
	}
}

// ownServer is a server for one test.
func ownServer(t *testing.T, mods ...func(*ManagedConfig)) (*Managed, *Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "jt") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	cfg := managedConfig(dir)
	for _, mod := range mods {
		mod(&cfg)
	}
	m := newManaged(cfg)
	s := newServer(m)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		defer cancel()
		if err := errors.Join(s.Close(ctx), m.Close(ctx)); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := os.Stat(cfg.RunDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("run directory: %v", err)
		}
		os.RemoveAll(dir)
	})
	return m, s
}

func TestHungServerIsReplaced(t *testing.T) {
	needPython(t)
	m, s := ownServer(t)
	k := openOn(t, s)
	want(t, k, "v = 1", "")
	first := m.now
	if err := first.tree.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := cell(t, k, "print('lost')")
	failed(t, err, nameUnavailable)
	freshly(t, k)
	<-first.gone
}

func TestHungServerDoesNotHoldUpOpening(t *testing.T) {
	needPython(t)
	m, s := ownServer(t)
	want(t, openOn(t, s), "v = 1", "")
	if err := m.now.tree.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := s.Open(t.Context(), OpenRequest{ID: newID(), Language: "python", Cwd: t.TempDir()})
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	want(t, openOn(t, s), "print('back')", "back\n")
}
