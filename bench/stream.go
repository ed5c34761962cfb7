package main

import (
	"context"
	"fmt"
	"time"
)

const mb = 1e6

func streamBenchmarks() []benchmark {
	return []benchmark{
		{"stream-raw", "`head -c 100000000 /dev/zero | tr '\\0' Q | fold -w 100` through /command, output raw; floor: a bare handler that streams the pipe",
			func(ctx context.Context, r *run) error { return throughput(ctx, r, "raw", 0.8) }},
		{"stream-lines", "the same, one event a line; the same floor",
			func(ctx context.Context, r *run) error { return throughput(ctx, r, "lines", 0.5) }},
		{"stream-slow-reader", "the same with a reader that takes 1 MB/s: the daemon's memory above idle", slowReader},
	}
}

// pipeline prints size letters in lines of 100. Q, because no frame has one of its own.
func pipeline(size int) call {
	c := command(fmt.Sprintf(`head -c %d /dev/zero | tr '\0' Q | fold -w 100`, size))
	c.payload, c.lines = int64(size), int64(size/100)-1 // fold ends the last line not at all
	return c
}

// in returns c with an output mode; the floor ignores it.
func (c call) in(mode string) call {
	c.body = c.body[:len(c.body)-1] + `,"output":"` + mode + `"}`
	if mode == "lines" && c.lines > 0 {
		c.lines++ // the last line is an event, although nothing ends it
	}
	return c
}

func throughput(ctx context.Context, r *run, mode string, bound float64) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	size := pick(r, 30_000_000, 100_000_000, 100_000_000)
	return r.throughput(ctx, d, f.peer, pipeline(size), pipeline(size).in(mode), bound)
}

// throughput compares the MB/s of two calls with the same payload, and looks at celld's memory meanwhile.
func (r *run) throughput(ctx context.Context, d *daemon, f *peer, floor, celld call, bound float64) error {
	held, err := peak(d.pid, func() error {
		return r.compare(ctx, contest{floor: megabytes(f, floor), celld: megabytes(d.peer, celld), n: 1,
			figures: []figure{middle("speed", "MB/s", atLeast(bound))}})
	})
	if err != nil {
		return err
	}
	r.single("peak memory above idle", "MB", (held-d.idle)/mb, atMost(48))
	return nil
}

// megabytes takes the payload's speed.
func megabytes(p *peer, c call) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			began := time.Now()
			if err := p.do(ctx, c); err != nil {
				return nil, err
			}
			got = append(got, float64(c.payload)/mb/time.Since(began).Seconds())
		}
		return got, nil
	}
}

// slowReader reads slowly for a while and then takes the rest at once.
func slowReader(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	slow := pace{1_000_000, pick(r, 5*time.Second, 20*time.Second, 200*time.Second)}
	for _, mode := range []string{"raw", "lines"} {
		held, err := peak(d.pid, func() error { return d.read(ctx, pipeline(100_000_000).in(mode), nil, slow) })
		if err != nil {
			return err
		}
		r.single("peak memory, "+mode, "MB", (held-d.idle)/mb, atMost(48))
	}
	return nil
}
