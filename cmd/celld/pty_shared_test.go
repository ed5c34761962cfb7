package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
)

func TestTerminalLosesNothingOfItsLastOutput(t *testing.T) {
	d := start(t, launch{})
	for range 50 {
		c := d.attach(d.pty(), "")
		c.typed("seq 1 20000; exit 7\n")
		if code := c.exit(); code != 7 || !strings.Contains(c.text(), "\r\n20000\r\n") {
			t.Fatalf("exit code %d after %q", code, c.text()[max(0, len(c.text())-200):])
		}
		for _, x := range c.texts {
			if x.Type == "error" {
				t.Errorf("%+v", x)
			}
		}
	}
}

func TestTerminalReconnectedAtRandomGivesOneStream(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	gate := d.ws + "/gate"
	c := d.attach(id, "")
	c.typed("mkfifo " + gate + "; stty -echo; PS1=; i=0; until [ -e enough ]; do echo N$((++i)); sleep 0.002; done; echo la''st; read x <gate; echo en''d\n")
	c.until("N1\r\n")
	var whole strings.Builder
	whole.WriteString(c.text())
	for range 20 {
		c.grown(len(c.text()) + rand.IntN(500))
		c.close()
		at := c.offset()
		whole.Reset()
		whole.WriteString(c.text())
		next := d.attach(id, fmt.Sprintf("since=%d", at))
		if first := next.message("connected").Offset; first < at {
			t.Errorf("connected at %d, since was %d", first, at)
		}
		next.mu.Lock()
		if len(next.out) > 0 && next.from != at {
			t.Errorf("the replay begins at %d, since was %d", next.from, at)
		}
		next.from, next.out, next.seen = 0, append([]byte(whole.String()), next.out...), len(whole.String())
		next.mu.Unlock()
		c = next
	}
	d.command("touch enough")
	c.until("last\r\n")
	text := c.text()
	at := strings.Index(text, "N1\r\n") // after what was typed
	for i := 1; text[at:] != "last\r\n"; i++ {
		line := fmt.Sprintf("N%d\r\n", i)
		if !strings.HasPrefix(text[at:], line) {
			t.Fatalf("%.40q where %q belongs", text[at:], line)
		}
		at += len(line)
	}
	at = len(text)

	c.close()
	c = d.attach(id, fmt.Sprintf("since=%d", int64(1)<<60))
	if x := c.message("connected"); x.Offset != int64(at) || len(c.text()) > 0 {
		t.Errorf("since far in the future: connected at %d with %q, the end is at %d", x.Offset, c.text(), at)
	}
	d.command("echo >gate")
	c.until("end\r\n")
}

func TestTerminalReplaysTheNewestMebibyte(t *testing.T) {
	d := start(t, launch{})
	id := d.pty(m{"command": "stty -onlcr; seq -f %07g 0 400000; read x"})
	d.attach(id, "").close()
	const total, kept = 400_001 * 8, 1 << 20
	d.printed(id, total)
	for since, from := range map[int]int{0: total - kept, total - kept - 1: total - kept, total - kept + 1: total - kept + 1, total - 3: total - 3} {
		c := d.attach(id, fmt.Sprint("since=", since))
		if x := c.message("connected"); x.Offset != total {
			t.Errorf("since %d: connected at %d", since, x.Offset)
		}
		text := c.text()
		if int(c.from) != from || len(text) != total-from {
			t.Fatalf("since %d: %d bytes from %d, want from %d", since, len(text), c.from, from)
		}
		for at := (from + 7) / 8 * 8; at < total; at += 8 {
			if got, want := text[at-from:at-from+8], fmt.Sprintf("%07d\n", at/8); got != want {
				t.Fatalf("since %d: %q at %d, want %q", since, got, at, want)
			}
		}
		c.close()
	}
}

