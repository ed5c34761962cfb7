package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/celld/celld/openapi"
	"github.com/celld/celld/openapi/openapitest"
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
		{[]string{"serve", "--access-token-file="}, "--access-token-file is empty", true},
		{[]string{"serve", "--access-token-file", ""}, "--access-token-file is empty", true},
		{[]string{"serve", "--access-token-file", "/dev/null"}, "/dev/null is empty", true},
		{[]string{"serve", "--access-token", " \n"}, "the access token is blank", true},
	} {
		out, err := runToEnd(t, c.args...)
		if (err != nil) != c.fails || !strings.Contains(out, c.text) || strings.Count(out, "\n") != 1 {
			t.Errorf("%q: %v\n%s", c.args, err, out)
		}
	}
}

// TestARunThatNeverBeganHasAnExitStatus: SDKs read a number from the error.
func TestARunThatNeverBeganHasAnExitStatus(t *testing.T) {
	d := start(t, launch{})
	first := d.open("/session/w/run", m{"command": "mkfifo p; echo ready; read <p; readonly R=1", "create": true})
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

// TestHeadIsGetWithoutItsBody: the same status and header (RFC 9110 section 9.3.2), and nothing started or held open.
func TestHeadIsGetWithoutItsBody(t *testing.T) {
	d := start(t, launch{}).bare()
	spec, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.ws+"/f", []byte(strings.Repeat("x", 5000)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/version", "/code/contexts?language=python", "/code/contexts"} {
		resp := d.do(http.MethodHead, path, nil)
		if resp.Body.Close(); resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("HEAD %s: %d %q", path, resp.StatusCode, resp.Header)
		}
	}
	if servers := d.jupyterServers(); len(servers) > 0 {
		t.Errorf("HEAD has started a server of kernels: %d", servers)
	}
	id := d.command("echo hi").init.Text
	ids := strings.NewReplacer("/command/status/{id}", "/command/status/"+id, "/command/{id}", "/command/"+id, "{execution_id}", id,
		"/session/{id}", "/session/default", "/pty/{id}", "/pty/"+d.pty(), "/code/contexts/{id}", "/code/contexts/"+d.context(m{"language": "bash"}).ID)
	query := map[string]string{
		"/files/info": "?path=f", "/files/download": "?path=f", "/files/search": "?path=.&pattern=*", "/directories/list": "?path=.", "/execution/operation": "?kind=command&id=x",
	}
	known := []string{"/openapi.yaml", "/openapi.json", "/docs", "/files/download"} // whose length is known beforehand
	streams := []string{"/ws", "/pty/{id}/ws", "/executions/{execution_id}/events", "/command/{id}/resume", "/metrics/watch", "/files/watch"}
	for _, op := range spec.Operations() {
		if op.Method != http.MethodGet || op.Tag == "proxy" {
			continue
		}
		path := ids.Replace(op.Path) + query[op.Path]
		head := d.do(http.MethodHead, path, nil)
		body, err := io.ReadAll(head.Body)
		head.Body.Close()
		if err != nil || len(body) > 0 {
			t.Errorf("HEAD %s: body %q, %v", path, body, err)
		}
		if slices.Contains(streams, op.Path) {
			if allow := head.Header.Get("Allow"); head.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(allow, "GET") || strings.Contains(allow, "HEAD") {
				t.Errorf("HEAD %s: %d, Allow %q", path, head.StatusCode, allow)
			}
			continue
		}
		get := d.do(http.MethodGet, path, nil)
		text, err := io.ReadAll(get.Body)
		get.Body.Close()
		if err != nil || head.StatusCode != get.StatusCode {
			t.Errorf("HEAD %s: %d, GET: %d %v", path, head.StatusCode, get.StatusCode, err)
		}
		for name := range get.Header {
			if name == "Date" || name == "X-Request-Id" || name == "Content-Length" && !slices.Contains(known, op.Path) {
				continue // it may be left out, and figures change
			}
			if head.Header.Get(name) != get.Header.Get(name) {
				t.Errorf("HEAD %s: %s %q, GET: %q", path, name, head.Header.Get(name), get.Header.Get(name))
			}
		}
		if slices.Contains(known, op.Path) && head.Header.Get("Content-Length") != strconv.Itoa(len(text)) {
			t.Errorf("HEAD %s: Content-Length %s of %d bytes", path, head.Header.Get("Content-Length"), len(text))
		}
	}
	for _, c := range []struct {
		path, header, value string
		status              int
		length              string
	}{
		{"/files/download?path=f", "Range", "bytes=10-19", 206, "10"},
		{"/files/download?path=nothing", "", "", 404, ""},
		{"/nothing", "", "", 404, ""},
	} {
		var header []string
		if c.header != "" {
			header = []string{c.header, c.value}
		}
		resp := d.do(http.MethodHead, c.path, nil, header...)
		if resp.Body.Close(); resp.StatusCode != c.status || c.length != "" && resp.Header.Get("Content-Length") != c.length {
			t.Errorf("HEAD %s %s: %d %q", c.path, c.value, resp.StatusCode, resp.Header)
		}
	}
}

// TestEmptyVariablesAreNotSet: compose files and scripts pass on what may be empty.
func TestEmptyVariablesAreNotSet(t *testing.T) {
	empty := []string{"CELLD_ACCESS_TOKEN="} // the other name of the same
	for _, name := range []string{"ACCESS_TOKEN_FILE", "PORT", "LISTEN", "INSECURE_NO_AUTH", "PREWARM", "WARM", "JUPYTER_PORT", "BASH", "LOG_LEVEL", "LOG_FORMAT", "MAX_BODY", "KEEP", "SQL", "WORKSPACE"} {
		empty = append(empty, "CELLD_"+name+"=")
	}
	for _, c := range []struct {
		token  string
		header []string
		status int
	}{
		{"EXECD_ACCESS_TOKEN=", nil, 200},
		{"EXECD_ACCESS_TOKEN=" + secret, nil, 401},
		{"EXECD_ACCESS_TOKEN= " + secret + "\n", []string{"X-EXECD-ACCESS-TOKEN", secret}, 200},
	} {
		d := start(t, launch{env: append(empty, c.token)})
		if status := d.call(http.MethodGet, "/executions", nil, nil, c.header...); status != c.status {
			t.Errorf("%q: %d, want %d", c.token, status, c.status)
		}
		if !strings.Contains(d.log.String(), "workspace="+d.ws) {
			t.Errorf("%q: %s", c.token, d.log.String())
		}
	}
}
