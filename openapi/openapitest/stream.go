package openapitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

const (
	eventStream = "text/event-stream"
	ndjson      = "application/x-ndjson"
)

// Stream checks a stream of events as it is written to it: each frame, each event, and their order. A Stream is
// not for concurrent use.
type Stream struct {
	spec  *Spec
	bare  bool // NDJSON
	buf   []byte
	lines []string // of the frame so far
	count int
	last  int64  // eid of the last event that had one
	end   string // type of the terminal event
	err   error
	other *openapi3.Schema // of what isn't an execution's events; nil for those
}

// stream returns a checker for a body of the kind m.
func (s *Spec) stream(m media) *Stream {
	st := s.Stream(m.name)
	if m.schema != s.event {
		st.other = m.schema
	}
	return st
}

// Stream returns a checker for one response body of the given media type: text/event-stream or
// application/x-ndjson.
func (s *Spec) Stream(mediaType string) *Stream {
	return &Stream{spec: s, bare: mediaType == ndjson}
}

// Write takes the next bytes of the body. It always takes all; the first thing found wrong is the error, then and
// later.
func (st *Stream) Write(p []byte) (int, error) {
	st.buf = append(st.buf, p...)
	for st.err == nil {
		line, rest, found := bytes.Cut(st.buf, []byte("\n"))
		if !found {
			break
		}
		st.err = st.line(string(line))
		st.buf = append(st.buf[:0], rest...)
	}
	return len(p), st.err
}

// Close checks that nothing is left over: the body ended after a whole frame.
func (st *Stream) Close() error {
	if st.err == nil && (len(st.buf) > 0 || len(st.lines) > 0) {
		st.err = fmt.Errorf("the body ends inside a frame: %.80q", strings.Join(st.lines, "\n")+string(st.buf))
	}
	return st.err
}

// Events returns how many events came.
func (st *Stream) Events() int { return st.count }

// Terminal returns the type of the terminal event, empty when none came.
func (st *Stream) Terminal() string { return st.end }

func (st *Stream) line(line string) error {
	if st.bare && st.other != nil {
		st.count++
		return visit(st.other, []byte(line))
	}
	if st.bare {
		return st.event("", "", line)
	}
	if line != "" {
		st.lines = append(st.lines, line)
		return nil
	}
	err := st.frame(st.lines)
	st.lines = st.lines[:0]
	return err
}

// frame takes a frame of the form id, event, data; without id for ping, gap and the end of a background response.
func (st *Stream) frame(lines []string) error {
	if st.other != nil {
		return st.plainFrame(lines)
	}
	var id string
	rest := lines
	if len(rest) > 0 && strings.HasPrefix(rest[0], "id: ") {
		id, rest = rest[0][len("id: "):], rest[1:]
		if id == "" {
			return fmt.Errorf("frame %q has an empty id", lines)
		}
	}
	if len(rest) != 2 || !strings.HasPrefix(rest[0], "event: ") || !strings.HasPrefix(rest[1], "data: ") {
		return fmt.Errorf("frame %.200q is not id, event, data", lines)
	}
	return st.event(id, rest[0][len("event: "):], rest[1][len("data: "):])
}

// plainFrame takes a frame of event and data, or of data alone. The event is the type that the data has.
func (st *Stream) plainFrame(lines []string) error {
	name, rest := "", lines
	if len(rest) == 2 && strings.HasPrefix(rest[0], "event: ") {
		name, rest = rest[0][len("event: "):], rest[1:]
	}
	if len(rest) != 1 || !strings.HasPrefix(rest[0], "data: ") {
		return fmt.Errorf("frame %.200q is not event, data", lines)
	}
	st.count++
	data := []byte(rest[0][len("data: "):])
	if err := visit(st.other, data); err != nil {
		return fmt.Errorf("frame %d: %w", st.count, err)
	}
	var head struct{ Type string }
	if err := json.Unmarshal(data, &head); err != nil || head.Type != name {
		return fmt.Errorf("frame %d: the frame says %q, the data %q (%v)", st.count, name, head.Type, err)
	}
	return nil
}

