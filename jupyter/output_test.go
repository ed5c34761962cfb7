package jupyter

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/celld/celld/hooks"
)

func TestFastPrintingLosesNothing(t *testing.T) {
	k := open(t)
	p, err := cell(t, k, "for i in range(60000): print(str(i).rjust(99,'x'))")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := range 60000 {
		s := fmt.Sprint(i)
		b.WriteString(strings.Repeat("x", 99-len(s)) + s + "\n")
	}
	if p.out() != b.String() {
		t.Errorf("%d bytes arrived, want %d", len(p.out()), b.Len())
	}
	if p, err = cell(t, k, "print('y'*5_000_000)"); err != nil || len(p.out()) != 5_000_001 || p.err() != "" {
		t.Errorf("%d bytes, stderr %q, %v", len(p.out()), p.err(), err)
	}
	want(t, k, "print('ok')", "ok\n")
}

func TestEveryDisplayOfAFastLoopArrives(t *testing.T) {
	k := open(t)
	p, err := cell(t, k, "from IPython.display import display\nfor i in range(2000): display({'text/plain': str(i)}, raw=True)")
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range p.results() {
		if string(r.Data["text/plain"]) != fmt.Sprintf("%q", fmt.Sprint(i)) {
			t.Fatalf("display %d is %s", i, r.Data["text/plain"])
		}
	}
	if n := len(p.results()); n != 2000 {
		t.Errorf("%d displays arrived", n)
	}
}

// TestDisplaysWaitForAReaderThatIsHeldUp has a reader in the Jupyter Server's place, which begins to read late.
func TestDisplaysWaitForAReaderThatIsHeldUp(t *testing.T) {
	needPython(t)
	script, err := filepath.Abs("testdata/flood.py")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(prefix(), "python", "bin", "python"), script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "IPYTHONDIR="+dir, "JUPYTER_RUNTIME_DIR="+dir)
	var said strings.Builder
	cmd.Stderr = &said
	if out, err := cmd.Output(); err != nil || string(out) != "1900\n" {
		t.Errorf("%s, %v\n%s", out, err, said.String())
	}
}

func TestOutputBeforeTheEndIsNeverLost(t *testing.T) {
	k := open(t)
	long := strings.Repeat("a", 200000) + "\nEND\n"
	for range 60 {
		want(t, k, "print('a'*200000); print('END')", long)
		want(t, k, "\n", "")
		if p := want(t, k, "# nothing", ""); len(p.results()) > 0 {
			t.Errorf("results %v", p.results())
		}
	}
}

// counter counts output without keeping it, and the most memory in use meanwhile.
type counter struct {
	nothing
	bytes int
	peak  uint64
}

func (c *counter) OnStdout(o hooks.Output) {
	c.bytes += len(o.Data)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c.peak = max(c.peak, m.HeapInuse)
}

