package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCommands(t *testing.T) {
	start(t, launch{}).each(t, map[string]func(*daemon){
		"ends with its shell, whoever holds its pipes":        endsWithItsShell,
		"a limit ends the whole tree":                         limitEndsTheTree,
		"an interrupt ends the whole tree":                    interruptEndsTheTree,
		"a client that goes away ends the whole tree":         disconnectEndsTheTree,
		"can go on without its client":                        goesOnWithoutClient,
		"can be stopped as soon as its id is known":           stoppedAtOnce,
		"exit statuses are the shell's":                       exitStatuses,
		"characters are never cut":                            charactersStayWhole,
		"a line may be of any length":                         longLine,
		"lines are cut at every kind of end":                  lineEnds,
		"output is exact":                                     exactOutput,
		"raw output comes at once":                            rawOutput,
		"base64 carries any byte":                             base64Output,
		"standard input is empty, a text, or open":            standardInput,
		"argv runs without a shell":                           argvCommand,
		"the text may be of any length":                       longText,
		"here-documents are byte-exact":                       hereDocuments,
		"has its own environment":                             ownEnvironment,
		"starts in the directory that is asked for":           directory,
		"a wrong request is refused before anything runs":     refusedCommands,
		"leaves nothing to the next one":                      isolated,
		"many at once don't mix":                              manyAtOnce,
		"a stopped tree of stubborn processes takes one term": stubbornTree,
	})
}

func endsWithItsShell(d *daemon) {
	for _, c := range []struct {
		text string
		out  string
		code int
	}{
		{"sleep 971.1 & echo started", "started", 0},
		{"(setsid sleep 971.2 &) ; echo two; exit 3", "two", 3},
		{"nohup sleep 971.3 >/dev/null 2>&1 & echo three", "three", 0},
		{"sleep 971.4 | sleep 971.4 & echo four; exit 5", "four", 5},
		{"exec 3>&1; (exec sleep 971.5) & printf five", "five", 0},
	} {
		h := d.holder()
		o := d.command(h.held(c.text))
		if !slices.Equal(o.stdout, []string{c.out}) {
			d.t.Errorf("%s: %q", c.text, o.stdout)
		}
		d.exits(o, c.code)
		if !h.isHeld() {
			d.t.Errorf("%s: its child died with it", c.text)
		}
		if got := d.call("DELETE", "/command?id="+o.init.ID, nil, nil); got != http.StatusOK {
			d.t.Errorf("%s: end what is left: %d", c.text, got)
		}
		h.wait()
	}
	d.inSession("jobs", "sleep 971.6 & echo $! >"+d.ws+"/job")
	if o := d.inSession("jobs", "kill -0 $(<"+d.ws+"/job) && echo up; kill $!"); !slices.Equal(o.stdout, []string{"up"}) {
		d.t.Errorf("job of an earlier run: %q", o.stdout)
	}
}

func limitEndsTheTree(d *daemon) {
	type command struct {
		first, then string
		code        int
	}
	type run struct {
		command
		held *holder
		seen *witness
		*stream
	}
	todo := []command{
		{"", "sleep 972.1 | cat", 143},
		{"", "(sleep 972.2)", 143},
		{"", "sleep 972.21 & wait", 143},
		{"trap '' TERM INT", "while :; do sleep 972.3; done", 137},
		{"", "bash -c 'sleep 972.22; true'", 143},
		{"", "sleep 972.23", 143},
		{"", "cat <(sleep 972.4)", 143},
		{"", "setsid bash -c 'trap \"\" TERM; sleep 972.5; :' & wait", 143},
		{"trap 'exit 7' TERM", "sleep 972.6 & wait", 7}, // its own choice
	}
	for limit := time.Second; len(todo) > 0; limit *= 2 { // until it is long enough for what comes first
		var runs []run
		for _, c := range todo {
			h, w := d.holder(), d.witness()
			text := h.held("echo first; " + c.first + "\n" + w.seen() + "; " + c.then)
			runs = append(runs, run{c, h, w, d.open("/command", m{"command": text, "timeout": limit.Milliseconds()})})
		}
		todo = nil
		for _, r := range runs {
			o := r.rest()
			r.held.wait()
			if !r.seen.wasSeen() {
				todo = append(todo, r.command)
				continue
			}
			if !slices.Equal(o.stdout, []string{"first"}) {
				d.t.Errorf("%s: %q", r.then, o.stdout)
			}
			s := d.status(o.init.ID)
			d.ended(o, "CommandTimeout", killedAt(s, limit, r.code))
			if took := s.FinishedAt.Sub(s.StartedAt); took < limit {
				d.t.Errorf("%s: ended after %v", r.then, took)
			}
		}
	}
}

