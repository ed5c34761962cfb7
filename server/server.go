// Package server is celld's HTTP side: routes, access, errors and the writers that send events. It is the only package
// that knows a transport. What is asked for goes to backends.Controller; what happens comes back through the hooks
// that a writer implements.
//
// Invariants: whatever fails before the first event is a JSON error with a fitting status; after it, it is the
// terminal event. A client that goes away or stalls ends its own reader, and its execution only if it asked for that.
//
//	s := server.New(server.Config{Controller: c, Token: token, Log: log})
//	err := s.Serve(ctx, listener)
package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/files"
	"github.com/celld/celld/hostinfo"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Config makes a Server.
type Config struct {
	Controller *backends.Controller
	Token      string // "": none is needed
	AnyHost    bool   // without a token: don't look at Host
	MaxBody    int64  // bytes of a JSON body; 0: 32 MiB
	// DefaultSession makes a command without a session run in the session named so.
	DefaultSession bool
	Version        Version
	Files          files.FS // what relative paths and ~/ stand for
	Host           *hostinfo.Reader
	Warm           func() []openapi.WarmKernels // nil: there are none
	Prometheus     http.Handler                 // what is counted, for scrapers
	Log            *slog.Logger
	Tracer         trace.Tracer // nil: no traces
	Meter          metric.Meter // nil: no metrics
}

// Limits of requests.
const (
	defaultMaxBody    = 32 << 20
	maxHeader         = 1 << 20 // a thousand paths fit
	headerTimeout     = 10 * time.Second
	keepAliveTimeout  = 2 * time.Minute
	stopWithinRequest = 10 * time.Second // how long a request waits for what it stops
)

// Server answers HTTP requests. It is an http.Handler and safe for concurrent use.
type Server struct {
	config     Config
	controller *backends.Controller
	log        *slog.Logger
	token      [sha256.Size]byte
	echo       *echo.Echo
	operations *operations
	draining   atomic.Bool
	sockets    sync.WaitGroup // connections taken over from net/http
	terminals  terminals
	frames     sync.Pool     // *[]byte, for terminals' output
	closing    chan struct{} // closed when they have to end
	proxy      *proxy
	ends       ends
	watches    atomic.Int32 // of files, at present
	errorLog   *log.Logger  // for what net/http has to say
}

// New makes a Server.
func New(c Config) *Server {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	s := &Server{config: c, controller: c.Controller, log: c.Log, token: sha256.Sum256([]byte(c.Token)), echo: echo.New()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.closing, s.operations, s.proxy = make(chan struct{}), newOperations(), newProxy(s)
	s.errorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	s.frames.New = func() any { return new([]byte) }
	s.echo.HTTPErrorHandler = s.onError
	s.echo.IPExtractor = echo.ExtractIPDirect()
	s.echo.Pre(requestID, s.catch)
	s.echo.Pre(s.telemetry(c.Tracer, c.Meter), s.access, s.proxy.handle)
	s.routes()
	return s
}

func (s *Server) routes() {
	e := s.echo
	s.get("/ping", s.ping)
	s.get("/healthz", s.ping)
	s.get("/readyz", s.ready)
	s.get("/version", s.version)
	s.get("/openapi.yaml", s.openapiYAML)
	s.get("/openapi.json", s.openapiJSON)
	s.get("/docs", s.docs)

	e.POST("/command", s.runCommand)
	e.DELETE("/command", s.interruptCommand)
	s.get("/command/status/:id", s.commandStatus)
	e.GET("/command/:id/resume", s.events)
	s.get("/command/:id/logs", s.commandLog)
	s.get("/command", s.listCommands)
	e.POST("/command/:id/signal", s.signalCommand)
	e.POST("/command/:id/stdin", s.writeStdin)
	e.POST("/command/:id/wait", s.waitCommand)
	s.get("/ports", s.listPorts)
	s.get("/executions", s.listExecutions)
	s.get("/executions/:id", s.getExecution)
	e.GET("/executions/:id/events", s.events)
	s.get("/execution/instance", s.executionInstance)
	s.get("/execution/operation", s.getOperation)
	e.POST("/command/operations", s.createCommandOperation)
	e.GET("/ws", s.websocket)

	e.POST("/session", s.createSession)
	s.get("/session", s.listSessions)
	s.get("/session/:id", s.getSession)
	e.DELETE("/session/:id", s.deleteSession)
	e.POST("/session/:id/run", s.runInSession)
	e.DELETE("/session/:id/run", s.interruptSession)
	s.get("/session/:id/logs", s.sessionLog)

	e.POST("/code", s.runCode)
	e.DELETE("/code", s.interruptCode)
	e.POST("/code/context", s.createContext)
	s.get("/code/contexts", s.listContexts)
	e.DELETE("/code/contexts", s.deleteContexts)
	s.get("/code/contexts/:id", s.getContext)
	e.DELETE("/code/contexts/:id", s.deleteContext)
	e.POST("/code/contexts/:id/restart", s.restartContext)
	e.POST("/code/contexts/:id/complete", s.completeCode)
	e.POST("/code/contexts/:id/inspect", s.inspectCode)
	e.POST("/code/contexts/:id/is_complete", s.isCodeComplete)
	s.get("/code/contexts/:id/notebook", s.notebook)
	e.POST("/code/input", s.codeInput)
	s.terminalRoutes()
	s.fileRoutes()
	s.metricsRoutes()
}

// get serves a path that answers with one body, and HEAD with it (RFC 9110 section 9.3.2): net/http leaves the body out.
// Streams of events and WebSockets are for GET alone.
func (s *Server) get(path string, h echo.HandlerFunc) {
	s.echo.GET(path, h)
	s.echo.HEAD(path, h)
}

// headOnly says that the answer has no body, so that nothing need be started to make one.
func headOnly(c echo.Context) bool { return c.Request().Method == http.MethodHead }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Drain makes /readyz say that no new work should be sent.
func (s *Server) Drain() { s.draining.Store(true) }

// Serve answers what comes in on l until ctx is done, then closes l and waits, at most grace, for the answers under
// way. It returns nil after a clean end.
func (s *Server) Serve(ctx context.Context, l net.Listener, stop func(), grace time.Duration) error {
	hs := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateActive { // a request begins: without the deadline of the answer before
				conn.SetWriteDeadline(time.Time{})
			}
		},
		ErrorLog: s.errorLog,
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.Drain()
	stop() // ends what runs, so that streams get their terminal event
	close(s.closing)
	s.ends.all()
	s.proxy.transport.CloseIdleConnections()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := hs.Shutdown(end); err != nil { // clients that are slow, or have connected and asked nothing
		s.log.Debug("connections are cut", "error", err)
		hs.Close()
	}
	s.sockets.Wait() // bounded by their own deadlines
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
