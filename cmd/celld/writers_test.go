package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/openapi/openapitest"
)

// inside starts a celld in the test's own process, where its journals can be read without a transport.
func inside(t *testing.T) (*daemon, *backends.Controller) {
	t.Helper()
	d := &daemon{t: t, log: new(lockedBuffer)}
	d.folders(launch{})
	var c cli
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"serve", "--data-dir=" + d.data, "--run-dir=" + d.run, "--workspace=" + d.ws,
		"--prefix=" + prefixDir(t)}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(d.log, nil))
	b, err := c.Serve.backends(log)
	if err != nil {
		t.Fatal(err)
	}
	controller, srv := c.Serve.wire(b, d.data+"/logs", &telemetry{}, log)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ctx := t.Context()
	go func() {
		served <- srv.Serve(ctx, l, func() {
			if err := controller.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}, answerGrace)
	}()
	t.Cleanup(func() {
		d.http.CloseIdleConnections()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := b.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	d.url = "http://" + l.Addr().String()
	plain := http.DefaultTransport.(*http.Transport).Clone()
	d.http = &http.Client{Transport: spec.Transport(plain, func(err error) { t.Errorf("not as in openapi.yaml: %v", err) })}
	return d, controller
}

// wire is an event as it is on the wire, with all its fields but ref.
type wire map[string]any

// terminal says that nothing follows.
func (w wire) terminal() bool { return w["type"] == "execution_complete" || w["type"] == "error" }

func (w wire) text(key string) string {
	s, _ := w[key].(string)
	return s
}

func (w wire) number(key string) int {
	n, _ := w[key].(float64)
	return int(n)
}

// tell calls the hook that the event is of: what a client could do that wants what a backend has reported.
func (w wire) tell(t *testing.T, h hooks.Hooks) {
	t.Helper()
	stamp := hooks.Stamp{EID: int64(w.number("eid"))}
	var exit *int
	if _, ok := w["exit_code"]; ok {
		exit = new(w.number("exit_code"))
	}
	switch w["type"] {
	case "init":
		h.OnInit(hooks.Init{Stamp: stamp, ID: w.text("text"), ExecutionID: w.text("execution_id")})
	case "stdout":
		h.OnStdout(hooks.Output{Stamp: stamp, Data: w.output(t)})
	case "stderr":
		h.OnStderr(hooks.Output{Stamp: stamp, Data: w.output(t)})
	case "result":
		r := hooks.Result{Stamp: stamp, Data: map[string]json.RawMessage{}, DisplayID: w.text("display_id"), ExecutionCount: w.number("execution_count")}
		r.Update, _ = w["update"].(bool)
		for mime, value := range w["results"].(map[string]any) {
			if mime != "text" {
				r.Data[mime], _ = json.Marshal(value)
			}
		}
		h.OnResult(r)
	case "execution_count":
		h.OnStatus(hooks.Status{Stamp: stamp, State: hooks.StateCount, Count: w.number("execution_count")})
	case "clear_output":
		h.OnStatus(hooks.Status{Stamp: stamp, State: hooks.StateClear})
	case "status":
		h.OnStatus(hooks.Status{Stamp: stamp, State: w.text("state"), Detail: w.text("detail")})
	case "error":
		e := w["error"].(map[string]any)
		h.OnError(hooks.Failure{Stamp: stamp, ExecError: hooks.ExecError{Name: e["ename"].(string), Value: e["evalue"].(string), ExitCode: exit}})
	case "execution_complete":
		h.OnComplete(hooks.Complete{Stamp: stamp, Duration: time.Duration(w.number("execution_time")) * time.Millisecond, ExitCode: exit})
	default:
		t.Fatalf("unknown event %v", w)
	}
}

// output is the event's bytes, with the line end that was stripped.
func (w wire) output(t *testing.T) []byte {
	t.Helper()
	if data, ok := w["data"]; ok {
		b, err := base64.StdEncoding.DecodeString(data.(string))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := w.text("text")
	if w["line"] == true && text != "\n" && w["partial"] != true {
		text += "\n"
	}
	return []byte(text)
}

// events reads lines of JSON, and what is in the data lines of Server-Sent Events.
func events(t *testing.T, r io.Reader) (all []wire) {
	t.Helper()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		line = bytes.TrimPrefix(line, []byte("data: "))
		if line[0] != '{' {
			continue
		}
		all = add(t, all, line)
	}
}

// add decodes one event; those that tell only that somebody is there don't count.
func add(t *testing.T, all []wire, text []byte) []wire {
	t.Helper()
	var w wire
	if err := json.Unmarshal(text, &w); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if delete(w, "ref"); w["type"] != "ping" {
		all = append(all, w)
	}
	return all
}

// events asks for events in one of the two forms that HTTP streams have.
func (d *daemon) events(accept, method, path string, v any) []wire {
	d.t.Helper()
	resp := d.do(method, path, v, "Accept", accept)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != accept {
		text, _ := io.ReadAll(resp.Body)
		d.t.Fatalf("%s %s: %d %s %s", method, path, resp.StatusCode, got, text)
	}
	return events(d.t, resp.Body)
}

// overSocket asks for events over the WebSocket.
func (d *daemon) overSocket(message m) (all []wire) {
	d.t.Helper()
	s := d.socket(nil)
	message["ref"] = "r"
	s.send(message)
	for len(all) == 0 || !all[len(all)-1].terminal() {
		_, text, err := s.conn.ReadMessage()
		if err != nil {
			d.t.Fatal(err)
		}
		all = add(d.t, all, text)
	}
	return all
}

// printed is what the events look like to people. lines: they are whole lines.
func printed(t *testing.T, all []wire, lines bool) string {
	t.Helper()
	var text strings.Builder
	p := hooks.Print(&text)
	for _, w := range all {
		w["line"] = lines
		if w.terminal() {
			p.OnStdout(hooks.Output{Stamp: hooks.Stamp{EID: 1}, End: true})
			p.OnStderr(hooks.Output{Stamp: hooks.Stamp{EID: 1}, End: true})
		}
		w.tell(t, p)
		delete(w, "line")
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// joined are raw events with output in as few pieces as possible.
func joined(all []wire) (whole []wire) {
	for _, w := range all {
		w = maps.Clone(w)
		delete(w, "timestamp")
		if n := len(whole) - 1; n >= 0 && whole[n]["type"] == w["type"] && (w["type"] == "stdout" || w["type"] == "stderr") {
			w["text"] = whole[n].text("text") + w.text("text")
			whole = whole[:n]
		}
		whole = append(whole, w)
	}
	return whole
}

var perRun = regexp.MustCompile(`(?m)^(init +).*|\b[0-9]+ ms|cell [0-9]+`)

// alike is text without what differs from run to run: ids, times, and how the two streams have met.
func alike(text string) string {
	var out, errs []string
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "stderr"):
			errs = append(errs, line)
		case strings.HasPrefix(line, "stdout"):
			out = append(out, line)
		default:
			out = append(out, perRun.ReplaceAllString(line, "$1"))
		}
	}
	return strings.Join(append(out, errs...), "")
}

