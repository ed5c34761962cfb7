package shellrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// beacon is a writer that cancels a run's context when a text has been written.
type beacon struct {
	lateLog
	text string
	hit  func()
}

func (b *beacon) Write(p []byte) (int, error) {
	n, err := b.lateLog.Write(p)
	if b.hit != nil && strings.Contains(b.String(), b.text) {
		b.hit()
		b.hit = nil
	}
	return n, err
}

// marked says which processes carry id as their marker.
func marked(t testing.TB, id string) []int {
	t.Helper()
	table, err := proctree.Look()
	if err != nil {
		t.Fatal(err)
	}
	return table.Marked(0, func(m string) bool { return m == id })
}

func TestSessionInterruptKeepsTheShell(t *testing.T) {
	h := testSessions(t)
	fifo := t.TempDir() + "/fifo"
	for _, c := range []struct {
		text string
		code int
	}{
		{"echo go; sleep 97.6", 130},
		{"echo go; sleep 97.6 | cat", 130},
		{"echo go; (sleep 97.2)", 130},
		{"echo go; sleep 97.21 & wait", 130},
		{"echo go; while :; do :; done", 130},
		{"echo go; for ((;;)); do ((i++)); done", 130},
		{"echo go; until [[ a == b ]]; do x=1; done", 130},
		{"echo go; f() { g; echo no; }; g() { while :; do :; done; }; f; echo no", 130},
		{"echo go; eval 'while :; do :; done'; echo no", 130},
		{"echo go; while :; do sleep 0.2; done", 130},
		{"trap '' INT TERM; echo go; while :; do sleep 0.2; done", 130},
		{"trap '' TERM INT; echo go; sleep 97.3", 130},
		{"echo go; bash -c 'trap \"\" TERM; while :; do sleep 0.2; done'", 130},
		{"echo go; bash -c 'sleep 97.22; true'", 130},
		{"echo go; x=$(while :; do :; done); echo no", 130},
		{"echo go; while :; do (:); done", 130},
		{"echo go; setsid sleep 97.4", 130},
		{"echo go; env -i sleep 97.41", 130},
		{"echo go; (sleep 97.42 &) ; (setsid sleep 97.43 &) ; sleep 97.44", 130},
		{"mkfifo " + fifo + "; echo go; read x <>" + fifo, 130},
		{"echo go; read x <" + fifo, 130},
		{"trap 'echo dbg' DEBUG; echo go; while :; do :; done", 130},
		{"set -x; echo go; while :; do :; done", 130},
		{"set -e; echo go; while :; do :; done", 130},
		{"set -m; echo go; sleep 97.5", 130},
		{"shopt -s extdebug; echo go; while :; do :; done", 130},
		{"trap 'echo err' ERR; echo go; sleep 97.51", 130},
		{"coproc cat; echo go; wait", 130},
		{"echo go; select x in a b; do :; done <>" + fifo, 130},
		{"echo go; kill -STOP $$", 130},
	} {
		t.Run(clip(c.text), func(t *testing.T) {
			s := open(t, h)
			s.run("K=7; cd /usr")
			pid := s.Info().PID
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			out := &beacon{text: "go", hit: func() { cancel(errors.New("enough")) }}
			id := nonce()
			start := time.Now()
			res, err := s.try(ctx, c.text, func(r *SessionRun) { r.ID, r.Stdout = id, out })
			if err != nil || res.Code != c.code || res.Ended || !res.Broken || strings.Contains(out.String(), "no") {
				t.Errorf("%v, output %q, error %v, after %v", res, clip(out.String()), err, time.Since(start))
			}
			if left := marked(t, id); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			if got := s.Info().PID; got != pid {
				t.Errorf("the shell was %d and is %d", pid, got)
			}
			s.run("trap - DEBUG ERR; set +xem; shopt -u extdebug")
			s.want("echo $K $PWD $-; trap -p DEBUG", "7 /usr hB\n", 0)
		})
	}
}

