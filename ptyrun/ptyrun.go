// Package ptyrun runs programs in pseudo-terminals (pty(7)), or, for those who want stdout and stderr apart, on pipes.
//
// A [Terminal] is prepared, started once and drained until its first process ends. It never waits for whoever reads
// what it prints, but for two things that its user controls: [Terminal.Pause], and a short patience with a user who
// reads and can't quite keep up ([Terminal.Taken]).
//
// # Invariants
//
//   - Everything that the first process wrote before it ended has been passed on when Run returns.
//   - Input that the program doesn't read never blocks [Terminal.Signal], [Terminal.Resize] or the end.
//   - When Run's context is done the whole tree ends, whatever it does.
//
// # How the end is found
//
// This side holds the terminal's slave open as well. So a program that closes its descriptors, or hands them to a
// background job that lives on, makes neither an error nor an end: the end is the death of the first process. What it
// wrote before is then in the kernel's buffers, and a read that doesn't block first brings it to the reader's side
// (n_tty), so that EAGAIN means that there is no more.
//
//	t, err := runner.Prepare(ptyrun.Config{ID: id, Dir: "/", Env: env, Stdout: w})
//	go func() { t.Write(ctx, []byte("exit 7\r")) }()
//	status, err := t.Run(ctx)
package ptyrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/internal/proctree"
)

// What a terminal is unless something else is asked for.
const (
	Term        = "xterm-256color"
	DefaultCols = 80
	DefaultRows = 24
)

// MaxSize is the largest number of columns or rows: the kernel's.
const MaxSize = 1<<16 - 1

const (
	maxCommand = 128<<10 - 1 // one argument with its NUL (execve(2))

	// Closing a terminal hangs it up. Whoever is left gets SIGTERM, and SIGKILL after the grace.
	closeGrace   = time.Second
	killPatience = 5 * time.Second // how long SIGKILL may take
)

// Errors of terminals. What is wrong with a request is a [*RequestError]; a program that has ended, or that has not
// been started where that matters, is [os.ErrProcessDone].
var (
	ErrNoShell   = errors.New("there is neither bash nor sh here")
	ErrInputFull = errors.New("the program doesn't read its input, and too much is waiting for it")

	ErrInputClosed = errors.New("the program has been told the end of its input")
)

// RequestError says what is wrong with a request.
type RequestError struct {
	Field, Reason string
}

func (e *RequestError) Error() string { return e.Field + " " + e.Reason }

// Runner starts terminals. Its fields are not changed once it is used; its methods may be called from any goroutine.
type Runner struct {
	Shell  string // absolute path of bash or sh; empty: there is none
	census proctree.Census
}

// Config is what a terminal starts with.
type Config struct {
	ID         string              // the mark of its processes, unique
	Command    string              // for the shell's -c; empty: an interactive shell
	Dir        string              // absolute
	Env        []string            // complete
	Credential *syscall.Credential // nil: as this process
	Cols, Rows int                 // 0: DefaultCols, DefaultRows

	// Stdout gets the output as it comes, in pieces of at most 64 KiB, and Stderr that of a program on pipes. A Write
	// must not block: the terminal waits for nobody.
	Stdout, Stderr io.Writer
}

// Terminal is a program's terminal: prepared, running, then ended. Its methods may be called from any goroutine.
type Terminal struct {
	runner    *Runner
	spec      proctree.Spec
	out, errs io.Writer
	input     input
	flow      flow
	launched  chan struct{} // closed when the program runs, or could not be started

	mu         sync.Mutex // guards what follows; held across ioctls, which don't wait
	chosen     bool       // pipes is final
	pipes      bool
	cols, rows int
	ends       *ends          // nil unless it runs
	tree       *proctree.Tree // nil before the start, and if that failed
}

// Prepare checks a terminal and starts nothing. What is wrong with it is a [*RequestError]; [ErrNoShell] says that there
// are no terminals here at all.
func (r *Runner) Prepare(c Config) (*Terminal, error) {
	switch {
	case r.Shell == "":
		return nil, ErrNoShell
	case len(c.Command) > maxCommand:
		return nil, &RequestError{"command", fmt.Sprintf("is longer than %d bytes", maxCommand)}
	case strings.IndexByte(c.Command, 0) >= 0:
		return nil, &RequestError{"command", "holds a NUL"}
	}
	if err := checkSize(c.Cols, c.Rows); err != nil {
		return nil, err
	}
	t := &Terminal{
		runner: r, out: c.Stdout, errs: c.Stderr, cols: DefaultCols, rows: DefaultRows, launched: make(chan struct{}),
		spec: proctree.Spec{
			Path: r.Shell, Argv: []string{filepath.Base(r.Shell)}, Env: c.Env, Dir: c.Dir, Credential: c.Credential,
			Marker: c.ID, Census: &r.census,
		},
	}
	if c.Command != "" {
		t.spec.Argv = append(t.spec.Argv, "-c", c.Command)
	}
	if c.Cols > 0 {
		t.cols = c.Cols
	}
	if c.Rows > 0 {
		t.rows = c.Rows
	}
	t.flow.taken = nobody
	return t, nil
}

// UsePipes decides between pipes and a terminal. Only the first call counts, and none after the start.
func (t *Terminal) UsePipes(pipes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.chosen {
		t.pipes, t.chosen = pipes, true
	}
}

// Pipes says whether the program is, or will be, on pipes.
func (t *Terminal) Pipes() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pipes
}

// Launched is closed when the program runs or could not be started.
func (t *Terminal) Launched() <-chan struct{} { return t.launched }

