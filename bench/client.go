package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// peer is an HTTP server under test: celld or a floor. It is safe for concurrent use.
type peer struct {
	base     string
	celld    bool // answers with events; a floor with the bare output and the exit status as a trailer
	http     *http.Client
	counters sync.Pool // so that a call allocates nothing for the body
}

func newPeer(base string, celld bool) *peer {
	return &peer{base: base, celld: celld,
		http: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 1 << 12, DisableCompression: true, ReadBufferSize: 64 << 10}},
		counters: sync.Pool{New: func() any { return new(counter) }},
	}
}

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// send returns the answer to a request if its status is good.
func (p *peer) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("%s %s: %w", method, path, &statusError{resp.StatusCode, string(text)})
	}
	return resp, nil
}

// get asks for something whose content doesn't matter.
func (p *peer) get(ctx context.Context, path string) error {
	_, err := p.ask(ctx, http.MethodGet, path, "")
	return err
}

// ask returns the whole answer to a small request.
func (p *peer) ask(ctx context.Context, method, path, body string) ([]byte, error) {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	resp, err := p.send(ctx, method, path, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// askJSON decodes the answer into what it returns.
func askJSON[T any](ctx context.Context, p *peer, method, path, body string) (T, error) {
	var x T
	text, err := p.ask(ctx, method, path, body)
	if err != nil {
		return x, err
	}
	if err := json.Unmarshal(text, &x); err != nil {
		return x, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return x, nil
}

// fetch reads an answer whole and checks its size.
func (p *peer) fetch(ctx context.Context, path string, size int64) error {
	resp, err := p.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n := p.counters.Get().(*counter)
	defer p.counters.Put(n)
	got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, n.buf[:]) // not Discard's own ReadFrom: its buffer is small
	if err != nil {
		return err
	}
	if got != size {
		return fmt.Errorf("%s gave %d bytes", path, got)
	}
	return nil
}

// call is a POST that runs something to a good end.
type call struct {
	path, body string
	// Payload is how often the letter Q must be in the output: no frame of celld's has one by itself.
	payload int64
	lines   int64  // line ends in the output; 0: not looked at
	says    string // text that the answer must hold near its end
}

// command is POST /command.
func command(text string) call { return call{path: "/command", body: object("command", text)} }

// object makes a JSON object of names and values.
func object(namesAndValues ...any) string {
	m := map[string]any{}
	for i := 0; i < len(namesAndValues); i += 2 {
		m[namesAndValues[i].(string)] = namesAndValues[i+1]
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // only literals come here
	}
	return string(text)
}

// do makes the call and checks its outcome.
func (p *peer) do(ctx context.Context, c call) error { return p.read(ctx, c, nil, pace{}) }

// read is do at a given pace; first, if not nil, is called at the first byte of payload.
func (p *peer) read(ctx context.Context, c call, first func(), pace pace) error {
	n := p.counters.Get().(*counter)
	defer p.counters.Put(n)
	n.reset(first)
	resp, err := p.send(ctx, http.MethodPost, c.path, strings.NewReader(c.body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := n.readAll(ctx, resp.Body, pace); err != nil {
		return fmt.Errorf("%s %s: %w", c.path, short(c.body), err)
	}
	if err := p.check(c, resp, n); err != nil {
		return fmt.Errorf("%s %s: %w", c.path, short(c.body), err)
	}
	return nil
}

func (p *peer) check(c call, resp *http.Response, n *counter) error {
	lines := n.newlines
	if p.celld {
		if !bytes.Contains(n.lastFrame(), []byte(`"type":"execution_complete"`)) {
			return fmt.Errorf("it ended with %q", n.lastFrame())
		}
		// Four line ends a frame, and the first and the last frame are not output; or the line ends in the text, escaped.
		if lines = n.newlines/4 - 2; n.escapes > 0 {
			lines = n.escapes
		}
	} else if exit := resp.Trailer.Get("Exit-Status"); exit != "0" {
		return fmt.Errorf("exit status %q", exit)
	}
	if n.payload != c.payload || c.lines > 0 && lines != c.lines {
		return fmt.Errorf("%d bytes in %d lines, want %d in %d", n.payload, lines, c.payload, c.lines)
	}
	if !bytes.Contains(n.end, []byte(c.says)) {
		return fmt.Errorf("%q is not in %q", c.says, n.end)
	}
	return nil
}

func short(s string) string { return s[:min(len(s), 60)] }

// pace slows a reader down for a while, as a bad network does.
type pace struct {
	perSecond int // bytes; 0: no limit
	lasts     time.Duration
}

// counter reads an answer and counts what is in it without decoding: bench shares the machine with what it measures.
type counter struct {
	first func() // called at the first byte of payload; may be nil

	buf               [64 << 10]byte
	end               []byte // the newest bytes
	bytes             int64
	payload           int64 // letters Q
	newlines, escapes int64 // "\n" and backslashes
}

// keepEnd is how much of the end of an answer is kept.
const keepEnd = 4096

func (n *counter) reset(first func()) {
	n.first, n.end, n.bytes, n.payload, n.newlines, n.escapes = first, n.end[:0], 0, 0, 0, 0
}

func (n *counter) readAll(ctx context.Context, body io.Reader, slow pace) error {
	began := time.Now()
	for {
		room := n.buf[:]
		if slow.perSecond > 0 && time.Since(began) < slow.lasts {
			// What should have been read by now, less what has been, after a while.
			due := time.Duration(float64(n.bytes) / float64(slow.perSecond) * float64(time.Second))
			if err := wait(ctx, due-time.Since(began)); err != nil {
				return err
			}
			room = room[:16<<10]
		}
		k, err := body.Read(room)
		n.feed(room[:k])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (n *counter) feed(p []byte) {
	n.bytes += int64(len(p))
	n.payload += int64(bytes.Count(p, []byte("Q")))
	n.newlines += int64(bytes.Count(p, []byte("\n")))
	n.escapes += int64(bytes.Count(p, []byte(`\`)))
	n.end = append(n.end, p[max(0, len(p)-keepEnd):]...)
	if len(n.end) > keepEnd {
		n.end = append(n.end[:0], n.end[len(n.end)-keepEnd:]...)
	}
	if n.first != nil && n.payload > 0 {
		n.first()
		n.first = nil
	}
}

// lastFrame returns the last event of the answer.
func (n *counter) lastFrame() []byte {
	text := bytes.TrimSuffix(n.end, []byte("\n\n"))
	return text[bytes.LastIndex(text, []byte("\n\n"))+1:]
}

// latencies takes the time from a request to its last byte, one request after the other.
func latencies(p *peer, c call) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		got := make([]float64, 0, n)
		for range n {
			began := time.Now()
			if err := p.do(ctx, c); err != nil {
				return nil, err
			}
			got = append(got, time.Since(began).Seconds())
		}
		return got, nil
	}
}

// perSecond takes the rate at which clients get total answers together: one sample at a time.
func perSecond(p *peer, clients, total int, c func(client int) call) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			began := time.Now()
			err := together(clients, func(i int) error {
				for range total / clients {
					if err := p.do(ctx, c(i)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			got = append(got, float64(total/clients*clients)/time.Since(began).Seconds())
		}
		return got, nil
	}
}

// together runs f n times at once and returns the first error.
func together(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
