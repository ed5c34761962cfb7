package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
)

// socket is a client of /ws.
type socket struct {
	t    *testing.T
	conn *websocket.Conn
}

func (d *daemon) socket(header http.Header) *socket {
	d.t.Helper()
	conn, resp, err := websocket.DefaultDialer.DialContext(d.t.Context(), "ws"+strings.TrimPrefix(d.url, "http")+"/ws", header)
	if err != nil {
		d.t.Fatalf("%v %+v", err, resp)
	}
	d.t.Cleanup(func() { conn.Close() })
	return &socket{d.t, conn}
}

func (s *socket) send(v any) {
	s.t.Helper()
	if err := s.conn.WriteJSON(v); err != nil {
		s.t.Fatal(err)
	}
}

// refEvent is an event with the name of its run.
type refEvent struct {
	event
	Ref    string `json:"ref"`
	Status int    `json:"status"`
}

func (s *socket) next() refEvent {
	s.t.Helper()
	for {
		_, text, err := s.conn.ReadMessage()
		if err != nil {
			s.t.Fatal(err)
		}
		var e refEvent
		if err := json.Unmarshal(text, &e); err != nil {
			s.t.Fatalf("%q: %v", text, err)
		}
		if e.Type != "ping" {
			return e
		}
	}
}

// rest reads to the terminal event of ref and returns ref's events.
func (s *socket) rest(ref string) []refEvent {
	s.t.Helper()
	var all []refEvent
	for {
		e := s.next()
		if e.Ref != ref {
			continue
		}
		all = append(all, e)
		if e.Type == "execution_complete" || e.Type == "error" {
			return all
		}
	}
}

func textOf(all []refEvent, kind string) string {
	var b strings.Builder
	for _, e := range all {
		if e.Type == kind {
			b.WriteString(e.Text)
		}
	}
	return b.String()
}

