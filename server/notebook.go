package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/labstack/echo/v4"
)

// maxNotebook bounds the outputs of one notebook, in bytes. A cell that goes beyond it lacks the rest.
const maxNotebook = 64 << 20

const mimeNotebook = "application/x-ipynb+json"

// notebook is GET /code/contexts/{id}/notebook.
func (s *Server) notebook(c echo.Context) error {
	x, cells, kernel, err := s.controller.Cells(c.Param("id"))
	if err != nil {
		return err
	}
	b := &notebook{limit: maxNotebook, displays: map[string][]*nbOutput{}}
	for _, e := range cells {
		w := b.add(e)
		if err := e.Journal.Replay(c.Request().Context(), 0, w); err != nil && !errors.Is(err, hooks.ErrDropped) {
			return err
		}
		w.finish()
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, mimeNotebook)
	h.Set(echo.HeaderContentDisposition, mime.FormatMediaType("attachment", map[string]string{"filename": x.ID + ".ipynb"}))
	c.Response().WriteHeader(http.StatusOK)
	enc := json.NewEncoder(c.Response())
	enc.SetEscapeHTML(false)
	_ = enc.Encode(b.document(x, kernel)) // a client that is gone needs no answer
	return nil
}

// notebook is made of a context's executions (nbformat 4.5).
type notebook struct {
	cells    []*nbCell
	displays map[string][]*nbOutput // by display id
	size     int                    // of the outputs, in bytes
	limit    int                    // of size
}

type nbCell struct {
	Type     string         `json:"cell_type"`
	ID       string         `json:"id"`
	Metadata map[string]any `json:"metadata"`
	Count    *int           `json:"execution_count"`
	Source   string         `json:"source"`
	Outputs  []*nbOutput    `json:"outputs"`
}

