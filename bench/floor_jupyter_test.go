package main

import (
	"bytes"
	"testing"
)

func TestMessagesComeOutAsTheyWentIn(t *testing.T) {
	want := [][]byte{[]byte("shell"), []byte("{1}"), nil, []byte("{}"), []byte("long text"), []byte("buffer")}
	got, err := unframe(frame("shell", want[1:]...))
	if err != nil || len(got) != len(want) {
		t.Fatalf("%q, %v", got, err)
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("part %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func FuzzUnframe(f *testing.F) {
	f.Add(frame("shell", []byte("{}"), []byte("{}"), []byte("{}"), []byte("{}")))
	f.Add([]byte("\x06\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, msg []byte) {
		parts, err := unframe(msg)
		if err == nil && len(parts) < 5 {
			t.Errorf("%d parts and no error", len(parts))
		}
	})
}
