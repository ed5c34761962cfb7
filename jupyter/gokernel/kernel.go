package gokernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/go-zeromq/zmq4"
)

// Version is the kernel's version, as kernel_info names it.
const Version = "1"

// connection is what a connection file says (Jupyter messaging, "Connection files").
type connection struct {
	Transport string `json:"transport"`
	IP        string `json:"ip"`
	Shell     int    `json:"shell_port"`
	Control   int    `json:"control_port"`
	Stdin     int    `json:"stdin_port"`
	IOPub     int    `json:"iopub_port"`
	Heartbeat int    `json:"hb_port"`
	Key       string `json:"key"`
	Scheme    string `json:"signature_scheme"`
}

func readConnection(file string) (connection, error) {
	c := connection{Transport: "tcp", IP: "127.0.0.1"}
	text, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("read the connection file: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("read the connection file: %w", err)
	}
	if c.Key != "" && c.Scheme != "" && c.Scheme != "hmac-sha256" {
		return c, fmt.Errorf("the connection file wants the signature scheme %s; this kernel knows hmac-sha256", c.Scheme)
	}
	if c.Transport != "tcp" && c.Transport != "ipc" {
		return c, fmt.Errorf("the connection file wants the transport %s; this kernel knows tcp and ipc", c.Transport)
	}
	return c, nil
}

// at returns where a socket with this port is.
func (c connection) at(port int) (network, address string) {
	if c.Transport == "ipc" {
		return "unix", c.IP + "-" + strconv.Itoa(port)
	}
	return "tcp", net.JoinHostPort(c.IP, strconv.Itoa(port))
}

// kernel serves one connection file.
type kernel struct {
	signer  signer
	cells   *interpreter
	out     [2]*stream // stdout, stderr
	iopub   *socket
	stdin   *socket
	queue   chan request
	answers chan string // to input requests
	stop    func()

	mu     sync.Mutex
	parent json.RawMessage // of the latest cell; what is printed belongs to it
	asking *request        // the cell that runs, if it may ask for input

	line  []byte // what is left of an answer; of the reader of stdin
	count int    // of the goroutine that runs cells
}

// Serve runs a kernel for a connection file until a client asks it to shut down or ctx ends. A process serves one: it
// takes SIGINT for an interrupt of the cell that runs. What cells have left running doesn't end with it.
func Serve(ctx context.Context, connectionFile string) error {
	where, err := readConnection(connectionFile)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	k := &kernel{
		signer: signer{key: []byte(where.Key), session: newID()}, queue: make(chan request), answers: make(chan string, 1), stop: stop,
	}
	for i, name := range []string{"stdout", "stderr"} {
		if k.out[i], err = newStream(func(text []byte) { k.printed(name, text) }); err != nil {
			return fmt.Errorf("make a pipe: %w", err)
		}
		defer k.out[i].close()
	}
	if k.cells, err = newInterpreter(asker{k}, k.out[0].write, k.out[1].write); err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	closing, err := k.bind(ctx, where)
	if err != nil {
		return err
	}
	for _, s := range k.out {
		go s.pump() // ends with the pipe, which a cell's children may keep
	}
	work.Go(func() {
		for {
			select {
			case <-interrupts:
				k.cells.interrupt()
			case <-ctx.Done():
				return
			}
		}
	})
	go k.work(ctx) // ends with the process: a cell may not end
	k.publish("status", nil, state{"starting"})
	<-ctx.Done()
	closing()
	return nil
}

// bind opens the kernel's five sockets; closing closes them.
func (k *kernel) bind(ctx context.Context, c connection) (closing func(), err error) {
	var all []*socket
	closing = func() {
		for _, s := range all {
			s.close()
		}
	}
	open := func(kind zmq4.SocketType, port int, take func(*peer, [][]byte)) *socket {
		if err != nil {
			return nil
		}
		var s *socket
		network, address := c.at(port)
		if s, err = listen(ctx, kind, network, address, take); err == nil {
			all = append(all, s)
		}
		return s
	}
	k.iopub = open(zmq4.Pub, c.IOPub, func(*peer, [][]byte) {})
	k.stdin = open(zmq4.Router, c.Stdin, k.taking(ctx, k.takeInput))
	open(zmq4.Rep, c.Heartbeat, func(p *peer, frames [][]byte) { p.send(frames) })
	open(zmq4.Router, c.Control, k.taking(ctx, k.control))
	open(zmq4.Router, c.Shell, k.taking(ctx, func(ctx context.Context, r request) {
		select {
		case k.queue <- r:
		case <-ctx.Done():
		}
	}))
	if err != nil {
		closing()
		return nil, err
	}
	return closing, nil
}

