package jupyter

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/celld/celld/internal/proctree"
)

//go:embed launch.py
var launcher string

const (
	readyWithin  = 20 * time.Second        // a server that takes longer to start is given up, and started again
	answerWithin = 4500 * time.Millisecond // what a caller waits for a server that starts
	stopGrace    = 2 * time.Second         // for server and kernels to end by themselves

	// A server that hangs at its start is told of within 5 s. That it stands still is no event: who waits for it looks.
	lookFirst = 3500 * time.Millisecond
	lookEvery = 500 * time.Millisecond
)

const maxSocketPath = 107 // unix(7)

// errSlow says that a server was given up because it had not started in time.
var errSlow = errors.New("did not start")

// ManagedConfig says how to run a server of our own.
type ManagedConfig struct {
	Prefix     string   // where celld's helpers are installed; Prefix/python/bin is looked at before PATH
	RunDir     string   // for sockets and private files; made, and removed at the end. At most 80 bytes long
	Log        string   // file for what the server writes; bounded. Empty: nowhere
	Env        []string // of the server and its kernels; CELLD_*, EXECD_*, JUPYTER_* and OTEL_* are left out, but for [proctree.DaemonEnv]
	KernelDirs []string // folders with a subfolder "kernels", looked at before the usual ones
	Marker     string   // start of the markers of its processes; empty: random
	OOMScore   *int     // oom_score_adj of its processes; nil: this process's; see [proctree.ChildOOMScore]

	AnswerWithin time.Duration // what a caller waits for a server that starts; 0: 4.5 s
}

// Managed is a Jupyter Server of our own: started at first use on a private unix socket, with a random token and
// without output limits, started again when it has died, refuses or hangs. Its methods may be called from any
// goroutine. Close ends it.
//
// The server's processes carry the marker Marker.N (see proctree), N counting the starts, and those of a kernel
// Marker.N.ID with the ID of its [OpenRequest]: so leftovers can be found and told apart.
type Managed struct {
	cfg         ManagedConfig
	readyWithin time.Duration
	work        sync.WaitGroup

	mu     sync.Mutex
	closed bool
	count  int
	now    *instance
}

// instance is one process of the server.
type instance struct {
	dir, marker string
	started     chan struct{} // closed when the start is over; client or err are valid then
	client      *Client
	err         error
	tree        *proctree.Tree // nil if there was nothing to start
	ready       *os.File       // guarded by Managed.mu while it starts
	since       uint64         // on the clock of process start times
	doubted     atomic.Bool
	gone        chan struct{} // closed when all of its processes are gone
}

// NewManaged returns a server that isn't started yet.
func NewManaged(cfg ManagedConfig) *Managed {
	if cfg.Marker == "" {
		cfg.Marker = "jupyter-" + newID()
	}
	if cfg.AnswerWithin == 0 {
		cfg.AnswerWithin = answerWithin
	}
	return &Managed{cfg: cfg, readyWithin: readyWithin}
}

