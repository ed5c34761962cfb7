package jupyter

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// subprotocol is the WebSocket subprotocol whose frames are split by offsets, so that the server needn't parse them.
const subprotocol = "v1.kernel.websocket.jupyter.org"

// Channels of a kernel (Jupyter messaging, "Introduction").
const (
	shellChannel   = "shell"
	controlChannel = "control"
	stdinChannel   = "stdin"
	iopubChannel   = "iopub"
)

// header is a message header with what we look at.
type header struct {
	ID      string `json:"msg_id"`
	Type    string `json:"msg_type"`
	Session string `json:"session"`
}

// message is one message from a kernel. Its raw parts are valid until the next one is read.
type message struct {
	channel  string
	header   header
	parent   string // msg_id of the request it belongs to; empty if it names none
	content  json.RawMessage
	metadata json.RawMessage
}

var errFrame = errors.New("malformed kernel frame")

// parseV1 reads a frame of the v1.kernel.websocket.jupyter.org subprotocol: a count of offsets, the offsets, and
// between them channel, header, parent header, metadata, content and buffers. All numbers are 64 bits,
// little-endian.
func parseV1(frame []byte) (message, error) {
	if len(frame) < 8 {
		return message{}, errFrame
	}
	n := binary.LittleEndian.Uint64(frame)
	if n < 6 || n > uint64(len(frame)/8-1) {
		return message{}, errFrame
	}
	var parts [5][]byte
	last := 8 * (n + 1)
	for i := range parts {
		from := binary.LittleEndian.Uint64(frame[8*(i+1):])
		to := binary.LittleEndian.Uint64(frame[8*(i+2):])
		if from < last || to < from || to > uint64(len(frame)) {
			return message{}, errFrame
		}
		parts[i], last = frame[from:to], from
	}
	m := message{channel: channelName(parts[0]), metadata: parts[3], content: parts[4]}
	if err := json.Unmarshal(parts[1], &m.header); err != nil {
		return message{}, fmt.Errorf("%w: header: %w", errFrame, err)
	}
	var parent header
	if len(parts[2]) > 2 { // {} is most of them
		if err := json.Unmarshal(parts[2], &parent); err != nil {
			return message{}, fmt.Errorf("%w: parent header: %w", errFrame, err)
		}
	}
	m.parent = parent.ID
	return m, nil
}

// parseJSON reads a text frame of the default framing.
func parseJSON(frame []byte) (message, error) {
	var m struct {
		Channel  string          `json:"channel"`
		Header   header          `json:"header"`
		Parent   header          `json:"parent_header"` // null and absent are fine
		Metadata json.RawMessage `json:"metadata"`
		Content  json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(frame, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errFrame, err)
	}
	if m.Header.Type == "" {
		return message{}, errFrame
	}
	return message{channel: m.Channel, header: m.Header, parent: m.Parent.ID, content: m.Content, metadata: m.Metadata}, nil
}

// parseBuffers reads a binary frame of the default framing: a count of parts, their offsets (32 bits, big-endian),
// the message as JSON, then its buffers.
func parseBuffers(frame []byte) (message, error) {
	if len(frame) < 8 {
		return message{}, errFrame
	}
	n := uint64(binary.BigEndian.Uint32(frame))
	if n < 1 || n > uint64(len(frame)/4-1) {
		return message{}, errFrame
	}
	from, to := uint64(binary.BigEndian.Uint32(frame[4:])), uint64(len(frame))
	if n > 1 {
		to = uint64(binary.BigEndian.Uint32(frame[8:]))
	}
	if from < 4*(n+1) || to < from || to > uint64(len(frame)) {
		return message{}, errFrame
	}
	return parseJSON(frame[from:to])
}

// channelName is string(b) without an allocation for the channels there are.
func channelName(b []byte) string {
	for _, name := range [...]string{iopubChannel, shellChannel, stdinChannel, controlChannel} {
		if string(b) == name {
			return name
		}
	}
	return string(b)
}

// request is a message to a kernel.
type request struct {
	channel string
	header  requestHeader
	parent  json.RawMessage // nil: none
	content any
}

type requestHeader struct {
	ID       string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Type     string `json:"msg_type"`
	Version  string `json:"version"`
}

// protocolVersion is the version of the messaging protocol that we speak.
const protocolVersion = "5.3"

var emptyObject = json.RawMessage("{}")

// encode makes a frame of r. The content is not HTML-escaped: it is mostly code.
func (r request) encode(v1 bool) ([]byte, error) {
	parent := r.parent
	if parent == nil {
		parent = emptyObject
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if !v1 {
		err := enc.Encode(struct {
			Channel  string          `json:"channel"`
			Header   requestHeader   `json:"header"`
			Parent   json.RawMessage `json:"parent_header"`
			Metadata json.RawMessage `json:"metadata"`
			Content  any             `json:"content"`
		}{r.channel, r.header, parent, emptyObject, r.content})
		return buf.Bytes(), err
	}
	const offsets = 6
	buf.Write(make([]byte, 8*(offsets+1)))
	place := [offsets]int{buf.Len()}
	buf.WriteString(r.channel)
	for i, part := range []any{r.header, parent, emptyObject, r.content} {
		place[i+1] = buf.Len()
		if err := enc.Encode(part); err != nil {
			return nil, err
		}
	}
	place[offsets-1] = buf.Len()
	frame := buf.Bytes()
	binary.LittleEndian.PutUint64(frame, offsets)
	for i, p := range place {
		binary.LittleEndian.PutUint64(frame[8*(i+1):], uint64(p))
	}
	return frame, nil
}
