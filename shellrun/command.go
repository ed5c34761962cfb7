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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/celld/celld/internal/proctree"
)

// Command is one thing to run, apart from all others.
type Command struct {
	ID        string            // the mark of its processes, unique
	Text      string            // for bash -c, or sh -c where there is no bash; any length
	Argv      []string          // instead of Text, without a shell; Argv[0] is looked up in the command's PATH
	Dir       string            // see [Runner.Surroundings]
	Env       map[string]string // on top of the Runner's
	User      *User             // nil: as celld
	Stdin     *string           // nil: nothing to read
	StdinOpen bool              // more input comes through [Prepared.Stdin], after Stdin
	Rlimits   map[string]int64  // by the names of Limits

	// Stdout and Stderr get the output as it comes, unchanged, in pieces of at most 64 KiB. A Write may block: then the
	// command waits too. Once Run's ctx is done no Write may block. Nil drops the output.
	Stdout, Stderr io.Writer
	// Late gets what is written after the command's end by processes that outlive it, both streams, from two
	// goroutines. Nil drops it.
	Late io.Writer

	beside *beside // see [Session.Beside]
}

// User is whom to run as.
type User struct {
	UID uint32
	GID *uint32 // nil: the user's own group
}

// Runner runs commands. Its fields are not changed once it is used; its methods may be called from any goroutine.
type Runner struct {
	Workspace string   // absolute; where commands start that name no directory
	Env       []string // what commands' environments start from; see [proctree.BaseEnv]
	// Grace is how long a command whose context is done may take to end by itself, by the context's cause. Nil: three
	// seconds.
	Grace    func(cause error) time.Duration
	OOMScore *int // commands' oom_score_adj; nil: celld's; see [proctree.ChildOOMScore]

	bufs   buffers
	census proctree.Census
	setup  sync.Once
	shell  shellProgram
	room   int // bytes for arguments and environment
}

// Errors of commands. What is wrong with a request is a [*RequestError].
var (
	ErrNoShell     = errors.New("there is neither bash nor sh here")
	ErrStdinClosed = errors.New("standard input is not open")
)

// Surroundings are what a process starts with.
type Surroundings struct {
	Dir        string
	Env        []string
	Credential *syscall.Credential // nil: as celld
}

// Surroundings checks where, with what environment and as whom to run something. The environment is the Runner's,
// then HOME, USER and LOGNAME of the user, then env. dir is relative to the workspace; a leading ~ and $NAME or
// ${NAME} in it are expanded from that environment. An error is a [*RequestError].
func (r *Runner) Surroundings(dir string, env map[string]string, user *User) (Surroundings, error) {
	if err := checkEnv(env); err != nil {
		return Surroundings{}, err
	}
	var s Surroundings
	var over []string
	if user != nil {
		id, err := proctree.Identify(user.UID, user.GID)
		if err != nil {
			return Surroundings{}, &RequestError{"uid", err.Error()}
		}
		s.Credential = id.Credential
		over = id.Env()
	}
	base := proctree.Overlay(r.Env, over...)
	over = over[:0]
	for _, name := range slices.Sorted(maps.Keys(env)) {
		over = append(over, name+"="+env[name])
	}
	s.Env = proctree.Overlay(base, over...)
	var err error
	if s.Dir, err = proctree.ResolveDir(dir, r.Workspace, s.Env); err != nil {
		return Surroundings{}, &RequestError{"cwd", err.Error()}
	}
	if _, given := env["PWD"]; !given {
		s.Env = proctree.Overlay(s.Env, "PWD="+s.Dir)
	}
	return s, nil
}

