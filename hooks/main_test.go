package hooks

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// piece is one event as a client sees it.
type piece struct {
	kind    string // init, stdout, stderr, result, error, complete or a status's state
	text    string
	eid     int64
	partial bool
}

var errCut = errors.New("connection cut")

// client is a Writer as a transport would be: it cuts output with Text, and goes away after limit events, wherever
// in a batch that is.
type client struct {
	mode     Mode
	out, err Text
	got      []piece
	limit    int // 0: never
	gaps     []Status
	last     int64
	fault    error // what broke the rules
}

func newClient(mode Mode, after int64) *client {
	c := &client{mode: mode, last: after}
	c.out = Text{Mode: mode, After: after}
	c.err = c.out
	return c
}

func (c *client) add(kind, text string, eid int64, partial bool) {
	if c.limit > 0 && len(c.got) >= c.limit {
		return
	}
	if eid > 0 {
		if eid <= c.last {
			c.fault = fmt.Errorf("%s %.20q has id %d after %d", kind, text, eid, c.last)
		}
		c.last = eid
	}
	c.got = append(c.got, piece{kind, text, eid, partial})
}

func (c *client) emit(kind string) func([]byte, int64, bool) {
	return func(text []byte, eid int64, partial bool) { c.add(kind, string(text), eid, partial) }
}

func (c *client) OnInit(e Init)         { c.add("init", e.ID, e.EID, false) }
func (c *client) OnStdout(o Output)     { c.out.Feed(o, c.emit("stdout")) }
func (c *client) OnStderr(o Output)     { c.err.Feed(o, c.emit("stderr")) }
func (c *client) OnResult(e Result)     { c.add("result", string(e.Data["text/plain"]), e.EID, false) }
func (c *client) OnError(e Failure)     { c.add("error", e.Name, e.EID, false) }
func (c *client) OnComplete(e Complete) { c.add("complete", "", e.EID, false) }
func (c *client) OnStatus(e Status) {
	if e.State == StateGap {
		c.out.Gap(c.emit("stdout"))
		c.err.Gap(c.emit("stderr"))
		c.gaps = append(c.gaps, e)
	}
	c.add(e.State, e.Detail, e.EID, false)
}

func (c *client) Flush() error {
	if c.limit > 0 && len(c.got) >= c.limit {
		return errCut
	}
	return nil
}

// of returns the pieces of one kind.
func of(all []piece, kind string) []piece {
	var some []piece
	for _, p := range all {
		if p.kind == kind {
			some = append(some, p)
		}
	}
	return some
}

// joined returns the text of one kind of pieces.
func joined(all []piece, kind string) string {
	var text []byte
	for _, p := range of(all, kind) {
		text = append(text, p.text...)
	}
	return string(text)
}

// exact is a Writer that checks what it is told against what was put into a journal, position by position.
type exact struct {
	truth *truth
	pos   int64
	gaps  []Status
	end   bool
	fault error
}

// truth is what a journal was told: for each position after the first, the kind of event and, for output, the byte.
type truth struct{ kinds, bytes []byte }

func (t *truth) add(k kind, data []byte) {
	if k > kindStderr {
		data = []byte{0}
	}
	t.kinds = append(t.kinds, bytes.Repeat([]byte{byte(k)}, len(data))...)
	t.bytes = append(t.bytes, data...)
}

func (x *exact) step(k kind, s Stamp, data []byte) {
	n := int64(1)
	if k <= kindStderr {
		n = int64(len(data))
	}
	switch {
	case x.fault != nil:
	case x.end:
		x.fault = fmt.Errorf("event %d after the end", s.EID)
	case s.EID != x.pos+n:
		x.fault = fmt.Errorf("event %d with %d positions after %d", s.EID, n, x.pos)
	case s.EID-2 >= int64(len(x.truth.kinds)):
		x.fault = fmt.Errorf("event %d is beyond what was reported", s.EID)
	default:
		from, to := s.EID-n-1, s.EID-1
		if bytes.Count(x.truth.kinds[from:to], []byte{byte(k)}) != int(n) {
			x.fault = fmt.Errorf("positions %d..%d aren't all of kind %d", from+2, to+1, k)
		} else if k <= kindStderr && !bytes.Equal(x.truth.bytes[from:to], data) {
			x.fault = fmt.Errorf("positions %d..%d hold other bytes", from+2, to+1)
		}
	}
	x.pos, x.end = s.EID, k >= kindError
}

func (x *exact) OnInit(e Init) {
	if x.pos != 0 || e.EID != 1 {
		x.fault = fmt.Errorf("init %d after %d", e.EID, x.pos)
	}
	x.pos = 1
}

func (x *exact) OnStdout(o Output) { x.output(kindStdout, o) }
func (x *exact) OnStderr(o Output) { x.output(kindStderr, o) }

func (x *exact) output(k kind, o Output) {
	switch {
	case o.End:
		x.step(kindEnd, o.Stamp, nil)
	case o.EID > x.pos: // else it is taken back
		x.step(k, o.Stamp, o.Data)
	}
}

func (x *exact) OnResult(e Result)     { x.step(kindResult, e.Stamp, nil) }
func (x *exact) OnError(e Failure)     { x.step(kindError, e.Stamp, nil) }
func (x *exact) OnComplete(e Complete) { x.step(kindComplete, e.Stamp, nil) }
func (x *exact) Flush() error          { return x.fault }

func (x *exact) OnStatus(e Status) {
	if e.State != StateGap {
		x.step(kindStatus, e.Stamp, nil)
		return
	}
	if e.From != x.pos+1 || e.To < e.From || e.EID != 0 {
		x.fault = fmt.Errorf("gap %d..%d, id %d, after %d", e.From, e.To, e.EID, x.pos)
	}
	x.gaps, x.pos = append(x.gaps, e), e.To
}
