package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The paths under which ports are served. Beneath the first an app sees its own paths, beneath the second the whole one.
const (
	proxyPrefix    = "/proxy/"
	absProxyPrefix = "/absproxy/"
)

const (
	// proxyDial is how long connecting to an app may take: where nobody listens, the refusal comes at once.
	proxyDial = 5 * time.Second
	// proxyIdle is how long a connection to an app is kept for the next request: shorter than servers keep theirs, so
	// that no request goes into one that is being closed.
	proxyIdle   = time.Second
	proxyBuffer = 64 << 10 // bytes
	// proxySmall is the length of the largest answer whose header waits for the first of its body, so that both go in one
	// write, in bytes.
	proxySmall = 4 << 10
)

// proxy sends requests below /proxy/{port}/ and /absproxy/{port}/ to 127.0.0.1:port. These are no routes: the path goes on
// byte for byte as it came, by any method.
type proxy struct {
	s         *Server
	transport *http.Transport
	buffers   sync.Pool // *[]byte
}

func newProxy(s *Server) *proxy {
	p := &proxy{s: s}
	p.buffers.New = func() any { b := make([]byte, proxyBuffer); return &b }
	p.transport = &http.Transport{
		DialContext:            dialLoopback,
		DisableCompression:     true, // what comes is what was asked for
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        proxyIdle,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeader,
		WriteBufferSize:        proxyBuffer,
		ReadBufferSize:         proxyBuffer,
	}
	return p
}

// dialLoopback connects to a port of this machine, whatever the host in address is. Programs that listen on localhost
// may mean its other address.
func dialLoopback(ctx context.Context, _, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: proxyDial}
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		if conn6, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port)); err6 == nil {
			return conn6, nil
		}
	}
	return conn, err
}

// Get implements httputil.BufferPool.
func (p *proxy) Get() []byte { return *p.buffers.Get().(*[]byte) }

// Put implements httputil.BufferPool.
func (p *proxy) Put(b []byte) { p.buffers.Put(&b) }

// target is where a request goes.
type target struct {
	port     int
	address  string // 127.0.0.1:port
	mount    string // one of the two prefixes
	prefix   string // what stands before the app's paths in the client's; "" where the app sees the whole path
	path     string // as it came
	query    string // as it came, less celld's token
	hasQuery bool
	bare     bool   // /proxy/{port}, without the slash that links in pages need
	id       string // of the request
}

// targetOf reads the path and the query of a request; ok is false for those that aren't for the proxy.
func (s *Server) targetOf(r *http.Request) (t target, ok bool, err error) {
	raw := r.RequestURI
	if !strings.HasPrefix(raw, "/") { // the absolute form, RFC 9112 section 3.2.2
		raw = r.URL.RequestURI()
	}
	path, query, hasQuery := strings.Cut(raw, "?")
	rest := ""
	t.mount = proxyPrefix
	if rest, ok = strings.CutPrefix(path, proxyPrefix); !ok {
		t.mount = absProxyPrefix
		if rest, ok = strings.CutPrefix(path, absProxyPrefix); !ok {
			return t, false, nil
		}
	}
	name, tail, slash := strings.Cut(rest, "/")
	port, err := strconv.ParseUint(name, 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != name {
		return t, true, badRequest("%.40q is not a port: a number from 1 to 65535 is wanted", name)
	}
	t.port, t.address, t.path, t.bare = int(port), net.JoinHostPort("127.0.0.1", name), path, !slash
	if own, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); own != nil && own.Port == t.port {
		return t, true, badRequest("port %d is celld's own", port) // each turn would take two more descriptors
	}
	if t.mount == proxyPrefix {
		t.prefix = r.Header.Get("X-Forwarded-Prefix") + t.mount + name
		t.path = "/" + tail
	}
	t.query, t.hasQuery = s.withoutToken(query, hasQuery)
	return t, true, nil
}

// withoutToken leaves celld's token out of a query and the rest as it is.
func (s *Server) withoutToken(query string, has bool) (string, bool) {
	if s.config.Token == "" || !strings.Contains(query, "=") {
		return query, has
	}
	var rest []string
	dropped := false
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 == nil && err2 == nil && name == "access_token" && s.isToken(value) {
			dropped = true
			continue
		}
		rest = append(rest, part)
	}
	if !dropped {
		return query, has
	}
	return strings.Join(rest, "&"), len(rest) > 0
}