// witness is a file that a command makes to show that it has come so far.
type witness struct{ path string }

func (d *daemon) witness() *witness {
	w := &witness{d.fifo()}
	os.Remove(w.path) // the name will do
	return w
}

// seen is the command that makes it.
func (w *witness) seen() string { return ">" + w.path }

func (w *witness) wasSeen() bool {
	_, err := os.Stat(w.path)
	return err == nil
}

// killedAt is the status with which a command has to end that a limit has stopped: code, or that of SIGKILL if the machine
// was too busy for it to be over within the grace.
func killedAt(s commandStatus, limit time.Duration, code int) int {
	const grace = 500 * time.Millisecond
	if s.ExitCode != nil && *s.ExitCode == 137 && s.FinishedAt.Sub(s.StartedAt) >= limit+grace {
		return 137
	}
	return code
}

// stubborn is a command of many processes that a signal to its shell does not reach.
const stubborn = "bash -c 'sleep 973.7 & sleep 973.71' & sleep 973.72 | cat & (setsid sleep 973.73 &); echo up; wait"

func interruptEndsTheTree(d *daemon) {
	h := d.holder()
	s := d.open("/command", m{"command": h.held(stubborn)})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	s.until(prints("up"))
	if got := d.call("DELETE", "/command?id="+id, nil, nil); got != http.StatusOK {
		d.t.Errorf("interrupt: %d", got)
	}
	h.wait()
	o := s.rest()
	if o.failed() != "CommandInterrupted" || o.code != 143 {
		d.t.Errorf("ended with %+v", o.end)
	}
	if s := d.status(id); s.Running || s.ExitCode == nil || *s.ExitCode != 143 {
		d.t.Errorf("status %+v", s)
	}
	for range 2 { // the same each time
		d.refused(http.StatusConflict, "DELETE", "/command?id="+id, nil)
	}
	d.refused(http.StatusNotFound, "DELETE", "/command?id=nobody", nil)
	d.refused(http.StatusBadRequest, "DELETE", "/command", nil)
}

func disconnectEndsTheTree(d *daemon) {
	for _, more := range []m{{}, {"on_disconnect": "kill"}} {
		h := d.holder()
		s := d.open("/command", with(m{"command": h.held(stubborn)}, []m{more}))
		id := s.until(func(e event) bool { return e.Type == "init" }).ID
		s.until(prints("up"))
		s.close()
		h.wait()
		if code := d.awaitExit(id); code != 143 {
			d.t.Errorf("%v: status %d", more, code)
		}
		if got := d.status(id); got.Error != "CommandInterrupted: 143" {
			d.t.Errorf("%v: %q", more, got.Error)
		}
	}
}

func goesOnWithoutClient(d *daemon) {
	g := d.gate()
	s := d.open("/command", m{"command": "echo before; " + g.pass() + "; echo after; exit 6", "on_disconnect": "continue"})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	at := s.until(prints("before"))
	s.close()
	g.open()
	if code := d.awaitExit(id); code != 6 {
		d.t.Errorf("status %d", code)
	}
	if o := d.open(fmt.Sprintf("/executions/%s/events?after=%d", id, at.EID), nil).rest(); !slices.Equal(o.stdout, []string{"after"}) || o.code != 6 {
		d.t.Errorf("resumed: %q %d", o.stdout, o.code)
	}
}

func stoppedAtOnce(d *daemon) {
	const clients, each = 10, 20
	faults := make(chan error, clients)
	for range clients {
		go func() {
			var err error
			for i := 0; i < each && err == nil; i++ {
				err = d.stopAtOnce(i%2 == 1)
			}
			faults <- err
		}()
	}
	for range clients {
		if err := <-faults; err != nil {
			d.t.Error(err)
		}
	}
}

