package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopLimit is how long celld may take to stop before it is killed, which is an error: no bound on its speed.
const stopLimit = 2 * time.Minute

// moduleRoot finds the directory that holds go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("run this from celld's source tree")
	}
	return filepath.Dir(mod), nil
}

// copyCelld copies bin/celld below root and its kernel for Go, which it builds when celld isn't there, into dir: who builds celld anew meanwhile
// doesn't change what is measured.
func copyCelld(ctx context.Context, root, dir string) (string, error) {
	binary := filepath.Join(root, "bin/celld")
	if _, err := os.Stat(binary); err != nil {
		build := exec.CommandContext(ctx, "make", "-C", root, "build")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return "", fmt.Errorf("build celld: %w", err)
		}
	}
	for _, name := range []string{"celld", "celld-gokernel"} { // celld finds that beside itself
		text, err := os.ReadFile(filepath.Join(filepath.Dir(binary), name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "celld"), nil
}

// daemon is a celld of this benchmark's own.
type daemon struct {
	*peer
	pid     int
	idle    float64       // resident bytes before its first request
	started time.Duration // from exec to the first answered /ping
	home    string        // everything that it writes
	runDir  string
	cmd     *exec.Cmd
	log     *tail
	logDone chan struct{}
	stopped bool
}

// celld starts a daemon in directories of its own, as a user would but for a free port.
func (r *run) celld(ctx context.Context, args ...string) (*daemon, error) {
	n := len(r.cleanup)
	d := &daemon{log: &tail{}, logDone: make(chan struct{})}
	d.home, d.runDir = filepath.Join(r.dir, fmt.Sprint("celld", n)), filepath.Join(r.fast, fmt.Sprint("run", n))
	for _, sub := range []string{"tmp", "work"} {
		if err := os.MkdirAll(filepath.Join(d.home, sub), 0o755); err != nil {
			return nil, err
		}
	}
	d.cmd = exec.Command(r.binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--workspace", filepath.Join(d.home, "work"),
		"--data-dir", d.data(), "--run-dir", d.runDir}, args...)...)
	d.cmd.Dir = r.root // where .celld/ is found
	d.cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(d.home, "tmp"))
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	d.pid = d.cmd.Process.Pid
	r.cleanup = append(r.cleanup, d.stop)
	address := make(chan string, 1)
	go d.readLog(stderr, address)
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-d.logDone:
		return nil, fmt.Errorf("celld ended at once: %s", d.log)
	case a := <-address:
		d.peer = newPeer("http://"+a, true)
	}
	if err := d.get(ctx, "/ping"); err != nil {
		return nil, err
	}
	d.started = time.Since(began)
	d.idle, err = memory(d.pid, "VmRSS")
	return d, err
}

func (d *daemon) data() string { return filepath.Join(d.home, "data") }

var listening = regexp.MustCompile(`msg=listening .*?address=(\S+)`)

// readLog takes the address from the log, and the rest of it away.
func (d *daemon) readLog(stderr io.Reader, address chan<- string) {
	defer close(d.logDone)
	lines := bufio.NewReader(stderr)
	for found := false; ; {
		text, err := lines.ReadString('\n')
		d.log.Write([]byte(text))
		if m := listening.FindStringSubmatch(text); m != nil && !found {
			address <- m[1]
			found = true
		}
		if err != nil {
			return
		}
	}
}

// stop ends celld as an init system would, and finds what it leaves behind.
func (d *daemon) stop() error {
	if d.stopped {
		return nil
	}
	had, err := below(d.pid)
	if err != nil {
		return err
	}
	if err := d.end(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop celld: %w; it said: %s", err, d.log)
	}
	for _, p := range had {
		if p.alive() {
			err = errors.Join(err, fmt.Errorf("celld left this running: %s", p))
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	return err
}

// end sends a signal that ends celld and waits for that. The error is how it ended, if not with status 0.
func (d *daemon) end(sig syscall.Signal) error {
	d.stopped = true
	if d.peer != nil {
		d.http.CloseIdleConnections()
	}
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	force := time.AfterFunc(stopLimit, func() { d.cmd.Process.Kill() })
	defer force.Stop()
	<-d.logDone // before Wait, which closes the pipe
	return d.cmd.Wait()
}

// goroutines ends celld with SIGQUIT, which makes a Go program print its goroutines, and counts them by what started
// them.
func (d *daemon) goroutines() (map[string]int, error) {
	d.log.hold(8 << 20)
	var exit *exec.ExitError
	if err := d.end(syscall.SIGQUIT); err == nil || !errors.As(err, &exit) {
		return nil, fmt.Errorf("celld didn't end by SIGQUIT: %v", err)
	}
	found := map[string]int{}
	for block := range strings.SplitSeq(d.log.String(), "\n\n") {
		if !goroutine.MatchString(block) {
			continue
		}
		by := "main"
		if m := createdBy.FindStringSubmatch(block); m != nil {
			by = m[1]
		}
		if strings.HasPrefix(by, "runtime.") {
			continue // they come with the first collection and stay
		}
		found[by]++
	}
	if len(found) == 0 {
		return nil, errors.New("celld printed no goroutines")
	}
	return found, nil
}

var (
	goroutine = regexp.MustCompile(`(?m)^goroutine \d+ `)
	createdBy = regexp.MustCompile(`(?m)^created by (\S+)`)
)

// tail keeps the newest bytes written to it.
type tail struct {
	mu   sync.Mutex
	keep int // 0: 1 KiB
	buf  []byte
}

// hold makes t keep more, or less, from now on.
func (t *tail) hold(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep = n
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if keep := max(t.keep, 1024); len(t.buf) > 2*keep {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-keep:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-max(t.keep, 1024)):])
}
