package shellrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// testSessions returns a maker of sessions with a short folder on a tmpfs where there is one. Its patience with shells
// outlasts whatever the machine does meanwhile; whoever tests the lack of it sets it.
func testSessions(t testing.TB) *Sessions {
	t.Helper()
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil {
		base = os.TempDir()
	}
	dir, err := os.MkdirTemp(base, "celld")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // other users' sessions are in there
		t.Fatal(err)
	}
	h, err := NewSessions(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	h.patience.exit, h.patience.end, h.patience.settle, h.patience.restart = time.Minute, time.Minute, time.Minute, time.Minute
	h.patience.killBound, h.patience.stopBound, h.patience.unwinds = 5*time.Minute, time.Minute, 600
	return h
}

// session is a session under test.
type session struct {
	*Session
	t    testing.TB
	late *lateLog
}

// lateLog takes what jobs write and tells when a text has come.
type lateLog struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	want string
	came chan struct{}
}

func (l *lateLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(b)
	if l.came != nil && strings.Contains(l.buf.String(), l.want) {
		close(l.came)
		l.came = nil
	}
	return len(b), nil
}

func (l *lateLog) await(t testing.TB, text string) string {
	t.Helper()
	l.mu.Lock()
	if strings.Contains(l.buf.String(), text) {
		defer l.mu.Unlock()
		return l.buf.String()
	}
	came := make(chan struct{})
	l.want, l.came = text, came
	l.mu.Unlock()
	select {
	case <-came:
	case <-t.Context().Done():
		t.Fatalf("%q never came", text)
	}
	return l.String()
}

