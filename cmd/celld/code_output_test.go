package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func testCellOutput(t *testing.T, shared *daemon) {
	id := shared.context().ID
	ended := func(t *testing.T, d *daemon, code string) *outcome {
		t.Helper()
		o := d.cell(id, code)
		if o.end.Error != nil {
			t.Errorf("%.100s: ended with %+v", code, o.end.Error)
		}
		return o
	}
	ok := func(t *testing.T, code string) *outcome { t.Helper(); return ended(t, shared.in(t), code) }
	large := func(t *testing.T, code string) *outcome { t.Helper(); return ended(t, shared.in(t).unchecked(), code) }

	t.Run("60,000 lines arrive whole", func(t *testing.T) {
		o := large(t, "for i in range(60000): print(str(i).rjust(99,'x'))")
		var want strings.Builder
		for i := range 60000 {
			n := fmt.Sprint(i)
			want.WriteString(strings.Repeat("x", 99-len(n)) + n + "\n")
		}
		if o.out() != want.String() || len(o.stderr) > 0 {
			t.Errorf("%d bytes, want %d; stderr %.200q", len(o.out()), want.Len(), o.stderr)
		}
	})
	t.Run("each part of a large result has an eid", func(t *testing.T) {
		d := shared.in(t).unchecked()
		all := ended(t, d, "display({'text/plain': 'p', **{'a/' + x: x*900_000 for x in 'abc'}}, raw=True)").events
		var parts []event
		for _, e := range all {
			if e.Type == "result" {
				parts = append(parts, e)
			}
		}
		if len(parts) != 3 || !parts[0].Partial || !parts[1].Partial || parts[2].Partial || parts[2].Results["text"] != "p" {
			t.Fatalf("%d parts", len(parts))
		}
		for i, e := range all {
			if i > 0 && e.EID <= all[i-1].EID {
				t.Errorf("%s of %d comes after %d", e.Type, e.EID, all[i-1].EID)
			}
			if e.Type == "execution_complete" {
				continue
			}
			rest := d.open(fmt.Sprintf("/executions/%s/events?after=%d", all[0].ID, e.EID), nil).rest().events
			if !reflect.DeepEqual(rest, all[i+1:]) {
				t.Errorf("after %d: %d events, want %d", e.EID, len(rest), len(all)-i-1)
			}
		}
	})
	t.Run("5 MB at once arrive whole", func(t *testing.T) {
		o := large(t, "print('y'*5_000_000)")
		if o.out() != strings.Repeat("y", 5_000_000)+"\n" || len(o.stderr) > 0 {
			t.Errorf("%d bytes, stderr %.200q", len(o.out()), o.stderr)
		}
	})
	t.Run("the end comes after all output, every time", func(t *testing.T) {
		want := strings.Repeat("a", 200000) + "\nEND\n"
		for range 20 {
			if o := large(t, "print('a'*200000); print('END')"); o.out() != want {
				t.Fatalf("%d bytes, want %d", len(o.out()), len(want))
			}
		}
	})
	t.Run("blank cells and comments do nothing", func(t *testing.T) {
		for i, code := range slices.Repeat([]string{"\n", "# nothing", " \t ", "\n\n# a\n"}, 5) {
			if o := ok(t, code); len(o.results)+len(o.stdout)+len(o.stderr) > 0 {
				t.Errorf("%d, %q: %+v", i, code, o.events)
			}
		}
	})
	t.Run("values of JSON types stay JSON", func(t *testing.T) {
		before := ok(t, "1")
		o := ok(t, "from IPython.display import display, JSON, publish_display_data; display(JSON({'a':[1,2]})); "+
			"publish_display_data({'application/vnd.x.v1+json':[1,{'b':None}],'text/plain':'t','text/html':'<b>&</b>'}); 40+2")
		if len(o.results) != 3 {
			t.Fatalf("results %+v", o.results)
		}
		r := o.results
		if got := r[0].Results["application/json"]; !reflect.DeepEqual(got, m{"a": []any{1., 2.}}) {
			t.Errorf("JSON arrives as %#v", got)
		}
		if got := r[1].Results; !reflect.DeepEqual(got["application/vnd.x.v1+json"], []any{1., m{"b": nil}}) ||
			got["text/html"] != "<b>&</b>" || got["text/plain"] != "t" || got["text"] != "t" {
			t.Errorf("the set of types arrives as %#v", got)
		}
		if r[2].Results["text"] != "42" || r[2].Results["text/plain"] != "42" || r[2].Count != before.results[0].Count+1 {
			t.Errorf("the value arrives as %+v", r[2])
		}
		if r[0].Count != 0 || r[1].Count != 0 {
			t.Errorf("displays are counted: %+v", r)
		}
	})
	t.Run("large displays and values arrive whole and the state stays", func(t *testing.T) {
		o := large(t, "kept = 1\nfrom IPython.display import display, HTML; display(HTML('<p>'+'z'*12_000_000+'</p>'))")
		html := ""
		for _, r := range o.results {
			if v, found := r.Results["text/html"].(string); found {
				html += v
			}
		}
		if html != "<p>"+strings.Repeat("z", 12_000_000)+"</p>" {
			t.Errorf("HTML of %d characters", len(html))
		}
		if o := ok(t, "'q'*100000"); len(o.results) != 1 || o.results[0].Results["text"] != "'"+strings.Repeat("q", 100000)+"'" {
			t.Errorf("%d results", len(o.results))
		}
		if o := ok(t, "print('alive', kept)"); o.out() != "alive 1\n" {
			t.Errorf("printed %q", o.out())
		}
	})
	t.Run("updates of a display are marked", func(t *testing.T) {
		o := ok(t, "h=display('one',display_id=True); h.update('two'); h.update('three'); print('x')")
		if len(o.results) != 3 || o.out() != "x\n" {
			t.Fatalf("%+v", o.events)
		}
		for i, want := range []string{"'one'", "'two'", "'three'"} {
			r := o.results[i]
			if r.Results["text"] != want || r.Update != (i > 0) || r.DisplayID == "" || r.DisplayID != o.results[0].DisplayID {
				t.Errorf("result %d: %+v, want %s", i, r, want)
			}
		}
	})
	t.Run("clear_output is told", func(t *testing.T) {
		o := ok(t, "from IPython.display import clear_output\nprint('a'); clear_output(wait=True); print('b'); clear_output()")
		if got := types(o); got != "stdout clear_output stdout clear_output" {
			t.Errorf("events %s", got)
		}
	})
	t.Run("everything comes in its true order", func(t *testing.T) {
		o := ok(t, "import sys\nfrom IPython.display import display\nfor i in range(30):\n"+
			" print(i)\n display(i)\n print(i, file=sys.stderr)\n display(-i)\n'last'")
		want := strings.Repeat("stdout result stderr result ", 30) + "result"
		if got := types(o); got != want {
			t.Errorf("events %s", got)
		}
	})
	t.Run("what is printed arrives while the cell runs", func(t *testing.T) {
		fifo := filepath.Join(t.TempDir(), "go")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		d := shared.in(t)
		s := d.begin(id, fmt.Sprintf("for i in range(3):\n print('step', i)\n open(%q).read()", fifo))
		for i := range 3 {
			s.until(prints(fmt.Sprintf("step %d\n", i)))
			pass(t, fifo, os.O_WRONLY)
		}
		if o := s.rest(); o.end.Error != nil {
			t.Errorf("ended with %+v", o.end.Error)
		}
	})
	t.Run("children's output is captured", func(t *testing.T) {
		o := ok(t, "import os, subprocess, sys\nos.system('echo system')\nsubprocess.run(['echo','run'])\nos.write(1, b'write\\n')\n"+
			"os.write(2, b'to stderr\\n')\n!echo shell\nprint(end='', flush=True)")
		for _, want := range []string{"system\n", "run\n", "write\n", "shell"} {
			if !strings.Contains(o.out(), want) {
				t.Errorf("%q is not in %q", want, o.out())
			}
		}
		if !strings.Contains(strings.Join(o.stderr, ""), "to stderr\n") {
			t.Errorf("stderr %q", o.stderr)
		}
		if o := ok(t, "print('fine')"); o.out() != "fine\n" {
			t.Errorf("then printed %q", o.out())
		}
	})
	t.Run("a thread of an earlier cell pollutes no other", func(t *testing.T) {
		fifo := filepath.Join(t.TempDir(), "go")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		ok(t, fmt.Sprintf("import threading, sys\nfrom IPython.display import display\ndef work():\n open(%q).read()\n for i in range(200):\n"+
			"  print('foreign'); print('foreign', file=sys.stderr)\n  display('foreign')\nw = threading.Thread(target=work); w.start()", fifo))
		d := shared.in(t)
		s := d.begin(id, "print('mine')\nw.join()\nprint('still mine')\n'mine too'")
		s.until(prints("mine\n"))
		pass(t, fifo, os.O_WRONLY)
		o := s.rest()
		if got := types(o); got != "stdout result" || o.out() != "still mine\n" || o.results[0].Results["text"] != "'mine too'" {
			t.Errorf("events %s: %q", got, o.out())
		}
	})
	t.Run("values, counts and the last value are as in a notebook", func(t *testing.T) {
		first := ok(t, "x=1\nx+1")
		if len(first.results) != 1 || first.results[0].Results["text"] != "2" {
			t.Fatalf("results %+v", first.results)
		}
		second := ok(t, "_ * 10")
		if second.results[0].Results["text"] != "20" || second.results[0].Count != first.results[0].Count+1 {
			t.Errorf("result %+v after %+v", second.results, first.results)
		}
		var counts []int
		for _, e := range second.events {
			if e.Type == "execution_count" {
				counts = append(counts, e.Count)
			}
		}
		if !slices.Equal(counts, []int{second.results[0].Count}) {
			t.Errorf("execution_count %v", counts)
		}
	})
	t.Run("errors are the kernel's own and the next cell runs", func(t *testing.T) {
		d := shared.in(t)
		for code, want := range map[string]string{
			"print(": "SyntaxError", "1/0": "ZeroDivisionError", "import sys; sys.exit(3)": "SystemExit", "raise KeyboardInterrupt": "KeyboardInterrupt",
			"class Own(Exception): pass\nraise Own('é\\u2028')": "Own", "1 +* 2": "SyntaxError",
		} {
			o := d.cell(id, "print('before')\n"+code)
			if o.failed() != want || len(o.end.Error.Traceback) == 0 || want != "SyntaxError" && o.out() != "before\n" {
				t.Errorf("%s: printed %q, ended with %+v", code, o.out(), o.end)
			}
		}
		if o := d.cell(id, "raise ValueError('a\\n\"b\"')"); o.end.Error.Evalue != "a\n\"b\"" {
			t.Errorf("evalue %q", o.end.Error.Evalue)
		}
		d.says(id, "print('next')", "next\n")
	})
	t.Run("odd text stays what it is", func(t *testing.T) {
		const text = "é漢😀 \u0085 \u2028 \u2029 \x00 \x1b[31m </script> \\ \" \r end"
		quoted, _ := json.Marshal(text)
		if o := ok(t, fmt.Sprintf("import json; print(json.loads(%q), end='')", quoted)); o.out() != text {
			t.Errorf("printed %q", o.out())
		}
		if o := ok(t, "print('before'); print('half \\ud83d', end=''); import os; os.write(1, b'\\xff')"); !strings.HasPrefix(o.out(), "before\nhalf \\ud83d") ||
			!strings.HasSuffix(o.out(), "\ufffd") && !strings.Contains(o.out(), `\xff`) {
			t.Errorf("printed %q", o.out())
		}
	})
	t.Run("programs' output is the cell's", func(t *testing.T) {
		for i := range 100 {
			o := ok(t, fmt.Sprintf("import os, subprocess; print('a'); subprocess.run('printf b%d; printf e >&2', shell=True); os.write(1, b'\\xc3'); 'value'", i))
			if want := fmt.Sprintf("a\nb%d\ufffd", i); o.out() != want || strings.Join(o.stderr, "") != "e" {
				t.Fatalf("printed %q and %q, want %q", o.out(), o.stderr, want)
			}
			if e := o.events[len(o.events)-2]; e.Type != "result" {
				t.Fatalf("%+v comes after the value", e)
			}
		}
	})
	t.Run("a cell's answer can be had in one piece", func(t *testing.T) {
		var answer struct {
			Stdout, Stderr string
			Results        []struct{ Text string }
		}
		status := shared.in(t).call("POST", "/code", m{"context": m{"id": id}, "code": "print('out'); 6*7"}, &answer, "Accept", "application/json")
		if status != http.StatusOK || answer.Stdout != "out\n" || len(answer.Results) != 1 {
			t.Errorf("%d %+v", status, answer)
		}
	})
}

