package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/celld/celld/openapi/openapitest"
)

// Budgets of the daemon in TestBudgets.
const (
	logPerExecution = 128 << 10
	logTotal        = 512 << 10
	maxKept         = 40
)

func TestBudgets(t *testing.T) {
	d := start(t, launch{args: []string{
		"--memory-per-execution=65536", "--memory-total=262144", "--max-sessions=3",
		fmt.Sprint("--log-per-execution=", logPerExecution), fmt.Sprint("--log-total=", logTotal), fmt.Sprint("--max-kept=", maxKept),
	}})
	for _, test := range []struct {
		name string
		run  func(*daemon)
	}{ // one after the other: they share the budgets
		{"who comes late is told what is gone", lateReader},
		{"a log keeps its newest bytes", newestBytes},
		{"the logs of the oldest go first", oldestLogs},
		{"the oldest finished commands are forgotten", oldestCommands},
		{"sessions are counted", countedSessions},
		{"folders that are removed are made again", removedFolders},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(d.in(t)) })
	}
}

// numbers prints n lines of ten bytes.
func numbers(n int) string { return fmt.Sprintf("seq -f %%09.0f 1 %d", n) }

func lateReader(d *daemon) {
	id := d.background(numbers(100_000))
	d.awaitExit(id)
	o := d.bare().open("/executions/"+id+"/events", nil).rest()
	if len(o.events) < 4 || o.events[0].Type != "init" || o.events[1].Type != "gap" || o.end.Type != "execution_complete" {
		d.t.Fatalf("%d events, %+v …", len(o.events), o.events[:min(len(o.events), 4)])
	}
	gap := o.events[1]
	if gap.EID != 0 || gap.From != 2 || gap.To <= gap.From {
		d.t.Errorf("%+v", gap)
	}
	first, err := strconv.Atoi(o.stdout[1]) // the one before may have lost its beginning
	if err != nil {
		d.t.Fatal(err)
	}
	for i, line := range o.stdout[1:] {
		if line != fmt.Sprintf("%09d", first+i) {
			d.t.Fatalf("line %d is %q", first+i, line)
		}
	}
	if last := first + len(o.stdout) - 2; last != 100_000 {
		d.t.Errorf("the last line is %d", last)
	}
	if kept := 10 * len(o.stdout); kept < logPerExecution || kept > logPerExecution+128<<10 {
		d.t.Errorf("%d bytes are kept", kept)
	}
	// Whoever comes with a position that is still kept misses nothing.
	if o := d.open(fmt.Sprintf("/executions/%s/events?after=%d", id, 1+999_900), nil).rest(); len(o.stdout) != 10 || o.events[0].Type != "stdout" {
		d.t.Errorf("%+v", o.events)
	}
}

func newestBytes(d *daemon) {
	g := d.gate()
	id := d.background(numbers(50_000) + "; echo up; " + g.pass() + "; echo more")
	d.waitFor(id, m{"pattern": "^up$"}, "pattern")
	for i, end := range []string{"000049999\n000050000\nup\n", "000050000\nup\nmore\n"} {
		text, cursor := d.logs(id, "?cursor=0")
		if !strings.HasSuffix(text, end) || len(text) < logPerExecution || len(text) > 400_000 || cursor != strconv.Itoa(500_003+5*i) {
			d.t.Errorf("%d bytes up to …%q, then %s", len(text), text[max(0, len(text)-20):], cursor)
		}
		if text, _ := d.logs(id, "?cursor="+strconv.Itoa(500_000)); !strings.HasPrefix(text, "up\n") {
			d.t.Errorf("%q", text)
		}
		if i == 0 {
			g.open()
			d.awaitExit(id)
		}
	}
}

func oldestLogs(d *daemon) {
	const size = 100_000
	var ids []string
	for range 12 {
		id := d.background(numbers(size / 10))
		d.awaitExit(id)
		ids = append(ids, id)
	}
	var used int64
	err := filepath.WalkDir(filepath.Join(d.data, "logs"), func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			used += info.Size()
		}
		return err
	})
	if err != nil || used > logTotal+64<<10 {
		d.t.Errorf("logs take %d bytes, %v", used, err)
	}
	length := func(id string) int { text, _ := d.logs(id, ""); return len(text) }
	if newest := length(ids[len(ids)-1]); newest != size {
		d.t.Errorf("%d bytes of the newest are kept", newest)
	}
	if oldest := length(ids[0]); oldest == size {
		d.t.Error("the oldest is still whole")
	}
	for _, id := range ids {
		if _, cursor := d.logs(id, "?cursor=99999999"); cursor != strconv.Itoa(size) {
			d.t.Errorf("its end is at %s", cursor)
		}
		if o := d.bare().open("/executions/"+id+"/events", nil).rest(); o.end.Type != "execution_complete" {
			d.t.Errorf("%+v", o.end)
		}
	}
}

