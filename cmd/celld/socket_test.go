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
	Op     string `json:"op"`
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
	d.python()
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
	t.Run("many runs share it", func(t *testing.T) {
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
	t.Run("a program that doesn't read holds up nobody", func(t *testing.T) {
		s := d.socket(nil)
		s.send(m{"op": "run", "ref": "deaf", "kind": "command", "command": "exec sleep 98.5", "stdin_open": true})
		line := strings.Repeat("x", 1<<20)
		for range 10 {
			s.send(m{"op": "stdin", "ref": "deaf", "data": line})
		}
		s.send(m{"op": "run", "ref": "other", "kind": "command", "command": "cat", "stdin_open": true})
		s.send(m{"op": "stdin", "ref": "other", "data": "hi", "eof": true})
		refused := 0
		for e := s.next(); e.Ref != "other" || e.Type != "execution_complete"; e = s.next() {
			if e.Type == "refused" && e.Op == "stdin" && e.Status == http.StatusTooManyRequests && e.Ref == "deaf" {
				refused++
			} else if e.Ref == "other" && e.Type == "stdout" && e.Text != "hi" {
				t.Errorf("%+v", e)
			}
		}
		if refused == 0 || refused > 3 {
			t.Errorf("%d of 10 MiB were refused", refused)
		}
		s.send(m{"op": "interrupt", "ref": "deaf"})
		for e := s.next(); e.EID == 0 || e.Type != "error"; e = s.next() {
			if e.Type != "init" && e.Op != "stdin" {
				t.Errorf("%+v", e)
			}
		}
	})
	t.Run("what is asked at once after run is done", func(t *testing.T) {
		for i := range 20 {
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			s.send(m{"op": "run", "ref": a, "kind": "command", "command": "exec sleep 98.6"})
			s.send(m{"op": "interrupt", "ref": a})
			s.send(m{"op": "run", "ref": b, "kind": "command", "argv": []string{"sleep", "98.7"}})
			s.send(m{"op": "signal", "ref": b, "signal": "KILL"})
			ends := map[string]string{}
			for len(ends) < 2 {
				if e := s.next(); e.Type == "error" {
					ends[e.Ref] = e.Error.Ename + " " + e.Error.Evalue
				}
			}
			if !strings.HasPrefix(ends[a], "CommandInterrupted") || ends[b] != "CommandExecError 137" {
				t.Fatalf("%v", ends)
			}
		}
	})
	t.Run("a background command has started", func(t *testing.T) {
		s.send(m{"op": "run", "ref": "bg", "kind": "command", "command": "echo a; exec sleep 98.8", "background": true})
		all := s.rest("bg")
		if len(all) != 2 || all[1].Type != "execution_complete" || all[1].EID != 0 || all[1].ExitCode != nil {
			t.Errorf("%+v", all)
		}
		s.send(m{"op": "attach", "ref": "bg", "execution_id": all[0].ID, "after": 1})
		if e := s.next(); e.Type != "stdout" || e.Text != "a" {
			t.Errorf("%+v", e)
		}
		s.send(m{"op": "signal", "execution_id": all[0].ID, "signal": "TERM"})
		last := s.rest("bg")[0]
		if last.Type != "error" || last.Error.Evalue != "143" {
			t.Errorf("%+v", last)
		}
		s.send(m{"op": "attach", "ref": "bg", "execution_id": all[0].ID, "after": last.EID})
		if e := s.next(); e.Type != "status" || e.State != "ended" || e.Ref != "bg" || e.EID != 0 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("pings are answered while it is flooded", func(t *testing.T) {
		s := d.socket(nil)
		pongs := 0
		s.conn.SetPongHandler(func(string) error { pongs++; return nil })
		for i := range 4 {
			s.send(m{"op": "run", "ref": fmt.Sprint(i), "kind": "command", "command": "yes | head -c 40000"})
		}
		go func() {
			for i := range 200 {
				s.conn.WriteJSON(m{"op": "ping", "ref": fmt.Sprint("ping", i)})
				s.conn.WriteMessage(websocket.PingMessage, []byte("x"))
			}
			s.conn.WriteJSON(m{"op": "ping", "ref": "last"})
		}()
		lines, answers, ends := 0, 0, 0
		for last := false; ends < 4 || !last; {
			switch e := s.next(); {
			case e.Type == "stdout" && e.Text == "y":
				lines++
			case e.Type == "pong":
				answers++
				last = e.Ref == "last"
			case e.Type == "execution_complete":
				ends++
			case e.Type != "init":
				t.Fatalf("%+v", e)
			}
		}
		// A pong that waits to be sent goes before what is answered later.
		s.send(m{"op": "ping", "ref": "after"})
		if e := s.next(); e.Type != "pong" || e.Ref != "after" {
			t.Errorf("%+v", e)
		}
		if lines != 4*20_000 || answers != 201 || pongs == 0 {
			t.Errorf("%d lines, %d answers, %d pongs", lines, answers, pongs)
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
		s.send(m{"op": "run", "ref": "live", "kind": "command", "command": "exec sleep 98.9"})
		if e := s.next(); e.Type != "init" {
			t.Fatalf("%+v", e)
		}
		for text, want := range map[string]struct {
			kind   string // error ends its ref, refused does not
			status int
			word   string
		}{
			`{"op":"run","ref":"x","kind":"command","command":""}`:                                    {"error", 400, "command"},
			`{"op":"run","ref":"x","kind":"teapot"}`:                                                  {"error", 400, "teapot"},
			`{"op":"run","ref":"x","kind":"command","command":"true","after":"?"}`:                    {"error", 400, "after"},
			`{"op":"run","ref":"x","kind":"command","command":"true","timeout":-1}`:                   {"error", 400, "timeout"},
			`{"op":"run","ref":"x","kind":"command","command":"true","cwd":"/no"}`:                    {"error", 400, "/no"},
			`{"op":"run","ref":"x","kind":"session","session_id":"?","command":"true","create":true}`: {"error", 400, "id"},
			`{"op":"attach","ref":"x","execution_id":"none"}`:                                         {"error", 404, "none"},
			`{"op":"attach","execution_id":"none"}`:                                                   {"error", 404, "none"},
			`{"op":"attach","ref":"x"}`:                                                               {"error", 400, "execution_id"},
			`{"op":"run","kind":"command","command":"true"}`:                                          {"refused", 400, "ref"},
			`{"op":"run","ref":"live","kind":"command","command":"true"}`:                             {"refused", 409, "live"},
			`{"op":"run","ref":"live","kind":"command","command":""}`:                                 {"refused", 400, "command"},
			`{"op":"attach","ref":"live","execution_id":"none"}`:                                      {"refused", 404, "none"},
			`{"op":"signal","ref":"live","signal":"FOO"}`:                                             {"refused", 400, "FOO"},
			`{"op":"stdin","ref":"live","data":"x"}`:                                                  {"refused", 409, "input is not open"},
			`{"op":"input","ref":"live","value":"x"}`:                                                 {"refused", 400, "input"},
			`{"op":"dance","ref":"live"}`:                                                             {"refused", 400, "dance"},
			`{"op":"interrupt","ref":"none"}`:                                                         {"refused", 404, `"none"`},
			`{"op":"signal","ref":"none","signal":"TERM"}`:                                            {"refused", 404, `"none"`},
			`{"op":"interrupt","execution_id":"gone"}`:                                                {"refused", 404, `"gone"`},
			`{"op":"interrupt"}`:                                                                      {"refused", 400, "ref"},
			`{"op":"dance","ref":"x"}`:                                                                {"refused", 400, "dance"},
			`{}`:                                                                                      {"refused", 400, "op"},
			`not json`:                                                                                {"refused", 400, "JSON"},
		} {
			if err := s.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if e := s.next(); e.Type != want.kind || e.Status != want.status || e.EID != 0 || e.Error == nil || !strings.Contains(e.Error.Evalue, want.word) {
				t.Errorf("%s: %+v %+v", text, e, e.Error)
			}
		}
		s.send(m{"op": "run", "ref": "used", "kind": "command", "command": "cat", "stdin_open": true})
		s.send(m{"op": "run", "ref": "used", "kind": "command", "command": "true"})
		e := s.next()
		if e.Type == "init" {
			e = s.next()
		}
		if e.Type != "refused" || e.Status != 409 || e.Op != "run" || e.Ref != "used" {
			t.Errorf("a ref that is in use: %+v", e)
		}
		s.send(m{"op": "stdin", "ref": "used", "eof": true})
		s.rest("used")
		s.send(m{"op": "ping", "ref": "p"})
		if e := s.next(); e.Type != "pong" || e.Ref != "p" {
			t.Errorf("%+v", e)
		}
		s.send(m{"op": "interrupt", "ref": "live"})
		if all := s.rest("live"); len(all) != 1 || all[0].EID == 0 || all[0].Error.Ename != "CommandInterrupted" {
			t.Errorf("%+v", all)
		}
	})
	t.Run("who attaches too late is told", func(t *testing.T) {
		s.send(m{"op": "run", "ref": "slow", "kind": "command", "command": "read x", "stdin_open": true})
		id := s.next().ID
		other := d.socket(nil)
		other.send(m{"op": "attach", "execution_id": id, "after": 99999}) // it has not ended yet
		other.send(m{"op": "ping"})
		if e := other.next(); e.Type != "pong" {
			t.Errorf("%+v", e)
		}
		status := make(chan int, 1)
		go func() { status <- d.call("GET", "/executions/"+id+"/events?after=99999", nil, nil) }()
		s.send(m{"op": "stdin", "ref": "slow", "data": "\n"})
		s.rest("slow")
		if got := <-status; got != http.StatusNoContent {
			t.Errorf("HTTP answers %d", got)
		}
		for range 2 {
			if e := other.next(); e.Type != "status" || e.State != "ended" || e.Ref != id || e.EID != 0 {
				t.Errorf("%+v", e)
			}
			other.send(m{"op": "attach", "execution_id": id, "after": 99999})
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
