package server

import (
	"encoding/base64"
	"maps"
	"slices"
	"strconv"

	"github.com/celld/celld/hooks"
)

// encoder turns events into frames: Server-Sent Events (WHATWG HTML, section 9.2) or lines of JSON. It implements
// hooks.Hooks; its owner sends and empties buf. One goroutine uses it.
type encoder struct {
	buf      []byte
	lines    bool   // bare JSON lines instead of SSE frames
	ref      string // the client's name for the run, on a shared connection; with its key, comma and quotes
	out, err hooks.Text
	stamp    hooks.Stamp // of the output being cut
	stream   string

	emitLine func(text []byte, eid int64, partial bool) // bound once, so that no line allocates
}

func newEncoder(mode hooks.Mode, after int64, lines bool) *encoder {
	e := &encoder{lines: lines, buf: make([]byte, 0, 1<<10)} // a short run fits in
	e.out = hooks.Text{Mode: mode, After: after}
	e.err = e.out
	switch mode {
	case hooks.Lines:
		e.emitLine = e.line
	case hooks.Raw:
		e.emitLine = e.chunk
	default:
		e.emitLine = e.bytes
	}
	return e
}

// begin appends a frame's head up to the timestamp; an eid of 0 is left out.
func (e *encoder) begin(kind string, s hooks.Stamp) {
	b := e.buf
	if !e.lines {
		if s.EID > 0 {
			b = appendInt(b, "id: ", s.EID)
			b = append(b, '\n')
		}
		b = append(b, "event: "...)
		b = append(b, kind...)
		b = append(b, "\ndata: "...)
	}
	b = append(b, `{"type":"`...)
	b = append(b, kind...)
	b = appendInt(b, `","timestamp":`, s.Time.UnixMilli())
	if s.EID > 0 {
		b = appendInt(b, `,"eid":`, s.EID)
	}
	e.buf = append(b, e.ref...)
}

func (e *encoder) end() {
	if e.lines {
		e.buf = append(e.buf, "}\n"...)
	} else {
		e.buf = append(e.buf, "}\n\n"...)
	}
}

func (e *encoder) text(key string, s string) {
	e.buf = append(append(append(e.buf, ',', '"'), key...), '"', ':')
	e.buf = appendJSON(e.buf, s)
}

func (e *encoder) raw(s string) { e.buf = append(e.buf, s...) }

func (e *encoder) flag(key string, on bool) {
	if on {
		e.raw(`,"` + key + `":true`)
	} else {
		e.raw(`,"` + key + `":false`)
	}
}

// OnInit implements hooks.Hooks.
func (e *encoder) OnInit(i hooks.Init) {
	e.begin("init", i.Stamp)
	e.text("text", i.ID)
	e.text("execution_id", i.ExecutionID)
	e.end()
}

// OnStdout implements hooks.Hooks.
func (e *encoder) OnStdout(o hooks.Output) { e.output("stdout", &e.out, o) }

// OnStderr implements hooks.Hooks.
func (e *encoder) OnStderr(o hooks.Output) { e.output("stderr", &e.err, o) }

func (e *encoder) output(stream string, t *hooks.Text, o hooks.Output) {
	e.stream, e.stamp = stream, o.Stamp
	t.Feed(o, e.emitLine)
}

func (e *encoder) line(text []byte, eid int64, partial bool) {
	if len(text) == 0 {
		text = newline
	}
	e.piece(text, eid, partial)
}

func (e *encoder) chunk(text []byte, eid int64, _ bool) { e.piece(text, eid, false) }

var newline = []byte("\n")

func (e *encoder) piece(text []byte, eid int64, partial bool) {
	e.stamp.EID = eid
	e.begin(e.stream, e.stamp)
	e.buf = append(e.buf, `,"text":`...)
	e.buf = appendJSON(e.buf, text)
	if partial {
		e.flag("partial", true)
	}
	e.end()
}

func (e *encoder) bytes(data []byte, eid int64, _ bool) {
	e.stamp.EID = eid
	e.begin(e.stream, e.stamp)
	e.buf = append(e.buf, `,"data":"`...)
	e.buf = base64.StdEncoding.AppendEncode(e.buf, data)
	e.buf = append(e.buf, '"')
	e.end()
}

// OnResult implements hooks.Hooks. A large set of types is spread over several events. What was sent of it before is left
// out.
func (e *encoder) OnResult(r hooks.Result) {
	parts := r.Parts()
	stamp := r.Stamp
	for i, types := range parts {
		left := len(parts) - 1 - i
		if stamp.EID = r.EID - int64(left); e.out.After > 0 && stamp.EID <= e.out.After {
			continue
		}
		e.begin("result", stamp)
		e.resultFields(r, types)
		if left > 0 || r.Partial {
			e.flag("partial", true)
		}
		e.end()
	}
}

func sortedTypes(r hooks.Result) []string { return slices.Sorted(maps.Keys(r.Data)) }

