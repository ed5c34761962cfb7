package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// jupyterFloor is a bare client of a Jupyter Server on a unix socket: kernels over REST, one WebSocket each, messages
// in the framing v1.kernel.websocket.jupyter.org (Jupyter Server, "WebSocket kernel wire protocols"). The server is
// its own, since celld doesn't give away the token of its server, but started by the same script with the same
// settings.
type jupyterFloor struct {
	dir, token string
	server     *exec.Cmd
	kernels    []*bareKernel
}

// startJupyter starts a server in dir and returns when it listens.
func startJupyter(python, script, dir string) (*jupyterFloor, error) {
	f := &jupyterFloor{dir: dir, token: rand.Text()}
	prefix := filepath.Join(filepath.Dir(python), "../..") // whose kernels are those of celld
	type section = map[string]any
	settings := object("dir", dir, "marker", "", "marker_env", "BENCH",
		"setup_env", section{"JUPYTER_NO_CONFIG": "1", "JUPYTER_CONFIG_DIR": dir, "JUPYTER_RUNTIME_DIR": dir, "JUPYTER_PATH": dir + ":" + prefix},
		"config", section{
			"ServerApp": section{"sock": f.socket(), "sock_mode": "0600", "root_dir": "/",
				"open_browser": false, "allow_root": true, "terminals_enabled": false, "log_level": "WARN",
				"tornado_settings": section{"ws_ping_interval": 0, "websocket_max_message_size": 1 << 30}},
			"FileContentsManager":            section{"allow_hidden": true},
			"IdentityProvider":               section{"token": f.token},
			"ZMQChannelsWebsocketConnection": section{"limit_rate": false},
			"KernelManager":                  section{"shutdown_wait_time": 1.0},
		})
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	f.server = exec.Command(python, script)
	f.server.Dir, f.server.Stdin, f.server.ExtraFiles = "/", strings.NewReader(settings), []*os.File{w}
	var log tail
	f.server.Stdout, f.server.Stderr = &log, &log
	f.server.Env = append(os.Environ(), "IPYTHONDIR="+filepath.Join(dir, "ipython"), "TMPDIR="+dir, "PYDEVD_DISABLE_FILE_VALIDATION=1")
	err = f.server.Start()
	w.Close()
	if err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("the Jupyter Server isn't ready: %w, %w: %s", err, f.server.Wait(), &log)
	}
	return f, nil
}

func (f *jupyterFloor) socket() string { return filepath.Join(f.dir, "s") }

// stop ends the kernels and the server.
func (f *jupyterFloor) stop() {
	if err := f.close(); err != nil {
		fmt.Fprintln(os.Stderr, "close kernels:", err)
	}
	f.server.Process.Signal(syscall.SIGTERM)
	f.server.Wait()
}

func (f *jupyterFloor) job(j job) (result, error) {
	switch j.Op {
	case "open": // N kernels at once, each asked once what 1+1 is
		opened := make([]*bareKernel, j.N)
		index := make(chan int, j.N)
		for i := range j.N {
			index <- i
		}
		r, err := timed(j.N, j.N, func(int) error {
			k, err := f.open(cmp.Or(j.Kernel, "python3"))
			if err != nil {
				return err
			}
			opened[<-index] = k
			_, err = k.run(j.Text)
			return err
		})
		for _, k := range opened {
			if k != nil {
				f.kernels = append(f.kernels, k)
			}
		}
		return r, err
	case "cells": // client i uses kernel i
		if j.Clients > len(f.kernels) {
			return result{}, fmt.Errorf("%d clients, %d kernels", j.Clients, len(f.kernels))
		}
		printed := make([]int64, j.Clients)
		r, err := timed(j.Clients, j.N, func(i int) error {
			n, err := f.kernels[i].run(j.Text)
			printed[i] += n
			return err
		})
		for _, n := range printed {
			r.Bytes += n
		}
		return r, err
	case "close":
		return result{}, f.close()
	}
	return result{}, fmt.Errorf("no job %q", j.Op)
}

func (f *jupyterFloor) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", f.socket())
}

