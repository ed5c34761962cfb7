package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBackgroundCommands(t *testing.T) {
	start(t, launch{}).each(t, map[string]func(*daemon){
		"outlives the request that started it":               backgroundOutlives,
		"a limit ends it as any other":                       backgroundLimit,
		"its status is what the system says":                 backgroundStatuses,
		"its events go on to the real end":                   backgroundEvents,
		"logs are read by cursor":                            logCursor,
		"a log has its streams apart":                        logStreams,
		"commands are listed by state":                       listed,
		"gets signals":                                       signals,
		"reads what is written later":                        openInput,
		"can be waited for":                                  waits,
		"a port can be waited for":                           waitsForPort,
		"what listens is listed":                             ports,
		"what survives writes into its command's log":        survivors,
		"limits hold from the first instruction":             resourceLimits,
		"runs as another user, with its groups and its home": otherUser,
		"everything is answered while many run":              busy,
	})
}

func backgroundOutlives(d *daemon) {
	g := d.gate()
	s := d.open("/command", m{"command": g.pass() + "; echo late; exit 4", "background": true})
	id := s.until(func(e event) bool { return e.Type == "init" }).Text
	s.close()
	if st := d.status(id); !st.Running || !st.Background || st.ID != id || st.ExitCode != nil || st.FinishedAt != nil {
		d.t.Errorf("status while it runs: %+v", st)
	}
	if text, cursor := d.logs(id, ""); text != "" || cursor != "0" {
		d.t.Errorf("log while it runs: %q %s", text, cursor)
	}
	g.open()
	if code := d.awaitExit(id); code != 4 {
		d.t.Errorf("exit status %d", code)
	}
	st := d.status(id)
	if st.Running || st.ExitCode == nil || *st.ExitCode != 4 || st.FinishedAt == nil || st.FinishedAt.Before(st.StartedAt) || st.Error == "" {
		d.t.Errorf("status at the end: %+v", st)
	}
	if text, _ := d.logs(id, ""); text != "late\n" {
		d.t.Errorf("log: %q", text)
	}
	d.refused(404, "GET", "/command/status/0123456789abcdef0123456789abcdef", nil)
}

func backgroundLimit(d *daemon) {
	for limit := time.Second; ; limit *= 2 { // until it is long enough for what comes first
		h, up := d.holder(), d.witness()
		id := d.background(h.held("echo up; "+up.seen()+"; sleep 976.94; :"), m{"timeout": limit.Milliseconds()})
		d.awaitExit(id)
		h.wait()
		if !up.wasSeen() {
			continue
		}
		st := d.status(id)
		if code := killedAt(st, limit, 143); st.ExitCode == nil || *st.ExitCode != code || st.Error != fmt.Sprint("CommandTimeout: ", code) {
			d.t.Errorf("status %+v", st)
		}
		if text, _ := d.logs(id, ""); text != "up\n" {
			d.t.Errorf("log: %q", text)
		}
		return
	}
}

