package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
)

// tty is a client of a terminal. A goroutine reads what comes and checks its shape: the replay, then connected, then
// output; every replayed byte where its offset says.
type tty struct {
	t    *testing.T
	id   string
	conn *websocket.Conn
	done chan struct{} // closed when the connection has ended

	mu    sync.Mutex
	more  *sync.Cond
	from  int64  // offset of the first byte of out
	out   []byte // output, replayed and live; on pipes stdout and stderr after another
	err   []byte // stderr, of that
	seen  int    // of out, by until
	texts []ttyText
	read  int // of texts, by message
	live  bool
	end   error // why the connection has ended
}

// ttyText is a text message.
type ttyText struct {
	Type      string `json:"type"`
	SessionID string `json:"session_id"`
	Mode      string `json:"mode"`
	Role      string `json:"role"`
	Offset    int64  `json:"offset"`
	ExitCode  *int   `json:"exit_code"`
	Code      string `json:"code"`
	Error     string `json:"error"`
}

// pty creates a terminal. A shell in it reads nobody's .bashrc.
func (d *daemon) pty(body ...m) string {
	d.t.Helper()
	all := with(m{}, body)
	envs, _ := all["envs"].(m)
	all["envs"] = with(m{"HOME": d.ws}, []m{envs})
	var made struct {
		SessionID string `json:"session_id"`
	}
	if status := d.call(http.MethodPost, "/pty", all, &made); status != http.StatusCreated || made.SessionID == "" {
		d.t.Fatalf("create a terminal: %d %+v", status, made)
	}
	return made.SessionID
}

func (d *daemon) dial(id, query string, header http.Header) (*websocket.Conn, *http.Response, error) {
	dialer := websocket.Dialer{ReadBufferSize: 64 << 10, NetDialContext: d.netDial}
	return dialer.DialContext(d.t.Context(), "ws"+strings.TrimPrefix(d.url, "http")+"/pty/"+id+"/ws?"+query, header)
}

// connect connects to a terminal without reading.
func (d *daemon) connect(id, query string) *tty {
	d.t.Helper()
	conn, resp, err := d.dial(id, query, nil)
	if err != nil {
		d.t.Fatalf("connect with %q: %v %+v", query, err, resp)
	}
	c := &tty{t: d.t, id: id, conn: conn, done: make(chan struct{})}
	c.more = sync.NewCond(&c.mu)
	return c
}

// attach connects to a terminal and reads.
func (d *daemon) attach(id, query string) *tty {
	d.t.Helper()
	c := d.connect(id, query)
	c.start()
	return c
}

func (c *tty) start() {
	go c.run()
	c.t.Cleanup(c.close)
}

// close drops the connection as a client does that goes away, and waits for the reader.
func (c *tty) close() {
	c.conn.Close()
	<-c.done
}