// nbOutput is one output of any kind; what a kind doesn't have is left out.
type nbOutput struct {
	Type      string          `json:"output_type"`
	Name      string          `json:"name,omitempty"`
	Text      *string         `json:"text,omitempty"`
	Count     *int            `json:"execution_count,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	EName     *string         `json:"ename,omitempty"`
	EValue    *string         `json:"evalue,omitempty"`
	Traceback []string        `json:"traceback,omitempty"`

	text bytes.Buffer // of a stream, until the cell is finished
	gone bool         // cleared: an update doesn't concern it
}

func (o *nbOutput) size() int {
	n := o.text.Len() + len(o.Metadata) + len(o.Data)
	for _, line := range o.Traceback {
		n += len(line)
	}
	return n
}

// document is the whole notebook as JSON wants it.
func (b *notebook) document(x backends.Context, kernel backends.KernelInfo) any {
	type object = map[string]any
	language := kernel.Language
	if language == "" {
		language = x.Language
	}
	about := object{"language_info": object{"name": language}}
	if kernel.Name != "" {
		display := kernel.DisplayName
		if display == "" {
			display = kernel.Name
		}
		about["kernelspec"] = object{"name": kernel.Name, "display_name": display, "language": language}
	}
	cells := b.cells
	if cells == nil {
		cells = []*nbCell{}
	}
	return object{"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": cells}
}

// add begins the cell of an execution; its journal is to be replayed to the writer.
func (b *notebook) add(e *backends.Execution) *nbWriter {
	cell := &nbCell{Type: "code", ID: e.ID, Metadata: map[string]any{}, Source: e.Content, Outputs: []*nbOutput{}}
	b.cells = append(b.cells, cell)
	w := &nbWriter{book: b, cell: cell}
	if e.Shortened() {
		w.note("source_truncated")
	}
	return w
}

// nbWriter makes a cell's outputs of events. It implements hooks.Writer.
type nbWriter struct {
	book  *notebook
	cell  *nbCell
	clear bool // before the next output
}

// note says in the cell's metadata that something is missing.
func (w *nbWriter) note(what string) {
	notes, _ := w.cell.Metadata["celld"].(map[string]bool)
	if notes == nil {
		notes = map[string]bool{}
		w.cell.Metadata["celld"] = notes
	}
	notes[what] = true
}

// room takes room for n bytes of output and says whether there is any.
func (w *nbWriter) room(n int) bool {
	if w.book.size+n > w.book.limit {
		w.note("outputs_truncated")
		return false
	}
	w.book.size += n
	return true
}

func (w *nbWriter) empty() {
	for _, o := range w.cell.Outputs {
		w.book.size -= o.size()
		o.gone = true
	}
	w.cell.Outputs, w.clear = []*nbOutput{}, false
}

// OnInit implements hooks.Hooks.
func (w *nbWriter) OnInit(hooks.Init) {}

// OnStdout implements hooks.Hooks.
func (w *nbWriter) OnStdout(o hooks.Output) { w.stream("stdout", o.Data) }

// OnStderr implements hooks.Hooks.
func (w *nbWriter) OnStderr(o hooks.Output) { w.stream("stderr", o.Data) }

func (w *nbWriter) stream(name string, data []byte) {
	if w.clear && len(data) > 0 {
		w.empty()
	}
	if len(data) == 0 || !w.room(len(data)) {
		return
	}
	var last *nbOutput
	if n := len(w.cell.Outputs); n > 0 {
		last = w.cell.Outputs[n-1]
	}
	if last == nil || last.Name != name {
		last = &nbOutput{Type: "stream", Name: name}
		w.cell.Outputs = append(w.cell.Outputs, last)
	}
	last.text.Write(data)
}

// OnResult implements hooks.Hooks. An update changes the displays of that id, in earlier cells too.
func (w *nbWriter) OnResult(r hooks.Result) {
	o := &nbOutput{Type: "display_data", Data: nbBundle(r), Metadata: json.RawMessage("{}")}
	if m := bytes.TrimSpace(r.Metadata); len(m) > 0 && m[0] == '{' {
		o.Metadata = m
	}
	if r.Update {
		for _, shown := range w.book.displays[r.DisplayID] {
			if !shown.gone && w.room(o.size()-shown.size()) {
				shown.Data, shown.Metadata = o.Data, o.Metadata
			}
		}
		return
	}
	if w.clear {
		w.empty()
	}
	if !w.room(o.size()) {
		return
	}
	if r.ExecutionCount > 0 {
		o.Type, o.Count = "execute_result", &r.ExecutionCount
	}
	if r.DisplayID != "" {
		w.book.displays[r.DisplayID] = append(w.book.displays[r.DisplayID], o)
	}
	w.cell.Outputs = append(w.cell.Outputs, o)
}

// nbBundle is the bundle as nbformat wants it: strings, but for JSON types.
func nbBundle(r hooks.Result) json.RawMessage {
	b := []byte("{")
	for i, kind := range sortedTypes(r) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendJSON(b, kind), ':')
		value := r.Data[kind]
		var text string
		switch {
		case json.Unmarshal(value, &text) == nil && string(value) != "null":
			b = appendJSON(b, text) // half a surrogate pair would be no text
		case kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"):
			b = append(b, value...)
		default:
			b = appendJSON(b, value)
		}
	}
	return append(b, '}')
}

// OnStatus implements hooks.Hooks.
func (w *nbWriter) OnStatus(s hooks.Status) {
	switch s.State {
	case hooks.StateCount:
		w.cell.Count = &s.Count
	case hooks.StateClear:
		if w.clear = true; !s.Wait {
			w.empty()
		}
	case hooks.StateGap:
		w.note("outputs_dropped")
	}
}

// OnError implements hooks.Hooks.
func (w *nbWriter) OnError(f hooks.Failure) {
	o := &nbOutput{Type: "error", EName: &f.Name, EValue: &f.Value, Traceback: f.Traceback}
	if len(o.Traceback) == 0 {
		o.Traceback = []string{f.Error()}
	}
	if w.clear {
		w.empty()
	}
	w.book.size += o.size() // it is small, and never left out
	w.cell.Outputs = append(w.cell.Outputs, o)
}

// OnComplete implements hooks.Hooks.
func (w *nbWriter) OnComplete(hooks.Complete) {}

// Flush implements hooks.Writer.
func (w *nbWriter) Flush() error { return nil }

// finish makes text of the streams.
func (w *nbWriter) finish() {
	for _, o := range w.cell.Outputs {
		if o.Name != "" {
			text := strings.ToValidUTF8(o.text.String(), "\uFFFD")
			o.Text = &text
		}
	}
}
