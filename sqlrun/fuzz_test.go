package sqlrun

import (
	"bufio"
	"bytes"
	"net"
	"testing"
)

// FuzzAnswer gives bytes for what a server sends: they may be refused, and nothing else may happen.
func FuzzAnswer(f *testing.F) {
	packet := func(seq byte, payload string) string { return string([]byte{byte(len(payload)), 0, 0, seq}) + payload }
	f.Add([]byte(packet(1, "\x00\x01\x02\x02\x00\x00\x00info")), false)
	f.Add([]byte(packet(1, "\xff\x15\x04#28000Access denied")), true)
	column := packet(2, "\x03def\x00\x00\x00\x01a\x00\x0c\x3f\x00\x01\x00\x00\x00\x08\x81\x00\x00\x00\x00")
	f.Add([]byte(packet(1, "\x01")+column+packet(3, "\x011")+packet(4, "\xfb")+packet(5, "\xfe\x00\x00\x02\x00\x00\x00")), false)
	f.Add([]byte(packet(1, "\x01")+column+packet(3, "\xfe\x00\x00\x02\x00")+packet(4, "\x011")+packet(5, "\xfe\x00\x00\x02\x00")), true)
	f.Fuzz(func(t *testing.T, data []byte, old bool) {
		nowhere, other := net.Pipe()
		nowhere.Close()
		other.Close()
		p := &packets{w: nowhere, r: bufio.NewReaderSize(bytes.NewReader(data), readBuffer)}
		to := new(recorder)
		r := &reading{p: p, eof: old, to: to}
		if err := r.all(); err == nil && len(to.done) == 0 {
			t.Error("a success without an end")
		}
		for _, row := range to.rows {
			if len(to.columns) == 0 || len(row) == 0 {
				t.Error("a row without columns")
			}
		}
	})
}
