package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

func writerBenchmarks() []benchmark {
	return []benchmark{
		{"answer-json", "POST /command `true`, one JSON answer, request to last byte; instead of a floor: the same as a stream of events", answerJSON},
		{"socket-true", "a run of `true` through /ws, from the message to its last event; instead of a floor: POST /command as a stream of events", socketTrue},
		{"socket-1000", "1,000 executions at once on 8 sockets, each prints what only it does; no floor", socketMany},
	}
}

func answerJSON(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	return r.compare(ctx, contest{
		floor: latencies(d.peer, command("true")), celld: answers(d.peer, command("true")),
		warm: 100, n: pick(r, 200, 1000, 2000), slice: 50, figures: []figure{p50(atMost(1)), p99(goal{})},
	})
}

// answers takes the time from a request to the last byte of its one answer.
func answers(p *peer, c call) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		got := make([]float64, 0, n)
		var body bytes.Buffer
		for range n {
			began := time.Now()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+c.path, strings.NewReader(c.body))
			if err != nil {
				return nil, err
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json")
			resp, err := p.http.Do(req)
			if err != nil {
				return nil, err
			}
			body.Reset()
			_, err = body.ReadFrom(resp.Body)
			resp.Body.Close()
			if err != nil {
				return nil, err
			}
			if !bytes.Contains(body.Bytes(), []byte(`"exit_code":0`)) {
				return nil, fmt.Errorf("status %d: %s", resp.StatusCode, body.Bytes())
			}
			got = append(got, time.Since(began).Seconds())
		}
		return got, nil
	}
}

func socketTrue(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	s, err := d.socket(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return r.compare(ctx, contest{
		floor: latencies(d.peer, command("true")), celld: s.latencies("true"),
		warm: 100, n: pick(r, 200, 1000, 2000), slice: 50, figures: []figure{p50(atMost(0.95)), p99(goal{})},
	})
}

// socket is a connection to /ws.
type socket struct{ *websocket.Conn }

func (d *daemon) socket(ctx context.Context) (*socket, error) {
	dialer := websocket.Dialer{ReadBufferSize: 64 << 10}
	conn, _, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(d.base, "http")+"/ws", nil)
	return &socket{conn}, err
}

// run sends the message that runs a command.
func (s *socket) run(ref, text string) error {
	return s.WriteMessage(websocket.TextMessage, []byte(object("op", "run", "ref", ref, "kind", "command", "command", text)))
}

// latencies takes the time from a message to the last event of what it runs, one after the other.
func (s *socket) latencies(text string) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		got := make([]float64, 0, n)
		var event bytes.Buffer
		for range n {
			began := time.Now()
			if err := s.run("r", text); err != nil {
				return nil, err
			}
			for done := false; !done; {
				_, message, err := s.NextReader()
				if err != nil {
					return nil, err
				}
				event.Reset()
				if _, err := event.ReadFrom(message); err != nil {
					return nil, err
				}
				if bytes.Contains(event.Bytes(), []byte(`"type":"error"`)) {
					return nil, fmt.Errorf("it ended with %s", event.Bytes())
				}
				done = bytes.Contains(event.Bytes(), []byte(`"type":"execution_complete"`))
			}
			got = append(got, time.Since(began).Seconds())
		}
		return got, context.Cause(ctx)
	}
}

// socketMany runs many commands at once on each of some sockets, and looks whether each client gets all that is its own.
func socketMany(ctx context.Context, r *run) error {
	d, err := r.celld(ctx)
	if err != nil {
		return err
	}
	const sockets, each, lines = 8, 125, 200
	var wrong faults
	began := time.Now()
	err = together(sockets, func(i int) error {
		s, err := d.socket(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		sent := make(chan error, 1)
		go func() {
			for k := range each {
				if err := s.run(fmt.Sprint(k), fmt.Sprintf("seq -f 'I am %d %d: %%g' %d", i, k, lines)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		err = s.all(each, func(k int, got string) {
			if got != told(i, k, lines) {
				wrong.count(fmt.Errorf("run %d of socket %d printed %.100q, %d bytes", k, i, got, len(got)))
			}
		})
		if err != nil {
			return err
		}
		return <-sent
	})
	r.single(fmt.Sprintf("wrong of %d runs", sockets*each), "", float64(wrong.n.Load()), atMost(0))
	r.single("all of them", "ms", time.Since(began).Seconds(), goal{})
	if err != nil {
		return err
	}
	return wrong.first()
}

// told is what run k of socket i prints.
func told(i, k, lines int) string {
	var b strings.Builder
	for n := range lines {
		fmt.Fprintf(&b, "I am %d %d: %d\n", i, k, n+1)
	}
	return b.String()
}

// all reads until n runs have ended and reports each that ended well: its number and all of its output.
func (s *socket) all(n int, ended func(k int, output string)) error {
	type event struct{ Type, Ref, Text string }
	outputs := map[string]*strings.Builder{}
	for left := n; left > 0; {
		var e event
		if err := s.ReadJSON(&e); err != nil {
			return err
		}
		switch e.Type {
		case "init":
			outputs[e.Ref] = &strings.Builder{}
		case "stdout":
			outputs[e.Ref].WriteString(e.Text + "\n")
		case "execution_complete":
			var k int
			fmt.Sscan(e.Ref, &k)
			ended(k, outputs[e.Ref].String())
			left--
		default:
			return fmt.Errorf("run %s: %w", e.Ref, io.ErrUnexpectedEOF)
		}
	}
	return nil
}
