package shellrun

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Under set -x bash begins each line with PS4, and repeats the first character of that for each file it is reading
// inside another. The user's text is two files deep: what they didn't ask for is taken out again. A line that really
// begins with three of that character, printed while tracing is on, loses two.

const traceDepth = 2

// turnsTraceOn matches text that may turn tracing on.
var turnsTraceOn = regexp.MustCompile(`\bset\s+-[A-Za-z]*x|xtrace`)

// traceStart returns the character that trace lines begin with, or "" when there will be none.
func (s *Session) traceStart(text string) string {
	if !strings.Contains(s.state.flags, "x") && !turnsTraceOn.MatchString(text) {
		return ""
	}
	value := []byte("+")
	if _, after, ok := bytes.Cut(variable(s.variables(), "PS4"), []byte(`PS4="`)); ok {
		value = after
	}
	if len(value) == 0 || bytes.IndexByte([]byte("\"$`\\"), value[0]) >= 0 { // expanded each time
		return ""
	}
	_, n := utf8.DecodeRune(value)
	return string(value[:n])
}

// untrace takes traceDepth of start from the beginning of each line that has more of them.
type untrace struct {
	w     io.Writer
	start string
	held  []byte // the beginning of a line, as long as it is nothing but start
	mid   bool   // inside a line
}

func newUntrace(w io.Writer, start string) io.Writer {
	if w == nil {
		return nil
	}
	return &untrace{w: w, start: start}
}

// Write never holds back more than the beginning of one line.
func (u *untrace) Write(b []byte) (int, error) {
	n := len(b)
	if len(u.held) > 0 {
		b = append(u.held, b...)
		u.held = nil
	}
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		if !u.mid {
			run := 0
			for bytes.HasPrefix(b[run:], []byte(u.start)) {
				run += len(u.start)
			}
			rest := b[run:]
			if len(rest) == 0 || len(rest) < len(u.start) && bytes.HasPrefix([]byte(u.start), rest) {
				u.held = bytes.Clone(b)
				break
			}
			if run > traceDepth*len(u.start) {
				b = b[traceDepth*len(u.start):]
			}
		}
		line := len(b)
		u.mid = true
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, u.mid = i+1, false
		}
		out = append(out, b[:line]...)
		b = b[line:]
	}
	if len(out) == 0 {
		return n, nil
	}
	_, err := u.w.Write(out)
	return n, err
}

// Flush writes what was held back.
func (u *untrace) Flush() {
	if len(u.held) > 0 {
		u.w.Write(u.held)
		u.held = nil
	}
}
