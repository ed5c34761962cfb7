package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/creack/pty"
	"github.com/gorilla/websocket"
)

func ptyBenchmarks() []benchmark {
	return []benchmark{
		{"pty-echo", "one keystroke in a terminal, until its echo is there; floor: gorilla/websocket around creack/pty", ptyEcho},
		{"pty-output", "`seq 1 1000000` in a terminal; the same floor", ptyOutput},
		{"pty-200", "keystrokes in 200 terminals at once; the same floor", ptyMany},
		{"pty-replay", "connecting to a terminal with a full MiB of output; floor: a WebSocket that sends as much", ptyReplay},
		{"pty-memory", "200 idle terminals, connected: the daemon's memory for each; no floor", ptyMemory},
		{"pty-soak", "keystrokes in eight terminals for a time, with clients that come and go", ptySoak},
	}
}

// floorPTY runs a command in a terminal.
func floorPTY(w http.ResponseWriter, r *http.Request) {
	conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	cmd := exec.Command("bash", "-c", r.FormValue("command"))
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 32<<10)
		buf[0] = 1
		for {
			n, err := tty.Read(buf[1:])
			if n > 0 && conn.WriteMessage(websocket.BinaryMessage, buf[:1+n]) != nil || err != nil {
				break
			}
		}
		conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	}()
	for {
		_, data, err := conn.ReadMessage()
		if err != nil {
			break
		}
		if len(data) > 1 {
			tty.Write(data[1:])
		}
	}
	tty.Close()
	cmd.Process.Kill()
	cmd.Wait()
	<-done
}

// floorMessage sends one message of a given size.
func floorMessage(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.Atoi(r.FormValue("size"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	conn.WriteMessage(websocket.BinaryMessage, bytes.Repeat([]byte("Q"), size))
	conn.ReadMessage() // until the client goes
}

// terminal is a connection to a terminal of celld's or of a floor.
type terminal struct {
	conn *websocket.Conn
	id   string // at celld
}

func (p *peer) connect(ctx context.Context, path string) (*terminal, error) {
	dialer := websocket.Dialer{ReadBufferSize: 64 << 10}
	conn, _, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(p.base, "http")+path, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return &terminal{conn: conn}, nil
}

// terminal starts a command in a terminal.
func (p *peer) terminal(ctx context.Context, command string) (*terminal, error) {
	if !p.celld {
		return p.connect(ctx, "/pty?command="+url.QueryEscape(command))
	}
	made, err := askJSON[struct {
		ID string `json:"session_id"`
	}](ctx, p, http.MethodPost, "/pty", object("command", command))
	var refused *statusError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return nil, unavailable("no terminals")
	}
	if err != nil {
		return nil, err
	}
	t, err := p.connect(ctx, "/pty/"+made.ID+"/ws")
	if err == nil {
		t.id = made.ID
	}
	return t, err
}

// close ends the terminal.
func (p *peer) close(ctx context.Context, t *terminal) error {
	t.conn.Close()
	if t.id == "" {
		return nil
	}
	_, err := p.ask(ctx, http.MethodDelete, "/pty/"+t.id, "")
	return err
}

// next returns some output, without copying it. A closed connection is an error.
func (t *terminal) next() ([]byte, error) {
	for {
		kind, data, err := t.conn.ReadMessage()
		if err != nil {
			return nil, err
		}
		switch {
		case kind != websocket.BinaryMessage:
		case data[0] == 3:
			return data[9:], nil
		default:
			return data[1:], nil
		}
	}
}

// until reads until so many letters Q have come.
func (t *terminal) until(n int) error {
	for got := 0; got < n; {
		data, err := t.next()
		if err != nil {
			return err
		}
		if got += bytes.Count(data, []byte("Q")); got > n {
			return fmt.Errorf("%d letters came, want %d", got, n)
		}
	}
	return nil
}

// key types a letter and waits for its echo.
func (t *terminal) key() error {
	if err := t.conn.WriteMessage(websocket.BinaryMessage, []byte{0, 'Q'}); err != nil {
		return err
	}
	return t.until(1)
}

// reader is a command that reads what is typed, which the kernel echoes, and says when it has begun.
const reader = `stty -icanon; echo Q; exec cat >/dev/null`

// typing starts a reader.
func (p *peer) typing(ctx context.Context) (*terminal, error) {
	t, err := p.terminal(ctx, reader)
	if err != nil {
		return nil, err
	}
	return t, t.until(1)
}

// keys takes the times of keystrokes in one terminal.
func (r *run) keys(ctx context.Context, p *peer) (side, error) {
	t, err := p.typing(ctx)
	if err != nil {
		return nil, err
	}
	r.cleanup = append(r.cleanup, func() error { return p.close(context.WithoutCancel(ctx), t) })
	return func(_ context.Context, n int) ([]float64, error) {
		got := make([]float64, 0, n)
		for range n {
			began := time.Now()
			if err := t.key(); err != nil {
				return nil, err
			}
			got = append(got, time.Since(began).Seconds())
		}
		return got, nil
	}, nil
}

func ptyEcho(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	there, err := r.keys(ctx, d.peer)
	if err != nil {
		return err
	}
	here, err := r.keys(ctx, f.peer)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: here, celld: there, warm: 500, n: pick(r, 1000, 4000, 8000), slice: 100,
		figures: []figure{p50(atMost(1.15)), p99(atMost(2))},
	})
}

