package hooks

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
	"unicode/utf8"
)

// Print returns a writer that renders events as text for people and tests, one line each. It flushes w when the
// journal has nothing more, and reports w's error then. It is for readers that follow from the start.
func Print(w io.Writer) Writer {
	return &printer{w: bufio.NewWriter(w)}
}

type printer struct {
	w        *bufio.Writer
	out, err Text
}

func (p *printer) OnInit(e Init) { fmt.Fprintf(p.w, "init      %s\n", e.ID) }

func (p *printer) OnStdout(o Output) { p.lines("stdout", &p.out, o) }
func (p *printer) OnStderr(o Output) { p.lines("stderr", &p.err, o) }

func (p *printer) lines(name string, t *Text, o Output) {
	t.Feed(o, p.line(name))
}

func (p *printer) line(name string) func([]byte, int64, bool) {
	return func(text []byte, _ int64, _ bool) {
		fmt.Fprintf(p.w, "%-9s %s\n", name, strings.ToValidUTF8(string(text), "\uFFFD"))
	}
}

func (p *printer) OnResult(e Result) {
	name := "result"
	if e.Update {
		name = "update"
	}
	types := make([]string, 0, len(e.Data))
	for mime := range e.Data {
		types = append(types, mime)
	}
	sort.Strings(types)
	for _, mime := range types {
		value := e.Data[mime]
		var text string
		switch err := json.Unmarshal(value, &text); {
		case err != nil:
			text = string(value)
		case !strings.HasPrefix(mime, "text/"):
			text = fmt.Sprintf("(%d characters)", utf8.RuneCountInString(text))
		}
		fmt.Fprintf(p.w, "%-9s %s: %s\n", name, mime, strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n          "))
	}
}

func (p *printer) OnStatus(e Status) {
	switch e.State {
	case StateCount:
		fmt.Fprintf(p.w, "%-9s cell %d\n", "status", e.Count)
	case StateGap:
		p.out.Gap(p.line("stdout"))
		p.err.Gap(p.line("stderr"))
		fmt.Fprintf(p.w, "%-9s %d..%d\n", "gap", e.From, e.To)
	default:
		fmt.Fprintf(p.w, "%-9s %s\n", "status", strings.TrimSpace(e.State+" "+e.Detail+e.Prompt))
	}
}

func (p *printer) OnError(e Failure) { fmt.Fprintf(p.w, "error     %s\n", e.Error()) }

func (p *printer) OnComplete(e Complete) {
	code := ""
	if e.ExitCode != nil {
		code = fmt.Sprintf(", exit %d", *e.ExitCode)
	}
	fmt.Fprintf(p.w, "complete  %d ms%s\n", e.Duration.Milliseconds(), code)
}

func (p *printer) Flush() error { return p.w.Flush() }