// Client returns a client of the running server and starts it if need be. It takes at most the time of
// ManagedConfig.AnswerWithin, and at most 5 s when the server hangs at its start: then, and if the server can't be
// started, the error wraps [ErrUnavailable] and says why. The start goes on; the next call finds it, or tries again.
func (m *Managed) Client(ctx context.Context) (*Client, error) {
	limit, look := time.NewTimer(m.cfg.AnswerWithin), time.NewTimer(lookFirst)
	defer limit.Stop()
	defer look.Stop()
	var used uint64 // processor time of the start, at the last look
	for looks := 0; ; {
		in, err := m.instance(ctx)
		if err != nil {
			return nil, err
		}
		select {
		case <-in.started:
		case <-limit.C:
			return nil, fmt.Errorf("%w: it is still starting", ErrUnavailable)
		case <-look.C:
			if looks++; !m.getsOn(in, &used) && looks > 1 {
				return nil, fmt.Errorf("%w: it hangs at its start; it gets %v for that", ErrUnavailable, m.readyWithin)
			}
			look.Reset(lookEvery)
			continue
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if errors.Is(in.err, errSlow) {
			continue // as long as the caller waits
		}
		if in.err != nil {
			return nil, in.err
		}
		if !in.doubted.Load() || m.answers(ctx, in) {
			return in.client, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		_ = in.tree.Signal(syscall.SIGKILL)
		<-in.tree.Done()
	}
}

// getsOn says whether a start makes progress, slow as it may be: whether some process of it runs or waits for a disk, or
// has used the processor since the last call.
func (m *Managed) getsOn(in *instance, used *uint64) (on bool) {
	m.mu.Lock()
	ready := in.ready
	m.mu.Unlock()
	if ready == nil { // there is no process yet
		return true
	}
	now := uint64(0)
	for _, pid := range in.tree.Members() {
		ticks, running := activity(pid)
		now += ticks
		on = on || running
	}
	on, *used = on || now != *used, now
	return on
}

// instance returns the one there is or starts one.
func (m *Managed) instance(ctx context.Context) (*instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if in := m.now; in != nil && !in.over() {
		return in, nil
	}
	m.count++
	in := &instance{
		dir:     filepath.Join(m.cfg.RunDir, strconv.Itoa(m.count)),
		marker:  m.cfg.Marker + "." + strconv.Itoa(m.count),
		started: make(chan struct{}),
		gone:    make(chan struct{}),
		since:   ticksAt(time.Now()),
	}
	m.now = in
	ctx = context.WithoutCancel(ctx)
	m.work.Go(func() { m.run(ctx, in) })
	return in, nil
}

// over says whether the instance has ended or failed to start.
func (in *instance) over() bool {
	return closed(in.started) && (in.err != nil || closed(in.tree.Done()))
}

func (m *Managed) suspect(c *Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := m.now; in != nil && closed(in.started) && in.client == c {
		in.doubted.Store(true)
	}
}

func (m *Managed) answers(ctx context.Context, in *instance) bool {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	if err := in.client.excuse(in.client.Ping(ctx)); err != nil && !errors.Is(err, errAtWork) {
		return false
	}
	in.doubted.Store(false)
	return true
}

// run starts the server and cleans up after it.
func (m *Managed) run(ctx context.Context, in *instance) {
	defer close(in.gone)
	defer os.RemoveAll(in.dir)
	log := openLog(m.cfg.Log)
	defer log.Close()
	in.client, in.err = m.start(ctx, in, log)
	close(in.started)
	if in.tree == nil {
		return
	}
	<-in.tree.Done()
	_ = in.kill(ctx, 0) // kernels don't always notice
	if in.client != nil {
		in.client.Close()
	}
}

// kill ends the server, its kernels and what they started.
func (in *instance) kill(ctx context.Context, grace time.Duration) error {
	return proctree.Kill(ctx, grace, func(t *proctree.Table) []int {
		pids := t.Marked(in.since, func(marker string) bool {
			return marker == in.marker || strings.HasPrefix(marker, in.marker+".")
		})
		return append(pids, in.tree.Members()...)
	})
}

// start returns when the server listens.
func (m *Managed) start(ctx context.Context, in *instance, log *logFile) (*Client, error) {
	found, err := Locate(m.cfg.Prefix, m.cfg.Env)
	if err != nil {
		return nil, err
	}
	if n := len(in.dir) + len("/s"); n > maxSocketPath {
		return nil, fmt.Errorf("%w: the run directory's path is too long for a socket: %s", ErrUnavailable, m.cfg.RunDir)
	}
	token := newID()
	ready, err := m.spawn(in, found, token, log)
	if err != nil {
		return nil, fmt.Errorf("%w: start %s: %w", ErrUnavailable, found.Server, err)
	}
	defer ready.Close()
	m.mu.Lock()
	limit := time.Now()
	if !m.closed {
		limit = limit.Add(m.readyWithin)
	}
	in.ready = ready
	err = ready.SetReadDeadline(limit)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(ready).ReadString('\n')
	if line == "ready\n" {
		c, err := NewClient(ClientConfig{Socket: filepath.Join(in.dir, "s"), Token: token})
		if err == nil {
			c.atWork = func() bool {
				_, running := activity(in.tree.PID())
				return running
			}
		}
		return c, err
	}
	_ = in.kill(ctx, 0)
	<-in.tree.Done()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w: %s %w in %v", ErrUnavailable, found.Server, errSlow, m.readyWithin)
	}
	said := log.lastLine()
	if said == "" {
		said = fmt.Sprintf("exit status %d", in.tree.Status().Code)
	}
	return nil, fmt.Errorf("%w: %s did not start: %s", ErrUnavailable, found.Server, said)
}

// spawn starts the process and returns the pipe on which it says that it is ready.
func (m *Managed) spawn(in *instance, found Installation, token string, log *logFile) (ready *os.File, err error) {
	if err := os.MkdirAll(filepath.Join(in.dir, "env"), 0o700); err != nil {
		return nil, err
	}
	script := filepath.Join(in.dir, "launch.py")
	if err := os.WriteFile(script, []byte(launcher), 0o600); err != nil {
		return nil, err
	}
	config, err := json.Marshal(m.settings(in, token))
	if err != nil {
		return nil, err
	}
	var pipes [3][2]*os.File // configuration, output, readiness
	defer func() {
		for _, end := range []*os.File{pipes[0][0], pipes[0][1], pipes[1][1], pipes[2][1]} {
			_ = end.Close()
		}
	}()
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	in.tree, err = proctree.Start(proctree.Spec{
		Path:   found.Python,
		Argv:   []string{found.Python, script},
		Env:    append(cleanEnv(m.cfg.Env), "IPYTHONDIR="+filepath.Join(in.dir, "ipython"), "PYDEVD_DISABLE_FILE_VALIDATION=1"),
		Dir:    "/",
		Files:  []*os.File{pipes[0][0], pipes[1][1], pipes[1][1], pipes[2][1]},
		Marker: in.marker, OOMScore: m.cfg.OOMScore,
	})
	if err != nil {
		_ = pipes[1][0].Close()
		_ = pipes[2][0].Close()
		return nil, err
	}
	log.copy(pipes[1][0])
	_ = pipes[0][0].Close()
	_, _ = pipes[0][1].Write(config) // if it is dead already, readiness says so
	return pipes[2][0], nil
}

// settings is what the launcher reads.
func (m *Managed) settings(in *instance, token string) any {
	type section = map[string]any
	return section{
		"dir":        in.dir,
		"marker":     in.marker,
		"marker_env": proctree.MarkerEnv,
		"setup_env": section{
			"JUPYTER_NO_CONFIG":   "1",
			"JUPYTER_CONFIG_DIR":  in.dir,
			"JUPYTER_RUNTIME_DIR": in.dir,
			"JUPYTER_PATH":        strings.Join(m.cfg.KernelDirs, ":"),
		},
		"config": section{
			"ServerApp": section{
				"sock": filepath.Join(in.dir, "s"), "sock_mode": "0600", "root_dir": "/",
				"open_browser": false, "allow_root": true, "terminals_enabled": false, "log_level": "WARN",
				// No pings: back-pressure keeps us from answering. Code may be long.
				"tornado_settings": section{"ws_ping_interval": 0, "websocket_max_message_size": maxMessage},
			},
			"FileContentsManager":            section{"allow_hidden": true},
			"IdentityProvider":               section{"token": token},
			"ZMQChannelsWebsocketConnection": section{"limit_rate": false},
			"KernelManager":                  section{"shutdown_wait_time": 1.0},
			// A kernel that dies is reported dead; what is done about it is up to Kernel.
			"KernelRestarter": section{"time_to_dead": 0.5, "restart_limit": 0},
		},
	}
}

// cleanEnv leaves out what is the daemon's own business.
func cleanEnv(env []string) []string {
	var kept []string
	for _, e := range env {
		own := false
		for _, prefix := range []string{"CELLD_", "EXECD_", "JUPYTER_", "OTEL_"} {
			own = own || strings.HasPrefix(e, prefix)
		}
		own = own && !strings.HasPrefix(e, proctree.DaemonEnv+"=")
		if !own {
			kept = append(kept, e)
		}
	}
	return kept
}

// Close ends the server and all it started and removes its files. When ctx ends nobody is given any more time.
func (m *Managed) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	in := m.now
	if in != nil && in.ready != nil {
		_ = in.ready.SetReadDeadline(time.Now()) // no effect once it is ready
	}
	m.mu.Unlock()
	if in == nil {
		return nil
	}
	<-in.started // at once: there is no more time to start in
	var err error
	if in.tree != nil {
		if err = in.kill(ctx, stopGrace); err != nil {
			_ = in.tree.Signal(syscall.SIGKILL) // or it has ended; run ends the rest
		}
	}
	m.work.Wait()
	return errors.Join(err, os.RemoveAll(m.cfg.RunDir))
}