// types are the types of a run's events between its beginning and its end, output in one piece as one.
func types(o *outcome) string {
	var all []string
	for _, e := range o.events {
		switch e.Type {
		case "init", "execution_count", "error", "execution_complete":
			continue
		case "stdout", "stderr":
			if len(all) > 0 && all[len(all)-1] == e.Type {
				continue
			}
		}
		all = append(all, e.Type)
	}
	return strings.Join(all, " ")
}

func testRichOutput(t *testing.T, shared *daemon) {
	id := shared.context().ID
	// shows runs a cell and returns the value of a type in its only result that has it.
	shows := func(t *testing.T, mime, code string) any {
		t.Helper()
		o := shared.in(t).cell(id, code)
		if o.end.Error != nil {
			t.Fatalf("ended with %+v", o.end.Error)
		}
		for _, r := range o.results {
			if v, found := r.Results[mime]; found {
				if text, isText := r.Results["text/plain"]; isText && text != r.Results["text"] {
					t.Errorf("text is %q, text/plain %q", r.Results["text"], text)
				}
				return v
			}
		}
		t.Fatalf("no %s in %+v", mime, o.results)
		return nil
	}
	contains := func(t *testing.T, mime, code, want string) {
		t.Helper()
		if v, isText := shows(t, mime, code).(string); !isText || !strings.Contains(v, want) {
			t.Errorf("%s: %.300v, want %q in it", mime, v, want)
		}
	}
	image := func(t *testing.T, code string) {
		t.Helper()
		text, _ := shows(t, "image/png", code).(string)
		data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil || !strings.HasPrefix(string(data), "\x89PNG\r\n\x1a\n") {
			t.Errorf("no PNG: %.60q %v", data, err)
		}
	}
	t.Run("matplotlib", func(t *testing.T) {
		image(t, "import matplotlib.pyplot as plt\nplt.plot([1,4,2])\nplt.show()")
	})
	t.Run("matplotlib without show", func(t *testing.T) {
		image(t, "fig, ax = plt.subplots()\nax.bar(['a'], [1]);")
	})
	t.Run("PIL", func(t *testing.T) { image(t, "from PIL import Image\nImage.new('RGB', (4, 4), 'red')") })
	t.Run("pandas", func(t *testing.T) {
		contains(t, "text/html", "import pandas as pd\npd.DataFrame({'name': ['é&'], 'n': [3]})", "<td>é&amp;</td>")
		contains(t, "text/plain", "pd.DataFrame({'name': ['é&'], 'n': [3]})", "0   é&  3")
	})
	t.Run("plotly", func(t *testing.T) {
		v, _ := shows(t, "application/vnd.plotly.v1+json", "import plotly.graph_objects as go, plotly.io as pio\n"+
			"pio.renderers.default = 'plotly_mimetype'\ngo.Figure(go.Scatter(y=[1, 3]))").(map[string]any)
		if data, _ := v["data"].([]any); len(data) != 1 {
			t.Errorf("%.300v", v)
		}
	})
	t.Run("HTML, LaTeX, SVG, Markdown", func(t *testing.T) {
		contains(t, "text/html", "from IPython.display import *\nHTML('<b>&amp;</b>')", "<b>&amp;</b>")
		contains(t, "text/latex", "Math(r'\\frac{1}{2}')", `\frac{1}{2}`)
		contains(t, "image/svg+xml", "SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"><g/></svg>')", "<svg")
		contains(t, "text/markdown", "Markdown('*é*')", "*é*")
	})
	t.Run("several types of one value", func(t *testing.T) {
		contains(t, "text/html", "class Both:\n def _repr_html_(self): return '<i>b</i>'\n def __repr__(self): return 'plain'\nBoth()", "<i>b</i>")
		contains(t, "text/plain", "Both()", "plain")
	})
	t.Run("help is shown", func(t *testing.T) { contains(t, "text/plain", "len?", "Return the number of items") })
	t.Run("widgets fall back to text", func(t *testing.T) {
		contains(t, "text/plain", "import ipywidgets\nipywidgets.IntSlider(value=7)", "IntSlider(value=7")
	})
	t.Run("tqdm", func(t *testing.T) {
		o := shared.in(t).cell(id, "from tqdm import tqdm\nfor _ in tqdm(range(10), mininterval=0): pass")
		if text := strings.Join(o.stderr, ""); !strings.Contains(text, "10/10") || !strings.Contains(text, "\r") || o.end.Error != nil {
			t.Errorf("stderr %q, ended with %+v", text, o.end.Error)
		}
		contains(t, "text/plain", "from tqdm.notebook import tqdm as bar\nfor _ in bar(range(3)): pass", "0/3")
	})
}
