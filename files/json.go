package files

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"strconv"
	"time"
	"unicode/utf8"
)

// AppendJSON appends i to b as the wire has it: path, type, size, modified_at, created_at (RFC 3339, UTC), owner,
// group, mode (octal written in decimal digits), and where they apply target, path_base64, target_base64 and error.
func (i *Info) AppendJSON(b []byte) []byte {
	b = appendString(append(b, `{"path":`...), i.Path)
	b = append(append(append(b, `,"type":"`...), i.Type...), '"')
	b = strconv.AppendInt(append(b, `,"size":`...), i.Size, 10)
	b = appendTime(append(b, `,"modified_at":`...), i.Modified)
	b = appendTime(append(b, `,"created_at":`...), i.Created)
	b = appendString(append(b, `,"owner":`...), i.Owner)
	b = appendString(append(b, `,"group":`...), i.Group)
	// Octal digits without a leading zero are the decimal number the wire wants.
	b = strconv.AppendUint(append(b, `,"mode":`...), uint64(i.Mode), 8)
	b = appendBase64(b, `,"path_base64":`, i.Path)
	if i.Type == TypeSymlink && i.Err == nil {
		b = appendString(append(b, `,"target":`...), i.Target)
		b = appendBase64(b, `,"target_base64":`, i.Target)
	}
	if i.Err != nil {
		b = appendString(append(b, `,"error":`...), i.Err.Error())
	}
	return append(b, '}')
}

// AppendJSONMap appends an object to b that has infos[k] under paths[k], as Infos returned them. Paths that read
// the same, or the same after repair (see the package comment), share one key and the last one's description.
func AppendJSONMap(b []byte, paths []string, infos []Info) []byte {
	last := make(map[string]int, len(paths))
	keys := make([]string, len(paths))
	for k, path := range paths {
		keys[k] = string(appendString(nil, path))
		last[keys[k]] = k
	}
	b = append(b, '{')
	first := true
	for k := range paths {
		if last[keys[k]] != k {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(append(b, keys[k]...), ':')
		b = infos[k].AppendJSON(b)
	}
	return append(b, '}')
}

// ArrayWriter writes Infos as one JSON array, each as it comes. One goroutine uses it. Nothing reaches the writer
// before some 32 KiB are there or Close is called.
type ArrayWriter struct {
	w     io.Writer
	buf   []byte
	began bool
}

// NewArrayWriter returns an ArrayWriter to w.
func NewArrayWriter(w io.Writer) *ArrayWriter { return &ArrayWriter{w: w} }

const arrayFlush = 32 << 10

// Add writes i. Its error is the underlying writer's.
func (a *ArrayWriter) Add(i *Info) error {
	if a.began {
		a.buf = append(a.buf, ',')
	} else {
		a.buf = append(a.buf, '[')
		a.began = true
	}
	a.buf = i.AppendJSON(a.buf)
	if len(a.buf) < arrayFlush {
		return nil
	}
	_, err := a.w.Write(a.buf)
	a.buf = a.buf[:0]
	return err
}

// Close ends the array and writes what is left; it doesn't close the underlying writer.
func (a *ArrayWriter) Close() error {
	if !a.began {
		a.buf = append(a.buf, '[')
	}
	_, err := a.w.Write(append(a.buf, ']'))
	return err
}

// appendString appends s as a JSON string. Plain text, nearly every path, is copied; encoding/json does the rest.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string can't fail
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendBase64(b []byte, key, s string) []byte {
	if utf8.ValidString(s) {
		return b
	}
	b = append(append(b, key...), '"')
	return append(base64.StdEncoding.AppendEncode(b, []byte(s)), '"')
}

func appendTime(b []byte, t time.Time) []byte {
	if y := t.Year(); y < 0 || y > 9999 {
		t = time.Unix(0, 0).UTC() // RFC 3339 has no such year, and some file systems can be made to say one
	}
	return append(t.AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}
