package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

func sessionBenchmarks() []benchmark {
	return []benchmark{
		{"session-noop", "a run of `:` in a session over HTTP, request to last byte; floor: os/exec of `bash -c true`, without a transport", sessionNoop},
		{"session-create", "POST /session, which answers when the shell has; floor: a bare bash on pipes, until it has answered once", sessionCreate},
		{"session-raw", "the 100 MB of stream-raw in a session; the same floor",
			func(ctx context.Context, r *run) error { return sessionStream(ctx, r, "raw", 0.8) }},
		{"session-lines", "the 100 MB of stream-lines in a session; the same floor",
			func(ctx context.Context, r *run) error { return sessionStream(ctx, r, "lines", 0.5) }},
		{"session-1000", "1,000 sessions alive at once: the daemon's memory for each; no floor", sessionMemory},
		{"session-50x200", "200 runs in each of 50 sessions at once, each prints what only it has", sessionMix},
	}
}

// newSession makes a session; a celld without sessions is unavailable.
func (d *daemon) newSession(ctx context.Context) (string, error) {
	made, err := askJSON[struct {
		ID string `json:"session_id"`
	}](ctx, d.peer, http.MethodPost, "/session", "{}")
	var refused *statusError
	if errors.As(err, &refused) && (refused.status == http.StatusNotFound || refused.status == http.StatusMethodNotAllowed) {
		return "", unavailable("no sessions")
	}
	return made.ID, err
}

func (d *daemon) deleteSession(ctx context.Context, id string) error {
	_, err := d.ask(ctx, http.MethodDelete, "/session/"+id, "")
	return err
}

// within is a run in a session.
func within(id, text string) call {
	return call{path: "/session/" + id + "/run", body: object("command", text)}
}

func sessionNoop(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "exec")
	if err != nil {
		return err
	}
	id, err := d.newSession(ctx)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: f.latencies(job{Op: "run", Text: "true"}), celld: latencies(d.peer, within(id, ":")),
		warm: 100, n: pick(r, 300, 1000, 2000), slice: 50, figures: []figure{p50(atMost(0.35)), p99(atMost(0.6))},
	})
}

func sessionCreate(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "exec")
	if err != nil {
		return err
	}
	create := func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			began := time.Now()
			id, err := d.newSession(ctx)
			if err != nil {
				return nil, err
			}
			got = append(got, time.Since(began).Seconds())
			if err := d.do(ctx, within(id, ":")); err != nil {
				return nil, err
			}
			if err := d.deleteSession(ctx, id); err != nil {
				return nil, err
			}
		}
		return got, nil
	}
	return r.compare(ctx, contest{
		floor: f.latencies(job{Op: "shell"}), celld: create,
		warm: 20, n: pick(r, 50, 100, 200), slice: 25, figures: []figure{p50(atMost(1.5))},
	})
}

func sessionStream(ctx context.Context, r *run, mode string, bound float64) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	id, err := d.newSession(ctx)
	if err != nil {
		return err
	}
	c := pipeline(pick(r, 30_000_000, 100_000_000, 100_000_000))
	there := c.in(mode)
	there.path = "/session/" + id + "/run"
	return r.throughput(ctx, d, f.peer, c, there, bound)
}

// sessions makes n sessions, some at a time, and has each answer once.
func (d *daemon) sessions(ctx context.Context, n int) ([]string, error) {
	ids := make([]string, n)
	return ids, together(8, func(worker int) (err error) {
		for i := worker; i < n; i += 8 {
			if ids[i], err = d.newSession(ctx); err != nil {
				return err
			}
			if err := d.do(ctx, within(ids[i], ":")); err != nil {
				return err
			}
		}
		return nil
	})
}

func sessionMemory(ctx context.Context, r *run) error {
	d, err := r.celld(ctx, "--max-sessions", "2000")
	if err != nil {
		return err
	}
	if _, err := d.sessions(ctx, 8); err != nil {
		return err
	}
	before, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	const n = 1000
	if _, err := d.sessions(ctx, n); err != nil {
		return err
	}
	after, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	r.single("memory for each", "KB", (after-before)/n/1e3, atMost(128))
	return nil
}

func sessionMix(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	ids, err := d.sessions(ctx, 50)
	if err != nil {
		return err
	}
	runs := pick(r, 40, 200, 200)
	var mixed faults
	err = together(len(ids), func(i int) error {
		mixed.count(d.do(ctx, within(ids[i], fmt.Sprintf("me=%d; n=0", i))))
		for k := range runs {
			c := within(ids[i], `printf 'Q%.0s' $(seq $((me + 1))); echo " I am $me $((n++))"`)
			c.payload, c.says = int64(i+1), fmt.Sprintf("I am %d %d", i, k)
			mixed.count(d.do(ctx, c))
		}
		return context.Cause(ctx)
	})
	r.single(fmt.Sprintf("wrong of %d runs", runs*len(ids)), "", float64(mixed.n.Load()), atMost(0))
	return errors.Join(err, mixed.first())
}
