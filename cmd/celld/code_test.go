package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/celld/celld/internal/proctree"
)

// in is the same daemon for another test: a subtest fails by itself.
func (d *daemon) in(t *testing.T) *daemon {
	return &daemon{t: t, url: d.url, data: d.data, run: d.run, ws: d.ws, cmd: d.cmd, log: d.log, http: d.http, done: d.done}
}

// unchecked is the same daemon through a client that doesn't look at every event: for large ones.
func (d *daemon) unchecked() *daemon {
	other := d.in(d.t)
	other.http = http.DefaultClient
	return other
}

// codeContext is a context as the API describes it.
type codeContext struct{ ID, Language, Cwd string }

// python returns the id of Python's default context. The Jupyter Server may take longer to start than an answer may
// take: then it is asked again.
func (d *daemon) python(header ...string) (id string) {
	d.t.Helper()
	for range 20 {
		resp := d.do("POST", "/code", m{"context": m{"language": "python"}, "code": "pass"}, header...)
		if resp.StatusCode == http.StatusServiceUnavailable {
			resp.Body.Close()
			continue
		}
		s := &stream{t: d.t, body: resp.Body, frames: bufio.NewReader(resp.Body), cancel: func() {}}
		defer s.close()
		return s.rest().init.Text
	}
	d.t.Fatalf("the Jupyter Server doesn't start\n%s", d.log.String())
	return ""
}

