package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/celld/celld/openapi"
)

// TestEdgesOfRequests: what is unusual, but has a right answer.
func TestEdgesOfRequests(t *testing.T) {
	d := start(t, launch{args: []string{"--memory-per-execution=131072", "--log-per-execution=131072"}})
	for _, path := range []string{"/command?id=default", "/session/default/run"} { // before its first use
		if status := d.call(http.MethodDelete, path, nil, nil); status == http.StatusNotFound {
			t.Errorf("DELETE %s: %d", path, status)
		}
	}
	if status := d.call(http.MethodGet, "/session/default/logs", nil, nil); status != http.StatusOK {
		t.Errorf("the log of the default session: %d", status)
	}

	if err := os.WriteFile(d.ws+"/f", []byte("0123456"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		header string
		status int
		body   string
	}{
		{"bytes=-0", 416, ""}, {"bytes=-00,7-", 416, ""}, {"bytes=99999999999999999999-", 416, ""},
		{"bytes=0-99999999999999999999", 206, "0123456"}, {"bytes=-99999999999999999999", 206, "0123456"},
		{"bytes=5-", 206, "56"}, {"Bytes=1-2", 206, "12"}, {"bytes=-2", 206, "56"}, {"bytes=-0,1-1", 206, "1"}, {"lines=1-2", 200, "0123456"},
	} {
		resp := d.do(http.MethodGet, "/files/download?path=f", nil, "Range", c.header)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || c.body != "" && string(text) != c.body {
			t.Errorf("%s: %d %q %v, want %d %q", c.header, resp.StatusCode, text, err, c.status, c.body)
		}
		if c.status == 416 && !strings.Contains(string(text), string(openapi.ErrorCodeRangeNotSatisfiable)) {
			t.Errorf("%s: %s", c.header, text)
		}
	}

	for text, end := range map[string]string{"true": "exit", "printf 'ab\\n'": "exit", "echo": "pattern", "printf 'a\\n\\nb'": "pattern"} {
		id := d.command(text).init.Text
		var got openapi.WaitResult
		if d.call(http.MethodPost, "/command/"+id+"/wait", m{"pattern": "^$"}, &got); string(got.Event) != end {
			t.Errorf("an empty line of %q: %+v, want %s", text, got, end)
		}
		d.refused(http.StatusBadRequest, http.MethodPost, "/command/"+id+"/wait", m{"pattern": ""})
	}

	for text, kept := range map[string]bool{"echo little": true, "head -c 2000000 /dev/zero | tr '\\0' x": false} {
		resp := d.do(http.MethodGet, "/command/"+d.command(text, m{"output": "raw"}).init.Text+"/logs?cursor=0", nil)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var from, next int
		fmt.Sscan(resp.Header.Get("X-Celld-Log-Kept-From"), &from)
		fmt.Sscan(resp.Header.Get("EXECD-COMMANDS-TAIL-CURSOR"), &next)
		if err != nil || from != next-len(body) || (from == 0) != kept {
			t.Errorf("%s: kept from %d, next %d, %d bytes, %v", text, from, next, len(body), err)
		}
	}

	d.refused(http.StatusBadRequest, http.MethodGet, "/executions?kind=zz", nil)
	if status := d.call(http.MethodGet, "/executions?kind=command", nil, nil); status != http.StatusOK {
		t.Errorf("executions by kind: %d", status)
	}
	for _, c := range []struct {
		method, path, text string
		body               any
	}{
		{"DELETE", "/directories?path=/", "never removed", nil},
		{"POST", "/directories", "not a directory", m{"f": m{}}},
	} {
		var e openapi.Error
		if status := d.call(c.method, c.path, c.body, &e); status < 400 || !strings.Contains(e.Message, c.text) {
			t.Errorf("%s %s: %d %q, want %q", c.method, c.path, status, e.Message, c.text)
		}
	}
}

func TestCommandLinesThatCannotBeMeant(t *testing.T) {
	for _, c := range []struct {
		args  []string
		text  string
		fails bool
	}{
		{[]string{"--version"}, "celld ", false},
		{[]string{"serve", "--nonsense"}, "--help", true},
		{[]string{"serve", "--listen=nonsense"}, "HOST:PORT", true},
		{[]string{"serve", "--access-token="}, "--access-token is empty", true},
		{[]string{"serve", "--access-token", ""}, "--access-token is empty", true},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], c.args...)
		cmd.Env = append(os.Environ(), runAsDaemon+"=1")
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.text) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%q: %v\n%s", c.args, err, out)
		}
	}
}

// TestARunThatNeverBeganHasAnExitStatus: SDKs read a number from the error.
func TestARunThatNeverBeganHasAnExitStatus(t *testing.T) {
	d := start(t, launch{})
	first := d.open("/session/w/run", m{"command": "echo ready; mkfifo p; read <p; readonly R=1", "create": true})
	first.until(prints("ready"))
	late := d.inSession("w", "echo no", m{"timeout": 1})
	if late.code != 143 || late.failed() != "CommandTimeout" || late.end.ExitCode == nil || *late.end.ExitCode != 143 {
		t.Errorf("its timeout passed in the queue: %+v", late.end)
	}
	refused := d.open("/session/w/run", m{"command": "echo no", "envs": m{"R": "2"}})
	refused.until(func(e event) bool { return e.Type == "status" && e.State == "queued" })
	d.command("echo >p")
	if o := refused.rest(); o.code != 1 || o.end.ExitCode == nil || !strings.Contains(o.end.Error.Traceback[0], "R is readonly") {
		t.Errorf("a variable that is readonly: %+v", o.end)
	}
	first.rest()
	d.refused(http.StatusBadRequest, http.MethodPost, "/session/w/run", m{"command": "echo no", "envs": m{"R": "2"}})
}