func TestTerminalTakeover(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	pid := func(c *tty) string {
		c.typed("echo p''id=$$.\r")
		c.until("\rpid=")
		return c.until(".")
	}
	a := d.attach(id, "")
	shell := pid(a)
	if _, resp, err := d.dial(id, "", nil); err == nil || resp.StatusCode != http.StatusConflict {
		t.Fatalf("a second one: %v %+v", err, resp)
	}
	d.refused(http.StatusConflict, http.MethodGet, "/pty/"+id+"/ws", nil)
	if status := d.call(http.MethodGet, "/pty/"+id+"/ws?takeover=1", nil, nil); status != http.StatusBadRequest {
		t.Errorf("a takeover that is no WebSocket: %d", status)
	}
	c := d.attach(id, "takeover=1")
	if code := a.ended(); code != 4001 {
		t.Errorf("who was taken over from was closed with %d", code)
	}
	for _, x := range a.texts {
		if x.Type == "exit" {
			t.Error("who was taken over from was told of an exit")
		}
	}
	a.close()
	if got := pid(c); got != shell {
		t.Errorf("pid %s, was %s", got, shell)
	}

	all := make([]*tty, 20)
	var work sync.WaitGroup
	for i := range all {
		work.Go(func() { all[i] = d.attach(id, "takeover=1") })
	}
	work.Wait()
	c.ended()
	over := make(chan *tty, len(all))
	for _, x := range all {
		go func() {
			<-x.done
			over <- x
		}()
	}
	left := slices.Clone(all)
	for len(left) > 1 { // all but one were taken over from
		x := <-over
		if code := x.ended(); code != 4001 {
			t.Errorf("closed with %d", code)
		}
		left = slices.DeleteFunc(left, func(y *tty) bool { return y == x })
	}
	winner := left[0]
	if got := pid(winner); got != shell {
		t.Errorf("pid %s, was %s", got, shell)
	}
	winner.typed("exit\r")
	winner.exit()
}

func TestTerminalViewersSeeEverythingAndCanDoNothing(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	early := d.attach(id, "mode=viewer")
	if x := early.message("connected"); x.Role != "viewer" {
		t.Errorf("%+v", x)
	}
	if s := d.ptyStatus(id); s.LaunchAttempted || s.Connected {
		t.Errorf("the viewer has started it: %+v", s)
	}
	c := d.attach(id, "")
	var viewers []*tty
	for range 20 {
		viewers = append(viewers, d.attach(id, "mode=viewer"))
	}
	viewers = append(viewers, early, d.attach(id, "mode=viewer&takeover=1"))
	for _, v := range viewers {
		v.typed("exit\r")
		for _, x := range []m{{"type": "stdin", "data": "exit\r"}, {"type": "resize", "cols": 5, "rows": 5}, {"type": "signal", "signal": "KILL"}} {
			v.say(x)
		}
		for range 4 {
			if x := v.message("error"); x.Code != "READ_ONLY" {
				t.Errorf("%+v", x)
			}
		}
		v.say(m{"type": "ping"})
		v.message("pong")
	}
	c.typed("stty size; seq 1 5000; exit 6\r")
	if code := c.exit(); code != 6 || !strings.Contains(c.text(), "\r24 80\r\n") {
		t.Errorf("exit code %d", code)
	}
	for _, v := range viewers {
		if code := v.exit(); code != 6 || v.text() != c.text() || v.from != 0 {
			t.Errorf("a viewer got exit code %d and %d bytes from %d, the holder %d bytes", code, len(v.text()), v.from, len(c.text()))
		}
	}
}

func TestTerminalKeepsRunningWithoutAnybody(t *testing.T) {
	d := start(t, launch{})
	id := d.pty(m{"command": "head -c 30000000 /dev/zero; read x; exit 8"})
	d.attach(id, "").close()
	d.printed(id, 30_000_000)
	c := d.attach(id, "since=30000000")
	c.message("connected")
	if len(c.text()) > 0 {
		t.Errorf("replayed %d bytes", len(c.text()))
	}
	c.typed("\r")
	if code := c.exit(); code != 8 {
		t.Errorf("exit code %d", code)
	}
}