// context makes a Python context that is deleted at the end of the test.
func (d *daemon) context(more ...m) codeContext {
	d.t.Helper()
	var c codeContext
	if status := d.call("POST", "/code/context", with(m{"language": "python"}, more), &c); status != http.StatusOK || c.ID == "" {
		d.t.Fatalf("make a context: %d %+v", status, c)
	}
	d.t.Cleanup(func() { // the test's own context is over by now
		req, err := http.NewRequest("DELETE", d.url+"/code/contexts/"+c.ID, nil)
		if err != nil {
			d.t.Error(err)
			return
		}
		resp, err := d.http.Do(req)
		if err != nil {
			d.t.Error(err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
			d.t.Errorf("delete context: %d", resp.StatusCode)
		}
	})
	return c
}

// begin starts a cell in a context.
func (d *daemon) begin(id, code string, more ...m) *stream {
	d.t.Helper()
	return d.open("/code", with(m{"context": m{"id": id}, "code": code}, more))
}

// cell runs a cell in a context to its end.
func (d *daemon) cell(id, code string, more ...m) *outcome {
	d.t.Helper()
	return d.begin(id, code, more...).rest()
}

// says runs a cell that must succeed and print exactly this.
func (d *daemon) says(id, code, want string) {
	d.t.Helper()
	o := d.cell(id, code)
	if o.end.Error != nil || o.out() != want {
		d.t.Errorf("%s: printed %.200q and ended with %+v, want %q", code, o.out(), o.end.Error, want)
	}
}

// states returns the states of the status events, in order.
func (o *outcome) states() []string {
	var states []string
	for _, e := range o.events {
		if e.Type == "status" {
			states = append(states, e.State)
		}
	}
	return states
}

// contexts lists the contexts of a language, of all with "".
func (d *daemon) contexts(language string) []codeContext {
	d.t.Helper()
	path := "/code/contexts"
	if language != "" {
		path += "?language=" + language
	}
	var list []codeContext
	if status := d.call("GET", path, nil, &list); status != http.StatusOK {
		d.t.Fatalf("%s: %d", path, status)
	}
	return list
}

// kernels returns the kernel processes of the daemon.
func (d *daemon) kernels() []string {
	var found []string
	for _, p := range processesWith(d.run) {
		if strings.Contains(p, "/kernel-") { // its connection file
			found = append(found, p)
		}
	}
	return found
}

// One daemon serves all of these, for a Jupyter Server and kernels take their time to start.
func TestCode(t *testing.T) {
	t.Parallel()
	d := start(t, launch{args: []string{"--max-contexts=3"},
		env: []string{"CELLD_KEEP=2h", "EXECD_LOG_LEVEL=6", "OTEL_SERVICE_NAME=x", "JUPYTER_PATH=/nowhere", "JUPYTER_PORT=tcp://10.0.0.1:8888"}})
	d.python()
	for _, group := range []struct {
		name string
		run  func(*testing.T, *daemon)
	}{
		{"contexts", testContexts},
		{"cells' output", testCellOutput},
		{"rich output", testRichOutput},
		{"broken streams", testBrokenStreams},
		{"large results", testLargeResults},
		{"ends of cells are lost", testEndsAreLost},
		{"cells are interrupted", testCellsAreInterrupted},
		{"cells wait their turn", testCellsWaitTheirTurn},
		{"cells ask for input", testCellsAskForInput},
		{"kernels die", testKernelsDie},
	} {
		if status := d.call("DELETE", "/code/contexts?language=python", nil, nil); status != http.StatusOK {
			t.Fatalf("delete all contexts: %d", status)
		}
		t.Run(group.name, func(t *testing.T) { group.run(t, d.in(t)) })
	}
}

func testContexts(t *testing.T, shared *daemon) {
	t.Run("four first cells at once make one kernel", func(t *testing.T) {
		d := shared.in(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				o := d.code("python", "import threading\nlock = globals().setdefault('lock', threading.Lock())\nn = globals().get('n', 0) + 1")
				if o.end.Error != nil {
					t.Errorf("ended with %+v", o.end.Error)
				}
			})
		}
		wg.Wait()
		if o := d.code("py", "n"); len(o.results) != 1 || o.results[0].Results["text"] != "4" {
			t.Errorf("the default context counted %+v", o.results)
		}
		if list := d.contexts("python"); len(list) != 1 || len(d.kernels()) != 1 {
			t.Errorf("contexts %v, kernels %v", list, d.kernels())
		}
	})
	t.Run("the default context keeps its state", func(t *testing.T) {
		d := shared.in(t)
		first := d.code("python", "w = 3")
		second := d.code("Python3", "print(w)")
		if second.out() != "3\n" || first.init.Text != second.init.Text || first.init.ID == second.init.ID {
			t.Errorf("printed %q; init %+v, then %+v", second.out(), first.init, second.init)
		}
		if o := d.cell(first.init.Text, "w"); len(o.results) != 1 { // its id alone is enough
			t.Errorf("results %+v", o.results)
		}
	})
	t.Run("are described, listed once and gone when deleted", func(t *testing.T) {
		d := shared.in(t)
		dir := filepath.Join(d.ws, "work")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		c := d.context(m{"language": "PY", "cwd": "work"})
		if c.Language != "python" || c.Cwd != dir {
			t.Errorf("made %+v", c)
		}
		var same codeContext
		if status := d.call("GET", "/code/contexts/"+c.ID, nil, &same); status != http.StatusOK || same != c {
			t.Errorf("%d %+v, want %+v", status, same, c)
		}
		for _, language := range []string{"", "python", "py", "PYTHON"} {
			n := 0
			for _, x := range d.contexts(language) {
				if x == c {
					n++
				}
			}
			if n != 1 {
				t.Errorf("listed %d times as %q", n, language)
			}
		}
		if status := d.call("DELETE", "/code/contexts/"+c.ID, nil, nil); status != http.StatusOK {
			t.Errorf("delete: %d", status)
		}
		if slices.Contains(d.contexts(""), c) {
			t.Error("listed after it was deleted")
		}
		d.refused(http.StatusNotFound, "GET", "/code/contexts/"+c.ID, nil)
		d.refused(http.StatusNotFound, "DELETE", "/code/contexts/"+c.ID, nil)
		d.refused(http.StatusNotFound, "POST", "/code/contexts/"+c.ID+"/restart", nil)
		d.refused(http.StatusNotFound, "POST", "/code", m{"context": m{"id": c.ID}, "code": "1"})
		d.refused(http.StatusNotFound, "POST", "/code/input", m{"id": c.ID, "value": "x"})
		d.refused(http.StatusNotFound, "DELETE", "/code?id="+c.ID, nil)
	})
	t.Run("have a directory and an environment of their own", func(t *testing.T) {
		d := shared.in(t)
		dir := filepath.Join(d.ws, "été 漢")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		value := "a\nb'\"$HOME é"
		c := d.context(m{"cwd": dir, "envs": m{"OWN": value, "EMPTY": ""}})
		d.says(c.ID, "import os; print(os.getcwd()); print([os.environ['OWN'], os.environ['EMPTY']])",
			dir+"\n"+"['a\\nb\\'\"$HOME é', '']\n")
		d.says(c.ID, "import subprocess; print(subprocess.run('pwd; echo \"$OWN\"', shell=True, capture_output=True, text=True).stdout)", dir+"\n"+value+"\n\n")
		if o := d.code("python", "import os; print(os.environ.get('OWN'), os.getcwd())"); o.out() != "None "+d.ws+"\n" {
			t.Errorf("another context prints %q", o.out())
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
			t.Errorf("left in its directory: %v %v", names, err)
		}
	})
	t.Run("see nothing of the daemon's own environment", func(t *testing.T) {
		d := shared.in(t)
		const code = "import os; print(sorted(k for k in os.environ if k.startswith(('CELLD_', 'EXECD_', 'OTEL_', 'JUPYTER_'))))"
		if o := d.code("python", code); o.out() != fmt.Sprintf("['%s', '%s']\n", proctree.DaemonEnv, proctree.MarkerEnv) {
			t.Errorf("printed %q, %+v", o.out(), o.end.Error)
		}
	})
	t.Run("wrong requests are refused", func(t *testing.T) {
		d := shared.in(t)
		c := d.context()
		var e struct{ Message string }
		d.call("POST", "/code", m{"context": m{"language": "cobol"}, "code": "1"}, &e)
		if !strings.Contains(e.Message, "java, javascript, python, sql, typescript") {
			t.Errorf("an unknown language is told %q, without what there is", e.Message)
		}
		for _, body := range []any{
			m{"context": m{"language": "cobol"}, "code": "1"},
			m{"context": m{"language": "python"}, "code": ""},
			m{"context": m{"language": "python"}},
			m{"context": m{"id": c.ID, "language": "cobol"}, "code": "1"},
			m{"context": m{"id": c.ID, "language": "bash"}, "code": "1"},
			m{"context": m{"language": "python"}, "code": "1", "timeout": -1},
			m{"context": m{"language": "python"}, "code": "1", "on_busy": "maybe"},
			m{"code": "  "},
			`{"context": {"language": "python"}, "code": 1}`,
			`{`,
		} {
			d.refused(http.StatusBadRequest, "POST", "/code", body)
		}
		for _, body := range []any{
			m{}, m{"language": "cobol"}, m{"language": "python", "cwd": "/no/such"}, m{"language": "python", "cwd": "/etc/passwd"},
			m{"language": "python", "envs": m{"A B": "1"}}, m{"language": "python", "envs": m{"": "1"}},
			m{"language": "python", "envs": m{"A": "x\x00y"}}, "", "{",
		} {
			d.refused(http.StatusBadRequest, "POST", "/code/context", body)
		}
		d.refused(http.StatusNotFound, "GET", "/code/contexts/no-such", nil)
		d.refused(http.StatusNotFound, "GET", "/code/contexts/..%2f..%2fetc", nil)
		d.refused(http.StatusNotFound, "DELETE", "/code/contexts/no-such", nil)
		d.refused(http.StatusBadRequest, "DELETE", "/code/contexts", nil)
		d.refused(http.StatusNotFound, "DELETE", "/code?id=no-such", nil)
		d.refused(http.StatusBadRequest, "DELETE", "/code", nil)
		d.refused(http.StatusBadRequest, "POST", "/code/input", m{"value": "x"})
		d.refused(http.StatusNotFound, "POST", "/code", m{"context": m{"id": "no-such"}, "code": "1"})
		d.refused(http.StatusConflict, "POST", "/code/input", m{"id": c.ID, "value": "x"})
	})
	t.Run("are limited in number", func(t *testing.T) {
		d := shared.in(t)
		if status := d.call("DELETE", "/code/contexts?language=python", nil, nil); status != http.StatusOK {
			t.Fatalf("delete all: %d", status)
		}
		for range 3 {
			d.context()
		}
		d.refused(http.StatusTooManyRequests, "POST", "/code/context", m{"language": "python"})
		d.refused(http.StatusTooManyRequests, "POST", "/code", m{"context": m{"language": "python"}, "code": "1"})
		if list := d.contexts(""); len(list) != 3 {
			t.Errorf("there are %v", list)
		}
		last := d.contexts("")[2]
		d.call("DELETE", "/code/contexts/"+last.ID, nil, nil)
		d.says(d.context().ID, "print('room again')", "room again\n")
	})
	t.Run("begin empty, however many there were before", func(t *testing.T) {
		d := shared.in(t)
		d.call("DELETE", "/code/contexts?language=python", nil, nil)
		for range 3 {
			c := d.context()
			d.says(c.ID, "print('v' in globals()); v = 1", "False\n")
			if status := d.call("DELETE", "/code/contexts/"+c.ID, nil, nil); status != http.StatusOK {
				t.Errorf("delete: %d", status)
			}
		}
		if list := d.contexts(""); list == nil || len(list) > 0 {
			t.Errorf("listed %#v, want an empty array", list)
		}
		if left := d.kernels(); len(left) > 0 {
			t.Errorf("kernels left: %v", left)
		}
	})
	t.Run("a restart keeps id, directory and environment, not the state", func(t *testing.T) {
		d := shared.in(t)
		c := d.context(m{"cwd": "/usr", "envs": m{"KEPT": "yes"}})
		d.says(c.ID, "x = 1; import os; os.chdir('/'); print('set')", "set\n")
		running := d.begin(c.ID, "print('go', flush=True)\nimport time\nwhile True: time.sleep(0.05)")
		running.until(prints("go"))
		queued := d.begin(c.ID, "print('never')")
		queued.until(func(e event) bool { return e.State == "queued" })
		var again codeContext
		if status := d.call("POST", "/code/contexts/"+c.ID+"/restart", nil, nil); status != http.StatusOK {
			t.Errorf("restart: %d", status)
		}
		if d.call("GET", "/code/contexts/"+c.ID, nil, &again); again != c {
			t.Errorf("then it is %+v, want %+v", again, c)
		}
		if o := running.rest(); o.end.Type != "error" {
			t.Errorf("the running cell ended with %+v", o.end)
		}
		if o := queued.rest(); o.failed() != "CommandInterrupted" || o.out() != "" {
			t.Errorf("the queued cell printed %q and ended with %+v", o.out(), o.end)
		}
		d.says(c.ID, "import os; print('x' in globals(), os.getcwd(), os.environ['KEPT'])", "False /usr yes\n")
	})
	t.Run("the data directory and the workspace hold nothing of it", func(t *testing.T) {
		var names []string
		filepath.WalkDir(shared.ws, func(path string, _ os.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "ipynb") }) {
			t.Errorf("notebooks were left: %v", names)
		}
	})
}
