package jupyter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// Times that bound what a server may take.
const (
	callTimeout  = 5 * time.Second  // one REST call
	startTimeout = 60 * time.Second // a kernel's start, as long as the server answers meanwhile
)

// maxReply bounds the body of a REST answer.
const maxReply = 16 << 20

// ErrUnavailable is wrapped by errors that say that the Jupyter server cannot be had: nobody listens, it doesn't
// answer in time, or what answers isn't one.
var ErrUnavailable = errors.New("jupyter server unavailable")

// StatusError is an answer of the server that is not a success.
type StatusError struct {
	Code    int    // HTTP status
	Message string // the server's own, may be empty
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("HTTP status %d", e.Code)
	}
	return fmt.Sprintf("HTTP status %d: %s", e.Code, e.Message)
}

// ClientConfig says where a server is.
type ClientConfig struct {
	URL    string // http or https, with the server's base path; with Socket its host doesn't matter
	Socket string // path of a unix socket; empty: TCP
	Token  string // sent as Authorization header, to this server only
}

// Client speaks the REST API of one Jupyter server and opens the WebSockets of its kernels. Every call is bounded by
// its ctx and by 5 s. It may be used by several goroutines.
//
// Source: Jupyter Server REST API; Jupyter messaging, "Kernel messages over WebSocket".
type Client struct {
	base   *url.URL
	token  string
	jar    *cookiejar.Jar // a proxy may need to know which server we had
	http   *http.Client
	dialer websocket.Dialer

	atWork func() bool // whether the server's process is busy right now; nil: nobody knows
}

// NewClient returns a client. It doesn't connect. Close frees its idle connections.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.URL == "" && cfg.Socket != "" {
		cfg.URL = "http://localhost"
	}
	base, err := url.Parse(strings.TrimRight(cfg.URL, "/"))
	if err != nil {
		return nil, fmt.Errorf("jupyter server's address: %w", err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" {
		return nil, fmt.Errorf("jupyter server's address %q: want http:// or https://, a host and perhaps a path", cfg.URL)
	}
	dial := quickDialer(cfg.Socket)
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	c := &Client{base: base, token: cfg.Token, jar: jar}
	if cfg.Token == "" {
		c.introduce()
	}
	c.http = &http.Client{
		Jar:           jar,
		Transport:     &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute},
		CheckRedirect: c.checkRedirect,
	}
	c.dialer = websocket.Dialer{
		NetDialContext:  dial,
		Jar:             jar,
		Subprotocols:    []string{subprotocol},
		ReadBufferSize:  16 << 10,
		WriteBufferSize: 16 << 10,
	}
	return c, nil
}

// quickDialer dials socket if there is one, else what it is asked for.
func quickDialer(socket string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if socket != "" {
			return d.DialContext(ctx, "unix", socket)
		}
		c, err := d.DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			return newQuickConn(tcp), err
		}
		return c, err
	}
}

// Close frees idle connections. WebSockets stay.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// checkRedirect follows redirects within the server only, so that neither token nor code goes elsewhere.
func (c *Client) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 5 {
		return errors.New("too many redirects")
	}
	if req.URL.Scheme != c.base.Scheme || req.URL.Host != c.base.Host {
		return fmt.Errorf("redirected to another server, %s", req.URL.Host)
	}
	return nil
}

// Kernelspec is a kind of kernel that can be started.
type Kernelspec struct {
	Name          string
	DisplayName   string
	Language      string
	InterruptMode string // signal or message
	Kernel        string // the program and its version, where the kernelspec's metadata says so under "celld"
	Version       string // the language's, from the same place
}

// Kernelspecs lists the kernels that can be started, by name.
func (c *Client) Kernelspecs(ctx context.Context) (map[string]Kernelspec, error) {
	var reply struct {
		Kernelspecs map[string]struct {
			Spec struct {
				DisplayName   string `json:"display_name"`
				Language      string `json:"language"`
				InterruptMode string `json:"interrupt_mode"`
				Metadata      struct {
					Celld json.RawMessage `json:"celld"`
				} `json:"metadata"`
			} `json:"spec"`
		} `json:"kernelspecs"`
	}
	if err := c.call(ctx, callTimeout, http.MethodGet, "api/kernelspecs", nil, &reply); err != nil {
		return nil, fmt.Errorf("list kernelspecs: %w", err)
	}
	specs := make(map[string]Kernelspec, len(reply.Kernelspecs))
	for name, s := range reply.Kernelspecs {
		spec := Kernelspec{Name: name, DisplayName: s.Spec.DisplayName, Language: s.Spec.Language, InterruptMode: s.Spec.InterruptMode}
		var own struct{ Kernel, Version string }
		if json.Unmarshal(s.Spec.Metadata.Celld, &own) == nil {
			spec.Kernel, spec.Version = own.Kernel, own.Version
		}
		specs[name] = spec
	}
	return specs, nil
}

// KernelModel is the server's view of a kernel.
type KernelModel struct {
	ID             string `json:"id"`
	Name           string `json:"name"` // of its kernelspec
	ExecutionState string `json:"execution_state"`
	Connections    int    `json:"connections"`
}

