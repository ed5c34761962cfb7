package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// benchmark is one entry of the program's table. It may add several lines to the report.
type benchmark struct {
	name, what string
	do         func(ctx context.Context, r *run) error
}

func benchmarks() []benchmark {
	return slices.Concat(commandBenchmarks(), streamBenchmarks(), writerBenchmarks(), codeBenchmarks(), kernelBenchmarks(), languageBenchmarks(), sqlBenchmarks(), idleBenchmarks(),
		backgroundBenchmarks(), sessionBenchmarks(), ptyBenchmarks(), fileBenchmarks(), proxyBenchmarks(), soakBenchmarks())
}

// unavailable is returned by a benchmark of something that this celld doesn't have.
type unavailable string

func (u unavailable) Error() string { return "not available: " + string(u) }

// run is one benchmark under way. What it starts ends with it.
type run struct {
	*options
	bench   benchmark
	root    string // of celld's source tree
	binary  string // celld
	report  *report
	dir     string // its own, removed at the end
	fast    string // the same, where celld's run directory goes
	cleanup []func() error
}

func (r *run) do(ctx context.Context) (err error) {
	for _, d := range []struct{ at, dir *string }{{new(""), &r.dir}, {new(fastDir()), &r.fast}} {
		if *d.dir, err = os.MkdirTemp(*d.at, "celld-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(*d.dir)) }()
	}
	defer func() {
		for _, f := range slices.Backward(r.cleanup) {
			err = errors.Join(err, f())
		}
	}()
	err = r.bench.do(ctx, r)
	if u, ok := errors.AsType[unavailable](err); ok {
		r.report.missing(r.bench.name, u.Error())
		return nil
	}
	return err
}

// fastDir is where celld itself puts its run directory by default: a tmpfs, if there is one.
func fastDir() string {
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		if info, err := os.Stat(dir); dir != "" && err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// pick chooses by the length of the run: -short, neither, -long.
func pick[T any](r *run, short, normal, long T) T {
	switch {
	case r.short:
		return short
	case r.long:
		return long
	}
	return normal
}

// side takes n samples of one of the two: seconds, or a rate.
type side func(ctx context.Context, n int) ([]float64, error)

// figure is made of the samples of a round.
type figure struct {
	name, unit string
	of         func(samples []float64) float64
	goal       goal // of the ratio celld/floor
}

func p50(g goal) figure { return figure{"p50", "ms", median, g} }
func p99(g goal) figure {
	return figure{"p99", "ms", func(s []float64) float64 { return quantile(s, 0.99) }, g}
}
func middle(name, unit string, g goal) figure { return figure{name, unit, median, g} }

// contest is celld against its floor.
type contest struct {
	floor, celld side
	warm         int // samples taken first and dropped
	n            int // samples of a round
	slice        int // samples after which it is the other's turn; 0: n
	figures      []figure
}

// compare lets both take turns, within each round too, and adds a line for each figure.
func (r *run) compare(ctx context.Context, c contest) error {
	sides := [2]side{c.floor, c.celld}
	if c.warm > 0 {
		for _, s := range sides {
			if _, err := s(ctx, c.warm); err != nil {
				return err
			}
		}
	}
	if c.slice == 0 {
		c.slice = c.n
	}
	rounds := make([][2][]float64, r.rounds)
	turn := 0
	for i := range rounds {
		for taken := 0; taken < c.n; taken += c.slice {
			for range 2 {
				who := (turn + turn/2) % 2 // 0 1 1 0 0 1 1 0: nobody is always first
				turn++
				got, err := sides[who](ctx, min(c.slice, c.n-taken))
				if err != nil {
					return fmt.Errorf("%s: %w", [2]string{"floor", "celld"}[who], err)
				}
				rounds[i][who] = append(rounds[i][who], got...)
			}
		}
	}
	for _, f := range c.figures {
		var floor, celld []float64
		for _, round := range rounds {
			floor = append(floor, f.of(round[0]))
			celld = append(celld, f.of(round[1]))
		}
		r.report.compared(r.bench.name, f.name, f.unit, summarise(floor, celld), f.goal)
	}
	return nil
}

// single adds a figure of celld alone.
func (r *run) single(figure, unit string, x float64, g goal) {
	r.report.single(r.bench.name, figure, unit, x, g)
}

// wait is for what takes a given time, as an idle minute does.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settled looks again and again whether done holds, for at most limit: what a kernel counts raises no event.
func settled(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(limit)
	for {
		if ok, err := done(); ok || err != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// files lists the regular and other files below the directories, without the directories themselves.
func files(dirs ...string) ([]string, error) {
	var all []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil // gone meanwhile
			}
			if err == nil && !d.IsDir() {
				all = append(all, p)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