// Prepare checks a command and runs nothing. What is wrong with it is a [*RequestError]; [ErrNoShell] says that Text
// can't be run here at all.
func (r *Runner) Prepare(c Command) (*Prepared, error) {
	if err := checkProgram(c); err != nil {
		return nil, err
	}
	var s Surroundings
	var err error
	if c.beside != nil {
		s = c.beside.Surroundings
	} else if s, err = r.Surroundings(c.Dir, c.Env, c.User); err != nil {
		return nil, err
	}
	limits, err := limits(c.Rlimits)
	if err != nil {
		return nil, err
	}
	p := &Prepared{
		r: r, stdin: c.Stdin, open: c.StdinOpen, out: c.Stdout, errs: c.Stderr, late: c.Late,
		spec: proctree.Spec{
			Argv: c.Argv, Env: s.Env, Dir: s.Dir, Credential: s.Credential, Marker: c.ID, Limits: limits,
			OOMScore: r.OOMScore, Census: &r.census,
		},
		started: make(chan struct{}),
	}
	if c.beside != nil {
		p.prelude = c.beside.prelude
		p.spec.Limits = append(c.beside.limits, limits...)
	}
	for _, w := range []*io.Writer{&p.out, &p.errs, &p.late} {
		if *w == nil {
			*w = io.Discard
		}
	}
	if err := p.fit(c.Text); err != nil {
		return nil, err
	}
	return p, nil
}

func checkProgram(c Command) error {
	switch {
	case c.Argv == nil && c.Text == "":
		return &RequestError{"command", "is empty"}
	case c.Argv != nil && c.Text != "":
		return &RequestError{"argv", "is given together with command"}
	case c.Argv != nil && (len(c.Argv) == 0 || c.Argv[0] == ""):
		return &RequestError{"argv", "names no program"}
	case strings.IndexByte(c.Text, 0) >= 0:
		return &RequestError{"command", "holds a NUL"}
	case slices.ContainsFunc(c.Argv, func(s string) bool { return strings.IndexByte(s, 0) >= 0 }):
		return &RequestError{"argv", "holds a NUL"}
	}
	return nil
}

// fit makes the arguments for text and checks that they and the environment are not too much for the kernel.
func (p *Prepared) fit(text string) error {
	p.r.setup.Do(p.r.settleIn)
	if p.spec.Argv != nil {
		if p.r.tooLarge(p.spec.Argv, p.spec.Env) {
			return &RequestError{"argv", "is too large, together with the environment"}
		}
		return nil
	}
	sh := p.r.shell
	if sh.path == "" {
		return ErrNoShell
	}
	p.spec.Path = sh.path
	p.spec.Argv = sh.argv(text)
	if p.r.tooLarge(p.spec.Argv, p.spec.Env) {
		p.spec.Argv, p.script = sh.argv(sh.loader), text
		if p.r.tooLarge(p.spec.Argv, p.spec.Env) {
			return &RequestError{"envs", "are too large"}
		}
	}
	return nil
}

// Prepared is a command ready to run, then the running one, then what is left of it. Its methods may be called from
// any goroutine.
type Prepared struct {
	r               *Runner
	spec            proctree.Spec
	script          string // text that is too long for an argument
	prelude         string // what bash reads before the text
	stdin           *string
	open            bool
	out, errs, late io.Writer

	stopped atomic.Bool
	started chan struct{} // closed when tree is set, or stays nil for good
	tree    *proctree.Tree
	input   *feeder // nil if there is none
	pumps   []*pump
}

// Run runs the command, once, and returns when its first process has ended and all that was written until then has
// been passed on. What the command has left behind keeps running, and its output goes to Late.
//
// When ctx is done the whole tree is ended, first with SIGTERM, and Run returns when nobody is left; the status is
// what the operating system reported, and Stopped tells of ctx. A program that isn't there has status 127 and one
// that can't be executed 126, told on Stderr as a shell does. An error means that the command hasn't run: ctx's
// cause if that was done before, a [*RequestError] if the user can't be taken, or what was missing. It also means that
// a command could not be killed.
func (p *Prepared) Run(ctx context.Context) (proctree.Status, error) {
	defer p.forget()
	status, running, err := p.start(ctx)
	close(p.started) // before there can be output: who sees some may signal at once
	if !running {
		return status, err
	}
	for _, pump := range p.pumps {
		go pump.run(&p.r.bufs)
	}
	if p.input != nil {
		go p.input.feed()
	}
	select {
	case <-p.tree.Done():
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		p.stopped.Store(true)
		if err := p.end(ctx); err != nil {
			return proctree.Status{}, err
		}
	}
	for _, pump := range p.pumps {
		pump.settle(&p.r.bufs, p.late)
	}
	if p.input != nil {
		p.input.end()
	}
	return p.tree.Status(), nil
}