// taking decodes messages for f; those that aren't signed as they should be are dropped.
func (k *kernel) taking(ctx context.Context, f func(context.Context, request)) func(*peer, [][]byte) {
	return func(p *peer, frames [][]byte) {
		r, err := k.signer.decode(frames)
		if err != nil {
			fmt.Fprintln(os.Stderr, "dropped a message:", err)
			return
		}
		r.from = p
		f(ctx, r)
	}
}

type state struct {
	State string `json:"execution_state"`
}

// publish sends to all that listen to the kernel's output.
func (k *kernel) publish(kind string, parent json.RawMessage, content any) {
	frames, err := k.signer.encode(kind, parent, content)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	k.iopub.publish(append([][]byte{[]byte(kind)}, frames...))
}

func (k *kernel) reply(r request, content any) {
	kind := strings.TrimSuffix(r.header.Type, "_request") + "_reply"
	frames, err := k.signer.encode(kind, r.raw, content)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	r.from.send(frames)
}

// printed sends what a cell has printed.
func (k *kernel) printed(name string, text []byte) {
	k.mu.Lock()
	parent := k.parent
	k.mu.Unlock()
	k.publish("stream", parent, struct {
		Name string `json:"name"`
		Text string `json:"text"`
	}{name, string(text)})
}

// work answers the requests of the shell channel, one after another.
func (k *kernel) work(ctx context.Context) {
	for {
		select {
		case r := <-k.queue:
			k.publish("status", r.raw, state{"busy"})
			k.answer(r)
			k.publish("status", r.raw, state{"idle"})
		case <-ctx.Done():
			return
		}
	}
}

// control answers a request of the control channel, beside a running cell.
func (k *kernel) control(_ context.Context, r request) {
	k.publish("status", r.raw, state{"busy"})
	switch r.header.Type {
	case "interrupt_request":
		k.cells.interrupt()
		k.reply(r, status{"ok"})
	case "shutdown_request":
		var content struct {
			Restart bool `json:"restart"`
		}
		_ = json.Unmarshal(r.content, &content)
		k.reply(r, struct {
			Status  string `json:"status"`
			Restart bool   `json:"restart"`
		}{"ok", content.Restart})
		k.publish("shutdown_reply", r.raw, content)
		defer k.stop()
	default:
		k.answerSmall(r)
	}
	k.publish("status", r.raw, state{"idle"})
}

type status struct {
	Status string `json:"status"`
}

func (k *kernel) answer(r request) {
	switch r.header.Type {
	case "execute_request":
		k.execute(r)
	case "shutdown_request", "interrupt_request":
		k.reply(r, status{"ok"})
		if r.header.Type == "shutdown_request" {
			k.stop()
		}
	default:
		k.answerSmall(r)
	}
}

// answerSmall answers what has nothing to do with cells.
func (k *kernel) answerSmall(r request) {
	type object = map[string]any
	switch r.header.Type {
	case "kernel_info_request":
		k.reply(r, object{
			"status": "ok", "protocol_version": protocolVersion, "implementation": "celld-gokernel",
			"implementation_version": Version, "banner": "Go, interpreted",
			"language_info": object{
				"name": "go", "version": strings.TrimPrefix(runtime.Version(), "go"), "mimetype": "text/x-go",
				"file_extension": ".go", "pygments_lexer": "go", "codemirror_mode": "go",
			},
		})
	case "is_complete_request":
		var content struct {
			Code string `json:"code"`
		}
		_ = json.Unmarshal(r.content, &content)
		k.reply(r, object{"status": isComplete(content.Code), "indent": ""})
	case "complete_request":
		var content struct {
			Code   string `json:"code"`
			Cursor int    `json:"cursor_pos"`
		}
		_ = json.Unmarshal(r.content, &content)
		matches, from := k.cells.complete(content.Code, content.Cursor)
		k.reply(r, object{"status": "ok", "matches": matches, "cursor_start": from, "cursor_end": content.Cursor, "metadata": object{}})
	case "inspect_request":
		k.reply(r, object{"status": "ok", "found": false, "data": object{}, "metadata": object{}})
	case "history_request":
		k.reply(r, object{"status": "ok", "history": []any{}})
	case "comm_info_request":
		k.reply(r, object{"status": "ok", "comms": object{}})
	case "comm_open", "comm_msg", "comm_close": // not answered
	default:
		k.reply(r, failed{status{"error"}, failure{Name: "NotSupported", Value: "this kernel doesn't know " + r.header.Type, Traceback: []string{}}})
	}
}

