package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// forever is a cell that prints go and then runs until it is interrupted.
const forever = "print('go', flush=True)\nimport time\nwhile True: time.sleep(0.05)"

func isState(state string) func(event) bool { return func(e event) bool { return e.State == state } }

// pipe makes a FIFO that a cell and what it starts can hold open; the returned function waits until nobody does.
func pipe(t *testing.T) (path string, gone func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return path, func() {
		t.Helper()
		f.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, f); err != nil {
			t.Errorf("somebody still holds %s: %v", path, err)
		}
	}
}

func testCellsAreInterrupted(t *testing.T, shared *daemon) {
	id := shared.context().ID
	interrupt := func(t *testing.T, id string) {
		t.Helper()
		if status := shared.in(t).call("DELETE", "/code?id="+id, nil, nil); status != http.StatusOK {
			t.Errorf("interrupt %s: %d", id, status)
		}
	}
	t.Run("by the context's id, and no later cell is hit", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "v = 5", "")
		s := d.begin(id, forever)
		s.until(prints("go"))
		interrupt(t, id)
		if o := s.rest(); o.failed() != "KeyboardInterrupt" {
			t.Errorf("ended with %+v", o.end)
		}
		for range 20 {
			d.says(id, "print(v)", "5\n")
		}
		interrupt(t, id) // idle
		d.says(id, "print(v)", "5\n")
	})
	t.Run("by the execution's id, the one that runs or one that waits", func(t *testing.T) {
		d := shared.in(t)
		first := d.begin(id, forever)
		begun := first.until(func(e event) bool { return e.Type == "init" })
		first.until(prints("go"))
		second := d.begin(id, "print('second')")
		waiting := second.until(func(e event) bool { return e.Type == "init" })
		second.until(isState("queued"))
		third := d.begin(id, "print('third')")
		third.until(isState("queued"))
		interrupt(t, waiting.ID)
		if o := second.rest(); o.failed() != "CommandInterrupted" || o.out() != "" {
			t.Errorf("the waiting cell printed %q and ended with %+v", o.out(), o.end)
		}
		interrupt(t, begun.ID)
		if o := first.rest(); o.failed() != "KeyboardInterrupt" {
			t.Errorf("the running cell ended with %+v", o.end)
		}
		if o := third.rest(); o.out() != "third\n" || o.end.Error != nil {
			t.Errorf("the next cell printed %q and ended with %+v", o.out(), o.end)
		}
		interrupt(t, begun.ID) // ended long ago: harms nothing
		d.says(id, "print('fine')", "fine\n")
	})
	t.Run("in a busy loop", func(t *testing.T) {
		s := shared.in(t).begin(id, "print('go', flush=True)\nwhile True: pass")
		s.until(prints("go"))
		interrupt(t, id)
		if o := s.rest(); o.failed() != "KeyboardInterrupt" {
			t.Errorf("ended with %+v", o.end)
		}
	})
	for name, code := range map[string]string{
		"by the shell": "!exec 3>%[1]s; echo up; sleep 97.61; sleep 97.61",
		"by a program": "import subprocess\nsubprocess.run('(sleep 97.62 & setsid sleep 97.62 & trap \"\" INT; echo up >&3; sleep 97.62) 3>&1 >%[1]s', shell=True)",
	} {
		t.Run("with what was started "+name, func(t *testing.T) {
			d := shared.in(t)
			path, gone := pipe(t)
			s := d.begin(id, fmt.Sprintf(code, path))
			s.until(prints("up"))
			interrupt(t, id)
			s.rest()
			gone()
			d.says(id, "print(v)", "5\n")
		})
	}
	t.Run("and what earlier cells started goes on", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "import subprocess, time\nearlier = subprocess.Popen(['sleep', '97.66'], start_new_session=True)\ntime.sleep(0.1)", "")
		s := d.begin(id, forever)
		s.until(prints("go"))
		interrupt(t, id)
		s.rest()
		d.says(id, "print(earlier.poll()); earlier.kill(); earlier.wait()", "None\n")
	})
	t.Run("when nothing else helps with their kernel", func(t *testing.T) {
		d := shared.in(t)
		c := d.context()
		s := d.begin(c.ID, "x = 1\nprint('go', flush=True)\nwhile True:\n try:\n  import time\n  while True: time.sleep(1)\n except KeyboardInterrupt: pass")
		s.until(prints("go"))
		next := d.begin(c.ID, "print('x' in globals())")
		next.until(isState("queued"))
		interrupt(t, c.ID)
		o := s.rest()
		if o.failed() != "KeyboardInterrupt" || !slices.Contains(o.states(), "kernel_restarted") {
			t.Errorf("ended with %+v after %v", o.end, o.states())
		}
		if o := next.rest(); o.out() != "False\n" || o.end.Error != nil {
			t.Errorf("the next cell printed %q and ended with %+v", o.out(), o.end)
		}
	})
	t.Run("with their client, or not", func(t *testing.T) {
		d := shared.in(t)
		path, gone := pipe(t)
		s := d.begin(id, fmt.Sprintf("held = open(%q, 'w')\ntry:\n print('go', flush=True)\n import time\n while True: time.sleep(0.05)\nfinally: held.close()", path))
		s.until(prints("go"))
		s.close()
		gone()
		d.says(id, "print(v)", "5\n")
		path, gone = pipe(t)
		s = d.begin(id, fmt.Sprintf("held = open(%q, 'w')\nprint('go', flush=True)\ntime.sleep(0.5)\nv = 6\nheld.close()", path), m{"on_disconnect": "continue"})
		s.until(prints("go"))
		s.close()
		gone()
		d.says(id, "print(v)", "6\n")
	})
	t.Run("by the deletion of their context", func(t *testing.T) {
		d := shared.in(t)
		c := d.context()
		path, gone := pipe(t)
		running := d.begin(c.ID, fmt.Sprintf("held = open(%q, 'w')\n", path)+forever)
		running.until(prints("go"))
		queued := d.begin(c.ID, "print('never')")
		queued.until(isState("queued"))
		if status := d.call("DELETE", "/code/contexts/"+c.ID, nil, nil); status != http.StatusOK {
			t.Errorf("delete: %d", status)
		}
		for _, s := range []*stream{running, queued} {
			if o := s.rest(); o.end.Type != "error" || strings.Contains(o.out(), "never") {
				t.Errorf("printed %q and ended with %+v", o.out(), o.end)
			}
		}
		gone()
	})
}