func TestSocket(t *testing.T) {
	d := start(t, launch{raw: true})
	s := d.socket(nil)

	t.Run("runs every kind", func(t *testing.T) {
		runs := map[string]m{
			"command": {"kind": "command", "command": "echo ok; echo no >&2"},
			"session": {"kind": "session", "session_id": "w", "create": true, "command": "echo ok"},
			"code":    {"kind": "code", "context": m{"language": "python"}, "code": "print('ok')"},
		}
		for ref, run := range runs {
			run["op"], run["ref"] = "run", ref
			s.send(run)
			all := s.rest(ref)
			if all[0].Type != "init" || strings.TrimSpace(textOf(all, "stdout")) != "ok" || all[len(all)-1].Type != "execution_complete" {
				t.Errorf("%s: %+v", ref, all)
			}
		}
	})
	t.Run("a thousand runs share it", func(t *testing.T) {
		const n = 200
		for i := range n {
			s.send(m{"op": "run", "ref": fmt.Sprint(i), "kind": "command", "command": fmt.Sprintf("echo %d; exit %d", i, i%3)})
		}
		got := map[string][]refEvent{}
		for ends := 0; ends < n; {
			e := s.next()
			got[e.Ref] = append(got[e.Ref], e)
			if e.Type == "execution_complete" || e.Type == "error" {
				ends++
			}
		}
		for i := range n {
			all := got[fmt.Sprint(i)]
			last := all[len(all)-1]
			if textOf(all, "stdout") != fmt.Sprint(i) || last.ExitCode == nil || *last.ExitCode != i%3 {
				t.Errorf("run %d: %+v", i, all)
			}
		}
	})
	t.Run("stdin, signal, interrupt", func(t *testing.T) {
		s.send(m{"op": "run", "ref": "cat", "kind": "command", "command": "cat; echo end", "stdin_open": true})
		s.send(m{"op": "run", "ref": "slow", "kind": "command", "command": "echo up; exec sleep 98.1"})
		s.send(m{"op": "run", "ref": "trap", "kind": "command", "command": "trap 'echo got; exit 5' USR1; echo up; sleep 98.2 & wait"})
		for up := 0; up < 2; {
			if e := s.next(); e.Text == "up" {
				up++
			}
		}
		s.send(m{"op": "stdin", "ref": "cat", "data": "a line\n"})
		s.send(m{"op": "stdin", "ref": "cat", "data": "more\n", "eof": true})
		if all := s.rest("cat"); textOf(all, "stdout") != "a linemoreend" {
			t.Errorf("cat: %+v", all)
		}
		s.send(m{"op": "signal", "ref": "trap", "signal": "USR1"})
		if all := s.rest("trap"); all[len(all)-1].Error == nil || all[len(all)-1].Error.Evalue != "5" {
			t.Errorf("trap: %+v", all)
		}
		s.send(m{"op": "interrupt", "ref": "slow"})
		if all := s.rest("slow"); all[len(all)-1].Error == nil || all[len(all)-1].Error.Ename != "CommandInterrupted" {
			t.Errorf("slow: %+v", all)
		}
	})
	t.Run("attach continues after a position", func(t *testing.T) {
		s.send(m{"op": "run", "ref": "first", "kind": "command", "command": "seq 1 1000", "on_disconnect": "continue"})
		all := s.rest("first")
		id, after := all[0].ID, all[500].EID
		other := d.socket(nil)
		other.send(m{"op": "attach", "ref": "again", "execution_id": id, "after": after})
		var a, b []string
		for _, e := range all[501:] {
			a = append(a, e.Text)
		}
		for _, e := range other.rest("again") {
			b = append(b, e.Text)
		}
		if !slices.Equal(a, b) {
			t.Errorf("got %d events, want %d", len(b), len(a))
		}
	})
	t.Run("what is wrong is told", func(t *testing.T) {
		for text, want := range map[string]int{
			`{"op":"run","ref":"x","kind":"command","command":""}`:                                    400,
			`{"op":"run","ref":"x","kind":"teapot"}`:                                                  400,
			`{"op":"run","kind":"command","command":"true"}`:                                          400,
			`{"op":"run","ref":"x","kind":"command","command":"true","timeout":-1}`:                   400,
			`{"op":"run","ref":"x","kind":"command","command":"true","cwd":"/no"}`:                    400,
			`{"op":"run","ref":"x","kind":"session","session_id":"?","command":"true","create":true}`: 400,
			`{"op":"attach","ref":"x","execution_id":"none"}`:                                         404,
			`{"op":"interrupt","ref":"none"}`:                                                         404,
			`{"op":"dance","ref":"x"}`:                                                                404,
			`not json`:                                                                                400,
		} {
			if err := s.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if e := s.next(); e.Type != "error" || e.Status != want {
				t.Errorf("%s: %+v", text, e)
			}
		}
		s.send(m{"op": "ping", "ref": "p"})
		if e := s.next(); e.Type != "pong" || e.Ref != "p" {
			t.Errorf("%+v", e)
		}
	})
	t.Run("runs end with it unless told otherwise", func(t *testing.T) {
		other := d.socket(nil)
		other.send(m{"op": "run", "ref": "k", "kind": "command", "command": "exec sleep 98.3"})
		other.send(m{"op": "run", "ref": "c", "kind": "command", "command": "exec sleep 98.4", "on_disconnect": "continue"})
		killed, kept := "", ""
		for killed == "" || kept == "" {
			if e := other.next(); e.Type == "init" && e.Ref == "k" {
				killed = e.ID
			} else if e.Type == "init" {
				kept = e.ID
			}
		}
		other.conn.Close()
		if o := d.open("/executions/"+killed+"/events", nil).rest(); o.failed() != "CommandInterrupted" {
			t.Errorf("%+v", o.end)
		}
		var st struct{ Running bool }
		if d.call("GET", "/command/status/"+kept, nil, &st); !st.Running {
			t.Error("the other one was ended too")
		}
		d.call("DELETE", "/command?id="+kept, nil, nil)
	})
}