func backgroundStatuses(d *daemon) {
	for text, want := range map[string]int{"exit 7": 7, "exec true": 0, "(exit 137)": 137} {
		if got := d.awaitExit(d.background(text)); got != want {
			d.t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	h := d.holder()
	id := d.background(h.held("sleep 976.1 & echo up; wait"))
	d.waitFor(id, m{"pattern": "up"}, "pattern")
	if err := unix.Kill(d.status(id).PID, unix.SIGKILL); err != nil { // somebody else did it
		d.t.Fatal(err)
	}
	if code := d.awaitExit(id); code != 137 {
		d.t.Errorf("killed from outside: %d", code)
	}
	if got := d.call("DELETE", "/command?id="+id, nil, nil); got != http.StatusOK {
		d.t.Errorf("end what is left: %d", got)
	}
	h.wait()
	for range 3 {
		d.refused(409, "DELETE", "/command?id="+id, nil)
	}
}

func backgroundEvents(d *daemon) {
	g := d.gate()
	id := d.background("echo out; echo err >&2; " + g.pass() + "; exit 3")
	s := d.open("/executions/"+id+"/events", nil)
	s.until(func(e event) bool { return e.Type == "stderr" })
	g.open()
	o := s.rest()
	if o.failed() != "CommandExecError" || o.code != 3 {
		d.t.Errorf("ended with %+v", o.end)
	}
	if o := d.open("/command/"+id+"/resume?after_eid=1", nil).rest(); !slices.Equal(o.stdout, []string{"out"}) || !slices.Equal(o.stderr, []string{"err"}) {
		d.t.Errorf("%q %q", o.stdout, o.stderr)
	}
}

func logCursor(d *daemon) {
	id := d.background("printf 'one\\ntwo\\nthr'; printf '\\377\\000\\r\\n'")
	d.awaitExit(id)
	foreground := d.command("printf 'one\\ntwo\\nthr'; printf '\\377\\000\\r\\n'").init.ID
	const all = "one\ntwo\nthr\xff\x00\r\n"
	for _, id := range []string{id, foreground} {
		for cursor := range len(all) + 1 {
			text, next := d.logs(id, "?cursor="+strconv.Itoa(cursor))
			if text != all[cursor:] || next != strconv.Itoa(len(all)) {
				d.t.Errorf("from %d: %q, then %s", cursor, text, next)
			}
		}
		for _, past := range []string{"16", "1000", "9223372036854775807"} {
			if text, next := d.logs(id, "?cursor="+past); text != "" || next != strconv.Itoa(len(all)) {
				d.t.Errorf("from %s: %q, then %s", past, text, next)
			}
		}
		for _, bad := range []string{"-1", "x", "1.5", "0x1", "9223372036854775808"} {
			d.refused(400, "GET", "/command/"+id+"/logs?cursor="+bad, nil)
		}
	}
	d.refused(404, "GET", "/command/nobody/logs", nil)
	d.refused(404, "GET", "/command/nobody/logs?cursor=0", nil)

	// A program that is still writing is read piece by piece.
	g := d.gate()
	id = d.background("printf a; " + g.pass() + "; printf b")
	d.waitFor(id, m{"pattern": "a"}, "pattern")
	text, cursor := d.logs(id, "")
	g.open()
	d.awaitExit(id)
	if more, _ := d.logs(id, "?cursor="+cursor); text != "a" || more != "b" {
		d.t.Errorf("%q, then %q", text, more)
	}

	id = d.background("seq -f %09.0f 1 2000000") // 20 MB: more than one answer
	d.awaitExit(id)
	text, cursor = d.bare().logs(id, "")
	if len(text) != 16<<20 || cursor != strconv.Itoa(16<<20) {
		d.t.Errorf("first %d bytes, then %s", len(text), cursor)
	}
	rest, cursor := d.bare().logs(id, "?cursor="+cursor)
	if len(text)+len(rest) != 20_000_000 || cursor != "20000000" || !strings.HasSuffix(rest, "\n002000000\n") {
		d.t.Errorf("%d and %d bytes, then %s", len(text), len(rest), cursor)
	}
}

func logStreams(d *daemon) {
	id := d.command("echo out1; echo err1 >&2; sleep .1; echo out2; echo err2 >&2").init.ID
	for stream, all := range map[string]string{"stdout": "out1\nout2\n", "stderr": "err1\nerr2\n"} {
		for cursor := range len(all) + 1 {
			if text, next := d.logs(id, fmt.Sprintf("?stream=%s&cursor=%d", stream, cursor)); text != all[cursor:] || next != "10" {
				d.t.Errorf("%s from %d: %q, then %s", stream, cursor, text, next)
			}
		}
		if text, next := d.logs(id, "?cursor=500&stream="+stream); text != "" || next != "10" {
			d.t.Errorf("%s past its end: %q, then %s", stream, text, next)
		}
	}
	if text, cursor := d.logs(id, ""); len(text) != 20 || cursor != "20" {
		d.t.Errorf("merged: %q, then %s", text, cursor)
	}
	d.refused(400, "GET", "/command/"+id+"/logs?stream=stdin", nil)
}

func listed(d *daemon) {
	g := d.gate()
	running := d.background("# listed: runs\n" + g.pass())
	finished := d.command("# listed: is over").init.ID
	for query, want := range map[string][]string{"": {running, finished}, "?state=running": {running}, "?state=finished": {finished}} {
		var list []commandStatus
		if got := d.call("GET", "/command"+query, nil, &list); got != 200 {
			d.t.Errorf("list%s: %d", query, got)
		}
		var ids []string
		for _, st := range list {
			if strings.HasPrefix(st.Content, "# listed:") {
				ids = append(ids, st.ID)
			}
		}
		if !slices.Equal(ids, want) {
			d.t.Errorf("list%s: %q, want %q", query, ids, want)
		}
	}
	d.refused(400, "GET", "/command?state=lost", nil)
	g.open()
	d.awaitExit(running)
}

func signals(d *daemon) {
	id := d.background("trap 'echo hup $((++n))' HUP; trap 'echo usr; exit 9' USR1; echo up; while :; do sleep 977.1 & wait $!; done")
	d.waitFor(id, m{"pattern": "up"}, "pattern")
	for i, name := range []any{"HUP", "SIGHUP", "hup", "1", 1} {
		if got := d.call("POST", "/command/"+id+"/signal", m{"signal": name}, nil); got != 200 {
			d.t.Errorf("%v: %d", name, got)
		}
		d.waitFor(id, m{"pattern": fmt.Sprint("^hup ", i+1, "$")}, "pattern")
	}
	for _, bad := range []any{"SIGNONE", "", "0", "65", "-1", 0, 65, 1.5, true, nil} {
		d.refused(400, "POST", "/command/"+id+"/signal", m{"signal": bad})
	}
	if got := d.call("POST", "/command/"+id+"/signal", m{"signal": "USR1"}, nil); got != 200 {
		d.t.Errorf("USR1: %d", got)
	}
	if code := d.awaitExit(id); code != 9 {
		d.t.Errorf("exit status %d", code)
	}
	if text, _ := d.logs(id, ""); text != "up\nhup 1\nhup 2\nhup 3\nhup 4\nhup 5\nusr\n" {
		d.t.Errorf("log: %q", text)
	}
	d.refused(409, "POST", "/command/"+id+"/signal", m{"signal": "TERM"})
	d.refused(404, "POST", "/command/nobody/signal", m{"signal": "TERM"})

	id = d.background("echo up; sleep 977.2 | cat") // what a terminal's Ctrl-C would reach
	d.waitFor(id, m{"pattern": "up"}, "pattern")
	if got := d.call("POST", "/command/"+id+"/signal", m{"signal": "KILL"}, nil); got != 200 {
		d.t.Errorf("KILL: %d", got)
	}
	if code := d.awaitExit(id); code != 137 {
		d.t.Errorf("exit status %d", code)
	}
}

func openInput(d *daemon) {
	write := func(id, query, text string) int {
		d.t.Helper()
		return d.call("POST", "/command/"+id+"/stdin"+query, text, nil, "Content-Type", "application/octet-stream")
	}
	id := d.background(`while read -r x; do echo "got $x"; done; echo rest "$x"`, m{"stdin_open": true, "stdin": "first\n"})
	d.waitFor(id, m{"pattern": "got first"}, "pattern")
	if got := write(id, "", "sec"); got != 200 {
		d.t.Errorf("write: %d", got)
	}
	if got := write(id, "?eof=0", "ond\nx"); got != 200 {
		d.t.Errorf("write: %d", got)
	}
	d.waitFor(id, m{"pattern": "got second"}, "pattern")
	if got := write(id, "?eof=1", "y"); got != 200 {
		d.t.Errorf("write and close: %d", got)
	}
	if code := d.awaitExit(id); code != 0 {
		d.t.Errorf("exit status %d", code)
	}
	if text, _ := d.logs(id, ""); text != "got first\ngot second\nrest xy\n" {
		d.t.Errorf("log: %q", text)
	}
	d.refused(409, "POST", "/command/"+id+"/stdin", "more", "Content-Type", "application/octet-stream")

	large := strings.Repeat("0123456789\n", 300_000) // more than a pipe takes
	id = d.background("cat | wc -c", m{"stdin_open": true})
	if got := write(id, "?eof=true", large); got != 200 {
		d.t.Errorf("much: %d", got)
	}
	d.awaitExit(id)
	if text, _ := d.logs(id, ""); strings.TrimSpace(text) != strconv.Itoa(len(large)) {
		d.t.Errorf("much: %q", text)
	}
	id = d.background("cat", m{"stdin_open": true}) // an empty body that only closes
	if got := d.call("POST", "/command/"+id+"/stdin?eof=1", nil, nil); got != 200 {
		d.t.Errorf("close: %d", got)
	}
	if code := d.awaitExit(id); code != 0 {
		d.t.Errorf("exit status %d", code)
	}

	g := d.gate()
	id = d.background(g.pass())
	d.refused(409, "POST", "/command/"+id+"/stdin", "x", "Content-Type", "application/octet-stream")
	d.refused(400, "POST", "/command/"+id+"/stdin?eof=perhaps", "x", "Content-Type", "application/octet-stream")
	d.refused(404, "POST", "/command/nobody/stdin", "x", "Content-Type", "application/octet-stream")
	g.open()
	d.awaitExit(id)
}

// waitResult is the answer to a wait.
type waitResult struct {
	Event    string
	ExitCode *int `json:"exit_code"`
	Port     int
	Status   int
	Line     string
}

// waitFor waits for something that must happen.
func (d *daemon) waitFor(id string, what m, event string) (r waitResult) {
	d.t.Helper()
	if got := d.call("POST", "/command/"+id+"/wait", what, &r); got != 200 || r.Event != event {
		d.t.Fatalf("wait for %v: %d %+v, want %s", what, got, r, event)
	}
	return r
}

func waits(d *daemon) {
	g := d.gate()
	id := d.background("echo 'it is ready: 42'; printf 'Name? '; " + g.pass() + "; echo oops >&2; exit 3")
	if r := d.waitFor(id, m{"exit": true, "timeout": 50}, "timeout"); r.ExitCode != nil {
		d.t.Errorf("%+v", r)
	}
	if st := d.status(id); !st.Running {
		d.t.Error("the wait's end ended the command")
	}
	if r := d.waitFor(id, m{"pattern": `ready: (\d+)`}, "pattern"); r.Line != "it is ready: 42" {
		d.t.Errorf("%+v", r)
	}
	if r := d.waitFor(id, m{"pattern": `^it is ready`}, "pattern"); r.Line != "it is ready: 42" { // already printed
		d.t.Errorf("%+v", r)
	}
	if r := d.waitFor(id, m{"pattern": `^Name\? $`}, "pattern"); r.Line != "Name? " { // no end of line yet
		d.t.Errorf("%+v", r)
	}
	d.waitFor(id, m{"pattern": `^never$`, "timeout": 50}, "timeout")
	done := make(chan waitResult, 3)
	for _, what := range []m{{"pattern": "^oops$"}, {"pattern": "^never$"}, {}} {
		go func() {
			resp, err := d.try(d.t.Context(), "POST", "/command/"+id+"/wait", what)
			var r waitResult
			if err == nil {
				err = decode(resp, &r)
			}
			if err != nil {
				r.Event = err.Error()
			}
			done <- r
		}()
	}
	g.open()
	events := map[string]int{}
	for range 3 {
		r := <-done
		events[r.Event]++
		if r.Event == "exit" && (r.ExitCode == nil || *r.ExitCode != 3) || r.Event == "pattern" && r.Line != "oops" {
			d.t.Errorf("%+v", r)
		}
	}
	if events["exit"] != 2 || events["pattern"] != 1 {
		d.t.Errorf("%v", events)
	}
	d.waitFor(id, m{"exit": true}, "exit")
	d.waitFor(id, m{"pattern": "^oops$"}, "pattern")
	d.waitFor(id, m{"pattern": "never"}, "exit")
	for _, bad := range []any{m{"pattern": "("}, m{"port": 0}, m{"port": 65536}, m{"port": "http"}, m{"timeout": -1}, "{",
		m{"path": "/"}, m{"port": 80, "path": "x"}, m{"port": 80, "path": "/%zz"}, m{"port": 80, "status": 200}, m{"port": 80, "path": "/", "status": 99}} {
		d.refused(400, "POST", "/command/"+id+"/wait", bad)
	}
	d.refused(404, "POST", "/command/nobody/wait", m{})
}

// webServer is a server that answers 503 to its first request and 200 to later ones, and 404 elsewhere.
const webServer = `
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
	asked = 0
	def do_GET(self):
		H.asked += self.path == '/health'
		self.send_response(404 if self.path != '/health' else 200 if H.asked > 1 else 503)
		self.end_headers()
	def log_message(self, *a): pass
s = http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H)
print('serving', flush=True)
s.serve_forever()
`

func waitsForPort(d *daemon) {
	port := quietPort(d.t)
	g := d.gate()
	text := g.pass() + fmt.Sprintf("; exec %s/python/bin/python -c \"$SERVER\" %d", prefixDir(d.t), port)
	id := d.background(text, m{"envs": m{"SERVER": webServer}})
	d.waitFor(id, m{"port": port, "timeout": 60}, "timeout")
	g.open()
	if r := d.waitFor(id, m{"port": port}, "port"); r.Port != port || r.Status != 0 {
		d.t.Errorf("%+v", r)
	}
	if r := d.waitFor(id, m{"port": port, "path": "/health"}, "port"); r.Port != port || r.Status != 200 {
		d.t.Errorf("%+v", r)
	}
	if r := d.waitFor(id, m{"port": port, "path": "/other?x=1", "status": 404}, "port"); r.Status != 404 {
		d.t.Errorf("%+v", r)
	}
	d.waitFor(id, m{"port": port, "path": "/other", "timeout": 200}, "timeout")
	var listed []struct {
		Port    int
		Address string
	}
	if got := d.call("GET", "/ports", nil, &listed); got != 200 {
		d.t.Errorf("ports: %d", got)
	}
	if !slices.ContainsFunc(listed, func(p struct {
		Port    int
		Address string
	}) bool {
		return p.Port == port && p.Address == "127.0.0.1"
	}) {
		d.t.Errorf("%d is not in %+v", port, listed)
	}
	if got := d.call("DELETE", "/command?id="+id, nil, nil); got != 200 {
		d.t.Errorf("end it: %d", got)
	}
	id = d.background("exit 1")
	if r := d.waitFor(id, m{"port": port}, "exit"); r.ExitCode == nil || *r.ExitCode != 1 {
		d.t.Errorf("%+v", r)
	}
}

func ports(d *daemon) {
	var list []struct {
		Port    int
		Address string
	}
	d.call("GET", "/ports", nil, &list)
	_, own, _ := net.SplitHostPort(strings.TrimPrefix(d.url, "http://"))
	n := 0
	for _, p := range list {
		if strconv.Itoa(p.Port) == own && p.Address == "127.0.0.1" {
			n++
		}
		if net.ParseIP(p.Address) == nil {
			d.t.Errorf("address %q", p.Address)
		}
	}
	if n != 1 {
		d.t.Errorf("%d entries for celld's own port %s in %v", n, own, list)
	}
}

func survivors(d *daemon) {
	for _, ending := range []string{
		`(read -r x <%[1]s; echo "late $x"; echo >%[1]s; sleep 978.3) & echo up`,
		`(setsid bash -c 'read -r x <%[1]s; echo "late $x" >&2; echo >%[1]s; sleep 978.4; :' &); echo up; exit 5`,
	} {
		pipe := d.fifo()
		h := d.holder()
		o := d.command(h.held(fmt.Sprintf(ending, pipe)))
		if !slices.Equal(o.stdout, []string{"up"}) {
			d.t.Errorf("%q %q", o.stdout, o.stderr)
		}
		id := o.init.ID
		word := openFIFO(d.t, pipe, os.O_WRONLY)
		if _, err := word.WriteString("word\n"); err != nil {
			d.t.Fatal(err)
		}
		word.Close()
		pass(d.t, pipe, os.O_RDONLY) // now it has written
		if got := d.call("DELETE", "/command?id="+id, nil, nil); got != 200 {
			d.t.Errorf("end the survivor: %d", got)
		}
		h.wait()
		if text, cursor := d.logs(id, "?cursor=3"); text != "late word\n" || cursor != "13" {
			d.t.Errorf("log after the end: %q, then %s", text, cursor)
		}
		if again := d.open("/executions/"+id+"/events", nil).rest(); len(again.stdout) != 1 || len(again.stderr) != 0 {
			d.t.Errorf("its events have changed: %+v", again.events)
		}
	}

	h := d.holder()
	id := d.command(h.held("nohup sleep 978.1 >/dev/null 2>&1 & (setsid sleep 978.2 &) ; echo up")).init.ID
	st := d.status(id)
	if st.Running || len(st.Survivors) != 2 {
		d.t.Errorf("status %+v", st)
	}
	var list []commandStatus
	if got := d.call("GET", "/command?state=finished", nil, &list); got != 200 || !slices.ContainsFunc(list, func(x commandStatus) bool {
		return x.ID == id && slices.Equal(x.Survivors, st.Survivors)
	}) {
		d.t.Errorf("%v are not in the list", st.Survivors)
	}
	if got := d.call("DELETE", "/command?id="+id, nil, nil); got != 200 {
		d.t.Errorf("end the survivors: %d", got)
	}
	h.wait()
	if st := d.status(id); len(st.Survivors) != 0 {
		d.t.Errorf("survivors %v", st.Survivors)
	}
	d.refused(409, "DELETE", "/command?id="+id, nil)
}

func resourceLimits(d *daemon) {
	o := d.command("ulimit -n; ulimit -f; ulimit -v; ulimit -t; ulimit -Hn", m{"rlimits": m{
		"nofile": 50, "fsize_bytes": 1 << 20, "memory_bytes": 2 << 30, "cpu_s": 7, "nproc": 4096}})
	if !slices.Equal(o.stdout, []string{"50", "1024", "2097152", "7", "50"}) {
		d.t.Errorf("%q %q", o.stdout, o.stderr)
	}
	file := filepath.Join(d.ws, "large")
	if o := d.command("head -c 2000000 /dev/zero >"+file, m{"rlimits": m{"fsize_bytes": 1000}}); o.code != 128+25 {
		d.t.Errorf("a file that is too large: %d %q", o.code, o.stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 1000 {
		d.t.Errorf("%v %v", info, err)
	}
	if o := d.command("while :; do :; done", m{"rlimits": m{"cpu_s": 1}}); o.code != 128+24 && o.code != 137 {
		d.t.Errorf("a second of CPU time: %d", o.code)
	}
	if o := d.command("ulimit -n", m{"rlimits": m{"nofile": int64(1) << 60}}); o.code != 0 { // celld's own limit
		d.t.Errorf("%q %q", o.stdout, o.stderr)
	}
}

func otherUser(d *daemon) {
	if os.Getuid() != 0 {
		d.t.Fatal("only root may run commands as another user")
	}
	if o := d.command("id -u; id -g; id -G; echo $HOME $USER $LOGNAME; pwd", m{"uid": 1, "cwd": "/"}); !slices.Equal(o.stdout, []string{"1", "1", "1", "/usr/sbin daemon daemon", "/"}) {
		d.t.Errorf("%q %q", o.stdout, o.stderr)
	}
	if o := d.command("id -u; id -g; id -G; echo $HOME $USER", m{"uid": 54321, "gid": 54322, "cwd": "/"}); len(o.stdout) != 4 || !slices.Equal(o.stdout[:3], []string{"54321", "54322", "54322"}) {
		d.t.Errorf("%q %q", o.stdout, o.stderr)
	}
	if o := d.command("echo $HOME", m{"uid": 1, "cwd": "~", "envs": m{"HOME": "/tmp"}}); o.out() != "/tmp" {
		d.t.Errorf("%q %q", o.stdout, o.stderr)
	}
	id := d.background("id -u >&2", m{"uid": 1, "cwd": "/"})
	d.awaitExit(id)
	if text, _ := d.logs(id, ""); text != "1\n" {
		d.t.Errorf("%q", text)
	}
	h := d.holder()
	if err := os.Chmod(h.path, 0o666); err != nil {
		d.t.Fatal(err)
	}
	id = d.background(h.held("echo up; sleep 979.1; :"), m{"uid": 1, "cwd": "/"})
	d.waitFor(id, m{"pattern": "up"}, "pattern")
	if got := d.call("DELETE", "/command?id="+id, nil, nil); got != 200 {
		d.t.Errorf("end it: %d", got)
	}
	h.wait()
	if o := d.command("id -u", m{"session_id": "daemon-user", "cwd": "/"}); o.out() != "0" {
		d.t.Errorf("%q", o.stdout)
	}
	// The groups are those of the group file.
	var user, groups string
	text, err := os.ReadFile("/etc/group")
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 4 && f[3] != "" {
			user, groups = strings.Split(f[3], ",")[0], f[2]
			break
		}
	}
	if user == "" {
		return // nobody here is in another group; internal/proctree tests this with files of its own
	}
	o := d.command("id -u " + user)
	uid, err := strconv.Atoi(o.out())
	if err != nil {
		d.t.Fatal(err)
	}
	if o := d.command("id -G", m{"uid": uid, "cwd": "/"}); !slices.Contains(strings.Fields(o.out()), groups) {
		d.t.Errorf("groups of %s: %q, want %s among them", user, o.out(), groups)
	}
}

// busy: whatever runs, the rest is answered.
func busy(d *daemon) {
	var ids []string
	for range 50 {
		ids = append(ids, d.background("sleep 980.2"))
	}
	h := d.holder()
	s := d.open("/session/busy/run", m{"command": h.held("echo up; sleep 980.1"), "create": true})
	s.until(prints("up"))
	if o := d.command("echo hi"); o.out() != "hi" {
		d.t.Errorf("%q", o.stdout)
	}
	if got := d.call("GET", "/files/info?path=/etc/passwd", nil, nil); got != 200 {
		d.t.Errorf("files: %d", got)
	}
	if got := d.call("GET", "/directories/list?path=/etc&depth=1", nil, nil); got != 200 {
		d.t.Errorf("directories: %d", got)
	}
	for _, id := range ids {
		if st := d.status(id); !st.Running {
			d.t.Errorf("%s has ended", id)
		}
	}
	if got := d.call("DELETE", "/session/busy/run", nil, nil); got != 200 {
		d.t.Errorf("interrupt the session: %d", got)
	}
	s.rest()
	for _, id := range ids {
		if got := d.call("DELETE", "/command?id="+id, nil, nil); got != 200 {
			d.t.Errorf("end %s: %d", id, got)
		}
	}
}