// eventHead is what the order of events is checked by.
type eventHead struct {
	Type     string
	EID      int64
	Text     *string
	Data     *string
	Partial  bool
	From, To int64
}

func (st *Stream) event(id, name, data string) error {
	if err := st.spec.ValidateEvent([]byte(data)); err != nil {
		return fmt.Errorf("event %d: %w", st.count+1, err)
	}
	var ev eventHead
	if err := json.Unmarshal([]byte(data), &ev); err != nil {
		return err
	}
	st.count++
	if !st.bare {
		if name != ev.Type {
			return fmt.Errorf("event %d: frame says %q, data %q", st.count, name, ev.Type)
		}
		want := ""
		if ev.EID > 0 {
			want = strconv.FormatInt(ev.EID, 10)
		}
		if id != want {
			return fmt.Errorf("event %d: frame has id %q, data eid %d", st.count, id, ev.EID)
		}
	}
	return st.order(ev)
}

func (st *Stream) order(ev eventHead) error {
	if st.end != "" {
		return fmt.Errorf("event %d: %s after %s", st.count, ev.Type, st.end)
	}
	if ev.Type == "init" && st.count > 1 {
		return fmt.Errorf("event %d: init is not the first", st.count)
	}
	if ev.EID > 0 {
		// All parts but the last of a large result have the position before it, so that resuming there gives all.
		part := ev.Type == "result" && ev.Partial && ev.EID == st.last
		if ev.EID <= st.last && !part {
			return fmt.Errorf("event %d: eid %d after %d", st.count, ev.EID, st.last)
		}
		st.last = ev.EID
	}
	if ev.Type == "error" || ev.Type == "execution_complete" {
		st.end = ev.Type
	}
	return nil
}

// Transport returns a round tripper that checks every response that next gives, without changing it: status and
// headers at once, the body as the caller reads it. Report is called with what is wrong, at most once a response,
// from the goroutine that made the request or reads the body.
func (s *Spec) Transport(next http.RoundTripper, report func(error)) http.RoundTripper {
	return &transport{s, next, report}
}

type transport struct {
	spec   *Spec
	next   http.RoundTripper
	report func(error)
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	what := fmt.Sprintf("%s %s: status %d", req.Method, req.URL.RequestURI(), resp.StatusCode)
	m, err := t.spec.head(req.Method, req.URL.RequestURI(), resp.StatusCode, resp.Header)
	if err != nil {
		t.report(fmt.Errorf("%s: %w", what, err))
		return resp, nil
	}
	b := &body{ReadCloser: resp.Body, report: t.report, what: what, media: m}
	if m.events {
		b.stream = t.spec.stream(m)
	}
	resp.Body = b
	return resp, nil
}

// body checks what is read through it.
type body struct {
	io.ReadCloser
	report func(error)
	what   string
	media  media
	stream *Stream
	text   []byte // of a JSON body
	done   bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.done {
		return n, err
	}
	var bad error
	switch {
	case b.stream != nil:
		_, bad = b.stream.Write(p[:n])
	case b.media.empty && n > 0:
		bad = fmt.Errorf("body %.80q where none is described", p[:n])
	case b.media.schema != nil:
		b.text = append(b.text, p[:n]...)
	}
	if bad == nil && errors.Is(err, io.EOF) {
		bad = b.whole()
	}
	if bad != nil {
		b.done = true
		b.report(fmt.Errorf("%s: %w", b.what, bad))
	}
	return n, err
}

// whole checks what can only be checked at the end.
func (b *body) whole() error {
	b.done = true
	if b.stream != nil {
		return b.stream.Close()
	}
	if b.media.schema != nil && !b.media.events {
		return visit(b.media.schema, b.text)
	}
	return nil
}
