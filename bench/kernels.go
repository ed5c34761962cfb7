package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

func kernelBenchmarks() []benchmark {
	return []benchmark{
		{"code-tcp", "`1+1` in a warm context on another's Jupyter Server over TCP; floor: a celld with its own server on a unix socket", codeTCP},
		{"code-open-warm", "a context made and asked for `1+1`, with --warm; floor: a celld without", codeOpenWarm},
	}
}

func codeTCP(ctx context.Context, r *run) error {
	own, ids, err := r.warmContext(ctx)
	if err != nil {
		return err
	}
	address, err := r.jupyterTCP(ctx)
	if err != nil {
		return err
	}
	other, far, err := r.warmContext(ctx, "--jupyter-host", address, "--jupyter-token", benchToken)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: latencies(own.peer, cell(ids, "1+1")), celld: latencies(other.peer, cell(far, "1+1")),
		warm: 50, n: pick(r, 100, 300, 600), slice: 50, figures: []figure{p50(atMost(1.2)), p99(goal{})},
	})
}

// warmContext starts a celld with one context that has run something.
func (r *run) warmContext(ctx context.Context, args ...string) (*daemon, string, error) {
	if _, err := os.Stat(r.python()); err != nil {
		return nil, "", unavailable("make setup installs the Jupyter Server")
	}
	d, err := r.celld(ctx, args...)
	if err != nil {
		return nil, "", err
	}
	id, err := d.newContext(ctx)
	if err != nil {
		return nil, "", err
	}
	return d, id, d.do(ctx, cell(id, "1+1"))
}

const benchToken = "bench"

var servesAt = regexp.MustCompile(`\] (http://127\.0\.0\.1:\d+)/`)

// jupyterTCP starts a Jupyter Server as it comes and returns its address.
func (r *run) jupyterTCP(ctx context.Context) (string, error) {
	dir := filepath.Join(r.dir, "jupyter")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	server := exec.CommandContext(ctx, r.python(), "-m", "jupyter_server", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
		"--ServerApp.open_browser=False", "--ServerApp.allow_root=True", "--IdentityProvider.token="+benchToken)
	server.Dir = dir
	server.Env = append(os.Environ(), "JUPYTER_NO_CONFIG=1", "JUPYTER_CONFIG_DIR="+dir, "JUPYTER_RUNTIME_DIR="+dir,
		"JUPYTER_DATA_DIR="+dir, "IPYTHONDIR="+dir, "TMPDIR="+dir)
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGTERM) }
	out, err := server.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := server.Start(); err != nil {
		return "", err
	}
	at, read := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := servesAt.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case at <- m[1]:
				default:
				}
			}
		}
	}()
	r.cleanup = append(r.cleanup, func() error {
		server.Process.Signal(syscall.SIGTERM)
		<-read
		server.Wait() // it says that it was told to
		return nil
	})
	select {
	case address := <-at:
		return address, nil
	case <-read:
		return "", fmt.Errorf("the Jupyter Server has ended at once")
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func codeOpenWarm(ctx context.Context, r *run) error {
	const held = 2
	cold, _, err := r.warmContext(ctx)
	if err != nil {
		return err
	}
	warm, _, err := r.warmContext(ctx, "--warm", fmt.Sprint("python=", held))
	if err != nil {
		return err
	}
	// opened takes the time of n contexts, one after the other, each deleted before the next.
	opened := func(d *daemon, ready int) side {
		return func(ctx context.Context, n int) (samples []float64, err error) {
			for range n {
				if err := d.awaitWarm(ctx, ready); err != nil {
					return nil, err
				}
				began := time.Now()
				id, err := d.newContext(ctx)
				if err != nil {
					return nil, err
				}
				if err := d.do(ctx, cell(id, "1+1")); err != nil {
					return nil, err
				}
				samples = append(samples, time.Since(began).Seconds())
				if _, err := d.ask(ctx, http.MethodDelete, "/code/contexts/"+id, ""); err != nil {
					return nil, err
				}
			}
			return samples, nil
		}
	}
	if err := r.compare(ctx, contest{floor: opened(cold, 0), celld: opened(warm, held), warm: 1, n: pick(r, 5, 10, 20),
		figures: []figure{p50(atMost(0.1)), middle("slowest", "ms", goal{}).slowest()}}); err != nil {
		return err
	}
	if err := warm.awaitWarm(ctx, held); err != nil {
		return err
	}
	m, err := warm.warmth(ctx)
	r.single("memory of a warm kernel", "MB", m.Memory/held*(1<<20)/mb, goal{})
	return err
}

// slowest is f of the largest sample.
func (f figure) slowest() figure {
	f.of = func(samples []float64) float64 { return quantile(samples, 1) }
	return f
}

// warmth is what /metrics tells of Python's warm kernels.
type warmth struct {
	Ready  int
	Memory float64 `json:"memory_mib"`
}

func (d *daemon) warmth(ctx context.Context) (warmth, error) {
	m, err := askJSON[struct {
		Warm []warmth `json:"warm_kernels"`
	}](ctx, d.peer, http.MethodGet, "/metrics", "")
	if err != nil || len(m.Warm) == 0 {
		return warmth{}, err
	}
	return m.Warm[0], nil
}

// awaitWarm returns when as many warm kernels are ready.
func (d *daemon) awaitWarm(ctx context.Context, ready int) error {
	for again := time.NewTicker(50 * time.Millisecond); ; {
		m, err := d.warmth(ctx)
		if err != nil || m.Ready >= ready {
			again.Stop()
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