func (l *lateLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func open(t testing.TB, h *Sessions, change ...func(*SessionConfig)) *session {
	t.Helper()
	s := openLoose(t, h, change...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openLoose opens a session that somebody has to close.
func openLoose(t testing.TB, h *Sessions, change ...func(*SessionConfig)) *session {
	t.Helper()
	late := &lateLog{}
	cfg := SessionConfig{ID: "test", Bash: "/bin/bash", Dir: "/", BaseEnv: testEnv(), Log: late}
	for _, c := range change {
		c(&cfg)
	}
	s, err := h.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &session{Session: s, t: t, late: late}
}

func testEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8"}
}

// result is what a run did.
type result struct {
	SessionExit
	out, err string
	notes    []string
}

func (r result) String() string {
	return fmt.Sprintf("exit %d, ended %v, out %q, err %q, notes %q", r.Code, r.Ended, clip(r.out), clip(r.err), r.notes)
}

func clip(s string) string {
	if len(s) > 400 {
		return s[:200] + "…" + s[len(s)-200:]
	}
	return s
}

// run runs text and expects no error of ours. A run that takes more than a minute hangs.
func (s *session) run(text string, change ...func(*SessionRun)) result {
	s.t.Helper()
	ctx, cancel := context.WithTimeoutCause(s.t.Context(), time.Minute, errors.New("the run hung"))
	defer cancel()
	res, err := s.try(ctx, text, change...)
	if err != nil {
		s.t.Fatalf("run %q: %v", clip(text), err)
	}
	if ctx.Err() != nil {
		s.t.Fatalf("run %q hung: %v", clip(text), res)
	}
	return res
}

func (s *session) try(ctx context.Context, text string, change ...func(*SessionRun)) (result, error) {
	var out, errout bytes.Buffer
	var res result
	run := SessionRun{
		ID: nonce(), Text: text, Stdout: &out, Stderr: &errout,
		Note: func(what, _ string) { res.notes = append(res.notes, what) },
	}
	for _, c := range change {
		c(&run)
	}
	exit, err := s.Run(ctx, run)
	res.SessionExit, res.out, res.err = exit, out.String(), errout.String()
	return res, err
}

// want runs text and checks its standard output and status.
func (s *session) want(text, out string, code int) result {
	s.t.Helper()
	res := s.run(text)
	if res.out != out || res.Code != code {
		s.t.Errorf("run %q: %v; want exit %d, out %q", clip(text), res, code, clip(out))
	}
	return res
}

// alive checks that the session answers.
func (s *session) alive() {
	s.t.Helper()
	s.want("echo alive", "alive\n", 0)
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestSessionKeepsState(t *testing.T) {
	s := open(t, testSessions(t))
	for _, step := range []struct {
		text, out string
		code      int
	}{
		{"cd /tmp", "", 0},
		{"echo $PWD $OLDPWD; pwd", "/tmp /\n/tmp\n", 0},
		{"export A=1; B=plain", "", 0},
		{"echo $A$B; env | grep -c ^B=", "1plain\n0\n", 1},
		{"f() { local x=$1; echo f:$x; }; alias ll='echo aliased'", "", 0},
		{"f 3; ll", "f:3\naliased\n", 0},
		{"false", "", 1},
		{"echo $?", "1\n", 0},
		{"(exit 5)", "", 5},
		{"echo $?", "5\n", 0},
		{"a=(x 'y z'); declare -A m=([k]='v w'); declare -i n=4; readonly r=ro", "", 0},
		{`n+=3; echo "${a[1]}" "${m[k]}" $n $r`, "y z v w 7 ro\n", 0},
		{"umask 027; ulimit -n 500", "", 0},
		{"umask; ulimit -n", "0027\n500\n", 0},
		{"set -- one 'two three'", "", 0},
		{`echo $# "$2"`, "2 two three\n", 0},
		{"shopt -s extglob\necho !(x) >/dev/null; shopt -q nullglob; echo $?", "1\n", 0},
		{"shopt -q extglob; echo $?", "0\n", 0},
		{"trap 'echo bye' EXIT", "", 0},
		{"trap -p EXIT", "trap -- 'echo bye' EXIT\n", 0},
		{"exec 5>/tmp/celld-fd5.$$; echo x >&5", "", 0},
		{"echo y >&5; cat /tmp/celld-fd5.$$; rm /tmp/celld-fd5.$$", "x\ny\n", 0},
		{"dir=/app; log=x; line=L; cleanup(){ echo mine; }", "", 0},
		{"echo $dir $log $line; cleanup", "/app x L\nmine\n", 0},
		{"PS1='$(echo P)'; PROMPT_COMMAND='echo C'", "", 0},
		{"echo hi", "hi\n", 0},
		{"echo $0 $-", "bash hB\n", 0},
		{"readonly EXIT_CODE=5", "", 0},
		{"true", "", 0},
		{"set -x", "", 0},
	} {
		s.want(step.text, step.out, step.code)
	}
	if res := s.run("echo hi"); res.err != "+ echo hi\n" {
		t.Errorf("under set -x: %v", res)
	}
}

func TestSessionEndsOfRuns(t *testing.T) {
	h := testSessions(t)
	for _, c := range []struct {
		text, out string
		code      int
		ended     bool
	}{
		{"exit 3", "", 3, true},
		{"exit 256", "", 0, true},
		{"exit 255", "", 255, true},
		{"exec true", "", 0, true},
		{"exec sh -c 'exit 9'", "", 9, true},
		{"set -e; false; echo no", "", 1, true},
		{"set -u; echo $nosuch; echo no", "", 1, true},
		{"kill -9 $$", "", 137, true},
		{"kill -TERM $$", "", 143, true},
		{"exec 1>&-", "", 0, false},
		{"exec 1>&- 2>&-", "", 0, false},
		{"exec 0<&- 1>&- 2>&-", "", 0, false},
		{"return 5", "", 5, false},
		{"nosuchcmd_xyz", "", 127, false},
		{"/etc/passwd", "", 126, false},
		{"echo 'oops", "", 2, false},
		{"if true; then echo x", "", 2, false},
		{"echo a; )", "", 2, false},
		{"echo )", "", 2, false},
		{"if true; fi", "", 2, false},
		{"echo a; }; echo b; {", "", 2, false},
		{"cat <<EOF\nhi", "hi\n", 0, false},
		{"echo hi # note", "hi\n", 0, false},
		{"cat <<'EOF'\na 'b' \"c\" $d `e`\nEOF \nEOF", "a 'b' \"c\" $d `e`\nEOF \n", 0, false},
		{"set -n", "", 0, true},
		{"set -n; false", "", 0, true},
		{"echo before; set -n; echo after", "before\n", 0, true},
		{"set -e; [ 1 = 2 ] && echo no", "", 1, false},
		{"set -t; echo x", "x\n", 0, false},
		{"for f in /proc/self/fd/*; do eval \"exec ${f##*/}>&-\" 2>/dev/null; done", "", 0, false},
		{"for f in {0..260}; do eval \"exec $f>&-\"; done 2>/dev/null", "", 0, false},
		{"trap '' INT TERM HUP QUIT PIPE CHLD", "", 0, false},
		{"for s in {1..64}; do trap '' $s; done 2>/dev/null", "", 0, false},
		{"export PATH=/nonexistent", "", 0, false},
		{"unset PATH", "", 0, false},
		{"IFS=0123456789./", "", 0, false},
		{"set -k", "", 0, false},
		{"set -f -C -a -m", "", 0, false},
		{"set -o posix", "", 0, false},
		{"set -v", "", 0, false},
		{"trap 'echo E' ERR; trap 'echo R' RETURN", "R\n", 0, false},
		{"trap 'sleep 0' DEBUG", "", 0, false},
		{"unset BASH_SOURCE PIPESTATUS FUNCNAME 2>/dev/null; true", "", 0, false},
		{"cd() { :; }; printf() { :; }; echo() { :; }; eval() { :; }", "", 0, false},
		{"builtin() { :; }", "", 0, false},
		{"exec() { :; }; source() { :; }; exit() { :; }; return() { :; }; .() { :; }; set() { :; }; trap() { :; }; declare() { :; }; unset() { :; }", "", 0, false},
		{"alias builtin=false exec=false .=false cd=false set=false echo='echo x' true=false; alias !=false {=false [[=false }=false", "", 0, false},
		{"ulimit -n 3", "", 0, true},
		{"ulimit -f 0", "", 0, false},
		{"enable -n builtin . exec", "", 0, false},
		{"shopt -s extdebug failglob nullglob nocasematch", "", 0, false},
		{"shopt -u interactive_comments sourcepath promptvars", "", 0, false},
		{"LC_ALL=C; LANG=xx_YY", "", 0, false},
		{"set -r", "", 0, true},
		{"BASH_XTRACEFD=7", "", 0, false},
		{"for v in $(compgen -v); do readonly $v; done 2>/dev/null; true", "", 0, false},
		{"for v in $(compgen -v); do unset $v; done 2>/dev/null; true", "", 0, false},
		{"read -u 255 x", "", 0, false},
		{"cat <&255", "", 1, false},
	} {
		t.Run(clip(c.text), func(t *testing.T) {
			t.Parallel()
			s := open(t, h)
			res := s.run("K=1\ncd /tmp\n" + c.text)
			if res.out != c.out || res.Code != c.code || res.Ended != c.ended {
				t.Errorf("%v; want exit %d, ended %v, out %q", res, c.code, c.ended, c.out)
			}
			if replaced := len(res.notes) == 1 && res.notes[0] == NoteReplaced; replaced != c.ended {
				t.Errorf("notes %q", res.notes)
			}
			for range 2 {
				if res := s.run("\\command echo alive"); !strings.Contains(res.out, "alive") {
					t.Errorf("afterwards: %v", res)
				}
			}
		})
	}
}
