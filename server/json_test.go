package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzJSONStringMeansTheSameText(f *testing.F) {
	for _, s := range []string{"", "plain", "a\"b\\c\n\r\t\x00\x1f\x7f", "é漢😀", "a\xffb", "\xf0\x9f", "x\u0085y\u2028z\u2029", "<&>"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out := appendJSON([]byte("x"), in)[1:]
		if !utf8.Valid(out) {
			t.Fatalf("%q is not UTF-8", out)
		}
		if i := bytes.IndexFunc(out, func(r rune) bool { return r < ' ' || r == 0x85 || r == 0x2028 || r == 0x2029 }); i >= 0 {
			t.Fatalf("%q has a character that clients split lines at", out)
		}
		var got string
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if want := string([]rune(string(in))); got != want { // a bad byte is one U+FFFD
			t.Fatalf("%q became %q, want %q", in, got, want)
		}
	})
}

func FuzzJSONValueStaysTheSame(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":null}]}`, "{\n \"x\" :\r\n 1 }", "\"a\u0085\u2028\u2029é\"", `1e400`, `"<b>&</b>"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if !json.Valid(in) {
			t.Skip("not a JSON value")
		}
		out := appendJSONValue(nil, in)
		if bytes.ContainsAny(out, "\n\r") || strings.ContainsAny(string(out), "\u0085\u2028\u2029") {
			t.Fatalf("%q has a line end", out)
		}
		var a, b any
		da, db := json.NewDecoder(bytes.NewReader(in)), json.NewDecoder(bytes.NewReader(out))
		da.UseNumber()
		db.UseNumber()
		if err := da.Decode(&a); err != nil {
			t.Skip("nested too deeply")
		}
		if err := db.Decode(&b); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if !bytes.Equal(x, y) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}

func TestAppendJSONDoesNotAllocate(t *testing.T) {
	line := []byte(strings.Repeat("x", 90) + "é\"\xff")
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = appendJSON(buf[:0], line) }); n != 0 {
		t.Errorf("%v allocations a line", n)
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	text := []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 640))
	buf := make([]byte, 0, 2*len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		buf = appendJSON(buf[:0], text)
	}
}
