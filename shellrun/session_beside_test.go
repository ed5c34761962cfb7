package shellrun

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestBesideBeginsWhereTheSessionIs(t *testing.T) {
	s := open(t, testSessions(t))
	s.run(`cd /usr; export E='a b'; P=plain; arr=(x "y z"); declare -A m=([k]=v); f() { echo f:$P; }; alias ll='echo aliased'
umask 027; ulimit -n 400; trap 'echo bye' EXIT; set -o pipefail; shopt -s extglob nullglob; set -- one two`)
	r := &Runner{Workspace: "/", Env: testEnv()}
	run := func(c Command) (string, int) {
		t.Helper()
		var out, errs bytes.Buffer
		c.ID, c.Stdout, c.Stderr = nonce(), &out, &errs
		c, err := s.Beside(c)
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.Prepare(c)
		if err != nil {
			t.Fatal(err)
		}
		status, err := p.Run(t.Context())
		if err != nil || errs.String() != "" {
			t.Errorf("%q: %v, standard error %q", c.Text, err, errs.String())
		}
		return out.String(), status.Code
	}
	for _, c := range []struct {
		Command
		out  string
		code int
	}{
		{Command{Text: `pwd; echo "$E" $P "${arr[1]}" ${m[k]}; f; ll; umask; ulimit -n; (exit 3) | true`},
			"/usr\na b plain y z v\nf:plain\naliased\n0027\n400\n", 3},
		{Command{Text: "echo $0 $# .$BASH_ENV.; ls -l /proc/self/fd | grep -c memfd; env | grep -c '^E='; exit 5"}, "bash 0 ..\n0\n1\n", 5},
		{Command{Text: "# " + strings.Repeat("x", 200_000) + "\necho $E; ls -l /proc/self/fd | grep memfd"}, "a b\n", 1},
		{Command{Text: "pwd; echo $E $PWD $OLDPWD", Dir: "lib", Env: map[string]string{"E": "mine", "P": "p"}}, "/usr/lib\nmine /usr/lib\n", 0},
		{Command{Text: "echo $CELLD_EXECUTION_ID | wc -c; P=changed"}, "33\n", 0},
	} {
		if out, code := run(c.Command); out != c.out || code != c.code {
			t.Errorf("%q: exit %d, %q; want exit %d, %q", clip(c.Text), code, out, c.code, c.out)
		}
	}
	s.want("echo $P", "plain\n", 0)
	var bad *RequestError
	for _, c := range []Command{{Argv: []string{"ls"}}, {Text: "x", Dir: "/no/such"}, {Text: "x", Env: map[string]string{"a b": ""}}} {
		if _, err := s.Beside(c); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestBesideDoesNotHoldTheQueueAndEndsWithTheSession(t *testing.T) {
	h := testSessions(t)
	h.patience.kill = time.Minute // whoever obeys ends before
	s := open(t, h)
	r := &Runner{Workspace: "/", Env: testEnv()}
	started, ended := make(chan struct{}), make(chan int)
	go func() {
		out := &beacon{text: "go", hit: func() { close(started) }}
		c, err := s.Beside(Command{ID: nonce(), Text: "echo go; exec sleep 98.8", Stdout: out})
		if err != nil {
			t.Error(err)
		}
		p, err := r.Prepare(c)
		if err != nil {
			t.Error(err)
		}
		status, err := p.Run(t.Context())
		if err != nil {
			t.Error(err)
		}
		ended <- status.Code
	}()
	<-started
	s.want("sleep 0.01 & wait; jobs", "", 0)
	s.run("exit 1")
	s.alive()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if code := <-ended; code != 143 {
		t.Errorf("the command ended with status %d", code)
	}
}

func TestBesideRunsAsTheSessionsUser(t *testing.T) {
	s := open(t, testSessions(t), asNobody)
	s.run("K=7; f() { echo $K; }")
	r := &Runner{Workspace: "/", Env: testEnv()}
	var out, errs bytes.Buffer
	c, err := s.Beside(Command{ID: nonce(), Text: "f; id -u\n#" + strings.Repeat("x", 200_000), Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Run(t.Context()); err != nil || status.Code != 0 || out.String() != "7\n65534\n" || errs.String() != "" {
		t.Errorf("status %d, %v, %q, %q", status.Code, err, out.String(), errs.String())
	}
}
