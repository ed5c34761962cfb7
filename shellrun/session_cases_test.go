package shellrun

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestSessionBackgroundChildDoesNotHoldTheRun(t *testing.T) {
	s := open(t, testSessions(t))
	s.want("sleep 97.3 & echo started", "started\n", 0)
	s.want("(setsid sleep 97.4 &) ; echo two; exit 3", "two\n", 3)
	job := strings.TrimSpace(s.run("sleep 97.5 & echo $!").out)
	s.want("kill -0 $! && echo up "+job, "up "+job+"\n", 0)
	fifo := t.TempDir() + "/fifo"
	if res := s.run("mkfifo " + fifo + "; { echo y; echo y; echo >" + fifo + "; exec yes; } & read <" + fifo); res.Code != 0 || !strings.HasPrefix(res.out, "y\ny\n") {
		t.Error(res)
	}
	s.run("kill $!; wait $!")
}

func TestSessionLateOutputGoesToTheLog(t *testing.T) {
	s := open(t, testSessions(t))
	fifo := t.TempDir() + "/fifo"
	s.want("mkfifo "+fifo+"; { read x <"+fifo+"; echo late; echo later >&2; } & echo now", "now\n", 0)
	s.want("echo go >"+fifo+"; wait; echo next", "next\n", 0)
	s.late.await(t, "late\n")
	s.late.await(t, "later\n")
}

func TestSessionOutputIsExact(t *testing.T) {
	s := open(t, testSessions(t))
	for _, c := range []struct{ text, out, err string }{
		{"printf hello", "hello", ""},
		{`printf 'a\n\nb\n\n\nc\n'`, "a\n\nb\n\n\nc\n", ""},
		{`printf '\n'`, "\n", ""},
		{`printf 'p 1%%\rp 2%%\rdone\n'`, "p 1%\rp 2%\rdone\n", ""},
		{`printf 'x\r\n\r\ny\r\n'`, "x\r\n\r\ny\r\n", ""},
		{`printf 'no nl' >&2`, "", "no nl"},
		{"true", "", ""},
		{`printf 'a\377b\0c\n'; echo after`, "a\xffb\x00c\nafter\n", ""},
		{`printf '\360\237'; sleep 0.05; printf '\230\200\n'`, "😀\n", ""},
		{"head -c 2000000 /dev/zero | tr '\\0' x", strings.Repeat("x", 2000000), ""},
		{"yes | head -n 1000", strings.Repeat("y\n", 1000), ""},
		{"for i in {1..400}; do echo é漢😀; done", strings.Repeat("é漢😀\n", 400), ""},
	} {
		if res := s.run(c.text); res.out != c.out || res.err != c.err || res.Code != 0 {
			t.Errorf("run %q: %v", c.text, res)
		}
	}
	res := s.run("head -c 500000 /dev/urandom | tee /dev/stderr | base64")
	decoded, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, strings.NewReader(res.out)))
	if err != nil || len(decoded) != 500000 || string(decoded) != res.err || len(res.out) != 675440 {
		t.Errorf("%d bytes of base64, %d decoded, %d on standard error, %v", len(res.out), len(decoded), len(res.err), err)
	}
	var want bytes.Buffer
	for i := 1; i <= 300000; i++ {
		fmt.Fprintln(&want, i)
	}
	for range 3 {
		if res := s.run("seq 1 300000"); res.out != want.String() {
			t.Errorf("seq printed %d bytes", len(res.out))
		}
	}
}

func TestSessionHundredMegabytes(t *testing.T) {
	s := open(t, testSessions(t))
	var n zeros
	res, err := s.try(t.Context(), "head -c 100000000 /dev/zero; exit 6", func(r *SessionRun) { r.Stdout = &n })
	if err != nil || n.n != 100_000_000 || n.other != 0 || res.Code != 6 {
		t.Errorf("%d bytes, %d of them not 0; %v, %v", n.n, n.other, res, err)
	}
}

type zeros struct{ n, other int }

func (c *zeros) Write(p []byte) (int, error) {
	c.n += len(p)
	c.other += len(p) - bytes.Count(p, []byte{0})
	return len(p), nil
}