// handle is a middleware that answers what is for the proxy.
func (p *proxy) handle(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		t, ok, err := p.s.targetOf(c.Request())
		if !ok {
			return next(c)
		}
		c.SetPath(t.mount + "{port}/")
		switch {
		case err != nil:
			return err
		case t.bare && strings.Contains(c.Request().Header.Get("Accept"), "text/html"):
			return c.Redirect(http.StatusPermanentRedirect, t.withSlash())
		}
		return p.serve(c, t)
	}
}

// withSlash is the relative reference (RFC 3986, section 4.2) to the same with a slash, so that relative links in the page are right.
func (t *target) withSlash() string {
	to := strconv.Itoa(t.port) + "/"
	if t.hasQuery {
		to += "?" + t.query
	}
	return to
}

func (p *proxy) serve(c echo.Context, t target) error {
	r := c.Request()
	t.id = c.Response().Header().Get(headerRequestID)
	ctx, done := p.s.during(r.Context())
	defer done()
	w := &proxyWriter{ResponseWriter: c.Response().Writer, c: c, ctx: ctx}
	if r.ContentLength != 0 { // both ways at once; not every ResponseWriter can
		http.NewResponseController(w).EnableFullDuplex()
	}
	if r.Header.Get("Upgrade") != "" { // net/http will not wait for it
		p.s.sockets.Add(1)
		defer p.s.sockets.Done()
	}
	var failed error
	rp := httputil.ReverseProxy{
		Transport:  p.transport,
		BufferPool: p,
		ErrorLog:   p.s.errorLog,
		Rewrite:    func(pr *httputil.ProxyRequest) { p.s.rewrite(pr, &t) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Header.Get(headerRequestID) != "" {
				w.Header().Del(headerRequestID) // the app's instead
			}
			t.relocate(resp, r)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	rp.ServeHTTP(w, r.WithContext(ctx))
	switch {
	case failed == nil:
		return nil
	case c.Response().Committed || r.Context().Err() != nil:
		return abort(c)
	case errors.Is(failed, syscall.ECONNREFUSED):
		return &problem{http.StatusBadGateway, openapi.ErrorCodeUnavailable, fmt.Sprintf("nobody listens on port %d", t.port)}
	case ctx.Err() != nil:
		return &problem{http.StatusServiceUnavailable, openapi.ErrorCodeUnavailable, "shutting down"}
	}
	return &problem{http.StatusBadGateway, openapi.ErrorCodeUnavailable, fmt.Sprintf("port %d gave no answer: %v", t.port, failed)}
}

// rewrite makes the app's request of the client's: the app sees a request to itself on this machine, from a page of its own
// where that page came through celld, and how it was reached in the X-Forwarded headers.
func (s *Server) rewrite(pr *httputil.ProxyRequest, t *target) {
	in, out := pr.In, pr.Out
	out.Host = t.address
	out.URL = &url.URL{Scheme: "http", Host: t.address, RawQuery: t.query, ForceQuery: t.hasQuery && t.query == ""}
	if strings.HasPrefix(t.path, "//") { // an opaque URL with two slashes means another thing
		out.URL.RawPath = t.path
		out.URL.Path, _ = url.PathUnescape(t.path) // net/http has been able to
	} else {
		out.URL.Opaque = t.path
	}
	h := out.Header
	h.Del(headerToken)
	if s.config.Token != "" && s.ownBearer(h) {
		h.Del("Authorization")
	}
	s.forwarded(h, in, t)
	if trace.SpanFromContext(in.Context()).IsRecording() { // else what the client sent is right as it is
		propagation.TraceContext{}.Inject(in.Context(), propagation.HeaderCarrier(h))
	}
	if u, err := url.Parse(h.Get("Origin")); err == nil && ownHost(u.Host, in) {
		h.Set("Origin", "http://"+t.address)
	}
	if u, err := url.Parse(h.Get("Referer")); err == nil && u.Host != "" {
		h.Set("Referer", s.referer(u, in, t))
	}
}

// forwarded tells the app how it was reached. What a gateway before celld has told stays.
func (s *Server) forwarded(h http.Header, in *http.Request, t *target) {
	h["X-Forwarded-For"] = in.Header["X-Forwarded-For"]
	if ip, _, err := net.SplitHostPort(in.RemoteAddr); err == nil {
		h.Set("X-Forwarded-For", strings.Join(append(in.Header["X-Forwarded-For"], ip), ", "))
	}
	proto := "http"
	if in.TLS != nil {
		proto = "https"
	}
	for name, own := range map[string]string{"X-Forwarded-Host": in.Host, "X-Forwarded-Proto": proto} {
		if before := in.Header.Get(name); before != "" {
			own = before
		}
		h.Set(name, own)
	}
	if t.prefix != "" {
		h.Set("X-Forwarded-Prefix", t.prefix)
	}
	if h.Get(headerRequestID) == "" {
		h.Set(headerRequestID, t.id)
	}
}

// ownHost says that host is how the client of r reaches celld.
func ownHost(host string, r *http.Request) bool {
	return host != "" && (strings.EqualFold(host, r.Host) || strings.EqualFold(host, r.Header.Get("X-Forwarded-Host")))
}

// referer is where the client came from as the app knows it, and without celld's token.
func (s *Server) referer(u *url.URL, in *http.Request, t *target) string {
	u.RawQuery, _ = s.withoutToken(u.RawQuery, u.RawQuery != "")
	if ownHost(u.Host, in) {
		u.Scheme, u.Host = "http", t.address
		if rest, ok := strings.CutPrefix(u.EscapedPath(), t.prefix+"/"); ok && t.prefix != "" {
			u.RawPath = "/" + rest
			u.Path, _ = url.PathUnescape(u.RawPath)
		}
	}
	return u.String()
}

// relocate makes a redirection to the app's own paths one that leads through the proxy.
func (t *target) relocate(resp *http.Response, in *http.Request) {
	location := resp.Header.Get("Location")
	u, err := url.Parse(location)
	if location == "" || err != nil || u.Opaque != "" {
		return
	}
	switch {
	case u.Host == "" && u.Scheme == "" && strings.HasPrefix(location, "/"):
	case u.Host == t.address || u.Host == net.JoinHostPort("localhost", strconv.Itoa(t.port)) || ownHost(u.Host, in):
		_, rest, _ := strings.Cut(location, "//")
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			location = rest[i:]
		} else {
			location = "/"
		}
		if !strings.HasPrefix(location, "/") {
			location = "/" + location
		}
	default:
		return
	}
	if location != t.prefix && !strings.HasPrefix(location, t.prefix+"/") {
		location = t.prefix + location
	}
	resp.Header.Set("Location", location)
}

// proxyWriter passes an app's answer on as it is.
type proxyWriter struct {
	http.ResponseWriter
	c   echo.Context
	ctx context.Context // of this one request, which the connection must not outlive once it is no longer HTTP's

	left int64 // bytes of the body that are to come, as far as they have been told; ReverseProxy flushes what has no length
}

// WriteHeader implements http.ResponseWriter.
func (w *proxyWriter) WriteHeader(status int) {
	h := w.Header()
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.c.Response().Committed, w.c.Response().Status = true, status
		if _, ok := h["Content-Type"]; !ok {
			h["Content-Type"] = nil // net/http doesn't guess
		}
	}
	w.ResponseWriter.WriteHeader(status)
	if status < 200 {
		return
	}
	if w.left, _ = strconv.ParseInt(h.Get("Content-Length"), 10, 64); w.left > proxySmall {
		http.NewResponseController(w).Flush()
	}
}

// Write implements http.ResponseWriter. What the app has sent goes on at once; the end goes with the end of the answer.
func (w *proxyWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if w.left -= int64(n); err == nil && w.left > 0 {
		err = http.NewResponseController(w).Flush()
	}
	return n, err
}

// Hijack implements http.Hijacker.
func (w *proxyWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.c.Response().Committed, w.c.Response().Status = true, http.StatusSwitchingProtocols
		context.AfterFunc(w.ctx, func() { conn.Close() })
	}
	return conn, rw, err
}

// Unwrap serves http.ResponseController.
func (w *proxyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
