package hooks

import "unicode/utf8"

// Mode says how a writer cuts output into events.
type Mode uint8

const (
	Lines  Mode = iota // one event a line, terminators stripped
	Raw                // chunks as they come, terminators kept, never in the middle of a character
	Base64             // chunks as they come, any bytes
)

// Text turns the output of one stream into the pieces that a writer makes events of. It is what every text writer
// uses, so that all cut alike. Pieces that end at or before After are not reported: a reader that resumes there has
// seen them, in the same mode. One goroutine uses it.
type Text struct {
	Mode  Mode
	After int64

	cut  Cutter
	pend []byte // the unfinished piece, or the unfinished character
}

// Feed takes o and calls emit for each piece that is complete: its text, the position from which what follows it can
// be asked for, and whether the line goes on. Positions of pieces only grow, across the streams of a reader too. text
// is valid during the call only and may hold invalid UTF-8.
func (t *Text) Feed(o Output, emit func(text []byte, eid int64, partial bool)) {
	if o.Cut != nil {
		t.cut, t.pend = *o.Cut, t.pend[:0]
	}
	switch {
	case o.End:
		if len(t.pend) > 0 && o.EID > t.After {
			emit(t.pend, o.EID, false)
		}
		t.pend = t.pend[:0]
	case t.Mode == Lines:
		t.feedLines(o, emit)
	default:
		t.feedRaw(o, emit)
	}
}

func (t *Text) feedLines(o Output, emit func([]byte, int64, bool)) {
	data := o.Data
	pos := o.EID - int64(len(data))
	for len(data) > 0 {
		text, used, end := t.cut.Next(data)
		pos += int64(used)
		piece := data[:text]
		data = data[used:]
		switch end {
		case Open:
			t.pend = append(t.pend, piece...)
			continue
		case Joined:
			continue
		}
		if len(t.pend) > 0 {
			t.pend = append(t.pend, piece...)
			piece = t.pend
		}
		eid := pos
		if end == Partial {
			// The first byte of the next piece is what showed that the line goes on. Its position, unlike that of the
			// piece's own last byte, lies after all that has been reported of other streams.
			eid++
		}
		if eid > t.After && (len(piece) > 0 || end == Line) { // a full piece whose bytes are gone is nothing
			emit(piece, eid, end == Partial)
		}
		t.pend = t.pend[:0]
	}
}

// Gap reports, as partial, an unfinished piece whose rest has been dropped. Writers call it when they are told of a
// gap. The piece has no position (0): it is older than what may have been reported of other streams.
func (t *Text) Gap(emit func([]byte, int64, bool)) {
	if len(t.pend) > 0 {
		emit(t.pend, 0, true)
	}
	t.pend = t.pend[:0]
}

func (t *Text) feedRaw(o Output, emit func([]byte, int64, bool)) {
	data := o.Data
	if len(t.pend) > 0 {
		t.pend = append(t.pend, data...)
		data = t.pend
	}
	keep, eid := 0, o.EID
	if t.Mode == Raw {
		keep = UnfinishedChar(data)
	}
	if keep > 0 {
		eid += 1 - int64(keep) // that of the first byte held back, for the same reason as with a partial line
	}
	whole := data[:len(data)-keep]
	if len(whole) > 0 && eid > t.After {
		emit(whole, eid, false)
	}
	t.pend = append(t.pend[:0], data[len(whole):]...)
}

// UnfinishedChar returns how many bytes at the end of p begin a UTF-8 character that more bytes could complete: 0 to 3.
func UnfinishedChar(p []byte) int {
	for n := 1; n <= 3 && n <= len(p); n++ {
		tail := p[len(p)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
