package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/celld/celld/openapi/openapitest"
)

// secret is an access token that is found wherever it turns up.
const secret = "s3cret-0123456789-t0ken"

// openPaths need no token.
var openPaths = []string{"/ping", "/healthz", "/readyz"}

// upgrade are the headers of a WebSocket's handshake (RFC 6455).
var upgrade = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}

func TestAccessToken(t *testing.T) {
	d := start(t, launch{env: []string{"EXECD_ACCESS_TOKEN=" + secret}})
	d.each(t, map[string]func(*daemon){
		"nothing is answered without it":  refusedWithoutToken,
		"is taken in its header or query": takenToken,
		"is nowhere where commands look":  hiddenToken,
	})
}

func refusedWithoutToken(d *daemon) {
	spec, err := openapitest.Load()
	if err != nil {
		d.t.Fatal(err)
	}
	targets := [][2]string{
		{"GET", "/"}, {"GET", "/nothing"}, {"GET", "/ws"}, {"GET", "/ping/"}, {"GET", "//ping"}, {"GET", "/PING"}, {"GET", "/ping/../version"},
		{"GET", "/ping%2f"}, {"PUT", "/command"}, {"OPTIONS", "/command"}, {"HEAD", "/version"},
	}
	for _, op := range spec.Operations() {
		if !slices.Contains(openPaths, op.Path) {
			targets = append(targets, [2]string{op.Method, op.Path})
		}
	}
	bare := d.bare()
	for _, target := range targets {
		for _, header := range [][]string{
			nil, {"X-EXECD-ACCESS-TOKEN", ""}, {"X-EXECD-ACCESS-TOKEN", "wrong"}, {"X-EXECD-ACCESS-TOKEN", secret[:len(secret)-1]},
			{"X-EXECD-ACCESS-TOKEN", secret + "x"}, {"X-EXECD-ACCESS-TOKEN", strings.ToUpper(secret)},
			{"Authorization", "Bearer wrong"}, {"Authorization", "Bearer"}, {"Authorization", "Basic " + secret}, {"Authorization", secret},
			{"Cookie", "access_token=" + secret}, append([]string{"Origin", d.url}, upgrade...),
		} {
			resp := bare.do(target[0], target[1], nil, header...)
			var e struct{ Code, Message string }
			err := json.NewDecoder(resp.Body).Decode(&e)
			resp.Body.Close()
			if resp.StatusCode != 401 || target[0] != "HEAD" && (err != nil || e.Code != "UNAUTHORIZED") {
				d.t.Errorf("%s %s with %q: %d %+v", target[0], target[1], header, resp.StatusCode, e)
			}
		}
	}
	for _, target := range []string{"/version?access_token=wrong", "/version?access_token=", "/version?access_token=" + secret[1:], "/version?token=" + secret} {
		d.refused(401, "GET", target, nil)
	}
	d.refused(401, "POST", "/command?access_token="+secret, m{"command": "true"}) // a form on a web page could do that
	d.refused(401, "GET", "/version?access_token="+secret, nil, "X-EXECD-ACCESS-TOKEN", "wrong")
	for _, path := range openPaths {
		if got := d.call("GET", path, nil, nil, "Origin", "http://evil.example", "Host", "evil.example"); got != 200 {
			d.t.Errorf("%s: %d", path, got)
		}
	}
}

func takenToken(d *daemon) {
	for _, header := range [][]string{
		{"X-EXECD-ACCESS-TOKEN", secret}, {"Authorization", "Bearer " + secret}, {"Authorization", "bearer " + secret},
	} {
		// With the token neither the page nor the name matters.
		header = append(header, "Origin", "http://elsewhere.example", "Host", "sandbox.example")
		if got := d.call("GET", "/command", nil, nil, header...); got != 200 {
			d.t.Errorf("%q: %d", header, got)
		}
		if o := d.open("/command", m{"command": "echo hi"}, header...).rest(); o.out() != "hi" {
			d.t.Errorf("%q: %q", header, o.stdout)
		}
	}
	if got := d.call("GET", "/command?access_token="+secret, nil, nil); got != 200 {
		d.t.Errorf("in the query: %d", got)
	}
	resp := d.bare().do("GET", "/ws?access_token="+secret, nil, upgrade...)
	resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		d.t.Errorf("WebSocket: %d", resp.StatusCode)
	}
}

func hiddenToken(d *daemon) {
	token := []string{"X-EXECD-ACCESS-TOKEN", secret}
	// Everything that is this daemon's, itself included; others on this machine may have tokens of their own.
	const look = `exec 2>&1; env; set; cat /proc/$PPID/environ /proc/$PPID/cmdline; ls -l /proc/$PPID/fd
		for p in /proc/[0-9]*; do grep -qsz "^` + belongsTo + `=$` + belongsTo + `$" $p/environ && cat $p/environ $p/cmdline; done; :`
	outputs := map[string]string{}
	read := func(name string, s *stream) {
		outputs[name] = s.rest().out()
	}
	d = d.bare()
	read("command", d.open("/command", m{"command": look, "output": "raw"}, token...))
	read("session", d.open("/session/look/run", m{"command": look, "output": "raw", "create": true}, token...))
	read("argv", d.open("/command", m{"argv": []string{"bash", "-c", look}, "output": "raw"}, token...))
	read("code without a language", d.open("/code", m{"code": look}, token...))
	id := d.open("/command", m{"command": look, "background": true}, token...).rest().init.Text
	read("background", d.open("/executions/"+id+"/events?output=raw", nil, token...))
	for name, text := range outputs {
		if len(text) < 1000 || !strings.Contains(text, "PATH=") {
			d.t.Errorf("%s saw only %q", name, text)
		}
		for _, part := range []string{secret, "celld-secrets", "ACCESS_TOKEN="} {
			if i := strings.Index(text, part); i >= 0 {
				d.t.Errorf("%s: found %s: %.200q", name, part, text[max(0, i-100):])
			}
		}
	}
	d.open("/command", m{"command": "echo " + secret}, token...).rest()
	d.open("/command", m{"command": "true", "envs": m{"A": secret}}, token...).rest()
	d.call("GET", "/nothing?access_token="+secret, nil, nil)
	if strings.Contains(d.log.String(), secret) {
		d.t.Errorf("the token is in the log:\n%s", d.log.String())
	}
}