func TestMuchOutputTakesLittleMemory(t *testing.T) {
	k := open(t)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var c counter
	if err := k.Execute(t.Context(), ExecuteRequest{Code: "for i in range(500): print('z'*99_999)"}, &c); err != nil {
		t.Fatal(err)
	}
	if c.bytes != 50_000_000 {
		t.Errorf("%d bytes arrived", c.bytes)
	}
	if grown := int64(c.peak) - int64(before.HeapInuse); grown > 48<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

func TestLargeMessagesArriveWhole(t *testing.T) {
	k := open(t)
	want(t, k, "v = 5", "")
	p := want(t, k, "from IPython.display import display, HTML; display(HTML('<p>'+'z'*12_000_000+'</p>'))", "")
	var html string
	if rs := p.results(); len(rs) != 1 || json.Unmarshal(rs[0].Data["text/html"], &html) != nil || len(html) != 12_000_007 {
		t.Errorf("%d results, html of %d", len(rs), len(html))
	}
	var repr string
	p = want(t, k, "'q'*100000", "")
	if rs := p.results(); len(rs) != 1 || json.Unmarshal(rs[0].Data["text/plain"], &repr) != nil || len(repr) != 100_002 {
		t.Errorf("repr of %d", len(repr))
	}
	p = want(t, k, "display({'text/plain': 'w'*33_000_000}, raw=True)", "")
	if rs := p.results(); len(rs) != 1 || json.Unmarshal(rs[0].Data["text/plain"], &repr) != nil || len(repr) != 33_000_000 {
		t.Errorf("text of %d", len(repr))
	}
	want(t, k, "print('alive', v)", "alive 5\n")
	code := "n = len('''" + strings.Repeat("c", 12_000_000) + "''')"
	want(t, k, code, "")
	want(t, k, "print(n)", "12000000\n")
}

func TestOutputOfChildrenAndDescriptorsIsCaptured(t *testing.T) {
	k := open(t)
	for code, out := range map[string]string{
		"import os; _ = os.system('echo hi')":                   "hi\n",
		"import subprocess; _ = subprocess.run(['echo', 'hi'])": "hi\n",
		"import os; _ = os.write(1, b'raw\\n')":                 "raw\n",
		"!echo hi":                                              "hi\n",
		"print('a', end='')":                                    "a",
		"print('é漢😀')":                                          "é漢😀\n",
	} {
		p, err := cell(t, k, code)
		if err != nil {
			t.Fatalf("%s: %v", code, err)
		}
		if got := strings.ReplaceAll(p.out(), "\r\n", "\n"); got != out {
			t.Errorf("%s printed %q, want %q", code, got, out)
		}
		want(t, k, "print('next')", "next\n")
	}
}

func TestOutputComesWhenItIsPrinted(t *testing.T) {
	k := open(t)
	for i := range 3 {
		if err := syscall.Mkfifo(filepath.Join(k.Cwd(), fmt.Sprint("go", i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: `for i in range(3):
    print(i)
    with open(f'go{i}') as f: f.read()  # waits for the test`})
	for i := range 3 {
		p.waitOut(t, fmt.Sprint(i))
		if err := os.WriteFile(filepath.Join(k.Cwd(), fmt.Sprint("go", i)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil || p.out() != "0\n1\n2\n" {
		t.Errorf("printed %q, %v", p.out(), err)
	}
}

func TestUpdatesOfADisplayAreMarked(t *testing.T) {
	k := open(t)
	p := want(t, k, "from IPython.display import display, clear_output\nh=display('one',display_id=True); h.update('two'); h.update('three'); print('x'); clear_output(wait=True)", "x\n")
	var got []string
	for _, r := range p.results() {
		got = append(got, fmt.Sprintf("%s %v %v", r.Data["text/plain"], r.Update, r.DisplayID == p.results()[0].DisplayID && r.DisplayID != ""))
	}
	if want := []string{`"'one'" false true`, `"'two'" true true`, `"'three'" true true`}; strings.Join(got, ";") != strings.Join(want, ";") {
		t.Errorf("got %q", got)
	}
	if c := p.statuses(hooks.StateClear); len(c) != 1 || !c[0].Wait {
		t.Errorf("clear %v", c)
	}
}

func TestRichOutputKeepsItsTypes(t *testing.T) {
	k := open(t)
	for _, tc := range []struct {
		code  string
		types []string
	}{
		{"import matplotlib.pyplot as plt; plt.plot([1,2]); plt.show()", []string{"image/png"}},
		{"import pandas as pd; pd.DataFrame({'a':[1,2]})", []string{"text/html", "text/plain"}},
		{"import plotly.graph_objects as go; go.Figure(go.Bar(y=[1,2])).show(renderer='plotly_mimetype')", []string{"application/vnd.plotly.v1+json"}},
		{"from PIL import Image; Image.new('RGB', (4, 4))", []string{"image/png"}},
		{"from IPython.display import Latex; Latex('$x$')", []string{"text/latex"}},
		{"from IPython.display import SVG; SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", []string{"image/svg+xml"}},
		{"import ipywidgets; ipywidgets.IntSlider()", []string{"text/plain", "application/vnd.jupyter.widget-view+json"}},
		{"print?", []string{"text/plain"}},
	} {
		p, err := cell(t, k, tc.code)
		if err != nil {
			t.Errorf("%s: %v", tc.code, err)
			continue
		}
		rs := p.results()
		if len(rs) == 0 {
			t.Errorf("%s: no result; %v", tc.code, p.all())
			continue
		}
		for _, mime := range tc.types {
			raw, ok := rs[len(rs)-1].Data[mime]
			var text string
			isText := json.Unmarshal(raw, &text) == nil
			if !ok || isText == strings.HasSuffix(mime, "json") {
				t.Errorf("%s: %s is %.60s", tc.code, mime, raw)
			}
		}
	}
}

func TestProgressBarsArrive(t *testing.T) {
	k := open(t)
	p, err := cell(t, k, "from tqdm import tqdm\nfor _ in tqdm(range(3)): pass")
	if err != nil || !strings.Contains(p.err(), "100%") {
		t.Errorf("%q, %v", p.err(), err)
	}
	p, err = cell(t, k, "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass")
	if err != nil || len(p.results()) == 0 {
		t.Errorf("%v, %v", p.all(), err)
	}
}

func TestThreadOfAnEarlierCellDoesNotPolluteALaterOne(t *testing.T) {
	k := open(t)
	want(t, k, `import threading, time
stop = threading.Event()
def chatter():
    while not stop.is_set():
        print('noise', flush=True); time.sleep(0.005)
thread = threading.Thread(target=chatter)`, "")
	if _, err := cell(t, k, "thread.start()"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		want(t, k, "time.sleep(0.02); print('mine')", "mine\n")
	}
	if _, err := cell(t, k, "stop.set(); thread.join()"); err != nil {
		t.Fatal(err)
	}
}

func TestNotANumberInJSONDoesNotLoseTheCell(t *testing.T) {
	k := open(t)
	if _, err := cell(t, k, "from IPython.display import display\ndisplay({'application/json': {'a': float('nan')}}, raw=True)"); err != nil {
		t.Error(err)
	}
	want(t, k, "print('ok')", "ok\n")
}

func TestErrorsAreTheKernelsOwn(t *testing.T) {
	k := open(t)
	_, err := cell(t, k, "1/0")
	e := failed(t, err, "ZeroDivisionError")
	if e.Value != "division by zero" || len(e.Traceback) < 2 {
		t.Errorf("%+v", e)
	}
	_, err = cell(t, k, "print(")
	failed(t, err, "SyntaxError")
	want(t, k, "print('ok')", "ok\n")
}

func TestBlockedHookHoldsOutputBackAndNothingElse(t *testing.T) {
	k, other := open(t), open(t)
	h := &blocker{tape: newTape(), entered: make(chan struct{}), free: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- k.Execute(ctx, ExecuteRequest{Code: "import time\nprint('go', flush=True)\nwhile True: time.sleep(0.01)"}, h)
	}()
	<-h.entered
	want(t, other, "print('beside')", "beside\n")
	cancel(errInterrupted)
	close(h.free) // the journal's hooks don't block once ctx is done
	failed(t, <-done, "KeyboardInterrupt")
	want(t, k, "print('next')", "next\n")
}

type blocker struct {
	*tape
	entered, free chan struct{}
}

func (b *blocker) OnStdout(o hooks.Output) {
	select {
	case <-b.entered:
	default:
		close(b.entered)
	}
	<-b.free
	b.tape.OnStdout(o)
}

func TestNothingIsLeftInTheDirectory(t *testing.T) {
	k := open(t)
	want(t, k, "print('x')", "x\n")
	entries, err := os.ReadDir(k.Cwd())
	if err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}