func (c *tty) run() {
	defer close(c.done)
	for {
		kind, data, err := c.conn.ReadMessage()
		c.mu.Lock()
		if err != nil {
			c.end = err
		} else {
			c.take(kind, data)
		}
		c.more.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *tty) take(kind int, data []byte) {
	if kind == websocket.TextMessage {
		var x ttyText
		if err := json.Unmarshal(data, &x); err != nil {
			c.t.Errorf("%q: %v", data, err)
		}
		if x.Type == "connected" {
			if c.live = true; len(c.out) == 0 { // nothing to replay
				c.from = x.Offset
			}
		}
		c.texts = append(c.texts, x)
		return
	}
	switch {
	case data[0] == 0x03 && !c.live && len(data) > 9:
		offset := int64(binary.BigEndian.Uint64(data[1:]))
		if len(c.out) == 0 {
			c.from = offset
		} else if offset != c.from+int64(len(c.out)) {
			c.t.Errorf("a replay at %d follows %d", offset, c.from+int64(len(c.out)))
		}
		c.out = append(c.out, data[9:]...)
	case data[0] == 0x01 && c.live:
		c.out = append(c.out, data[1:]...)
	case data[0] == 0x02 && c.live:
		c.out, c.err = append(c.out, data[1:]...), append(c.err, data[1:]...)
	default:
		c.t.Errorf("frame %#x of %d bytes, live: %v", data[0], len(data), c.live)
	}
}

// until waits for text in the output and returns what came before it since the last call.
func (c *tty) until(text string) string {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for looked := 0; ; c.more.Wait() {
		from := max(c.seen, looked-len(text))
		if i := bytes.Index(c.out[from:], []byte(text)); i >= 0 {
			before := string(c.out[c.seen : from+i])
			c.seen = from + i + len(text)
			return before
		}
		looked = len(c.out)
		if c.end != nil {
			c.t.Fatalf("the connection ended with %v before %q, after %q; %+v", c.end, text, c.out[max(c.seen, len(c.out)-1000):], c.texts)
		}
	}
}

// grown waits until there are n bytes of output.
func (c *tty) grown(n int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(c.out) < n; c.more.Wait() {
		if c.end != nil {
			c.t.Fatalf("the connection ended with %v after %d bytes", c.end, len(c.out))
		}
	}
}

// stderr waits until there are n bytes of stderr, which comes on a way of its own, and returns them.
func (c *tty) stderr(n int) string {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(c.err) < n; c.more.Wait() {
		if c.end != nil {
			c.t.Fatalf("the connection ended with %v after %q on stderr", c.end, c.err)
		}
	}
	return string(c.err)
}

// message waits for the next text message of a type and passes over others.
func (c *tty) message(kind string) ttyText {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; ; c.more.Wait() {
		for c.read < len(c.texts) {
			x := c.texts[c.read]
			c.read++
			if x.Type == kind {
				return x
			}
		}
		if c.end != nil {
			c.t.Fatalf("the connection ended with %v before a message %s, after %q", c.end, kind, c.out[max(0, len(c.out)-1000):])
		}
	}
}

// typed sends input.
func (c *tty) typed(text string) {
	c.t.Helper()
	if err := c.conn.WriteMessage(websocket.BinaryMessage, append([]byte{0}, text...)); err != nil {
		c.t.Fatal(err)
	}
}

// say sends a text message.
func (c *tty) say(v any) {
	c.t.Helper()
	if err := c.conn.WriteJSON(v); err != nil {
		c.t.Fatal(err)
	}
}

// ended waits for the end of the connection and returns the close code; 0 if there was none.
func (c *tty) ended() int {
	c.t.Helper()
	<-c.done
	var closed *websocket.CloseError
	if !errors.As(c.end, &closed) {
		return 0
	}
	return closed.Code
}

// exit waits for the end of the program and returns its exit code.
func (c *tty) exit() int {
	c.t.Helper()
	x := c.message("exit")
	if code := c.ended(); code != websocket.CloseNormalClosure || x.ExitCode == nil {
		c.t.Errorf("closed with %d after %+v", code, x)
		return -1
	}
	if last := c.texts[len(c.texts)-1]; last.Type != "exit" {
		c.t.Errorf("%+v comes after the exit", last)
	}
	return *x.ExitCode
}

// text is all output so far.
func (c *tty) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.out)
}

// offset is that of the next byte.
func (c *tty) offset() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.from + int64(len(c.out))
}

// ptyStatus is what GET /pty/{id} tells.
type ptyStatus struct {
	SessionID       string `json:"session_id"`
	Running         bool   `json:"running"`
	OutputOffset    int64  `json:"output_offset"`
	LaunchAttempted bool   `json:"launch_attempted"`
	LaunchFailed    bool   `json:"launch_failed"`
	Connected       bool   `json:"connected"`
	Mode            string `json:"mode"`
	PID             int    `json:"pid"`
	ExitCode        *int   `json:"exit_code"`
}

