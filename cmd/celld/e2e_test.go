package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/celld/celld/openapi/openapitest"
)

// runAsDaemon makes the test binary be celld: tests talk to a real one, in a process of its own, over real HTTP.
const runAsDaemon = "TEST_RUN_AS_CELLD"

func TestMain(m *testing.M) {
	if os.Getenv(runAsDaemon) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// daemon is a running celld.
type daemon struct {
	t    *testing.T
	url  string
	data string
	run  string
	ws   string
	cmd  *exec.Cmd
	log  *lockedBuffer
	http *http.Client // checks every answer against openapi.yaml
	done chan struct{}

	netDial func(ctx context.Context, network, address string) (net.Conn, error) // for terminals; nil: the usual one
}

type lockedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{} // closed at the next line; nil when nobody waits
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.WriteString(line + "\n")
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// await returns when the log holds text.
func (l *lockedBuffer) await(t *testing.T, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		if strings.Contains(l.b.String(), text) {
			l.mu.Unlock()
			return
		}
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		select {
		case <-more:
		case <-time.After(patience):
			t.Fatalf("no %q in the log:\n%s", text, l.String())
		}
	}
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// launch describes a celld to start.
type launch struct {
	args []string
	env  []string                     // beside the test's own
	wrap func(argv []string) []string // starts it through something
	raw  bool                         // answers aren't checked against openapi.yaml
	data string                       // the data directory of an earlier one, instead of a new one
	uid  int                          // whom it runs as, if not the test's own user
}

var listening = regexp.MustCompile(`msg=listening address=(\S+)`)

// prefixDir is where make setup installs.
func prefixDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../.celld")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "python/bin")); err != nil {
		t.Fatalf("%v: run make setup-tests first", err)
	}
	return dir
}

// start starts a celld with its defaults, in folders of its own, and waits until it listens. At the end of the test it
// is stopped, and must stop cleanly and leave no process.
func start(t *testing.T, l launch) *daemon {
	t.Helper()
	d := &daemon{t: t, log: new(lockedBuffer), done: make(chan struct{})}
	d.folders(l)
	argv := append([]string{os.Args[0], "serve", "--listen=127.0.0.1:0", "--data-dir=" + d.data, "--run-dir=" + d.run,
		"--workspace=" + d.ws, "--prefix=" + prefixDir(t)}, l.args...)
	if l.wrap != nil {
		argv = l.wrap(argv)
	}
	d.cmd = exec.Command(argv[0], argv[1:]...)
	d.cmd.Dir = d.ws
	d.cmd.Env = append(append(os.Environ(), runAsDaemon+"=1", belongsTo+"="+d.run), l.env...)
	if l.uid != 0 {
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(l.uid), Gid: uint32(l.uid)}}
		d.cmd.Path = "/proc/self/exe" // the folder of the test's program may be closed to others
	}
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(longest, func() {
		d.log.add(fmt.Sprintf("still there after %v, with %v", longest, processesWith(d.run)))
		d.cmd.Process.Signal(syscall.SIGQUIT)                                          // says what all its goroutines do
		time.AfterFunc(5*time.Second, func() { d.cmd.Process.Kill(); stderr.Close() }) // whoever else holds it
	})
	t.Cleanup(func() { hung.Stop() })
	address := make(chan string, 1)
	go func() {
		defer close(d.done)
		defer close(address)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			d.log.add(lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
		}
	}()
	a, ok := <-address
	if !ok {
		t.Fatalf("celld did not start: %v\n%s", d.cmd.Wait(), d.log.String())
	}
	d.url = "http://" + a
	d.http = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	if !l.raw {
		spec, err := openapitest.Load()
		if err != nil {
			t.Fatal(err)
		}
		d.http.Transport = spec.Transport(d.http.Transport, func(err error) { t.Errorf("not as in openapi.yaml: %v", err) })
	}
	t.Cleanup(d.stop)
	return d
}

// longest is how long a test may have a daemon: then the test fails, and tells what the daemon did.
const longest = 8 * time.Minute

// belongsTo is a variable of everything that a daemon starts; its value is the daemon's run directory.
const belongsTo = "TEST_DAEMON"

// folders makes the daemon's folders, where any user can reach them.
func (d *daemon) folders(l launch) {
	d.t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "celldtest")
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { os.RemoveAll(root) })
	d.run, d.data, d.ws = root+"/run", root+"/data", root+"/ws"
	for _, dir := range []string{root, d.run, d.data, d.ws} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			d.t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			d.t.Fatal(err)
		}
		if l.uid != 0 {
			if err := os.Chown(dir, l.uid, l.uid); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	if l.data != "" {
		d.data = l.data
	}
}

