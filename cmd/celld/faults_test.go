package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
)

// narrowDialer makes connections that take little more than what is read.
var narrowDialer = net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
	cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10) })
	return errors.Join(cerr, err)
}}

// limited is a connection that breaks when so much has been read.
type limited struct {
	*net.TCPConn
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := l.TCPConn.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// client is a connection that asks for one run and can be bad in every way.
type client struct {
	t     *testing.T
	conn  *limited
	ws    *websocket.Conn
	read  *bufio.Reader // lines of the answers, chunks and frames taken apart
	body  *answerBody
	raw   bool  // output comes with its line ends
	last  int64 // position of the newest whole event
	text  strings.Builder
	over  bool
	err   error // why there is no more
	pongs int
}

// form is a way to be told of a run.
type form struct {
	name, accept string
	socket       bool
}

var forms = []form{{"SSE", "text/event-stream", false}, {"NDJSON", "application/x-ndjson", false}, {"JSON", "application/json", false}, {"WebSocket", "", true}}

// ask sends a request of the form: a run, or what comes after a position of one.
func (f form) ask(d *daemon, run m, id string, after int64) *client {
	d.t.Helper()
	c := &client{t: d.t, last: after}
	e, _ := run["output"].(string)
	c.raw = e == "raw"
	address := strings.TrimPrefix(d.url, "http://")
	conn, err := narrowDialer.DialContext(d.t.Context(), "tcp", address)
	if err != nil {
		d.t.Fatal(err)
	}
	c.conn = &limited{conn.(*net.TCPConn), 1 << 30}
	d.t.Cleanup(func() { c.conn.Close() })
	if f.socket {
		dialer := websocket.Dialer{NetDialContext: func(context.Context, string, string) (net.Conn, error) { return c.conn, nil }}
		var err error
		c.ws, _, err = dialer.DialContext(d.t.Context(), "ws://"+address+"/ws", nil)
		if err != nil {
			d.t.Fatal(err)
		}
		message := with(m{"op": "attach", "ref": "r", "execution_id": id, "after": after}, nil)
		if run != nil {
			message = with(m{"op": "run", "ref": "r", "kind": "command"}, []m{run})
		}
		if err := c.ws.WriteJSON(message); err != nil {
			d.t.Fatal(err)
		}
		c.read = bufio.NewReader(&messages{ws: c.ws})
		return c
	}
	method, path, text := http.MethodGet, fmt.Sprintf("/executions/%s/events?after=%d", id, after), []byte(nil)
	if run != nil {
		method, path = http.MethodPost, "/command"
		if text, err = json.Marshal(run); err != nil {
			d.t.Fatal(err)
		}
	}
	req, err := http.NewRequest(method, d.url+path, bytes.NewReader(text))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Accept", f.accept)
	if err := req.Write(c.conn); err != nil {
		d.t.Fatal(err)
	}
	c.body = &answerBody{raw: bufio.NewReader(c.conn), req: req}
	c.read = bufio.NewReader(c.body)
	return c
}

// again goes on to the answer to the next request.
func (c *client) again() {
	c.body.body = nil
	c.over = false
	c.text.Reset()
}

// messages are a WebSocket's as lines.
type messages struct {
	ws   *websocket.Conn
	rest []byte
}

func (r *messages) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		_, text, err := r.ws.ReadMessage()
		if err != nil {
			return 0, err
		}
		r.rest = append(text, '\n')
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// answerBody is the body of an answer that may not have come yet.
type answerBody struct {
	raw  *bufio.Reader
	req  *http.Request
	body io.ReadCloser
}

func (r *answerBody) Read(p []byte) (int, error) {
	if r.body == nil {
		resp, err := http.ReadResponse(r.raw, r.req)
		if err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("status %d", resp.StatusCode)
		}
		r.body = resp.Body
	}
	return r.body.Read(p)
}

