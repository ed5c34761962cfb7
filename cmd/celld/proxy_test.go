package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
)

func TestProxy(t *testing.T) {
	d := start(t, launch{raw: true, env: []string{"EXECD_ACCESS_TOKEN=" + secret}})
	d.each(t, map[string]func(*daemon){
		"path and query go on byte for byte":   proxiedBytes,
		"headers are sane":                     proxiedHeaders,
		"bodies stream both ways":              proxiedStreams,
		"WebSockets go through":                proxiedSocket,
		"refuses what isn't there":             proxyRefuses,
		"redirections stay":                    proxiedRedirects,
		"an answer that breaks off is cut":     proxiedBreak,
		"a client that goes away is told":      proxiedGone,
		"answers are what the app has written": proxiedAnswers,
	})
}

// token is the header that lets a request in.
func (d *daemon) token() []string { return []string{"X-EXECD-ACCESS-TOKEN", secret} }

// app serves h on a port of its own and returns the port.
func app(t *testing.T, h http.HandlerFunc) int {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// rawRequest sends a request as it is written here and returns the answer.
func (d *daemon) rawRequest(method, target string, header ...string) *http.Response {
	d.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: sandbox.example\r\n", method, target)
	for i := 0; i < len(header); i += 2 {
		fmt.Fprintf(conn, "%s: %s\r\n", header[i], header[i+1])
	}
	io.WriteString(conn, "\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, target, err)
	}
	return resp
}

func proxiedBytes(d *daemon) {
	got := make(chan string, 1)
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) { got <- r.Method + " " + r.RequestURI })
	mount := fmt.Sprintf("/proxy/%d", port)
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "BREW"} {
		for in, want := range map[string]string{
			"": "/", "/": "/", "/?": "/?", "?": "/?", "/a/b": "/a/b", "/a/../b/./c": "/a/../b/./c", "//a//b/": "//a//b/", "/a%2Fb%2fc%20d": "/a%2Fb%2fc%20d",
			"/%7e~!$&'()*+,;=:@": "/%7e~!$&'()*+,;=:@", "/{a}|b^[c]\"<d>": "/{a}|b^[c]\"<d>", "/é": "/é", "/a;b=c?d;e=f": "/a;b=c?d;e=f", "/%zz?%zz": "",
			"/a?b=1&&c=%20+&b=2&=&x": "/a?b=1&&c=%20+&b=2&=&x", "/a?access_token=other&b": "/a?access_token=other&b", "/a?b=%zz": "/a?b=%zz", "/a??b?": "/a??b?",
			"/a?access_token=" + secret: "/a", "/a?b=%41&access_token=" + secret + "&c=%2b": "/a?b=%41&c=%2b", "/a?acces%73_token=" + secret + "&c": "/a?c",
			"/proxy/1/x": "/proxy/1/x", "http://x/": "",
		} {
			if want == "" {
				continue
			}
			resp := d.rawRequest(method, mount+in, d.token()...)
			if resp.StatusCode != 200 {
				d.t.Errorf("%s %s: %d", method, in, resp.StatusCode)
				continue
			}
			if line := <-got; line != method+" "+want {
				d.t.Errorf("%s %s arrived as %s, want %s", method, in, line, want)
			}
		}
	}
	abs := fmt.Sprintf("/absproxy/%d", port)
	for in, want := range map[string]string{abs + "/a?b": abs + "/a?b", abs: abs, "http://sandbox.example" + mount + "/a%2Fb?c": "/a%2Fb?c"} {
		if resp := d.rawRequest("GET", in, d.token()...); resp.StatusCode != 200 {
			d.t.Errorf("%s: %d", in, resp.StatusCode)
		} else if line := <-got; line != "GET "+want {
			d.t.Errorf("%s arrived as %s", in, line)
		}
	}
}