func oldestCommands(d *daemon) {
	g := d.gate()
	h := d.holder()
	running := d.background(g.pass())
	survived := d.command(h.held("sleep 987.1 & echo up")).init.ID
	forgotten := d.command("echo forgotten").init.ID
	var last string
	for range maxKept + 10 {
		a, err := d.answer(d.t.Context(), m{"command": "true"})
		if err != nil {
			d.t.Fatal(err)
		}
		last = a.ID
	}
	d.refused(404, "GET", "/command/status/"+forgotten, nil)
	d.refused(404, "GET", "/command/"+forgotten+"/logs", nil)
	d.refused(404, "GET", "/executions/"+forgotten+"/events", nil)
	d.refused(404, "DELETE", "/command?id="+forgotten, nil)
	d.status(last)
	if !d.status(running).Running {
		d.t.Error("what runs was forgotten")
	}
	if st := d.status(survived); len(st.Survivors) != 1 {
		d.t.Errorf("what a process has survived: %+v", st)
	}
	if got := d.call("DELETE", "/command?id="+survived, nil, nil); got != 200 {
		d.t.Errorf("end the survivor: %d", got)
	}
	h.wait()
	var list []commandStatus
	d.call("GET", "/command?state=finished", nil, &list)
	if len(list) > maxKept+1 {
		d.t.Errorf("%d are kept", len(list))
	}
	g.open()
	d.awaitExit(running)
}

func countedSessions(d *daemon) {
	var made struct {
		ID string `json:"session_id"`
	}
	var ids []string
	for range 3 {
		if got := d.call("POST", "/session", m{}, &made); got != 200 {
			d.t.Fatalf("make a session: %d", got)
		}
		ids = append(ids, made.ID)
	}
	d.refused(429, "POST", "/session", m{})
	d.refused(429, "POST", "/session/one-more/run", m{"command": "true", "create": true})
	d.refused(429, "POST", "/command", m{"command": "true", "session_id": "one-more"})
	for _, id := range ids {
		if got := d.call("DELETE", "/session/"+id, nil, nil); got != 200 {
			d.t.Errorf("delete a session: %d", got)
		}
	}
	if got := d.call("POST", "/session", m{"id": "again"}, &made); got != 200 || made.ID != "again" {
		d.t.Errorf("make a session after that: %d", got)
	}
}

func removedFolders(d *daemon) {
	g := d.gate()
	writes := d.background(numbers(30_000) + "; echo up; " + g.pass() + "; " + numbers(30_000))
	d.waitFor(writes, m{"pattern": "^up$"}, "pattern")
	for _, dir := range []string{d.data, d.run} {
		if err := os.RemoveAll(dir); err != nil {
			d.t.Fatal(err)
		}
	}
	g.open()
	for id, least := range map[string]int{writes: 64 << 10, d.background(numbers(30_000)): logPerExecution} { // the file is gone
		if code := d.awaitExit(id); code != 0 {
			d.t.Errorf("exit status %d", code)
		}
		if text, _ := d.logs(id, ""); len(text) < least || !strings.HasSuffix(text, "000029999\n000030000\n") {
			d.t.Errorf("%d bytes of log", len(text))
		}
	}
	if names, err := os.ReadDir(filepath.Join(d.data, "logs")); err != nil || len(names) == 0 {
		d.t.Errorf("no logs: %v", err)
	}
	if o := d.inSession("made-later", "x=1; cat <<<hi"); o.out() != "hi" || o.code != 0 {
		d.t.Errorf("a session: %q %+v", o.stdout, o.end)
	}
}

func TestVariablesFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub/envs")
	d := start(t, launch{env: []string{"EXECD_ENVS=" + file}})
	if o := d.command("echo $EXECD_ENVS"); o.out() != file {
		t.Fatalf("%q", o.stdout)
	}
	set := func(entry string) { // as clients do it
		t.Helper()
		o := d.command(`[ -n "$EXECD_ENVS" ] && mkdir -p "$(dirname "$EXECD_ENVS")" && printf '%s\n' "$ENTRY" >>"$EXECD_ENVS"`, m{"envs": m{"ENTRY": entry}})
		d.exits(o, 0)
	}
	set("KEPT='one two'")
	set(`QUOTED="it's \"so\"\n"`)
	set("OVER='file'")
	set("PATH='/usr/bin:/bin:/from/file'")
	const look = `printf '%s|' "$KEPT" "$QUOTED" "$OVER" "${PATH##*:}"`
	want := "one two|it's \"so\"\n|%s|/from/file|"
	more := m{"output": "raw", "envs": m{"OVER": "request"}}
	if o := d.command(look, more); o.out() != fmt.Sprintf(want, "request") {
		t.Errorf("command: %q", o.out())
	}
	id := d.background(look)
	d.awaitExit(id)
	if text, _ := d.logs(id, ""); text != fmt.Sprintf(want, "file") {
		t.Errorf("background: %q", text)
	}
	if o := d.inSession("s", look, m{"output": "raw"}); o.out() != fmt.Sprintf(want, "file") {
		t.Errorf("session: %q", o.out())
	}
	set("KEPT='new'")
	if o := d.command("echo $KEPT"); o.out() != "new" {
		t.Errorf("changed: %q", o.stdout)
	}
	if o := d.inSession("later", "echo $KEPT"); o.out() != "new" {
		t.Errorf("later session: %q", o.stdout)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if o := d.command("echo [$KEPT]"); o.out() != "[]" {
		t.Errorf("removed: %q", o.stdout)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	d.refused(400, "POST", "/command", m{"command": "true"})
	d.refused(400, "POST", "/session", m{})
}

func TestRequests(t *testing.T) {
	start(t, launch{args: []string{"--max-body=1000000"}}).each(t, map[string]func(*daemon){
		"a body that is too large is not read":     largeBodies,
		"wrong methods and paths are JSON errors":  wrongMethods,
		"garbage on a connection harms nobody":     garbage,
		"what can't be parsed is the client's own": unparsable,
	})
}

// zeros is a body without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// peak is the most memory the daemon has had, in bytes.
func (d *daemon) peak() int64 {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid()))
	if err != nil {
		d.t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return n << 10
}

func largeBodies(d *daemon) {
	before := d.peak()
	for _, path := range []string{"/command", "/session", "/code", "/session/x/run", "/code/context", "/command/operations"} {
		for _, length := range []int64{150_000_000, -1} {
			req, err := http.NewRequest("POST", d.url+path, io.LimitReader(zeros{}, 150_000_000))
			if err != nil {
				d.t.Fatal(err)
			}
			req.ContentLength = length
			d.tooLarge(req)
		}
	}
	if grown := d.peak() - before; grown > 40<<20 {
		d.t.Errorf("took %d MiB", grown>>20)
	}
	if o := d.command("echo ${#X}; :" + strings.Repeat(" ", 990_000)); o.code != 0 {
		d.t.Errorf("a body that just fits: %+v", o.end)
	}
	req, err := http.NewRequest("POST", d.url+"/command", body(m{"command": strings.Repeat("x", 1_000_000)}))
	if err != nil {
		d.t.Fatal(err)
	}
	d.tooLarge(req)
	if req, err = http.NewRequest("GET", d.url+"/ping", nil); err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 2<<20))
	if resp, err := (early{d.t}).RoundTrip(req); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		d.t.Errorf("a header of 2 MiB: %+v %v", resp, err)
	}
}

// tooLarge checks that a body is refused.
func (d *daemon) tooLarge(req *http.Request) {
	d.t.Helper()
	spec, err := openapitest.Load()
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := spec.Transport(early{d.t}, func(err error) { d.t.Errorf("not as in openapi.yaml: %v", err) }).RoundTrip(req)
	if err != nil {
		d.t.Fatalf("%s: %v", req.URL.Path, err)
	}
	var e struct{ Code, Message string }
	json.NewDecoder(resp.Body).Decode(&e)
	io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusRequestEntityTooLarge || e.Code != "TOO_LARGE" {
		d.t.Errorf("%s: %d %+v", req.URL.Path, resp.StatusCode, e)
	}
}

// early sends requests that are answered before they have been sent, and whose connections are then closed. net/http's
// client may find that it can't send any more before it finds the answer.
type early struct{ t *testing.T }

