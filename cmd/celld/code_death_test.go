package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/celld/celld/openapi"
	"golang.org/x/sys/unix"
)

// pidOf is the pid in a line of processesWith.
func pidOf(t *testing.T, line string) int {
	t.Helper()
	dir, _, _ := strings.Cut(line, " ")
	pid, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return pid
}

// jupyterServers returns the pids of the daemon's own Jupyter Servers.
func (d *daemon) jupyterServers() []int {
	var pids []int
	for _, p := range processesWith(d.run) {
		if strings.Contains(p, "/launch.py") {
			pids = append(pids, pidOf(d.t, p))
		}
	}
	return pids
}

// kill ends a process and waits until it is dead.
func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("open process %d: %v", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
	for sig == syscall.SIGKILL {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

func testKernelsDie(t *testing.T, shared *daemon) {
	id := shared.context(m{"cwd": "/usr", "envs": m{"OWN": "kept"}}).ID
	// fresh checks that the context works, with a new state, and that the first cell is told so.
	fresh := func(t *testing.T) {
		t.Helper()
		o := shared.in(t).cell(id, "import os; print('x' in globals(), os.getcwd(), os.environ['OWN'])")
		if o.out() != "False /usr kept\n" || !slices.Contains(o.states(), "kernel_restarted") {
			t.Errorf("printed %q, was told %v, ended with %+v", o.out(), o.states(), o.end.Error)
		}
		if o := shared.in(t).cell(id, "x = 1"); o.end.Error != nil || len(o.states()) > 0 {
			t.Errorf("the cell after it was told %v and ended with %+v", o.states(), o.end.Error)
		}
	}
	shared.says(id, "x = 1", "")
	for name, code := range map[string]string{
		"by os._exit": "import os; os._exit(3)",
		"by SIGKILL":  "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
		"by SIGSEGV":  "import ctypes; ctypes.string_at(0)",
	} {
		t.Run(name, func(t *testing.T) {
			d := shared.in(t)
			g := d.gate()
			s := d.begin(id, fmt.Sprintf("print('before', flush=True)\nopen(%q).read()\n", g.path)+code)
			s.until(prints("before\n")) // a kernel takes with it what it hasn't sent
			g.open()
			if o := s.rest(); o.failed() != "KernelDied" {
				t.Errorf("printed %q and ended with %+v", o.out(), o.end.Error)
			}
			fresh(t)
		})
	}
	for _, code := range []string{"exit()", "quit()"} {
		t.Run("by "+code, func(t *testing.T) {
			if o := shared.in(t).cell(id, "print('bye')\n"+code); o.out() != "bye\n" {
				t.Errorf("printed %q and ended with %+v", o.out(), o.end.Error)
			}
			fresh(t)
		})
	}
	t.Run("while cells wait, which run", func(t *testing.T) {
		d := shared.in(t)
		g := d.gate()
		first := d.begin(id, fmt.Sprintf("print('go', flush=True)\nimport os; open(%q).read(); os._exit(1)", g.path))
		first.until(prints("go"))
		second := d.begin(id, "print('second')")
		second.until(isState("queued"))
		g.open()
		if o := first.rest(); o.failed() != "KernelDied" {
			t.Errorf("ended with %+v", o.end.Error)
		}
		if o := second.rest(); o.out() != "second\n" || !slices.Contains(o.states(), "kernel_restarted") {
			t.Errorf("printed %q, was told %v, ended with %+v", o.out(), o.states(), o.end.Error)
		}
	})
	t.Run("while nothing runs", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "x = 1", "")
		o := d.cell(id, "import os; print(os.getpid())")
		pid, err := strconv.Atoi(strings.TrimSpace(o.out()))
		if err != nil {
			t.Fatal(err)
		}
		kill(t, pid, syscall.SIGKILL)
		if o := d.cell(id, "x = 2"); o.end.Error != nil && o.failed() != "KernelDied" || o.end.Error == nil && !slices.Contains(o.states(), "kernel_restarted") {
			t.Errorf("was told %v and ended with %+v", o.states(), o.end.Error)
		} else if o.end.Error == nil { // otherwise it came before anybody knew
			return
		}
		if o := d.cell(id, "print('fine')"); o.out() != "fine\n" || !slices.Contains(o.states(), "kernel_restarted") {
			t.Errorf("printed %q, was told %v, ended with %+v", o.out(), o.states(), o.end.Error)
		}
	})
	t.Run("and what they started dies with their context", func(t *testing.T) {
		d := shared.in(t)
		c := d.context()
		path, gone := pipe(t)
		d.says(c.ID, fmt.Sprintf("import subprocess\nfor text in ['exec sleep 97.64', '(setsid sleep 97.64 &)', 'trap \"\" TERM INT; sleep 97.64']:\n"+
			" subprocess.Popen(['bash', '-c', text], stdout=open(%q, 'w'), start_new_session=True)\nprint('up')", path), "up\n")
		if status := d.call("DELETE", "/code/contexts/"+c.ID, nil, nil); status != http.StatusOK {
			t.Errorf("delete: %d", status)
		}
		gone()
	})
}