// stopAtOnce starts a command and stops it when it has read its id. It may be called from any goroutine.
func (d *daemon) stopAtOnce(background bool) error {
	resp, err := d.try(d.t.Context(), "POST", "/command", m{"command": "sleep 974.8", "background": background})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var first event
	frames := bufio.NewReader(resp.Body)
	for first.Type == "" {
		line, err := frames.ReadString('\n')
		if err != nil {
			return fmt.Errorf("read init: %w", err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &first); err != nil {
				return err
			}
		}
	}
	var st commandStatus
	if err := d.into(&st, "GET", "/command/status/"+first.ID); err != nil || !st.Running || st.ExitCode != nil || st.FinishedAt != nil {
		return fmt.Errorf("status at its start: %+v, %v", st, err)
	}
	if err := d.into(nil, "DELETE", "/command?id="+first.ID); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, frames); err != nil {
		return err
	}
	if err := d.into(&st, "GET", "/command/status/"+first.ID); err != nil || st.Running || st.Error == "" {
		return fmt.Errorf("status after its end: %+v, %v", st, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", st.PID)); st.PID > 0 && err == nil {
		return fmt.Errorf("process %d is still there", st.PID)
	}
	return nil
}

func exitStatuses(d *daemon) {
	for text, want := range map[string]int{
		"kill -9 $$": 137, "kill -TERM $$": 143, "nosuchcmd_xyz": 127, "/etc/passwd": 126, "exit 255": 255, "exit 256": 0,
		"true": 0, "false": 1, "exit 42": 42, "(exit 5)": 5, "(exit 137)": 137, "set -e; false; echo no": 1, "exec true": 0,
		"kill -SEGV $$": 139, "echo )": 2, "if true; then echo x": 2, "return 5": 1,
	} {
		o := d.command(text)
		if text == "return 5" { // not in a function: bash says so and goes on
			want = o.code
		}
		d.exits(o, want)
		if want == 127 && !strings.Contains(strings.Join(o.stderr, ""), "not found") {
			d.t.Errorf("%s: stderr %q", text, o.stderr)
		}
		if got := d.awaitExit(d.background(text)); got != want {
			d.t.Errorf("%s in the background: %d, want %d", text, got, want)
		}
		if o := d.inSession("statuses", text, m{"timeout": 60_000}); o.code != want && text != "return 5" {
			d.t.Errorf("%s in a session: %d, want %d", text, o.code, want)
		}
		if o.end.Error != nil && len(o.end.Error.Traceback) == 0 {
			d.t.Errorf("%s: no traceback", text)
		}
	}
	for argv, want := range map[string]int{"/nowhere/x": 127, "nosuchcmd_xyz": 127, "/etc/passwd": 126, "/tmp": 126} {
		o := d.open("/command", m{"argv": []string{argv}}).rest()
		d.exits(o, want)
		if len(o.stderr) == 0 {
			d.t.Errorf("%s: nothing on stderr", argv)
		}
	}
}

func charactersStayWhole(d *daemon) {
	d = d.bare()
	for text, want := range map[string]string{
		`printf '\360\237'; sleep 0.3; printf '\230\200\n'`: "😀",
		`printf '%0.sé' {1..200001}; echo`:                  strings.Repeat("é", 200_001),
		`printf a; printf '%0.s日本' {1..70000}; echo`:        "a" + strings.Repeat("日本", 70_000),
		`for i in {1..400}; do printf 'é漢😀'; done`:          strings.Repeat("é漢😀", 400),
		`printf 'a\342\200\250b\302\205c\342\200\251d'`:     "a\u2028b\u0085c\u2029d",
	} {
		for _, mode := range []string{"lines", "raw"} {
			o := d.command(text, m{"output": mode})
			if got := strings.TrimSuffix(o.out(), "\n"); got != want {
				d.t.Errorf("%s, %s: %d bytes, want %d", text, mode, len(got), len(want))
			}
			d.exits(o, 0)
		}
	}
	o := d.command(`printf 'a\377b\n'; echo after`)
	if !slices.Equal(o.stdout, []string{"a\uFFFDb", "after"}) {
		d.t.Errorf("invalid bytes: %q", o.stdout)
	}
}