// pid is the daemon's process, also when it was started through something that forks.
func (d *daemon) pid() int {
	pid := d.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		d.t.Fatal(err)
	}
	if args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !bytes.HasPrefix(args, []byte(os.Args[0])) {
		fmt.Sscan(string(children), &pid)
	}
	return pid
}

// stop ends the daemon as an init system would, and looks at what it leaves.
func (d *daemon) stop() {
	if d.cmd.ProcessState != nil {
		return
	}
	syscall.Kill(d.pid(), syscall.SIGTERM)
	<-d.done
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("celld ended with %v\n%s", err, d.log.String())
	}
	if strings.Contains(d.log.String(), "DATA RACE") || strings.Contains(d.log.String(), "panic") {
		d.t.Errorf("celld's log:\n%s", d.log.String())
	}
	if left := processesWith(d.run); len(left) > 0 {
		d.t.Errorf("processes left: %v", left)
	}
	if names, err := os.ReadDir(d.run); err == nil && len(names) > 0 {
		d.t.Errorf("left in the run directory: %v", names)
	}
}

// processesWith returns the living processes whose arguments or environment hold text.
func processesWith(text string) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		args, _ := os.ReadFile(dir + "/cmdline")
		env, _ := os.ReadFile(dir + "/environ")
		if bytes.Contains(args, []byte(text)) || bytes.Contains(env, []byte(text)) {
			found = append(found, dir+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte(" "))))
		}
	}
	return found
}

// event is an event as clients see it.
type event struct {
	Type      string         `json:"type"`
	EID       int64          `json:"eid"`
	Text      string         `json:"text"`
	Data      []byte         `json:"data"`
	Partial   bool           `json:"partial"`
	ID        string         `json:"execution_id"`
	State     string         `json:"state"`
	Detail    string         `json:"detail"`
	Count     int            `json:"execution_count"`
	ExitCode  *int           `json:"exit_code"`
	From, To  int64          // gap
	Prompt    string         `json:"prompt"`
	Password  bool           `json:"password"`
	Results   map[string]any `json:"results"`
	DisplayID string         `json:"display_id"`
	Update    bool           `json:"update"`
	Error     *struct {
		Ename, Evalue string
		Traceback     []string
		Code          int
		SQLState      string
	} `json:"error"`
	Table *struct {
		Columns []struct {
			Name, Type string
			Nullable   *bool
		}
		Truncated    bool
		RowCount     int64  `json:"row_count"`
		LastInsertID string `json:"last_insert_id"`
		Warnings     int
		Info         string
	} `json:"table"`
}

// stream is an answer that is being read.
type stream struct {
	t      *testing.T
	body   io.ReadCloser
	frames *bufio.Reader
	cancel context.CancelFunc
}

// body makes a JSON body; a string is taken as it is.
func body(v any) io.Reader {
	if s, ok := v.(string); ok {
		return strings.NewReader(s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return bytes.NewReader(b)
}

// do sends a request. The context ends with the test.
func (d *daemon) do(method, path string, v any, header ...string) *http.Response {
	d.t.Helper()
	return d.doCtx(d.t.Context(), method, path, v, header...)
}

func (d *daemon) doCtx(ctx context.Context, method, path string, v any, header ...string) *http.Response {
	d.t.Helper()
	var b io.Reader
	if v != nil {
		b = body(v)
	}
	req, err := http.NewRequestWithContext(ctx, method, d.url+path, b)
	if err != nil {
		d.t.Fatal(err)
	}
	if v != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	resp, err := d.http.Do(req)
	if err != nil {
		d.t.Fatalf("%s %s: %v\n%s", method, path, err, d.log.String())
	}
	return resp
}

// call sends a request, reads the answer and decodes it into out, if that isn't nil.
func (d *daemon) call(method, path string, v, out any, header ...string) int {
	d.t.Helper()
	resp := d.do(method, path, v, header...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			d.t.Fatalf("%s %s: %d %q: %v", method, path, resp.StatusCode, text, err)
		}
	}
	return resp.StatusCode
}

// refused checks that a request is answered with a status and a JSON error.
func (d *daemon) refused(want int, method, path string, v any, header ...string) {
	d.t.Helper()
	var e struct{ Code, Message string }
	if got := d.call(method, path, v, &e, header...); got != want || e.Code == "" || e.Message == "" {
		d.t.Errorf("%s %s %.200v: %d %+v, want %d", method, path, v, got, e, want)
	}
}

// open starts something that streams.
func (d *daemon) open(path string, v any, header ...string) *stream {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	method := http.MethodPost
	if v == nil {
		method = http.MethodGet
	}
	resp := d.doCtx(ctx, method, path, v, header...)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, _ := io.ReadAll(resp.Body)
		d.t.Fatalf("%s %.300v: %d %s %s", path, v, resp.StatusCode, resp.Header.Get("Content-Type"), text)
	}
	s := &stream{t: d.t, body: resp.Body, frames: bufio.NewReaderSize(resp.Body, 1<<20), cancel: cancel}
	d.t.Cleanup(s.close)
	return s
}