func (e *encoder) resultFields(r hooks.Result, types []string) {
	e.raw(`,"results":{`)
	for i, mime := range types {
		if i > 0 {
			e.raw(",")
		}
		e.buf = appendJSON(e.buf, mime)
		e.raw(":")
		start := len(e.buf)
		e.buf = appendJSONValue(e.buf, r.Data[mime])
		if mime == "text/plain" {
			end := len(e.buf)
			e.raw(`,"text":`)
			e.buf = append(e.buf, e.buf[start:end]...)
		}
	}
	e.raw("}")
	if len(r.Metadata) > 0 && string(r.Metadata) != "{}" {
		e.raw(`,"metadata":`)
		e.buf = appendJSONValue(e.buf, r.Metadata)
	}
	if r.DisplayID != "" {
		e.text("display_id", r.DisplayID)
	}
	if r.Update {
		e.flag("update", true)
	}
	if r.ExecutionCount > 0 {
		e.buf = appendInt(e.buf, `,"execution_count":`, int64(r.ExecutionCount))
	}
	if r.Table != nil {
		e.table(r.Table)
	}
}

func (e *encoder) table(t *hooks.Table) {
	e.raw(`,"table":{"columns":[`)
	for i, c := range t.Columns {
		if i > 0 {
			e.raw(",")
		}
		e.raw(`{"name":`)
		e.buf = appendJSON(e.buf, c.Name)
		e.text("type", c.Type)
		if c.Nullable != nil {
			e.flag("nullable", *c.Nullable)
		}
		e.raw("}")
	}
	e.raw("]")
	if t.Truncated {
		e.flag("truncated", true)
		e.buf = appendInt(e.buf, `,"row_count":`, t.RowCount)
	}
	if t.LastInsertID > 0 {
		e.text("last_insert_id", strconv.FormatUint(t.LastInsertID, 10))
	}
	if t.Warnings > 0 {
		e.buf = appendInt(e.buf, `,"warnings":`, int64(t.Warnings))
	}
	if t.Info != "" {
		e.text("info", t.Info)
	}
	e.raw("}")
}

// OnStatus implements hooks.Hooks.
func (e *encoder) OnStatus(s hooks.Status) {
	switch s.State {
	case hooks.StateCount:
		e.begin("execution_count", s.Stamp)
		e.buf = appendInt(e.buf, `,"execution_count":`, int64(s.Count))
	case hooks.StateClear:
		e.begin("clear_output", s.Stamp)
		e.flag("wait", s.Wait)
	case hooks.StateInput:
		e.begin("input_request", s.Stamp)
		e.text("prompt", s.Prompt)
		e.flag("password", s.Password)
	case hooks.StateGap:
		for _, t := range []*hooks.Text{&e.out, &e.err} {
			e.stream, e.stamp.Time = "stdout", s.Time
			if t == &e.err {
				e.stream = "stderr"
			}
			t.Gap(e.emitLine)
		}
		e.begin("gap", hooks.Stamp{Time: s.Time})
		e.buf = appendInt(e.buf, `,"from":`, s.From)
		e.buf = appendInt(e.buf, `,"to":`, s.To)
	default:
		e.begin("status", s.Stamp)
		e.text("state", s.State)
		if s.Detail != "" {
			e.text("detail", s.Detail)
		}
	}
	e.end()
}

// OnError implements hooks.Hooks.
func (e *encoder) OnError(f hooks.Failure) {
	e.begin("error", f.Stamp)
	e.failure(&f.ExecError)
	if f.ExitCode != nil {
		e.buf = appendInt(e.buf, `,"exit_code":`, int64(*f.ExitCode))
	}
	e.end()
}

func (e *encoder) failure(f *hooks.ExecError) {
	e.raw(`,"error":{"ename":`)
	e.buf = appendJSON(e.buf, f.Name)
	e.text("evalue", f.Value)
	e.raw(`,"traceback":[`)
	for i, line := range f.Traceback {
		if i > 0 {
			e.raw(",")
		}
		e.buf = appendJSON(e.buf, line)
	}
	e.raw("]")
	if f.Code != 0 {
		e.buf = appendInt(e.buf, `,"code":`, int64(f.Code))
	}
	if f.SQLState != "" {
		e.text("sqlstate", f.SQLState)
	}
	e.raw("}")
}

// OnComplete implements hooks.Hooks.
func (e *encoder) OnComplete(c hooks.Complete) {
	e.begin("execution_complete", c.Stamp)
	e.buf = appendInt(e.buf, `,"execution_time":`, c.Duration.Milliseconds())
	if c.ExitCode != nil {
		e.buf = appendInt(e.buf, `,"exit_code":`, int64(*c.ExitCode))
	}
	e.end()
}

// ping appends a keep-alive.
func (e *encoder) ping(s hooks.Stamp) {
	e.begin("ping", hooks.Stamp{Time: s.Time})
	e.text("text", "pong")
	e.end()
}