func TestJupyterServerFails(t *testing.T) {
	t.Parallel()
	d := start(t, launch{})
	d.python()
	t.Run("killed under ten running cells", func(t *testing.T) { diesUnderTenCells(t, d.in(t)) })
	t.Run("hung", func(t *testing.T) { hangs(t, d.in(t)) })
}

func diesUnderTenCells(t *testing.T, d *daemon) {
	var contexts [10]codeContext
	var wg sync.WaitGroup
	for i := range contexts {
		wg.Go(func() {
			if status := d.call("POST", "/code/context", m{"language": "python"}, &contexts[i]); status != http.StatusOK {
				t.Errorf("make a context: %d", status)
			}
		})
	}
	wg.Wait()
	path, gone := pipe(t)
	var running [10]*stream
	for i, c := range contexts {
		running[i] = d.begin(c.ID, fmt.Sprintf("held = open(%q, 'w'); x = 1\nimport subprocess; child = subprocess.Popen(['sleep', '97.65'], stdout=held)\n", path)+forever)
	}
	for _, s := range running {
		s.until(prints("go"))
	}
	servers := d.jupyterServers()
	if len(servers) != 1 {
		t.Fatalf("servers %v", servers)
	}
	kill(t, servers[0], syscall.SIGKILL)
	begin := time.Now()
	for _, s := range running {
		if o := s.rest(); o.failed() != "JupyterUnavailable" && o.failed() != "KernelDied" {
			t.Errorf("ended with %+v", o.end.Error)
		}
	}
	errors := time.Since(begin)
	for _, c := range contexts {
		wg.Go(func() {
			o := d.cell(c.ID, "print('x' in globals())")
			if o.out() != "False\n" || !slices.Contains(o.states(), "kernel_restarted") {
				t.Errorf("printed %q, was told %v, ended with %+v", o.out(), o.states(), o.end.Error)
			}
		})
	}
	wg.Wait()
	t.Logf("ten errors after %v, ten usable contexts after %v", errors, time.Since(begin))
	gone() // the ten kernels and what they had started
	if servers := d.jupyterServers(); len(servers) != 1 {
		t.Errorf("then there are the servers %v", servers)
	}
	if kernels := d.kernels(); len(kernels) != 10 { // the default context's was not needed
		t.Errorf("then there are %d kernels: %v", len(kernels), kernels)
	}
}

