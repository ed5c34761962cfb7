package shellrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/internal/proctree"
)

// SessionConfig says what session to make.
type SessionConfig struct {
	ID         string              // for messages
	Bash       string              // absolute path of bash
	Dir        string              // where it starts: absolute, existing
	BaseEnv    []string            // what its environment starts from
	Env        map[string]string   // comes on top
	Credential *syscall.Credential // nil: as celld
	OOMScore   *int                // its processes' oom_score_adj; nil: celld's
	Log        io.Writer           // takes what jobs write when their run is over; safe for concurrent use; nil: nobody
}

// Session is a bash that stays alive. Its runs happen one at a time, in the order in which Run was called. Its methods
// may be called from any goroutine.
type Session struct {
	id    string
	cfg   SessionConfig
	hub   *Sessions
	dir   string // its folder
	token string // the mark of its shells; unguessable
	born  uint64 // when it was made: see bootTick
	bufs  *buffers
	late  io.Writer

	turns   turns
	closing chan struct{} // closed by Close
	closed  chan struct{} // closed when Close is through

	closeErr error // what Close returns, once closed is closed

	mu       sync.Mutex
	shell    *shell // nil while there is none
	state    state  // as of the last finished run
	running  string // the id of the current run
	lastUsed time.Time
	isClosed bool
	expect   string      // how the name of the record waited for ends
	record   chan string // gets its name
	pumps    map[*pump]bool
	past     []*proctree.Tree // of former shells that something outlived; who has the turn uses it
	settled  chan struct{}    // closed unless the last run's end is being dealt with
	untold   string           // what the next run is to be told of the shell's end
	marks    map[string]bool  // of what started processes; true: nobody was left at the last look
	prune    int              // how many marks are too many
	pumped   int              // names of pipes
}

// SessionInfo describes a session.
type SessionInfo struct {
	Cwd      string    // where its shell is
	PID      int       // of its shell; 0 while there is none
	Running  string    // the id of the current run; empty when idle
	LastUsed time.Time // when a run last started or ended
}

// Errors of a session. What is wrong with a run is a [*RequestError].
var (
	ErrSessionClosed = errors.New("session is closed")
	ErrSessionLost   = errors.New("session has lost its shell and got no new one")
)

// RequestError says what is wrong with a request.
type RequestError struct {
	Field  string // as on the wire
	Reason string
}

// Error says both.
func (e *RequestError) Error() string { return e.Field + ": " + e.Reason }

// Open starts a session and returns when its shell has answered. ctx bounds the start only.
func (h *Sessions) Open(ctx context.Context, cfg SessionConfig) (*Session, error) {
	if err := checkEnv(cfg.Env); err != nil {
		return nil, err
	}
	dir, err := h.folder()
	if err != nil {
		return nil, fmt.Errorf("make session's folder: %w", err)
	}
	late := cfg.Log
	if late == nil {
		late = io.Discard
	}
	s := &Session{
		id: cfg.ID, cfg: cfg, hub: h, dir: dir, token: nonce(), born: bootTick(), bufs: &h.bufs, late: late,
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
		pumps:   make(map[*pump]bool), lastUsed: time.Now(), settled: make(chan struct{}),
		marks: make(map[string]bool), prune: firstPrune,
	}
	close(s.settled)
	if err := s.furnish(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("make session's folder: %w", err)
	}
	sh, err := s.startShell(ctx, fresh)
	if err != nil {
		h.unwatch(s)
		os.RemoveAll(dir)
		return nil, err
	}
	s.shell = sh
	return s, nil
}

func checkEnv(env map[string]string) error {
	for name, value := range env {
		if !proctree.ValidName(name) {
			return &RequestError{"envs", fmt.Sprintf("%q is not a name", name)}
		}
		if strings.ContainsRune(value, 0) {
			return &RequestError{"envs", name + " holds a NUL"}
		}
	}
	return nil
}

// Info describes the session.
func (s *Session) Info() SessionInfo {
	s.mu.Lock()
	info := SessionInfo{Running: s.running, LastUsed: s.lastUsed, Cwd: s.state.cwd}
	sh := s.shell
	s.mu.Unlock()
	if info.Cwd == "" {
		info.Cwd = s.cfg.Dir
	}
	if sh != nil {
		info.PID = sh.tree.PID()
		if cwd := sh.cwd(); cwd != "" {
			info.Cwd = cwd
		}
	}
	return info
}

