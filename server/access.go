package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// Names of headers. Those that every request is asked for stand as net/http keeps them: others are converted at each use.
const (
	headerToken     = "X-Execd-Access-Token"
	headerRequestID = "X-Request-Id"
	headerCursor    = "EXECD-COMMANDS-TAIL-CURSOR"
	headerKeptFrom  = "X-Celld-Log-Kept-From"
)

// open are the paths that need no token: they tell nothing.
var open = map[string]bool{"/ping": true, "/healthz": true, "/readyz": true}

// access lets in who has the token. Where there is none, celld trusts who can reach it, but not the web pages in their
// browsers: those are known by a foreign Origin, or, when a name of theirs was pointed at this machine, by the Host.
func (s *Server) access(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		switch {
		case open[r.URL.Path]:
		case s.config.Token != "":
			if !s.hasToken(r) {
				return &problem{http.StatusUnauthorized, openapi.ErrorCodeUnauthorized, "a valid access token is needed"}
			}
		case !sameOrigin(r):
			return &problem{http.StatusForbidden, openapi.ErrorCodeUnauthorized, "requests from other web pages are refused"}
		case !s.config.AnyHost && !localHost(r.Host):
			return &problem{http.StatusForbidden, openapi.ErrorCodeUnauthorized,
				"without an access token only localhost and addresses are taken as Host"}
		}
		return next(c)
	}
}

// hasToken looks for the token in its header, as a bearer token, and in the query of requests that a browser makes
// for a link or a WebSocket, which can't carry headers. Another bearer token may be for an app behind the proxy.
func (s *Server) hasToken(r *http.Request) bool {
	if t := r.Header.Get(headerToken); t != "" {
		return s.isToken(t)
	}
	if s.ownBearer(r.Header) {
		return true
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return s.isToken(r.URL.Query().Get("access_token"))
	}
	return false
}

// ownBearer says that the Authorization header holds celld's own token.
func (s *Server) ownBearer(h http.Header) bool {
	scheme, t, ok := strings.Cut(h.Get("Authorization"), " ")
	return ok && strings.EqualFold(scheme, "Bearer") && s.isToken(strings.TrimSpace(t))
}

// isToken compares in a time that tells nothing about the token.
func (s *Server) isToken(t string) bool {
	got := sha256.Sum256([]byte(t))
	return subtle.ConstantTimeCompare(got[:], s.token[:]) == 1
}

// sameOrigin says that the request doesn't come from another web page (RFC 6454).
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// localHost says that a Host header names this machine in a way that no other party can give it.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// requestID echoes the client's request id, or makes one.
func requestID(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(headerRequestID)
		if !validRequestID(id) {
			id = backends.NewID()
		}
		c.Response().Header().Set(headerRequestID, id)
		return next(c)
	}
}

func validRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
