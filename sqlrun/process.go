package sqlrun

import (
	"bufio"
	"context"
	"crypto/rand" // markers must be unique on the machine: who carries one is killed with the tree
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/celld/celld/internal/proctree"
)

// process is a program of the server's that runs and tells us about it.
type process struct {
	tree *proctree.Tree
	out  *os.File // what it writes
	r    *bufio.Reader
	said []string // the newest lines that may explain a failure
}

// restWithin bounds the wait for the end of what ended programs have written: somebody who got away may hold the pipe.
const restWithin = time.Second

// spawn starts a program as who, at home in the data directory's parent.
func (p *Private) spawn(path string, argv []string, who *syscall.Credential) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	tree, err := proctree.Start(proctree.Spec{
		Path: path, Argv: argv, Env: p.cfg.Env, Dir: "/", Files: []*os.File{nil, w, w}, Credential: who,
		Marker: "sql-" + rand.Text(), OOMScore: p.cfg.OOMScore,
	})
	if err != nil {
		r.Close()
		return nil, err
	}
	p.work.Go(func() {
		<-tree.Done()
		_ = r.SetReadDeadline(time.Now().Add(restWithin)) // it may be closed
	})
	return &process{tree: tree, out: r, r: bufio.NewReader(r)}, nil
}

// until returns when the program has written a line with text; empty: when it has ended well. Any other end, and ctx's, is
// an error that says what the program said, and it is dead then.
func (x *process) until(ctx context.Context, text string) error {
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		x.tree.Kill(context.WithoutCancel(ctx), 0)
	})
	ready := false
	for !ready {
		line, err := x.r.ReadString('\n')
		x.remember(strings.TrimSpace(line))
		ready = text != "" && strings.Contains(line, text)
		if err != nil {
			break
		}
	}
	if !stop() {
		<-killed
	} else if ready {
		return nil
	}
	x.out.Close()
	<-x.tree.Done()
	switch code := x.tree.Status().Code; {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case text == "" && code == 0:
		return nil
	default:
		return fmt.Errorf("exit status %d: %s", code, strings.Join(x.said, "; "))
	}
}

// remember keeps the newest lines, errors rather than notes.
func (x *process) remember(line string) {
	if line == "" || strings.Contains(line, "[Note]") || strings.Contains(line, "[System]") || strings.Contains(line, "[Warning]") {
		return
	}
	if x.said = append(x.said, line); len(x.said) > 5 {
		x.said = x.said[1:]
	}
}

// drain reads what the program writes until it has ended.
func (x *process) drain() {
	io.Copy(io.Discard, x.r)
	x.out.Close()
}

// initialise makes a data directory, unless there is one. It gets its name when it is whole, so that half of one is
// never taken for one.
func (p *Private) initialise(ctx context.Context, found installation, who *syscall.Credential) error {
	if _, err := os.Stat(p.dataDir()); err == nil || !os.IsNotExist(err) {
		return err
	}
	half := filepath.Join(p.cfg.Dir, "new")
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if err := os.Mkdir(half, 0o700); err != nil {
		return err
	}
	if err := own(half, who); err != nil {
		return err
	}
	program := found.install
	args := append(p.arguments(half, who), "--auth-root-authentication-method=normal", "--skip-test-db")
	if found.mysql {
		program = found.server
		args = append(p.arguments(half, who), "--initialize-insecure")
	}
	proc, err := p.spawn(program, append([]string{program}, args...), who)
	if err != nil {
		return err
	}
	if err := proc.until(ctx, ""); err != nil {
		return err
	}
	return os.Rename(half, p.dataDir())
}