// output takes the rate of the output of a command in a new terminal, in MB per second.
func output(p *peer, command string, bytes int64) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			began := time.Now()
			t, err := p.terminal(ctx, command)
			if err != nil {
				return nil, err
			}
			total := int64(0)
			for total < bytes {
				data, err := t.next()
				if err != nil {
					return nil, fmt.Errorf("after %d bytes: %w", total, err)
				}
				total += int64(len(data))
			}
			got = append(got, float64(total)/mb/time.Since(began).Seconds())
			if _, err := t.next(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) || total != bytes {
				return nil, fmt.Errorf("%d bytes, want %d, then %v", total, bytes, err)
			}
			if err := p.close(ctx, t); err != nil {
				return nil, err
			}
		}
		return got, nil
	}
}

func ptyOutput(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	const command, bytes = "seq 1 1000000", 6_888_896 + 1_000_000 // each line end is two bytes
	return r.compare(ctx, contest{
		floor: output(f.peer, command, bytes), celld: output(d.peer, command, bytes),
		warm: 1, n: pick(r, 2, 5, 10), slice: 1, figures: []figure{middle("rate", "MB/s", atLeast(0.9))},
	})
}

// manyKeys takes the times of keystrokes in many terminals at once.
func (r *run) manyKeys(ctx context.Context, p *peer, terminals int) (side, error) {
	all := make([]*terminal, terminals)
	for i := range all {
		t, err := p.typing(ctx)
		if err != nil {
			return nil, err
		}
		all[i] = t
		r.cleanup = append(r.cleanup, func() error { return p.close(context.WithoutCancel(ctx), t) })
	}
	return func(_ context.Context, n int) ([]float64, error) {
		times := make([][]float64, len(all))
		err := together(len(all), func(i int) error {
			for range n / len(all) {
				began := time.Now()
				if err := all[i].key(); err != nil {
					return err
				}
				times[i] = append(times[i], time.Since(began).Seconds())
			}
			return nil
		})
		var got []float64
		for _, t := range times {
			got = append(got, t...)
		}
		return got, err
	}, nil
}

func ptyMany(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	const terminals = 200
	there, err := r.manyKeys(ctx, d.peer, terminals)
	if err != nil {
		return err
	}
	here, err := r.manyKeys(ctx, f.peer, terminals)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: here, celld: there, warm: 10 * terminals, n: pick(r, 50, 200, 400) * terminals, slice: 10 * terminals,
		figures: []figure{p50(atMost(1.15)), p99(atMost(2))},
	})
}

// mebibyte is what a terminal replays at the most.
const mebibyte = 1 << 20

func ptyReplay(ctx context.Context, r *run) error {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return err
	}
	t, err := d.terminal(ctx, fmt.Sprintf(`head -c %d /dev/zero | tr '\0' Q; read x`, 2*mebibyte))
	if err != nil {
		return err
	}
	if err := t.until(2 * mebibyte); err != nil {
		return err
	}
	defer d.close(context.WithoutCancel(ctx), t)
	receive := func(p *peer, path string) (float64, error) {
		began := time.Now()
		t, err := p.connect(ctx, path)
		if err != nil {
			return 0, err
		}
		defer t.conn.Close()
		_, data, err := t.conn.ReadMessage()
		took := time.Since(began).Seconds()
		if n := bytes.Count(data, []byte("Q")); err == nil && n != mebibyte {
			err = fmt.Errorf("%d bytes were replayed", n)
		}
		return took, err
	}
	var over []float64
	for range pick(r, 20, 100, 200) {
		bare, err := receive(f.peer, fmt.Sprint("/message?size=", mebibyte))
		if err != nil {
			return err
		}
		took, err := receive(d.peer, "/pty/"+t.id+"/ws?mode=viewer")
		if err != nil {
			return err
		}
		over = append(over, took-bare)
	}
	r.single("longer than the floor, p50", "ms", median(over), atMost(0.02))
	r.single("longer than the floor, p99", "ms", quantile(over, 0.99), atMost(0.02))
	return nil
}

func ptyMemory(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	start := func(n int) error {
		for range n {
			t, err := d.typing(ctx)
			if err != nil {
				return err
			}
			if err := t.key(); err != nil {
				return err
			}
			r.cleanup = append(r.cleanup, t.conn.Close)
		}
		return nil
	}
	if err := start(8); err != nil {
		return err
	}
	before, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	const n = 200
	if err := start(n); err != nil {
		return err
	}
	after, err := memory(d.pid, "VmRSS")
	if err != nil {
		return err
	}
	r.single("memory for each", "KB", (after-before)/n/1e3, atMost(1200))
	return nil
}

// ptySoak types in some terminals, and comes back after each while as a client does that was cut off.
func ptySoak(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	const terminals = 8
	end := time.Now().Add(pick(r, 5*time.Second, 20*time.Second, 10*time.Minute))
	var wrong faults
	var typed [terminals]int
	err = together(terminals, func(i int) error {
		t, err := d.typing(ctx)
		if err != nil {
			return err
		}
		defer func() { d.close(context.WithoutCancel(ctx), t) }()
		for ; time.Now().Before(end) && ctx.Err() == nil; typed[i]++ {
			if err := t.key(); err != nil {
				return err
			}
			if typed[i]%500 != 499 {
				continue
			}
			t.conn.Close()
			// Before what was typed came the first letter and a line end.
			again, err := d.connect(ctx, fmt.Sprintf("/pty/%s/ws?since=%d", t.id, typed[i]+4-400))
			if err != nil {
				return err
			}
			again.id, t = t.id, again
			wrong.count(t.until(400))
		}
		return context.Cause(ctx)
	})
	total := 0
	for _, n := range typed {
		total += n
	}
	if total == 0 {
		err = errors.Join(err, errors.New("nothing was typed"))
	}
	r.single(fmt.Sprintf("wrong replays, %d keystrokes", total), "", float64(wrong.n.Load()), atMost(0))
	return errors.Join(err, wrong.first())
}