// next takes one event, or the one answer. ok is false at the end or the break of the answer.
func (c *client) next() (ok bool) {
	c.t.Helper()
	for !c.over || c.ws == nil {
		line, err := c.read.ReadBytes('\n')
		if err != nil && (len(line) == 0 || err != io.EOF) {
			c.err = err
			return false
		}
		if line = bytes.TrimPrefix(line, []byte("data: ")); line[0] != '{' {
			continue
		}
		var e event
		var one struct{ Stdout *string }
		if err := json.Unmarshal(line, &one); err != nil {
			c.t.Fatalf("%.200q: %v", line, err)
		}
		if one.Stdout != nil {
			c.text.WriteString(*one.Stdout)
			c.over = true
			return true
		}
		if err := json.Unmarshal(line, &e); err != nil {
			c.t.Fatalf("%.200q: %v", line, err)
		}
		switch {
		case c.over:
			c.t.Fatalf("after the end: %s", line)
		case e.Type == "pong":
			c.pongs++
		case e.Type == "ping", e.Type == "init":
		case e.Type == "stdout":
			if c.text.WriteString(e.Text); !c.raw {
				c.text.WriteByte('\n')
			}
		case e.Type == "execution_complete" || e.Type == "error":
			c.over = true
		default:
			c.t.Fatalf("%s", line)
		}
		c.last = max(c.last, e.EID)
		return true
	}
	return false
}

// running returns the id of a run that has begun, by what is in its text.
func (d *daemon) running(marker string) string {
	d.t.Helper()
	var all []struct {
		ID      string `json:"execution_id"`
		Content string
	}
	d.call("GET", "/executions?kind=command", nil, &all)
	for _, e := range all {
		if strings.Contains(e.Content, marker) {
			return e.ID
		}
	}
	return ""
}

// TestBadClients: whatever a client does to a writer, its run ends or goes on as was asked, others don't notice, and what
// it has missed can be had.
func TestBadClients(t *testing.T) {
	d := start(t, launch{raw: true}).bare()
	var stalled []*stalling // while the others are bad
	for _, f := range forms {
		stalled = append(stalled, d.stall(f))
	}
	for _, f := range forms {
		for name, test := range map[string]func(*daemon, form){
			"vanishes": vanishes, "cuts in mid-frame": cutsInside, "floods": floods,
		} {
			t.Run(f.name+" "+name, func(t *testing.T) { test(d.in(t), f) })
		}
	}
	for _, s := range stalled {
		t.Run(s.form.name+" stalls", func(t *testing.T) { s.check(d.in(t)) })
	}
}

// vanishes: the run of a client that has gone is ended, be it in the middle of much output or of silence.
func vanishes(d *daemon, f form) {
	for i, text := range []string{"exec sleep 986.5", "while :; do echo xxxxxxxxxxxxxxxxxxxx; done"} {
		marker := fmt.Sprintf("# vanishes %s %d", f.name, i)
		g := d.gate()
		c := f.ask(d, m{"command": marker + "\n" + g.pass() + "; " + text}, "", 0)
		g.open()
		id := d.running(marker)
		c.conn.SetLinger(0) // a reset, as of a client that dies
		c.conn.Close()
		if code := d.awaitExit(id); code != 143 {
			d.t.Errorf("%s: status %d", text, code)
		}
	}
}

// stalling is a client that takes nothing: it holds its program up for 30 s, then it is given up. Others don't notice, and
// it can come back.
type stalling struct {
	form form
	c    *client
	id   string
}

func (d *daemon) stall(f form) *stalling {
	marker := "# stalls " + f.name
	g := d.gate()
	c := f.ask(d, m{"command": fmt.Sprintf("%s\n%s; seq 1 2000000", marker, g.pass()), "output": "raw", "on_disconnect": "continue"}, "", 0)
	g.open()
	return &stalling{f, c, d.running(marker)}
}

