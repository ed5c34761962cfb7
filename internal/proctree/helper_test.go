package proctree

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary play a daemon: its value says which.
const helperEnv = "PROCTREE_HELPER"

func TestMain(m *testing.M) {
	if role := os.Getenv(helperEnv); role != "" {
		runtime.LockOSThread()
		os.Unsetenv(helperEnv)
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := SealDescriptors(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func play(role string) error {
	switch role {
	case "block-and-exec": // what a parent with odd habits hands down
		var all unix.Sigset_t
		for i := range all.Val {
			all.Val[i] = ^all.Val[i]
		}
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
			return err
		}
		for _, sig := range []syscall.Signal{
			unix.SIGHUP, unix.SIGINT, unix.SIGPIPE, unix.SIGTSTP, unix.SIGTTOU, unix.SIGUSR1, unix.SIGCHLD, 33, 50,
		} {
			act := [64]byte{0: 1} // SIG_IGN
			if err := sigaction(sig, &act); err != nil {
				return err
			}
		}
		return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), helperEnv+"=signals"))
	case "signals":
		return playSignals()
	case "descriptors":
		return playDescriptors()
	case "die":
		return playDie()
	case "orphans":
		return playOrphans()
	case "user":
		return playUser()
	case "memory":
		return playMemory()
	case "hidden":
		return playHidden()
	}
	return fmt.Errorf("no role %q", role)
}

// playSignals prints what a child starts with.
func playSignals() error {
	if err := ResetSignals(); err != nil {
		return err
	}
	return onOther(func() error {
		t, err := Start(Spec{
			Path: "/bin/grep", Argv: []string{"grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"},
			Files: []*os.File{nil, os.Stdout, os.Stderr},
		})
		if err != nil {
			return err
		}
		<-t.Done()
		if c := t.Status().Code; c != 0 {
			return fmt.Errorf("grep: status %d", c)
		}
		// What was ignored must not hurt the daemon now either.
		for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGUSR1} {
			if err := unix.Kill(os.Getpid(), sig); err != nil {
				return err
			}
		}
		fmt.Println("alive")
		return nil
	})
}

// playDescriptors prints what descriptors a child has; this process was given one too many.
func playDescriptors() error {
	if err := SealDescriptors(); err != nil {
		return err
	}
	return onOther(func() error {
		t, err := Start(Spec{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "echo /proc/$$/fd/*"}, Files: []*os.File{nil, os.Stdout, os.Stderr},
		})
		if err != nil {
			return err
		}
		<-t.Done()
		fmt.Println(t.PID())
		return nil
	})
}

// playUser says what an unprivileged daemon may do.
func playUser() error {
	for _, id := range [][2]uint32{{65534, 65534}, {65534, 0}, {0, 0}} {
		got, err := Identify(id[0], &id[1])
		fmt.Println(got.Credential == nil, errors.Is(err, ErrMayNotSwitch))
	}
	return nil
}

// playHidden looks for leftovers where there is one process, of a daemon that /proc doesn't show, and prints how many it found.
func playHidden() error {
	here, err := ownMark()
	if err != nil {
		return err
	}
	here.timeNS++ // where nobody else is
	m := here
	m.pid = os.Getppid()
	if _, shown := readStat(m.pid, make([]byte, 1024)); shown {
		return errors.New("the parent isn't hidden: this shows nothing")
	}
	cmd := exec.Command("/bin/sleep", "98.1")
	cmd.Env = []string{DaemonEnv + "=" + m.String()}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	found, err := killLeftovers(context.Background(), here)
	fmt.Println(found)
	return err
}

// playMemory prints a child's oom_score_adj and its own.
func playMemory() error {
	score, err := ChildOOMScore()
	if err != nil {
		return err
	}
	return onOther(func() error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		t, err := Start(Spec{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "read x; cat /proc/self/oom_score_adj"},
			Env: []string{"PATH=/usr/bin:/bin"}, Files: []*os.File{r, os.Stdout, os.Stderr}, OOMScore: &score,
		})
		r.Close()
		w.Close() // now it looks
		if err != nil {
			return err
		}
		<-t.Done()
		own, err := os.ReadFile("/proc/self/oom_score_adj")
		fmt.Print(string(own))
		return err
	})
}

