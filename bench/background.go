package main

import (
	"context"
	"fmt"
	"net/http"
)

func backgroundBenchmarks() []benchmark {
	return []benchmark{{"background-1000", "1,000 idle background commands: the daemon's memory for each; no floor", backgroundMemory}}
}

// initID returns the id that the first event of an answer gives.
func initID(answer []byte) (string, error) {
	e, err := firstEvent(answer)
	return e.Text, err
}

func backgroundMemory(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	if err := d.do(ctx, command("true")); err != nil {
		return err
	}
	before, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	const n = 1000
	ids := make([]string, n)
	body := object("command", "exec sleep 3600", "background", true)
	err = together(16, func(worker int) error {
		for i := worker; i < n; i += 16 {
			answer, err := d.ask(ctx, http.MethodPost, "/command", body)
			if err != nil {
				return err
			}
			if ids[i], err = initID(answer); err != nil {
				return err
			}
			// It has been accepted; a signal waits for its process.
			if _, err := d.ask(ctx, http.MethodPost, "/command/"+ids[i]+"/signal", object("signal", "CONT")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	running, err := below(d.pid)
	if err != nil {
		return err
	}
	if len(running) < n {
		return fmt.Errorf("%d of %d commands run", len(running), n)
	}
	after, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	r.single("memory for each", "KB", (after-before)/n/1e3, atMost(64))
	return together(16, func(worker int) error {
		for i := worker; i < n; i += 16 {
			if _, err := d.ask(ctx, http.MethodDelete, "/command?id="+ids[i], ""); err != nil {
				return err
			}
		}
		return nil
	})
}
