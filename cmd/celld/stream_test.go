package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestStreams(t *testing.T) {
	d := start(t, launch{})
	begin := time.Now()
	quiet := d.open("/command", m{"command": "sleep 15; echo end"}) // goes on beside the others
	one := d.do("POST", "/command", m{"command": "sleep 15; echo end"}, "Accept", "application/json")
	defer one.Body.Close() // its header has come
	t.Run("side by side", func(t *testing.T) {
		d.in(t).each(t, map[string]func(*daemon){
			"lines survive a hundred cuts":                   cutLines,
			"raw output survives a hundred cuts":             cutRaw,
			"several readers see the same":                   severalReaders,
			"a position is all that is needed to go on":      resumed,
			"what is wrong with a position is told":          wrongPositions,
			"lines of JSON instead of events":                bareJSON,
			"the way output is cut can change":               changedMode,
			"has the headers of an event stream":             streamHeaders,
			"a client that goes away does no harm to others": brokenClients,
			"a slow reader slows the program and not others": slowReader,
		})
	})
	pings := 0
	for {
		line, err := quiet.frames.ReadString('\n')
		if err != nil {
			t.Fatalf("%d pings, then %v", pings, err)
		}
		var e event
		if data, ok := strings.CutPrefix(line, "data: "); !ok {
			continue
		} else if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == "ping" {
			pings++
			if e.Text != "pong" || e.EID != 0 {
				t.Errorf("ping %+v", e)
			}
		}
		if e.Type == "stdout" {
			break
		}
	}
	if text, err := io.ReadAll(one.Body); err != nil || !strings.HasPrefix(string(text), "\n") || !strings.Contains(string(text), `"stdout":"end\n"`) {
		t.Errorf("one answer after 15 s of silence: %q, %v", text, err)
	}
	if took := time.Since(begin); pings < 1 || time.Duration(pings)*10*time.Second > took {
		t.Errorf("%d pings in %v of silence", pings, took)
	}
	if o := quiet.rest(); o.end.Type != "execution_complete" {
		t.Errorf("ended with %+v", o.end)
	}
}

// narrow is the same daemon with a client that takes little more than what is read.
func (d *daemon) narrow() *daemon {
	c := d.bare()
	c.http.Transport.(*http.Transport).DialContext = (&net.Dialer{
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10) })
			return errors.Join(cerr, err)
		},
	}).DialContext
	return c
}

// cutter is a client whose connection breaks again and again and who then goes on after the last whole event it had.
type cutter struct {
	d      *daemon
	random *rand.Rand
	id     string
	last   int64 // position of the last whole event
	text   []byte
	lines  bool
	ended  bool
}

// read takes events from a stream up to a cut after n bytes, or to the end if n is 0.
func (c *cutter) read(body io.Reader, n int64) {
	c.d.t.Helper()
	if n > 0 {
		body = io.LimitReader(body, n)
	}
	frames := bufio.NewReaderSize(body, 1<<16)
	var data []byte
	for {
		line, err := frames.ReadBytes('\n')
		if err != nil {
			return // what has come of a frame doesn't count
		}
		if text, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			data = text
		} else if len(line) == 1 {
			c.take(data)
		}
	}
}

// take takes one event.
func (c *cutter) take(data []byte) {
	c.d.t.Helper()
	e, ok := plainOutput(data)
	if !ok {
		if err := json.Unmarshal(data, &e); err != nil {
			c.d.t.Fatalf("%.200q: %v", data, err)
		}
	}
	switch e.Type {
	case "ping":
		return
	case "init":
		c.id = e.ID
	case "stdout":
		c.text = append(c.text, e.Text...)
		if c.lines {
			c.text = append(c.text, '\n')
		}
	case "execution_complete":
		c.ended = true
	default:
		c.d.t.Fatalf("event %+v", e)
	}
	if e.EID <= c.last {
		c.d.t.Fatalf("event %d after %d", e.EID, c.last)
	}
	c.last = e.EID
}

// plainOutput reads the simplest of events, of which there are many.
func plainOutput(data []byte) (e event, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`{"type":"stdout",`))
	if !ok || bytes.IndexByte(rest, '\\') >= 0 {
		return e, false
	}
	_, rest, _ = bytes.Cut(rest, []byte(`"eid":`))
	eid, rest, _ := bytes.Cut(rest, []byte(`,"text":"`))
	text, rest, _ := bytes.Cut(rest, []byte(`"`))
	n, err := strconv.ParseInt(string(eid), 10, 64)
	return event{Type: "stdout", EID: n, Text: string(text)}, err == nil && string(rest) == "}\n"
}

