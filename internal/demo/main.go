// Command demo shows what celld does: it starts bin/celld, runs commands and code over HTTP, prints each event as it
// arrives, checks every outcome, stops celld and makes sure that nothing is left running.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	limit     = 3 * time.Minute  // for all of it
	stopLimit = 15 * time.Second // longer than celld takes for a shutdown by default
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took more than %v", limit))
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
	fmt.Println("\ndemo: everything was as it should be")
}

func run(ctx context.Context) error {
	// What celld left running would become our child, and be found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	data, err := os.MkdirTemp("", "celld-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	d, err := start(data)
	if err != nil {
		return err
	}
	err = d.show(ctx)
	fmt.Println("\n# stop celld")
	if err = errors.Join(err, d.stop()); err != nil {
		return fmt.Errorf("%w\ncelld's log:\n%s", err, d.log.String())
	}
	fmt.Println("  celld has ended, and nothing that it started runs")
	return nil
}

// daemon is a running celld.
type daemon struct {
	base    string // http://127.0.0.1:PORT; "" if it ended at once
	cmd     *exec.Cmd
	log     bytes.Buffer  // valid once logDone is closed
	logDone chan struct{} // closed when celld has ended
}

// start starts celld on a free port, with data of its own and defaults otherwise, and returns when it listens.
func start(data string) (*daemon, error) {
	d := &daemon{logDone: make(chan struct{})}
	d.cmd = exec.Command("bin/celld", "serve", "--listen", "127.0.0.1:0", "--data-dir", data)
	fmt.Println("#", d.cmd)
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	address := make(chan string, 1)
	go d.readLog(stderr, address)
	select {
	case a := <-address:
		d.base = "http://" + a
	case <-d.logDone:
	}
	return d, nil
}

var listening = regexp.MustCompile(`msg=listening .*?address=(\S+)`)

// readLog keeps celld's log and looks for the line that names its address.
func (d *daemon) readLog(stderr io.Reader, address chan<- string) {
	defer close(d.logDone)
	for lines := bufio.NewReader(stderr); ; {
		text, err := lines.ReadString('\n')
		d.log.WriteString(text)
		if m := listening.FindStringSubmatch(text); m != nil {
			address <- m[1]
		}
		if err != nil {
			return
		}
	}
}

// stop ends celld as an init system does, and looks for what is left of it.
func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	force := time.AfterFunc(stopLimit, func() { d.cmd.Process.Kill() })
	defer force.Stop()
	<-d.logDone
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("celld didn't stop cleanly: %w", err)
	}
	// Every orphan of celld's is our child now. One that has ended is reaped here; one that runs is a fault.
	for {
		switch pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); {
		case errors.Is(err, syscall.ECHILD):
			return nil
		case err != nil && !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("look for processes: %w", err)
		case pid == 0:
			return errors.New("celld has ended, but something that it started still runs")
		}
	}
}