func testCellsWaitTheirTurn(t *testing.T, shared *daemon) {
	id := shared.context().ID
	// The cell whose deadline ends it runs beside the others, long enough to have printed something on any machine.
	limited := shared.context().ID
	late := shared.begin(limited, "kept = 1\nprint('first', flush=True)\nimport time\ntime.sleep(97.63); print('A')", m{"timeout": 15000})
	late.until(prints("first\n"))
	t.Run("twenty counters at once count to twenty", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "counter = 0", "")
		var mu sync.Mutex
		var seen []string
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				o := d.cell(id, "counter += 1; counter")
				mu.Lock()
				defer mu.Unlock()
				if len(o.results) == 1 {
					seen = append(seen, fmt.Sprintf("%2v", o.results[0].Results["text"]))
				}
			})
		}
		wg.Wait()
		slices.Sort(seen)
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprintf("%2d", i+1))
		}
		if !slices.Equal(seen, want) {
			t.Errorf("counted %v", seen)
		}
	})
	t.Run("in the order in which they came", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "order = []", "")
		g := d.gate()
		first := d.begin(id, fmt.Sprintf("print('go', flush=True)\nopen(%q).read()\norder.append(0)", g.path))
		first.until(prints("go"))
		var waiting []*stream
		for i := 1; i <= 5; i++ {
			s := d.begin(id, fmt.Sprintf("order.append(%d)", i))
			s.until(isState("queued"))
			waiting = append(waiting, s)
		}
		g.open()
		for _, s := range append([]*stream{first}, waiting...) {
			s.rest()
		}
		d.says(id, "print(order)", "[0, 1, 2, 3, 4, 5]\n")
	})
	t.Run("a failing cell aborts none that waits", func(t *testing.T) {
		d := shared.in(t)
		g := d.gate()
		first := d.begin(id, fmt.Sprintf("print('go', flush=True); open(%q).read(); 1/0", g.path))
		first.until(prints("go"))
		second := d.begin(id, "print('runs')")
		second.until(isState("queued"))
		g.open()
		if o := first.rest(); o.failed() != "ZeroDivisionError" {
			t.Errorf("ended with %+v", o.end)
		}
		if o := second.rest(); o.out() != "runs\n" || o.end.Error != nil {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end)
		}
	})
	t.Run("or are refused, as they wish", func(t *testing.T) {
		d := shared.in(t)
		s := d.begin(id, forever, m{"on_busy": "fail"})
		s.until(prints("go"))
		var e struct{ Code, Message string }
		status := d.call("POST", "/code", m{"context": m{"id": id}, "code": "1", "on_busy": "fail"}, &e)
		if status != http.StatusConflict || e.Code != "BUSY" {
			t.Errorf("%d %+v", status, e)
		}
		d.call("DELETE", "/code?id="+id, nil, nil)
		s.rest()
		if o := d.cell(id, "print('free')", m{"on_busy": "fail"}); o.out() != "free\n" {
			t.Errorf("printed %q", o.out())
		}
	})
	t.Run("and other contexts don't", func(t *testing.T) {
		d := shared.in(t)
		s := d.begin(id, forever)
		s.until(prints("go"))
		d.says(d.context().ID, "print('beside')", "beside\n")
		d.call("DELETE", "/code?id="+id, nil, nil)
		s.rest()
	})
	t.Run("waiting counts against the deadline", func(t *testing.T) {
		d := shared.in(t)
		s := d.begin(id, forever)
		s.until(prints("go"))
		o := d.cell(id, "print('never')", m{"timeout": 300})
		if o.failed() != "CellTimeout" || o.out() != "" || !slices.Equal(o.states(), []string{"queued"}) {
			t.Errorf("printed %q, was told %v, ended with %+v", o.out(), o.states(), o.end)
		}
		d.call("DELETE", "/code?id="+id, nil, nil)
		if o := s.rest(); o.failed() != "KeyboardInterrupt" {
			t.Errorf("the running cell ended with %+v", o.end)
		}
	})
	t.Run("a deadline ends the cell and no other", func(t *testing.T) {
		d := shared.in(t)
		if o := late.rest(); o.failed() != "CellTimeout" || o.out() != "" {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end)
		}
		d.says(limited, "print('B', kept)", "B 1\n")
		if o := d.cell(limited, "time.sleep(0.2); print('in time')", m{"timeout": 60000}); o.out() != "in time\n" {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end)
		}
	})
}

