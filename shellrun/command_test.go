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

	"github.com/celld/celld/internal/proctree"
)

// commandTest is a Runner and what is needed to watch its commands.
type commandTest struct {
	*testing.T
	Runner
	n int
}

func newCommandTest(t *testing.T) *commandTest {
	return &commandTest{T: t, Runner: Runner{
		Workspace: t.TempDir(),
		Env:       proctree.BaseEnv(os.Environ()),
		Grace:     func(error) time.Duration { return time.Minute }, // whoever obeys ends before
	}}
}

// sink collects output. It may be read while it is written.
type sink struct {
	most int // bytes that are kept; 0: all

	mu  sync.Mutex
	buf bytes.Buffer
	hit chan struct{} // gets a token when want has come
	at  string
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == 0 || s.buf.Len() < s.most {
		s.buf.Write(p)
	}
	if s.at != "" && strings.Contains(s.buf.String(), s.at) {
		s.at = ""
		close(s.hit)
	}
	return len(p), nil
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// await returns when text has come.
func (s *sink) await(text string) {
	s.mu.Lock()
	if strings.Contains(s.buf.String(), text) {
		s.mu.Unlock()
		return
	}
	s.at, s.hit = text, make(chan struct{})
	hit := s.hit
	s.mu.Unlock()
	<-hit
}

// started is a command that runs or has run.
type started struct {
	t *commandTest
	*Prepared
	out, errs, late sink
	stop            context.CancelCauseFunc
	over            chan struct{}
	status          proctree.Status
	err             error
}

// begin starts c. What is left of it is killed at the end of the test.
func (t *commandTest) begin(c Command) *started {
	t.Helper()
	s := &started{t: t, over: make(chan struct{})}
	t.n++
	if c.ID == "" {
		c.ID = fmt.Sprintf("%s-%d-%d", t.Name(), os.Getpid(), t.n)
	}
	if c.Stdout == nil {
		c.Stdout = &s.out
	}
	if c.Stderr == nil {
		c.Stderr = &s.errs
	}
	if c.Late == nil {
		c.Late = &s.late
	}
	var err error
	if s.Prepared, err = t.Prepare(c); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancelCause(context.Background())
	go func() {
		defer close(s.over)
		s.status, s.err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		s.stop(errors.New("the test is over"))
		<-s.over
		if err := s.Kill(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	return s
}

// end waits for the end of the run.
func (s *started) end() *started {
	s.t.Helper()
	<-s.over
	if s.err != nil {
		s.t.Fatal(s.err)
	}
	return s
}

func (t *commandTest) run(c Command) *started { t.Helper(); return t.begin(c).end() }

func (t *commandTest) sh(text string) *started { t.Helper(); return t.run(Command{Text: text}) }

// want fails unless the command ended with that output and status.
func (s *started) want(out string, code int) *started {
	s.t.Helper()
	if got := s.out.String(); got != out || s.status.Code != code {
		s.t.Errorf("got %q, status %d, stderr %q; want %q, status %d", clip(got), s.status.Code, clip(s.errs.String()), clip(out), code)
	}
	return s
}

// gone fails if a process of the command is left, and waits until nobody holds the output.
func (s *started) gone() {
	s.t.Helper()
	for _, pump := range s.pumps {
		<-pump.done
	}
	if left := s.Survivors(); len(left) != 0 {
		s.t.Errorf("left: %v", left)
	}
	if s.Lingers() {
		s.t.Error("lingers")
	}
}

// refused fails unless Prepare refuses c because of field.
func (t *commandTest) refused(c Command, field string) {
	t.Helper()
	_, err := t.Prepare(c)
	var re *RequestError
	if !errors.As(err, &re) || re.Field != field {
		t.Errorf("error %v, want one about %s", err, field)
	}
}

func TestCommandStatusIsTheShells(t *testing.T) {
	tt := newCommandTest(t)
	for text, code := range map[string]int{
		"true": 0, "exit 255": 255, "exit 256": 0, "(exit 137)": 137, "kill -9 $$": 137, "kill -TERM $$": 143,
		"nosuchcmd_xyz": 127, "/etc/passwd": 126, `echo "abc`: 2, "if true; fi": 2, "exec sleep 0": 0, "set -e; false; echo no": 1,
	} {
		tt.sh(text).want("", code).gone()
	}
	if errs := tt.sh("nosuchcmd_xyz").errs.String(); !strings.Contains(errs, "not found") {
		t.Errorf("stderr %q", errs)
	}
}

func TestCommandArgvNeedsNoShell(t *testing.T) {
	tt := newCommandTest(t)
	tt.run(Command{Argv: []string{"printf", "%s|", "a b", "$HOME", "*", ""}}).want("a b|$HOME|*||", 0)
	tt.run(Command{Argv: []string{"sh", "-c", "kill -9 $$"}}).want("", 137)
	for _, c := range []struct {
		argv []string
		env  map[string]string
		code int
		says string
	}{
		{[]string{"nosuchcmd_xyz"}, nil, 127, "not found"},
		{[]string{"/no/such"}, nil, 127, "not found"},
		{[]string{"true"}, map[string]string{"PATH": "/nonexistent"}, 127, "not found"},
		{[]string{"true"}, map[string]string{"PATH": ""}, 127, "not found"},
		{[]string{"/etc/passwd"}, nil, 126, "Permission denied"},
		{[]string{"/etc"}, nil, 126, "Permission denied"},
		{[]string{"passwd"}, map[string]string{"PATH": "/nonexistent:/etc"}, 126, "Permission denied"},
		{[]string{"./script"}, nil, 126, "exec format error"},
	} {
		if err := os.WriteFile(tt.Workspace+"/script", []byte("echo hi\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		s := tt.run(Command{Argv: c.argv, Env: c.env}).want("", c.code)
		if errs := s.errs.String(); !strings.Contains(errs, c.says) {
			t.Errorf("%q: stderr %q", c.argv, errs)
		}
	}
}

func TestCommandArgvIsLookedUpInTheCommandsPath(t *testing.T) {
	tt := newCommandTest(t)
	for dir, mode := range map[string]os.FileMode{"a": 0o644, "b": 0o755, "c": 0o755} {
		if err := os.Mkdir(tt.Workspace+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
		script := "#!/bin/sh\necho " + dir + "\n"
		if err := os.WriteFile(tt.Workspace+"/"+dir+"/prog", []byte(script), mode); err != nil {
			t.Fatal(err)
		}
	}
	// a is not executable; b is relative to the command's directory
	tt.run(Command{Argv: []string{"prog"}, Env: map[string]string{"PATH": "/nonexistent:a:b:c"}}).want("b\n", 0)
	tt.run(Command{Argv: []string{"prog"}, Dir: "c", Env: map[string]string{"PATH": ":/usr/bin"}}).want("c\n", 0)
	tt.run(Command{Argv: []string{"./prog"}, Dir: "b"}).want("b\n", 0)
}

func TestCommandIsRefusedBeforeItRuns(t *testing.T) {
	tt := newCommandTest(t)
	one := "x"
	for field, cs := range map[string][]Command{
		"command": {{}, {Text: "a\x00b"}},
		"argv":    {{Argv: []string{}}, {Argv: []string{""}}, {Argv: []string{"a", "\x00"}}, {Text: "true", Argv: []string{"true"}}},
		"cwd": {
			{Text: "true", Dir: "/no/such"}, {Text: "true", Dir: "/etc/passwd"}, {Text: "true", Dir: "$NOT_SET"},
			{Text: "true", Dir: "${NOT_SET}/x"}, {Text: "true", Dir: "a\x00b"}, {Text: "true", Dir: "sub"},
		},
		"envs": {
			{Text: "true", Env: map[string]string{"A B": one}}, {Text: "true", Env: map[string]string{"A=": one}},
			{Text: "true", Env: map[string]string{"A;": one}}, {Text: "true", Env: map[string]string{"": one}},
			{Text: "true", Env: map[string]string{"1A": one}}, {Text: "true", Env: map[string]string{"A": "\x00"}},
			{Text: "true", Env: map[string]string{"A": strings.Repeat("x", 7<<20)}},
			{Text: "true", Env: map[string]string{"A": strings.Repeat("x", 128<<10)}},
		},
		"rlimits": {{Text: "true", Rlimits: map[string]int64{"cpu": 1}}, {Text: "true", Rlimits: map[string]int64{"cpu_s": -1}}},
	} {
		for _, c := range cs {
			tt.refused(c, field)
		}
	}
}

func TestCommandDirectory(t *testing.T) {
	tt := newCommandTest(t)
	for _, dir := range []string{"sub", "sub/deep", "a b", "$x"} {
		if err := os.MkdirAll(tt.Workspace+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ws := tt.Workspace
	env := map[string]string{"D": ws + "/sub", "N": "deep", "HOME": ws}
	for dir, want := range map[string]string{
		"": ws, ".": ws, "sub": ws + "/sub", "a b": ws + "/a b", ws: ws, "/": "/", "$D": ws + "/sub", "$D/$N": ws + "/sub/deep",
		"${D}/deep": ws + "/sub/deep", "~": ws, "~/sub": ws + "/sub", "sub/$N": ws + "/sub/deep", "sub/../sub": ws + "/sub",
	} {
		tt.run(Command{Text: "pwd; /bin/pwd", Dir: dir, Env: env}).want(want+"\n"+want+"\n", 0)
		tt.run(Command{Argv: []string{"sh", "-c", "echo $PWD"}, Dir: dir, Env: env}).want(want+"\n", 0)
	}
	// what is no name after a dollar is itself
	tt.run(Command{Text: "pwd", Dir: "$x", Env: map[string]string{"x": "sub"}}).want(ws+"/sub\n", 0)
}

func TestCommandEnvironment(t *testing.T) {
	tt := newCommandTest(t)
	tt.Env = proctree.BaseEnv([]string{
		"A=base", "B=base", "CELLD_X=1", "EXECD_X=1", "JUPYTER_X=1", "OTEL_X=1", "PWD=/elsewhere", "OLDPWD=/elsewhere", "_=x", "malformed",
	})
	s := tt.run(Command{Argv: []string{"/usr/bin/env"}, Env: map[string]string{"A": "x\ny'z", "C": "", proctree.MarkerEnv: "forged"}, ID: "id-1"})
	home, _ := proctree.Lookup(tt.Env, "HOME")
	want := "B=base\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nLANG=C.UTF-8\nHOME=" + home +
		"\nA=x\ny'z\nC=\nPWD=" + tt.Workspace + "\n" + proctree.MarkerEnv + "=id-1\n"
	s.want(want, 0)
	if home == "" {
		t.Error("HOME is empty")
	}
	tt.run(Command{Text: `echo "[$A]" "${C-unset}"`}).want("[base] unset\n", 0)
	tt.run(Command{Text: `echo ${#BIG}`, Env: map[string]string{"BIG": strings.Repeat("x", 100<<10)}}).want("102400\n", 0)
}

func TestCommandDollarZeroIsBash(t *testing.T) {
	tt := newCommandTest(t)
	tt.sh(`echo "$0 $# [$*] $-"`).want("bash 0 [] hBc\n", 0)
}

func TestCommandRunsAsAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	tt := newCommandTest(t)
	uid, gid := uint32(65534), uint32(12)
	const show = `echo $(id -u) $(id -g) $(id -G) $HOME $USER $LOGNAME`
	tt.run(Command{Text: show, Dir: "/", User: &User{UID: uid}}).want("65534 65534 65534 /nonexistent nobody nobody\n", 0)
	tt.run(Command{Text: show, Dir: "/", User: &User{UID: uid, GID: &gid}}).want("65534 12 12 /nonexistent nobody nobody\n", 0)
	tt.Env = []string{"PATH=/usr/bin:/bin"}
	tt.run(Command{Text: show, Dir: "/", User: &User{UID: 12345}}).want("12345 12345 12345 /\n", 0)
	tt.run(Command{Text: show, Dir: "/", User: &User{UID: uid}, Env: map[string]string{"HOME": "/h"}}).want("65534 65534 65534 /h nobody nobody\n", 0)
	tt.run(Command{Text: "kill -9 $$", Dir: "/", User: &User{UID: uid}}).want("", 137)
	s := tt.begin(Command{Text: `trap "" TERM; setsid sleep 98.31 & echo up; sleep 98.32`, Dir: "/", User: &User{UID: uid}})
	s.out.await("up\n")
	tt.Grace = func(error) time.Duration { return 10 * time.Millisecond }
	s.stop(errors.New("enough"))
	s.end().want("up\n", 137).gone()

	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	s = tt.begin(Command{Text: "pwd", Dir: private, User: &User{UID: uid}})
	<-s.over
	if s.err == nil && s.status.Code == 0 {
		t.Errorf("ran in a directory that it may not enter: %q", s.out.String())
	}
}

// TestCommandTextOfAnyLength: a text that is too long for an argument means the same as a short one.
func TestCommandTextOfAnyLength(t *testing.T) {
	tt := newCommandTest(t)
	tt.Env = proctree.Overlay(tt.Env, "REPLY=mine")
	comment := "#" + strings.Repeat("x", 200<<10) + "\n"
	bashArgs := `echo "$0 $# [$*] [$REPLY] ${BASH_SOURCE[0]}"`
	texts := []string{
		bashArgs, "exit 5", "kill -9 $$", "false", "ls /proc/self/fd", `return 3; echo "rc=$?"`, "cat", "read x; echo $?",
		"cat <<'X'\nl1 $Y\n  l2\nX", "cat <<EOF\nhi\n\n\n", `echo a\`, `printf 'a\nb\n'; exit 7`, "echo a\n)", "if true; then echo x",
		"echo $LINENO; echo hi # note", "set -u; echo $nope", "set -e; false; echo no", "f() { echo f; }; f; declare -F f", "echo 'é漢😀'",
		"printf '\\377' | od -An -tx1", "trap 'echo bye' EXIT; exit 4", "alias e=echo; shopt expand_aliases", `x=$(cat <<'X'
in
X
); echo "$x"`,
	}
	for _, text := range texts {
		short, long := tt.sh(text), tt.sh(comment+text)
		if text == "echo $LINENO; echo hi # note" {
			long.want("2\nhi\n", 0)
			continue
		}
		if s, l := short.out.String(), long.out.String(); s != l || short.status.Code != long.status.Code {
			t.Errorf("%q: short %q status %d, long %q status %d, stderr %q", text, s, short.status.Code, l, long.status.Code, clip(long.errs.String()))
		}
	}
	tt.sh("echo "+strings.Repeat("y", 5<<20)+" | wc -c").want("5242881\n", 0)
	// short by itself, too much together with the environment
	env := make(map[string]string)
	for i := range 15 {
		env[fmt.Sprintf("V%d", i)] = strings.Repeat("v", 125<<10)
	}
	tt.run(Command{Text: "#" + strings.Repeat("x", 120<<10) + "\necho ${#V14}", Env: env}).want("128000\n", 0)
}

func TestCommandWithoutBashUsesSh(t *testing.T) {
	tt := newCommandTest(t)
	tt.setup.Do(tt.settleIn)
	tt.shell, _ = findShell(tt.Env, "sh")
	for _, comment := range []string{"", "#" + strings.Repeat("x", 1<<20) + "\n"} {
		tt.sh(comment+`echo "$0 $# [$*]"; exit 5`).want("bash 0 []\n", 5)
		tt.sh(comment+"cat; nosuchcmd_xyz").want("", 127)
	}
	tt.shell = shellProgram{}
	if _, err := tt.Prepare(Command{Text: "true"}); !errors.Is(err, ErrNoShell) {
		t.Errorf("error %v", err)
	}
	tt.run(Command{Argv: []string{"echo", "hi"}}).want("hi\n", 0)
}

func TestCommandStdoutAndStderrAreApart(t *testing.T) {
	tt := newCommandTest(t)
	s := tt.sh(`echo out; echo err >&2; printf 'no newline'; printf 'no nl' >&2; exit 4`).want("out\nno newline", 4)
	if errs := s.errs.String(); errs != "err\nno nl" {
		t.Errorf("stderr %q", errs)
	}
	if errs := tt.sh("set -x; echo hi").want("hi\n", 0).errs.String(); errs != "+ echo hi\n" {
		t.Errorf("stderr %q", errs)
	}
}

func TestCommandOutputArrivesWhileItRuns(t *testing.T) {
	tt := newCommandTest(t)
	s := tt.begin(Command{Text: `printf 'Password: '; read -r x; echo "got $x"`, StdinOpen: true})
	s.out.await("Password: ")
	if err := s.Prepared.Stdin(t.Context(), []byte("secret\n"), false); err != nil {
		t.Fatal(err)
	}
	s.end().want("Password: got secret\n", 0)
}

func TestCommandLargeOutput(t *testing.T) {
	tt := newCommandTest(t)
	for text, want := range map[string]string{
		"seq 1 300000 | wc -c; seq 1 300000":                             "1988895\n" + seq(300000),
		"yes | head -n 1000":                                             strings.Repeat("y\n", 1000),
		`head -c 20000000 /dev/zero | tr '\0' x; echo; echo END; exit 6`: strings.Repeat("x", 20000000) + "\nEND\n",
	} {
		code := 0
		if strings.Contains(text, "exit 6") {
			code = 6
		}
		tt.sh(text).want(want, code)
	}
	if n := len(tt.sh("head -c 500000 /dev/urandom | base64").out.String()); n != 675440 {
		t.Errorf("%d bytes", n)
	}
}

func seq(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// gate is a writer that lets nothing through until it is opened or the context is done.
type gate struct {
	ctx  context.Context
	open chan struct{}
	came chan struct{} // closed by the first Write
	once sync.Once
	sink
}

func newGate(ctx context.Context) *gate {
	return &gate{ctx: ctx, open: make(chan struct{}), came: make(chan struct{})}
}

func (g *gate) Write(p []byte) (int, error) {
	g.once.Do(func() { close(g.came) })
	select {
	case <-g.open:
	case <-g.ctx.Done():
	}
	return g.sink.Write(p)
}

func TestCommandWaitsForASlowWriter(t *testing.T) {
	tt := newCommandTest(t)
	g := newGate(context.Background())
	// stderr says how far it has come: not beyond what the pipe and one buffer hold
	s := tt.begin(Command{Text: "for i in {1..100}; do head -c 10000 /dev/zero; echo $i >&2; done", Stdout: g})
	<-g.came
	close(g.open)
	s.end()
	if n := g.buf.Len(); n != 1000000 || !strings.HasSuffix(s.errs.String(), "\n100\n") {
		t.Errorf("%d bytes", n)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	g = newGate(ctx)
	var errs sink
	p, err := tt.Prepare(Command{Text: "echo up >&2; yes", Stdout: g, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan proctree.Status)
	go func() {
		status, _ := p.Run(ctx)
		over <- status
	}()
	errs.await("up\n")
	<-g.came
	cancel(errors.New("client gone"))
	if st := <-over; st.Code != 143 {
		t.Errorf("status %+v", st)
	}
}
