package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// appsDir is where the web servers of other people are installed.
func appsDir(t *testing.T, part string) string {
	t.Helper()
	dir := filepath.Join(prefixDir(t), "apps", part)
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("%v: run make setup-tests first", err)
	}
	return dir
}

// serves starts a web server as a command of celld, waits until it listens, and lets it go on until the test ends. It returns
// the command's id.
func (d *daemon) serves(port int, command string) (id string) {
	d.t.Helper()
	id = d.background(command)
	var r struct{ Event string }
	if code := d.call("POST", "/command/"+id+"/wait", m{"port": port, "exit": true, "timeout": patience.Milliseconds()}, &r); code != 200 || r.Event != "port" {
		text, _ := d.logs(id, "")
		d.t.Fatalf("%s: %d %s\n%s", command, code, r.Event, text)
	}
	return id
}

// page reads what the proxy gives for a path.
func (d *daemon) page(path string, header ...string) string {
	d.t.Helper()
	resp := d.do("GET", path, nil, header...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		d.t.Fatalf("%s: %d %v %.500s", path, resp.StatusCode, err, text)
	}
	return string(text)
}

// TestProxiedVite uses a development server as a browser does: the page, its scripts as modules, and a change that is pushed.
func TestProxiedVite(t *testing.T) {
	vite := filepath.Join(appsDir(t, "node"), "node_modules/vite/bin/vite.js")
	d := start(t, launch{raw: true})
	site := d.ws + "/site"
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(site, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(site, 0o755); err != nil {
		t.Fatal(err)
	}
	write("index.html", `<!doctype html><script type="module" src="/main.ts"></script>`)
	write("main.ts", "export const answer: number = 42\nimport.meta.hot!.accept()\n")
	// It serves before it watches, and doesn't see what changes until then.
	write("vite.config.mjs", `export default {plugins: [{name: 'tell', configureServer({watcher}) {
		const tell = () => console.log('it watches')
		watcher._readyEmitted ? tell() : watcher.on('ready', tell)
	}}]}`)
	port := quietPort(t)
	base := fmt.Sprintf("/absproxy/%d/", port)
	id := d.serves(port, fmt.Sprintf("cd site && exec node %s --port %d --strictPort --base %s", vite, port, base))

	d.waitFor(id, m{"pattern": "it watches"}, "pattern")
	here := []string{"Origin", d.url, "Referer", d.url + base}
	index := d.page(base, here...)
	for _, src := range []string{base + "@vite/client", base + "main.ts"} {
		if !strings.Contains(index, `src="`+src) {
			t.Fatalf("no %s in %s", src, index)
		}
	}
	if text := d.page(base+"main.ts", here...); !strings.Contains(text, "const answer = 42") {
		t.Errorf("not compiled: %s", text)
	}
	token := regexp.MustCompile(`wsToken = "([^"]+)"`).FindStringSubmatch(d.page(base+"@vite/client", here...))
	if token == nil {
		t.Fatal("the client has no token for its connection")
	}
	dialer := websocket.Dialer{Subprotocols: []string{"vite-hmr"}}
	conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(d.url, "http")+base+"?token="+token[1], http.Header{"Origin": {d.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(patience))
	var said struct {
		Type    string
		Updates []struct{ Path string }
	}
	if err := conn.ReadJSON(&said); err != nil || said.Type != "connected" {
		t.Fatalf("%+v %v", said, err)
	}
	write("main.ts", "export const answer: number = 43\nimport.meta.hot!.accept()\n")
	for said.Type != "update" {
		if err := conn.ReadJSON(&said); err != nil {
			t.Fatal(err)
		}
	}
	if len(said.Updates) != 1 || said.Updates[0].Path != "/main.ts" {
		t.Errorf("%+v", said)
	}
	if text := d.page(base+"main.ts?t=1", here...); !strings.Contains(text, "const answer = 43") {
		t.Errorf("not the change: %s", text)
	}
}

// TestProxiedJupyterLab opens JupyterLab and runs a cell in it, with a token of its own beside celld's.
func TestProxiedJupyterLab(t *testing.T) {
	python := filepath.Join(appsDir(t, "python"), "bin/python")
	d := start(t, launch{raw: true})
	port := quietPort(t)
	base := fmt.Sprintf("/absproxy/%d/", port)
	d.serves(port, fmt.Sprintf("exec env HOME=$PWD IPYTHONDIR=$PWD/i JUPYTER_RUNTIME_DIR=$PWD/r %s -m jupyterlab --no-browser --allow-root --ServerApp.port=%d"+
		" --ServerApp.port_retries=0 --ServerApp.base_url=%s --IdentityProvider.token=lab-token", python, port, base))

	own := []string{"Authorization", "token lab-token", "Origin", d.url}
	lab := d.page(base+"lab", own...)
	bundle := regexp.MustCompile(`src="(` + base + `static/lab/[^"]+\.js[^"]*)"`).FindStringSubmatch(lab)
	if bundle == nil {
		t.Fatalf("the page has no script of JupyterLab: %.2000s", lab)
	}
	if n := len(d.page(bundle[1], own...)); n < 1000 {
		t.Errorf("%s has %d bytes", bundle[1], n)
	}
	if got := d.call("POST", base+"api/kernels", m{}, nil); got != 403 {
		t.Errorf("without JupyterLab's token: %d", got)
	}
	var kernel struct{ ID string }
	if got := d.call("POST", base+"api/kernels", m{"name": "python3"}, &kernel, own...); got != 201 {
		t.Fatalf("start a kernel: %d", got)
	}
	conn, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(d.url, "http")+base+"api/kernels/"+kernel.ID+"/channels?session_id=s",
		http.Header{"Authorization": {"token lab-token"}, "Origin": {d.url}})
	if err != nil {
		t.Fatal(err, resp)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(patience))
	header := m{"msg_id": "m1", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3", "date": "2026-01-01T00:00:00Z"}
	if err := conn.WriteJSON(m{"channel": "shell", "header": header, "parent_header": m{}, "metadata": m{},
		"content": m{"code": "6*7", "silent": false, "store_history": true, "user_expressions": m{}, "allow_stdin": false, "stop_on_error": true}}); err != nil {
		t.Fatal(err)
	}
	for {
		_, text, err := conn.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		var msg struct {
			Header struct {
				Type string `json:"msg_type"`
			}
			Content struct{ Data map[string]any }
		}
		if err := json.Unmarshal(text, &msg); err != nil {
			t.Fatal(err)
		}
		if msg.Header.Type == "execute_result" {
			if got := msg.Content.Data["text/plain"]; got != "42" {
				t.Errorf("6*7 is %v", got)
			}
			break
		}
	}
	if got := d.call("DELETE", base+"api/kernels/"+kernel.ID, nil, nil, own...); got != 204 {
		t.Errorf("end the kernel: %d", got)
	}
}