func (d *daemon) ptyStatus(id string) (s ptyStatus) {
	d.t.Helper()
	if code := d.call(http.MethodGet, "/pty/"+id, nil, &s); code != http.StatusOK {
		d.t.Fatalf("GET /pty/%s: %d", id, code)
	}
	return s
}

// printed waits until a terminal's program has printed n bytes, whoever reads them.
func (d *daemon) printed(id string, n int64) {
	d.t.Helper()
	for {
		s := d.ptyStatus(id)
		if s.OutputOffset >= n {
			return
		}
		if s.LaunchFailed || s.ExitCode != nil {
			d.t.Fatalf("the program has ended before it printed %d bytes: %+v", n, s)
		}
	}
}

func TestTerminalFromItsCreationToItsDeletion(t *testing.T) {
	d := start(t, launch{})
	id := d.pty(m{"cwd": "/", "cols": 100, "rows": 30, "envs": m{"A": "b c"}})
	if s := d.ptyStatus(id); s.Running || s.LaunchAttempted || s.LaunchFailed || s.OutputOffset != 0 || s.PID != 0 {
		t.Errorf("before its start: %+v", s)
	}
	c := d.attach(id, "")
	if x := c.message("connected"); x.SessionID != id || x.Mode != "pty" || x.Role != "holder" {
		t.Errorf("%+v", x)
	}
	c.typed("echo $PWD:$A:$TERM:$((6*7)); stty size\r")
	if c.until("/:b c:xterm-256color:42\r\n"); c.until("\r\n") != "30 100" {
		t.Errorf("%q", c.text())
	}
	s := d.ptyStatus(id)
	if !s.Running || !s.LaunchAttempted || s.PID == 0 || !s.Connected || s.Mode != "pty" || s.OutputOffset == 0 {
		t.Errorf("while it runs: %+v", s)
	}
	c.typed("exit 7\r")
	if code := c.exit(); code != 7 {
		t.Errorf("exit code %d", code)
	}
	s = d.ptyStatus(id)
	if s.Running || s.ExitCode == nil || *s.ExitCode != 7 || s.OutputOffset != c.offset() {
		t.Errorf("after the end, at offset %d: %+v", c.offset(), s)
	}

	again := d.attach(id, "since=10")
	if code := again.exit(); code != 7 || again.from != 10 || again.text() != c.text()[10:] {
		t.Errorf("after the end: exit code %d, %q from %d", code, again.text(), again.from)
	}
	var list []ptyStatus
	if d.call(http.MethodGet, "/pty", nil, &list); len(list) != 1 || list[0].SessionID != id {
		t.Errorf("listed: %+v", list)
	}
	if status := d.call(http.MethodDelete, "/pty/"+id, nil, nil); status != http.StatusOK {
		t.Errorf("deleted: %d", status)
	}
	d.refused(http.StatusNotFound, http.MethodGet, "/pty/"+id, nil)
	d.refused(http.StatusNotFound, http.MethodDelete, "/pty/"+id, nil)
	d.refused(http.StatusNotFound, http.MethodGet, "/pty/"+id+"/ws", nil)
	if d.call(http.MethodGet, "/pty", nil, &list); len(list) != 0 {
		t.Errorf("listed: %+v", list)
	}
}

