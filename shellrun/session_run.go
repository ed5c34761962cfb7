package shellrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SessionRun is one command in a session.
type SessionRun struct {
	ID             string            // its marker: in the environment of all it starts, as CELLD_EXECUTION_ID
	Text           string            // not empty, no NUL
	Dir            string            // becomes the session's directory, as by cd; empty: it stays
	Env            map[string]string // exported for this run only
	Stdin          string            // what it may read, if HasStdin; else nothing
	HasStdin       bool
	Stdout, Stderr io.Writer // get what it writes, in the chunks that arrive; nil: nobody
	// Note is told what happened besides: [NoteReplaced] or [NoteUnwound], and a sentence. May be nil.
	Note func(what, detail string)
}

// What Note is told.
const (
	NoteReplaced = "session_replaced" // the session has a new shell
	NoteUnwound  = "unwound"          // the run was interrupted and the shell kept
)

// SessionExit is how a run ended.
type SessionExit struct {
	Code   int  // 0 to 255: the shell's $?, 130 if it was unwound, or the status the shell ended with
	Ended  bool // the shell ended, and a new one takes over
	Broken bool // ctx was done before the run was through
}

// Run runs a command in the session's shell, when its turn has come. When ctx is done it ends the run and what that
// started, and leaves the shell and the jobs of earlier runs alive if it can; SessionExit says how it ended all the
// same. An error means that nothing has run or that the session is lost.
func (s *Session) Run(ctx context.Context, run SessionRun) (SessionExit, error) {
	if err := s.Check(run); err != nil {
		return SessionExit{}, err
	}
	if err := s.turns.wait(ctx, s.closing, s.turns.ask()); err != nil {
		return SessionExit{}, err
	}
	r := &running{s: s, run: run}
	if err := r.start(ctx); err != nil {
		r.abandon()
		return SessionExit{}, err
	}
	exit, err := r.wait(ctx)
	for _, p := range r.pumps {
		p.settle(s.bufs, s.late)
	}
	s.setRunning("")
	s.mu.Lock()
	s.settled = make(chan struct{})
	s.mu.Unlock()
	if err == nil && r.cut && !exit.Ended && exit.Broken {
		r.note(NoteUnwound, "the run was interrupted; the shell, its state and the jobs of earlier runs are kept")
	}
	go r.settle(context.WithoutCancel(ctx))
	return exit, err
}

// running is a run that has the turn.
type running struct {
	s       *Session
	run     SessionRun
	sh      *shell
	files   runFiles
	pumps   []*pump       // that carry its output
	made    []*pump       // of those, the ones made for it
	record  <-chan string // gets the name of the record
	idle    <-chan struct{}
	back    chan struct{} // closed when the run has ended, for the interruption
	stopped chan struct{} // closed when the interruption is through
	cut     bool          // it was interrupted
	told    bool          // Note has been told that the shell has ended
	again   bool          // the shell was asked for the record once more
	whole   bool          // the shell put back what had been taken from it
	flags   string        // the shell's options at the end
	tick    uint64        // when it began
}

func (r *running) note(what, detail string) {
	if r.run.Note != nil {
		r.run.Note(what, detail)
	}
}

// start makes sure that there is a shell, writes what it is to read, and tells it to.
func (r *running) start(ctx context.Context) error {
	s := r.s
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	dir, err := s.resolve(r.run)
	if err != nil {
		return err
	}
	r.run.Dir = dir
	if err := s.checkFrozen(r.run.Env); err != nil {
		return err
	}
	s.setRunning(r.run.ID)
	f := &r.files
	f.mark, f.stdin, f.status = nonce(), r.run.HasStdin, s.state.status != 0
	if err := r.lay(); err != nil {
		return fmt.Errorf("session %s: %w", s.id, err)
	}
	r.tick = bootTick()
	r.record = s.awaitRecord(f.mark)
	if err := r.tell(s.source() + s.dir + `/w`); err != nil && !r.sh.dying() {
		return fmt.Errorf("session %s: %w", s.id, err)
	}
	return nil
}

