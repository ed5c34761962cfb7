package sqlrun

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Answer receives what statements answer, in order: for each result set Columns, any number of Row, and Done; for a
// statement without one Done alone. A statement that fails has no Done. Its methods may block; so the server waits.
type Answer interface {
	Columns([]Column)
	// Row has a value for each column, as the server prints it; nil is NULL. They are valid during the call.
	Row(values [][]byte)
	Done(Summary)
}

// Column describes a column of a result set.
type Column struct {
	Name     string
	Type     string // the database's name of the type
	Nullable bool
	Bits     bool // never text, whatever the bytes: BIT, GEOMETRY, VECTOR
}

// Summary is what the server says at the end of a statement or a result set.
type Summary struct {
	Rows         bool // it was a result set
	AffectedRows uint64
	LastInsertID uint64
	Warnings     int
	Info         string // the server's own words, such as "Rows matched: 1  Changed: 1  Warnings: 0"; often empty
}

// First bytes of packets.
const (
	packetOK     = 0x00
	packetInfile = 0xFB
	packetEOF    = 0xFE
	packetError  = 0xFF
)

const (
	statusMore       = 0x0008
	capDeprecateEOF  = 1 << 24
	commandQuery     = 3
	codeLocalRefused = 4166 // ER_LOAD_INFILE_CAPABILITY_DISABLED
)

// reading is the answer to one COM_QUERY as it is read.
type reading struct {
	p      *packets
	eof    bool // results have EOF packets, as of old
	call   bool // the text begins with CALL
	to     Answer
	values [][]byte
	sets   int
	rows   bool // what is being read is a result set
	large  bool // a row was too large: nothing of what follows is reported
}

// errRow says that a row was too large to be reported.
var errRow = fmt.Errorf("a row is larger than %d MiB", MaxRow>>20)

// all reads until nothing more comes. An *Error or errRow leaves the connection in step; any other error doesn't.
func (r *reading) all() error {
	for {
		status, err := r.one()
		switch {
		case err != nil:
			return err
		case status&statusMore != 0:
		case r.large:
			return errRow
		default:
			return nil
		}
	}
}

// one reads the answer to one statement, or one of its result sets.
func (r *reading) one() (status uint16, err error) {
	r.rows = false
	b, err := r.p.read()
	if err != nil {
		return 0, err
	}
	if len(b) == 0 {
		return 0, errMalformed
	}
	switch b[0] {
	case packetError:
		return 0, parseError(b)
	case packetOK:
		s, status, err := parseOK(b)
		if err != nil {
			return 0, err
		}
		// The last packet of a CALL that gave sets says no more than that it is over.
		if silent := r.call && r.sets > 0 && status&statusMore == 0 && s.AffectedRows == 0; !silent && !r.large {
			r.to.Done(s)
		}
		return status, nil
	case packetInfile:
		return 0, r.refuseFile()
	}
	count, _, _, err := lenenc(b)
	if err != nil || count == 0 || count > 1<<16 {
		return 0, errMalformed
	}
	r.rows = true
	r.sets++
	return r.set(int(count))
}

// refuseFile answers a request for a local file with nothing. What the server makes of that is not reported.
func (r *reading) refuseFile() error {
	if err := r.p.write(make([]byte, 4), 2); err != nil {
		return err
	}
	if _, err := r.p.read(); err != nil {
		return err
	}
	return &Error{Code: codeLocalRefused, SQLState: "HY000", Message: "LOAD DATA LOCAL INFILE is not allowed: local files are not sent to the server"}
}

// set reads the columns and rows of a result set.
func (r *reading) set(count int) (status uint16, err error) {
	columns := make([]Column, count)
	for i := range columns {
		b, err := r.p.read()
		if err != nil {
			return 0, err
		}
		if columns[i], err = parseColumn(b); err != nil {
			return 0, err
		}
	}
	if r.eof {
		if _, err := r.p.read(); err != nil {
			return 0, err
		}
	}
	if !r.large {
		r.to.Columns(columns)
	}
	r.values = make([][]byte, count)
	for {
		b, err := r.p.read()
		switch {
		case errors.Is(err, errTooLarge):
			r.large = true
			continue
		case err != nil:
			return 0, err
		case len(b) == 0:
			return 0, errMalformed
		case b[0] == packetError:
			return 0, parseError(b)
		case b[0] == packetEOF && (len(b) < maxPacket && !r.eof || len(b) < 9):
			return r.endSet(b)
		}
		if r.large {
			continue
		}
		for i := range r.values {
			if r.values[i], b, err = text(b); err != nil {
				return 0, err
			}
		}
		r.to.Row(r.values)
	}
}

func (r *reading) endSet(b []byte) (status uint16, err error) {
	s := Summary{}
	if r.eof {
		if len(b) < 5 {
			return 0, errMalformed
		}
		s.Warnings, status = int(binary.LittleEndian.Uint16(b[1:])), binary.LittleEndian.Uint16(b[3:])
	} else if s, status, err = parseOK(b); err != nil {
		return 0, err
	}
	if s.Rows = true; !r.large {
		r.to.Done(s)
	}
	return status, nil
}

// parseOK reads an OK packet.
func parseOK(b []byte) (s Summary, status uint16, err error) {
	b = b[1:]
	if s.AffectedRows, _, b, err = lenenc(b); err != nil {
		return s, 0, err
	}
	if s.LastInsertID, _, b, err = lenenc(b); err != nil {
		return s, 0, err
	}
	if len(b) < 4 {
		return s, 0, errMalformed
	}
	status, s.Warnings = binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
	if b = b[4:]; len(b) > 0 { // MariaDB sends a length, MySQL the bare text
		if info, rest, err := text(b); err == nil && len(rest) == 0 {
			b = info
		}
		s.Info = string(b)
	}
	return s, status, nil
}