func proxiedHeaders(d *daemon) {
	got := make(chan *http.Request, 1)
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) { got <- r })
	own := fmt.Sprintf("127.0.0.1:%d", port)
	mount := fmt.Sprintf("/proxy/%d", port)
	for _, c := range []struct {
		name       string
		path       string
		send, want []string // "-" means none
	}{
		{"celld's token goes", "/", d.token(), []string{"X-EXECD-ACCESS-TOKEN", "-", "Authorization", "-"}},
		{"celld's bearer token goes", "/", []string{"Authorization", "bearer " + secret}, []string{"Authorization", "-"}},
		{"the app's own stays", "/", append([]string{"Authorization", "Bearer app"}, d.token()...), []string{"Authorization", "Bearer app"}},
		{"the app's own stays with the token in the query", "/?access_token=" + secret, []string{"Authorization", "Bearer app"}, []string{"Authorization", "Bearer app"}},
		{"basic stays", "/", append([]string{"Authorization", "Basic " + secret}, d.token()...), []string{"Authorization", "Basic " + secret}},
		{"how it was reached", "/", append([]string{"Host", "sandbox.example"}, d.token()...), []string{"X-Forwarded-For", "127.0.0.1",
			"X-Forwarded-Host", "sandbox.example", "X-Forwarded-Proto", "http", "X-Forwarded-Prefix", mount, "Forwarded", "-"}},
		{"by a gateway", "/", append([]string{"X-Forwarded-For", "203.0.113.9", "X-Forwarded-Host", "app.example", "X-Forwarded-Proto", "https",
			"X-Forwarded-Prefix", "/box", "Origin", "https://app.example"}, d.token()...), []string{"X-Forwarded-For", "203.0.113.9, 127.0.0.1",
			"X-Forwarded-Host", "app.example", "X-Forwarded-Proto", "https", "X-Forwarded-Prefix", "/box" + mount, "Origin", "http://" + own}},
		{"a page of the app", "/", append([]string{"Host", "sandbox.example", "Origin", "http://sandbox.example",
			"Referer", "http://sandbox.example" + mount + "/a%2Fb?access_token=" + secret + "&c=1"}, d.token()...),
			[]string{"Origin", "http://" + own, "Referer", "http://" + own + "/a%2Fb?c=1"}},
		{"a foreign page", "/", append([]string{"Origin", "http://evil.example", "Referer", "http://evil.example/?access_token=" + secret}, d.token()...),
			[]string{"Origin", "http://evil.example", "Referer", "http://evil.example/"}},
		{"others stay", "/", append([]string{"Cookie", "a=b; c=d", "X-Custom", "é", "X-Request-ID", "r-1", "User-Agent", "", "Accept-Encoding", "br"}, d.token()...),
			[]string{"Cookie", "a=b; c=d", "X-Custom", "é", "X-Request-ID", "r-1", "User-Agent", "-", "Accept-Encoding", "br"}},
		{"those of the connection don't", "/", append([]string{"Connection", "X-Hop", "X-Hop", "1", "Proxy-Authorization", "x"}, d.token()...),
			[]string{"X-Hop", "-", "Proxy-Authorization", "-"}},
	} {
		resp := d.do("GET", mount+c.path, nil, c.send...)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			d.t.Fatalf("%s: %d", c.name, resp.StatusCode)
		}
		r := <-got
		if r.Host != own {
			d.t.Errorf("%s: Host %q", c.name, r.Host)
		}
		for i := 0; i < len(c.want); i += 2 {
			value := "-"
			if values := r.Header.Values(c.want[i]); len(values) > 0 {
				value = strings.Join(values, "|")
			}
			if value != c.want[i+1] {
				d.t.Errorf("%s: %s is %q, want %q", c.name, c.want[i], value, c.want[i+1])
			}
		}
		var all bytes.Buffer
		r.Header.Write(&all)
		if c.name != "basic stays" && strings.Contains(all.String()+r.RequestURI, secret) {
			d.t.Errorf("%s: the app sees the token: %s %s", c.name, r.RequestURI, all.String())
		}
	}
}

