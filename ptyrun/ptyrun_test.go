package ptyrun

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProgramHasATerminalOfItsOwnWithJobControl(t *testing.T) {
	x := run(t, false, nil)
	x.send("set -m; sleep 97.91 & \r" + sleeper("97.92") + "\r")
	x.until(begun)
	x.send("\x03")
	x.send("echo a''live $(tty) $TERM; stty size\r")
	got := x.until("24 80\r\n")
	if !strings.Contains(got, "alive /dev/pts/") || !strings.Contains(got, " xterm-256color\r\n") {
		t.Errorf("after Ctrl-C: %q", got)
	}
	if all := x.text(); strings.Contains(all, "no job control") {
		t.Errorf("%q", all)
	}
	x.send("jobs\r")
	x.until("Running")
	x.send("exit 7\rexit 7\r") // the first time it tells of the job
	if code := x.end(); code != 7 {
		t.Errorf("exit code %d", code)
	}
}

// TestTerminalErasesWholeCharacters: what is typed ahead is edited by the terminal, and not by the program.
func TestTerminalErasesWholeCharacters(t *testing.T) {
	x := run(t, false, func(c *Config) { c.Command = "echo up; read -r x; printf '<%s>' \"$x\"" })
	x.until("up")
	x.send("a\u00e9\x7fb\r")
	x.until("<ab>")
	if code := x.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// sleeper is a shell command that sleeps, and says on stderr when it has begun to.
func sleeper(seconds string) string { return `sh -c 'echo be""gun >&2; exec sleep ` + seconds + `'` }

const begun = "begun"

func TestNothingThatWasPrintedBeforeTheEndIsLost(t *testing.T) {
	for i := range 20 {
		x := run(t, i%2 == 1, nil)
		x.send("seq 1 20000; exit 7\n")
		if code := x.end(); code != 7 {
			t.Fatalf("exit code %d", code)
		}
		want := "\n20000\n"
		if i%2 == 0 {
			want = "\r\n20000\r\n"
		}
		if got := x.text(); !strings.HasSuffix(strings.TrimSuffix(got, "exit\r\n"), want) {
			t.Fatalf("run %d ended with %q", i, got[max(0, len(got)-100):])
		}
	}
}

func TestBackgroundJobThatHoldsTheTerminalDoesNotDelayTheEnd(t *testing.T) {
	for _, pipes := range []bool{false, true} {
		x := run(t, pipes, func(c *Config) { c.Command = "trap '' HUP; sleep 97.93 & yes & echo last; exit 3" })
		if code := x.end(); code != 3 {
			t.Errorf("pipes %v: exit code %d", pipes, code)
		}
		if !strings.Contains(x.text(), "last") {
			t.Errorf("pipes %v: %q", pipes, x.text())
		}
		left := x.Survivors()
		if len(left) == 0 {
			t.Fatalf("pipes %v: nobody survived", pipes)
		}
		if err := x.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := x.Survivors(); len(left) > 0 {
			t.Errorf("pipes %v: %v are left", pipes, left)
		}
	}
}

// writerFunc is an io.Writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestBackgroundJobThatAlwaysHasMoreDoesNotDelayTheEnd(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	floods := make(chan struct{})
	var once sync.Once
	more := writerFunc(func(p []byte) (int, error) { // what was read is there again before anybody looks
		defer once.Do(func() { close(floods) })
		return w.Write(p)
	})
	p := newPump(r, more, &flow{taken: nobody}, pipeBuffer)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run()
	}()
	if _, err := w.Write(make([]byte, pipeBuffer)); err != nil {
		t.Fatal(err)
	}
	<-floods
	p.settle()
	<-ended
}

func TestProgramThatClosesItsDescriptorsMayOpenTheTerminalAgain(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	x := run(t, false, func(c *Config) {
		c.Command = "exec 0</dev/null 1>/dev/null 2>/dev/null; read < " + gate + "; echo again >/dev/tty; exit 4"
	})
	f, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the program reads it, with the terminal closed
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("go\n")
	f.Close()
	x.until("again\r\n")
	if code := x.end(); code != 4 {
		t.Errorf("exit code %d", code)
	}
}