func (d *daemon) cut(mode string, size int64) {
	d = d.narrow()
	c := &cutter{d: d, random: rand.New(rand.NewPCG(1, 2)), lines: mode == "lines"}
	next := func(n int64, method, path string, v any, header ...string) {
		ctx, cancel := context.WithCancel(d.t.Context())
		defer cancel() // cuts the connection
		resp := d.doCtx(ctx, method, path, v, header...)
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(resp.Body)
			d.t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
		}
		c.read(resp.Body, n)
	}
	next(1000, "POST", "/command", m{"command": "seq -f 'line %010g' 1 200000", "on_disconnect": "continue", "output": mode})
	for i := range 100 {
		n := 1 + c.random.Int64N(2*size/100)
		switch i % 3 {
		case 0:
			next(n, "GET", fmt.Sprintf("/executions/%s/events?after=%d", c.id, c.last), nil)
		case 1:
			next(n, "GET", "/executions/"+c.id+"/events", nil, "Last-Event-ID", strconv.FormatInt(c.last, 10))
		case 2:
			next(n, "GET", fmt.Sprintf("/command/%s/resume?after_eid=%d", c.id, c.last), nil)
		}
		if c.ended {
			d.t.Fatalf("all came within %d cuts: they are too far apart", i)
		}
	}
	next(0, "GET", fmt.Sprintf("/executions/%s/events?after=%d", c.id, c.last), nil)
	if !c.ended {
		d.t.Fatal("no terminal event")
	}
	rest := string(c.text)
	for i := 1; i <= 200_000; i++ {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		if want := fmt.Sprintf("line %010d", i); line != want {
			d.t.Fatalf("%q where %q belongs", line, want)
		}
	}
	if rest != "" {
		d.t.Fatalf("%.100q after the last line", rest)
	}
}

// The sizes are a little less than what each stream is long in all.
func cutLines(d *daemon) { d.cut("lines", 18_000_000) }
func cutRaw(d *daemon)   { d.cut("raw", 3_000_000) }

func severalReaders(d *daemon) {
	g := d.gate()
	s := d.open("/command", m{"command": "for i in {1..100}; do echo early $i; done; " + g.pass() + "; for i in {1..100}; do echo late $i; done; exit 3"})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	var all []*stream
	for range 4 {
		all = append(all, d.open("/executions/"+id+"/events", nil))
	}
	for _, r := range all {
		r.until(prints("early 100"))
	}
	s.until(prints("early 100"))
	all[0].close() // one goes away
	g.open()
	for _, r := range append(all[1:], s, d.open("/executions/"+id+"/events?after=1", nil)) {
		o := r.rest()
		n := len(o.stdout)
		if n < 100 || o.stdout[n-100] != "late 1" || o.stdout[n-1] != "late 100" || o.code != 3 {
			d.t.Errorf("%d lines, status %d", n, o.code)
		}
	}
}

func resumed(d *daemon) {
	whole := d.command(`for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf 'no end'; exit 2`)
	id := whole.init.ID
	for i, e := range whole.events {
		path := fmt.Sprintf("/executions/%s/events?after=%d", id, e.EID)
		if sameEvent(e, whole.end) {
			for _, p := range []string{path, path + "0", path + "&follow=false"} {
				if got := d.call("GET", p, nil, nil); got != http.StatusNoContent {
					d.t.Errorf("after the end: %d", got)
				}
			}
			continue
		}
		o := d.open(path, nil).rest()
		if !slices.EqualFunc(o.events, whole.events[i+1:], sameEvent) {
			d.t.Errorf("after event %d:\n%+v, want\n%+v", i, o.events, whole.events[i+1:])
		}
	}
	if o := d.open("/executions/"+id+"/events", nil).rest(); !slices.EqualFunc(o.events, whole.events, sameEvent) {
		d.t.Errorf("from the beginning:\n%+v, want\n%+v", o.events, whole.events)
	}
	if o := d.open("/executions/"+id+"/events?follow=false", nil).rest(); !slices.EqualFunc(o.events, whole.events, sameEvent) {
		d.t.Errorf("without following:\n%+v", o.events)
	}

	g := d.gate()
	s := d.open("/command", m{"command": "echo one; " + g.pass()})
	id = s.until(func(e event) bool { return e.Type == "init" }).ID
	at := s.until(prints("one"))
	now := d.open("/executions/"+id+"/events?follow=false", nil)
	var got []string
	for e, ok := now.next(); ok; e, ok = now.next() {
		got = append(got, e.Type)
	}
	if !slices.Equal(got, []string{"init", "stdout"}) {
		d.t.Errorf("what is there now: %q", got)
	}
	if got := d.call("GET", fmt.Sprintf("/executions/%s/events?follow=0&after=%d", id, at.EID), nil, nil); got != http.StatusNoContent {
		d.t.Errorf("nothing is there now: %d", got)
	}
	g.open()
	s.rest()
}

// sameEvent compares what doesn't depend on when an event was read.
func sameEvent(a, b event) bool {
	return a.Type == b.Type && a.EID == b.EID && a.Text == b.Text && a.Partial == b.Partial && (a.Error == nil) == (b.Error == nil)
}