func longLine(d *daemon) {
	const text = `head -c %d /dev/zero | tr '\0' x; echo; echo END; exit 6`
	check := func(o *outcome, size int) {
		d.t.Helper()
		n := len(o.stdout)
		if n < 2 || o.stdout[n-1] != "END" || strings.Count(o.out(), "x") != size || o.code != 6 {
			d.t.Errorf("%d events, %d x, status %d", n, strings.Count(o.out(), "x"), o.code)
		}
		for i, e := range o.events[1 : len(o.events)-2] {
			if e.Partial != (i < n-2) {
				d.t.Fatalf("event %d of %d: partial %v", i, n, e.Partial)
			}
		}
	}
	d = d.bare()
	check(d.command(fmt.Sprintf(text, 20_000_000)), 20_000_000)
	check(d.inSession("long", fmt.Sprintf("("+text+")", 2_000_000)), 2_000_000)
}

func lineEnds(d *daemon) {
	for _, c := range []struct {
		text string
		out  []string
		code int
	}{
		{`printf hello`, []string{"hello"}, 0},
		{`printf 'a\n\nb\n\n\nc\n'`, []string{"a", "", "b", "", "", "c"}, 0},
		{`printf '\n'`, []string{""}, 0},
		{`printf 'p 1%%\rp 2%%\rdone\n'`, []string{"p 1%", "p 2%", "done"}, 0},
		{`printf 'x\r\n\r\ny\r\n'`, []string{"x", "", "y"}, 0},
		{`printf 'a\r'; sleep .3; printf '\nb\n'`, []string{"a", "b"}, 0},
		{`printf 'a\r'`, []string{"a"}, 0},
		{`true`, nil, 0},
		{`printf 'no nl' >&2; exit 4`, nil, 4},
	} {
		for _, o := range []*outcome{d.command(c.text), d.inSession("ends", "("+c.text+")")} {
			if got := lines(o.stdout); len(got)+len(c.out) > 0 && !slices.Equal(got, c.out) {
				d.t.Errorf("%s: %q, want %q", c.text, got, c.out)
			}
			if o.code != c.code || c.code == 4 && !slices.Equal(o.stderr, []string{"no nl"}) {
				d.t.Errorf("%s: status %d, stderr %q", c.text, o.code, o.stderr)
			}
		}
	}
}

func exactOutput(d *daemon) {
	d = d.bare()
	file := filepath.Join(d.ws, "random")
	o := d.command("head -c 500000 /dev/urandom >"+file+"; base64 "+file, m{"output": "raw"})
	want, err := os.ReadFile(file)
	if err != nil {
		d.t.Fatal(err)
	}
	got, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(o.out(), "\n", ""))
	if err != nil || string(got) != string(want) || len(o.out()) != 675_440 {
		d.t.Errorf("base64: %d bytes, %v", len(o.out()), err)
	}
	for range 5 {
		o := d.command("seq 1 300000", m{"output": "raw"})
		if n := len(o.out()); n != 1_988_895 || !strings.HasSuffix(o.out(), "\n300000\n") {
			d.t.Errorf("seq: %d bytes", n)
		}
		d.exits(o, 0)
	}
	if o := d.command("yes | head -n 1000"); len(o.stdout) != 1000 || o.code != 0 || o.stderr != nil {
		d.t.Errorf("yes: %d lines, status %d, stderr %q", len(o.stdout), o.code, o.stderr)
	}
	if o := d.command("set -x; echo hi"); !slices.Equal(o.stdout, []string{"hi"}) || !slices.Equal(o.stderr, []string{"+ echo hi"}) {
		d.t.Errorf("set -x: %q %q", o.stdout, o.stderr)
	}
	if o := d.command("echo a; echo b"); strings.Contains(strings.Join(o.stdout, "|"), "\n") {
		d.t.Errorf("terminators in %q", o.stdout)
	}
}

