package shellrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sealed is a stream of one run: what comes after the run's end is an error.
type sealed struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	over bool
	late bool
}

func (s *sealed) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = s.late || s.over
	return s.buf.Write(p)
}

func (s *sealed) seal() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.buf.String()
}

// model is what a session must remember.
type model struct {
	cwd    string
	vars   map[string]string
	status int
}

// bashString draws any bytes but NUL, and bashQuote writes them for bash.
func bashString(rt *rapid.T, label string) string {
	return strings.ReplaceAll(string(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, label)), "\x00", "")
}

// printfBytes is a command that prints b.
func printfBytes(b []byte) string {
	var s strings.Builder
	s.WriteString("printf '")
	for _, c := range b {
		fmt.Fprintf(&s, `\%03o`, c)
	}
	return s.String() + "'"
}

// TestSessionIsWhatAModelSays runs random commands and checks, after each, state, streams and status against a model:
// what runs change stays, whatever ends a shell takes nothing of finished runs away, what is for one run is gone after it.
func TestSessionIsWhatAModelSays(t *testing.T) {
	h := testSessions(t)
	dirs := []string{"/", "/tmp", "/usr/lib", "/var/run"} // the last is a link
	rapid.Check(t, func(rt *rapid.T) {
		s := openLoose(t, h)
		defer s.Close(context.Background())
		m := model{cwd: "/", vars: map[string]string{}}
		run := func(text string, change ...func(*SessionRun)) result {
			out, errs := &sealed{}, &sealed{}
			res, err := s.try(t.Context(), text, append(change, func(r *SessionRun) { r.Stdout, r.Stderr = out, errs })...)
			if err != nil {
				rt.Fatalf("run %q: %v", clip(text), err)
			}
			res.out, res.err = out.seal(), errs.seal()
			if out.late || errs.late {
				rt.Fatalf("run %q: output after the end", clip(text))
			}
			return res
		}
		names := rapid.SampledFrom([]string{"A", "B", "PATH", "c_3", "IFS"})
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) {
				name, value := names.Draw(rt, "name"), bashString(rt, "value")
				how := rapid.SampledFrom([]string{"", "export ", "declare "}).Draw(rt, "how")
				if res := run(how + name + "=" + quote(value)); res.Code != 0 || res.err != "" {
					rt.Fatal(res)
				}
				m.vars[name], m.status = value, 0
			},
			"unset": func(rt *rapid.T) {
				name := names.Draw(rt, "name")
				run("unset " + name)
				delete(m.vars, name)
				m.status = 0
			},
			"cd": func(rt *rapid.T) {
				dir := rapid.SampledFrom(dirs).Draw(rt, "dir")
				if rapid.Bool().Draw(rt, "by request") {
					run(":", func(r *SessionRun) { r.Dir = dir })
				} else {
					run("cd " + dir)
				}
				m.cwd, m.status = dir, 0
			},
			"fail": func(rt *rapid.T) {
				m.status = rapid.IntRange(0, 255).Draw(rt, "status")
				if res := run(fmt.Sprintf("return %d", m.status)); res.Code != m.status {
					rt.Fatal(res)
				}
			},
			"end": func(rt *rapid.T) {
				end := rapid.SampledFrom([]string{"exit %d", "builtin exit %[1]d; :", "exec /bin/sh -c 'exit %d'", "set -e; /bin/sh -c 'exit %d'; :"}).Draw(rt, "end")
				status := rapid.IntRange(1, 255).Draw(rt, "status")
				if res := run("A=lost; cd /dev; " + fmt.Sprintf(end, status)); res.Code != status || !res.Ended {
					rt.Fatal(res)
				}
				m.status = status
			},
			"print": func(rt *rapid.T) {
				out := rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(rt, "out")
				errs := rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(rt, "err")
				res := run(printfBytes(out) + "; " + printfBytes(errs) + " >&2")
				if res.out != string(out) || res.err != string(errs) || res.Code != 0 {
					rt.Fatal(res)
				}
				m.status = 0
			},
			"environment": func(rt *rapid.T) {
				name, value := names.Draw(rt, "name"), bashString(rt, "value")
				res := run("printf '%s' \"$"+name+"\"; "+name+"=changed", func(r *SessionRun) { r.Env = map[string]string{name: value} })
				if res.out != value {
					rt.Fatal(res)
				}
				m.status = 0
			},
			"interrupt": func(rt *rapid.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				out := &beacon{text: "go", hit: func() { cancel(errors.New("enough")) }}
				text := rapid.SampledFrom([]string{"while :; do :; done", "/bin/sleep 99.1", "/bin/sleep 99.2 & wait", "f() { f2; }; f2() { until false; do :; done; }; f"}).Draw(rt, "text")
				id := nonce()
				res, err := s.try(ctx, "echo go; "+text, func(r *SessionRun) { r.ID, r.Stdout = id, out })
				if err != nil || res.Code != 130 || res.Ended || len(marked(t, id)) > 0 {
					rt.Fatal(res, err)
				}
				m.status = 130
			},
			"nonsense": func(rt *rapid.T) {
				text := rapid.SampledFrom([]string{"echo 'x", "if", "cat <<E", "a; )", "${", "exec 7>&1 8>&-"}).Draw(rt, "text")
				m.status = run(text).Code
			},
			"job": func(rt *rapid.T) {
				run("(/bin/sleep 0.01; echo late; echo later >&2) &")
				m.status = 0
			},
			"": func(rt *rapid.T) {
				res := run(`printf '%s\0' "$?" "$PWD" "${A-unset}" "${B-unset}" "${c_3-unset}"`)
				want := fmt.Sprintf("%d\x00%s\x00", m.status, m.cwd)
				for _, name := range []string{"A", "B", "c_3"} {
					value, ok := m.vars[name]
					if !ok {
						value = "unset"
					}
					want += value + "\x00"
				}
				if got := res.out; got != want {
					rt.Fatalf("the session says %q, the model %q; %v", got, want, res)
				}
				m.status = 0
			},
		})
	})
}