// Failed says that the program could not be started.
func (t *Terminal) Failed() bool {
	select {
	case <-t.launched:
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.tree == nil
	default:
		return false
	}
}

// Run starts the program, once, and returns how its first process ended, when all that this had written has been passed
// on. What it has left behind lives on without the terminal. When ctx is done the whole tree is ended first. An error
// means that the program didn't run, or that it can't be killed.
func (t *Terminal) Run(ctx context.Context) (proctree.Status, error) {
	defer t.input.close()
	err := t.start(ctx)
	t.spec = proctree.Spec{} // ended terminals are kept for long
	close(t.launched)
	if err != nil {
		return proctree.Status{}, err
	}
	var pumps sync.WaitGroup
	for _, p := range t.ends.pumps {
		pumps.Go(p.run)
	}
	select {
	case <-t.tree.Done():
	case <-ctx.Done():
		err = t.hangUp(ctx)
	}
	t.flow.finish()
	for _, p := range t.ends.pumps {
		p.settle()
	}
	pumps.Wait()
	t.input.close()
	t.mu.Lock()
	t.ends.close()
	t.ends = nil
	t.mu.Unlock()
	return t.tree.Status(), err
}

// start opens a terminal or pipes and starts the program on it.
func (t *Terminal) start(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.mu.Lock()
	t.chosen = true
	pipes, cols, rows := t.pipes, t.cols, t.rows
	t.mu.Unlock()
	e, err := t.open(pipes, cols, rows)
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	t.spec.Files, t.spec.TTY = e.child, !pipes
	tree, err := proctree.Start(t.spec)
	e.closeChild()
	if err != nil {
		e.close()
		return fmt.Errorf("start the terminal's program: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends, t.tree = e, tree
	if e.slave != nil && (t.cols != cols || t.rows != rows) { // resized meanwhile
		_ = setSize(e.slave, t.cols, t.rows)
	}
	t.input.open(e.stdin)
	return nil
}

// hangUp ends the tree, as closing a terminal's window does: first by SIGHUP, which interactive shells obey and pass on.
func (t *Terminal) hangUp(ctx context.Context) error {
	_ = t.tree.Signal(syscall.SIGHUP) // it may have ended
	_ = t.signalForeground(syscall.SIGHUP)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace+killPatience)
	defer cancel()
	err := t.tree.Kill(limited, closeGrace)
	select {
	case <-t.tree.Done(): // whoever is left then isn't ours to kill, or can't be
		return nil
	default:
		return err
	}
}

// Survivors returns the living processes that the first one left behind, and nobody while that one lives.
func (t *Terminal) Survivors() []int {
	tree := t.started()
	if tree == nil {
		return nil
	}
	select {
	case <-tree.Done():
		return tree.Members()
	default:
		return nil
	}
}

// Kill ends what is left of an ended terminal and returns when it is gone, or with ctx's error.
func (t *Terminal) Kill(ctx context.Context) error {
	if tree := t.started(); tree != nil {
		return tree.Kill(ctx, closeGrace)
	}
	return nil
}

// started returns the tree, or nil before the start.
func (t *Terminal) started() *proctree.Tree {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tree
}

// PID is the process id of the terminal's first process; 0 before that has been started.
func (t *Terminal) PID() int {
	if tree := t.started(); tree != nil {
		return tree.PID()
	}
	return 0
}

// Write gives input to the program. It returns when all of p has been taken, which is at once unless the program lags
// more than a mebibyte behind. Then it waits for as long as the program reads at all; once that has read nothing for
// half a second, the rest is dropped with [ErrInputFull], and so is further input, at once, until the program reads
// again. Input before the start waits for it. After the end the error is [os.ErrProcessDone].
func (t *Terminal) Write(ctx context.Context, p []byte) error { return t.input.write(ctx, p) }

// EndInput ends the input behind what has been written. On pipes the program's stdin is closed, and further input fails with
// [ErrInputClosed]. In a terminal it is the key that the terminal has for it, as a rule Ctrl-D (termios(3): VEOF), with
// its errors those of Write.
func (t *Terminal) EndInput(ctx context.Context) error {
	if !t.Pipes() {
		return t.Write(ctx, []byte{t.endKey()})
	}
	t.input.end()
	return nil
}

// Pause stops reading what the program prints, which stops the program once the kernel's buffer is full, or goes on.
func (t *Terminal) Pause(on bool) { t.flow.pause(on) }

// Taken says up to which byte of the output the user has got it. While a user who gets on is far behind, the program
// waits. A user who has got nothing for half a second isn't waited for until he has caught up. A negative off means
// that there is no user.
func (t *Terminal) Taken(off int64) { t.flow.take(off) }

// Resize changes the terminal's size; the program gets SIGWINCH. A zero is ignored, as is everything on pipes and after
// the end; what the kernel can't take is a [*RequestError].
func (t *Terminal) Resize(cols, rows int) error {
	if err := checkSize(cols, rows); err != nil || cols == 0 || rows == 0 {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cols, t.rows = cols, rows
	if t.ends == nil || t.ends.slave == nil {
		return nil
	}
	return setSize(t.ends.slave, cols, rows)
}

// Size returns the terminal's size.
func (t *Terminal) Size() (cols, rows int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cols, t.rows
}

func checkSize(cols, rows int) error {
	for _, x := range []struct {
		name string
		n    int
	}{{"cols", cols}, {"rows", rows}} {
		if x.n < 0 || x.n > MaxSize {
			return &RequestError{x.name, fmt.Sprintf("must be between 1 and %d", MaxSize)}
		}
	}
	return nil
}