// answer is what one JSON answer must hold of raw events.
func answer(t *testing.T, raw []wire) wire {
	t.Helper()
	var r hooks.Recorder
	want := wire{"results": []any{}}
	for _, w := range raw {
		w.tell(t, &r)
		switch w["type"] {
		case "result":
			item := maps.Clone(w)
			for _, key := range []string{"type", "timestamp", "eid"} {
				delete(item, key)
			}
			want["results"] = append(want["results"].([]any), map[string]any(item))
		case "error", "execution_complete":
			for _, key := range []string{"error", "exit_code"} {
				if value, ok := w[key]; ok {
					want[key] = value
				}
			}
		}
	}
	want["stdout"], want["stderr"] = r.Stdout.String(), r.Stderr.String()
	return want
}

// TestEveryBackendThroughEveryWriter runs the same through each writer, then has each writer tell the same run again.
func TestEveryBackendThroughEveryWriter(t *testing.T) {
	d, controller := inside(t)
	d.python()
	both := `printf 'a\n\n'; printf 'b\xc3\xa9\r\nc'; printf 'd\ne' >&2; `
	long := `head -c 300000 /dev/zero | tr '\0' x; echo; `
	for name, tc := range map[string]struct {
		path, kind string // of the POST, and in /ws
		body       m
		want       string // of what Print shows
	}{
		"command":          {"/command", "command", m{"command": both + "exit 4"}, "CommandExecError: 4"},
		"command, long":    {"/command", "command", m{"command": long}, "exit 0"},
		"command, killed":  {"/command", "command", m{"command": "echo a; kill -9 $$"}, "CommandExecError: 137"},
		"background":       {"/command", "command", m{"command": both + "exit 4", "background": true}, "complete"},
		"session":          {"/session/w/run", "session", m{"command": both + "(exit 4)", "create": true, "session_id": "w"}, "CommandExecError: 4"},
		"session, no more": {"/session/w/run", "session", m{"command": "exit 5", "create": true, "session_id": "w"}, "session_replaced"},
		"code": {"/code", "code", m{"context": m{"language": "python"}, "code": "import sys\nfrom IPython.display import *\nprint('a')\nprint('é', end='')\n" +
			"print('b', file=sys.stderr)\nh = display(HTML('<b>&</b>'), display_id='h')\nh.update(JSON([[None]]))\nclear_output()\n6 * 7"}, "text/plain: 42"},
		"code, failing":     {"/code", "code", m{"context": m{"language": "python"}, "code": "print('a')\n1/0"}, "ZeroDivisionError"},
		"sql":               {"/code", "code", m{"context": m{"language": "sql"}, "code": "SELECT 'é' AS a, NULL AS b; SELECT 2 AS c"}, `"rows":[["2"]]`},
		"sql, failing":      {"/code", "code", m{"context": m{"language": "sql"}, "code": "SELECT 1 AS a; SELECT nothing"}, "DBQueryError"},
		"code, no language": {"/code", "code", m{"code": both}, "exit 0"},
	} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			if strings.Contains(name, "long") {
				d = d.unchecked()
			}
			lines := tc.kind != "code" || tc.body["context"] == nil
			live := d.events("text/event-stream", "POST", tc.path, tc.body)
			want := alike(printed(t, live, lines))
			if !strings.Contains(want, tc.want) {
				t.Fatalf("%q is not in\n%s", tc.want, want)
			}
			for how, all := range map[string][]wire{
				"NDJSON":    d.events("application/x-ndjson", "POST", tc.path, tc.body),
				"WebSocket": d.overSocket(with(m{"op": "run", "kind": tc.kind}, []m{tc.body})),
			} {
				if got := alike(printed(t, all, lines)); got != want {
					t.Errorf("run through %s:\n%s\nand through SSE:\n%s", how, got, want)
				}
			}
			again := d.toldAgain(controller, live[0].text("execution_id"))
			if tc.body["background"] != nil { // the POST's answer is not the run's
				return
			}
			mode := "raw"
			if lines {
				mode = "lines"
			}
			told := again[mode]
			if !lines { // in what pieces it comes depends on when it is read
				told, live = joined(told), joined(live)
			}
			if !reflect.DeepEqual(told, live) {
				t.Errorf("told again:\n%v\nand live:\n%v", told, live)
			}
			d.answersOnce(answer(t, again["raw"]), "POST", tc.path, tc.body)
		})
	}
	t.Run("terminal", func(t *testing.T) {
		d := d.in(t)
		id := d.pty(m{"command": "printf 'a\\303\\251\\nb'; exit 4"})
		conn, _, err := d.dial(id, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
		again := d.toldAgain(controller, id)
		if text := printed(t, again["raw"], false); !strings.Contains(text, "CommandExecError: 4") || !strings.Contains(text, "stdout    aé\n") {
			t.Errorf("%s", text)
		}
	})
}