// rawOutput checks that what is written comes while the program waits for something else.
func rawOutput(d *daemon) {
	g := d.gate()
	s := d.open("/command", m{"command": "printf 'Password: '; " + g.pass() + `; printf '10%%\r'; ` + g.pass() + `; printf '20%%\r'; printf a`, "output": "raw"})
	for _, want := range []string{"Password: ", "10%\r"} {
		if e := s.until(func(e event) bool { return e.Type == "stdout" }); e.Text != want {
			d.t.Errorf("%q, want %q", e.Text, want)
		}
		g.open()
	}
	if o := s.rest(); o.out() != "20%\ra" {
		d.t.Errorf("%q", o.out())
	}
	if o := d.command("echo a", m{"output": "raw"}); o.out() != "a\n" {
		d.t.Errorf("%q", o.out())
	}
}

func base64Output(d *daemon) {
	o := d.command(`printf '\000\377\r\n\200'; printf '\376' >&2`, m{"output": "base64"})
	var out, errs []byte
	for _, e := range o.events {
		switch e.Type {
		case "stdout":
			out = append(out, e.Data...)
		case "stderr":
			errs = append(errs, e.Data...)
		}
	}
	if string(out) != "\x00\xff\r\n\x80" || string(errs) != "\xfe" {
		d.t.Errorf("%q %q", out, errs)
	}
}

func standardInput(d *daemon) {
	for _, c := range []struct {
		text, out, errs string
		code            int
	}{
		{`cat; echo "rc=$?"`, "rc=0", "", 0},
		{`read -r x; echo "got:[$x] $?"`, "got:[] 1", "", 0},
		{prefixDir(d.t) + `/python/bin/python -c "print(repr(input()))"`, "", "EOFError", 1},
		{`cat`, "", "", 0},
		{`grep x || true`, "", "", 0},
	} {
		o := d.command(c.text)
		if o.out() != c.out || !strings.Contains(strings.Join(o.stderr, "\n"), c.errs) {
			d.t.Errorf("%s: %q %q", c.text, o.stdout, o.stderr)
		}
		d.exits(o, c.code)
		id := d.background(c.text)
		if code := d.awaitExit(id); code != c.code {
			d.t.Errorf("%s in the background: %d", c.text, code)
		}
		if o := d.inSession("input", c.text); o.out() != c.out || o.code != c.code {
			d.t.Errorf("%s in a session: %q %d", c.text, o.stdout, o.code)
		}
		if o := d.inSession("input", "echo next"); o.out() != "next" {
			d.t.Errorf("after %s: %q", c.text, o.stdout)
		}
	}
	long := strings.Repeat("0123456789abcdef", 1<<16)
	if o := d.command("cat", m{"stdin": "a\nb", "output": "raw"}); o.out() != "a\nb" {
		d.t.Errorf("text: %q", o.out())
	}
	if o := d.command("wc -c", m{"stdin": long}); strings.TrimSpace(o.out()) != fmt.Sprint(len(long)) {
		d.t.Errorf("long text: %q", o.out())
	}
	if o := d.command("head -c 3", m{"stdin": long}); o.out() != "012" { // the rest is read by nobody
		d.t.Errorf("head: %q", o.out())
	}
}

func argvCommand(d *daemon) {
	run := func(more m, argv ...string) *outcome {
		return d.open("/command", with(m{"argv": argv}, []m{more})).rest()
	}
	if o := run(nil, "printf", "%s|", "a b", "$HOME", "*", ""); o.out() != "a b|$HOME|*||" {
		d.t.Errorf("%q", o.out())
	}
	tool := filepath.Join(d.ws, "tools/say")
	if err := os.MkdirAll(filepath.Dir(tool), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho said $1\n"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if o := run(m{"envs": m{"PATH": filepath.Dir(tool)}}, "say", "hi"); o.out() != "said hi" {
		d.t.Errorf("found in the command's own PATH: %q %q", o.stdout, o.stderr)
	}
	if o := run(m{"cwd": "tools"}, "./say", "so"); o.out() != "said so" {
		d.t.Errorf("relative to the command's directory: %q %q", o.stdout, o.stderr)
	}
	if o := d.command("echo $0 $#"); o.out() != "bash 0" {
		d.t.Errorf("$0: %q", o.out())
	}
}

