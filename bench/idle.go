package main

import (
	"context"
	"os"
	"time"
)

func idleBenchmarks() []benchmark {
	return []benchmark{{"idle", "what celld costs when it does nothing; no floor", idle}}
}

func idle(ctx context.Context, r *run) error {
	var started, held []float64
	for range r.rounds {
		d, err := r.celld(ctx)
		if err != nil {
			return err
		}
		started = append(started, d.started.Seconds())
		if err := d.do(ctx, command("true")); err != nil {
			return err
		}
		if err := wait(ctx, time.Second); err != nil {
			return err
		}
		now, err := memory(d.pid, "VmRSS")
		if err != nil {
			return err
		}
		held = append(held, max(now, d.idle))
		if err := d.stop(); err != nil {
			return err
		}
	}
	info, err := os.Stat(r.binary)
	if err != nil {
		return err
	}
	r.single("start to first /ping", "ms", median(started), atMost(0.05))
	r.single("resident memory", "MB", median(held)/mb, atMost(25))
	r.single("size of the binary", "MB", float64(info.Size())/mb, atMost(30))
	return nil
}