func wrongPositions(d *daemon) {
	id := d.command("echo x").init.ID
	for _, query := range []string{"?after=-1", "?after=x", "?after=1.5", "?after_eid=-1", "?follow=perhaps", "?output=yaml"} {
		d.refused(400, "GET", "/executions/"+id+"/events"+query, nil)
		d.refused(400, "GET", "/command/"+id+"/resume"+query, nil)
	}
	d.refused(400, "GET", "/executions/"+id+"/events", nil, "Last-Event-ID", "one")
	if got := d.call("GET", "/executions/"+id+"/events?after=9223372036854775807", nil, nil); got != http.StatusNoContent {
		d.t.Errorf("far after the end: %d", got)
	}
	d.refused(404, "GET", "/executions/0123456789abcdef0123456789abcdef/events", nil)
}

func bareJSON(d *daemon) {
	read := func(resp *http.Response) (types []string) {
		d.t.Helper()
		defer resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "application/x-ndjson" {
			d.t.Fatalf("%d %q", resp.StatusCode, got)
		}
		for dec := json.NewDecoder(resp.Body); ; {
			var e event
			if err := dec.Decode(&e); errors.Is(err, io.EOF) {
				return types
			} else if err != nil {
				d.t.Fatal(err)
			}
			types = append(types, e.Type+" "+strings.TrimSpace(e.Text))
			if e.Type == "init" {
				types[len(types)-1] = "init"
			}
		}
	}
	want := []string{"init", "stdout a", "stdout", "stdout b", "error "}
	got := read(d.do("POST", "/command", m{"command": `printf 'a\n\nb'; exit 1`}, "Accept", "application/x-ndjson"))
	want[2] = "stdout "
	if !slices.Equal(got, want) {
		d.t.Errorf("%q", got)
	}
	id := d.command("echo a; exit 1").init.ID
	got = read(d.do("GET", "/executions/"+id+"/events?after=1", nil, "Accept", "text/plain;q=0.5, application/x-ndjson"))
	if !slices.Equal(got, []string{"stdout a", "error "}) {
		d.t.Errorf("resumed: %q", got)
	}
}

func changedMode(d *daemon) {
	o := d.command(`printf 'a\r\nb\303'; printf '\251\nc'`)
	for mode, want := range map[string]string{"": "a|bé|c", "lines": "a|bé|c", "raw": "a\r\nbé\nc", "base64": ""} {
		all := d.open("/executions/"+o.init.ID+"/events?output="+mode, nil).rest()
		got := strings.Join(all.stdout, "|")
		if mode == "raw" {
			got = all.out()
		}
		if got != want {
			d.t.Errorf("%s: %q, want %q", mode, got, want)
		}
	}
}

func streamHeaders(d *daemon) {
	for _, path := range []string{"", "background"} {
		resp := d.do("POST", "/command", m{"command": "true", "background": path != ""}, "Accept-Encoding", "gzip", "X-Request-ID", "mine-1")
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		h := resp.Header
		if h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-cache" || h.Get("X-Accel-Buffering") != "no" ||
			h.Get("Content-Encoding") != "" || h.Get("X-Request-ID") != "mine-1" {
			d.t.Errorf("%v", h)
		}
	}
	resp := d.do("GET", "/ping", nil)
	resp.Body.Close()
	if len(resp.Header.Get("X-Request-ID")) != 32 {
		d.t.Errorf("request id %q", resp.Header.Get("X-Request-ID"))
	}
}

func brokenClients(d *daemon) {
	d = d.bare()
	s := d.open("/command", m{"command": "while :; do echo x; done", "on_disconnect": "kill"})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	for range 5 {
		r := d.open("/executions/"+id+"/events?after=1", nil)
		r.until(prints("x"))
		r.close()
	}
	others := []*stream{d.open("/command", m{"command": "seq 1 5000"}), d.open("/command", m{"command": "seq 1 5000"})}
	s.until(prints("x"))
	s.close() // with much that was never read
	for _, o := range others {
		if o := o.rest(); len(o.stdout) != 5000 || o.code != 0 {
			d.t.Errorf("another command: %d lines, status %d", len(o.stdout), o.code)
		}
	}
	if code := d.awaitExit(id); code != 143 {
		d.t.Errorf("status %d", code)
	}
}

// slowReader: one client reads nothing of what its command prints; everything else goes on, and nothing is lost.
func slowReader(d *daemon) {
	d = d.narrow()
	s := d.open("/command", m{"command": "seq 1 600000; echo done >&2", "output": "raw"})
	id := s.until(func(e event) bool { return e.Type == "init" }).ID
	if o := d.command("echo hi"); o.out() != "hi" {
		d.t.Errorf("%q", o.stdout)
	}
	if st := d.status(id); !st.Running {
		d.t.Error("the program didn't wait for its reader")
	}
	o := s.rest()
	if n := len(o.out()); n != 4_088_895 || !slices.Equal(o.stderr, []string{"done\n"}) {
		d.t.Errorf("%d bytes, stderr %q", n, o.stderr)
	}
}
