package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
)

// languages are those whose cells are measured, each with the kernelspec that celld uses and a cell that does next to
// nothing. The bound is the ratio of the medians: a request over HTTP counts for more beside a kernel that answers in 2 ms.
// Python has a file of its own.
var languages = []struct {
	name, kernel, text string
	bound              float64
}{
	{"javascript", "javascript", "1+1", 1.2},
	{"java", "java", "1+1", 1.1},
	{"go", "celld-go", "1+1", 1.5},
}

func languageBenchmarks() []benchmark {
	all := []benchmark{
		{"language-bash", "POST /code `:` in a warm context of bash, request to last byte; floor: os/exec of `bash -c true`, without a transport", bashWarm},
	}
	for _, l := range languages {
		all = append(all, benchmark{"language-" + l.name,
			"POST /code `" + l.text + "` in a warm context of " + l.name + "; floor: a bare WebSocket client of the same kernel, as for code-warm",
			func(ctx context.Context, r *run) error { return kernelWarm(ctx, r, l.name, l.kernel, l.text, l.bound) }})
	}
	return all
}

// languageContext makes a context of a language.
func (d *daemon) languageContext(ctx context.Context, language string) (string, error) {
	made, err := askJSON[struct{ ID string }](ctx, d.peer, http.MethodPost, "/code/context", object("language", language))
	return made.ID, err
}

func kernelWarm(ctx context.Context, r *run, language, kernel, text string, bound float64) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	id, err := d.languageContext(ctx, language)
	if err != nil {
		return unavailable("make setup build installs kernels: " + err.Error())
	}
	f, err := r.jupyterFloor()
	if err != nil {
		return err
	}
	if _, err := f.do(job{Op: "open", N: 1, Text: text, Kernel: kernel}); err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: f.latencies(job{Op: "cells", Text: text}), celld: latencies(d.peer, cell(id, text)),
		warm: 20, n: pick(r, 50, 200, 400), slice: 25, figures: []figure{p50(atMost(bound))},
	})
}

func bashWarm(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "exec")
	if err != nil {
		return err
	}
	id, err := d.languageContext(ctx, "bash")
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: f.latencies(job{Op: "run", Text: "true"}), celld: latencies(d.peer, cell(id, ":")),
		warm: 50, n: pick(r, 100, 300, 600), slice: 50, figures: []figure{p50(atMost(0.6))},
	})
}

// goKernelspec lets a floor's Jupyter Server find celld's kernel for Go.
func (r *run) goKernelspec(dir string) error {
	dir = filepath.Join(dir, "kernels", "celld-go")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(r.binary), "celld-gokernel")
	spec := object("argv", []string{program, "{connection_file}"}, "display_name", "Go", "language", "go")
	return os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(spec), 0o600)
}