func TestSessionInterruptReplacesABlockedShell(t *testing.T) {
	for _, c := range []struct {
		text string
		code int
	}{
		// Once the shell has used a tenth of a second more, it is inside the expansion.
		{`a=$(printf %0400000d 0)
ticks() { read -a stat </proc/$$/stat; ((ticks = stat[13] + stat[14])); }
(ticks; ((until = ticks + 10)); while ticks; ((ticks < until)); do :; done; echo go >&3) & : "${a//0/ab}"`, 137},
		{"exec sh -c 'echo go; sleep 98.1'", 143},
		{"trap '' TERM; exec bash -c 'echo go; while :; do sleep 0.1; done'", 137},
		{"trap - 62; echo go; while :; do :; done", 143},
		{"trap - 62; trap '' TERM; echo go; while :; do :; done", 137},
	} {
		t.Run(clip(c.text), func(t *testing.T) {
			dir, h := t.TempDir(), testSessions(t)
			h.patience.unwinds = 3
			if c.code == 143 {
				h.patience.stop = time.Minute // whoever obeys ends before
			}
			s := open(t, h, func(c *SessionConfig) { c.Dir = dir })
			s.run("K=7")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			out := &beacon{text: "go", hit: func() { cancel(errors.New("enough")) }}
			res, err := s.try(ctx, "exec 3>&1\n"+c.text, func(r *SessionRun) { r.Stdout = out })
			if err != nil || res.Code != c.code || !res.Ended || !res.Broken {
				t.Errorf("%v, error %v", res, err)
			}
			if fmt.Sprint(res.notes) != "[session_replaced]" {
				t.Errorf("notes %q", res.notes)
			}
			s.want("echo $K", "7\n", 0)
		})
	}
}

func TestSessionInterruptLeavesEarlierJobsAlone(t *testing.T) {
	s := open(t, testSessions(t))
	pids := strings.Fields(s.run("sleep 97.9 & echo $!; (while :; do sleep 0.01; done) & echo $!; (sleep 97.91 & echo $!)").out)
	ctx, cancel := context.WithCancelCause(t.Context())
	out := &beacon{text: "go", hit: func() { cancel(errors.New("enough")) }}
	if res, err := s.try(ctx, "sleep 97.92 & echo go; sleep 97.93", func(r *SessionRun) { r.Stdout = out }); err != nil || res.Code != 130 {
		t.Errorf("%v, %v", res, err)
	}
	for _, pid := range pids {
		s.want("kill -0 "+pid+" && echo lives", "lives\n", 0)
	}
	s.want("kill -0 %1 && kill -0 %2 && jobs -r %3", "", 1)
	s.want("kill %1 %2; wait", "", 0)
}

func TestSessionInterruptAtAnyMomentMeetsNoOtherRun(t *testing.T) {
	s := open(t, testSessions(t))
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*7)*time.Microsecond)
		res, err := s.try(ctx, "while :; do :; done")
		cancel()
		if err == nil && (res.Ended || res.Code != 130) {
			t.Fatalf("round %d: %v", i, res)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		s.want("echo $-", "hB\n", 0)
	}
}

func TestSessionInterruptOfShortRuns(t *testing.T) {
	s := open(t, testSessions(t))
	s.run("n=0")
	done := 0
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond*3)
		res, err := s.try(ctx, "n=$((n+1))")
		cancel()
		switch {
		case err != nil:
		case res.Ended:
			t.Fatalf("round %d: %v", i, res)
		case res.Code == 0:
			done++
		}
	}
	var n int
	fmt.Sscan(s.run("echo $n").out, &n)
	if n < done {
		t.Errorf("%d runs said they were done, %d were", done, n)
	}
}

// TestSessionInterruptWaitsForAShellThatDoesNotGetToRun: what the machine is too busy for is no fault of the shell's.
func TestSessionInterruptWaitsForAShellThatDoesNotGetToRun(t *testing.T) {
	h := testSessions(t)
	h.patience.unwind, h.patience.unwinds, h.patience.holds = time.Millisecond, 1, 1<<30
	s := open(t, h)
	s.run("K=7")
	pid := s.Info().PID
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	held := make(chan error, 1)
	out := &beacon{text: "go", hit: func() {
		let := make(chan struct{})
		stopped := make(chan error, 1)
		go func() { // all by one thread (ptrace(2))
			runtime.LockOSThread()
			err := errors.Join(unix.PtraceSeize(pid), unix.PtraceInterrupt(pid))
			if err == nil {
				_, err = unix.Wait4(pid, nil, unix.WALL, nil)
			}
			stopped <- err
			<-let
			unix.PtraceDetach(pid) // an error, if it is dead
		}()
		err := <-stopped
		cancel(errors.New("enough"))
		go func() {
			defer close(let)
			for n := 0; err == nil && n < 1000; { // far more than a millisecond
				var status []byte
				status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
				if err == nil && !bytes.Contains(status, []byte("\nState:\tt ")) {
					err = fmt.Errorf("it was killed: %s", status)
				}
				if bytes.Contains(status, []byte("\nShdPnd:\t2")) { // the signal waits to be taken
					n++
				}
			}
			held <- err
		}()
	}}
	if _, err := s.try(ctx, "echo go; while :; do :; done", func(r *SessionRun) { r.Stdout = out }); err != nil {
		t.Error(err)
	}
	if err := <-held; err != nil {
		t.Error(err)
	}
}
