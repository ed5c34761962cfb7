// Command celld is a code-interpreter daemon: it runs shell commands and code cells for whoever asks over HTTP.
//
//	celld serve            # on 127.0.0.1:44772; with an access token on all addresses
//	celld version
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the linker.
var version = "devel"

// The main goroutine stays on the main thread, which therefore never forks: what the kernel hangs on that thread are
// adopted orphans only, and they can be reaped without ever taking a command's status away from its owner.
func init() { runtime.LockOSThread() }

type cli struct {
	Serve   serveCmd   `cmd:"" help:"Serve the HTTP API."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

type versionCmd struct{}

func (versionCmd) Run() error {
	_, err := fmt.Println("celld", version, runtime.Version())
	return err
}

func main() {
	if len(os.Args) == 1 {
		os.Args = append(os.Args, "--help")
	}
	if os.Args[1] == "--version" {
		os.Args[1] = "version"
	}
	unsetEmpty()
	var c cli
	parser := kong.Must(&c, kong.Name("celld"), kong.Description(
		"Runs shell commands, persistent bash sessions and code cells for AI agents, notebook clients and generated SDKs, "+
			"over HTTP with event streams. Every flag can also be given as a variable, --a-b as CELLD_A_B; the flag wins."))
	k, err := parser.Parse(os.Args[1:])
	if err != nil {
		err = fmt.Errorf("%w; celld --help tells what there is", err)
	}
	parser.FatalIfErrorf(err)
	k.FatalIfErrorf(k.Run())
}

// unsetEmpty takes a variable that is set to nothing for one that isn't set, as compose files and shell scripts mean it:
// it must hide neither a default nor the other name of the same variable.
func unsetEmpty() {
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		prefix, _, _ := strings.Cut(name, "_")
		if value == "" && slices.Contains([]string{"CELLD", "EXECD", "JUPYTER"}, prefix) {
			os.Unsetenv(name)
		}
	}
}

func (s *serveCmd) Run() error {
	log, err := s.logger()
	if err != nil {
		return err
	}
	if flag := emptyToken(os.Args); flag != "" {
		return fmt.Errorf("%s is empty; without a token leave it out", flag)
	}
	if err := s.hideSecrets(); err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a log that nobody reads any more is no reason to die
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	return s.serve(ctx, log)
}

// emptyToken names the flag by which a token was meant to be given: from a variable that isn't set, most likely.
func emptyToken(args []string) string {
	for i, arg := range args[1:] {
		for _, flag := range []string{"--access-token", "--access-token-file"} {
			if arg == flag+"=" || arg == "" && args[i] == flag {
				return flag
			}
		}
	}
	return ""
}

// stopSignals are what ends the daemon: what was ignored when it started stays so, as nohup wants it.
func stopSignals() []os.Signal {
	all := []os.Signal{syscall.SIGTERM}
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			all = append(all, sig)
		}
	}
	return all
}

func (s *serveCmd) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
}
