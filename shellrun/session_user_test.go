package shellrun

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const nobody = 65534

// asNobody makes a session another user's. It needs root.
func asNobody(c *SessionConfig) {
	c.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
}

func TestSessionOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test must run as root")
	}
	h := testSessions(t)
	s := open(t, h, asNobody)
	s.want("id -u; K=7; echo x >&2; cat", "65534\n", 0)
	if res := s.run("cat", func(r *SessionRun) { r.Stdin, r.HasStdin = "in", true }); res.out != "in" {
		t.Error(res)
	}
	s.want("exit 3", "", 3)
	s.want("echo $K; echo mine > "+s.dir+"/mine && cat "+s.dir+"/mine", "7\nmine\n", 0)
	s.want("rm -rf "+s.dir+" 2>/dev/null; echo $K", "7\n", 0) // the folder itself lies in ours
	s.want("echo $K", "7\n", 0)
	if res := s.run("ls /root"); res.Code == 0 {
		t.Error(res)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := &beacon{text: "go", hit: cancel}
	if res, err := s.try(ctx, "echo go; sleep 97.1", func(r *SessionRun) { r.Stdout = out }); err != nil || res.Code != 130 {
		t.Error(res, err)
	}
	s.want("echo $K", "7\n", 0)
}

// A user may put anything in the place of what celld is about to write or read.
func TestSessionFolderIsNotTrusted(t *testing.T) {
	h := testSessions(t)
	h.patience = usualPatience() // shells wait at the pipes that are put in their way
	s := open(t, h, asNobody)
	target := t.TempDir() + "/target"
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"w", "bash", "i", "status", "builtin", "init", "restore", "s", "tail", "debug"} {
		for _, how := range []string{"ln -s " + target, "mkfifo", "mkdir"} {
			s.run(fmt.Sprintf("cd %s; rm -rf %s; %s %s; cd /; (exit 1)", s.dir, name, how, name))
			s.run("echo x", func(r *SessionRun) { r.Stdin, r.HasStdin = "in", true })
			s.run("builtin() { :; }")
			s.run("unset -f builtin; exit 1")
			s.want("echo alive", "alive\n", 0)
		}
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "precious" {
		t.Errorf("the target of a link holds %q, %v", b, err)
	}
}

func TestSessionForkBombWithinALimit(t *testing.T) {
	h := testSessions(t)
	s := open(t, h, asNobody)
	s.run("K=7; ulimit -u 60")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	res, err := s.try(ctx, "b() { b | b & }; b; wait; while :; do sleep 1; done", func(r *SessionRun) { r.Stderr = nil })
	if err != nil || !res.Broken {
		t.Error(res, err)
	}
	s.want("echo $K", "7\n", 0)
}

func TestThousandSessionsAreLight(t *testing.T) {
	h := testSessions(t)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	const n = 1000
	before, threads := heap(), len(dirNames(t, "/proc/self/task"))
	sessions := make([]*session, n)
	var group sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range sessions {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			sessions[i] = openLoose(t, h)
		})
	}
	group.Wait()
	for i, s := range sessions {
		group.Go(func() {
			if res, err := s.try(t.Context(), fmt.Sprintf("echo %d; (:)", i)); err != nil || res.out != fmt.Sprintln(i) {
				t.Errorf("session %d: %v, %v", i, res, err)
			}
		})
	}
	group.Wait()
	for _, s := range sessions {
		<-s.turns.ask()
		s.turns.pass()
	}
	each := int64(heap()-before) / n
	t.Logf("%d bytes each, %d threads more", each, len(dirNames(t, "/proc/self/task"))-threads)
	if each > 128<<10 {
		t.Errorf("%d bytes each", each)
	}
	if more := len(dirNames(t, "/proc/self/task")) - threads; more > 100 {
		t.Errorf("%d threads more", more)
	}
	slots = make(chan struct{}, 32) // side by side they share their looks at the process table
	for _, s := range sessions {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func dirNames(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func TestSessionLeavesNothingBehind(t *testing.T) {
	h := testSessions(t)
	s := open(t, h)
	mixed := func(i int) {
		switch i % 10 {
		case 0:
			s.run("exit 1")
		case 1:
			s.run("echo x | cat >&2")
		case 2:
			s.run("sleep 0 & true")
		case 3:
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			s.try(ctx, "while :; do :; done")
			cancel()
		case 4:
			s.run("cat", func(r *SessionRun) { r.Stdin, r.HasStdin, r.Dir = "x", true, "/tmp" })
		case 5:
			s.run("echo 'open")
		default:
			s.run("x=$((x+1))", func(r *SessionRun) { r.Env = map[string]string{"A": "1"} })
		}
	}
	rest := func() (fds, goroutines, files, children int) {
		s.run("wait; true")
		s.run("true")
		<-s.turns.ask()
		defer s.turns.pass()
		for _, p := range s.endingPumps() {
			<-p.done
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(dirNames(t, "/proc/self/fd")), runtime.NumGoroutine(), len(dirNames(t, s.dir)), len(childrenOf(t))
	}
	for i := range 50 {
		mixed(i)
	}
	fds, goroutines, files, kids := rest()
	for i := range 1000 {
		mixed(i)
	}
	fds2, goroutines2, files2, kids2 := rest()
	if fds2 > fds+2 || goroutines2 > goroutines+4 || files2 > files || kids2 > kids {
		t.Errorf("descriptors %d, %d; goroutines %d, %d; files %d, %d; children %d, %d",
			fds, fds2, goroutines, goroutines2, files, files2, kids, kids2)
	}
}

// endingPumps are those of pipes that the shell doesn't write to any more. The caller has the turn.
func (s *session) endingPumps() []*pump {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*pump
	for p := range s.Session.pumps {
		if p != s.shell.pipes[output] && p != s.shell.pipes[errput] {
			all = append(all, p)
		}
	}
	return all
}

func childrenOf(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, task := range dirNames(t, "/proc/self/task") {
		b, err := os.ReadFile("/proc/self/task/" + task + "/children")
		if err == nil {
			all = append(all, strings.Fields(string(bytes.TrimSpace(b)))...)
		}
	}
	return all
}