// RoundTrip implements http.RoundTripper.
func (e early) RoundTrip(req *http.Request) (*http.Response, error) {
	conn, err := net.Dial("tcp", req.URL.Host)
	if err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() { sent <- req.Write(conn) }()
	e.t.Cleanup(func() {
		conn.Close()
		<-sent // with an error or without one
	})
	return http.ReadResponse(bufio.NewReader(conn), req)
}

func wrongMethods(d *daemon) {
	spec, err := openapitest.Load()
	if err != nil {
		d.t.Fatal(err)
	}
	methods := map[string][]string{}
	for _, op := range spec.Operations() {
		if op.Tag == "proxy" { // takes all
			continue
		}
		path := strings.NewReplacer("{execution_id}", "x", "{id}", "x").Replace(op.Path)
		methods[path] = append(methods[path], op.Method)
	}
	bare := d.bare()
	for path, served := range methods {
		for _, method := range []string{"PATCH", "PUT", "TRACE"} {
			resp := bare.do(method, path, nil)
			var e struct{ Code, Message string }
			json.NewDecoder(resp.Body).Decode(&e)
			resp.Body.Close()
			allow := strings.Split(strings.ReplaceAll(resp.Header.Get("Allow"), " ", ""), ",")
			if resp.StatusCode != 405 || e.Code != "METHOD_NOT_ALLOWED" || e.Message == "" {
				d.t.Errorf("%s %s: %d %+v", method, path, resp.StatusCode, e)
			}
			for _, want := range served {
				if !slices.Contains(allow, want) {
					d.t.Errorf("%s %s: Allow %q lacks %s", method, path, allow, want)
				}
			}
		}
	}
	for _, path := range []string{"/", "/nothing", "/command/", "/command/x", "/command/x/y/z", "//command", "/Command", "/session/", "/../etc/passwd", "/command/status/"} {
		resp := bare.do("GET", path, nil)
		var e struct{ Code, Message string }
		json.NewDecoder(resp.Body).Decode(&e)
		resp.Body.Close()
		if resp.StatusCode != 404 || e.Code != "NOT_FOUND" || resp.Header.Get("Content-Type") != "application/json" {
			d.t.Errorf("%s: %d %+v %v", path, resp.StatusCode, e, resp.Header)
		}
	}
	resp := bare.do("HEAD", "/nothing", nil)
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 404 || len(text) > 0 {
		d.t.Errorf("HEAD: %d %q", resp.StatusCode, text)
	}
	resp.Body.Close()
}

func garbage(d *daemon) {
	for _, text := range []string{
		"\x00\x01\x02\xff\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /ping HTTP/1.1\r\n\r\n", "GET /command HTTP/1.1\r\nHost: a b\r\n\r\n",
		"POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", "POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"POST /command HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "POST /command HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"comm",
		"GET /command/%zz/logs HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
		if err != nil {
			d.t.Fatal(err)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			d.t.Fatal(err)
		}
		conn.(*net.TCPConn).CloseWrite()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode < 400 || resp.StatusCode >= 500 && resp.StatusCode != http.StatusHTTPVersionNotSupported && resp.StatusCode != http.StatusNotImplemented {
				d.t.Errorf("%q: %d", text, resp.StatusCode)
			}
		}
		conn.Close()
	}
	if o := d.command("echo hi"); o.out() != "hi" {
		d.t.Errorf("%q", o.stdout)
	}
}

func unparsable(d *daemon) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for _, body := range []string{"", "{", "\xff\xfe", `{"command":"x"} y`, `{"command":"x","envs":` + deep + `}`, `"command"`, "[1]", `{"command":{}}`, `{"timeout":1e99,"command":"x"}`} {
		for _, path := range []string{"/command", "/session/x/run", "/code", "/code/context", "/command/x/signal"} {
			resp := d.bare().do("POST", path, body)
			var e struct{ Code, Message string }
			err := json.NewDecoder(resp.Body).Decode(&e)
			resp.Body.Close()
			if resp.StatusCode < 400 || resp.StatusCode >= 500 || err != nil || e.Code == "" || len(e.Message) > 1000 {
				d.t.Errorf("%s %.50q: %d %.200v", path, body, resp.StatusCode, e)
			}
		}
	}
	if o := d.open("/command", `{"command":"echo hi","unknown":[{}],"a":null,"cwd":"","envs":null,"timeout":null,"uid":null}`).rest(); o.out() != "hi" {
		d.t.Errorf("unknown fields: %q", o.stdout)
	}
}
