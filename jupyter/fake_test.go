package jupyter

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/celld/celld/hooks"
	"github.com/gorilla/websocket"
)

// fake is a scripted Jupyter Server for faults that a real one won't produce.
type fake struct {
	t      *testing.T
	v1     bool                         // accepts the subprotocol that is offered
	script func(f *fakeConn, id string) // answers an execute_request; kernel_info is answered by the fake itself
	state  string                       // execution_state by REST; idle if empty
	late   bool                         // a connection's first idle is lost, since the output isn't subscribed to yet

	mu         sync.Mutex
	calls      []string // REST calls but for looks at the kernel
	authorized []string // Authorization headers, each once
}

const fakeBase = "/some/base"

// start serves f and returns a server that uses it. wrap may put something in front.
func (f *fake) start(wrap func(http.Handler) http.Handler) *Server {
	f.t.Helper()
	var h http.Handler = http.HandlerFunc(f.serve)
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	f.t.Cleanup(srv.Close)
	return f.use(srv.URL + fakeBase + "/")
}

func (f *fake) use(url string) *Server {
	f.t.Helper()
	c, err := NewClient(ClientConfig{URL: url, Token: "secret"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return NewServer(ServerConfig{Client: c})
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	if a := r.Header.Get("Authorization"); !slices.Contains(f.authorized, a) {
		f.authorized = append(f.authorized, a)
	}
	path := strings.TrimPrefix(r.URL.Path, fakeBase)
	if r.Method != http.MethodGet {
		f.calls = append(f.calls, r.Method+" "+path)
	}
	f.mu.Unlock()
	state := f.state
	if state == "" {
		state = "idle"
	}
	kernel := map[string]any{"id": "k-1", "name": "p", "execution_state": state}
	switch {
	case path == "/api/kernelspecs":
		reply(w, map[string]any{"kernelspecs": map[string]any{"p": map[string]any{"spec": map[string]any{"language": "python"}}}})
	case path == "/api/sessions" && r.Method == http.MethodPost:
		reply(w, map[string]any{"id": "s-1", "kernel": kernel})
	case path == "/api/kernels/k-1/channels":
		f.channels(w, r)
	case path == "/api/kernels/k-1" || path == "/api/status":
		reply(w, kernel)
	case r.Method == http.MethodDelete || r.Method == http.MethodPost:
		w.WriteHeader(http.StatusNoContent)
	default:
		http.NotFound(w, r)
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fake) channels(w http.ResponseWriter, r *http.Request) {
	var up websocket.Upgrader
	if f.v1 {
		up.Subprotocols = []string{subprotocol}
	}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		f.t.Errorf("upgrade: %v", err)
		return
	}
	defer ws.Close()
	c := &fakeConn{ws: ws, v1: f.v1}
	seen := make(map[string]bool)
	for {
		kind, frame, err := ws.ReadMessage()
		if err != nil {
			return
		}
		parse := parseJSON
		if f.v1 {
			parse = parseV1
		}
		m, err := parse(frame)
		if err != nil || (kind == websocket.BinaryMessage) != f.v1 {
			f.t.Errorf("frame of kind %d: %v", kind, err)
			return
		}
		if seen[m.header.ID] { // a kernel takes it for a replay
			continue
		}
		seen[m.header.ID] = true
		switch m.header.Type {
		case "kernel_info_request":
			c.send(shellChannel, "kernel_info_reply", m.header.ID, map[string]any{"status": "ok"})
			if !f.late || len(seen) > 1 {
				c.status(m.header.ID, "idle")
			}
		case "execute_request":
			f.script(c, m.header.ID)
		}
	}
}

// fakeConn is the server's end of a WebSocket.
type fakeConn struct {
	ws *websocket.Conn
	v1 bool
	mu sync.Mutex // one writer at a time
}

// frame makes a message of the kernel.
func (c *fakeConn) frame(channel, kind, parent string, content any) []byte {
	p := json.RawMessage("{}")
	switch parent {
	case "":
	case "null":
		p = json.RawMessage("null")
	default:
		p = json.RawMessage(`{"msg_id":"` + parent + `"}`)
	}
	frame, err := request{channel: channel, header: requestHeader{ID: newID(), Session: "kernel", Type: kind}, parent: p, content: content}.encode(c.v1)
	if err != nil {
		panic(err)
	}
	return frame
}

func (c *fakeConn) raw(frame []byte) {
	kind := websocket.TextMessage
	if c.v1 {
		kind = websocket.BinaryMessage
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.ws.WriteMessage(kind, frame)
}

func (c *fakeConn) send(channel, kind, parent string, content any) {
	c.raw(c.frame(channel, kind, parent, content))
}

func (c *fakeConn) status(parent, state string) {
	c.send(iopubChannel, "status", parent, map[string]any{"execution_state": state})
}

func (c *fakeConn) stream(parent, text string) {
	c.send(iopubChannel, "stream", parent, map[string]any{"name": "stdout", "text": text})
}

func (c *fakeConn) replyOK(parent string) {
	c.send(shellChannel, "execute_reply", parent, map[string]any{"status": "ok", "execution_count": 7})
}

// openFake opens the fake's kernel.
func openFake(t *testing.T, s *Server) *Kernel {
	t.Helper()
	return openOn(t, s, func(r *OpenRequest) { r.Cwd = "" })
}

// proper answers as a kernel should.
func proper(c *fakeConn, id string) {
	c.status(id, "busy")
	c.stream(id, "hi")
	c.replyOK(id)
	c.status(id, "idle")
}

func TestCellsRunInEitherFraming(t *testing.T) {
	for name, v1 := range map[string]bool{"default": false, "v1": true} {
		t.Run(name, func(t *testing.T) {
			f := &fake{t: t, v1: v1, script: proper}
			k := openFake(t, f.start(nil))
			for range 3 {
				want(t, k, "print('hi')", "hi")
			}
		})
	}
}

func TestOddFramesDoNotHarm(t *testing.T) {
	for name, v1 := range map[string]bool{"default": false, "v1": true} {
		t.Run(name, func(t *testing.T) {
			f := &fake{t: t, v1: v1, script: func(c *fakeConn, id string) {
				c.status("", "busy")
				c.status("null", "idle")
				c.status("somebody-else", "idle")
				c.stream("somebody-else", "not mine")
				c.send(shellChannel, "execute_reply", "somebody-else", map[string]any{"status": "error"})
				whole := c.frame(iopubChannel, "stream", id, map[string]any{"name": "stdout", "text": "cut"})
				c.raw(whole[:len(whole)/2])
				c.raw(nil)
				_ = c.ws.WriteMessage(websocket.BinaryMessage, []byte{1, 2, 3})
				_ = c.ws.WriteMessage(websocket.TextMessage, []byte(`{"channel":"iopub"`))
				c.send(iopubChannel, "stream", id, "not an object")
				c.send(iopubChannel, "unheard_of", id, map[string]any{})
				if !c.v1 {
					text := c.frame(iopubChannel, "stream", id, map[string]any{"name": "stdout", "text": "buffered "})
					_ = c.ws.WriteMessage(websocket.BinaryMessage, withBuffers(string(text), "bytes"))
				}
				proper(c, id)
			}}
			out := "hi"
			if !v1 {
				out = "buffered hi"
			}
			k := openFake(t, f.start(nil))
			want(t, k, "1", out)
			want(t, k, "1", out)
		})
	}
}

func TestEndNeedsReplyAndIdleInEitherOrder(t *testing.T) {
	f := &fake{t: t, script: func(c *fakeConn, id string) {
		c.status(id, "busy")
		c.stream(id, "a")
		c.status(id, "idle")
		c.stream(id, "b") // what an idle that comes first must not cut off
		c.replyOK(id)
		c.stream(id, "late")
	}}
	k := openFake(t, f.start(nil))
	p := want(t, k, "1", "ab")
	if c := p.statuses(hooks.StateCount); len(c) != 1 || c[0].Count != 7 {
		t.Errorf("count %+v", c)
	}
	want(t, k, "2", "ab")
	if p.out() != "ab" {
		t.Errorf("late output reached the ended cell: %q", p.out())
	}
}

func TestErrorWithoutANameGetsOne(t *testing.T) {
	f := &fake{t: t, script: func(c *fakeConn, id string) {
		c.send(shellChannel, "execute_reply", id, map[string]any{"status": "error"})
		c.status(id, "idle")
	}}
	_, err := cell(t, openFake(t, f.start(nil)), "1")
	failed(t, err, "Error")
}

func TestSkippedCellIsSentAgain(t *testing.T) {
	times := 0
	f := &fake{t: t, script: func(c *fakeConn, id string) {
		if times++; times < 3 {
			c.send(shellChannel, "execute_reply", id, map[string]any{"status": "aborted"})
			c.status(id, "idle")
			return
		}
		proper(c, id)
	}}
	want(t, openFake(t, f.start(nil)), "1", "hi")
}

// A server that works on something large may let pings wait until it has answered several looks.
func TestServerThatIsLateWithPongsIsWaitedFor(t *testing.T) {
	var ran atomic.Pointer[func()]
	var looks atomic.Int32
	third := make(chan struct{})
	f := &fake{t: t, state: "busy", script: func(c *fakeConn, id string) {
		c.status(id, "busy")
		c.stream(id, "hi")
		end := func() {
			c.replyOK(id)
			c.status(id, "idle")
		}
		ran.Store(&end)
		<-third // until then nothing is read, and no ping answered
	}}
	k := openFake(t, f.start(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if end := ran.Load(); end != nil && strings.HasSuffix(r.URL.Path, "/api/kernels/k-1") {
				switch looks.Add(1) {
				case 3:
					close(third)
				case 4:
					(*end)()
				}
			}
			h.ServeHTTP(w, r)
		})
	}))
	if p := want(t, k, "1", "hi"); len(p.statuses(hooks.StateReconnected)) > 0 {
		t.Error("the connection was given up")
	}
}