// TestSessionAnswersAfterAnything strings hostile commands together: every run ends soon after its deadline, and the
// session answers.
func TestSessionAnswersAfterAnything(t *testing.T) {
	h := testSessions(t)
	h.patience = usualPatience()
	pieces := rapid.SampledFrom([]string{
		"sleep 99.3", "sleep 99.31 &", "while :; do :; done", "trap '' TERM INT", "trap 'echo d' DEBUG", "trap : ERR RETURN EXIT",
		"set -e", "set -x", "set -u", "set -v", "set -T", "set -m", "set -f", "set -k", "set -o posix", "shopt -s extdebug failglob",
		"builtin() { :; }", "exec() { :; }", "echo() { :; }", "alias {=x !=y builtin=z", "exec >/dev/null", "exec 2>&1", "exec 1>&- 2>&- 0<&-",
		"readonly A B PATH", "unset PATH", "IFS=0123", "false", "kill -STOP $$", "(exit 7)", "f() { f; }", "cat", "yes | head -n 1000 >/dev/null",
		"ulimit -n 40", "ulimit -f 1", "cd /nonexistent", "$(", "'", "wait", "coproc cat", "exec 9>&1", "disown -a", "enable -n cd", "hash -r",
		"BASH_ENV=/x POSIXLY_CORRECT=", "unset -f builtin exec", "set +exvTkm", "trap - DEBUG ERR RETURN", "LC_ALL=C", "set -- a b c",
	})
	rapid.Check(t, func(rt *rapid.T) {
		s := openLoose(t, h, func(c *SessionConfig) { c.Dir = "/tmp" })
		defer s.Close(context.Background())
		for range rapid.IntRange(1, 4).Draw(rt, "runs") {
			text := strings.Join(rapid.SliceOfN(pieces, 1, 5).Draw(rt, "pieces"), rapid.SampledFrom([]string{"; ", "\n", " | "}).Draw(rt, "glue"))
			id := nonce()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			patience, stop := context.WithTimeout(t.Context(), time.Minute)
			done := make(chan struct{})
			var res result
			var err error
			go func() {
				defer close(done)
				res, err = s.try(ctx, text, func(r *SessionRun) { r.ID = id })
			}()
			select {
			case <-done:
			case <-patience.Done():
				rt.Errorf("run %q doesn't end", text)
				<-done
			}
			stop()
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				rt.Errorf("run %q: %v", text, err)
			}
			if left := marked(t, id); res.Broken && len(left) > 0 {
				rt.Errorf("run %q was stopped and has left %v", text, left)
			}
		}
		answers := 0
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if res, err := s.try(ctx, "return 42"); err == nil && res.Code == 42 {
				answers++
			}
			cancel()
		}
		if answers < 2 {
			rt.Errorf("%d of 3 answers", answers)
		}
	})
}