type failed struct {
	status
	failure
}

// execute runs a cell. Everything it printed is sent before its reply.
func (k *kernel) execute(r request) {
	var content struct {
		Code    string `json:"code"`
		Silent  bool   `json:"silent"`
		History *bool  `json:"store_history"`
		Stdin   bool   `json:"allow_stdin"`
	}
	if err := json.Unmarshal(r.content, &content); err != nil {
		k.reply(r, failed{status{"error"}, failure{Name: "BadRequest", Value: err.Error(), Traceback: []string{}}})
		return
	}
	if !content.Silent && (content.History == nil || *content.History) {
		k.count++
	}
	k.mu.Lock()
	k.parent, k.asking = r.raw, nil
	if content.Stdin {
		k.asking = &r
	}
	k.mu.Unlock()
	type object = map[string]any
	if !content.Silent {
		k.publish("execute_input", r.raw, object{"code": content.Code, "execution_count": k.count})
	}
	value, failure := k.cells.run(content.Code)
	k.mu.Lock()
	k.asking = nil
	k.mu.Unlock()
	for _, s := range k.out {
		s.drain()
	}
	switch {
	case failure != nil:
		if !content.Silent {
			k.publish("error", r.raw, failure)
		}
		k.reply(r, struct {
			failed
			Count int `json:"execution_count"`
		}{failed{status{"error"}, *failure}, k.count})
		return
	case value != "" && !content.Silent:
		k.publish("execute_result", r.raw, object{
			"execution_count": k.count, "data": object{"text/plain": value}, "metadata": object{},
		})
	}
	k.reply(r, object{"status": "ok", "execution_count": k.count, "payload": []any{}, "user_expressions": object{}})
}

// takeInput takes an answer to an input request.
func (k *kernel) takeInput(_ context.Context, r request) {
	var content struct {
		Value string `json:"value"`
	}
	if r.header.Type != "input_reply" || json.Unmarshal(r.content, &content) != nil {
		return
	}
	select {
	case k.answers <- content.Value:
	default: // nobody asked
	}
}

var errNoInput = errors.New("there is no input: the request did not allow it")

// asker is what cells read from: each read that finds nothing asks the client for a line.
type asker struct{ k *kernel }

// Read implements io.Reader.
func (a asker) Read(p []byte) (int, error) {
	k := a.k
	if len(k.line) == 0 {
		k.mu.Lock()
		asking := k.asking
		k.mu.Unlock()
		if asking == nil {
			return 0, errNoInput
		}
		for _, s := range k.out {
			s.drain() // the prompt comes first
		}
		select {
		case <-k.answers: // to an earlier cell
		default:
		}
		frames, err := k.signer.encode("input_request", asking.raw, struct {
			Prompt   string `json:"prompt"`
			Password bool   `json:"password"`
		}{})
		if err != nil {
			return 0, err
		}
		if !k.ask(asking.from.identity(), frames) {
			return 0, errNoInput
		}
		select {
		case line := <-k.answers:
			k.line = []byte(line + "\n")
		case <-k.cells.wakes():
			return 0, io.EOF
		}
	}
	n := copy(p, k.line)
	k.line = k.line[n:]
	return n, nil
}

// ask sends to the client with that id, if it listens.
func (k *kernel) ask(identity string, frames [][]byte) bool {
	for _, p := range k.stdin.all() {
		if p.identity() == identity {
			p.send(frames)
			return true
		}
	}
	return false
}