// toldAgain has each writer tell of an execution that is over, in each mode, and returns the events.
func (d *daemon) toldAgain(controller *backends.Controller, id string) map[string][]wire {
	d.t.Helper()
	e, err := controller.Execution(id)
	if err != nil {
		d.t.Fatal(err)
	}
	var print strings.Builder
	if err := e.Journal.Follow(d.t.Context(), 0, hooks.Print(&print)); err != nil {
		d.t.Fatal(err)
	}
	told := map[string][]wire{}
	for _, mode := range []string{"lines", "raw", "base64"} {
		path := "/executions/" + id + "/events?output=" + mode
		all := d.events("text/event-stream", "GET", path, nil)
		told[mode] = all
		if got := printed(d.t, all, mode == "lines"); got != print.String() {
			d.t.Errorf("printed:\n%s\nand told in %s:\n%s", print.String(), mode, got)
		}
		for how, other := range map[string][]wire{
			"NDJSON":    d.events("application/x-ndjson", "GET", path, nil),
			"WebSocket": d.overSocket(m{"op": "attach", "execution_id": id, "output": mode}),
		} {
			if !reflect.DeepEqual(other, all) {
				d.t.Errorf("%s through %s:\n%v\nand through SSE:\n%v", mode, how, other, all)
			}
		}
	}
	d.answersOnce(answer(d.t, told["raw"]), "GET", "/executions/"+id+"/events", nil)
	return told
}

