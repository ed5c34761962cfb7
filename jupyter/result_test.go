package jupyter

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/celld/celld/hooks"
)

// after returns a run that got a result of these types and then its end.
func after(t *testing.T, shown *hooks.Recorder, data map[string]string, reply any) *run {
	t.Helper()
	r := newRun(shown, "id")
	res := hooks.Result{Data: map[string]json.RawMessage{}}
	for mime, value := range data {
		res.Data[mime] = json.RawMessage(value)
	}
	r.result(res)
	for _, m := range []struct {
		channel, kind string
		content       any
	}{
		{shellChannel, "execute_reply", reply},
		{iopubChannel, "status", map[string]any{"execution_state": "idle"}},
	} {
		content, err := json.Marshal(m.content)
		if err != nil {
			t.Fatal(err)
		}
		got := &message{channel: m.channel, content: content}
		got.header.Type = m.kind
		if ended := r.handle(got); ended != (m.kind == "status") {
			t.Fatalf("after %s: ended %t", m.kind, ended)
		}
	}
	return r
}

func TestResultsAreLimited(t *testing.T) {
	text := func(mib int) string { return `"` + strings.Repeat("z", mib<<20) + `"` }
	ok := map[string]any{"status": "ok"}
	failed := map[string]any{"status": "error", "ename": "Own", "evalue": "x", "traceback": []string{"Own: x"}}
	for _, test := range []struct {
		name  string
		data  map[string]string
		reply any
		want  string // the error's name
		told  bool   // that the result was dropped
	}{
		{"below", map[string]string{"text/html": text(63)}, ok, "", false},
		{"one type", map[string]string{"text/html": text(64)}, ok, nameTooLarge, true},
		{"all types", map[string]string{"text/html": text(33), "text/latex": text(33)}, ok, nameTooLarge, true},
		{"text counts twice", map[string]string{"text/plain": text(33)}, ok, nameTooLarge, true},
		{"line ends that are escaped", map[string]string{"text/html": strings.Repeat("\u0085", 12<<20)}, ok, nameTooLarge, true},
		{"a failing cell", map[string]string{"text/html": text(64)}, failed, "Own", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var shown hooks.Recorder
			r := after(t, &shown, test.data, test.reply)
			var failure *hooks.ExecError
			name, trace := "", ""
			if errors.As(r.err, &failure) {
				name, trace = failure.Name, strings.Join(failure.Traceback, "\n")
			}
			if name != test.want || strings.Contains(trace, "the limit is 64 MiB") != test.told {
				t.Errorf("ended with %q, %q", name, trace)
			}
			if shows := len(shown.Results); (shows == 1) == test.told {
				t.Errorf("%d results were shown", shows)
			}
		})
	}
}