// proxiedStreams sends and gets in turns: whoever keeps something back stops it.
func proxiedStreams(d *daemon) {
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		c.EnableFullDuplex()
		w.Header().Set("Content-Type", "application/octet-stream")
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", "40000")
		}
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(200)
		c.Flush()
		buf := make([]byte, 10_000)
		for n := 0; ; n++ {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				w.Header().Set("X-Sum", fmt.Sprint(n))
				return
			}
			w.Write(buf)
			c.Flush()
		}
	})
	for _, path := range []string{"/", "/sized"} {
		body, send := io.Pipe()
		req, err := http.NewRequestWithContext(d.t.Context(), "POST", fmt.Sprintf("%s/proxy/%d%s", d.url, port, path), body)
		if err != nil {
			d.t.Fatal(err)
		}
		req.Header.Set("X-EXECD-ACCESS-TOKEN", secret)
		resp, err := d.http.Do(req) // answered before the body has ended
		if err != nil {
			d.t.Fatal(err)
		}
		for n := range 4 {
			piece := strings.Repeat(fmt.Sprintf("piece %03d\n", n), 1000)
			io.WriteString(send, piece)
			got := make([]byte, 10_000)
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece {
				d.t.Fatalf("%s: got %d bytes wrong: %v", path, len(got), err)
			}
		}
		send.Close()
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			d.t.Errorf("%s: at the end %q %v", path, rest, err)
		}
		resp.Body.Close()
		if path == "/" && resp.Trailer.Get("X-Sum") != "4" {
			d.t.Errorf("trailer %v", resp.Trailer)
		}
	}
	const size = 64 << 20 // larger than all buffers, both ways
	echo := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	req, _ := http.NewRequestWithContext(d.t.Context(), "PUT", fmt.Sprintf("%s/proxy/%d/", d.url, echo), io.LimitReader(ramp{}, size))
	req.Header.Set("X-EXECD-ACCESS-TOKEN", secret)
	resp, err := d.http.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(new(rampCheck), resp.Body); err != nil || n != size {
		d.t.Errorf("%d bytes came back: %v", n, err)
	}
}

// ramp is an endless stream of bytes that tell where they are.
type ramp struct{}

func (ramp) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p) / 256 * 256, nil
}

// rampCheck takes what ramp gives.
type rampCheck struct{ at int }

func (c *rampCheck) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != byte(c.at) {
			return 0, fmt.Errorf("byte %d is %d", c.at, b)
		}
		c.at++
	}
	return len(p), nil
}

func proxiedSocket(d *daemon) {
	protocols := make(chan []string, 1)
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		protocols <- websocket.Subprotocols(r)
		u := websocket.Upgrader{Subprotocols: []string{"chat"}} // looks at Origin and Host itself
		conn, err := u.Upgrade(w, r, http.Header{"X-App": {"1"}})
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			kind, text, err := conn.ReadMessage()
			if err != nil {
				return
			}
			if string(text) == "bye" {
				conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(4321, "so long"), time.Now().Add(time.Minute))
				return
			}
			conn.WriteMessage(kind, text)
		}
	})
	dialer := websocket.Dialer{Subprotocols: []string{"other", "chat"}}
	target := fmt.Sprintf("%s/proxy/%d/chat", strings.Replace(d.url, "http", "ws", 1), port)
	if _, resp, err := dialer.Dial(target, nil); err == nil || resp.StatusCode != 401 {
		d.t.Fatalf("without the token: %v %v", resp, err)
	}
	conn, resp, err := dialer.Dial(target+"?access_token="+secret, http.Header{"Origin": {d.url}})
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	if got := <-protocols; conn.Subprotocol() != "chat" || resp.Header.Get("X-App") != "1" || !slices.Equal(got, []string{"other", "chat"}) {
		d.t.Errorf("%q %v, asked for %q", conn.Subprotocol(), resp.Header, got)
	}
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 5 << 20} {
		sent := bytes.Repeat([]byte("x"), size)
		if err := conn.WriteMessage(websocket.BinaryMessage, sent); err != nil {
			d.t.Fatal(err)
		}
		if _, got, err := conn.ReadMessage(); err != nil || !bytes.Equal(got, sent) {
			d.t.Fatalf("%d bytes came back as %d: %v", size, len(got), err)
		}
	}
	conn.WriteMessage(websocket.TextMessage, []byte("bye"))
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, 4321) {
		d.t.Errorf("ended with %v", err)
	}
}

