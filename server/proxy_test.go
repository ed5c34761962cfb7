package server

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// FuzzProxyTarget looks at what any path and query become: nothing but a port of this machine, with every byte kept, but for
// the token.
func FuzzProxyTarget(f *testing.F) {
	for _, target := range []string{
		"/proxy/80/a%2Fb?c=d", "/absproxy/65535", "/proxy/0/", "/proxy/80//x?", "/proxy/80/?a&access_token=t0ken&b", "/proxy/80@evil/", "/proxy//80/",
		"/proxy/80/?access_token=%740ken", "/proxy/80/%zz?;", "*", "/proxy/18446744073709551696/",
	} {
		f.Add(target)
	}
	s := New(Config{Token: "t0ken"})
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return // net/http refuses it, or means something else
		}
		r := &http.Request{Method: "GET", URL: u, RequestURI: target, Header: http.Header{}}
		to, ok, err := s.targetOf(r)
		if !ok || err != nil {
			return
		}
		if to.port < 1 || to.port > 65535 || !strings.HasPrefix(to.address, "127.0.0.1:") || !strings.HasPrefix(to.path, "/") {
			t.Fatalf("%q goes to %+v", target, to)
		}
		path, query, has := strings.Cut(target, "?")
		if to.mount == absProxyPrefix && to.path != path || to.mount == proxyPrefix && !to.bare && to.prefix+to.path != path {
			t.Errorf("%q becomes the path %q", target, to.path)
		}
		if !strings.Contains(target, "oken") && (to.query != query || to.hasQuery != has) {
			t.Errorf("%q becomes the query %q", target, to.query)
		}
		if values, err := url.ParseQuery(to.query); err == nil && values.Get("access_token") == "t0ken" {
			t.Errorf("%q: the token is in %q", target, to.query)
		}
	})
}