func testCellsAskForInput(t *testing.T, shared *daemon) {
	id := shared.context().ID
	asks := func(e event) bool { return e.Type == "input_request" }
	answer := func(t *testing.T, id, value string) {
		t.Helper()
		if status := shared.in(t).call("POST", "/code/input", m{"id": id, "value": value}, nil); status != http.StatusOK {
			t.Errorf("answer: %d", status)
		}
	}
	t.Run("and fail at once unless the client said that it answers", func(t *testing.T) {
		d := shared.in(t)
		for _, code := range []string{"input('name? ')", "import getpass; getpass.getpass()", "import pdb; pdb.set_trace()"} {
			if o := d.cell(id, code); o.failed() != "StdinNotImplementedError" {
				t.Errorf("%s: ended with %+v", code, o.end)
			}
		}
		d.says(id, "print('ok')", "ok\n")
	})
	t.Run("and get it, by the context's id or their own", func(t *testing.T) {
		d := shared.in(t)
		s := d.begin(id, "a = input('name? ')\nb = input()\nprint([a, b])", m{"stdin": true})
		begun := s.until(func(e event) bool { return e.Type == "init" })
		if e := s.until(asks); e.Prompt != "name? " {
			t.Errorf("asked %+v", e)
		}
		d.refused(http.StatusNotFound, "POST", "/code/input", m{"id": "no-such", "value": "x"})
		answer(t, id, "é\"'\\ 漢")
		s.until(asks)
		answer(t, begun.ID, "")
		if o := s.rest(); o.out() != "['é\"\\'\\\\ 漢', '']\n" || o.end.Error != nil {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end)
		}
		d.refused(http.StatusConflict, "POST", "/code/input", m{"id": id, "value": "x"})
		d.refused(http.StatusConflict, "POST", "/code/input", m{"id": begun.ID, "value": "x"})
	})
	t.Run("and passwords are marked", func(t *testing.T) {
		s := shared.in(t).begin(id, "import getpass; print(len(getpass.getpass('secret: ')))", m{"stdin": true})
		if e := s.until(asks); e.Prompt != "secret: " || !e.Password {
			t.Errorf("asked %+v", e)
		}
		answer(t, id, "12345")
		if o := s.rest(); o.out() != "5\n" {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end)
		}
	})
	t.Run("and can be interrupted meanwhile", func(t *testing.T) {
		d := shared.in(t)
		s := d.begin(id, "input('never answered')", m{"stdin": true})
		s.until(asks)
		if status := d.call("DELETE", "/code?id="+id, nil, nil); status != http.StatusOK {
			t.Errorf("interrupt: %d", status)
		}
		if o := s.rest(); o.failed() != "KeyboardInterrupt" {
			t.Errorf("ended with %+v", o.end)
		}
		d.refused(http.StatusConflict, "POST", "/code/input", m{"id": id, "value": "late"})
		d.says(id, "print('not the late answer')", "not the late answer\n")
		o := d.cell(id, "input('asks again? ')", m{"stdin": true, "timeout": 500})
		if o.failed() != "CellTimeout" {
			t.Errorf("ended with %+v", o.end)
		}
	})
	t.Run("and their client may leave and come back", func(t *testing.T) {
		d := shared.in(t)
		s := d.begin(id, "print(input('who? '))", m{"stdin": true, "on_disconnect": "continue"})
		begun := s.until(func(e event) bool { return e.Type == "init" })
		asked := s.until(asks)
		s.close()
		again := d.open(fmt.Sprintf("/executions/%s/events?after=%d", begun.ID, asked.EID-1), nil)
		again.until(asks)
		answer(t, begun.ID, "me")
		if o := again.rest(); o.out() != "me\n" {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end)
		}
	})
}