// playDie starts a child, says so, and waits for its own end.
func playDie() error {
	return onOther(func() error {
		_, err := Start(Spec{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "echo up; exec sleep 98.4"},
			Env: []string{"PATH=/usr/bin:/bin"}, Files: []*os.File{nil, os.Stdout},
		})
		if err != nil {
			return err
		}
		select {}
	})
}

// playOrphans runs 200 commands at once, each of which leaves an orphan, and reaps.
func playOrphans() error {
	const n = 200
	if err := Subreaper(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var orphans atomic.Int32
	result := make(chan error, 1)
	allReaped := make(chan struct{})
	go func() {
		result <- func() error {
			var wg sync.WaitGroup
			codes, errs := make([]int, n), make([]error, n)
			for i := range n {
				wg.Go(func() {
					t, err := Start(Spec{
						Path: "/bin/bash", Argv: []string{"bash", "-c", "(sleep 0.05 &) ; exit 7"},
						Env: []string{"PATH=/usr/bin:/bin"}, Files: make([]*os.File, 3),
					})
					if errs[i] = err; err != nil {
						return
					}
					<-t.Done()
					codes[i] = t.Status().Code
				})
			}
			wg.Wait()
			for i, c := range codes {
				if c != 7 {
					return fmt.Errorf("command %d: status %d, %v", i, c, errs[i])
				}
			}
			<-allReaped
			return noChildren()
		}()
		cancel()
	}()
	err := reapOrphans(ctx, func(int) {
		if orphans.Add(1) == n {
			close(allReaped)
		}
	})
	if err != nil {
		return err
	}
	if err := <-result; err != nil {
		return err
	}
	fmt.Printf("pid %d: %d × 7, %d orphans reaped\n", os.Getpid(), n, orphans.Load())
	return nil
}

// noChildren says an error if this process has a child left, zombies included.
func noChildren() error {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG|unix.WALL, nil)
	if err != unix.ECHILD {
		return fmt.Errorf("children left: %v", err)
	}
	return nil
}

// onOther runs f away from the main thread, as everything that forks must.
func onOther(f func() error) error {
	err := make(chan error)
	go func() { err <- f() }()
	return <-err
}

// daemon is the test binary playing role, wrapped in a command when there is one.
func daemon(t *testing.T, role string, wrap ...string) *exec.Cmd {
	t.Helper()
	argv := append(wrap, os.Args[0])
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// script is a running bash script and a pipe to its output.
type script struct {
	*Tree
	t   testing.TB
	out *bufio.Reader
}

// start runs text with a marker of its own. Whatever it leaves is killed at the end of the test.
func start(t testing.TB, text string, env ...string) *script {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Start(Spec{
		Path: "/bin/bash", Argv: []string{"bash", "-c", text},
		Env:    append([]string{"PATH=/usr/bin:/bin"}, env...),
		Files:  []*os.File{nil, w, w},
		Marker: marker(t),
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Kill(context.Background(), 0); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return &script{tree, t, bufio.NewReader(r)}
}

func marker(t testing.TB) string {
	return fmt.Sprintf("test-%d-%s", os.Getpid(), t.Name())
}

// line waits for a line of output.
func (s *script) line() string {
	s.t.Helper()
	l, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("output ended: %v", err)
	}
	return strings.TrimSuffix(l, "\n")
}

// rest waits until nobody holds the output pipe, and returns what was written.
func (s *script) rest() string {
	s.t.Helper()
	b, err := io.ReadAll(s.out)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

func (s *script) kill(grace int) {
	s.t.Helper()
	if err := s.Kill(s.t.Context(), ms(grace)); err != nil {
		s.t.Fatal(err)
	}
}