func (s *stalling) check(d *daemon) {
	const size = 14_888_896
	f, c, id := s.form, s.c, s.id
	c.t = d.t
	if code := d.awaitExit(id); code != 0 {
		d.t.Errorf("status %d", code)
	}
	for c.next() {
	}
	if f.accept == "application/json" { // which had time enough
		if n := c.text.Len(); !c.over || n != 1<<20 {
			d.t.Errorf("%d bytes", n)
		}
		return
	}
	if c.over {
		d.t.Error("all of it came to who had been given up")
	}
	if f.socket && websocket.IsCloseError(c.err, websocket.CloseNormalClosure) {
		d.t.Errorf("the connection ended with %v", c.err)
	}
	back := f.ask(d, nil, id, c.last)
	back.raw = true
	for back.next() {
	}
	if n := c.text.Len() + back.text.Len(); n != size || !back.over {
		d.t.Errorf("%d bytes, and then %d", c.text.Len(), back.text.Len())
	}
}

// cutsInside: what came of a cut event doesn't count, and the rest can be had in the same way. Of a cut request
// nothing happens.
func cutsInside(d *daemon, f form) {
	marker := "# cuts " + f.name
	half := fmt.Sprintf("POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"command\":\"# half %s", f.name)
	if f.socket {
		half = "\x81\xfe\x40\x00\x00\x00\x00\x00" + `{"op":"run","ref":"half","kind":"command","command":"# half ` + f.name
	}
	c := f.ask(d, m{"command": "true"}, "", 0)
	for c.next() {
	}
	if _, err := io.WriteString(c.conn, half); err != nil {
		d.t.Error(err)
	}
	c.conn.Close()

	const lines, size = 20_000, 108_894
	g := d.gate()
	c = f.ask(d, m{"command": fmt.Sprintf("%s\n%s; seq 1 %d", marker, g.pass(), lines), "on_disconnect": "continue"}, "", 0)
	g.open()
	id := d.running(marker)
	var text strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	cuts := 0
	for ; !c.over; cuts++ {
		c.conn.left = 1 + random.IntN(300_000)
		if f.accept == "application/json" {
			c.conn.left = 1 + random.IntN(size/2)
		}
		if cuts > 20 {
			c.conn.left = 1 << 30
		}
		for c.next() {
		}
		text.WriteString(c.text.String())
		c.conn.Close()
		if !c.over {
			c = f.ask(d, nil, id, c.last)
		}
	}
	if text.Len() != size || cuts < 3 {
		d.t.Errorf("%d bytes after %d cuts", text.Len(), cuts)
	}
	if id := d.running("# half " + f.name); id != "" {
		d.t.Error("half of a request was carried out")
	}
}

// floods: a client asks and asks before it reads anything.
func floods(d *daemon, f form) {
	wrote := make(chan error, 1)
	if f.socket { // until it is given up
		marker := "# floods"
		g := d.gate()
		c := f.ask(d, m{"command": marker + "\n" + g.pass() + "; exec sleep 986.6"}, "", 0)
		g.open()
		id := d.running(marker)
		done := make(chan struct{})
		go func() {
			for err := error(nil); ; err = c.ws.WriteMessage(websocket.TextMessage, []byte(`{"op":"ping","ref":"`+strings.Repeat("x", 1000)+`"}`)) {
				select {
				case <-done:
					wrote <- err
					return
				default:
				}
			}
		}()
		if code := d.awaitExit(id); code != 143 {
			d.t.Errorf("status %d", code)
		}
		close(done)
		if err := <-wrote; err != nil {
			d.t.Errorf("the server didn't read on: %v", err)
		}
		for c.next() {
		}
		if c.pongs == 0 || !websocket.IsCloseError(c.err, 4002) {
			d.t.Errorf("%d answers, then %v", c.pongs, c.err)
		}
		return
	}
	const requests = 200
	c := f.ask(d, m{"command": "echo 0"}, "", 0)
	go func() {
		var err error
		for i := 1; i < requests && err == nil; i++ {
			text := fmt.Sprintf(`{"command":"echo %d"}`, i)
			_, err = fmt.Fprintf(c.conn, "POST /command HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", f.accept, len(text), text)
		}
		wrote <- err
	}()
	if err := <-wrote; err != nil {
		d.t.Errorf("the server didn't take them: %v", err)
	}
	for i := range requests {
		for c.next() {
		}
		if got := c.text.String(); got != fmt.Sprintln(i) || !c.over {
			d.t.Fatalf("answer %d: %q", i, got)
		}
		c.again()
	}
}
