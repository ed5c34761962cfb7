package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// remote is a Jupyter Server that isn't celld's.
type remote struct {
	url, token string
}

var servesAt = regexp.MustCompile(`(?:\] |available at )(https?://127\.0\.0\.1:\d+\S*)`)

// startRemote starts a server with its stock settings, but for args, and waits until it says where it is. It is ended
// with the test, when its clients have been.
func startRemote(t *testing.T, token string, env []string, args ...string) remote {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(prefixDir(t)+"/python/bin/python", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "JUPYTER_NO_CONFIG=1", "JUPYTER_CONFIG_DIR="+dir, "JUPYTER_DATA_DIR="+dir,
		"JUPYTER_RUNTIME_DIR="+dir, "IPYTHONDIR="+dir, "TMPDIR="+dir), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at, read := make(chan string, 1), make(chan struct{})
	var log lockedBuffer
	go func() {
		defer close(read)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			log.add(lines.Text())
			if m := servesAt.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case at <- m[1]:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		stubborn := time.AfterFunc(patience, func() {
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			stderr.Close() // kernels have groups of their own and may hold it
		})
		defer stubborn.Stop()
		<-read
		cmd.Wait()
		if t.Failed() {
			t.Logf("the Jupyter Server said:\n%s", log.String())
		}
	})
	select {
	case u := <-at:
		base, _, _ := strings.Cut(u, "?")
		return remote{strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/lab"), token}
	case <-read:
	case <-time.After(patience):
	}
	t.Fatalf("the Jupyter Server does not start:\n%s", log.String())
	return remote{}
}

func startJupyterServer(t *testing.T, token string, args ...string) remote {
	t.Helper()
	return startRemote(t, token, nil, append([]string{"-m", "jupyter_server", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
		"--ServerApp.open_browser=False", "--ServerApp.allow_root=True", "--IdentityProvider.token=" + token}, args...)...)
}

func startGateway(t *testing.T, token string) remote {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close() // if somebody takes it now, the gateway tries others
	r := startRemote(t, token, []string{"PYTHONPATH=" + prefixDir(t) + "/gateway/lib"}, "-m", "kernel_gateway", "--KernelGatewayApp.ip=127.0.0.1",
		"--KernelGatewayApp.port="+port, "--KernelGatewayApp.auth_token="+token, "--KernelGatewayApp.base_url=/gate",
		"--JupyterWebsocketPersonality.list_kernels=True")
	r.url = strings.TrimSuffix(r.url, "/gate") + "/gate"
	return r
}

// serves starts a celld that uses r.
func (r remote) serves(t *testing.T, env ...string) *daemon {
	t.Helper()
	args := []string{"--jupyter-host=" + r.url}
	if r.token != "" {
		args = append(args, "--jupyter-token="+r.token)
	}
	return start(t, launch{args: args, env: env})
}

// kernels asks r itself how many kernels it has, and how many connections there are to them.
func (r remote) kernels(t *testing.T, client *http.Client) (kernels, connections int) {
	t.Helper()
	req, err := http.NewRequest("GET", r.url+"/api/kernels", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "token "+r.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list []struct{ Connections int }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatalf("list kernels: %d %v", resp.StatusCode, err)
	}
	for _, k := range list {
		connections += k.Connections
	}
	return len(list), connections
}

// awaitDisconnected returns when r knows that all connections to its kernels are gone: from then on it keeps what comes
// for them, and what came before is lost. It tells nobody, so it is asked.
func (r remote) awaitDisconnected(t *testing.T) {
	t.Helper()
	client := &http.Client{Timeout: patience}
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if _, n := r.kernels(t, client); n == 0 {
			return
		}
	}
	t.Fatal("the Jupyter Server doesn't take its connections for gone")
}

// TestRemoteJupyter uses servers of others, as they come.
func TestRemoteJupyter(t *testing.T) {
	t.Run("token and base path", func(t *testing.T) {
		r := startJupyterServer(t, "secret", "--ServerApp.base_url=/some/base")
		r.check(t, r.serves(t), http.DefaultClient, true)
		r.token = "other"
		r.serves(t).refused(503, "POST", "/code", m{"context": m{"language": "python"}, "code": "1"})
	})
	t.Run("no token", func(t *testing.T) {
		r := startJupyterServer(t, "", "--ServerApp.base_url=/some/base")
		r.check(t, r.serves(t), http.DefaultClient, false)
	})
	t.Run("Kernel Gateway", func(t *testing.T) {
		r := startGateway(t, "secret")
		r.check(t, r.serves(t), http.DefaultClient, true)
	})
	t.Run("TLS", func(t *testing.T) {
		cert, key, transport := certificate(t)
		r := startJupyterServer(t, "secret", "--ServerApp.certfile="+cert, "--ServerApp.keyfile="+key)
		if !strings.HasPrefix(r.url, "https://") {
			t.Fatalf("it serves at %s", r.url)
		}
		r.check(t, r.serves(t, "SSL_CERT_FILE="+cert), &http.Client{Transport: transport}, false)
		stranger := r.serves(t)
		stranger.refused(503, "POST", "/code", m{"context": m{"language": "python"}, "code": "1"})
	})
}