// TestTokenByOtherWays gives the token by a flag and by a file, and looks at celld's own arguments.
func TestTokenByOtherWays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--access-token=" + secret}, {"--access-token", secret}, {"--access-token-file=" + file}} {
		l := launch{args: args, env: []string{"EXECD_ACCESS_TOKEN=another"}}
		if args[0] == "--access-token-file="+file { // for when there is no other
			l.env = nil
		}
		d := start(t, l)
		d.refused(401, "GET", "/command", nil, "X-EXECD-ACCESS-TOKEN", "another")
		if got := d.call("GET", "/command", nil, nil, "X-EXECD-ACCESS-TOKEN", secret); got != 200 {
			t.Errorf("%q: %d", args, got)
		}
		for _, name := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.pid(), name))
			if err != nil || bytes.Contains(text, []byte(secret)) || bytes.Contains(text, []byte("another")) {
				t.Errorf("%q: %s: %q %v", args, name, text, err)
			}
		}
		d.stop()
	}
}

func TestWithoutTokenWebPagesStayOut(t *testing.T) {
	d := start(t, launch{})
	port := d.url[strings.LastIndexByte(d.url, ':'):]
	for header, want := range map[[2]string]int{
		{"Origin", "http://evil.example"}:              403,
		{"Origin", "https://evil.example" + port}:      403,
		{"Origin", "null"}:                             403,
		{"Origin", "http://127.0.0.1" + port + "0"}:    403,
		{"Origin", "http://127.0.0.1.evil.example"}:    403,
		{"Origin", "file://"}:                          403,
		{"Origin", d.url}:                              200,
		{"Host", "evil.example"}:                       403,
		{"Host", "evil.example" + port}:                403,
		{"Host", "127.0.0.1.evil.example"}:             403,
		{"Host", "localhost.evil.example"}:             403,
		{"Host", "localhost"}:                          200,
		{"Host", "LOCALHOST." + port}:                  200,
		{"Host", "app.localhost" + port}:               200,
		{"Host", "127.0.0.1"}:                          200,
		{"Host", "[::1]" + port}:                       200,
		{"Host", "10.1.2.3" + port}:                    200,
		{"Sec-Fetch-Site", "none"}:                     200,
		{"X-Forwarded-Host", "evil.example"}:           200,
		{"Access-Control-Request-Method", "POST"}:      200,
		{"X-EXECD-ACCESS-TOKEN", "none is configured"}: 200,
	} {
		resp := d.do("GET", "/command", nil, header[0], header[1])
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", header, resp.StatusCode, want)
		}
		for name := range resp.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%q: %s", header, name)
			}
		}
	}
	for _, header := range [][]string{{"Origin", "http://evil.example"}, {"Host", "evil.example"}} {
		d.refused(403, "POST", "/command", m{"command": "true"}, header...)
		resp := d.bare().do("GET", "/ws", nil, append(header, upgrade...)...)
		resp.Body.Close()
		if resp.StatusCode != 403 {
			t.Errorf("WebSocket with %q: %d", header, resp.StatusCode)
		}
	}
}

// refusedStart starts a celld that must not start, and returns what it says.
func refusedStart(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := runToEnd(t, append([]string{"serve", "--data-dir=" + dir, "--run-dir=" + dir + "/r", "--workspace=" + dir}, args...)...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

// runToEnd starts a celld that ends by itself, and returns what it says.
func runToEnd(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), runAsDaemon+"=1")
	cmd.WaitDelay = time.Second // what it has started may hold its output
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestListensToOthersOnlyWhenToldSo(t *testing.T) {
	if out := refusedStart(t, "--listen=0.0.0.0:0"); !strings.Contains(out, "--insecure-no-auth") {
		t.Errorf("%s", out)
	}
	d := start(t, launch{args: []string{"--listen=0.0.0.0:0", "--insecure-no-auth"}})
	if n := strings.Count(d.log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, d.log.String())
	}
	d.url = strings.Replace(d.url, "[::]", "127.0.0.1", 1)
	if got := d.call("GET", "/command", nil, nil, "Host", "sandbox.example"); got != 200 {
		t.Errorf("by any name: %d", got)
	}
	d.refused(403, "GET", "/command", nil, "Origin", "http://evil.example")
	for _, c := range []struct {
		config serveCmd
		want   string
	}{
		{serveCmd{Port: 44772}, "127.0.0.1:44772"},
		{serveCmd{Port: 1, AccessToken: "x"}, ":1"},
		{serveCmd{Port: 1, InsecureNoAuth: true}, ":1"},
		{serveCmd{Port: 1, Listen: "127.0.0.2:5", AccessToken: "x"}, "127.0.0.2:5"},
	} {
		if got := c.config.address(); got != c.want {
			t.Errorf("%+v listens on %s, want %s", c.config, got, c.want)
		}
	}
}
