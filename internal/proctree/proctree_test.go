package proctree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStatusIsWhatTheShellWouldSay(t *testing.T) {
	for text, want := range map[string]Status{
		"exit 0":        {Code: 0},
		"exit 255":      {Code: 255},
		"exit 256":      {Code: 0},
		"(exit 137)":    {Code: 137},
		"kill -9 $$":    {Code: 137, Signal: unix.SIGKILL},
		"kill -TERM $$": {Code: 143, Signal: unix.SIGTERM},
		"nosuchcmd_xyz": {Code: 127},
		"/etc/passwd":   {Code: 126},
	} {
		s := start(t, text)
		<-s.Done()
		if got := s.Status(); got.Code != want.Code || got.Signal != want.Signal {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestStatusHasResourceUsage(t *testing.T) {
	s := start(t, "i=0; while ((i++ < 50000)); do :; done")
	<-s.Done()
	st := s.Status()
	if st.UserTime <= 0 || st.MaxRSS < 1<<20 {
		t.Errorf("usage %+v", st)
	}
}

func TestStartErrorsCanBeTested(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Spec
		want error
		op   string
	}{
		{Spec{Path: "/no/such"}, unix.ENOENT, "exec"},
		{Spec{Path: file}, unix.EACCES, "exec"},
		{Spec{Path: "/bin/true", Dir: "/no/such"}, unix.ENOENT, "chdir"},
		{Spec{Path: "/bin/true", Dir: file}, unix.ENOTDIR, "chdir"},
		{Spec{Path: "/bin/true", Argv: []string{"true", strings.Repeat("x", 1<<18)}}, unix.E2BIG, "exec"},
	} {
		_, err := Start(c.spec)
		var pe *os.PathError
		if !errors.Is(err, c.want) || !errors.As(err, &pe) || pe.Op != c.op {
			t.Errorf("%s in %q: %v, want %s: %v", c.spec.Path, c.spec.Dir, err, c.op, c.want)
		}
	}
}

func TestChildLeadsItsSessionAndGroup(t *testing.T) {
	s := start(t, `read -r pid comm state ppid pgrp sid rest </proc/self/stat; echo $pid $pgrp $sid`)
	f := strings.Fields(s.line())
	if f[0] != f[1] || f[0] != f[2] {
		t.Errorf("pid, group, session: %v", f)
	}
}

func TestChildSeesOnlyGivenDescriptorsAndEnvironment(t *testing.T) {
	s := start(t, `ls /proc/$$/fd; tr '\0' '\n' </proc/$$/environ; read x; echo "got [$x]"`, MarkerEnv+"=forged", "A=1")
	want := "0\n1\n2\nPATH=/usr/bin:/bin\nA=1\n" + MarkerEnv + "=" + marker(t) + "\ngot []\n"
	if got := s.rest(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCredentialIsTaken(t *testing.T) {
	if os.Getuid() != 0 {
		_, err := Start(Spec{Path: "/bin/true", Credential: &syscall.Credential{Uid: 0, Gid: 0}})
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("switch to root: %v", err)
		}
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tree, err := Start(Spec{
		Path: "/bin/sh", Argv: []string{"sh", "-c", "id -u; id -g; id -G"}, Env: []string{"PATH=/usr/bin:/bin"},
		Files:      []*os.File{nil, w, w},
		Credential: &syscall.Credential{Uid: 65534, Gid: 12, Groups: []uint32{12, 34}},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	<-tree.Done()
	s := &script{tree, t, bufio.NewReader(r)}
	if got := s.rest(); got != "65534\n12\n12 34\n" {
		t.Errorf("got %q", got)
	}
}

func TestSignalAfterTheEndIsRefused(t *testing.T) {
	s := start(t, "echo up; exec sleep 98.2")
	s.line()
	if err := s.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if st := s.Status(); st.Signal != unix.SIGUSR1 || st.Code != 138 {
		t.Errorf("status %+v", st)
	}
	for _, err := range []error{s.Signal(unix.SIGTERM), s.SignalGroup(unix.SIGTERM)} {
		if !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal after the end: %v", err)
		}
	}
}

func TestSignalGroupReachesChildren(t *testing.T) {
	s := start(t, `trap 'echo outer' USR1; (trap 'echo inner; exit' USR1; sleep 98.1 >/dev/null 2>&1 & echo up; wait); echo end`)
	s.line()
	if err := s.SignalGroup(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := s.rest(); !strings.Contains(got, "inner") || !strings.Contains(got, "outer") {
		t.Errorf("got %q", got)
	}
}

func TestFirstFileBecomesTheTerminal(t *testing.T) {
	master, slave := openPTY(t)
	tree, err := Start(Spec{
		Path: "/bin/sh", Argv: []string{"sh", "-c", "tty; echo live </dev/tty >/dev/tty"}, Env: []string{"PATH=/usr/bin:/bin"},
		Files: []*os.File{slave, slave, slave}, TTY: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(master)
	for _, want := range []string{slave.Name() + "\r\n", "live\r\n"} {
		if got, err := out.ReadString('\n'); got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	<-tree.Done()
}

// openPTY opens a pseudoterminal (pts(4)).
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func TestWithoutPidfdTheStatusStillArrives(t *testing.T) {
	tree := &Tree{done: make(chan struct{})}
	pid, err := fork("/bin/sh", []string{"sh", "-c", "exit 9"}, &syscall.ProcAttr{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tree.pid = pid
	tree.wait(-1)
	<-tree.Done()
	if c := tree.Status().Code; c != 9 {
		t.Errorf("status %d", c)
	}
}

func TestChildrenDieWithTheDaemon(t *testing.T) {
	cmd := daemon(t, "die")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	out := bufio.NewReader(r)
	if l, err := out.ReadString('\n'); l != "up\n" {
		t.Fatalf("got %q, %v", l, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if _, err := out.ReadByte(); err != io.EOF { // comes once the child has gone too
		t.Errorf("after the daemon's end: %v", err)
	}
}

func TestInheritedDescriptorsStopAtTheDaemon(t *testing.T) {
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := daemon(t, "descriptors")
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list, pid, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	dir := "/proc/" + pid + "/fd/"
	if want := dir + "0 " + dir + "1 " + dir + "2"; list != want+" "+dir+"3" && list != want { // 3: the directory itself
		t.Errorf("descriptors %s", list)
	}
}

func TestChildrenStartWithDefaultSignals(t *testing.T) {
	out, err := daemon(t, "block-and-exec").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const none = "\t0000000000000000\n"
	want := "SigBlk:" + none + "SigIgn:" + none + "alive\n"
	if string(out) != want {
		t.Errorf("a child starts with\n%swant\n%s", out, want)
	}
}

func TestOrphansAreReapedAndNoStatusIsStolen(t *testing.T) {
	for name, wrap := range map[string][]string{
		"as subreaper": nil,
		"as process 1": {"unshare", "-pf", "--mount-proc"},
	} {
		t.Run(name, func(t *testing.T) {
			if wrap != nil && os.Getuid() != 0 {
				wrap = append(wrap, "-Ur")
			}
			out, err := daemon(t, "orphans", wrap...).Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := string(out); !strings.HasSuffix(got, "200 × 7, 200 orphans reaped\n") ||
				wrap != nil && !strings.HasPrefix(got, "pid 1:") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestAnUnprivilegedDaemonStaysWhoItIs(t *testing.T) {
	cmd := daemon(t, "user")
	if os.Getuid() != 0 {
		t.Fatal("needs root to become somebody else")
	}
	exe := t.TempDir() + "/daemon" // where that user can get at it
	copyFile(t, os.Args[0], exe)
	cmd.Path = exe
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if want := "true false\nfalse true\nfalse true\n"; err != nil || strings.ReplaceAll(string(out), "true true", "false true") != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}

// copyFile copies a program to a place that everybody can reach.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(to); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemoryIsTakenFromChildrenFirst(t *testing.T) {
	out, err := daemon(t, "memory").Output()
	var child, own int
	if n, _ := fmt.Sscan(string(out), &child, &own); err != nil || n != 2 || child < own+100 {
		t.Errorf("child and daemon: %q, %v", out, err)
	}
}

func TestReapOrphansWantsTheMainThread(t *testing.T) {
	// If this is the main thread, another goroutine is not on it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var err error
	if unix.Gettid() != os.Getpid() {
		err = ReapOrphans(t.Context())
	} else {
		err = onOther(func() error { return ReapOrphans(t.Context()) })
	}
	if err == nil {
		t.Error("no error away from the main thread")
	}
}