// TestOneAnswerHasExactBytes asks for base64 and for one answer.
func TestOneAnswerHasExactBytes(t *testing.T) {
	d := start(t, launch{})
	d.call("POST", "/session", m{"id": "w"}, nil)
	const command, want = `printf 'a\377b'; printf '\303' >&2`, "a\xffb"
	for _, path := range []string{"/command", "/session/w/run"} {
		var got struct {
			ID             string `json:"execution_id"`
			Stdout, Stderr string
			Out            []byte `json:"stdout_base64"`
			Err            []byte `json:"stderr_base64"`
			Truncated      bool
		}
		check := func() {
			t.Helper()
			if string(got.Out) != want || string(got.Err) != "\xc3" || got.Stdout != "a\ufffdb" || got.Stderr != "\ufffd" {
				t.Errorf("%+v", got)
			}
		}
		d.call("POST", path, m{"command": command, "output": "base64"}, &got, "Accept", "application/json")
		check()
		id := got.ID
		got.Out, got.Err = nil, nil
		d.call("GET", "/executions/"+id+"/events", nil, &got, "Accept", "application/json")
		check()
		got.Out, got.Err = nil, nil
		d.call("GET", "/executions/"+id+"/events?output=lines", nil, &got, "Accept", "application/json")
		if got.Out != nil || got.Err != nil {
			t.Errorf("%q %q", got.Out, got.Err)
		}
	}
}

// answersOnce checks the one answer to a request.
func (d *daemon) answersOnce(want wire, method, path string, body any) {
	d.t.Helper()
	var got wire
	if code := d.call(method, path, body, &got, "Accept", "application/json"); code != http.StatusOK || got.text("execution_id") == "" {
		d.t.Errorf("JSON: %d %v", code, got)
	}
	delete(got, "execution_id")
	delete(got, "execution_time")
	if !reflect.DeepEqual(numberless(got), numberless(want)) {
		d.t.Errorf("JSON:\n%v\nand through SSE:\n%v", got, want)
	}
}

// numberless is an answer without what tells the number of a cell.
func numberless(w wire) wire {
	w = maps.Clone(w)
	var results []any
	for _, r := range w["results"].([]any) {
		item := maps.Clone(r.(map[string]any))
		delete(item, "execution_count")
		results = append(results, item)
	}
	w["results"] = results
	if e, ok := w["error"].(map[string]any); ok {
		e = maps.Clone(e)
		delete(e, "traceback")
		w["error"] = e
	}
	return w
}