func TestSessionOutputIsLive(t *testing.T) {
	s := open(t, testSessions(t))
	fifo := t.TempDir() + "/fifo"
	out := &beacon{text: "Password: "}
	out.hit = func() { // only after the prompt has been seen does the program go on
		go os.WriteFile(fifo, []byte("x\n"), 0)
	}
	res, err := s.try(t.Context(), "mkfifo "+fifo+"; printf 'Password: '; read x <"+fifo+"; echo [$x]", func(r *SessionRun) { r.Stdout = out })
	if err != nil || out.String() != "Password: [x]\n" {
		t.Errorf("%q, %v, %v", out.String(), res, err)
	}
}

func TestSessionStandardInput(t *testing.T) {
	s := open(t, testSessions(t))
	s.want(`cat; echo "rc=$?"`, "rc=0\n", 0)
	s.want(`read -r x; echo "got:[$x] $?"`, "got:[] 1\n", 0)
	if res := s.run(`python3 -c "print(repr(input()))"`); res.Code != 1 || !strings.Contains(res.err, "EOFError") {
		t.Error(res)
	}
	s.want("echo next", "next\n", 0)
	stdin := func(text string) func(*SessionRun) {
		return func(r *SessionRun) { r.Stdin, r.HasStdin = text, true }
	}
	big := strings.Repeat("0123456789", 100_000)
	if res := s.run("cat", stdin(big)); res.out != big {
		t.Errorf("cat gave back %d bytes", len(res.out))
	}
	if res := s.run("read a; read b; echo $b$a", stdin("x\ny\n")); res.out != "yx\n" {
		t.Error(res)
	}
	if res := s.run("cat", stdin("")); res.out != "" || res.Code != 0 {
		t.Error(res)
	}
	s.want("cat", "", 0)
	file := filepath.Join(t.TempDir(), "in")
	os.WriteFile(file, []byte("1\n2\n3\n"), 0o600)
	s.want("exec <"+file+"; read x; echo $x", "1\n", 0)
	s.want("read x; echo $x", "2\n", 0)
	s.run("exec <&-")
	s.want("cat; echo $?", "0\n", 0)
}

func TestSessionHeredocsAndQuotes(t *testing.T) {
	s := open(t, testSessions(t))
	file := filepath.Join(t.TempDir(), "h")
	s.run("cat <<'X' > " + file + "\nl1\n  l2\nX")
	if b, err := os.ReadFile(file); err != nil || string(b) != "l1\n  l2\n" {
		t.Errorf("%q, %v", b, err)
	}
	s.want("python3 - <<'PY'\nprint(1)\nPY", "1\n", 0)
	s.want("X=v; f() { cat <<A; }\n$X 'q' \"d\" `echo b`\nA\nf; cat <<B; cat <<'C'\n1\nB\n$X\nC\n", "v 'q' \"d\" b\n1\n$X\n", 0)
}

func TestSessionEnvironmentOfOneRun(t *testing.T) {
	s := open(t, testSessions(t))
	env := func(pairs ...string) func(*SessionRun) {
		return func(r *SessionRun) {
			r.Env = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				r.Env[pairs[i]] = pairs[i+1]
			}
		}
	}
	run := func(text, out string, pairs ...string) {
		t.Helper()
		if res := s.run(text, env(pairs...)); res.out != out {
			t.Errorf("run %q with %q: %v; want %q", text, pairs, res, out)
		}
	}
	run("echo $A", "1\n", "A", "1")
	run("echo [$A]; declare -p A 2>&1 | grep -c found", "[]\n1\n")
	run("export A=old; B=plain; declare -i I=4; M=(x y); declare -n N=B; declare -A H=([k]=v)", "")
	run("echo $A $B $I $M $H; env | grep -c '^[ABIMH]='", "1 2 3+3 m h\n5\n", "A", "1", "B", "2", "I", "3+3", "M", "m", "H", "h")
	run("echo $A $B $I ${M[1]} ${H[k]} $N; env | grep '^[ABIMH]='; I+=1; echo $I", "old plain 4 y v plain\nA=old\n5\n")
	run("A=mine; unset B; M=(z)", "", "A", "1", "B", "2", "M", "3")
	run("echo $A $B ${M[1]}", "old plain y\n")
	run("echo \"$A\"", "x\ny'z$`\\\"\n", "A", "x\ny'z$`\\\"")
	run("echo \"$PATH\"; unset PATH", "/p\n", "PATH", "/p")
	run("ls -d /", "/\n")
	run("kill -9 $$", "", "A", "dying")
	run("echo $A", "old\n")
	for _, name := range []string{"a b", "a=b", "a;b", "", "1a"} {
		var bad *RequestError
		if _, err := s.try(t.Context(), "echo no", env(name, "x")); !errors.As(err, &bad) || bad.Field != "envs" {
			t.Errorf("name %q: %v", name, err)
		}
	}
	s.run("readonly R=1")
	var bad *RequestError
	if _, err := s.try(t.Context(), "echo no", env("R", "x")); !errors.As(err, &bad) {
		t.Errorf("a readonly variable: %v", err)
	}
	run("echo $R", "1\n")
}

