package backends

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/sqlrun"
)

const (
	// tablePiece is the size past which the rows of a set go on in another result, in bytes of its text.
	tablePiece = 768 << 10
	// maxRowText is the largest text of one row: an event has it twice, and must stay below 64 MiB.
	maxRowText = 30 << 20
	// What the table for people has at the most.
	markdownRows, markdownCell, markdownSize = 100, 200, 64 << 10
)

// table makes results of what statements answer. It implements sqlrun.Answer.
//
// The value of text/plain is a JSON string that holds JSON: {"columns":[…],"rows":[[…]]}. It is written in one go,
// escaped twice.
type table struct {
	h    hooks.Hooks
	max  int64
	err  error // a row that is too large; nothing is reported any more
	open bool  // in a result set

	columns []sqlrun.Column
	desc    hooks.Table
	head    []byte // of each text
	text    []byte // the text so far
	some    bool   // it has rows
	people  []byte // the table for people; nil once it has been sent
	shown   int    // rows in it
	rows    int64  // of the set, those that are left out as well
}

// Columns implements sqlrun.Answer.
func (t *table) Columns(columns []sqlrun.Column) {
	t.columns, t.open, t.rows = columns, true, 0
	t.desc = hooks.Table{Columns: make([]hooks.Column, len(columns))}
	t.head = append(t.head[:0], `"{\"columns\":[`...)
	for i, c := range columns {
		t.desc.Columns[i] = hooks.Column{Name: c.Name, Type: c.Type, Nullable: new(c.Nullable)}
		if i > 0 {
			t.head = append(t.head, ',')
		}
		t.head = appendInner(t.head, []byte(strings.ToValidUTF8(c.Name, "\uFFFD")))
	}
	t.head = append(t.head, `],\"rows\":[`...)
	t.begin()
	t.beginPeople(t.desc.Columns)
}

func (t *table) begin() { t.text, t.some = append(t.text[:0], t.head...), false }

func (t *table) beginPeople(columns []hooks.Column) {
	t.people, t.shown = append(t.people[:0], '|'), 0
	for _, c := range columns {
		t.people = append(appendMarkdown(append(t.people, ' '), c.Name), " |"...)
	}
	t.people = append(t.people, "\n|"...)
	for range columns {
		t.people = append(t.people, "---|"...)
	}
	t.people = append(t.people, '\n')
}

// Row implements sqlrun.Answer.
func (t *table) Row(values [][]byte) {
	t.rows++
	if t.err != nil || t.max > 0 && t.rows > t.max {
		return
	}
	if len(t.text) >= tablePiece {
		t.send(t.desc, true)
		t.begin()
	}
	if t.some {
		t.text = append(t.text, ',')
	}
	t.some = true
	t.text = append(t.text, '[')
	for i, v := range values {
		if i > 0 {
			t.text = append(t.text, ',')
		}
		t.text = appendValue(t.text, v, t.columns[i].Bits)
	}
	t.text = append(t.text, ']')
	if len(t.text) > maxRowText {
		t.err = fmt.Errorf("row %d is larger than %d MiB as text", t.rows, maxRowText>>20)
		return
	}
	if t.people != nil && t.shown < markdownRows && len(t.people) < markdownSize {
		t.shown++
		t.people = append(t.people, '|')
		for i, v := range values {
			t.people = append(appendPeople(append(t.people, ' '), v, t.columns[i].Bits), " |"...)
		}
		t.people = append(t.people, '\n')
	}
}

// Done implements sqlrun.Answer.
func (t *table) Done(s sqlrun.Summary) {
	if t.err != nil {
		return
	}
	if !s.Rows {
		t.affected(s)
		return
	}
	t.open = false
	desc := t.desc
	desc.Warnings = s.Warnings
	if t.max > 0 && t.rows > t.max {
		desc.Truncated, desc.RowCount = true, t.rows
	}
	t.send(desc, false)
}

