package jupyter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sampleRequest() request {
	return request{
		channel: shellChannel,
		header:  requestHeader{ID: "m1", Session: "s1", Date: "2026-01-02T03:04:05Z", Type: "execute_request", Version: protocolVersion},
		parent:  json.RawMessage(`{"msg_id":"p1"}`),
		content: map[string]any{"code": "print('<é>')"},
	}
}

func TestBothFramingsCarryTheSameMessage(t *testing.T) {
	for _, tc := range []struct {
		name  string
		v1    bool
		parse func([]byte) (message, error)
	}{{"v1", true, parseV1}, {"json", false, parseJSON}} {
		t.Run(tc.name, func(t *testing.T) {
			frame, err := sampleRequest().encode(tc.v1)
			if err != nil {
				t.Fatal(err)
			}
			m, err := tc.parse(frame)
			if err != nil {
				t.Fatal(err)
			}
			var content struct{ Code string }
			if err := json.Unmarshal(m.content, &content); err != nil {
				t.Fatal(err)
			}
			got := []string{m.channel, m.header.ID, m.header.Type, m.header.Session, m.parent, content.Code}
			if diff := cmp.Diff([]string{"shell", "m1", "execute_request", "s1", "p1", "print('<é>')"}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// withBuffers is a binary frame of the default framing.
func withBuffers(text string, buffers ...string) []byte {
	parts := append([]string{text}, buffers...)
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(parts)))
	at := 4 * (len(parts) + 1)
	for _, p := range parts {
		frame = binary.BigEndian.AppendUint32(frame, uint32(at))
		at += len(p)
	}
	for _, p := range parts {
		frame = append(frame, p...)
	}
	return frame
}

func TestBinaryFrameOfTheDefaultFramingIsRead(t *testing.T) {
	const text = `{"channel":"iopub","header":{"msg_id":"a","msg_type":"comm_msg"},"parent_header":{"msg_id":"p"},"content":{"x":1}}`
	for _, buffers := range [][]string{nil, {"12345", ""}} {
		m, err := parseBuffers(withBuffers(text, buffers...))
		if err != nil {
			t.Fatal(err)
		}
		if m.header.Type != "comm_msg" || m.parent != "p" || string(m.content) != `{"x":1}` {
			t.Errorf("%d buffers: got %+v", len(buffers), m)
		}
	}
}

func TestMessagesWithoutParentAreRead(t *testing.T) {
	for _, parent := range []string{`,"parent_header":null`, `,"parent_header":{}`, ``} {
		m, err := parseJSON([]byte(`{"channel":"iopub","header":{"msg_id":"a","msg_type":"status"}` + parent + `,"content":{}}`))
		if err != nil || m.parent != "" || m.header.Type != "status" {
			t.Errorf("%q: %+v, %v", parent, m, err)
		}
	}
	frame, err := request{channel: iopubChannel, header: requestHeader{Type: "status"}, parent: json.RawMessage("null"), content: emptyObject}.encode(true)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := parseV1(frame); err != nil || m.parent != "" || m.header.Type != "status" {
		t.Errorf("v1: %+v, %v", m, err)
	}
}

func TestMalformedFramesAreRefused(t *testing.T) {
	whole, err := sampleRequest().encode(true)
	if err != nil {
		t.Fatal(err)
	}
	huge := append([]byte(nil), whole...)
	binary.LittleEndian.PutUint64(huge, 1<<61)
	backwards := append([]byte(nil), whole...)
	binary.LittleEndian.PutUint64(backwards[16:], 1)
	for name, frame := range map[string][]byte{
		"empty": nil, "half": whole[:len(whole)/2], "count too large": huge, "offset backwards": backwards,
	} {
		if _, err := parseV1(frame); !errors.Is(err, errFrame) {
			t.Errorf("v1 %s: %v", name, err)
		}
	}
	for name, frame := range map[string]string{"empty": "", "half": `{"channel":"iopub","header":{"ms`, "no header": `{"channel":"iopub"}`, "array": `[]`} {
		if _, err := parseJSON([]byte(frame)); !errors.Is(err, errFrame) {
			t.Errorf("json %s: %v", name, err)
		}
	}
	if _, err := parseBuffers([]byte("{\"channel\":1}")); !errors.Is(err, errFrame) {
		t.Errorf("buffers: %v", err)
	}
}

// FuzzFrames feeds all three parsers: none may panic, and what is read lies within the frame.
func FuzzFrames(f *testing.F) {
	for _, v1 := range []bool{true, false} {
		frame, err := sampleRequest().encode(v1)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Add(withBuffers(`{"header":{"msg_type":"status"}}`, "abc"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, parse := range []func([]byte) (message, error){parseV1, parseJSON, parseBuffers} {
			m, err := parse(frame)
			if err != nil {
				if !errors.Is(err, errFrame) {
					t.Fatalf("untyped error %v", err)
				}
				continue
			}
			if len(m.content)+len(m.metadata) > len(frame) {
				t.Fatalf("content of %d and metadata of %d bytes from a frame of %d", len(m.content), len(m.metadata), len(frame))
			}
		}
	})
}
