package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// step is one command in a session and what must come of it. A nil out is not looked at.
type step struct {
	text string
	out  []string // lines of stdout
	code int
	more m
}

// said is what stdout must be.
func said(text ...string) []string { return append([]string{}, text...) }

func TestSessions(t *testing.T) {
	d := start(t, launch{})
	scripts := map[string][]step{
		"state is kept": {
			{text: "export A=old; B=plain; f() { echo f:$1; }; alias ll='echo aliased'; shopt -s expand_aliases; cd /usr; umask 027; set -f"},
			{text: "echo $A $B $PWD $(umask) $-; f x; ll", out: nil},
			{text: "echo $A $B $PWD $(umask); f x; ll", out: said("old plain /usr 0027", "f:x", "aliased")},
			{text: "false", code: 1},
			{text: "echo $?", out: said("1")},
		},
		"variables of one run": {
			{text: "export A=old; B=plain"},
			{text: "echo $A$B", out: said("newt"), more: m{"envs": m{"A": "new", "B": "t"}}},
			{text: "echo $A$B; env | grep ^B=", out: said("oldplain"), code: 1},
			{text: `printf '%s\n' "$C"`, out: said("x", "y'z"), more: m{"envs": m{"C": "x\ny'z"}}},
			{text: "echo [$C]", out: said("[]")},
		},
		"text that is not finished": {
			{text: "Q=1; cat <<'X' > $PWD/h1\nl1\n  l2\nX"},
			{text: "cat h1; rm h1", out: said("l1", "  l2")},
			{text: "cat <<EOF\nhi", out: said("hi")},
			{text: "echo 'oops", out: said(), code: 2},
			{text: "if true; then echo x", out: said(), code: 2},
			{text: "echo hi # note", out: said("hi")},
			{text: "echo a; )", code: 2},
			{text: "python3 - <<'PY'\nprint(1)\nPY", out: said("1")},
			{text: "echo alive $Q", out: said("alive 1")},
		},
		"the text ends the shell": {
			{text: "export K=1; cd /tmp; exit 3", code: 3},
			{text: "K=1; export K; cd /tmp"},
			{text: "exec true"},
			{text: "echo ok:$K:$PWD", out: said("ok:1:/tmp")},
			{text: "set -e; false; echo no", out: said(), code: 1},
			{text: "echo ok:$K:$PWD", out: said("ok:1:/tmp")},
			{text: "kill -9 $$", code: 137},
			{text: "echo ok:$K:$PWD", out: said("ok:1:/tmp")},
			{text: "exec 1>&-"},
			{text: "echo ok:$K:$PWD", out: said("ok:1:/tmp")},
			{text: "return 5", code: 5},
			{text: "echo ok:$K:$PWD", out: said("ok:1:/tmp")},
		},
		"a run at its limit": {
			{text: "export K=7; cd /usr; sleep 98.51 & echo $!"},
			{text: "sleep 98.52 | cat", code: 130, more: m{"timeout": 300}},
			{text: "while :; do :; done", code: 130, more: m{"timeout": 300}},
			{text: "echo $K $PWD; kill %1", out: said("7 /usr")},
		},
		"nothing to read": {
			{text: "cat; echo rc=$?", out: said("rc=0")},
			{text: `read -r x; echo "got:[$x] $?"`, out: said("got:[] 1")},
			{text: "cat", out: said("given"), more: m{"stdin": "given\n"}},
			{text: "echo next", out: said("next")},
		},
		"directories": {
			{text: "pwd", out: said("/usr"), more: m{"cwd": "/usr"}},
			{text: "pwd", out: said("/usr/bin"), more: m{"cwd": "bin"}},
			{text: "cd /; mkdir -p " + d.ws + "/gone && cd " + d.ws + "/gone && rm -rf ../gone"},
			{text: "echo ok", out: said("ok")},
		},
		"jobs": {
			{text: "sleep 98.53 & echo started", out: said("started")},
			{text: "kill -0 $! && echo up; jobs | wc -l", out: said("up", "1")},
			{text: "kill %1; wait %1", code: 143},
		},
		"every name is taken": {
			{text: "cd() { echo no; }; printf() { echo no; }; echo() { builtin echo mine; }; eval() { :; }; builtin() { :; }; exit() { :; }; source() { :; }"},
			{text: "true"},
			{text: "unset -f echo builtin; command echo ok", out: said("ok")},
		},
	}
	for name, steps := range scripts {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			for _, s := range steps {
				o := d.inSession(id, s.text, s.more)
				if o.code != s.code {
					t.Errorf("%q: status %d (%+v), want %d; stderr %q", s.text, o.code, o.end.Error, s.code, o.stderr)
				}
				if s.out != nil && !slices.Equal(o.stdout, s.out) {
					t.Errorf("%q: stdout %q, want %q", s.text, o.stdout, s.out)
				}
			}
			if code := d.call("DELETE", "/session/"+id, nil, nil); code != 200 {
				t.Errorf("delete: %d", code)
			}
		})
	}
	t.Run("limits are named", func(t *testing.T) {
		if o := d.inSession("l", "sleep 98.54", m{"timeout": 100}); o.failed() != "CommandTimeout" {
			t.Errorf("%+v", o.end)
		}
		s := d.open("/session/l/run", m{"command": "echo up; sleep 98.55"})
		s.until(prints("up"))
		if code := d.call("DELETE", "/session/l/run", nil, nil); code != 200 {
			t.Errorf("interrupt: %d", code)
		}
		if o := s.rest(); o.failed() != "CommandInterrupted" {
			t.Errorf("%+v", o.end)
		}
	})
	t.Run("a death is told", func(t *testing.T) {
		o := d.inSession("dies", "x=1; exit 4")
		if !slices.ContainsFunc(o.events, func(e event) bool { return e.Type == "status" && e.State == "session_replaced" }) {
			t.Errorf("%+v", o.events)
		}
	})
	t.Run("runs queue, sessions don't wait for each other", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				o := d.inSession("queue", fmt.Sprintf("echo S%d; read -t 0.05 </dev/tcp/none 2>/dev/null; echo E%d; (exit %d)", i, i, i))
				if !slices.Equal(o.stdout, said(fmt.Sprint("S", i), fmt.Sprint("E", i))) || o.code != i {
					t.Errorf("run %d: %q %d", i, o.stdout, o.code)
				}
			})
		}
		wg.Wait()
		slow := d.open("/session/slow/run", m{"command": "echo up; sleep 98.56", "create": true})
		slow.until(prints("up"))
		if o := d.inSession("quick", "echo hi"); !slices.Equal(o.stdout, said("hi")) {
			t.Errorf("%q", o.stdout)
		}
		if code := d.call("DELETE", "/session/slow", nil, nil); code != 200 {
			t.Errorf("delete: %d", code)
		}
		if o := slow.rest(); o.failed() != "CommandInterrupted" {
			t.Errorf("%+v", o.end)
		}
	})
	t.Run("commands in and beside a session", func(t *testing.T) {
		d.inSession("both", "cd /usr; V=1; export W=2; g() { echo g:$V$W; }")
		if o := d.command("g; pwd; V=3", m{"session_id": "both"}); !slices.Equal(o.stdout, said("g:12", "/usr")) || o.init.Text != o.init.ID {
			t.Errorf("in: %q %+v", o.stdout, o.init)
		}
		hold := d.open("/session/both/run", m{"command": "echo up; sleep 98.57"})
		hold.until(prints("up"))
		o := d.command("g; pwd; V=9", m{"session_id": "both", "background": true})
		end := d.open("/executions/"+o.init.ID+"/events", nil).rest()
		if !slices.Equal(end.stdout, said("g:32", "/usr")) {
			t.Errorf("beside: %q %+v", end.stdout, end.end)
		}
		d.call("DELETE", "/session/both/run", nil, nil)
		hold.rest()
		if o := d.inSession("both", "echo $V"); !slices.Equal(o.stdout, said("3")) {
			t.Errorf("afterwards: %q", o.stdout)
		}
	})
	t.Run("late output of a job goes to the session's log", func(t *testing.T) {
		fifo := d.ws + "/go"
		d.inSession("late", "mkfifo "+fifo+"; (read <"+fifo+"; echo late) & ")
		if o := d.inSession("late", "echo x >"+fifo+"; wait; echo done"); !slices.Equal(o.stdout, said("done")) {
			t.Errorf("%q", o.stdout)
		}
		text := ""
		for text == "" { // it comes on a way of its own
			resp := d.do("GET", "/session/late/logs", nil)
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("log: %d %v", resp.StatusCode, err)
			}
			text = string(b)
		}
		if text != "late\n" {
			t.Errorf("log: %q", text)
		}
	})
	t.Run("made, found and refused", func(t *testing.T) {
		var made struct {
			ID string `json:"session_id"`
		}
		if code := d.call("POST", "/session", nil, &made); code != 200 || made.ID == "" {
			t.Errorf("%d %+v", code, made)
		}
		if code := d.call("POST", "/session", m{"id": "own", "cwd": "/usr", "envs": m{"X": "1"}, "timeout": 60_000}, &made); code != 200 || made.ID != "own" {
			t.Errorf("%d %+v", code, made)
		}
		if o := d.inSession("own", "echo $PWD $X"); !slices.Equal(o.stdout, said("/usr 1")) {
			t.Errorf("%q", o.stdout)
		}
		d.refused(409, "POST", "/session", m{"id": "own"})
		d.refused(400, "POST", "/session", m{"id": "../../x"})
		d.refused(400, "POST", "/session", m{"cwd": "/no/such"})
		d.refused(400, "POST", "/session", m{"cwd": "/etc/passwd"})
		d.refused(400, "POST", "/session", m{"gid": 1})
		d.refused(400, "POST", "/session", m{"envs": m{"A B": "x"}})
		d.refused(404, "POST", "/session/none/run", m{"command": "true"})
		d.refused(400, "POST", "/session/own/run", m{"command": ""})
		d.refused(400, "POST", "/session/own/run", m{"command": "true", "cwd": "/no/such"})
		d.refused(400, "POST", "/session/own/run", m{"command": "true", "timeout": -1})
		d.refused(400, "POST", "/session/own/run", m{"command": "true", "envs": m{"=": "x"}})
		d.refused(409, "DELETE", "/session/default", nil)
		d.refused(404, "GET", "/session/none", nil)
		var list []struct{ ID string }
		d.call("GET", "/session", nil, &list)
		for _, want := range []string{"own", "default"} {
			if !slices.ContainsFunc(list, func(s struct{ ID string }) bool { return s.ID == want }) {
				t.Errorf("%s is not in %+v", want, list)
			}
		}
		d.call("DELETE", "/session/own", nil, nil)
		d.refused(404, "DELETE", "/session/own", nil)
	})
	t.Run("binary output is exact", func(t *testing.T) {
		if err := os.WriteFile(d.ws+"/bytes", allBytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for _, e := range d.inSession("bytes", "cat "+d.ws+"/bytes", m{"output": "base64"}).events {
			got = append(got, e.Data...)
		}
		if !slices.Equal(got, allBytes()) {
			t.Errorf("%d bytes of %d", len(got), len(allBytes()))
		}
	})
}

// allBytes is a text with every pair of bytes.
func allBytes() []byte {
	var b []byte
	for i := range 256 {
		for j := range 256 {
			b = append(b, byte(i), byte(j))
		}
	}
	return b
}
