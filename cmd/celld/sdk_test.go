package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/celld/celld/openapi/openapitest"
)

// lifecycle stands in for the server that makes sandboxes: it says where the daemon of every sandbox is.
func lifecycle(t *testing.T, d *daemon, token string) (address string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/{id}/endpoints/{port}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(m{"endpoint": strings.TrimPrefix(d.url, "http://"), "headers": m{"X-EXECD-ACCESS-TOKEN": token}})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// sdkDir is where the public SDKs are installed.
func sdkDir(t *testing.T, part string) string {
	t.Helper()
	dir := filepath.Join(prefixDir(t), "sdk", part)
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("%v: run make setup-tests first", err)
	}
	return dir
}

// described says whether openapi.yaml has a route.
func described(t *testing.T, method, path string) bool {
	t.Helper()
	spec, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range spec.Operations() {
		if op.Method == method && op.Path == path {
			return true
		}
	}
	return false
}

// The public SDKs, as they are, are the judges: each script uses one of them as its users do and checks what it returns.
func TestPublicSDKs(t *testing.T) {
	t.Parallel()
	const token = "the-token-of-the-sandbox"
	d := start(t, launch{
		args: []string{"--access-token=" + token, "--jupyter-port=" + freePort(t)},
		env:  []string{"EXECD_ENVS=" + filepath.Join(t.TempDir(), "kept", "env"), withGoKernel(t)},
	})
	d.python("X-EXECD-ACCESS-TOKEN", token)
	address := lifecycle(t, d, token)
	metrics := "METRICS="
	if described(t, "GET", "/metrics") {
		metrics += "1"
	}
	run := func(name string, argv ...string) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), argv[0], append(argv[1:], address, t.TempDir())...)
			cmd.Env = append(os.Environ(), "OPENSANDBOX_DISABLE_METRICS=1", "PYTHONDONTWRITEBYTECODE=1", metrics)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if text := out.String(); err != nil || !strings.HasSuffix(text, "done\n") {
				t.Errorf("ended with %v:\n%s", err, text)
			} else {
				t.Log("\n" + text)
			}
		})
	}
	python := filepath.Join(sdkDir(t, "python"), "bin", "python")
	for _, script := range []string{"commands", "files", "code"} {
		for _, kind := range []string{"sync", "async"} {
			run("python "+script+" "+kind, python, "testdata/sdk/"+script+".py", kind)
		}
	}
	run("python languages", python, "testdata/sdk/languages.py", "sync")
	run("python sql", python, "testdata/sdk/sql.py", "sync")
	run("javascript", "node", "testdata/sdk/sandbox.mjs", sdkDir(t, "node"))
}
