package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func proxyBenchmarks() []benchmark {
	return []benchmark{
		{"proxy-small", "1 KB of an app through /proxy, one request after the other; floor: httputil.ReverseProxy alone", proxySmall},
		{"proxy-large", "1 GB of an app through /proxy; the same floor", proxyLarge},
		{"metrics", "/metrics, and the same for Prometheus", metricsBenchmark},
	}
}

// serveProxyFloor serves a bare reverse proxy before an app, on a free port until the process ends.
func serveProxyFloor(app string) (address string, err error) {
	to, err := url.Parse(app)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, httputil.NewSingleHostReverseProxy(to))
	return l.Addr().String(), nil
}

// floorBytes is the app: it sends so many bytes.
func floorBytes(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.FormValue("size"), 10, 64)
	if err != nil || size < 0 {
		http.Error(w, "size is missing", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	chunk := bytes.Repeat([]byte("Q"), 64<<10)
	for size > 0 {
		n, err := w.Write(chunk[:min(size, int64(len(chunk)))])
		if err != nil {
			return
		}
		size -= int64(n)
	}
}

// proxied starts an app, celld and a bare proxy, and returns both proxies with the path under which each has the app.
func (r *run) proxied(ctx context.Context) (d *daemon, under string, f *floor, err error) {
	app, err := r.floor("http")
	if err != nil {
		return nil, "", nil, err
	}
	if f, err = r.floor("proxy", app.base); err != nil {
		return nil, "", nil, err
	}
	if d, err = r.celld(ctx); err != nil {
		return nil, "", nil, err
	}
	return d, "/proxy/" + app.base[strings.LastIndexByte(app.base, ':')+1:], f, nil
}

// times takes the time of f, again and again.
func times(f func(ctx context.Context) error) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		got := make([]float64, 0, n)
		for range n {
			began := time.Now()
			if err := f(ctx); err != nil {
				return nil, err
			}
			got = append(got, time.Since(began).Seconds())
		}
		return got, nil
	}
}

func proxySmall(ctx context.Context, r *run) error {
	d, under, f, err := r.proxied(ctx)
	if err != nil {
		return err
	}
	const path, size = "/bytes?size=1024", 1024
	return r.compare(ctx, contest{
		floor: times(func(ctx context.Context) error { return f.fetch(ctx, path, size) }),
		celld: times(func(ctx context.Context) error { return d.fetch(ctx, under+path, size) }),
		warm:  200, n: pick(r, 1000, 5000, 10000), slice: 250, figures: []figure{p50(atMost(1.3)), p99(atMost(2))},
	})
}

func proxyLarge(ctx context.Context, r *run) error {
	d, under, f, err := r.proxied(ctx)
	if err != nil {
		return err
	}
	size := pick[int64](r, 200e6, 1e9, 1e9)
	path := fmt.Sprint("/bytes?size=", size)
	of := func(p *peer, path string) side {
		return rates(float64(size)/mb, clocked(func(ctx context.Context) error { return p.fetch(ctx, path, size) }))
	}
	return r.compareFlat(ctx, d, contest{floor: of(f.peer, path), celld: of(d.peer, under+path), warm: 1, n: 1,
		figures: []figure{middle("speed", "MB/s", atLeast(0.9))}})
}

func metricsBenchmark(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	for _, path := range []string{"/metrics", "/metrics/prometheus"} {
		ask := times(func(ctx context.Context) error { return d.get(ctx, path) })
		if _, err := ask(ctx, 20); err != nil {
			return err
		}
		got, err := ask(ctx, pick(r, 200, 1000, 2000))
		if err != nil {
			return err
		}
		r.single(path+" p50", "ms", median(got), atMost(0.005))
		r.single(path+" p99", "ms", quantile(got, 0.99), atMost(0.02))
	}
	return nil
}
