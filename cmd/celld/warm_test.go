package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// warmth asks how many warm kernels there are of Python.
func (d *daemon) warmth() (ready, wanted int, memory float64) {
	d.t.Helper()
	var got struct {
		Warm []struct {
			Language      string
			Wanted, Ready int
			Memory        float64 `json:"memory_mib"`
		} `json:"warm_kernels"`
	}
	if status := d.call("GET", "/metrics", nil, &got); status != 200 {
		d.t.Fatal(status)
	}
	for _, w := range got.Warm {
		if w.Language == "python" {
			return w.Ready, w.Wanted, w.Memory
		}
	}
	return 0, 0, 0
}

// warm returns when n kernels are ready.
func (d *daemon) warm(n int) {
	d.t.Helper()
	for s := d.open("/metrics/watch", nil); ; { // a sample a second
		if ready, _, _ := d.warmth(); ready == n {
			s.close()
			return
		}
		if _, ok := s.next(); !ok {
			d.t.Fatalf("no %d warm kernels\n%s", n, d.log.String())
		}
	}
}

// ofKernels returns the pids of the daemon's Python kernels, the oldest first.
func (d *daemon) ofKernels() []int {
	var pids []int
	for _, line := range processesWith(d.run) {
		var pid int
		if _, err := fmt.Sscanf(line, "/proc/%d ", &pid); err == nil && strings.Contains(line, "kernel.py") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestWarmKernels has contexts get kernels that were started ahead, and nobody see it.
func TestWarmKernels(t *testing.T) {
	cold := start(t, launch{})
	cold.python()
	look := "import os, sys; print(sorted(n for n in globals() if n not in ('os', 'sys')), In, Out, list(map(str, _dh)) == [os.getcwd()], type(_dh[0]), " +
		"len(list(get_ipython().history_manager.get_range(output=True))), sys.path, os.getcwd() == os.environ.get('WANT'), sorted(os.environ))"
	there := filepath.Join(cold.ws, "there")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	asked := m{"cwd": there, "envs": m{"WANT": there, "A": "é x\n'\""}}
	session := func(d *daemon, c codeContext) {
		t.Helper()
		d.says(c.ID, "import os; print(os.environ['JPY_SESSION_NAME'])", there+"/"+c.ID+".ipynb\n")
	}
	reference := cold.context(asked)
	want := cold.cell(reference.ID, look)
	session(cold, reference)
	if want.failed() != "" || !strings.Contains(want.out(), " True ") {
		t.Fatalf("%+v", want.events)
	}

	d := start(t, launch{args: []string{"--warm", "python=2,nothing=1"}})
	d.warm(2)
	d.log.await(t, "start a kernel ahead")
	if _, wanted, memory := d.warmth(); wanted != 2 || memory < 20 {
		t.Errorf("%d wanted, %g MiB", wanted, memory)
	}
	first := d.ofKernels()
	if len(first) != 2 {
		t.Fatalf("kernels %v", first)
	}
	c := d.context(asked)
	o := d.cell(c.ID, look)
	if c.Cwd != there || o.out() != want.out() {
		t.Errorf("in %s a warm kernel says\n%sand a cold one\n%s", c.Cwd, o.out(), want.out())
	}
	for _, e := range o.events {
		if e.Type == "execution_count" && e.Count != 1 || e.Type == "status" {
			t.Errorf("%+v", e)
		}
	}
	session(d, c)
	d.says(c.ID, fmt.Sprintf("print(os.getpid() in %v)", strings.ReplaceAll(fmt.Sprint(first), " ", ", ")), "True\n")
	d.says(c.ID, "import subprocess\nprint(subprocess.run('echo $WANT; pwd', shell=True, capture_output=True, text=True).stdout)", there+"\n"+there+"\n\n")

	t.Run("the directory and environment outlive the process", func(t *testing.T) {
		d := d.in(t)
		where := "import os; print(os.getcwd(), os.environ['WANT'])"
		if status := d.call("POST", "/code/contexts/"+c.ID+"/restart", nil, nil); status != 200 {
			t.Fatal(status)
		}
		d.says(c.ID, where, there+" "+there+"\n")
		if o := d.cell(c.ID, "os._exit(1)"); o.failed() != "KernelDied" {
			t.Errorf("%+v", o.end)
		}
		if o := d.cell(c.ID, where); o.out() != there+" "+there+"\n" {
			t.Errorf("%+v", o.events)
		}
	})
	t.Run("dead kernels are not handed out", func(t *testing.T) {
		d := d.in(t)
		d.warm(2)
		for _, pid := range d.ofKernels() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		d.says(d.context().ID, "print('alive')", "alive\n")
		d.warm(2)
		d.says(d.context().ID, "print('again')", "again\n")
	})
	t.Run("the server's death ends them", func(t *testing.T) {
		d := d.in(t)
		d.warm(2)
		for _, line := range processesWith(d.run) {
			var pid int
			if _, err := fmt.Sscanf(line, "/proc/%d ", &pid); err == nil && strings.Contains(line, "launch.py") {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		d.says(d.context().ID, "print('alive')", "alive\n")
		d.warm(2)
	})
}

// TestBadWarmIsRefused starts celld with what can't be meant.
func TestBadWarmIsRefused(t *testing.T) {
	for _, bad := range []map[string]int{{"python": -1}, {"python": 60, "javascript": 5}, {"": 1}} {
		s := serveCmd{Warm: bad, Workspace: t.TempDir(), Prefix: "/", DataDir: t.TempDir()}
		if err := s.check(); err == nil || !strings.Contains(err.Error(), "--warm") {
			t.Errorf("%v: %v", bad, err)
		}
	}
	dir := t.TempDir()
	out, err := runToEnd(t, "serve", "--listen=127.0.0.1:0", "--warm=sh=1", "--data-dir="+dir+"/d", "--run-dir="+dir+"/r")
	if err == nil || !strings.Contains(out, "--warm: sh runs in no kernel") {
		t.Errorf("%v %s", err, out)
	}
}