func TestSessionDirectory(t *testing.T) {
	s := open(t, testSessions(t))
	dir := t.TempDir()
	in := func(dir string) func(*SessionRun) { return func(r *SessionRun) { r.Dir = dir } }
	s.want("pwd", "/\n", 0)
	if res := s.run("pwd; echo $OLDPWD", in("/tmp")); res.out != "/tmp\n/\n" {
		t.Error(res)
	}
	s.want("pwd", "/tmp\n", 0)
	s.run("mkdir -p "+dir+"/sub\\ dir", in(dir))
	if res := s.run("pwd", in("sub dir")); res.out != dir+"/sub dir\n" {
		t.Error(res)
	}
	s.run("export D=" + dir)
	if res := s.run("pwd", in("$D/sub dir")); res.out != dir+"/sub dir\n" {
		t.Error(res)
	}
	if res := s.run("pwd", in("${E}"), func(r *SessionRun) { r.Env = map[string]string{"E": "/tmp"} }); res.out != "/tmp\n" {
		t.Error(res)
	}
	for _, d := range []string{"/no/such", "/etc/passwd", "$NOSUCH", "nosuch"} {
		var bad *RequestError
		if _, err := s.try(t.Context(), "echo no", in(d)); !errors.As(err, &bad) || bad.Field != "cwd" {
			t.Errorf("cwd %q: %v", d, err)
		}
	}
	s.want("pwd", "/tmp\n", 0)
	s.run("mkdir d; cd d", in(dir))
	s.want("rm -rf ../d", "", 0)
	s.want("echo ok", "ok\n", 0)
	s.run("exit 1")
	s.want("echo ok; cd /; pwd", "ok\n/\n", 0)
}

func TestSessionRefusesWhatCannotRun(t *testing.T) {
	s := open(t, testSessions(t))
	for _, text := range []string{"", "echo a\x00b"} {
		var bad *RequestError
		if _, err := s.try(t.Context(), text); !errors.As(err, &bad) || bad.Field != "command" {
			t.Errorf("%q: %v", text, err)
		}
	}
	s.want(" \n\t", "", 0)
	s.want("# "+strings.Repeat("x", 1<<20)+"\necho long", "long\n", 0)
	s.want(strings.Repeat("x=1234567\n", 30_000)+"echo $x", "1234567\n", 0)
}

func TestSessionBigVariables(t *testing.T) {
	s := open(t, testSessions(t))
	s.run("export BIG=$(head -c 1000000 /dev/zero | tr '\\0' x); plain=$BIG")
	if res := s.run("ls"); res.Code != 126 {
		t.Error(res)
	}
	s.want("echo ${#BIG} ${#plain}", "1000000 1000000\n", 0)
	s.run("exit 2")
	s.want("echo ${#BIG} ${#plain}; unset BIG; ls -d /", "1000000 1000000\n/\n", 0)
	var big strings.Builder
	for i := range 300 {
		fmt.Fprintf(&big, "f%d() { echo %d; local a=1 b=2; if true; then :; fi; }\n", i, i)
	}
	s.run(big.String())
	s.want("f299", "299\n", 0)
	s.run("exit 2")
	s.want("f299", "299\n", 0)
}

