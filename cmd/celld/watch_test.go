package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what should come at once: longer than any machine is busy, shorter than
// anything that a test starts would run by itself.
const patience = 2 * time.Minute

// holder is a pipe that commands hold, and everything they start, so that its end tells when the last of them is gone.
type holder struct {
	t    *testing.T
	path string
	own  *os.File // the test's own hold, until all have started
	gone chan struct{}
}

func (d *daemon) holder() *holder {
	d.t.Helper()
	h := &holder{t: d.t, path: d.fifo(), gone: make(chan struct{})}
	go func() {
		defer close(h.gone)
		f, err := os.Open(h.path) // waits for the other side
		if err != nil {
			return
		}
		defer f.Close()
		io.Copy(io.Discard, f)
	}()
	var err error
	if h.own, err = os.OpenFile(h.path, os.O_WRONLY, 0); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { h.own.Close() })
	return h
}

// held makes a command hold the pipe.
func (h *holder) held(command string) string { return "exec 9>" + h.path + "; " + command }

// wait returns when nobody is left. Nobody may be about to start.
func (h *holder) wait() {
	h.t.Helper()
	h.own.Close()
	select {
	case <-h.gone:
	case <-time.After(patience):
		h.t.Errorf("somebody still holds %s: %v", h.path, processesWith("sleep\x009"))
	}
}

// isHeld says whether somebody is left. Nobody may be about to start.
func (h *holder) isHeld() bool {
	h.t.Helper()
	h.own.Close()
	fd, err := unix.Open(h.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	defer unix.Close(fd)
	_, err = unix.Read(fd, make([]byte, 1)) // without anybody who could write it is at its end
	return err == unix.EAGAIN
}

// gate is a pipe at which commands wait until the test opens it.
type gate struct {
	t    *testing.T
	path string
}

func (d *daemon) gate() *gate { return &gate{d.t, d.fifo()} }

// pass is the command that waits.
func (g *gate) pass() string { return "read -r _ <" + g.path + " || :" }

// open lets the one who waits go, and waits for it if it isn't there yet.
func (g *gate) open() {
	g.t.Helper()
	pass(g.t, g.path, os.O_WRONLY)
}

func (d *daemon) fifo() string {
	d.t.Helper()
	f, err := os.CreateTemp(d.ws, "fifo")
	if err != nil {
		d.t.Fatal(err)
	}
	f.Close()
	os.Remove(f.Name())
	if err := unix.Mkfifo(f.Name(), 0o666); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Chmod(f.Name(), 0o666); err != nil {
		d.t.Fatal(err)
	}
	return f.Name()
}

// each runs tests side by side on one daemon.
func (d *daemon) each(t *testing.T, tests map[string]func(*daemon)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(d.in(t))
		})
	}
}

// lines are the lines of a stream, as clients put them together from events.
func lines(texts []string) []string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = strings.TrimSuffix(text, "\n")
	}
	return all
}

// commandStatus is the answer to GET /command/status.
type commandStatus struct {
	ID, Content, Error string
	Running            bool
	Background         bool
	PID                int
	Survivors          []int
	ExitCode           *int       `json:"exit_code"`
	StartedAt          time.Time  `json:"started_at"`
	FinishedAt         *time.Time `json:"finished_at"`
}

func (d *daemon) status(id string) commandStatus {
	d.t.Helper()
	var s commandStatus
	if code := d.call("GET", "/command/status/"+id, nil, &s); code != 200 {
		d.t.Fatalf("status of %s: %d", id, code)
	}
	return s
}

// background starts a command in the background and returns its id.
func (d *daemon) background(text string, more ...m) string {
	d.t.Helper()
	o := d.open("/command", with(m{"command": text, "background": true}, more)).rest()
	if o.init.Text == "" || len(o.events) != 2 || o.end.Type != "execution_complete" || o.end.EID != 0 || o.end.ExitCode != nil {
		d.t.Fatalf("background command: %+v", o.events)
	}
	return o.init.Text
}