// prepareEnv puts a kernel's environment where the launcher looks when the kernel starts; done removes it.
func (m *Managed) prepareEnv(id string, env map[string]string) (done func(), err error) {
	if len(env) == 0 {
		return func() {}, nil
	}
	m.mu.Lock()
	in := m.now
	m.mu.Unlock()
	text, err := json.Marshal(env)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(in.dir, "env", id)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("%w: keep the kernel's environment: %w", ErrUnavailable, err)
	}
	return func() { _ = os.Remove(file) }, nil
}

// children returns the processes of kernel id that were started at tick since or later, without the kernel itself.
func (m *Managed) children(t *proctree.Table, id string, since uint64) []int {
	m.mu.Lock()
	in := m.now
	m.mu.Unlock()
	if in == nil || in.tree == nil {
		return nil
	}
	marked := t.Marked(in.since, func(marker string) bool { return marker == in.marker+"."+id })
	var found []int
	for _, pid := range append(t.Descendants(marked...), marked...) {
		if p, ok := t.Process(pid); ok && p.Start >= since && p.Parent != in.tree.PID() {
			found = append(found, pid)
		}
	}
	return found
}

// memory tells how many bytes the kernels with these ids occupy, shared pages in proportion (proc_pid_smaps_rollup(5)).
// add is called for each process.
func (m *Managed) memory(ids map[string]int, add func(i int, bytes int64)) {
	m.mu.Lock()
	in := m.now
	m.mu.Unlock()
	table, err := proctree.Look()
	if in == nil || err != nil {
		return
	}
	for id, i := range ids {
		for _, pid := range table.Marked(in.since, func(marker string) bool { return marker == in.marker+"."+id }) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) // it may be gone
			if _, rest, ok := strings.Cut(string(text), "\nPss:"); ok {
				var kib int64
				_, _ = fmt.Sscan(rest, &kib)
				add(i, kib<<10)
			}
		}
	}
}

// killKernel ends what is left of a kernel whose session has been deleted.
func (m *Managed) killKernel(ctx context.Context, id string) error {
	m.mu.Lock()
	in := m.now
	m.mu.Unlock()
	if in == nil {
		return nil
	}
	return proctree.Kill(ctx, time.Second, func(t *proctree.Table) []int {
		return t.Marked(in.since, func(marker string) bool { return marker == in.marker+"."+id })
	})
}