func TestCellThatIsSkippedForeverFails(t *testing.T) {
	f := &fake{t: t, script: func(c *fakeConn, id string) {
		c.send(shellChannel, "execute_reply", id, map[string]any{"status": "aborted"})
		c.status(id, "idle")
	}}
	_, err := cell(t, openFake(t, f.start(nil)), "1")
	failed(t, err, "CellAborted")
}

func TestCutConnectionIsOneFailureAndTheNextCellWorks(t *testing.T) {
	for name, cut := range map[string]func(*fakeConn){
		"closed": func(c *fakeConn) { _ = c.ws.Close() },
		"reset":  func(c *fakeConn) { _ = c.ws.NetConn().(*net.TCPConn).SetLinger(0); _ = c.ws.NetConn().Close() },
		"close frame": func(c *fakeConn) {
			_ = c.ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseGoingAway, "bye"))
		},
		"half a frame": func(c *fakeConn) {
			_, _ = c.ws.NetConn().Write([]byte{0x81, 0x7e, 0x10, 0x00, '{'})
			_ = c.ws.NetConn().Close()
		},
		"nonsense": func(c *fakeConn) { _, _ = c.ws.NetConn().Write([]byte("HTTP/1.1 502 Bad Gateway\r\n\r\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := true
			f := &fake{t: t, script: func(c *fakeConn, id string) {
				if first {
					first = false
					c.status(id, "busy")
					c.stream(id, "before")
					cut(c)
					return
				}
				proper(c, id)
			}}
			k := openFake(t, f.start(nil))
			p, err := cell(t, k, "1")
			failed(t, err, nameUnavailable)
			if p.out() != "before" {
				t.Errorf("printed %q", p.out())
			}
			if p := want(t, k, "2", "hi"); len(p.statuses(hooks.StateKernelRestarted)) > 0 {
				t.Error("told of lost state that was kept")
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if !slices.Contains(f.calls, "POST /api/kernels/k-1/interrupt") {
				t.Errorf("the cell that nobody sees any more was left running: %v", f.calls)
			}
		})
	}
}

