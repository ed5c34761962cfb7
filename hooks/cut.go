package hooks

import "bytes"

// MaxLine is the longest piece of a line that is one event, in bytes. Clients choke on frames of megabytes.
const MaxLine = 256 << 10

// Ending says how a piece of a line ends.
type Ending uint8

const (
	Open    Ending = iota // not yet: the data ran out
	Line                  // by a line feed, a carriage return or both
	Partial               // the piece is full and the line goes on
	Joined                // no piece: a line feed that belongs to the carriage return before it
)

// Cutter cuts a stream of bytes into lines, and lines into pieces of at most MaxLine. Where it cuts depends on the
// bytes only, never on how they arrived. Its state is a small value: copying it forks the cutter. The zero value is at
// a line's start.
//
// A line ends at "\n", "\r\n" or "\r". A carriage return ends its line at once, so that a progress display shows
// without waiting for the next byte; a line feed that follows is swallowed. A piece is full after the first whole
// UTF-8 character that leaves it with at least MaxLine-3 bytes, or at MaxLine where the bytes aren't UTF-8. It is cut
// when the next byte of the line comes, so that the last piece of a line is never empty.
type Cutter struct {
	n    int32 // bytes of the unfinished piece, without terminator
	need uint8 // continuation bytes that the character at the end still needs; kept near MaxLine only
	cr   bool  // the byte before was a carriage return that ended a line
}

// Len is the number of bytes of the unfinished piece so far. It is 0 exactly when the stream is at a line's start.
func (c Cutter) Len() int { return int(c.n) }

// nearEnd is where the cutter begins to look at characters: two whole ones before a piece can be full.
const nearEnd = MaxLine - 11

func (c *Cutter) full() bool { return c.n >= MaxLine-3 && c.need == 0 || c.n >= MaxLine }

// Next looks for the end of the current piece in data, which must not be empty. The first text bytes belong to the
// piece; used bytes are done with, terminator included. With end Open all of data was used. With Partial, text and
// used are where the next piece begins, and may be 0.
func (c *Cutter) Next(data []byte) (text, used int, end Ending) {
	if c.cr {
		c.cr = false
		if data[0] == '\n' {
			return 0, 1, Joined
		}
	}
	i := 0
	if room := nearEnd - int(c.n); room > 0 {
		part := data[:min(room, len(data))]
		if at := terminator(part); at >= 0 {
			return c.line(data, at)
		}
		i = len(part)
		c.n += int32(i)
	}
	for ; i < len(data); i++ {
		b := data[i]
		if b == '\n' || b == '\r' {
			return c.line(data, i)
		}
		if c.full() {
			*c = Cutter{}
			return i, i, Partial
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

// Skip moves the cutter over data without reporting where the cuts are. It looks at the last line only.
func (c *Cutter) Skip(data []byte) {
	if i := last(data, '\n'); i >= 0 {
		data = data[i+1:]
		*c = Cutter{}
	}
	if i := last(data, '\r'); i >= 0 {
		data = data[i+1:]
		*c = Cutter{cr: len(data) == 0}
	}
	for len(data) > 0 {
		_, used, _ := c.Next(data)
		data = data[used:]
	}
}

// last is bytes.LastIndexByte, fast where b isn't there at all.
func last(p []byte, b byte) int {
	first := bytes.IndexByte(p, b)
	if first < 0 {
		return -1
	}
	return first + bytes.LastIndexByte(p[first:], b)
}

// terminator returns the index of the first "\n" or "\r", or -1. It goes in growing steps, so that lines that all end
// in one of them don't each cost a search of everything for the other.
func terminator(p []byte) int {
	for at, size := 0, 128; at < len(p); at, size = at+size, min(2*size, 4096) {
		part := p[at:min(at+size, len(p))]
		i := bytes.IndexByte(part, '\n')
		if i >= 0 {
			part = part[:i]
		}
		if j := bytes.IndexByte(part, '\r'); j >= 0 {
			return at + j
		}
		if i >= 0 {
			return at + i
		}
	}
	return -1
}
