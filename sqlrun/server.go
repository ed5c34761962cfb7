package sqlrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Database is the database that is there and in use where nothing else is said.
const Database = "sandbox"

// autoAddress is where auto looks for a server.
const autoAddress = "127.0.0.1:3306"

// Config says which server to use.
type Config struct {
	// DSN is that of go-sql-driver (user:password@tcp(host:port)/database?param=value), ModeAuto or ModePrivate.
	DSN     string
	Private *Private // the server of ModePrivate and ModeAuto
}

// Modes that aren't DSNs.
const (
	ModePrivate = "private" // the server of ours
	ModeAuto    = "auto"    // one on 127.0.0.1:3306 that takes root without a password, else ours; decided at the first use
)

// Server is where sessions connect to. Its methods may be called from any goroutine.
type Server struct {
	private    *Private
	auto       string        // where auto looks; empty: it isn't auto
	stopWithin time.Duration // of its connections

	deciding chan struct{} // holds one: whoever has taken it may decide for auto, and read what follows
	config   *mysql.Config // nil: ours
	chosen   bool
}

// NewServer checks the DSN; it connects to nothing.
func NewServer(c Config) (*Server, error) {
	s := &Server{private: c.Private, stopWithin: stopWithin, deciding: make(chan struct{}, 1)}
	s.deciding <- struct{}{}
	switch c.DSN {
	case ModeAuto:
		s.auto = autoAddress
	case ModePrivate, "":
		s.chosen = true
	default:
		config, err := mysql.ParseDSN(c.DSN)
		if err != nil {
			return nil, errors.New("a DSN is wanted, as in user:password@tcp(host:3306)/database, or private, or auto: " + err.Error())
		}
		s.config, s.private, s.chosen = ours(config), nil, true
	}
	return s, nil
}

// ours sets in config what we rely on.
func ours(c *mysql.Config) *mysql.Config {
	c.MultiStatements = true
	c.Logger = log.New(io.Discard, "", 0)
	c.MaxAllowedPacket = 64 << 20 // or the driver would ask
	return c
}

// Session returns a session that isn't connected yet.
func (s *Server) Session() *Session {
	n := &Session{server: s, turn: make(chan struct{}, 1)}
	n.give()
	return n
}

// connect opens a connection; the error wraps ErrNoServer.
func (s *Server) connect(ctx context.Context) (*conn, error) {
	config, err := s.where(ctx)
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%w: connect to %s: %w", ErrNoServer, config.Addr, err)
	}
	c.stopWithin = s.stopWithin
	return c, nil
}

// where returns how to connect, and starts our own server if it is that.
func (s *Server) where(ctx context.Context) (*mysql.Config, error) {
	config, err := s.choose(ctx)
	if config != nil || err != nil {
		return config, err
	}
	socket, err := s.private.Start(ctx)
	if err != nil {
		return nil, err
	}
	config = ours(mysql.NewConfig())
	config.User, config.Net, config.Addr = "root", "unix", socket
	return config, nil
}

// choose decides, the first time, where auto goes; nil is our own server.
func (s *Server) choose(ctx context.Context) (*mysql.Config, error) {
	select {
	case <-s.deciding:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { s.deciding <- struct{}{} }()
	if s.chosen {
		return s.config, nil
	}
	config := ours(mysql.NewConfig())
	config.User, config.Net, config.Addr = "root", "tcp", s.auto
	if c, err := connect(ctx, config); err == nil {
		c.close()
		s.config = config
	} else if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.chosen = true
	return s.config, nil
}

// Describe says in words which server it is, and why it can't be used, if it can't. It starts nothing.
func (s *Server) Describe(ctx context.Context) (what string, err error) {
	config, err := s.choose(ctx)
	if err != nil {
		return "", err
	}
	if config == nil {
		what, err = s.private.Describe()
		if s.auto != "" {
			what += ", since there is none at " + s.auto + " that takes root without a password"
		}
		return what, err
	}
	what = "the server at " + config.Addr
	c, err := connect(ctx, config)
	if err != nil {
		return what, fmt.Errorf("connect to %s: %w", config.Addr, err)
	}
	c.close()
	return what, nil
}

// Close stops the server of ours. All sessions must have been closed.
func (s *Server) Close(ctx context.Context) error {
	if s.private == nil {
		return nil
	}
	return s.private.Close(ctx)
}