func TestOutputThatIsSubscribedToLateIsWaitedFor(t *testing.T) {
	var was atomic.Bool
	f := &fake{t: t, late: true, script: func(c *fakeConn, id string) {
		if !was.Swap(true) {
			_ = c.ws.Close()
			return
		}
		proper(c, id)
	}}
	k := openFake(t, f.start(nil))
	_, err := cell(t, k, "1")
	failed(t, err, nameUnavailable)
	want(t, k, "2", "hi")
}

func TestSilenceEndsTheCell(t *testing.T) {
	for name, script := range map[string]func(*fakeConn, string){
		"nothing at all": func(*fakeConn, string) {},
		"no reply":       func(c *fakeConn, id string) { c.status(id, "busy"); c.status(id, "idle") },
		"no idle":        func(c *fakeConn, id string) { c.status(id, "busy"); c.replyOK(id) },
		"no end": func(c *fakeConn, id string) {
			c.status(id, "busy")
			c.stream(id, "x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := true
			f := &fake{t: t, script: func(c *fakeConn, id string) {
				if !first {
					proper(c, id)
					return
				}
				first = false
				script(c, id)
			}}
			k := openFake(t, f.start(nil))
			_, err := cell(t, k, "1")
			failed(t, err, nameUnavailable)
			want(t, k, "2", "hi")
		})
	}
}

