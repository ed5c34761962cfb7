package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

func codeBenchmarks() []benchmark {
	return []benchmark{
		{"code-warm", "POST /code `1+1` in a warm context, request to last byte; floor: a bare WebSocket client of a kernel of its own on a Jupyter Server started in the same way", codeWarm},
		{"code-8-contexts", "`1+1` from 8 clients in 8 contexts at once; floor: 8 bare clients of 8 kernels", codeClients},
		{"code-open-10", "10 contexts made at once, each asked for `1+1`; floor: the bare client doing the same", codeOpen},
		{"code-20-contexts", "20 contexts run cells at once, each prints what only it has", codeCrossTalk},
		{"code-print-10MB", "10 MB printed by one cell in lines of 100; floor: the bare client",
			func(ctx context.Context, r *run) error { return codePrint(ctx, r, 10) }},
		{"code-print-50MB", "50 MB printed by one cell; floor: the bare client",
			func(ctx context.Context, r *run) error { return codePrint(ctx, r, 50) }},
	}
}

// cell is POST /code in a context.
func cell(id, code string) call {
	return call{path: "/code", body: object("context", map[string]string{"id": id}, "code", code)}
}

// newContext makes a python context.
func (d *daemon) newContext(ctx context.Context) (string, error) {
	made, err := askJSON[struct{ ID string }](ctx, d.peer, http.MethodPost, "/code/context", `{"language":"python"}`)
	return made.ID, err
}

// codePair starts a celld with n warm contexts and a bare client with n kernels.
func (r *run) codePair(ctx context.Context, n int) (*daemon, []string, *floor, error) {
	if _, err := os.Stat(r.python()); err != nil {
		return nil, nil, nil, unavailable("make setup installs the Jupyter Server")
	}
	d, err := r.celld(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	ids := make([]string, n)
	for i := range ids {
		if ids[i], err = d.newContext(ctx); err != nil {
			return nil, nil, nil, err
		}
		if err := d.do(ctx, cell(ids[i], "1+1")); err != nil {
			return nil, nil, nil, err
		}
	}
	f, err := r.jupyterFloor()
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := f.do(job{Op: "open", N: n, Text: "1+1"}); err != nil {
		return nil, nil, nil, err
	}
	return d, ids, f, nil
}

// python is the interpreter that has the Jupyter Server.
func (r *run) python() string { return filepath.Join(r.root, ".celld/python/bin/python") }

// jupyterFloor starts a bare client and its Jupyter Server, with celld's python and script.
func (r *run) jupyterFloor() (*floor, error) {
	dir := filepath.Join(r.fast, "floor")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := r.goKernelspec(dir); err != nil {
		return nil, err
	}
	return r.floor("jupyter", r.python(), filepath.Join(r.root, "jupyter/launch.py"), dir)
}

func codeWarm(ctx context.Context, r *run) error {
	d, ids, f, err := r.codePair(ctx, 1)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: f.latencies(job{Op: "cells", Text: "1+1"}), celld: latencies(d.peer, cell(ids[0], "1+1")),
		warm: 50, n: pick(r, 100, 300, 600), slice: 50, figures: []figure{p50(atMost(1.1)), p99(atMost(1.5))},
	})
}

func codeClients(ctx context.Context, r *run) error {
	d, ids, f, err := r.codePair(ctx, 8)
	if err != nil {
		return err
	}
	total := pick(r, 320, 960, 1920)
	return r.compare(ctx, contest{
		floor: f.perSecond(job{Op: "cells", Text: "1+1", N: total, Clients: 8}),
		celld: perSecond(d.peer, 8, total, func(i int) call { return cell(ids[i], "1+1") }),
		warm:  1, n: 1, figures: []figure{middle("rate", "/s", atLeast(0.9))},
	})
}

func codeOpen(ctx context.Context, r *run) error {
	d, _, f, err := r.codePair(ctx, 1)
	if err != nil {
		return err
	}
	floor := func(context.Context, int) ([]float64, error) {
		opened, err := f.do(job{Op: "open", N: 10, Text: "1+1"})
		if err != nil {
			return nil, err
		}
		_, err = f.do(job{Op: "close"})
		return []float64{opened.Total}, err
	}
	celld := func(ctx context.Context, _ int) ([]float64, error) {
		ids := make([]string, 10)
		began := time.Now()
		err := together(len(ids), func(i int) (err error) {
			if ids[i], err = d.newContext(ctx); err != nil {
				return err
			}
			return d.do(ctx, cell(ids[i], "1+1"))
		})
		took := time.Since(began).Seconds()
		if err != nil {
			return nil, err
		}
		return []float64{took}, together(len(ids), func(i int) error {
			_, err := d.ask(ctx, http.MethodDelete, "/code/contexts/"+ids[i], "")
			return err
		})
	}
	return r.compare(ctx, contest{floor: floor, celld: celld, n: 1, figures: []figure{middle("all ready", "ms", atMost(1.15))}})
}

func codeCrossTalk(ctx context.Context, r *run) error {
	d, ids, _, err := r.codePair(ctx, 20)
	if err != nil {
		return err
	}
	rounds := pick(r, 5, 20, 50)
	var mixed faults
	err = together(len(ids), func(i int) error {
		for k := range rounds {
			// The payload's length is i's alone. One string a print: the kernel may send its pieces apart.
			c := cell(ids[i], fmt.Sprintf("me = %d\nfor k in range(%d): print('Q' * me, flush=True)\nprint(f'I am {me} %d')", i+1, 10, k))
			c.payload, c.says = int64(10*(i+1)), fmt.Sprintf("I am %d %d", i+1, k)
			mixed.count(d.do(ctx, c))
		}
		return context.Cause(ctx)
	})
	r.single(fmt.Sprintf("wrong of %d cells", rounds*len(ids)), "", float64(mixed.n.Load()), atMost(0))
	return errors.Join(err, mixed.first())
}

// codePrint compares the time that a cell's output takes, and looks at celld's memory meanwhile.
func codePrint(ctx context.Context, r *run, megabytes int) error {
	d, ids, f, err := r.codePair(ctx, 1)
	if err != nil {
		return err
	}
	lines := megabytes * 10_000
	code := fmt.Sprintf("for i in range(%d): print('Q' * 99)", lines)
	c := cell(ids[0], code)
	c.payload = int64(99 * lines)
	floor := func(_ context.Context, n int) ([]float64, error) {
		got, err := f.do(job{Op: "cells", Text: code, N: n, Clients: 1})
		if want := int64(100 * lines * n); err == nil && got.Bytes != want {
			err = fmt.Errorf("%d bytes, want %d", got.Bytes, want)
		}
		return got.Seconds, err
	}
	held, err := peak(d.pid, func() error {
		return r.compare(ctx, contest{floor: floor, celld: latencies(d.peer, c), warm: 1, n: 1,
			figures: []figure{middle("time", "ms", atMost(1.5))}})
	})
	if err != nil {
		return err
	}
	r.single("peak memory above idle", "MB", (held-d.idle)/mb, atMost(64)) // whatever the size: the kernel sends MBs at a time
	return nil
}