// Session ties a kernel to a notebook's path.
type Session struct {
	ID     string      `json:"id"`
	Path   string      `json:"path"`
	Name   string      `json:"name"`
	Kernel KernelModel `json:"kernel"`
}

// CreateSession starts a kernel named by its kernelspec for the notebook at path, relative to the server's root,
// in that notebook's folder. The notebook needn't exist and isn't made. A kernelspec that doesn't exist is a
// [StatusError]. A path that already has a session gets that one. The time is bounded by 60 s.
func (c *Client) CreateSession(ctx context.Context, path, name, kernelspec string) (Session, error) {
	body := struct {
		Path   string `json:"path"`
		Name   string `json:"name"`
		Type   string `json:"type"`
		Kernel struct {
			Name string `json:"name"`
		} `json:"kernel"`
	}{Path: path, Name: name, Type: "notebook"}
	body.Kernel.Name = kernelspec
	var s Session
	if err := c.call(ctx, startTimeout, http.MethodPost, "api/sessions", body, &s); err != nil {
		return Session{}, fmt.Errorf("start kernel %s: %w", kernelspec, err)
	}
	if s.ID == "" || s.Kernel.ID == "" {
		return Session{}, fmt.Errorf("start kernel %s: %w: its answer is no session", kernelspec, ErrUnavailable)
	}
	return s, nil
}

// Sessions lists the sessions there are.
func (c *Client) Sessions(ctx context.Context) ([]Session, error) {
	var s []Session
	if err := c.call(ctx, callTimeout, http.MethodGet, "api/sessions", nil, &s); err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return s, nil
}

// DeleteSession ends a session and its kernel. A session that is gone is no error.
func (c *Client) DeleteSession(ctx context.Context, id string) error {
	err := c.call(ctx, callTimeout, http.MethodDelete, "api/sessions/"+url.PathEscape(id), nil, nil)
	if err != nil && !isGone(err) {
		return fmt.Errorf("end session %s: %w", id, err)
	}
	return nil
}

// Kernels lists the running kernels.
func (c *Client) Kernels(ctx context.Context) ([]KernelModel, error) {
	var k []KernelModel
	if err := c.call(ctx, callTimeout, http.MethodGet, "api/kernels", nil, &k); err != nil {
		return nil, fmt.Errorf("list kernels: %w", err)
	}
	return k, nil
}

// Kernel returns the server's view of a kernel; a kernel that doesn't exist is a [StatusError] with code 404.
func (c *Client) Kernel(ctx context.Context, id string) (KernelModel, error) {
	var k KernelModel
	if err := c.call(ctx, callTimeout, http.MethodGet, "api/kernels/"+url.PathEscape(id), nil, &k); err != nil {
		return KernelModel{}, fmt.Errorf("look at kernel %s: %w", id, err)
	}
	return k, nil
}

// Interrupt interrupts what the kernel runs, by a signal or a message as its kernelspec says.
func (c *Client) Interrupt(ctx context.Context, id string) error {
	if err := c.call(ctx, callTimeout, http.MethodPost, "api/kernels/"+url.PathEscape(id)+"/interrupt", nil, nil); err != nil {
		return fmt.Errorf("interrupt kernel %s: %w", id, err)
	}
	return nil
}

// Restart starts the kernel's process anew; the id stays. It is bounded by 60 s, for a kernel may take its time to
// end.
func (c *Client) Restart(ctx context.Context, id string) error {
	if err := c.call(ctx, startTimeout, http.MethodPost, "api/kernels/"+url.PathEscape(id)+"/restart", nil, nil); err != nil {
		return fmt.Errorf("restart kernel %s: %w", id, err)
	}
	return nil
}

// DeleteKernel ends a kernel. A kernel that is gone is no error.
func (c *Client) DeleteKernel(ctx context.Context, id string) error {
	err := c.call(ctx, callTimeout, http.MethodDelete, "api/kernels/"+url.PathEscape(id), nil, nil)
	if err != nil && !isGone(err) {
		return fmt.Errorf("end kernel %s: %w", id, err)
	}
	return nil
}

// Ping returns nil if the server answers.
func (c *Client) Ping(ctx context.Context) error {
	if err := c.call(ctx, callTimeout, http.MethodGet, "api/status", nil, nil); err != nil {
		return fmt.Errorf("ask for status: %w", err)
	}
	return nil
}

// errAtWork says that the server doesn't answer but works, as on a very large message.
var errAtWork = errors.New("jupyter server is busy")

// excuse turns err into errAtWork if it says that the server takes too long, or has too many waiting to be let in, and the
// server is seen to be busy. A server that refuses or cuts a connection is going, however much its process still does.
func (c *Client) excuse(err error) error {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EAGAIN)
	if late && errors.Is(err, ErrUnavailable) && c.atWork != nil && c.atWork() {
		return errAtWork
	}
	return err
}

// isGone says whether the server answered that it has no such thing.
func isGone(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && (status.Code == http.StatusNotFound || status.Code == http.StatusGone)
}

