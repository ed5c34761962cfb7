package server

import (
	"encoding/json"
	"testing"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
)

// TestNotebookIsBounded fills a notebook: what it can't hold is left out, said so, and given back by what is cleared.
func TestNotebookIsBounded(t *testing.T) {
	const limit = 64 << 10
	b := &notebook{limit: limit, displays: map[string][]*nbOutput{}}
	cell := func(f func(w *nbWriter)) *nbCell {
		w := b.add(&backends.Execution{})
		f(w)
		w.finish()
		return w.cell
	}
	truncated := func(c *nbCell) bool {
		notes, _ := c.Metadata["celld"].(map[string]bool)
		return notes["outputs_truncated"]
	}
	large := hooks.Output{Data: make([]byte, limit/2)}
	text := func(s string) map[string]json.RawMessage {
		v, _ := json.Marshal(s)
		return map[string]json.RawMessage{"text/plain": v}
	}
	first := cell(func(w *nbWriter) { w.OnStdout(large) })
	second := cell(func(w *nbWriter) {
		w.OnResult(hooks.Result{Data: text("small"), DisplayID: "d"})
		w.OnStderr(large)
		w.OnResult(hooks.Result{Data: text("still"), ExecutionCount: 2})
	})
	if truncated(first) || !truncated(second) || len(second.Outputs) != 2 {
		t.Errorf("%v, %v with %d outputs", first.Metadata, second.Metadata, len(second.Outputs))
	}
	third := cell(func(w *nbWriter) {
		w.OnResult(hooks.Result{Data: text(string(make([]byte, limit/2))), DisplayID: "d", Update: true})
		w.OnStderr(hooks.Output{Data: large.Data[:limit/4]})
		w.OnStatus(hooks.Status{State: hooks.StateClear})
		w.OnStdout(hooks.Output{Data: large.Data[:limit/4]})
		w.OnStatus(hooks.Status{State: hooks.StateGap})
	})
	notes, _ := third.Metadata["celld"].(map[string]bool)
	if string(second.Outputs[0].Data) != `{"text/plain":"small"}` || !notes["outputs_truncated"] || !notes["outputs_dropped"] ||
		len(third.Outputs) != 1 || third.Outputs[0].Name != "stdout" {
		t.Errorf("%v, %d outputs", third.Metadata, len(third.Outputs))
	}
	if want := limit/2 + limit/4; b.size < want || b.size > want+1000 {
		t.Errorf("counted %d bytes, want about %d", b.size, want)
	}
}

// TestNotebookTakesWhatKernelsSend has bundles that nbformat would refuse, or that are no text.
func TestNotebookTakesWhatKernelsSend(t *testing.T) {
	got := nbBundle(hooks.Result{Data: map[string]json.RawMessage{
		"text/plain": json.RawMessage(`"half \ud800"`), "image/x": json.RawMessage(`[1]`), "application/vnd.a+json": json.RawMessage(`{"a":"b"}`),
		"text/null": json.RawMessage(`null`),
	}})
	want := `{"application/vnd.a+json":{"a":"b"},"image/x":"[1]","text/null":"null","text/plain":"half �"}`
	if string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !json.Valid(nbBundle(hooks.Result{})) {
		t.Error("no JSON for an empty bundle")
	}
}