// killPatience is how long SIGKILL may take.
const killPatience = 5 * time.Second

// end ends the tree because ctx is done.
func (p *Prepared) end(ctx context.Context) error {
	grace := 3 * time.Second
	if p.r.Grace != nil {
		grace = p.r.Grace(context.Cause(ctx))
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+killPatience)
	defer cancel()
	err := p.tree.Kill(limited, grace)
	select {
	case <-p.tree.Done(): // whoever is left then isn't ours to kill, or can't be
		return nil
	default:
		return err
	}
}

// forget lets go of what is of no use after the command's end: commands are kept for long.
func (p *Prepared) forget() {
	p.spec, p.script, p.stdin = proctree.Spec{}, "", nil
	p.out, p.errs = nil, nil
}

// start starts the command. If it isn't running the status and the error are Run's.
func (p *Prepared) start(ctx context.Context) (status proctree.Status, running bool, err error) {
	if ctx.Err() != nil {
		return status, false, context.Cause(ctx)
	}
	ends, err := p.plumb()
	if err != nil {
		return status, false, fmt.Errorf("start command: %w", err)
	}
	p.spec.Files = ends.child
	p.tree, err = p.startProgram()
	ends.closeChild()
	if err != nil {
		ends.closeOurs()
		code, message := 0, ""
		if code, message, err = p.explain(err); err == nil {
			_, _ = io.WriteString(p.errs, message)
		}
		return proctree.Status{Code: code}, false, err
	}
	p.pumps, p.input = ends.pumps, ends.input
	return status, true, nil
}

// startProgram starts the shell, or the first of the programs that Argv can mean that can be executed.
func (p *Prepared) startProgram() (*proctree.Tree, error) {
	if p.spec.Path != "" {
		return proctree.Start(p.spec)
	}
	spec := p.spec
	err := error(syscall.ENOENT)
	for _, spec.Path = range candidates(spec.Argv[0], spec.Env, spec.Dir) {
		tree, e := proctree.Start(spec)
		var pe *os.PathError
		switch {
		case e == nil:
			return tree, nil
		case errors.As(e, &pe) && pe.Op == "chdir":
			return nil, e
		case errors.Is(e, syscall.ENOENT), errors.Is(e, syscall.ENOTDIR):
		case errors.Is(e, syscall.EACCES):
			err = e // what a shell remembers too
		default:
			return nil, e
		}
	}
	return nil, err
}

// explain makes a status and a message of the error of a start, or an error for Run.
func (p *Prepared) explain(err error) (code int, message string, _ error) {
	name := p.spec.Argv[0]
	var pe *os.PathError
	if errors.As(err, &pe) && pe.Op == "chdir" {
		return 0, "", &RequestError{"cwd", fmt.Sprintf("%s: %v", pe.Path, pe.Err)}
	}
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		if strings.Contains(name, "/") {
			return 127, fmt.Sprintf("%s: not found (No such file or directory)\n", name), nil
		}
		return 127, fmt.Sprintf("%s: command not found\n", name), nil
	case errors.Is(err, syscall.EACCES):
		return 126, fmt.Sprintf("%s: Permission denied\n", name), nil
	case errors.Is(err, syscall.ENOEXEC):
		return 126, fmt.Sprintf("%s: cannot execute: exec format error\n", name), nil
	case p.spec.Credential != nil && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL)):
		return 0, "", &RequestError{"uid", fmt.Sprintf("user %d: %v", p.spec.Credential.Uid, proctree.ErrMayNotSwitch)}
	}
	return 0, "", fmt.Errorf("start command: %w", err)
}