func FuzzSplitSnapshot(f *testing.F) {
	f.Add([]byte("m\ntrap -- 'a\nb' EXIT\nalias x='y'\numask 0022\ndeclare -- A=\"b\"\ndeclare -f f\nf () \n{ \n    :\n}\nm end\n"))
	f.Add([]byte("m\ndeclare -- A=$'\\'\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := splitSnapshot(b, "m")
		if !ok {
			return
		}
		var commandsTogether []byte
		for c := range commands(p.variables) {
			commandsTogether = append(commandsTogether, c...)
		}
		if !bytes.Equal(commandsTogether, p.variables) {
			t.Errorf("commands lose bytes of %q", p.variables)
		}
		_ = exported(p.variables)
		_ = restoreScript(p, restored, "")
	})
}

// TestSessionStateOutlivesItsShell gives a session a random state and ends its shell: the next one says the same of itself.
func TestSessionStateOutlivesItsShell(t *testing.T) {
	h := testSessions(t)
	const ask = `declare -p v arr m n low ref 2>/dev/null; alias; trap -p USR1 USR2 EXIT; shopt; set -o; umask; ulimit -Sa; ulimit -Ha
declare -f; declare -F; pwd; echo "${OLDPWD-}|$#|$*|$-"; env | grep -v -e '^_=' -e '^CELLD_' -e '^SHLVL=' | sort`
	options := []string{"allexport", "braceexpand", "errtrace", "functrace", "hashall", "monitor", "noclobber", "noglob",
		"notify", "nounset", "physical", "pipefail", "posix", "keyword"}
	shopts := []string{"autocd", "cdspell", "dotglob", "expand_aliases", "extglob", "failglob", "globstar", "lastpipe",
		"nocaseglob", "nullglob", "xpg_echo", "inherit_errexit", "localvar_inherit", "extdebug"}
	rapid.Check(t, func(rt *rapid.T) {
		s := openLoose(t, h)
		defer s.Close(context.Background())
		str := func(label string) string { return quote(bashString(rt, label)) }
		lines := []string{
			"v=" + str("v"), "arr=(" + str("a0") + " [7]=" + str("a7") + ")", "declare -A m=([" + str("key") + "x]=" + str("value") + ")",
			"declare -i n=5; declare -l low=" + str("low") + "; declare -n ref=v", "export E=" + str("export"),
			"alias al=" + str("alias"), "trap -- " + str("trap") + " USR1", "trap '' USR2", "trap 'true' EXIT",
			"f() { local x=" + str("in f") + "; cat <<E\n$x\nE\n}; declare -ft f", "g-h() { if true; then for i in 1 2; do :; done; fi; }",
			"umask 0" + rapid.StringMatching("[0-7]{3}").Draw(rt, "umask"), "ulimit -Sn 600; ulimit -c 0", "cd /var/run",
			"set -- " + str("1") + " " + str("2"), "readonly v", "unset HOME TERM", "declare -x unset_yet",
		}
		lines = rapid.Permutation(lines).Draw(rt, "lines")[:rapid.IntRange(3, len(lines)).Draw(rt, "count")]
		for _, o := range rapid.SliceOfDistinct(rapid.SampledFrom(shopts), rapid.ID).Draw(rt, "shopt") {
			lines = append(lines, "shopt "+rapid.SampledFrom([]string{"-s ", "-u "}).Draw(rt, "switch")+o)
		}
		for _, o := range rapid.SliceOfDistinct(rapid.SampledFrom(options), rapid.ID).Draw(rt, "set") {
			lines = append(lines, "set "+rapid.SampledFrom([]string{"-o ", "+o "}).Draw(rt, "switch")+o)
		}
		s.run(strings.Join(lines, "\n"))
		before := s.run(ask)
		if res := s.run("alias al=lost\nexport NEW=lost\nkill -9 $$"); !res.Ended {
			rt.Fatal(res)
		}
		after := s.run(ask)
		if before.out != after.out {
			rt.Fatalf("after %q:\n%s", lines, difference(before.out, after.out))
		}
	})
}

// difference shows the lines that only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, text, other string }{{"-", a, b}, {"+", b, a}} {
		for line := range strings.Lines(side.text) {
			if !strings.Contains("\n"+side.other, "\n"+line) {
				out.WriteString(side.mark + line)
			}
		}
	}
	return out.String()
}