func proxyRefuses(d *daemon) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	defer l.Close()
	own := d.url[strings.LastIndexByte(d.url, ':')+1:]
	for _, port := range []string{"", "0", "65536", "99999999999999999999", "-1", "+80", "080", "http", "80.0", "%38%30", "127.0.0.2:80", "80@example.com", "8 0", "٣", own} {
		for _, mount := range []string{"/proxy/", "/absproxy/"} {
			d.refused(400, "GET", mount+strings.ReplaceAll(port, " ", "%20")+"/x", nil, d.token()...)
		}
	}
	d.refused(404, "GET", "/proxy", nil, d.token()...)
	d.refused(404, "GET", "/%70roxy/80/", nil, d.token()...)
	silent := quietPort(d.t) // nobody listens there
	for _, method := range []string{"GET", "POST", "MKCOL"} {
		d.refused(502, method, fmt.Sprintf("/proxy/%d/x", silent), nil, d.token()...)
	}
	d.refused(502, "GET", fmt.Sprintf("/proxy/%d/x", silent), nil, append(upgrade, d.token()...)...)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(conn).ReadString('\n')
			io.WriteString(conn, "this is not HTTP\r\n\r\n")
			conn.Close()
		}
	}()
	d.refused(502, "GET", fmt.Sprintf("/proxy/%d/x", l.Addr().(*net.TCPAddr).Port), nil, d.token()...)
}

// quietPort returns a port on which nobody listens, and which is given to nobody who doesn't ask for it: a socket has it
// until the test ends. With SO_REUSEADDR, which servers set, one may listen on it all the same (tcp(7)).
func quietPort(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return address.(*unix.SockaddrInet4).Port
}

func proxiedRedirects(d *daemon) {
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(http.StatusFound)
	})
	d = d.bare() // a client of its own
	d.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	mount := fmt.Sprintf("/proxy/%d", port)
	for to, want := range map[string]string{
		"/login?a=b#c":   mount + "/login?a=b#c",
		"next":           "next",
		"?page=2":        "?page=2",
		mount + "/there": mount + "/there",
		fmt.Sprintf("http://127.0.0.1:%d/x%%2Fy", port): mount + "/x%2Fy",
		fmt.Sprintf("http://localhost:%d", port):        mount + "/",
		"http://sandbox.example/login":                  mount + "/login",
		"http://elsewhere.example/login":                "http://elsewhere.example/login",
		"//elsewhere.example/login":                     "//elsewhere.example/login",
		"mailto:somebody@example.com":                   "mailto:somebody@example.com",
	} {
		resp := d.do("GET", mount+"/?to="+strings.NewReplacer("%", "%25", "#", "%23", "&", "%26").Replace(to), nil, append(d.token(), "Host", "sandbox.example")...)
		resp.Body.Close()
		if got := resp.Header.Get("Location"); got != want {
			d.t.Errorf("to %s: %s, want %s", to, got, want)
		}
	}
	resp := d.do("GET", mount+"?a=b", nil, append(d.token(), "Accept", "text/html,*/*")...)
	resp.Body.Close()
	if got := resp.Header.Get("Location"); resp.StatusCode != 308 || got != fmt.Sprintf("%d/?a=b", port) {
		d.t.Errorf("a browser without the slash: %d %q", resp.StatusCode, got)
	}
}