// ready makes sure that there is a shell.
func (r *running) ready(ctx context.Context) error {
	s := r.s
	sh := s.shell
	if s.untold == "" && sh != nil && sh.dead() {
		s.untold = sh.epitaph()
	}
	if sh == nil || sh.dead() {
		if err := s.replace(ctx); err != nil {
			return err
		}
	}
	if s.untold != "" {
		r.note(NoteReplaced, s.untold)
		s.untold = ""
	}
	r.sh = s.shell
	return nil
}

// lay makes the run's pipes and files, and the session's folder again if somebody has removed it.
func (r *running) lay() error {
	err := r.layOnce()
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	r.unlay()
	if err := errors.Join(r.s.furnish(), r.s.openSnapshots(r.sh)); err != nil {
		return err
	}
	return r.layOnce()
}

func (r *running) layOnce() error {
	s, f := r.s, &r.files
	stdout, stderr := r.run.Stdout, r.run.Stderr
	if c := s.traceStart(r.run.Text); c != "" {
		stdout, stderr = newUntrace(stdout, c), newUntrace(stderr, c)
	}
	if err := r.pipe(stdout, stderr); err != nil {
		return err
	}
	f.rebind = len(r.made) > 0
	if f.stdin {
		if err := s.write("i", r.run.Stdin); err != nil {
			return err
		}
	}
	if f.status {
		if err := s.write("status", `\builtin return `+strconv.Itoa(s.state.status)); err != nil {
			return err
		}
	}
	if err := s.write("bash", s.state.prologue()+r.run.Text); err != nil {
		return err
	}
	return s.write("w", s.wrapper(&r.run, r.sh, *f))
}

// unlay gives up what lay has made.
func (r *running) unlay() {
	for _, p := range r.pumps {
		p.aim(r.s.late)
	}
	for _, p := range r.made { // the shell hasn't opened them
		p.stop()
		r.sh.bound = false
	}
	r.pumps, r.made = nil, nil
}

// pipe sees to it that there is a pipe for each stream that the shell has a descriptor for. Those of the last run will
// do, unless some process may still write to them.
func (r *running) pipe(stdout, stderr io.Writer) error {
	s, sh := r.s, r.sh
	keep := sh.bound && sh.alone
	if !keep {
		s.pumped++
	}
	for i, to := range []io.Writer{stdout, stderr} {
		u := output + use(i)
		if !slices.Contains(sh.fds[:], u) {
			continue
		}
		if to == nil {
			to = io.Discard
		}
		if keep {
			sh.pipes[u].aim(to)
			r.pumps = append(r.pumps, sh.pipes[u])
			continue
		}
		name := fmt.Sprintf("%c%d", "oe"[i], s.pumped)
		fd, err := s.fifo(name, unix.O_RDONLY)
		if err != nil {
			return err
		}
		p, err := s.pump(fd, name, to)
		if err != nil {
			return err
		}
		sh.pipes[u] = p
		r.pumps, r.made = append(r.pumps, p), append(r.made, p)
	}
	return nil
}

// source is what makes the shell read a file. bash reads the control pipe byte by byte, so that the shorter will do if
// it can.
func (s *Session) source() string {
	if s.state.dot {
		return `\builtin . `
	}
	return `\. `
}

// tell tells the shell a line; idle is closed when it has done what the line says.
func (r *running) tell(line string) error {
	err := r.sh.tell(line)
	r.idle = r.sh.idle()
	return err
}

// wait returns how the run ended. The record races with the death of the shell, so that either ends the run, and with
// the shell reading on without having made one.
func (r *running) wait(ctx context.Context) (SessionExit, error) {
	stop, closing := ctx.Done(), r.s.closing
	idle, asked := r.idle, false
	for {
		select {
		case name := <-r.record:
			return r.recorded(name)
		case <-r.sh.tree.Done():
			return r.found(r.ended)
		case <-stop:
			stop, closing = nil, nil
			r.interrupt(context.WithoutCancel(ctx))
		case <-closing:
			stop, closing = nil, nil
			r.interrupt(context.WithoutCancel(ctx))
		case <-idle:
			if r.sh.dying() { // or a program that has taken its place
				idle = nil
				continue
			}
			if asked {
				return r.found(r.wedged)
			}
			asked = true
			r.s.look()
			if len(r.record) == 0 {
				r.askAgain()
				idle = r.idle
			} else {
				idle = nil
			}
		}
	}
}