// rest makes a REST call and decodes its answer into x, unless x is nil.
func (f *jupyterFloor) rest(method, path, body string, x any) error {
	req, err := http.NewRequest(method, "http://localhost"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "token "+f.token)
	transport := &http.Transport{DialContext: f.dial, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	if x == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(x)
}

func (f *jupyterFloor) open(kernel string) (*bareKernel, error) {
	var made struct {
		ID     string
		Kernel struct{ ID string }
	}
	name := rand.Text()
	body := object("path", name+".ipynb", "name", name, "type", "notebook", "kernel", map[string]string{"name": kernel})
	if err := f.rest(http.MethodPost, "/api/sessions", body, &made); err != nil {
		return nil, err
	}
	d := websocket.Dialer{NetDialContext: f.dial, Subprotocols: []string{"v1.kernel.websocket.jupyter.org"},
		ReadBufferSize: 64 << 10, HandshakeTimeout: time.Minute}
	conn, resp, err := d.Dial("ws://localhost/api/kernels/"+made.Kernel.ID+"/channels?session_id="+name,
		http.Header{"Authorization": {"token " + f.token}})
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if conn.Subprotocol() == "" {
		return nil, fmt.Errorf("the server doesn't speak v1.kernel.websocket.jupyter.org")
	}
	return &bareKernel{session: made.ID, client: name, conn: conn}, nil
}

func (f *jupyterFloor) close() error {
	for _, k := range f.kernels {
		k.conn.Close()
		if err := f.rest(http.MethodDelete, "/api/sessions/"+k.session, "", nil); err != nil {
			return err
		}
	}
	f.kernels = nil
	return nil
}

// bareKernel is the connection to one kernel. One goroutine uses it.
type bareKernel struct {
	session, client string
	conn            *websocket.Conn
	count           int
}

// run executes a cell and returns, once its reply and its idle have come, how many bytes it has printed.
func (k *bareKernel) run(code string) (printed int64, err error) {
	k.count++
	id := fmt.Sprintf("%s_%d", k.client, k.count)
	msg := frame("shell",
		[]byte(object("msg_id", id, "msg_type", "execute_request", "username", "", "session", k.client, "version", "5.3",
			"date", time.Now().UTC().Format(time.RFC3339Nano))), []byte("{}"), []byte("{}"),
		[]byte(object("code", code, "silent", false, "store_history", true, "user_expressions", struct{}{},
			"allow_stdin", false, "stop_on_error", false)))
	if err := k.conn.WriteMessage(websocket.BinaryMessage, msg); err != nil {
		return 0, err
	}
	said := "" // last, for the error
	for replied, idle := false, false; !replied || !idle; {
		_, msg, err := k.conn.ReadMessage()
		if err != nil {
			return printed, err
		}
		parts, err := unframe(msg)
		if err != nil {
			return printed, err
		}
		var header struct {
			Type string `json:"msg_type"`
		}
		var parent struct {
			ID string `json:"msg_id"`
		}
		var content struct {
			Status, Text   string
			ExecutionState string `json:"execution_state"`
		}
		if err := json.Unmarshal(parts[2], &parent); err != nil {
			return printed, err
		}
		if parent.ID != id {
			continue
		}
		if err := json.Unmarshal(parts[1], &header); err != nil {
			return printed, err
		}
		if err := json.Unmarshal(parts[4], &content); err != nil {
			return printed, err
		}
		switch header.Type {
		case "execute_reply":
			if replied = true; content.Status != "ok" {
				return printed, fmt.Errorf("the cell's status is %q: %.300s", content.Status, said)
			}
		case "status":
			idle = idle || content.ExecutionState == "idle"
		case "stream":
			printed += int64(len(content.Text))
			said = content.Text
		}
	}
	return printed, nil
}

// frame puts the channel and the parts of a message behind their offsets.
func frame(channel string, parts ...[]byte) []byte {
	parts = append([][]byte{[]byte(channel)}, parts...)
	at := uint64(8 * (len(parts) + 2))
	msg := binary.LittleEndian.AppendUint64(nil, uint64(len(parts)+1))
	for _, p := range parts {
		msg = binary.LittleEndian.AppendUint64(msg, at)
		at += uint64(len(p))
	}
	msg = binary.LittleEndian.AppendUint64(msg, at)
	for _, p := range parts {
		msg = append(msg, p...)
	}
	return msg
}

// unframe returns channel, header, parent header, metadata, content, and any buffers.
func unframe(msg []byte) ([][]byte, error) {
	bad := fmt.Errorf("a message of %d bytes isn't framed as it should be", len(msg))
	if len(msg) < 8 {
		return nil, bad
	}
	n := binary.LittleEndian.Uint64(msg)
	if n < 6 || n > uint64(len(msg)/8-1) {
		return nil, bad
	}
	var parts [][]byte
	for i := range n - 1 {
		from := binary.LittleEndian.Uint64(msg[8*(i+1):])
		to := binary.LittleEndian.Uint64(msg[8*(i+2):])
		if from > to || to > uint64(len(msg)) {
			return nil, bad
		}
		parts = append(parts, msg[from:to])
	}
	return parts, nil
}
