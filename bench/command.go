package main

import (
	"context"
	"sync"
	"time"
)

func commandBenchmarks() []benchmark {
	return []benchmark{
		{"command-true", "POST /command `true`, request to last byte, one keep-alive connection; floor: a bare net/http handler around os/exec", commandTrue},
		{"command-first-byte", "from the request to the first byte of stdout of `echo Q; sleep 0.4`; floor: the same handler", commandFirstByte},
		{"command-16-clients", "POST /command `true` from 16 clients at once; floor: the same handler", commandClients},
		{"command-64-clients", "POST /command `true` from 64 clients at once; floor: os/exec with both streams read, from 64 goroutines", commandExec},
	}
}

// both starts a celld and a floor.
func (r *run) both(ctx context.Context, kind string, args ...string) (*daemon, *floor, error) {
	f, err := r.floor(kind, args...)
	if err != nil {
		return nil, nil, err
	}
	d, err := r.celld(ctx)
	return d, f, err
}

func commandTrue(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	n := pick(r, 200, 1000, 2000)
	return r.compare(ctx, contest{
		floor: latencies(f.peer, command("true")), celld: latencies(d.peer, command("true")),
		warm: 100, n: n, slice: 50, figures: []figure{p50(atMost(1.15)), p99(atMost(2))},
	})
}

func commandFirstByte(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: firstBytes(f.peer), celld: firstBytes(d.peer),
		warm: 20, n: pick(r, 40, 100, 200), slice: 20, figures: []figure{p50(atMost(1.15))},
	})
}

// firstBytes starts the next command as soon as the one before has printed: that one only sleeps from then on. All
// have ended before the other side's turn.
func firstBytes(p *peer) side {
	c := command("echo Q; sleep 0.4")
	c.payload = 1
	return func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		var all sync.WaitGroup
		first, failed := make(chan float64, n), make(chan error, n)
		for range n {
			began := time.Now()
			all.Go(func() {
				if err := p.read(ctx, c, func() { first <- time.Since(began).Seconds() }, pace{}); err != nil {
					failed <- err
				}
			})
			select {
			case s := <-first:
				got = append(got, s)
			case err := <-failed:
				return nil, err
			}
		}
		all.Wait()
		select {
		case err := <-failed:
			return nil, err
		default:
			return got, nil
		}
	}
}

func commandClients(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	total := pick(r, 480, 1600, 3200)
	do := func(int) call { return command("true") }
	return r.compare(ctx, contest{
		floor: perSecond(f.peer, 16, total, do), celld: perSecond(d.peer, 16, total, do),
		warm: 1, n: 1, figures: []figure{middle("rate", "/s", atLeast(0.9))},
	})
}

func commandExec(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "exec")
	if err != nil {
		return err
	}
	total := pick(r, 640, 1920, 3840)
	return r.compare(ctx, contest{
		floor: f.perSecond(job{Op: "output", Text: "true", N: total, Clients: 64}),
		celld: perSecond(d.peer, 64, total, func(int) call { return command("true") }),
		warm:  1, n: 1, figures: []figure{middle("rate", "/s", atLeast(0.8))},
	})
}