func TestBusyKernelMayBeSilent(t *testing.T) {
	t.Parallel()
	var conn *fakeConn
	var id string
	sent := make(chan struct{})
	f := &fake{t: t, state: "busy", script: func(c *fakeConn, i string) {
		conn, id = c, i
		c.status(i, "busy")
		close(sent)
	}}
	looks := make(chan struct{}, 100)
	s := f.start(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			if strings.HasSuffix(r.URL.Path, "/k-1") && r.Method == http.MethodGet {
				looks <- struct{}{}
			}
		})
	})
	k := openFake(t, s)
	p, done := background(t, t.Context(), k, ExecuteRequest{Code: "sleep"})
	<-sent
	for range 4 { // looks of the watch
		<-looks
	}
	conn.stream(id, "at last")
	conn.replyOK(id)
	conn.status(id, "idle")
	if err := <-done; err != nil || p.out() != "at last" {
		t.Errorf("%q, %v", p.out(), err)
	}
}

func TestRedirectsAreFollowedWithinTheServerOnly(t *testing.T) {
	f := &fake{t: t, script: proper}
	s := f.start(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if rest, ok := strings.CutPrefix(r.URL.Path, "/moved"); ok {
				http.Redirect(w, r, fakeBase+rest+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	c := s.cfg.Client
	c.base.Path = "/moved"
	want(t, openFake(t, s), "1", "hi")

	var leaked []string
	var mu sync.Mutex
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaked = append(leaked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	away := f.start(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		})
	})
	if _, err := away.Open(t.Context(), OpenRequest{ID: "x", Language: "p"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := away.cfg.Client.dial(t.Context(), "k-1", "s"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(leaked) > 0 {
		t.Errorf("went elsewhere: %v", leaked)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.authorized, []string{"token secret"}) {
		t.Errorf("authorized by %q", f.authorized)
	}
}

func TestServerThatIsNoneOrDownIsUnavailable(t *testing.T) {
	f := &fake{t: t}
	for name, handler := range map[string]http.HandlerFunc{
		"page":      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) },
		"bad proxy": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) },
	} {
		s := f.start(func(http.Handler) http.Handler { return handler })
		if _, err := s.Open(t.Context(), OpenRequest{ID: "x", Language: "p"}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.use(nobodyListens).Open(t.Context(), OpenRequest{ID: "x", Language: "p"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("down: %v", err)
	}
	var status *StatusError
	refusing := f.start(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message": "bad token"}`))
		})
	})
	if _, err := refusing.Open(t.Context(), OpenRequest{ID: "x", Language: "p"}); !errors.As(err, &status) || status.Code != 403 || status.Message != "bad token" {
		t.Errorf("refusing: %v", err)
	}
}

// nobodyListens is a port that no program gets by chance.
const nobodyListens = "http://127.0.0.1:1"

// TestServerThatIsGoneIsNotTakenForBusy has a server whose process still runs, as one that is being killed does for a
// moment.
func TestServerThatIsGoneIsNotTakenForBusy(t *testing.T) {
	cut := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer cut.Close()
	for name, config := range map[string]ClientConfig{
		"refused": {URL: nobodyListens}, "no socket": {Socket: filepath.Join(t.TempDir(), "s")}, "cut": {URL: cut.URL},
	} {
		c, err := NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.atWork = func() bool { return true }
		if err := c.excuse(c.Ping(t.Context())); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddressesOfServersAreChecked(t *testing.T) {
	for _, bad := range []string{"", "localhost:8888", "ftp://h/", "http://", "http://u:p@h/", "http://h/?token=x", "http://%zz/"} {
		if _, err := NewClient(ClientConfig{URL: bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestForeignServersKernelIsPreparedSilently(t *testing.T) {
	needPython(t)
	client, err := shared.managed.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(ServerConfig{Client: client})
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	k := openOn(t, s, func(r *OpenRequest) { r.Env = map[string]string{"A": "x\n'\"é😀<&>\\"} })
	const look = "import os; print([os.getcwd(), os.environ['A'], sorted(n for n in globals() if 'celld' in n)])"
	out := "['" + k.Cwd() + "', 'x\\n\\'\"é😀<&>\\\\', []]\n"
	p := want(t, k, look, out)
	if c := p.statuses(hooks.StateCount); len(c) != 1 || c[0].Count != 1 {
		t.Errorf("count %+v", c)
	}
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, k, look, out)
	_, err = cell(t, k, "os._exit(1)")
	failed(t, err, nameDied)
	p = want(t, k, look, out)
	if len(p.statuses(hooks.StateKernelRestarted)) != 1 {
		t.Errorf("not told: %v", p.all())
	}
}

func TestRestartThatTheServerFailsAtGivesANewKernel(t *testing.T) {
	f := &fake{t: t}
	s := f.start(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/restart") { // as when the kernel dies meanwhile
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	if err := openFake(t, s).Restart(t.Context()); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := []string{"POST /api/sessions", "DELETE /api/sessions/s-1", "POST /api/sessions"}; !slices.Equal(f.calls, want) {
		t.Errorf("calls: %v", f.calls)
	}
}