// awaitExit waits for the end of a command and returns its status.
func (d *daemon) awaitExit(id string) int {
	d.t.Helper()
	var r struct {
		Event    string
		ExitCode *int `json:"exit_code"`
	}
	if code := d.call("POST", "/command/"+id+"/wait", m{"exit": true}, &r); code != 200 || r.Event != "exit" || r.ExitCode == nil {
		d.t.Fatalf("wait for %s: %d %+v", id, code, r)
	}
	return *r.ExitCode
}

// logs reads a command's log from a cursor on.
func (d *daemon) logs(id, query string) (text, cursor string) {
	d.t.Helper()
	resp := d.do("GET", "/command/"+id+"/logs"+query, nil)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		d.t.Fatalf("logs%s: %d %v %s", query, resp.StatusCode, err, b)
	}
	if got := resp.Header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
		d.t.Errorf("content type of logs: %q", got)
	}
	return string(b), resp.Header.Get("EXECD-COMMANDS-TAIL-CURSOR")
}

// ended checks how a command ended: its exit status, the kind of its terminal event and what its status says.
func (d *daemon) ended(o *outcome, name string, code int) {
	d.t.Helper()
	s := d.status(o.init.ID)
	switch {
	case o.failed() != name || o.code != code:
		d.t.Errorf("%s: ended with %s %d, want %s %d", s.Content, o.failed(), o.code, name, code)
	case s.Running || s.FinishedAt == nil || s.ExitCode == nil || *s.ExitCode != code:
		d.t.Errorf("%s: status %+v, want %d", s.Content, s, code)
	case (s.Error == "") != (name == ""):
		d.t.Errorf("%s: error %q in its status", s.Content, s.Error)
	}
}

// exits checks that a command ended by itself with a status.
func (d *daemon) exits(o *outcome, code int) {
	d.t.Helper()
	name := ""
	if code != 0 {
		name = "CommandExecError"
	}
	d.ended(o, name, code)
}

// pidfd returns a descriptor that is readable when process pid has died, wherever it is.
func pidfd(t *testing.T, pid int) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprint("process ", pid))
	t.Cleanup(func() { f.Close() })
	return f
}

// awaitDeath returns when the process behind f has died.
func awaitDeath(t *testing.T, f *os.File) {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(patience))
	rc, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = rc.Read(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		return err == nil && n == 1
	})
	if err != nil {
		t.Fatalf("%s still runs: %v", f.Name(), err)
	}
}

// oneAnswer is a whole run as one JSON object.
type oneAnswer struct {
	ID       string `json:"execution_id"`
	Stdout   string
	Stderr   string
	ExitCode *int `json:"exit_code"`
}

// bare is the same daemon with answers that aren't checked against openapi.yaml, which takes long where much comes.
func (d *daemon) bare() *daemon {
	c := d.in(d.t)
	c.http = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	d.t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// try sends a request. It may be called from any goroutine; whoever calls it closes the body.
func (d *daemon) try(ctx context.Context, method, path string, v any) (*http.Response, error) {
	var b io.Reader
	if v != nil {
		b = body(v)
	}
	req, err := http.NewRequestWithContext(ctx, method, d.url+path, b)
	if err != nil {
		return nil, err
	}
	if v != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return d.http.Do(req)
}

// into sends a request without a body and decodes the answer, which must be a success. It may be called from any
// goroutine.
func (d *daemon) into(v any, method, path string) error {
	resp, err := d.try(d.t.Context(), method, path, nil)
	if err != nil {
		return err
	}
	if err := decode(resp, v); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// answer runs a command and takes its output as one object. It may be called from any goroutine.
func (d *daemon) answer(ctx context.Context, v m) (a oneAnswer, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", d.url+"/command", body(v))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := d.http.Do(req)
	if err != nil {
		return a, err
	}
	return a, decode(resp, &a)
}

// decode reads an answer, which must be a success, into v.
func decode(resp *http.Response, v any) error {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", resp.StatusCode, text)
	}
	if err == nil && v != nil {
		err = json.Unmarshal(text, v)
	}
	return err
}