func TestEveryFormTellsTheSame(t *testing.T) {
	d := start(t, launch{})
	cases := map[string]struct {
		path string
		body m
	}{
		"command": {"/command", m{"command": "printf 'a\\n\\nb'; exit 4"}},
		"session": {"/session/f/run", m{"command": "printf 'a\\n\\nb'; (exit 4)", "create": true}},
		"code":    {"/code", m{"context": m{"language": "python"}, "code": "print('a')\n1/0"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			sse := d.open(tc.path, tc.body).rest()
			resp := d.do("POST", tc.path, tc.body, "Accept", "application/x-ndjson")
			lines := json.NewDecoder(resp.Body)
			var types, texts []string
			for {
				var e event
				if err := lines.Decode(&e); err != nil {
					break
				}
				types = append(types, e.Type)
				if e.Type == "stdout" {
					texts = append(texts, e.Text)
				}
			}
			resp.Body.Close()
			var want []string
			for _, e := range sse.events {
				want = append(want, e.Type)
			}
			if !slices.Equal(types, want) || !slices.Equal(texts, sse.stdout) {
				t.Errorf("NDJSON: %v %q; SSE: %v %q", types, texts, want, sse.stdout)
			}
			var one struct {
				Stdout   string
				ExitCode *int `json:"exit_code"`
				Error    *struct{ Ename, Evalue string }
			}
			if code := d.call("POST", tc.path, tc.body, &one, "Accept", "application/json"); code != 200 {
				t.Errorf("JSON: %d", code)
			}
			raw := d.open(tc.path, with(tc.body, []m{{"output": "raw"}})).rest()
			if one.Stdout != raw.out() || one.Error == nil || one.Error.Ename != sse.failed() || one.Error.Evalue != sse.end.Error.Evalue {
				t.Errorf("JSON: %+v, SSE: %q %+v", one, raw.out(), sse.end)
			}
		})
	}
}

func TestAnOperationIsCarriedOutOnce(t *testing.T) {
	d := start(t, launch{})
	var instance struct {
		ID     string `json:"instance_id"`
		Issued int64  `json:"issued_at"`
	}
	d.call("GET", "/execution/instance", nil, &instance)
	id := fmt.Sprintf("%s.%d.token-1234", instance.ID, instance.Issued)
	body := m{"operation_id": id, "command": "echo x >>" + d.ws + "/count"}
	var mu sync.Mutex
	handles := map[string]bool{}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			var op struct{ ID, State string }
			code := d.call("POST", "/command/operations", body, &op)
			if code != 200 && code != 202 {
				t.Errorf("%d %+v", code, op)
			}
			mu.Lock()
			handles[op.ID] = true
			mu.Unlock()
		})
	}
	wg.Wait()
	delete(handles, "") // asked while it was under way
	if len(handles) != 1 {
		t.Fatalf("handles: %v", handles)
	}
	for handle := range handles {
		d.open("/executions/"+handle+"/events", nil).rest()
	}
	if o := d.command("cat " + d.ws + "/count"); !slices.Equal(o.stdout, []string{"x"}) {
		t.Errorf("it ran %d times", len(o.stdout))
	}
	var op struct{ State string }
	if code := d.call("GET", "/execution/operation?kind=command", nil, &op, "X-EXECD-OPERATION-ID", id); code != 200 || op.State != "created" {
		t.Errorf("%d %+v", code, op)
	}
	d.refused(409, "POST", "/command/operations", m{"operation_id": id, "command": "true"})
	other := strings.Repeat("0", 32)
	d.refused(409, "POST", "/command/operations", m{"operation_id": fmt.Sprintf("%s.%d.token-1234", other, instance.Issued), "command": "true"})
	d.refused(410, "POST", "/command/operations", m{"operation_id": fmt.Sprintf("%s.%d.token-1234", instance.ID, instance.Issued-3600), "command": "true"})
	d.refused(400, "POST", "/command/operations", m{"operation_id": "nonsense", "command": "true"})
	d.refused(404, "GET", "/execution/operation?kind=command", nil, "X-EXECD-OPERATION-ID", id+"5")
}
