package shellrun

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var errStopped = errors.New("stopped")

func TestCommandIsOverWhenItsShellIs(t *testing.T) {
	tt := newCommandTest(t)
	for _, c := range []struct {
		text, out string
		code      int
		left      int
	}{
		{"sleep 97.3 & echo started", "started\n", 0, 1},
		{"(setsid sleep 97.4 &) ; echo two; exit 3", "two\n", 3, 1},
		{"nohup sleep 97.5 >/dev/null 2>&1 & exit 1", "", 1, 1},
		{"env -i /bin/sleep 97.6 & sleep 97.6 & kill -9 $$", "", 137, 2},
	} {
		s := tt.sh(c.text).want(c.out, c.code)
		if left := s.Survivors(); len(left) != c.left {
			t.Errorf("%s: survivors %v", c.text, left)
		}
		if strings.Contains(c.text, "nohup") {
			for _, pump := range s.pumps {
				<-pump.done // it has turned away from the output, or is about to
			}
		} else if !s.Lingers() {
			t.Errorf("%s: doesn't linger", c.text)
		}
		if err := s.Kill(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
		s.gone()
	}
}

func TestCommandOutputBeforeTheEndIsNotLost(t *testing.T) {
	tt := newCommandTest(t)
	for range 20 {
		s := tt.sh(`sleep 97.7 & head -c 60000 /dev/zero; head -c 50000 /dev/zero >&2`)
		if out, errs := len(s.out.String()), len(s.errs.String()); out != 60000 || errs != 50000 {
			t.Errorf("%d and %d bytes", out, errs)
		}
		if err := s.Kill(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}

func TestCommandEndsWhileASurvivorWritesWithoutPause(t *testing.T) {
	tt := newCommandTest(t)
	out, errs, late := sink{most: 1 << 20}, sink{most: 1 << 20}, sink{most: 1 << 20}
	s := tt.run(Command{Text: "yes & yes >&2 & exit 5", Stdout: &out, Stderr: &errs, Late: &late})
	if s.status.Code != 5 {
		t.Errorf("status %d", s.status.Code)
	}
	late.await("y\ny\n")
	if err := s.Kill(t.Context(), 0); err != nil {
		t.Error(err)
	}
	s.gone()
}

func TestCommandSurvivorWritesOn(t *testing.T) {
	tt := newCommandTest(t)
	fifo := tt.fifo()
	s := tt.run(Command{Text: `(read x <$FIFO; echo late; echo 'late err' >&2; echo still here) & echo now`, Env: map[string]string{"FIFO": fifo}})
	s.want("now\n", 0)
	tt.release(fifo)
	for _, p := range s.pumps {
		<-p.done
	}
	for _, line := range []string{"late\n", "late err\n", "still here\n"} {
		if !strings.Contains(s.late.String(), line) {
			t.Errorf("late output %q", s.late.String())
		}
	}
	s.want("now\n", 0)
}

// TestCommandStopEndsTheTree: each text says "up" when all of it runs.
func TestCommandStopEndsTheTree(t *testing.T) {
	for text, code := range map[string]int{
		`bash -c 'echo up; exec sleep 97.1' | cat`:                                       143,
		`(echo up; sleep 97.2)`:                                                          143,
		`sleep 97.21 & echo up; wait`:                                                    143,
		`trap '' TERM INT; echo up; while :; do sleep 0.2; done`:                         137,
		`bash -c 'echo up; sleep 97.22; true'`:                                           143,
		`trap 'exit 9' TERM; sleep 97.23 & echo up; wait`:                                9,
		`trap 'exit 0' TERM; sleep 97.23 & echo up; wait`:                                0,
		`bash -c 'sleep 97.7 & sleep 97.71' & (echo up; exec sleep 97.72) | cat; wait`:   143,
		`trap '' TERM; (setsid bash -c 'trap "" TERM; echo up; sleep 97.8; :'); :`:       137,
		`cat <(echo up; exec sleep 97.9); :`:                                             143,
		`echo up; while :; do echo x; done`:                                              143,
		`echo up; exec 1>&- 2>&-; sleep 97.91; :`:                                        143,
		`f() { f & sleep 97.92; }; ulimit -u 5000; echo up; f`:                           143,
		`bash -c 'echo up; kill -STOP $$; :'; :`:                                         143,
		`setsid bash -c 'setsid bash -c "echo up; sleep 97.94 & wait" & wait' & wait; :`: 143,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			tt := newCommandTest(t)
			if code == 137 {
				tt.Grace = func(error) time.Duration { return 10 * time.Millisecond }
			}
			s := tt.begin(Command{Text: text})
			s.out.await("up\n")
			s.stop(errStopped)
			s.end().gone()
			if s.status.Code != code {
				t.Errorf("status %+v, want %d", s.status, code)
			}
		})
	}
}

func TestCommandStoppedBeforeOrAtItsStart(t *testing.T) {
	tt := newCommandTest(t)
	for range 100 {
		s := tt.begin(Command{Text: "sleep 97.8; echo no"})
		s.stop(errStopped)
		<-s.over
		if s.err != nil && !errors.Is(s.err, errStopped) || s.err == nil && s.status.Code != 143 {
			t.Errorf("error %v, status %d", s.err, s.status.Code)
		}
		s.gone()
	}
}

func TestCommandGraceDependsOnTheCause(t *testing.T) {
	tt := newCommandTest(t)
	var asked error
	tt.Grace = func(cause error) time.Duration { asked = cause; return 0 }
	s := tt.begin(Command{Text: "trap 'echo no; exit 0' TERM; sleep 97.95 & echo up; wait"})
	s.out.await("up\n")
	s.stop(errStopped)
	s.end().want("up\n", 137)
	if !errors.Is(asked, errStopped) {
		t.Errorf("asked with %v", asked)
	}
}

func TestCommandSignal(t *testing.T) {
	tt := newCommandTest(t)
	s := tt.begin(Command{Text: `trap 'echo usr1; exit 3' USR1; sleep 97.96 >/dev/null 2>&1 & echo up; wait`})
	s.out.await("up\n")
	if pid := s.PID(); unix.Kill(pid, 0) != nil {
		t.Errorf("no process %d", pid)
	}
	if err := s.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	s.end().want("up\nusr1\n", 3)
	if err := s.Signal(syscall.SIGUSR1); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	p, err := tt.Prepare(Command{Text: "true"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGUSR1); !errors.Is(err, os.ErrProcessDone) || p.PID() != 0 || p.Survivors() != nil || p.Lingers() || p.Kill(t.Context(), 0) != nil {
		t.Errorf("before the start: %v", err)
	}
}

func TestCommandKillOfAFinishedOneIsTheSameEachTime(t *testing.T) {
	tt := newCommandTest(t)
	s := tt.sh("exit 7")
	for range 3 {
		if err := s.Kill(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
		s.want("", 7).gone()
	}
}

func TestCommandRlimits(t *testing.T) {
	tt := newCommandTest(t)
	show := "ulimit -t; ulimit -v; ulimit -n; ulimit -u; ulimit -f"
	s := tt.run(Command{Text: show, Rlimits: map[string]int64{
		"cpu_s": 7, "memory_bytes": 1 << 30, "nofile": 77, "nproc": 777, "fsize_bytes": 1 << 20,
	}})
	s.want("7\n1048576\n77\n777\n1024\n", 0)
	tt.run(Command{Text: "while :; do :; done", Rlimits: map[string]int64{"cpu_s": 1}}).want("", 152)
	tt.run(Command{Text: "head -c 3000 /dev/zero >f; wc -c <f", Rlimits: map[string]int64{"fsize_bytes": 2048}}).want("2048\n", 0)
	s = tt.run(Command{Argv: []string{"python3", "-c", "x='y'*(1<<30)"}, Rlimits: map[string]int64{"memory_bytes": 512 << 20}}).want("", 1)
	if errs := s.errs.String(); !strings.Contains(errs, "MemoryError") {
		t.Errorf("stderr %q", errs)
	}
	tt.run(Command{Argv: []string{"nosuchcmd_xyz"}, Rlimits: map[string]int64{"nofile": 50}}).want("", 127)
	huge := tt.run(Command{Text: "ulimit -Hn", Rlimits: map[string]int64{"nofile": 1 << 62}})
	if own := tt.sh("ulimit -Hn").out.String(); huge.out.String() != own {
		t.Errorf("limit %s, celld's own is %s", huge.out.String(), own)
	}
}

// TestCommandOutputIsExact: whatever the program writes, in whatever pieces it comes.
func TestCommandOutputIsExact(t *testing.T) {
	tt := newCommandTest(t)
	rapid.Check(t, func(rt *rapid.T) {
		data := make([]byte, rapid.IntRange(0, 300_000).Draw(rt, "size"))
		rng := rand.NewChaCha8([32]byte{byte(len(data))})
		rng.Read(data)
		piece := rapid.IntRange(1, 70_000).Draw(rt, "piece")
		s := tt.begin(Command{Text: "tee /dev/stderr", StdinOpen: true})
		for rest := data; ; {
			n := min(len(rest), 1+int(rng.Uint64()%uint64(piece)))
			if err := s.Prepared.Stdin(context.Background(), rest[:n], n == len(rest)); err != nil {
				rt.Fatal(err)
			}
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
		s.end()
		if s.out.String() != string(data) || s.errs.String() != string(data) {
			rt.Errorf("%d bytes in: %d and %d out", len(data), len(s.out.String()), len(s.errs.String()))
		}
	})
}

// TestCommandsLeaveNothing runs many at once and looks for what they leave: descriptors, children, goroutines (by
// TestMain).
func TestCommandsLeaveNothing(t *testing.T) {
	before := descriptors(t)
	t.Run("all", func(t *testing.T) {
		tt := newCommandTest(t)
		in := seq(30000)
		var wg sync.WaitGroup
		for i := range 200 {
			c := Command{ID: "many-" + string(rune('a'+i%26)), Text: "echo hi; exit 7"}
			if i%4 == 0 {
				c.Stdin, c.Text = &in, "head -n 1 >/dev/null; echo hi; exit 7"
			}
			var out, errs sink
			c.Stdout, c.Stderr = &out, &errs
			p, err := tt.Prepare(c)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				status, err := p.Run(t.Context())
				if err != nil || status.Code != 7 || out.String() != "hi\n" || errs.String() != "" {
					t.Errorf("command %d: %v, status %d, %q, %q", i, err, status.Code, out.String(), errs.String())
				}
				for _, pump := range p.pumps {
					<-pump.done
				}
				if p.input != nil {
					<-p.input.fed // it is told that nobody reads
				}
			})
		}
		wg.Wait()
	})
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		t.Errorf("children left: %v", err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

func TestCommandIdleNeedsLittleMemory(t *testing.T) {
	const n, most = 300, 64 << 10 * raceFactor
	tt := newCommandTest(t)
	memory := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	tt.sh("true")
	before := memory()
	var all []*started
	for range n {
		s := tt.begin(Command{Text: "echo up; exec sleep 98.34"})
		s.out.await("up\n")
		all = append(all, s)
	}
	if each := (memory() - before) / n; each > most {
		t.Errorf("%d bytes for each idle command", each)
	} else {
		t.Logf("%d bytes for each idle command", each)
	}
	for _, s := range all {
		s.stop(errStopped)
	}
}