// check does with a server what users do; fatally includes ends of the kernel.
func (r remote) check(t *testing.T, d *daemon, client *http.Client, fatally bool) {
	t.Helper()
	if o := d.code("python", "x = 20\nprint('hello')\nx + 1"); o.out() != "hello\n" || len(o.results) != 1 || o.results[0].Results["text"] != "21" {
		t.Errorf("%+v", o.events)
	}
	there := t.TempDir()
	var c codeContext
	if status := d.call("POST", "/code/context", m{"language": "python", "cwd": there, "envs": m{"A": "é"}}, &c); status != 200 || c.Cwd != there {
		t.Fatalf("%d %+v", status, c)
	}
	d.says(c.ID, "import os\nprint(os.getcwd(), os.environ['A'])", there+" é\n")
	var done struct{ Matches []string }
	if d.call("POST", "/code/contexts/"+c.ID+"/complete", m{"code": "os.getcw"}, &done); !slices.ContainsFunc(done.Matches, func(s string) bool { return strings.HasSuffix(s, "getcwd") }) {
		t.Errorf("%+v", done)
	}
	d.refused(400, "POST", "/code/context", m{"language": "python", "cwd": "/not/there"})

	s := d.begin(c.ID, "y = 1\nprint('on', flush=True)\nimport time\nwhile True: time.sleep(0.05)")
	s.until(prints("on"))
	if status := d.call("DELETE", "/code?id="+c.ID, nil, nil); status != 200 {
		t.Error(status)
	}
	if o := s.rest(); o.failed() != "KeyboardInterrupt" {
		t.Errorf("interrupted: %+v", o.end)
	}
	d.says(c.ID, "print(y)", "1\n")
	if !fatally {
		d.stop()
		if n, _ := r.kernels(t, client); n != 0 {
			t.Errorf("%d kernels are left", n)
		}
		return
	}
	if o := d.cell(c.ID, "os._exit(3)"); o.failed() != "KernelDied" {
		t.Errorf("died: %+v", o.end)
	}
	if o := d.cell(c.ID, "import os\nprint(os.getcwd(), os.environ['A'], 'y' in globals())"); o.out() != there+" é False\n" || !slices.Contains(o.states(), "kernel_restarted") {
		t.Errorf("afterwards: %+v", o.events)
	}
	if status := d.call("POST", "/code/contexts/"+c.ID+"/restart", nil, nil); status != 200 {
		t.Error(status)
	}
	d.says(c.ID, "import os\nprint(os.getcwd())", there+"\n")
	if status := d.call("DELETE", "/code/contexts/"+c.ID, nil, nil); status != 200 {
		t.Error(status)
	}
	if n, _ := r.kernels(t, client); n != 1 {
		t.Errorf("%d kernels, want that of the default context", n)
	}
	d.stop()
	if n, _ := r.kernels(t, client); n != 0 {
		t.Errorf("%d kernels are left", n)
	}
}

// certificate makes a certificate for 127.0.0.1 that signs itself, and a transport that trusts it.
func certificate(t *testing.T) (cert, key string, transport *http.Transport) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{cert: certPEM, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	transport = http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(certPEM)
	t.Cleanup(transport.CloseIdleConnections)
	return cert, key, transport
}

// proxy is something on the way to a server that does harm.
type proxy struct {
	t      *testing.T
	listen net.Listener
	to     string
	work   sync.WaitGroup

	mu      sync.Mutex
	down    bool // takes no connection
	open    []net.Conn
	refused chan struct{} // closed at the next connection that isn't taken
	frozen  chan struct{} // closed: connections made until then carry nothing any more
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listen: l, to: to, refused: make(chan struct{}), frozen: make(chan struct{})}
	p.work.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut(true)
		p.work.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		c, err := p.listen.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		down, frozen := p.down, p.frozen
		if down {
			close(p.refused)
			p.refused = make(chan struct{})
		}
		p.mu.Unlock()
		up, err := net.Dial("tcp", p.to)
		if down || err != nil {
			c.Close()
			if err == nil {
				up.Close()
			}
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, c, up)
		p.mu.Unlock()
		for _, way := range [][2]net.Conn{{c, up}, {up, c}} {
			p.work.Go(func() {
				defer way[0].Close()
				defer way[1].Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := way[0].Read(buf)
					if err != nil {
						return
					}
					select {
					case <-frozen:
						continue
					default:
					}
					if _, err := way[1].Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	}
}

// cut ends all connections; when down, there are no new ones until up.
func (p *proxy) cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

func (p *proxy) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// freeze lets the connections there are carry nothing any more, while nobody is told.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.frozen)
	p.frozen = make(chan struct{})
}