func TestTerminalRequestsThatCannotBeServed(t *testing.T) {
	d := start(t, launch{args: []string{"--max-terminals=2"}})
	for _, bad := range []m{
		{"cwd": "/no/such"}, {"cwd": "/etc/passwd"}, {"gid": 1}, {"cols": -1}, {"rows": 65536}, {"envs": m{"a b": "c"}},
		{"command": "a\x00b"}, {"command": 5}, {"command": strings.Repeat("x", 200_000)},
	} {
		d.refused(http.StatusBadRequest, http.MethodPost, "/pty", bad)
	}
	d.refused(http.StatusBadRequest, http.MethodPost, "/pty", `{"cwd":`)
	id := d.pty(m{"cwd": "$D", "envs": m{"D": "/"}})
	for _, query := range []string{"since=-1", "since=x", "since=9223372036854775808", "mode=x", "pty=2", "takeover=maybe"} {
		d.refused(http.StatusBadRequest, http.MethodGet, "/pty/"+id+"/ws?"+query, nil)
		if _, resp, err := d.dial(id, query, nil); err == nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v %+v", query, err, resp)
		}
	}
	d.refused(http.StatusBadRequest, http.MethodGet, "/pty/"+id+"/ws", nil) // not a WebSocket
	if s := d.ptyStatus(id); s.LaunchAttempted || s.Connected {
		t.Errorf("refused connections have started it: %+v", s)
	}
	d.refused(http.StatusNotFound, http.MethodGet, "/pty/"+strings.Repeat("0", 32), nil)
	command := d.command("true").init.ID
	d.refused(http.StatusNotFound, http.MethodGet, "/pty/"+command, nil)
	d.refused(http.StatusNotFound, http.MethodDelete, "/pty/"+command, nil)
	d.pty()
	d.refused(http.StatusTooManyRequests, http.MethodPost, "/pty", nil)
	if status := d.call(http.MethodDelete, "/pty/"+id, nil, nil); status != http.StatusOK { // never started
		t.Errorf("deleted: %d", status)
	}
	d.pty()
}

func TestTerminalWhoseDirectoryIsGoneFailsToStart(t *testing.T) {
	d := start(t, launch{})
	d.command("mkdir gone")
	id := d.pty(m{"cwd": "gone"})
	d.command("rmdir gone")
	c := d.attach(id, "")
	if x := c.message("error"); x.Code != "START_FAILED" || !strings.Contains(x.Error, "gone") {
		t.Errorf("%+v", x)
	}
	if code := c.ended(); code != websocket.CloseInternalServerErr {
		t.Errorf("closed with %d", code)
	}
	if s := d.ptyStatus(id); !s.LaunchAttempted || !s.LaunchFailed || s.Running {
		t.Errorf("%+v", s)
	}
}

func TestTerminalNeedsTheTokenAndAKnownOriginBeforeTheUpgrade(t *testing.T) {
	d := start(t, launch{args: []string{"--access-token=secret"}})
	id := strings.Repeat("0", 32)
	for name, header := range map[string]http.Header{
		"no token": nil, "wrong token": {"Authorization": {"Bearer secre"}},
	} {
		if _, resp, err := d.dial(id, "", header); err == nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %v %+v", name, err, resp)
		}
	}
	var made struct {
		SessionID string `json:"session_id"`
	}
	d.call(http.MethodPost, "/pty", m{"command": "env; tr '\\0' '\\n' </proc/$PPID/environ"}, &made, "Authorization", "Bearer secret")
	c := d.attach(made.SessionID, "access_token="+url.QueryEscape("secret"))
	if c.exit(); strings.Contains(c.text(), "secret") {
		t.Errorf("the token is in %q", c.text())
	}

	open := start(t, launch{})
	id = open.pty()
	evil := http.Header{"Origin": {"http://evil.example"}}
	if _, resp, err := open.dial(id, "", evil); err == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("a foreign page: %v %+v", err, resp)
	}
	conn, _, err := open.dial(id, "", http.Header{"Origin": {open.url}})
	if err != nil {
		t.Fatalf("its own page: %v", err)
	}
	conn.Close()
}