func longText(d *daemon) {
	text := "x='" + strings.Repeat("é", 500_000) + "'; echo ${#x} $0; exit 3"
	o := d.command(text, m{"envs": m{"LC_ALL": "C.UTF-8"}})
	if o.out() != "500000 bash" || o.code != 3 {
		d.t.Errorf("%q %q %d", o.stdout, o.stderr, o.code)
	}
	if s := d.status(o.init.ID); len(s.Content) == 0 || len(s.Content) > 64<<10 || !strings.HasPrefix(text, s.Content) {
		d.t.Errorf("its text in the status: %d bytes", len(s.Content))
	}
}

func hereDocuments(d *daemon) {
	const content = "it's \"x\" `y` $X \\z\nEOF \n\tlast"
	for text, want := range map[string]string{
		"cat <<'EOF'\n" + content + "\nEOF\n":                             content + "\n",
		"X=1; cat <<EOF\n[$X] \"q\"\nEOF":                                 "[1] \"q\"\n",
		"f(){ cat <<'EOF'\n" + content + "\nEOF\n}\nf":                    content + "\n",
		"cat <<'A' - <<'B'\nin a\nA\nin b\nB\n":                           "in b\n",
		"cat <<'A'; cat <<'B'\nin a\nA\nin b\nB\n":                        "in a\nin b\n",
		"bash <<'EOF'\ncat <<'INNER'\n" + content + "\nINNER\nEOF\n: end": content + "\n",
	} {
		if o := d.command(text, m{"output": "raw"}); o.out() != want || o.code != 0 {
			d.t.Errorf("%q: %q %q", text, o.out(), o.stderr)
		}
	}
}

func ownEnvironment(d *daemon) {
	value := "x\ny'z \"$HOME\" \\ é"
	o := d.command(`printf %s "$A$B"`, m{"envs": m{"A": value, "B": ""}, "output": "raw"})
	if o.out() != value {
		d.t.Errorf("%q", o.out())
	}
	if o := d.command("exec env -0", m{"output": "raw", "envs": m{"CELLD_EXECUTION_ID": "forged"}}); true {
		for entry := range strings.SplitSeq(o.out(), "\x00") {
			name, value, _ := strings.Cut(entry, "=")
			switch {
			case name == "CELLD_EXECUTION_ID":
				if value != o.init.ID {
					d.t.Errorf("its id in its environment is %q, want %s", value, o.init.ID)
				}
			case name == "CELLD_DAEMON":
			case strings.HasPrefix(name, "CELLD_"), strings.HasPrefix(name, "EXECD_"), strings.HasPrefix(name, "JUPYTER_"), strings.HasPrefix(name, "OTEL_"):
				d.t.Errorf("the daemon's own %s", entry)
			}
		}
	}
	for _, more := range []m{{}, {"background": true}} {
		large := m{"A": strings.Repeat("x", 100_000), "B": strings.Repeat("x", 100_000)} // 200 KB fit
		if more["background"] == nil {
			if o := d.command(`echo $((${#A}+${#B}))`, m{"envs": large}); o.out() != "200000" {
				d.t.Errorf("200 KB of variables: %q", o.out())
			}
		}
		d.refused(400, "POST", "/command", with(m{"command": "echo no", "envs": m{"A": strings.Repeat("x", 200_000)}}, []m{more}))
		many := m{}
		for i := range 30 {
			many[fmt.Sprint("A", i)] = strings.Repeat("x", 100_000)
		}
		d.refused(400, "POST", "/command", with(m{"command": "echo no", "envs": many}, []m{more}))
		d.refused(400, "POST", "/command", with(m{"argv": []string{"true", strings.Repeat("x", 200_000)}}, []m{more}))
	}
}