// close drops the connection.
func (s *stream) close() {
	s.cancel()
	s.body.Close()
}

// next returns the next event but pings; ok is false at the end of the stream.
func (s *stream) next() (e event, ok bool) {
	s.t.Helper()
	for {
		line, err := s.frames.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return event{}, false
		}
		if err != nil {
			s.t.Fatalf("read the stream: %v after %q", err, line)
		}
		data, found := bytes.CutPrefix(line, []byte("data: "))
		if !found {
			continue
		}
		e = event{}
		if err := json.Unmarshal(data, &e); err != nil {
			s.t.Fatalf("%q: %v", data, err)
		}
		if e.Type != "ping" {
			return e, true
		}
	}
}

// until reads events up to one that matches.
func (s *stream) until(match func(event) bool) event {
	s.t.Helper()
	for {
		e, ok := s.next()
		if !ok {
			s.t.Fatal("the stream ended before the event that was waited for")
		}
		if match(e) {
			return e
		}
	}
}

// prints matches output that completes this text, which may come in pieces: a kernel sends what it has printed so far
// whenever it has been at it for a while.
func prints(text string) func(event) bool {
	seen := ""
	return func(e event) bool {
		if e.Type != "stdout" {
			return false
		}
		seen += e.Text
		found := strings.Contains(seen, text)
		seen = seen[max(0, len(seen)-len(text)+1):]
		return found
	}
}

// outcome is a whole stream.
type outcome struct {
	events         []event
	init           event
	stdout, stderr []string // texts of the events
	results        []event
	end            event
	code           int // 0, or the error's evalue as a number; -1 if it isn't one
}

// rest reads a stream to its end and checks its shape: one terminal event, last.
func (s *stream) rest() *outcome {
	s.t.Helper()
	o := &outcome{}
	for {
		e, ok := s.next()
		if !ok {
			break
		}
		if o.end.Type != "" {
			s.t.Errorf("event %+v after the terminal one", e)
		}
		o.events = append(o.events, e)
		switch e.Type {
		case "init":
			o.init = e
		case "stdout":
			o.stdout = append(o.stdout, e.Text)
		case "stderr":
			o.stderr = append(o.stderr, e.Text)
		case "result":
			o.results = append(o.results, e)
		case "error", "execution_complete":
			o.end = e
		}
	}
	if o.end.Type == "" {
		s.t.Fatalf("no terminal event in %+v", o.events)
	}
	if o.end.Error != nil {
		o.code = -1
		fmt.Sscan(o.end.Error.Evalue, &o.code)
	}
	return o
}

// out is the whole text of stdout.
func (o *outcome) out() string { return strings.Join(o.stdout, "") }

func (o *outcome) failed() string {
	if o.end.Error == nil {
		return ""
	}
	return o.end.Error.Ename
}

// m is a JSON object.
type m = map[string]any

// command runs a command to its end.
func (d *daemon) command(text string, more ...m) *outcome {
	d.t.Helper()
	return d.open("/command", with(m{"command": text}, more)).rest()
}

// code runs a cell to its end.
func (d *daemon) code(language, text string, more ...m) *outcome {
	d.t.Helper()
	return d.open("/code", with(m{"context": m{"language": language}, "code": text}, more)).rest()
}

// inSession runs a command in a session to its end.
func (d *daemon) inSession(id, text string, more ...m) *outcome {
	d.t.Helper()
	return d.open("/session/"+id+"/run", with(m{"command": text, "create": true}, more)).rest()
}

func with(body m, more []m) m {
	for _, x := range more {
		for k, v := range x {
			body[k] = v
		}
	}
	return body
}