func TestTerminalMessagesThatCannotBeRead(t *testing.T) {
	d := start(t, launch{})
	c := d.attach(d.pty(), "")
	c.message("connected")
	for _, text := range []string{
		"", "x", "[]", "null", `{}`, `{"type":"dance"}`, `{"type":5}`, `{"type":"stdin"}`, `{"type":"stdin","data":5}`,
		`{"type":"stdin","eof":false}`, `{"type":"stdin","data":"x","eof":1}`,
		`{"type":"resize"}`, `{"type":"resize","cols":80}`, `{"type":"resize","cols":-1,"rows":5}`, `{"type":"resize","cols":100000,"rows":5}`,
		`{"type":"resize","cols":1.5,"rows":5}`, `{"type":"signal"}`, `{"type":"signal","signal":"SIGNONE"}`, `{"type":"signal","signal":"0"}`,
	} {
		if err := c.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if x := c.message("error"); x.Code != "INVALID_FRAME" || x.Error == "" {
			t.Errorf("%s: %+v", text, x)
		}
	}
	for _, data := range []string{"", "\x01ls", "\x03", "hello"} {
		if err := c.conn.WriteMessage(websocket.BinaryMessage, []byte(data)); err != nil {
			t.Fatal(err)
		}
		if x := c.message("error"); x.Code != "INVALID_FRAME" || x.Error == "" {
			t.Errorf("%q: %+v", data, x)
		}
	}
	c.say(m{"type": "stdin", "data": "echo $((40 + 2))\r", "more": true})
	c.until("42\r\n")
	c.say(m{"type": "ping"})
	c.message("pong")
	pongs := make(chan string, 1)
	c.conn.SetPongHandler(func(text string) error { pongs <- text; return nil })
	if err := c.conn.WriteMessage(websocket.PingMessage, []byte("ab")); err != nil {
		t.Fatal(err)
	}
	if got := <-pongs; got != "ab" {
		t.Errorf("ping ab was answered with %q", got)
	}
	c.typed("exit\r")
	c.exit()
}

func TestTerminalOnPipes(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	c := d.attach(id, "pty=0")
	if x := c.message("connected"); x.Mode != "pipe" {
		t.Errorf("%+v", x)
	}
	c.typed("echo out; echo err >&2; [ -t 0 ] || echo none\nhead -c 300000 >o; wc -c <o\n")
	c.typed(strings.Repeat("z", 300_000))
	c.until("300000\n")
	if got := c.stderr(len("err\n")); got != "err\n" || strings.Count(c.text(), "out\n") != 1 || !strings.Contains(c.text(), "none\n") {
		t.Errorf("stderr %q of %q", got, c.text())
	}
	c.close()
	if c = d.attach(id, "pty=1"); c.message("connected").Mode != "pipe" {
		t.Error("the second connection changed the mode")
	}
	c.typed("exit 3\n")
	if code := c.exit(); code != 3 || !strings.Contains(c.text(), "err\n") {
		t.Errorf("exit code %d, %q", code, c.text())
	}
}

