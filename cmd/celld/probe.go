package main

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// The public SDKs hold a sandbox for ready to run code once 127.0.0.1 takes connections on Jupyter's port, which they
// try by a command: JUPYTER_PORT in its environment, else usualJupyterPort. celld's own Jupyter Server isn't there: it
// listens on a unix socket, and is started when it is needed.
const (
	usualPort        = 44772
	usualJupyterPort = 44771
)

// givenJupyterPort returns the port that somebody chose, which commands then find in their environment; 0 for none.
// JUPYTER_PORT may be anything: a cluster with a service of that name sets it too.
func (s *serveCmd) givenJupyterPort() (port int, given bool) {
	if s.JupyterPort != nil {
		return *s.JupyterPort, true
	}
	port, err := strconv.Atoi(os.Getenv("JUPYTER_PORT"))
	return port, err == nil
}

// jupyterPort returns the port on which such connections are taken, 0 for none.
func (s *serveCmd) jupyterPort(l net.Listener) int {
	if s.JupyterHost != "" {
		return 0 // somebody else's server is there
	}
	if port, given := s.givenJupyterPort(); given {
		return port
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && at.Port == usualPort {
		return usualJupyterPort
	}
	return 0
}

// answerProbes takes connections on Jupyter's port until the returned function is called.
func (s *serveCmd) answerProbes(l net.Listener, log *slog.Logger) (stop func()) {
	port := s.jupyterPort(l)
	if port == 0 {
		return func() {}
	}
	probes, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		log.Warn("SDKs may not see that code can be run", "error", err)
		return func() {}
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "celld's own Jupyter Server can be reached through celld only", http.StatusNotFound)
		}),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	var work sync.WaitGroup
	work.Go(func() { srv.Serve(probes) }) // until it is closed
	return func() {
		srv.Close()
		work.Wait()
	}
}