func TestExitCodeOfASignal(t *testing.T) {
	for _, pipes := range []bool{false, true} {
		x := run(t, pipes, func(c *Config) { c.Command = "kill -KILL $$" })
		if code := x.end(); code != 137 {
			t.Errorf("pipes %v: %d", pipes, code)
		}
	}
}

func TestResize(t *testing.T) {
	x := run(t, false, func(c *Config) { c.Cols, c.Rows = 100, 30 })
	size := func(want string) {
		t.Helper()
		x.send("stty size; echo e''nd\r")
		if got := x.until("end\r\n"); !strings.HasSuffix(got, "\r"+want+"\r\n") {
			t.Errorf("size is %q, want %s", got, want)
		}
	}
	size("30 100")
	x.send("trap 'echo ch''anged' WINCH; echo s''et\r")
	x.until("set\r\n")
	if err := x.Resize(132, 43); err != nil {
		t.Fatal(err)
	}
	x.send(":\r") // a trap that was set off just before the prompt runs with the next command
	x.until("changed")
	size("43 132")
	for _, ignored := range [][2]int{{0, 0}, {0, 50}, {50, 0}} {
		if err := x.Resize(ignored[0], ignored[1]); err != nil {
			t.Errorf("%v: %v", ignored, err)
		}
	}
	var bad *RequestError
	for _, wrong := range [][2]int{{-1, 5}, {5, -1}, {65536, 5}, {5, 100000}} {
		if err := x.Resize(wrong[0], wrong[1]); !errors.As(err, &bad) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	size("43 132")
}

func TestSignalGoesToTheForegroundGroup(t *testing.T) {
	x := run(t, false, nil)
	for _, c := range []struct {
		sig  syscall.Signal
		code int
	}{{syscall.SIGINT, 130}, {syscall.SIGQUIT, 131}, {syscall.SIGTERM, 143}, {syscall.SIGUSR1, 138}} {
		x.send(sleeper("97.94") + " | cat\r")
		x.until(begun)
		if err := x.Signal(c.sig); err != nil {
			t.Fatal(err)
		}
		x.send("echo co''de ${PIPESTATUS[0]}\r")
		if x.until("code "); x.until("\r\n") != strconv.Itoa(c.code) {
			t.Errorf("%v: %q", c.sig, x.text())
		}
	}
	x.send(sleeper("97.95") + "\r")
	x.until(begun)
	if err := x.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	x.until("Stopped")
	x.send("kill %1; exit\rexit\r")
	x.end()
	if err := x.Signal(syscall.SIGINT); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("after the end: %v", err)
	}
	if err := x.Terminal.Write(t.Context(), []byte("x")); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("input after the end: %v", err)
	}
	if err := x.Resize(10, 10); err != nil {
		t.Errorf("resize after the end: %v", err)
	}
}

func TestSignalOnPipesGoesToTheProgramsGroup(t *testing.T) {
	x := run(t, true, nil)
	x.send("trap 'echo got' USR1; while :; do " + sleeper("97.96") + "; done\n")
	x.errs.until(begun)
	if err := x.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	x.until("got\n")
}

func TestPipesKeepStdoutAndStderrApart(t *testing.T) {
	x := run(t, true, nil)
	file := filepath.Join(t.TempDir(), "o")
	x.send("echo out; echo err >&2; [ -t 0 ] || echo none; head -c 300000 > " + file + "\n")
	x.send(strings.Repeat("z", 300_000) + "exit 5\n")
	if code := x.end(); code != 5 || x.text() != "out\nnone\n" || x.errs.text() != "err\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, x.text(), x.errs.text())
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 300_000 {
		t.Errorf("%v %v", info, err)
	}
}