func hangs(t *testing.T, d *daemon) {
	id := d.python()
	d.says(id, "x = 1", "")
	server := d.jupyterServers()[0]
	kill(t, server, syscall.SIGSTOP)
	fd, err := unix.PidfdOpen(server, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if o := d.cell(id, "print('x' in globals())"); o.failed() != "JupyterUnavailable" {
		t.Errorf("ended with %+v", o.end.Error)
	}
	for range 20 { // until another has started
		if o := d.cell(id, "print('x' in globals())"); o.failed() != "JupyterUnavailable" {
			if o.out() != "False\n" || o.end.Error != nil {
				t.Errorf("printed %q and ended with %+v", o.out(), o.end.Error)
			}
			break
		}
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); n != 1 {
		t.Errorf("the hung server still lives: %d %v", n, err)
	}
}

func TestJupyterServerIsMissingAndThenThere(t *testing.T) {
	t.Parallel()
	prefix, home := t.TempDir(), t.TempDir()
	d := start(t, launch{args: []string{"--prefix=" + prefix}, env: []string{"PATH=/usr/bin:/bin", "HOME=" + home}})
	var e struct{ Code, Message string }
	for path, body := range map[string]m{
		"/code":         {"context": m{"language": "python"}, "code": "1"},
		"/code/context": {"language": "python"},
	} {
		status := d.call("POST", path, body, &e)
		if status != http.StatusServiceUnavailable || !strings.Contains(e.Message, "jupyter-server") || !strings.Contains(e.Message, "make setup") {
			t.Errorf("%s: %d %+v", path, status, e)
		}
	}
	var info struct {
		Languages []struct {
			Name, Reason, Hint string
			Available          bool
		}
	}
	d.call("GET", "/version", nil, &info)
	told := false
	for _, l := range info.Languages {
		told = told || l.Name == "python" && !l.Available && strings.Contains(l.Reason, "jupyter-server")
	}
	if !told {
		t.Errorf("version: %+v", info)
	}
	if o := d.command("echo commands work"); o.code != 0 {
		t.Errorf("ended with %+v", o.end.Error)
	}
	if err := os.Symlink(filepath.Join(prefixDir(t), "python"), filepath.Join(prefix, "python")); err != nil {
		t.Fatal(err)
	}
	d.says(d.python(), "print('there now')", "there now\n")
	t.Run("a kernel that can't start is refused", func(t *testing.T) { brokenKernel(t, d.in(t), home) })
}

// TestJupyterServerThatHangsAtItsStart: every answer comes soon, and the start goes on meanwhile.
func TestJupyterServerThatHangsAtItsStart(t *testing.T) {
	t.Parallel()
	prefix, real := t.TempDir(), filepath.Join(prefixDir(t), "python/bin/python")
	bin := filepath.Join(prefix, "python/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	gate, open := filepath.Join(prefix, "gate"), filepath.Join(prefix, "open")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"python":         fmt.Sprintf("#!/bin/sh\n[ -e %s ] || read x <%s\nexec %s \"$@\"\n", open, gate, real),
		"jupyter-server": "#!" + filepath.Join(bin, "python") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := start(t, launch{args: []string{"--prefix=" + prefix}})
	for path, body := range map[string]m{
		"/code":         {"context": m{"language": "python"}, "code": "1"},
		"/code/context": {"language": "python"},
	} {
		var e openapi.Error
		if status := d.call("POST", path, body, &e); status != http.StatusServiceUnavailable || !strings.Contains(e.Message, "hangs") {
			t.Errorf("%s: %d %+v", path, status, e)
		}
	}
	var info openapi.VersionInfo
	d.call("GET", "/version", nil, &info)
	for _, l := range info.Languages {
		if l.Name == "python" && (l.Available || l.Reason == nil || !strings.Contains(*l.Reason, "hangs")) {
			t.Errorf("version: %+v", l)
		}
	}
	if err := os.WriteFile(open, nil, 0o644); err != nil { // for a start after this one
		t.Fatal(err)
	}
	if w, err := os.OpenFile(gate, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	} else {
		defer w.Close()
		if _, err := w.WriteString("go\n"); err != nil {
			t.Fatal(err)
		}
	}
	d.says(d.python(), "print('there now')", "there now\n")
}

// brokenKernel asks for a kernel that can't start.
func brokenKernel(t *testing.T, d *daemon, home string) {
	dir := filepath.Join(home, ".local/share/jupyter/kernels/broken")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const spec = `{"argv": ["/bin/false", "{connection_file}"], "display_name": "Broken", "language": "broken"}`
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	d.refused(http.StatusServiceUnavailable, "POST", "/code", m{"context": m{"language": "broken"}, "code": "1"})
	d.refused(http.StatusServiceUnavailable, "POST", "/code/context", m{"language": "broken"})
	if list := d.contexts("broken"); len(list) > 0 {
		t.Errorf("listed %v", list)
	}
	d.says(d.python(), "print('fine')", "fine\n")
}
