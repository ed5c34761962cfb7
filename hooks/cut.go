package hooks

import "bytes"

// MaxLine is the longest piece of a line that is one event, in bytes. Clients choke on frames of megabytes.
const MaxLine = 256 << 10

// Ending says how a piece of a line ends.
type Ending uint8

const (
	Open    Ending = iota // not yet: the data ran out
	Line                  // by a line feed, a carriage return or both
	Partial               // at MaxLine; the line goes on
	Joined                // no piece: a line feed that belongs to the carriage return before it
)

// Cutter cuts a stream of bytes into lines, pieces of at most MaxLine. Where it cuts depends on the bytes only, never
// on how they arrived. Its state is a small value: copying it forks the cutter. The zero value is at a line's start.
//
// A line ends at "\n", "\r\n" or "\r". A carriage return ends its line at once, so that a progress display shows
// without waiting for the next byte; a line feed that follows is swallowed. A piece is cut after the first
// whole UTF-8 character that leaves it with at least MaxLine-3 bytes, or at MaxLine where the bytes aren't UTF-8.
type Cutter struct {
	n    int32 // bytes of the unfinished piece, without terminator
	need uint8 // continuation bytes that the character at the end still needs; kept near MaxLine only
	cr   bool  // the byte before was a carriage return that ended a line
}

// Len is the number of bytes of the unfinished piece so far.
func (c Cutter) Len() int { return int(c.n) }

// nearEnd is where the cutter begins to look at characters: two whole ones before the earliest cut.
const nearEnd = MaxLine - 11

// Next looks for the end of the current piece in data, which must not be empty. The first text bytes belong to the
// piece; used bytes are done with, terminator included. With end Open all of data was used.
func (c *Cutter) Next(data []byte) (text, used int, end Ending) {
	if c.cr {
		c.cr = false
		if data[0] == '\n' {
			return 0, 1, Joined
		}
	}
	if room := nearEnd - int(c.n); room > 0 {
		part := data
		if len(part) > room {
			part = part[:room]
		}
		if i := terminator(part); i >= 0 {
			return c.line(data, i)
		}
		c.n += int32(len(part))
		if len(part) == len(data) {
			return len(data), len(data), Open
		}
		text = len(part)
	}
	for i := text; i < len(data); i++ {
		b := data[i]
		if b == '\n' || b == '\r' {
			return c.line(data, i)
		}
		c.n++
		switch {
		case b < 0x80 || b >= 0xF8:
			c.need = 0
		case b >= 0xF0:
			c.need = 3
		case b >= 0xE0:
			c.need = 2
		case b >= 0xC0:
			c.need = 1
		case c.need > 0:
			c.need--
		}
		if c.n >= MaxLine-3 && c.need == 0 || c.n >= MaxLine {
			*c = Cutter{}
			return i + 1, i + 1, Partial
		}
	}
	return len(data), len(data), Open
}

// line ends the piece at the terminator data[i].
func (c *Cutter) line(data []byte, i int) (text, used int, end Ending) {
	*c = Cutter{}
	if data[i] == '\r' {
		if i+1 == len(data) {
			c.cr = true
		} else if data[i+1] == '\n' {
			return i, i + 2, Line
		}
	}
	return i, i + 1, Line
}

// Skip moves the cutter over data without reporting where the cuts are.
func (c *Cutter) Skip(data []byte) {
	for len(data) > 0 {
		_, used, _ := c.Next(data)
		data = data[used:]
	}
}

// terminator returns the index of the first "\n" or "\r", or -1.
func terminator(p []byte) int {
	i := bytes.IndexByte(p, '\n')
	if i >= 0 {
		p = p[:i]
	}
	if j := bytes.IndexByte(p, '\r'); j >= 0 {
		return j
	}
	return i
}