func directory(d *daemon) {
	if err := os.MkdirAll(filepath.Join(d.ws, "sub/deep"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	for cwd, want := range map[string]string{
		"": d.ws, "sub": d.ws + "/sub", "/tmp": "/tmp", "$D": "/tmp", "${D}/../usr": "/usr", "~": "/etc", "~/../usr": "/usr",
		"${W}/deep": d.ws + "/sub/deep",
	} {
		o := d.command("pwd", m{"cwd": cwd, "envs": m{"D": "/tmp", "HOME": "/etc", "W": d.ws + "/sub"}})
		if o.out() != want {
			d.t.Errorf("%q: %q, want %q", cwd, o.out(), want)
		}
	}
	if o := d.command("pwd", m{"session_id": "at", "cwd": "/tmp"}); o.out() != "/tmp" {
		d.t.Errorf("in a session: %q", o.out())
	}
}

func refusedCommands(d *daemon) {
	made := filepath.Join(d.ws, "made")
	touch := "touch " + made
	for _, body := range []any{
		m{"cwd": "/no/such"}, m{"cwd": "/etc/passwd"}, m{"cwd": "$UNDEFINED_D"}, m{"cwd": "a\x00b"},
		m{"gid": 0}, m{"uid": -1}, m{"uid": 1 << 40}, m{"uid": "root"},
		m{"timeout": -1}, m{"timeout": "1"}, m{"timeout": 1.5},
		m{"envs": m{"A B": "x"}}, m{"envs": m{"A=B": "x"}}, m{"envs": m{"A;": "x"}}, m{"envs": m{"": "x"}}, m{"envs": m{"1A": "x"}},
		m{"envs": m{"A": "x\x00y"}}, m{"envs": m{"A": 1}},
		m{"output": "yaml"}, m{"on_disconnect": "maybe"}, m{"rlimits": m{"nonsense": 1}}, m{"rlimits": m{"nofile": -1}},
		m{"argv": []string{"true"}}, m{"background": "yes"}, m{"command": touch + "\x00"},
		m{"session_id": "../../x"}, m{"session_id": "a/../../b"},
	} {
		for _, background := range []m{{}, {"background": true}} {
			d.refused(400, "POST", "/command", with(with(m{"command": touch}, []m{background}), []m{body.(m)}))
		}
	}
	for _, body := range []any{
		"{", "[]", "null", "", "x", `{"command":5}`, m{}, m{"command": ""}, m{"command": " \n\t"}, m{"argv": []string{}},
		m{"argv": []string{""}}, m{"argv": []string{"touch", made + "\x00"}}, m{"argv": []any{"touch", 1}},
	} {
		d.refused(400, "POST", "/command", body)
	}
	if _, err := os.Stat(made); err == nil {
		d.t.Error("a refused command has run")
	}
	for _, id := range []string{"nobody", "..", "%2e%2e%2f%2e%2e%2ftmp%2fx", "a%2f..%2f..%2fb"} {
		for _, path := range []string{"/command/status/%s", "/command/%s/logs", "/command/%s/resume", "/executions/%s/events"} {
			d.refused(404, "GET", fmt.Sprintf(path, id), nil)
		}
	}
}

func isolated(d *daemon) {
	umask := d.command("umask").out()
	d.command("cd /; export LEFT=1; alias ll=ls; umask 000; f() { :; }; ulimit -c 0")
	if o := d.command("echo $PWD [$LEFT] $(umask); type f ll"); umask == "0000" || !slices.Equal(o.stdout, []string{d.ws + " [] " + umask}) {
		d.t.Errorf("%q", o.stdout)
	}
}

// manyAtOnce checks on kept connections that every answer is its own request's.
func manyAtOnce(d *daemon) {
	const clients, each = 16, 25
	faults := make(chan string, clients)
	for c := range clients {
		go func() {
			fault := ""
			for i := range each {
				want := fmt.Sprintf("client %d run %d", c, i)
				got, err := d.answer(d.t.Context(), m{"command": "printf '%s' '" + want + "'; exit " + fmt.Sprint(i%3)})
				if err != nil || got.Stdout != want || got.ExitCode == nil || *got.ExitCode != i%3 {
					fault = fmt.Sprintf("%s: %+v, %v", want, got, err)
				}
			}
			faults <- fault
		}()
	}
	for range clients {
		if fault := <-faults; fault != "" {
			d.t.Error(fault)
		}
	}
}

// stubbornTree: processes that ignore SIGTERM get one grace together, not one each.
func stubbornTree(d *daemon) {
	h := d.holder()
	s := d.open("/command", m{"command": h.held("for i in 1 2 3 4 5; do bash -c 'trap \"\" TERM; echo up; while :; do sleep 975.1; done' & done; wait")})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	for range 5 {
		s.until(prints("up"))
	}
	if got := d.call("DELETE", "/command?id="+id, nil, nil); got != http.StatusOK {
		d.t.Errorf("interrupt: %d", got) // after 10 s it would be a 503
	}
	h.wait()
	s.rest()
}
