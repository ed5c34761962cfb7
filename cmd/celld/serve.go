package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/files"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/hostinfo"
	"github.com/celld/celld/internal/proctree"
	"github.com/celld/celld/server"
)

// answerGrace is how long answers under way may take after everything that ran has been stopped.
const answerGrace = 2 * time.Second

// lastWithin is how long killing what is left after that may take.
const lastWithin = time.Second

// leftoversWithin is how long the start may be held up by what is left of an earlier celld.
const leftoversWithin = 5 * time.Second

// serve runs the daemon until ctx is done. It is called on the main thread, on which it stays: that thread adopts and
// reaps orphans, and starts no process itself.
func (s *serveCmd) serve(ctx context.Context, log *slog.Logger) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := prepareProcess(); err != nil {
		return err
	}
	lock, err := lockDir(s.DataDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	s.endLeftovers(ctx, log)
	l, err := net.Listen("tcp", s.address())
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	result := make(chan error, 1)
	go func() {
		defer stopReaping()
		result <- s.run(ctx, l, log)
	}()
	if err := proctree.ReapOrphans(reaping); err != nil && reaping.Err() == nil {
		return fmt.Errorf("reap orphans: %w", err)
	}
	return <-result
}

// prepareProcess makes this process fit to have children.
func prepareProcess() error {
	if err := proctree.ResetSignals(); err != nil {
		return err
	}
	if err := proctree.SealDescriptors(); err != nil {
		return err
	}
	limitMemory()
	return proctree.Subreaper()
}

// endLeftovers ends what an earlier celld has left behind that had no time to do it itself.
func (s *serveCmd) endLeftovers(ctx context.Context, log *slog.Logger) {
	limited, cancel := context.WithTimeoutCause(ctx, leftoversWithin, fmt.Errorf("not within %s", leftoversWithin))
	defer cancel()
	found, err := proctree.KillLeftovers(limited)
	if err != nil {
		log.Warn("leftovers of an earlier celld", "error", err)
	} else if found > 0 {
		log.Info("killed what an earlier celld had left", "processes", found)
	}
}

// run wires everything together and serves on l until ctx is done.
func (s *serveCmd) run(ctx context.Context, l net.Listener, log *slog.Logger) error {
	t := newTelemetry(ctx, hostinfo.New(s.Workspace), log)
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerGrace)
		defer cancel()
		t.stop(end)
	}()
	logs := filepath.Join(s.DataDir, "logs")
	if err := os.RemoveAll(logs); err != nil { // of an earlier celld, whose executions nobody can ask for any more
		return fmt.Errorf("remove old logs: %w", err)
	}
	b, err := s.backends(log)
	if err != nil {
		return err
	}
	controller, srv := s.wire(b, logs, t, log)
	if s.AccessToken == "" && s.InsecureNoAuth {
		log.Warn("anybody who can reach this address can run anything: there is no access token", "address", l.Addr())
	}
	defer s.answerProbes(l, log)()
	log.Info("listening", "address", l.Addr().String(), "workspace", s.Workspace, "version", version)
	return srv.Serve(ctx, l, func() { s.stop(ctx, controller, b, log) }, answerGrace)
}

// wire makes the controller and the server.
func (s *serveCmd) wire(b *runners, logs string, t *telemetry, log *slog.Logger) (*backends.Controller, *server.Server) {
	controller := backends.New(backends.Config{
		Table: b.table, Aliases: aliases, Fallback: b.fallback,
		Budget: hooks.NewBudget(logs, hooks.Limits{
			Memory: s.MemoryPerExecution, MemoryTotal: s.MemoryTotal, Log: s.LogPerExecution, LogTotal: s.LogTotal}),
		Rings: map[string]*hooks.Budget{backends.KindPTY: hooks.NewBudget("", backends.RingLimits(s.MemoryTotal))},
		MaxOf: s.maxOf(),
		Keep:  s.Keep, MaxKept: s.MaxKept, MaxContexts: s.MaxContexts, MaxSessions: s.MaxSessions,
		Log: log, Tracer: t.tracer, Meter: t.meter,
	})
	return controller, server.New(server.Config{
		Controller: controller, Token: s.AccessToken, AnyHost: s.InsecureNoAuth, MaxBody: s.MaxBody,
		DefaultSession: s.DefaultSession, Files: files.FS{Workspace: s.Workspace, Home: os.Getenv("HOME")}, Version: b.version,
		Host: t.host, Warm: b.warm, Prometheus: t.prometheus, Log: log, Tracer: t.tracer, Meter: t.meter,
	})
}

// maxOf limits the kinds of executions of which there may be many without anybody noticing.
func (s *serveCmd) maxOf() map[string]int {
	if s.MaxTerminals == 0 {
		return nil
	}
	return map[string]int{backends.KindPTY: s.MaxTerminals}
}

// stop ends everything that runs, within the time for a shutdown.
func (s *serveCmd) stop(ctx context.Context, c *backends.Controller, b *runners, log *slog.Logger) {
	log.Info("shutting down")
	within := max(s.GracefulShutdown-answerGrace-lastWithin, s.GracefulShutdown/2)
	end, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), within, fmt.Errorf("not within %s", within))
	defer cancel()
	if err := c.Shutdown(end); err != nil {
		log.Warn("shutdown", "error", err)
	}
	if err := b.close(end); err != nil {
		log.Warn("shutdown", "error", err)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWithin)
	defer cancel()
	if err := proctree.KillOwn(last); err != nil { // what time didn't suffice for, and what nobody knew of
		log.Warn("shutdown", "error", err)
	}
}
