package main

import (
	"slices"
	"strings"
	"testing"
)

// testBrokenStreams puts things in the place of Python's standard streams: whatever they are, cells end and run.
func testBrokenStreams(t *testing.T, shared *daemon) {
	id := shared.context().ID
	shared.says(id, "import sys\nout, err = sys.stdout, sys.stderr\nclass Bad:\n def write(self, x): pass\n def flush(self): raise OSError('no')\n"+
		"class Worse(Bad):\n def flush(self): raise SystemExit", "")
	for name, code := range map[string]string{
		"None":         "sys.stdout = sys.stderr = None",
		"a bad flush":  "sys.stdout = sys.stderr = Bad()",
		"an exit":      "sys.stdout = Worse()",
		"no stream":    "sys.stdout = sys.stderr = object()",
		"closed":       "sys.stdout.close(); sys.stderr.close()",
		"closed other": "import io\nsys.stdout = io.StringIO()\nsys.stdout.close()",
	} {
		t.Run(name, func(t *testing.T) {
			d := shared.in(t)
			if o := d.cell(id, code); o.end.Error != nil {
				t.Errorf("ended with %+v", o.end.Error)
			}
			if o := d.cell(id, "6 * 7"); name != "an exit" && (len(o.results) != 1 || o.end.Error != nil) {
				t.Errorf("%+v", o.events)
			}
			if o := d.cell(id, "1/0"); name != "an exit" && o.failed() != "ZeroDivisionError" {
				t.Errorf("%+v", o.events)
			}
			d.says(id, "sys.stdout, sys.stderr = out, err\nprint('fine')", "fine\n")
		})
	}
	t.Run("deleted", func(t *testing.T) {
		d := shared.in(t)
		d.cell(id, "del sys.stdout, sys.stderr")
		d.says(id, "sys.stdout, sys.stderr = out, err\nprint('fine')", "fine\n")
	})
	t.Run("one that passes on what it gets", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "class Tee:\n def write(self, x): out.write(x.upper())\n def flush(self): out.flush()\nsys.stdout = Tee()\nprint('a')", "A\n")
		d.says(id, "print('b')", "B\n")
		d.says(id, "sys.stdout = out", "")
	})
}

// testEndsAreLost breaks a kernel so that the ends of cells don't come: it is restarted, and that is told.
func testEndsAreLost(t *testing.T, d *daemon) {
	id := d.context().ID
	d.says(id, "x = 1", "")
	if o := d.cell(id, "get_ipython().kernel.shell_handlers['execute_request'] = lambda *a: None"); o.end.Error != nil {
		t.Fatalf("ended with %+v", o.end.Error)
	}
	for range 2 {
		if o := d.cell(id, "print(x)"); o.failed() != "JupyterUnavailable" || !strings.Contains(o.end.Error.Evalue, "the end of the cell never came") {
			t.Errorf("%+v ended with %+v", o.events, o.end.Error)
		}
	}
	o := d.cell(id, "print('x' in globals())")
	if o.out() != "False\n" || o.end.Error != nil || !slices.Contains(o.states(), "kernel_restarted") {
		t.Errorf("%+v ended with %+v", o.events, o.end.Error)
	}
}

// testLargeResults shows what is larger than a result may be: the cell runs on and ends with one error that says so.
func testLargeResults(t *testing.T, shared *daemon) {
	d := shared.unchecked()
	o := d.cell(d.context().ID, "from IPython.display import HTML, display\ndisplay(HTML('z' * (64 << 20)))\nprint('after')")
	if o.failed() != "ResultTooLarge" || !strings.Contains(o.end.Error.Evalue, "the limit is 64 MiB") || types(o) != "stdout" || o.out() != "after\n" {
		t.Errorf("events %s, ended with %+v", types(o), o.end.Error)
	}
}