func TestTerminalOnPipesIsToldTheEndOfItsInput(t *testing.T) {
	d := start(t, launch{})
	for _, x := range []struct {
		what, command, want string
		say                 []m
	}{
		{"with data", "cat; echo end", "one\ntwo\nend\n", []m{{"type": "stdin", "data": "one\n"}, {"type": "stdin", "data": "two\n", "eof": true}}},
		{"alone", "wc -c", "0\n", []m{{"type": "stdin", "eof": true}}},
		{"twice", "sort", "a\nb\n", []m{{"type": "stdin", "data": "b\na\n"}, {"type": "stdin", "eof": true}, {"type": "stdin", "eof": true}}},
		{"of a shell", "", "42\n", []m{{"type": "stdin", "data": "echo $((40 + 2))\n", "eof": true}}},
		{"behind much", "wc -c", "700000\n", []m{{"type": "stdin", "data": strings.Repeat("z", 700_000), "eof": true}}},
	} {
		c := d.attach(d.pty(m{"command": x.command}), "pty=0")
		for _, text := range x.say {
			c.say(text)
		}
		if code := c.exit(); code != 0 || c.text() != x.want {
			t.Errorf("%s: exit code %d, %q", x.what, code, c.text())
		}
		for _, text := range c.texts {
			if text.Type == "error" {
				t.Errorf("%s: %+v", x.what, text)
			}
		}
	}

	c := d.attach(d.pty(m{"command": "cat; trap 'kill $!; exit 3' USR1; sleep 97.86 & echo ready; wait"}), "pty=0")
	c.say(m{"type": "stdin", "eof": true})
	c.until("ready\n")
	c.typed("more")
	if x := c.message("error"); x.Code != "INPUT_CLOSED" || x.Error == "" {
		t.Errorf("%+v", x)
	}
	c.say(m{"type": "stdin", "data": "more"})
	if x := c.message("error"); x.Code != "INPUT_CLOSED" {
		t.Errorf("%+v", x)
	}
	c.say(m{"type": "signal", "signal": "SIGUSR1"})
	if code := c.exit(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

func TestTerminalEndOfInputIsItsKey(t *testing.T) {
	d := start(t, launch{})
	id := d.pty(m{"command": "cat; echo first; stty eof ^T; echo set; cat; exit 4"})
	c := d.attach(id, "")
	c.say(m{"type": "stdin", "data": "line\r", "eof": true})
	c.until("first\r\n")
	c.until("set\r\n")
	v := d.attach(id, "mode=viewer")
	v.say(m{"type": "stdin", "eof": true})
	if x := v.message("error"); x.Code != "READ_ONLY" {
		t.Errorf("%+v", x)
	}
	c.say(m{"type": "stdin", "eof": true})
	if code := c.exit(); code != 4 || strings.Count(c.text(), "line\r\n") != 2 {
		t.Errorf("exit code %d, %q", code, c.text())
	}
}

func TestTerminalCommandInsteadOfAShell(t *testing.T) {
	d := start(t, launch{})
	for command, want := range map[string]int{"exit 4": 4, "kill -KILL $$": 137, "kill -TERM $$": 143, "true": 0, "no-such-program": 127} {
		c := d.attach(d.pty(m{"command": command}), "")
		if code := c.exit(); code != want {
			t.Errorf("%s: exit code %d, want %d", command, code, want)
		}
	}
	if c := d.attach(d.pty(m{"command": `tty; echo $0; id -un; echo "$HOME"`, "uid": 65534, "cwd": "/"}), ""); c.exit() != 0 ||
		!strings.HasPrefix(c.text(), "/dev/pts/") || !strings.Contains(c.text(), "\r\nbash\r\nnobody\r\n") {
		t.Errorf("%q", c.text())
	}
}

func TestTerminalCreationThatIsRepeatedMakesOne(t *testing.T) {
	d := start(t, launch{})
	var instance struct {
		InstanceID string `json:"instance_id"`
		IssuedAt   int64  `json:"issued_at"`
	}
	d.call(http.MethodGet, "/execution/instance", nil, &instance)
	op := fmt.Sprintf("%s.%d.terminal-1", instance.InstanceID, instance.IssuedAt)
	var a, b struct{ ID, Kind, State string }
	for _, x := range []*struct{ ID, Kind, State string }{&a, &b} {
		if status := d.call(http.MethodPost, "/pty/operations", m{"operation_id": op, "command": "echo once"}, x); status != http.StatusOK {
			t.Fatalf("%d", status)
		}
	}
	if a != b || a.Kind != "pty" || a.State != "created" {
		t.Errorf("%+v %+v", a, b)
	}
	d.refused(http.StatusConflict, http.MethodPost, "/pty/operations", m{"operation_id": op, "command": "echo other"})
	d.refused(http.StatusBadRequest, http.MethodPost, "/pty/operations", m{"operation_id": op, "nonsense": 1})
	if c := d.attach(a.ID, ""); c.exit() != 0 || c.text() != "once\r\n" {
		t.Errorf("%q", c.text())
	}
	if o := d.open("/executions/"+a.ID+"/events?after=0&output=raw", nil).rest(); o.out() != "once\r\n" || o.end.Type != "execution_complete" {
		t.Errorf("as events: %+v", o)
	}
}
