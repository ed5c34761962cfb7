package proctree

import (
	"os"
	"os/exec"
	"testing"
)

// markedSleeper starts a shell with a child, both with a daemon's mark, and returns a channel that is closed when both
// are gone.
func markedSleeper(t *testing.T, m mark) <-chan struct{} {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "setsid sleep 987 & echo up; sleep 987; :")
	cmd.Env = []string{DaemonEnv + "=" + m.String()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		out.Read(make([]byte, 1)) // returns when nobody holds the other end
	}()
	return gone
}

func TestLeftoversOfADeadDaemonAreKilledAndNobodyElse(t *testing.T) {
	here, err := ownMark()
	if err != nil {
		t.Fatal(err)
	}
	here.timeNS++ // where nobody else is: a daemon that another test starts would kill them too, and this one what is another's
	dead := here
	dead.start-- // this process's pid, but not this process
	elsewhere := dead
	elsewhere.pidNS++
	left, other, own := markedSleeper(t, dead), markedSleeper(t, elsewhere), markedSleeper(t, here)
	if _, err := killLeftovers(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	<-left
	select {
	case <-other:
		t.Error("killed what comes from another namespace")
	case <-own:
		t.Error("killed what comes from a living daemon")
	default:
	}
	if err := killOwn(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	<-own
	select {
	case <-other:
		t.Error("killed what comes from another namespace")
	default:
	}
	if _, err := killMarked(t.Context(), elsewhere, func(m mark) bool { return m == elsewhere }); err != nil {
		t.Fatal(err)
	}
	<-other
}

func TestAHiddenDaemonIsNotTakenForDead(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("only root may mount")
	}
	exe := t.TempDir() + "/daemon" // where that user can get at it
	copyFile(t, os.Args[0], exe)
	const script = `mount --make-rprivate / && mount -t proc -o hidepid=2 none /proc &&
		exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"`
	cmd := daemon(t, "hidden", "unshare", "-m", "sh", "-c", script, "sh")
	cmd.Args[len(cmd.Args)-1] = exe
	if out, err := cmd.Output(); err != nil || string(out) != "0\n" {
		t.Errorf("found %q, %v", out, err)
	}
}

func TestWhoStartedThisProcessIsNoLeftover(t *testing.T) {
	table, err := Look()
	if err != nil {
		t.Fatal(err)
	}
	if a := table.ancestors(os.Getppid()); !a[os.Getppid()] || len(a) < 2 {
		t.Errorf("ancestors %v", a)
	}
}

func TestDaemonMarkIsOfThisProcess(t *testing.T) {
	text, err := DaemonMark()
	if err != nil {
		t.Fatal(err)
	}
	m, ok := parseMark([]byte(text))
	if !ok || m.pid != os.Getpid() || m.pidNS == 0 || m.start == 0 {
		t.Errorf("%q: %+v", text, m)
	}
	for _, bad := range []string{"", "1.2.3", "1.2.3.4.5", "a.b.c.d", "1.2.-3.4", text + "x"} {
		if m, ok := parseMark([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, m)
		}
	}
}