func TestTerminalPauseHoldsTheProgramUntilResume(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	c := d.attach(id, "")
	c.typed("PS1='p'\">> \"\r")
	c.until("p>> ") // there will be nothing more
	before := c.offset()
	c.say(m{"type": "pause"})
	c.typed("seq 1 100000; echo o''ne\r") // less than is kept: who is slow misses nothing
	c.say(m{"type": "ping"})
	c.message("pong") // the pause is known
	for range 3 {
		d.command("true")
		if n := d.ptyStatus(id).OutputOffset - before; n > 64<<10 { // what was being read
			t.Errorf("the program has printed %d bytes while it was paused", n)
		}
	}
	c.say(m{"type": "ping"})
	c.message("pong")
	if n := c.offset() - before; n > 0 {
		t.Errorf("%d bytes came while it was paused", n)
	}
	c.say(m{"type": "resume"})
	c.until("\r\n100000\r\none\r\n")
	if n := strings.Count(c.text(), "\n"); n < 100_000 {
		t.Errorf("%d lines", n)
	}

	c.say(m{"type": "pause"})
	c.typed("seq 1 100000; echo t''wo\r")
	c.say(m{"type": "ping"})
	c.message("pong") // so that all of it has been taken
	c.close()         // who paused it is gone
	c = d.attach(id, "")
	c.until("\r\n100000\r\ntwo\r\n")
	c.say(m{"type": "pause"})
	c.typed("yes\r")
	if status := d.call(http.MethodDelete, "/pty/"+id, nil, nil); status != http.StatusOK {
		t.Errorf("deleted: %d", status)
	}
	c.message("exit")
	if code := c.ended(); code != websocket.CloseNormalClosure {
		t.Errorf("closed with %d", code)
	}
}