// Check says what is wrong with run before anything happens: a [*RequestError], or nil.
func (s *Session) Check(run SessionRun) error {
	if run.Text == "" {
		return &RequestError{"command", "is empty"}
	}
	if strings.ContainsRune(run.Text, 0) {
		return &RequestError{"command", "holds a NUL"}
	}
	if err := checkEnv(run.Env); err != nil {
		return err
	}
	if err := s.checkFrozen(run.Env); err != nil {
		return err
	}
	_, err := s.resolve(run)
	return err
}

// resolve returns the absolute path of run.Dir, or "" if there is none: relative to where the session is, with ~ and
// variables of the run and of the session.
func (s *Session) resolve(run SessionRun) (string, error) {
	if run.Dir == "" {
		return "", nil
	}
	var env []string
	if strings.ContainsAny(run.Dir, "~$") {
		env = s.environ(run.Env)
	}
	dir, err := proctree.ResolveDir(run.Dir, s.Info().Cwd, env)
	if err != nil {
		return "", &RequestError{"cwd", err.Error()}
	}
	return dir, nil
}

// environ is what a process of the session would find in its environment, as of the last finished run, with env on
// top.
func (s *Session) environ(env map[string]string) []string {
	var all []string
	if _, p, ok := s.lastState(); ok {
		all = exported(p.variables)
	} else {
		all = proctree.Overlay(s.cfg.BaseEnv, entries(s.cfg.Env)...)
	}
	return proctree.Overlay(all, entries(env)...)
}

// lastState is the state as of the last finished run, even if its end is just being dealt with. ok says that there is
// a snapshot.
func (s *Session) lastState() (st state, p parts, ok bool) {
	for {
		s.mu.Lock()
		settled := s.settled
		s.mu.Unlock()
		<-settled
		s.mu.Lock()
		st = s.state
		s.mu.Unlock()
		if p, ok = st.load(s.mark()); ok || !st.saved() || s.isOver() {
			return st, p, ok
		}
		// Another run has finished and replaced what we were about to read.
	}
}

func (s *Session) isOver() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// entries are env as NAME=value, sorted.
func entries(env map[string]string) []string {
	all := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}

// recorded is told the name of each file that appears among the records.
func (s *Session) recorded(name string) {
	s.mu.Lock()
	expect, record := s.expect, s.record
	s.mu.Unlock()
	if expect != "" && strings.HasSuffix(name, expect) {
		select {
		case record <- name:
		default: // it is there already
		}
	}
}

// awaitRecord returns where the name of the record that ends in mark will arrive.
func (s *Session) awaitRecord(mark string) <-chan string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expect = "." + mark
	s.record = make(chan string, 1)
	return s.record
}

// look reads the folder of records, where events may have been lost or not arrived yet.
func (s *Session) look() {
	names, err := os.ReadDir(s.dir + "/r")
	if err != nil {
		return
	}
	for _, e := range names {
		s.recorded(e.Name())
	}
}

// Close ends the session: its current run, its shell, whose EXIT trap still runs, and everything that it has started.
// It returns when all are gone and the session's folder is removed. When ctx is done before, it returns ctx's error and
// the end goes on.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.isClosed
	s.isClosed = true
	s.mu.Unlock()
	if first {
		close(s.closing)
		go func() {
			defer close(s.closed)
			s.closeErr = s.finish(context.WithoutCancel(ctx))
		}()
	}
	select {
	case <-s.closed:
		return s.closeErr
	case <-ctx.Done():
		return fmt.Errorf("close session %s: %w", s.id, context.Cause(ctx))
	}
}

func (s *Session) finish(ctx context.Context) error {
	<-s.turns.ask() // for good
	sh := s.shell
	if sh != nil {
		sh.ctl.Close() // the shell reads the end of its script and leaves
		patience := time.NewTimer(s.hub.patience.exit)
		defer patience.Stop()
		select {
		case <-sh.tree.Done():
		case <-patience.C:
		}
	}
	bound, cancel := context.WithTimeout(ctx, s.hub.patience.killBound)
	defer cancel()
	err := s.killAll(bound)
	if sh != nil {
		sh.dispose()
	}
	s.mu.Lock()
	pumps := s.pumps
	s.pumps = nil
	s.state.drop()
	s.mu.Unlock()
	for p := range pumps {
		p.settle(s.bufs, s.late) // what an EXIT trap has printed may be there still
		p.stop()
	}
	s.hub.unwatch(s)
	return errors.Join(err, os.RemoveAll(s.dir))
}