// affected reports what a statement without rows did.
func (t *table) affected(s sqlrun.Summary) {
	n := strconv.FormatUint(s.AffectedRows, 10)
	t.text = append(append(append(t.text[:0], `"{\"columns\":[\"affected_rows\"],\"rows\":[[`...), n...), ']')
	columns := []hooks.Column{{Name: "affected_rows", Type: "BIGINT UNSIGNED", Nullable: new(false)}}
	t.beginPeople(columns)
	t.people = append(append(append(t.people, "| "...), n...), " |\n"...)
	t.rows, t.shown = 1, 1
	t.send(hooks.Table{Columns: columns, LastInsertID: s.LastInsertID, Warnings: s.Warnings, Info: strings.ToValidUTF8(s.Info, "\uFFFD")}, false)
}

// send reports the text so far.
func (t *table) send(desc hooks.Table, partial bool) {
	t.text = append(t.text, `]}"`...)
	data := map[string]json.RawMessage{"text/plain": t.text}
	if t.people != nil {
		var notes []string
		if int64(t.shown) < t.rows || partial {
			notes = append(notes, fmt.Sprintf("the first %d rows", t.shown))
		}
		if desc.Truncated {
			notes = append(notes, fmt.Sprintf("cut after %d of %d rows", t.max, t.rows))
		}
		if desc.Warnings > 0 {
			notes = append(notes, fmt.Sprintf("%d warnings, which SHOW WARNINGS lists", desc.Warnings))
		}
		if len(notes) > 0 {
			t.people = append(append(append(t.people, "\n("...), strings.Join(notes, "; ")...), ")\n"...)
		}
		data["text/markdown"], _ = json.Marshal(string(t.people)) // a string: never fails
		t.people = nil
	}
	t.h.OnResult(hooks.Result{Data: data, Table: &desc, Partial: partial})
}

// appendValue appends a value as it stands in the JSON in the JSON string: NULL as null, text as a string, bytes that
// aren't text as 0x and their hexadecimal digits.
func appendValue(b, v []byte, bits bool) []byte {
	if v == nil {
		return append(b, "null"...)
	}
	if bits || !utf8.Valid(v) {
		return append(hex.AppendEncode(append(b, `\"0x`...), v), `\"`...)
	}
	return appendInner(b, v)
}

const hexDigits = "0123456789abcdef"

// appendInner appends s, which is valid UTF-8, as a JSON string within a JSON string.
func appendInner(b, s []byte) []byte {
	b = append(b, `\"`...)
	start := 0
	for i, c := range s {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"':
			b = append(b, `\\\"`...)
		case '\\':
			b = append(b, `\\\\`...)
		case '\n':
			b = append(b, `\\n`...)
		default:
			b = append(b, '\\', '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(b, s[start:]...), `\"`...)
}

// appendPeople appends a value for the table for people.
func appendPeople(b, v []byte, bits bool) []byte {
	switch {
	case v == nil:
		return append(b, "NULL"...)
	case bits || !utf8.Valid(v):
		cut := v[:min(len(v), markdownCell/2)]
		b = hex.AppendEncode(append(b, "0x"...), cut)
		if len(cut) < len(v) {
			b = append(b, "…"...)
		}
		return b
	}
	return appendMarkdown(b, string(v[:min(len(v), 4*markdownCell+1)]))
}

var markdown = strings.NewReplacer("|", `\|`, "\\", `\\`, "\r\n", "<br>", "\n", "<br>", "\r", "<br>", "\t", " ", "\x00", " ")

// appendMarkdown appends the beginning of s so that it stays in its cell.
func appendMarkdown(b []byte, s string) []byte {
	n := 0
	for i := range s {
		if n++; n > markdownCell {
			return append(append(b, markdown.Replace(s[:i])...), "…"...)
		}
	}
	return append(b, markdown.Replace(strings.ToValidUTF8(s, "\uFFFD"))...)
}