// call makes one REST call. body and reply may be nil. An error of the transport wraps [ErrUnavailable], one of the
// server is a [StatusError].
func (c *Client) call(ctx context.Context, timeout time.Duration, method, path string, body, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+"/"+path, bytes.NewReader(payload))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	c.authorize(req.Header)
	status, data, err := c.send(req)
	if status == http.StatusForbidden && req.Header.Get(xsrfHeader) != c.xsrf() { // it has given us a cookie of its own
		req = req.Clone(ctx)
		req.Body = io.NopCloser(bytes.NewReader(payload))
		c.authorize(req.Header)
		status, data, err = c.send(req)
	}
	if err != nil {
		return unavailable(ctx, err)
	}
	if status >= 300 {
		return statusError(status, data)
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(data, reply); err != nil {
		return fmt.Errorf("%w: not a Jupyter server's answer: %w", ErrUnavailable, err)
	}
	return nil
}

// send sends one request and returns the status and the body of its answer.
func (c *Client) send(req *http.Request) (int, []byte, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	return resp.StatusCode, data, err
}

func (c *Client) authorize(h http.Header) {
	if c.token != "" {
		h.Set("Authorization", "token "+c.token)
	} else if xsrf := c.xsrf(); xsrf != "" {
		h.Set(xsrfHeader, xsrf)
	}
}

// Without a token a server wants to see in a header what is in its cookie, which other sites' pages can't read. Any
// value will do until it has set one of its own (Tornado, "Cross-site request forgery protection").
const (
	xsrfCookie = "_xsrf"
	xsrfHeader = "X-XSRFToken"
)

func (c *Client) introduce() {
	c.jar.SetCookies(c.base, []*http.Cookie{{Name: xsrfCookie, Value: newID(), Path: c.base.Path + "/"}})
}

// xsrf is the cookie's value, empty if there is none.
func (c *Client) xsrf() string {
	for _, cookie := range c.jar.Cookies(c.base.JoinPath("api")) {
		if cookie.Name == xsrfCookie {
			return cookie.Value
		}
	}
	return ""
}

// unavailable words an error of the transport; the cause of an ended ctx says more than the error does.
func unavailable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, context.DeadlineExceeded) {
			return fmt.Errorf("%w: no answer in time: %w", ErrUnavailable, cause)
		}
		return cause
	}
	var inURL *url.Error // names the address again
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// statusError takes the message from a JSON answer; anything else is a proxy's page and only its status counts.
func statusError(code int, body []byte) error {
	var reply struct {
		Message string `json:"message"`
		Reason  string `json:"reason"`
	}
	if json.Unmarshal(body, &reply) != nil || reply.Message == "" {
		reply.Message = reply.Reason
	}
	err := &StatusError{Code: code, Message: reply.Message}
	switch code {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// dial opens the WebSocket of a kernel. The server answers once the kernel has: that may take its start.
// session names the client's end.
func (c *Client) dial(ctx context.Context, kernelID, session string) (socket, error) {
	u := *c.base
	u.Scheme = strings.Replace(u.Scheme, "http", "ws", 1)
	u = *u.JoinPath("api", "kernels", kernelID, "channels")
	u.RawQuery = url.Values{"session_id": {session}}.Encode()
	header := http.Header{}
	c.authorize(header)
	for range 5 {
		ws, resp, err := c.handshake(ctx, u.String(), header)
		if err == nil {
			return ws, nil
		}
		if resp == nil {
			return socket{}, unavailable(ctx, err)
		}
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		resp.Body.Close()
		location, lerr := resp.Location()
		if resp.StatusCode < 300 || resp.StatusCode >= 400 || lerr != nil {
			return socket{}, statusError(resp.StatusCode, data)
		}
		next := *location
		next.Scheme = strings.Replace(next.Scheme, "http", "ws", 1)
		if next.Scheme != u.Scheme || next.Host != u.Host {
			return socket{}, fmt.Errorf("%w: redirected to another server, %s", ErrUnavailable, next.Host)
		}
		u = next
	}
	return socket{}, fmt.Errorf("%w: too many redirects", ErrUnavailable)
}

// socket is a kernel's WebSocket.
type socket struct {
	*websocket.Conn
	received *atomic.Uint64 // bytes
}

// handshake is the dialer's, but ends with ctx also while it waits for the server's answer.
func (c *Client) handshake(ctx context.Context, u string, header http.Header) (socket, *http.Response, error) {
	stop := func() bool { return true }
	var received atomic.Uint64
	dialer := c.dialer
	dialer.NetDialContext = func(dialing context.Context, network, addr string) (net.Conn, error) {
		nc, err := c.dialer.NetDialContext(dialing, network, addr)
		if err != nil {
			return nil, err
		}
		stop = context.AfterFunc(ctx, func() { _ = nc.Close() })
		return countedConn{nc, &received}, nil
	}
	ws, resp, err := dialer.DialContext(ctx, u, header)
	if !stop() && err == nil { // ctx ended and closed it
		return socket{}, nil, context.Cause(ctx)
	}
	return socket{ws, &received}, resp, err
}

// countedConn counts the bytes that come in.
type countedConn struct {
	net.Conn
	received *atomic.Uint64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(uint64(n))
	return n, err
}