func proxiedBreak(d *daemon) {
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half of ")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	resp := d.do("GET", fmt.Sprintf("/proxy/%d/", port), nil, d.token()...)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err == nil || string(text) != "half of " {
		d.t.Errorf("%q %v", text, err)
	}
}

func proxiedGone(d *daemon) {
	began, gone := make(chan struct{}), make(chan struct{})
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(d.t.Context())
	go func() {
		<-began
		cancel()
	}()
	req, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/proxy/%d/", d.url, port), nil)
	req.Header.Set("X-EXECD-ACCESS-TOKEN", secret)
	if _, err := d.http.Do(req); err == nil {
		d.t.Error("answered")
	}
	<-gone
}

func proxiedAnswers(d *daemon) {
	port := app(d.t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/plain":
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html>")
		case "/id":
			w.Header().Set("X-Request-ID", "of the app")
			w.Header().Add("Set-Cookie", "a=1")
			w.Header().Add("Set-Cookie", "b=2")
			w.WriteHeader(http.StatusTeapot)
		case "/hints":
			w.Header().Set("Link", "</a.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mount := fmt.Sprintf("/proxy/%d", port)
	resp := d.rawRequest("GET", mount+"/plain", d.token()...)
	if _, has := resp.Header["Content-Type"]; has || resp.StatusCode != 200 {
		d.t.Errorf("no type: %v", resp.Header)
	}
	resp = d.rawRequest("GET", mount+"/id", d.token()...)
	if got := resp.Header.Values("X-Request-ID"); resp.StatusCode != 418 || !slices.Equal(got, []string{"of the app"}) || len(resp.Header["Set-Cookie"]) != 2 {
		d.t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if resp = d.rawRequest("GET", mount+"/hints", d.token()...); resp.StatusCode != http.StatusEarlyHints || resp.Header.Get("Link") == "" {
		d.t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// TestProxyEndsWithCelld stops celld while a client of an app neither reads nor goes away.
func TestProxyEndsWithCelld(t *testing.T) {
	d := start(t, launch{raw: true})
	ended := make(chan struct{}, 2)
	port := app(t, func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		if r.Header.Get("Upgrade") == "" {
			w.WriteHeader(200)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for conn.WriteMessage(websocket.BinaryMessage, make([]byte, 1<<20)) == nil { // until nothing goes any more
		}
	})
	path := fmt.Sprintf("/proxy/%d/", port)
	resp := d.do("GET", path, nil)
	defer resp.Body.Close()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(d.url, "http")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := conn.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	d.stop()
	<-ended
	<-ended
}

// TestProxyWithoutToken: who may not come in doesn't get to an app either.
func TestProxyWithoutToken(t *testing.T) {
	d := start(t, launch{raw: true})
	asked := make(chan string, 1)
	port := app(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization") + " " + r.RequestURI
	})
	path := fmt.Sprintf("/proxy/%d/?access_token=mine", port)
	d.refused(403, "GET", path, nil, "Origin", "http://evil.example")
	d.refused(403, "GET", path, nil, "Host", "evil.example")
	d.refused(403, "GET", path, nil, append([]string{"Origin", "http://evil.example"}, upgrade...)...)
	if got := d.call("GET", path, nil, nil, "Origin", d.url, "Authorization", "Bearer mine"); got != 200 {
		t.Errorf("%d", got)
	}
	if got := <-asked; got != "Bearer mine /?access_token=mine" {
		t.Errorf("the app was asked %q", got)
	}
	var e struct{ Code, Message string }
	resp := d.do("GET", fmt.Sprintf("/proxy/%d/", quietPort(t)), nil)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || resp.StatusCode != 502 || e.Code != "UNAVAILABLE" {
		t.Errorf("%d %+v %v", resp.StatusCode, e, err)
	}
}
