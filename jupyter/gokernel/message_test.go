package gokernel

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMessagesAreSigned(t *testing.T) {
	s := &signer{key: []byte("secret"), session: "s"}
	frames, err := s.encode("status", nil, state{"<busy>"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.decode(append([][]byte{[]byte("an id")}, frames...))
	if err != nil || r.header.Type != "status" || r.header.Session != "s" || !bytes.Contains(r.content, []byte("<busy>")) {
		t.Errorf("decoded %+v %s: %v", r.header, r.content, err)
	}
	if _, err := (&signer{key: []byte("other")}).decode(frames); !errors.Is(err, errSignature) {
		t.Errorf("with another key: %v", err)
	}
	frames[5] = []byte(`{"execution_state":"idle"}`)
	if _, err := s.decode(frames); !errors.Is(err, errSignature) {
		t.Errorf("changed on its way: %v", err)
	}
	if _, err := s.decode(frames[:3]); err == nil {
		t.Error("half a message was taken")
	}
	unsigned := &signer{}
	if frames, err = unsigned.encode("status", nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := unsigned.decode(frames); err != nil {
		t.Errorf("without a key: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("<IDS|MSG>,,{\"msg_type\":\"x\"},{},{},{}"))
	f.Add([]byte(",,,"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := (&signer{}).decode(bytes.Split(text, []byte(",")))
		if err == nil && r.raw == nil {
			t.Errorf("%q has no header", text)
		}
	})
}

func TestConnectionFilesThatCannotBeServedAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.json")
	for text, want := range map[string]string{
		"{":                    "connection file",
		`{"transport":"epgm"}`: "transport epgm",
		`{"key":"k","signature_scheme":"hmac-md5"}`: "hmac-md5",
		`{"ip":"192.0.2.1","shell_port":1}`:         "bind",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Serve(t.Context(), file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := Serve(t.Context(), file+".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