func TestClosingEndsWhateverWasStarted(t *testing.T) {
	for _, pipes := range []bool{false, true} {
		x := run(t, pipes, nil)
		x.send("trap '' TERM\nnohup " + strings.Replace(sleeper("97.97"), "&2", "&3", 1) + " 3>&2 >/dev/null 2>&1 &\nsetsid " + sleeper("97.98") + " &\n(trap '' HUP; exec " + sleeper("97.99") + ") &\n")
		said := x.screen
		if pipes {
			said = x.errs
		}
		for range 3 {
			said.until(begun)
		}
		x.stop()
		if code := x.end(); code != 129 && code != 137 {
			t.Errorf("pipes %v: exit code %d", pipes, code)
		}
		if left := x.Survivors(); len(left) > 0 {
			t.Errorf("pipes %v: %v are left", pipes, left)
		}
	}
}

func TestProgramThatCannotBeStarted(t *testing.T) {
	r, c := config(t)
	c.Dir = filepath.Join(t.TempDir(), "gone")
	c.Stdout, c.Stderr = io.Discard, io.Discard
	x, err := r.Prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	if x.Failed() {
		t.Error("it has failed before it was tried")
	}
	if _, err := x.Run(t.Context()); !errors.Is(err, syscall.ENOENT) || !x.Failed() {
		t.Errorf("%v, failed %v", err, x.Failed())
	}
	if err := x.Signal(syscall.SIGINT); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal: %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	x, _ = r.Prepare(c)
	if _, err := x.Run(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped before the start: %v", err)
	}
}

func TestRequestsThatCannotBeServedAreRefused(t *testing.T) {
	r, good := config(t)
	var bad *RequestError
	for name, change := range map[string]func(*Config){
		"nul":  func(c *Config) { c.Command = "a\x00b" },
		"long": func(c *Config) { c.Command = strings.Repeat("x", 128<<10) },
		"cols": func(c *Config) { c.Cols = 65536 },
		"rows": func(c *Config) { c.Rows = -1 },
	} {
		c := good
		change(&c)
		if _, err := r.Prepare(c); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := new(Runner).Prepare(good); !errors.Is(err, ErrNoShell) {
		t.Errorf("without a shell: %v", err)
	}
}

func TestModeIsDecidedOnce(t *testing.T) {
	r, c := config(t)
	x, err := r.Prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	x.UsePipes(true)
	x.UsePipes(false)
	if !x.Pipes() {
		t.Error("the second call counted")
	}
}

func TestInputAndSizeBeforeTheStartWaitForIt(t *testing.T) {
	r, c := config(t)
	s := newScreen(t)
	c.Stdout = s
	x, err := r.Prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Write(t.Context(), []byte("stty size; exit 5\r")); err != nil {
		t.Fatal(err)
	}
	if err := x.Resize(99, 33); err != nil {
		t.Fatal(err)
	}
	status, err := x.Run(t.Context())
	if err != nil || status.Code != 5 || !strings.Contains(s.text(), "33 99\r\n") {
		t.Errorf("%v %+v %q", err, status, s.text())
	}
}

func TestEndOfInputBeforeTheStartWaitsForIt(t *testing.T) {
	for _, pipes := range []bool{true, false} {
		r, c := config(t)
		out := newScreen(t)
		c.Command, c.Stdout, c.Stderr = "cat; echo end", out, out
		x, err := r.Prepare(c)
		if err != nil {
			t.Fatal(err)
		}
		x.UsePipes(pipes)
		if err := x.Write(t.Context(), []byte("early\n")); err != nil {
			t.Fatal(err)
		}
		if err := x.EndInput(t.Context()); err != nil {
			t.Fatal(err)
		}
		status, err := x.Run(t.Context())
		out.finish()
		if err != nil || status.Code != 0 {
			t.Errorf("pipes %v: %+v, %v", pipes, status, err)
		}
		if out.until("early"); !strings.HasSuffix(strings.ReplaceAll(out.text(), "\r", ""), "early\nend\n") {
			t.Errorf("pipes %v: %q", pipes, out.text())
		}
	}
}

func TestTerminalBelongsToItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run this test as root: it starts a program as another user")
	}
	x := run(t, false, func(c *Config) {
		c.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		c.Dir = "/"
		c.Command = "id -u; stat -c 'owner %u' $(tty); echo x >$(tty)"
	})
	if code := x.end(); code != 0 || !slices.Contains(strings.Split(x.text(), "\r\n"), "owner 65534") {
		t.Errorf("%d %q", code, x.text())
	}
}