func TestSessionRunsInOrderOfArrival(t *testing.T) {
	s := open(t, testSessions(t))
	<-s.turns.ask() // nobody begins
	var group sync.WaitGroup
	var mu sync.Mutex
	var order []int
	var places []chan struct{}
	for range 20 {
		places = append(places, s.turns.ask())
	}
	for i, place := range places {
		group.Go(func() {
			if err := s.turns.wait(t.Context(), nil, place); err != nil {
				t.Error(err)
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			s.turns.pass()
		})
	}
	s.turns.pass()
	group.Wait()
	if !slices.IsSorted(order) || len(order) != 20 {
		t.Errorf("turns came in the order %v", order)
	}
	for i := range 20 {
		group.Go(func() {
			res, err := s.try(t.Context(), fmt.Sprintf("echo START-%d; sleep 0.01; echo END-%d", i, i))
			if err != nil || res.out != fmt.Sprintf("START-%d\nEND-%d\n", i, i) {
				t.Error(res, err)
			}
		})
	}
	group.Wait()
}

func TestSessionRunGivesItsPlaceUp(t *testing.T) {
	s := open(t, testSessions(t))
	<-s.turns.ask()
	ctx, cancel := context.WithCancelCause(t.Context())
	place := s.turns.ask()
	after := s.turns.ask()
	cancel(errors.New("gone"))
	if err := s.turns.wait(ctx, nil, place); err == nil || err.Error() != "gone" {
		t.Errorf("who had gone got %v", err)
	}
	s.turns.pass()
	<-after
	s.turns.pass()
	closing := make(chan struct{})
	close(closing)
	for range 100 { // both are so, and nobody knows which is noticed first
		if err := s.turns.wait(t.Context(), closing, s.turns.ask()); err != ErrSessionClosed {
			t.Fatalf("a turn in a session that ends: %v", err)
		}
	}
	if _, err := s.try(ctx, "touch /nosuch/x"); err == nil || err.Error() != "gone" {
		t.Errorf("a run whose time was up: %v", err)
	}
	s.alive()
}

func TestSessionsDoNotMix(t *testing.T) {
	h := testSessions(t)
	const sessions, runs = 50, 200
	var group sync.WaitGroup
	for i := range sessions {
		s := open(t, h)
		group.Go(func() {
			for j := range runs {
				text := fmt.Sprintf("v=%d.%d; echo $v; echo $v >&2; (exit %d)", i, j, j%200)
				if j%4 != 0 { // most without a process
					text = fmt.Sprintf("v=%d.%d; echo $v; echo $v >&2", i, j)
				}
				res, err := s.try(t.Context(), text)
				want := fmt.Sprintf("%d.%d\n", i, j)
				if err != nil || res.out != want || res.err != want || j%4 == 0 && res.Code != j%200 {
					t.Errorf("session %d, run %d: %v, %v", i, j, res, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// A process leaves a trace in its parent: it is a child, or it has been reaped and its page faults are counted.
func TestSessionRunsBuiltinsWithoutAProcess(t *testing.T) {
	s := open(t, testSessions(t))
	s.alive()
	count := func() string {
		<-s.turns.ask() // until the snapshot has been taken
		defer s.turns.pass()
		return fmt.Sprint(children(s.shell.tree.PID()), s.shell.reapedFaults())
	}
	before := count()
	for _, text := range []string{":", "echo x", "export A=1; cd /tmp; f() { :; }", "[[ -d / ]] && printf '%s' y", "false", "set -x", ":", "set +x"} {
		s.run(text)
		s.run(text, func(r *SessionRun) { r.Env, r.Dir = map[string]string{"B": "2"}, "/" })
	}
	if after := count(); after != before {
		t.Errorf("children and their page faults were %s and are %s", before, after)
	}
	s.run("(:)")
	if after := count(); after == before {
		t.Error("a process left no trace")
	}
}

func TestSessionCloseEndsEverything(t *testing.T) {
	h := testSessions(t)
	s := open(t, h)
	s.run("trap 'echo bye; echo $K' EXIT; K=kept")
	sleep := fmt.Sprintf("sleep 98.%d", os.Getpid()) // nobody else's
	s.run(fmt.Sprintf("%[1]s & (setsid %[1]s1 &) ; nohup %[1]s2 >/dev/null 2>&1 & trap '' TERM; (trap '' TERM; %[1]s3) & true", sleep))
	s.run("exec true") // the jobs outlive their shell
	s.run(sleep + "4 & true")
	started := make(chan struct{})
	out := &beacon{text: "go", hit: func() { close(started) }}
	ended := make(chan result)
	go func() {
		res, err := s.try(t.Context(), "echo go; "+sleep+"5", func(r *SessionRun) { r.Stdout = out })
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	<-started
	queued := make(chan error)
	go func() {
		_, err := s.try(t.Context(), "touch /nosuch/x")
		queued <- err
	}()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if res := <-ended; !res.Broken || res.Code == 0 {
		t.Error(res)
	}
	if err := <-queued; !errors.Is(err, ErrSessionClosed) {
		t.Errorf("a queued run got %v", err)
	}
	if _, err := s.try(t.Context(), "true"); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("a run after the end got %v", err)
	}
	if left, _ := exec.Command("pgrep", "-f", "^"+sleep).Output(); len(left) > 0 {
		t.Errorf("left: %s", left)
	}
	if !strings.Contains(s.late.String(), "bye\nkept\n") {
		t.Errorf("the EXIT trap's output is not in the log: %q", s.late.String())
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestSessionJobsOutliveADeadShell(t *testing.T) {
	s := open(t, testSessions(t))
	job := strings.TrimSpace(s.run("sleep 98.6 & echo $!").out)
	s.run("exit 3")
	s.want("kill -0 "+job+" && echo lives; jobs", "lives\n", 0)
}

func TestSessionShellDiesBetweenRuns(t *testing.T) {
	s := open(t, testSessions(t))
	s.run("K=7; cd /tmp")
	<-s.turns.ask() // until the snapshot has been taken
	s.turns.pass()
	process, err := os.FindProcess(s.Info().PID)
	if err != nil {
		t.Fatal(err)
	}
	process.Kill()
	<-s.shell.tree.Done()
	res := s.run("echo $K $PWD")
	if res.out != "7 /tmp\n" || fmt.Sprint(res.notes) != "[session_replaced]" {
		t.Error(res)
	}
}

func TestSessionStartsAsConfigured(t *testing.T) {
	h := testSessions(t)
	dir := t.TempDir()
	env := filepath.Join(dir, "env")
	os.WriteFile(env, []byte("echo from BASH_ENV; X=1"), 0o600)
	s := open(t, h, func(c *SessionConfig) {
		c.Dir = dir
		c.BaseEnv = append(c.BaseEnv, "BASH_ENV="+env, "SHELLOPTS=xtrace", "PS4=base ")
		c.Env = map[string]string{"A": "x\ny'z", "BIG": strings.Repeat("x", 200_000)}
	})
	res := s.run("echo \"$A\" ${#BIG} $PWD [$X] $BASH_ENV $-; bash -c 'echo $X'")
	if res.Code != 126 || !strings.HasPrefix(res.out, "x\ny'z 200000 "+dir+" [] "+env+" hB\n") {
		t.Error(res)
	}
	res = s.run("unset BIG; bash -c 'echo $X'")
	if res.out != "from BASH_ENV\n1\n" {
		t.Error(res)
	}
	s.run("export BASH_ENV=" + env)
	if res := s.run("exit 1"); strings.Contains(res.out, "BASH_ENV") {
		t.Error(res)
	}
	s.want("echo [$X]", "[]\n", 0)
}

func TestSessionStartFails(t *testing.T) {
	h := testSessions(t)
	for _, change := range []func(*SessionConfig){
		func(c *SessionConfig) { c.Bash = "/no/such/bash" },
		func(c *SessionConfig) { c.Bash = "/bin/true" },
		func(c *SessionConfig) { c.Dir = "/no/such" },
		func(c *SessionConfig) { c.Env = map[string]string{"a b": ""} },
	} {
		cfg := SessionConfig{Bash: "/bin/bash", Dir: "/", BaseEnv: testEnv()}
		change(&cfg)
		if s, err := h.Open(t.Context(), cfg); err == nil {
			t.Errorf("%+v started", cfg)
			s.Close(t.Context())
		}
	}
	left, err := os.ReadDir(h.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestSessionSurvivesTheLossOfItsFolder(t *testing.T) {
	h := testSessions(t)
	s := open(t, h)
	s.run("K=7")
	for _, what := range []string{h.dir, h.dir + "/*", "$D", "$D/*", "$D/r", "$D/s", "$D/tail", "$D/interrupt $D/unwind"} {
		text := "D=" + s.dir + "; rm -rf " + what + "; (exit 3)"
		if res := s.run(text); res.Code != 3 || res.err != "" || res.Ended {
			t.Errorf("run %q: %v", text, res)
		}
		s.want("echo $K", "7\n", 0)
		s.want("echo again; (exit 4)", "again\n", 4)
	}
}

func TestSessionGetsANewShellThoughItsFolderIsGone(t *testing.T) {
	h := testSessions(t)
	s := open(t, h)
	s.run("K=7")
	for _, what := range []string{h.dir, "$D", "$D/*", "$D/r", "$D/tail $D/interrupt"} {
		for _, how := range []string{"kill -9 $$", "exit 3", "exec true", "set -n"} {
			if res := s.run("D=" + s.dir + "; rm -rf " + what + "; " + how); !res.Ended || res.err != "" {
				t.Errorf("rm -rf %s; %s: %v", what, how, res)
			}
			s.want("echo $K; (exit 4)", "7\n", 4)
		}
	}
}

func TestSessionOpenInParallel(t *testing.T) {
	h := testSessions(t)
	var group sync.WaitGroup
	for i := range 20 {
		s := open(t, h)
		group.Go(func() {
			if res, err := s.try(t.Context(), "sleep 0.1; echo $$"); err != nil || res.out != fmt.Sprintln(s.Info().PID) {
				t.Errorf("session %d: %v, %v", i, res, err)
			}
		})
	}
	group.Wait()
}

func TestSessionPosixModeOutlivesAShell(t *testing.T) {
	s := open(t, testSessions(t))
	s.run("export POSIXLY_CORRECT=1")
	s.run("exit 1")
	s.want("set -o | grep posix; env | grep POSIX", "posix          \ton\nPOSIXLY_CORRECT=1\n", 0)
	s.run("unset POSIXLY_CORRECT; set +o posix")
	s.run("exit 1")
	s.want("set -o | grep posix", "posix          \toff\n", 0)
}

func TestSessionIsNotStoppedByFrozenFunctions(t *testing.T) {
	s := open(t, testSessions(t))
	for _, text := range []string{
		"builtin() { :; }; readonly -f builtin",
		"exec() { :; }; readonly -f exec; readonly POSIXLY_CORRECT",
		".() { :; }; readonly -f .",
		"readonly CELLD_S=7",
		"readonly CELLD_P CELLD_I=1 CELLD_F=x CELLD_O",
		"set() { :; }; unset() { :; }; declare() { :; }; readonly -f set unset declare",
	} {
		s.run("K=7")
		s.run(text)
		for range 2 {
			s.want("echo $K", "7\n", 0)
		}
		s.run("exit 1")
		s.want("echo $K", "7\n", 0)
	}
}

func TestSessionForgetsTheMarksOfTheDead(t *testing.T) {
	s := open(t, testSessions(t))
	for range 4 * firstPrune {
		s.run("(:)")
	}
	<-s.turns.ask()
	defer s.turns.pass()
	if n := len(s.marks); n > 3*firstPrune {
		t.Errorf("%d marks", n)
	}
}

func TestSessionAnswersQuestionsWhileBusy(t *testing.T) {
	s := open(t, testSessions(t))
	s.run("cd /usr")
	fifo := t.TempDir() + "/fifo"
	busy, done := make(chan struct{}), make(chan result)
	id := nonce()
	go func() {
		out := &beacon{text: "go", hit: func() { close(busy) }}
		res, err := s.try(t.Context(), "mkfifo "+fifo+"; echo go; read x <"+fifo, func(r *SessionRun) { r.ID, r.Stdout = id, out })
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	<-busy
	if info := s.Info(); info.Running != id || info.Cwd != "/usr" || info.PID == 0 {
		t.Errorf("%+v", info)
	}
	if err := s.Check(SessionRun{Text: "x", Dir: "$HOME"}); err != nil {
		t.Error(err)
	}
	if _, err := s.Beside(Command{Text: "x"}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
		t.Error(err)
	}
	if res := <-done; res.Code != 0 {
		t.Error(res)
	}
	if info := s.Info(); info.Running != "" {
		t.Errorf("%+v", info)
	}
}
