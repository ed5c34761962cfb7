package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestQuestionsAboutCode asks what a notebook asks while a cell is written.
func TestQuestionsAboutCode(t *testing.T) {
	d := start(t, launch{})
	d.python()
	c := d.context()
	// What completes is loaded at the first use, which may take longer than an answer may.
	d.says(c.ID, "class Sheep:\n    'Says \"ü\".'\n    def bleat(self): pass\nsheep = Sheep()\n_ = get_ipython().complete('sheep.b')", "")
	path := "/code/contexts/" + c.ID

	t.Run("complete", func(t *testing.T) {
		var got struct {
			Matches  []string
			From, To int
		}
		type reply struct {
			Matches []string `json:"matches"`
			From    int      `json:"cursor_start"`
			To      int      `json:"cursor_end"`
		}
		var r reply
		if status := d.in(t).call("POST", path+"/complete", m{"code": "'ü€😀'; sheep.b"}, &r); status != 200 {
			t.Fatal(status)
		}
		got.Matches, got.From, got.To = r.Matches, r.From, r.To
		if !slices.ContainsFunc(got.Matches, func(s string) bool { return strings.HasSuffix(s, "bleat") }) || got.To != 14 {
			t.Errorf("%+v", got)
		}
		// The cursor counts characters: here it stands before the rest.
		r = reply{}
		d.in(t).call("POST", path+"/complete", m{"code": "'😀'; she + 1", "cursor": 8}, &r)
		if !slices.Contains(r.Matches, "sheep") || r.From != 5 || r.To != 8 {
			t.Errorf("%+v", r)
		}
		r = reply{}
		if status := d.in(t).call("POST", path+"/complete", m{"code": "nothing_like_it"}, &r); status != 200 || r.Matches == nil || len(r.Matches) > 0 {
			t.Errorf("%d %+v", status, r)
		}
	})
	t.Run("inspect", func(t *testing.T) {
		var r struct {
			Found bool
			Data  map[string]string
		}
		if d.in(t).call("POST", path+"/inspect", m{"code": "sheep", "cursor": 2}, &r); !r.Found || !strings.Contains(r.Data["text/plain"], `Says "ü".`) {
			t.Errorf("%+v", r)
		}
		r.Found, r.Data = true, nil
		if d.in(t).call("POST", path+"/inspect", m{"code": "wolf", "detail": 1}, &r); r.Found || r.Data == nil {
			t.Errorf("%+v", r)
		}
	})
	t.Run("is_complete", func(t *testing.T) {
		for code, want := range map[string]string{"1+1": "complete", "for i in x:": "incomplete", "1 +* 1": "invalid", "": "complete"} {
			var r struct{ Status, Indent string }
			d.in(t).call("POST", path+"/is_complete", m{"code": code}, &r)
			if r.Status != want || want == "incomplete" && r.Indent != "    " {
				t.Errorf("%q: %+v, want %s", code, r, want)
			}
		}
	})
	t.Run("nothing of it counts as a cell", func(t *testing.T) {
		o := d.in(t).cell(c.ID, "1")
		if len(o.results) != 1 || o.results[0].Count != 2 {
			t.Errorf("%+v", o.results)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		d := d.in(t)
		for _, question := range []string{"complete", "inspect", "is_complete"} {
			d.refused(404, "POST", "/code/contexts/none/"+question, m{"code": "x"})
			d.refused(400, "POST", path+"/"+question, "[")
			d.refused(400, "POST", path+"/"+question, m{"code": "x", "cursor": 2})
			d.refused(400, "POST", path+"/"+question, m{"code": "x", "cursor": -1})
		}
		d.refused(400, "POST", path+"/inspect", m{"code": "x", "detail": 2})
		d.refused(404, "GET", "/code/contexts/none/notebook", nil)
	})
	t.Run("a kernel that runs a cell says so", func(t *testing.T) {
		d := d.in(t)
		s := d.begin(c.ID, "print('on', flush=True)\nimport time\nwhile True: time.sleep(0.05)")
		s.until(prints("on"))
		d.refused(409, "POST", path+"/complete", m{"code": "sheep.b"})
		if status := d.call("DELETE", "/code?id="+c.ID, nil, nil); status != 200 {
			t.Fatal(status)
		}
		s.rest()
		var r struct{ Status string }
		if d.call("POST", path+"/is_complete", m{"code": "1"}, &r); r.Status != "complete" {
			t.Errorf("afterwards: %+v", r)
		}
	})
}

// TestNotebook has a context's cells as a notebook, which Jupyter's own programs take.
func TestNotebook(t *testing.T) {
	d := start(t, launch{})
	d.python()
	c := d.context()
	type output struct {
		Type  string `json:"output_type"`
		Name  string
		Text  string
		Count *int `json:"execution_count"`
		Data  map[string]any
		Ename string
	}
	type notebook struct {
		Metadata struct {
			Kernelspec struct{ Name string }
			Language   struct{ Name string } `json:"language_info"`
		}
		Cells []struct {
			ID       string
			Count    *int `json:"execution_count"`
			Source   string
			Outputs  []output
			Metadata map[string]map[string]bool
		}
	}
	dir := t.TempDir()
	// get fetches the notebook, has nbformat look at it and returns it with the file that holds it.
	get := func(t *testing.T, d *daemon) (notebook, string) {
		t.Helper()
		resp := d.do("GET", "/code/contexts/"+c.ID+"/notebook", nil)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-ipynb+json" {
			t.Fatalf("%v %d %s %s", err, resp.StatusCode, resp.Header, text)
		}
		file := filepath.Join(dir, "n.ipynb")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		python(t, "-c", "import nbformat, sys; nbformat.validate(nbformat.read(sys.argv[1], as_version=nbformat.NO_CONVERT))", file)
		var n notebook
		if err := json.Unmarshal(text, &n); err != nil {
			t.Fatal(err)
		}
		return n, file
	}
	t.Run("none", func(t *testing.T) {
		if n, _ := get(t, d.in(t)); len(n.Cells) > 0 || n.Metadata.Kernelspec.Name != "python3" || n.Metadata.Language.Name != "python" {
			t.Errorf("%+v", n)
		}
	})

	var ids []string
	for _, code := range []string{
		"import sys\nprint('out ü')\nprint('more')\nprint('err', file=sys.stderr)\n6 * 7",
		"from IPython.display import display, HTML, JSON, clear_output\nh = display(HTML('<b>first</b>'), display_id='d')\ndisplay(JSON({'a': [1]}))\ndisplay({'application/x-odd': {'k': 1}, 'text/plain': 'odd'}, raw=True)",
		"display(HTML('<i>second</i>'), display_id='d', update=True)\nprint('gone')\nclear_output(wait=True)\nprint('stays')",
		"print('before')\n1/0",
		"pass # " + strings.Repeat("x", 100<<10),
	} {
		ids = append(ids, d.cell(c.ID, code).init.ID)
	}
	running := d.begin(c.ID, "print('on', flush=True)\nimport time\nwhile True: time.sleep(0.05)")
	running.until(prints("on\n"))
	waiting := d.begin(c.ID, "print('never')")
	waiting.until(func(e event) bool { return e.Type == "status" && e.State == "queued" })

	t.Run("cells", func(t *testing.T) {
		n, file := get(t, d.in(t))
		if len(n.Cells) != 7 {
			t.Fatalf("%d cells: %+v", len(n.Cells), n)
		}
		for i, id := range ids {
			if got := n.Cells[i]; got.ID != id || got.Count == nil || *got.Count != i+1 {
				t.Errorf("cell %d: %+v, want %s", i, got, id)
			}
		}
		first := n.Cells[0].Outputs
		if len(first) != 3 || first[0].Text != "out ü\nmore\n" || first[1].Name != "stderr" || first[2].Type != "execute_result" ||
			first[2].Count == nil || *first[2].Count != 1 || first[2].Data["text/plain"] != "42" {
			t.Errorf("output and value: %+v", first)
		}
		shown := n.Cells[1].Outputs
		if len(shown) != 3 || shown[0].Data["text/html"] != "<i>second</i>" || shown[2].Data["application/x-odd"] != `{"k": 1}` {
			t.Errorf("displays: %+v", shown)
		}
		if cleared := n.Cells[2].Outputs; len(cleared) != 1 || cleared[0].Text != "stays\n" {
			t.Errorf("cleared: %+v", cleared)
		}
		if failed := n.Cells[3].Outputs; len(failed) != 2 || failed[1].Type != "error" || failed[1].Ename != "ZeroDivisionError" {
			t.Errorf("failed: %+v", failed)
		}
		if long := n.Cells[4]; !long.Metadata["celld"]["source_truncated"] || len(long.Source) != 64<<10 {
			t.Errorf("a long cell: %v, %d bytes", long.Metadata, len(long.Source))
		}
		if on := n.Cells[5]; len(on.Outputs) != 1 || on.Outputs[0].Text != "on\n" {
			t.Errorf("the running cell: %+v", on)
		}
		if queued := n.Cells[6]; queued.Count != nil || len(queued.Outputs) > 0 {
			t.Errorf("the waiting cell: %+v", queued)
		}
		page := string(python(t, "-m", "nbconvert", "--to", "html", "--stdout", file))
		for _, want := range []string{"out ü", "<i>second</i>", "ZeroDivisionError", "[4]:"} {
			if !strings.Contains(page, want) {
				t.Errorf("nbconvert's page has no %s", want)
			}
		}
	})
	if status := d.call("DELETE", "/code?id="+c.ID, nil, nil); status != 200 {
		t.Fatal(status)
	}
	running.rest()
	waiting.rest()
	t.Run("afterwards", func(t *testing.T) {
		if n, _ := get(t, d.in(t)); len(n.Cells) != 7 || *n.Cells[6].Count != 7 || n.Cells[6].Outputs[0].Text != "never\n" {
			t.Errorf("%+v", n.Cells[5:])
		}
	})
}

// python runs the Python that kernels have and returns what it prints.
func python(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), prefixDir(t)+"/python/bin/python", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python %.2000q: %v\n%s", args, err, stderr.String())
	}
	return out
}