// found looks once more for a record, and takes otherwise for the end if there is none.
func (r *running) found(otherwise func() SessionExit) (SessionExit, error) {
	r.s.look()
	select {
	case name := <-r.record:
		return r.recorded(name)
	default:
		exit := otherwise()
		r.awaitStop()
		exit.Broken = r.cut
		return exit, nil
	}
}

// askAgain asks for the record when the shell has read everything and there is none: the folder was gone when it
// tried, or it does not execute any more.
func (r *running) askAgain() {
	s := r.s
	r.again = true
	err := s.furnish()
	if err == nil {
		err = s.openSnapshots(r.sh)
	}
	if err == nil {
		err = s.write("w", s.again(r.files.mark))
	}
	if err == nil {
		_ = r.tell(s.source() + s.dir + `/w`) // or the shell dies
	}
}

// recorded reads the name of a record: status, options, whether the prologue was read, the mark.
func (r *running) recorded(name string) (SessionExit, error) {
	r.awaitStop()
	r.files.record = name
	f := strings.Split(name, ".")
	if len(f) != 4 { // somebody has set a variable of ours
		f = []string{"", "", "", ""}
	}
	if f[0] == "cd" {
		return SessionExit{}, &RequestError{"cwd", r.run.Dir + ": the session's user can't go there"}
	}
	code, err := strconv.Atoi(f[0])
	if err != nil { // or the folder was gone, and the status with it
		code = 1
	}
	code &= 0xff
	r.flags = f[1]
	r.whole = f[2] != "" || r.s.state.prologue() == ""
	r.s.setStatus(code)
	return SessionExit{Code: code, Broken: r.cut && code != 0}, nil
}

// ended is the end of a run whose shell has ended.
func (r *running) ended() SessionExit {
	r.note(NoteReplaced, r.sh.epitaph())
	r.told = true
	code := r.sh.tree.Status().Code & 0xff
	r.s.setStatus(code)
	return SessionExit{Code: code, Ended: true}
}

// epitaph says how the shell has ended, for people.
func (sh *shell) epitaph() string {
	st := sh.tree.Status()
	how := fmt.Sprintf("exited with status %d", st.Code)
	if st.Signal != 0 {
		how = fmt.Sprintf("was ended by signal %d (%s)", st.Signal, st.Signal)
	}
	return "the shell " + how + "; a new one takes over with the state as of the last finished run"
}

// wedged is the end of a run whose shell reads but doesn't execute, as after set -n.
func (r *running) wedged() SessionExit {
	r.sh.end(r.s.hub.patience.end)
	exit := r.ended()
	if exit.Code <= 1 { // what w has inverted by !, and was to get back from PIPESTATUS
		exit.Code = 1 - exit.Code
		r.s.setStatus(exit.Code)
	}
	return exit
}

// abandon ends a run that could not begin.
func (r *running) abandon() {
	r.unlay()
	r.s.setRunning("")
	r.s.turns.pass()
}

func (s *Session) setRunning(id string) {
	s.mu.Lock()
	s.running, s.lastUsed = id, time.Now()
	s.mu.Unlock()
}

func (s *Session) setStatus(code int) {
	s.mu.Lock()
	s.state.status = code
	s.mu.Unlock()
}

// checkFrozen refuses variables that can't be set.
func (s *Session) checkFrozen(env map[string]string) error {
	if len(env) == 0 {
		return nil
	}
	_, p, _ := s.lastState()
	for name := range env {
		if isReadonly(p.variables, name) {
			return &RequestError{"envs", name + " is readonly in this session"}
		}
	}
	return nil
}