// awaitRefused returns when somebody has tried to connect in vain.
func (p *proxy) awaitRefused() {
	p.t.Helper()
	p.mu.Lock()
	refused := p.refused
	p.mu.Unlock()
	select {
	case <-refused:
	case <-time.After(patience):
		p.t.Fatal("nobody connected")
	}
}

// TestProxyThatCutsConnections has a running cell survive what happens to its connection, or its end told.
func TestProxyThatCutsConnections(t *testing.T) {
	r := startJupyterServer(t, "secret")
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, u.Host)
	u.Host = p.listen.Addr().String()
	d := remote{u.String(), r.token}.serves(t)
	id := d.python()
	reconnected := func(e event) bool { return e.State == "kernel_reconnected" }

	t.Run("between cells", func(t *testing.T) {
		d := d.in(t)
		d.says(id, "x = 41", "")
		p.cut(false)
		o := d.cell(id, "print(x + 1)")
		if o.failed() == "JupyterUnavailable" { // it was sent before anybody had noticed, and may have run
			o = d.cell(id, "print(x + 1)")
		}
		if o.out() != "42\n" || slices.Contains(o.states(), "kernel_restarted") {
			t.Errorf("%+v", o.events)
		}
	})
	t.Run("during a cell", func(t *testing.T) {
		d := d.in(t)
		gates := [2]string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
		for _, gate := range gates {
			if err := syscall.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := d.begin(id, fmt.Sprintf("print('on', flush=True)\nopen(%q).read()\nprint('meanwhile', flush=True)\nopen(%q, 'w').close()\n"+
			"x = input('who? ')\nprint('hi', x)\n6 * 7", gates[0], gates[1]), m{"stdin": true})
		s.until(prints("on"))
		p.cut(true)
		p.awaitRefused()
		r.awaitDisconnected(t)
		pass(t, gates[0], os.O_WRONLY)
		pass(t, gates[1], os.O_RDONLY)
		p.up()
		s.until(reconnected)
		printed, meanwhile := false, prints("meanwhile")
		s.until(func(e event) bool {
			printed = meanwhile(e) || printed
			return e.Type == "input_request"
		})
		if !printed {
			t.Error("what was printed meanwhile is lost")
		}
		p.cut(false)
		s.until(reconnected)
		if status := d.call("POST", "/code/input", m{"id": id, "value": "ada"}, nil); status != 200 {
			t.Errorf("input: %d", status)
		}
		if o := s.rest(); o.out() != "hi ada\n" || len(o.results) != 1 || o.results[0].Results["text"] != "42" || o.failed() != "" {
			t.Errorf("%+v", o.events)
		}
		d.says(id, "print(x)", "ada\n")
	})
	t.Run("a connection that nothing comes through", func(t *testing.T) {
		d := d.in(t)
		gate := filepath.Join(t.TempDir(), "a")
		if err := syscall.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		s := d.begin(id, fmt.Sprintf("print('on', flush=True)\nopen(%q).read()\nprint('end')", gate))
		s.until(prints("on\n"))
		p.freeze()
		s.until(reconnected)
		pass(t, gate, os.O_WRONLY)
		if o := s.rest(); o.out() != "end\n" || o.failed() != "" {
			t.Errorf("%+v", o.events)
		}
	})
	t.Run("for good", func(t *testing.T) {
		d := d.in(t)
		s := d.begin(id, "print('on', flush=True)\nimport time\nwhile True: time.sleep(0.05)")
		s.until(prints("on"))
		p.cut(true)
		if o := s.rest(); o.failed() != "JupyterUnavailable" {
			t.Errorf("%+v", o.end)
		}
		p.up()
		d.says(id, "print(x)", "ada\n")
	})
}

// pass opens a FIFO, which waits for its other end, and closes it.
func pass(t *testing.T, fifo string, flag int) {
	t.Helper()
	f := openFIFO(t, fifo, flag)
	defer f.Close()
	if flag == os.O_RDONLY {
		if _, err := io.Copy(io.Discard, f); err != nil {
			t.Fatal(err)
		}
	}
}

// openFIFO opens a FIFO, which waits for its other end, for as long as a test has patience.
func openFIFO(t *testing.T, fifo string, flag int) *os.File {
	t.Helper()
	late := time.AfterFunc(patience, func() {
		if f, err := os.OpenFile(fifo, os.O_RDWR, 0); err == nil { // is the other end for a moment
			f.Close()
		}
	})
	f, err := os.OpenFile(fifo, flag, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !late.Stop() {
		f.Close()
		t.Fatalf("nobody came to %s", fifo)
	}
	f.SetDeadline(time.Now().Add(patience))
	return f
}