func TestTerminalDeletionEndsWhateverWasStarted(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	c := d.attach(id, "")
	sleeper := func(n string) string { return `sh -c 'echo be""gun >&3; exec sleep ` + n + `' 3>&2` }
	c.typed("set -m; " + sleeper("97.81") + " &\r" + sleeper("97.82") + "\r")
	c.until("begun\r\n")
	c.until("begun\r\n")
	c.typed("\x03")
	c.typed("echo a''live $(tty) $TERM; stty size\r")
	if got := c.until("24 80\r\n"); !strings.Contains(got, "alive /dev/pts/") || !strings.Contains(got, " xterm-256color\r\n") {
		t.Errorf("%q", got)
	}
	c.say(m{"type": "resize", "cols": 132, "rows": 43})
	c.typed("stty size\r")
	c.until("43 132\r\n")
	c.say(m{"type": "resize", "cols": 0, "rows": 0})
	c.typed("stty size\r")
	c.until("43 132\r\n")
	c.typed("nohup " + sleeper("97.83") + " >/dev/null 2>&1 &\r(trap '' HUP TERM; exec " + sleeper("97.84") + ") &\r")
	c.until("begun\r\n")
	c.until("begun\r\n")
	if strings.Contains(c.text(), "no job control") {
		t.Errorf("%q", c.text())
	}
	if status := d.call(http.MethodDelete, "/pty/"+id, nil, nil); status != http.StatusOK {
		t.Errorf("deleted: %d", status)
	}
	for _, n := range []string{"97.81", "97.82", "97.83", "97.84"} {
		if left := processesWith("sleep\x00" + n); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
	if x := c.message("exit"); x.ExitCode == nil || *x.ExitCode < 128 {
		t.Errorf("%+v", x)
	}
	if code := c.ended(); code != websocket.CloseNormalClosure {
		t.Errorf("closed with %d", code)
	}
}

func TestTerminalIsUsableWithAStuckPaste(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	c := d.attach(id, "")
	line := strings.Repeat("a", 99) + "\n"
	c.typed("stty -echo; echo ra''w; head -c 200000 | wc -c; stty echo\r")
	c.until("raw\r\n")
	c.typed(strings.Repeat(line, 2000))
	c.until("200000\r\n")
	c.typed("sh -c 'echo be\"\"gun; exec sleep 97.85'\r")
	c.until("begun\r\n")
	c.typed(strings.Repeat(line, 3000))
	c.say(m{"type": "ping"})
	c.message("pong")
	c.say(m{"type": "resize", "cols": 70, "rows": 20})
	c.say(m{"type": "signal", "signal": "SIGINT"})
	c.typed("stty size; echo $((40+2))\r")
	if got := c.until("42\r\n"); !strings.Contains(got, "20 70\r\n") {
		t.Errorf("%.2000q", got)
	}

	// A flood, far more than is kept.
	c.typed("sh -c 'echo be\"\"gun; exec sleep 97.86'\r")
	c.until("begun\r\n")
	c.typed(strings.Repeat(line, 100_000))
	if x := c.message("error"); x.Code != "INPUT_FULL" {
		t.Errorf("%+v", x)
	}
	c.typed(strings.Repeat(line, 100_000))
	c.say(m{"type": "ping"})
	c.message("pong")
	if status := d.call(http.MethodDelete, "/pty/"+id, nil, nil); status != http.StatusOK {
		t.Errorf("deleted: %d", status)
	}
}

func TestTerminalsFloodedBothWays(t *testing.T) {
	d := start(t, launch{})
	// Who is held up for half a second while more than half a MiB waits for him may lose some of it, so that the program
	// waits for him after less.
	const rounds, size = 30, 450_000
	var work sync.WaitGroup
	for range 4 {
		c := d.attach(d.pty(m{"command": fmt.Sprintf("stty -echo; for i in {1..%d}; do yes | head -c %d; read x; done; exit 9", rounds, size/3*2)}), "")
		work.Go(func() {
			round := 0
			goOn := func() {
				c.typed("\r")
				round++
			}
			pongs := make(chan string, 2000)
			c.conn.SetPongHandler(func(text string) error { pongs <- text; return nil })
			for i := range 2000 {
				c.say(m{"type": "ping"})
				c.say(m{"type": "resize", "cols": 80 + i%50, "rows": 24})
				if err := c.conn.WriteMessage(websocket.PingMessage, []byte(fmt.Sprint(i))); err != nil {
					t.Error(err)
					return
				}
				if round < rounds && c.offset() >= int64(round+1)*size {
					goOn()
				}
			}
			for i := range 2000 {
				c.message("pong")
				if got := <-pongs; got != fmt.Sprint(i) {
					t.Errorf("pong %q, want %d", got, i)
				}
				if i%100 > 0 {
					continue
				}
				if status := d.call(http.MethodGet, "/ping", nil, nil); status != http.StatusOK {
					t.Errorf("/ping: %d", status)
				}
			}
			for round < rounds {
				c.grown((round + 1) * size)
				goOn()
			}
			if code := c.exit(); code != 9 {
				t.Errorf("exit code %d", code)
			}
			if n := strings.Count(c.text(), "y\r\n"); n != rounds*size/3 || len(c.text()) != rounds*size {
				t.Errorf("%d lines in %d bytes", n, len(c.text()))
			}
		})
	}
	work.Wait()
}

func TestTerminalOfAClientThatDoesNotReadGoesOn(t *testing.T) {
	d := start(t, launch{})
	id := d.pty()
	const flood = 12_000_000
	d.netDial = narrowDialer.DialContext
	slow := d.connect(id, "") // nobody reads
	all := []*tty{slow}
	for range 10 {
		all = append(all, d.connect(id, "mode=viewer"))
	}
	d.netDial = nil
	slow.typed(fmt.Sprintf("stty -echo; yes | head -c %d\r", flood/3*2))
	other := d.attach(d.pty(), "")
	before := d.memory()
	other.typed("echo $((40+2))\r")
	other.until("42\r\n")
	for d.ptyStatus(id).OutputOffset < flood {
		other.typed("echo $((40+2))\r")
		other.until("42\r\n")
	}
	if now := d.memory(); now-before > 64<<20 {
		t.Errorf("%d bytes of memory, before it was %d", now, before)
	}
	for _, c := range all {
		c.start()
		c.message("error")
		if code := c.ended(); code != 4002 {
			t.Errorf("closed with %d", code)
		}
	}
	at := slow.offset()
	slow = d.attach(id, fmt.Sprintf("since=%d", at))
	slow.typed("echo $((40+2)); exit 5\r")
	slow.until("42\r\n")
	if code := slow.exit(); code != 5 || slow.from <= at {
		t.Errorf("exit code %d, replayed from %d after %d", code, slow.from, at)
	}
}

// memory is what the daemon holds, in bytes.
func (d *daemon) memory() int {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		d.t.Fatal(err)
	}
	return kib << 10
}
