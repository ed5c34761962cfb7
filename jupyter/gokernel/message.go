package gokernel

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const protocolVersion = "5.3"

// delimiter stands between the routing ids and the message (Jupyter messaging, "The Wire Protocol").
var delimiter = []byte("<IDS|MSG>")

var errSignature = errors.New("a message with a wrong signature")

// header is a message header.
type header struct {
	ID       string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Type     string `json:"msg_type"`
	Version  string `json:"version"`
}

// request is a message from a client.
type request struct {
	header  header
	raw     json.RawMessage // the header as it came: the parent of what answers it
	content json.RawMessage
	from    *peer
}

// signer makes and checks messages of one kernel.
type signer struct {
	key     []byte // empty: messages aren't signed
	session string // the kernel's name for itself
}

func (s *signer) sign(parts [][]byte) []byte {
	if len(s.key) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, s.key)
	for _, p := range parts {
		mac.Write(p)
	}
	return []byte(hex.EncodeToString(mac.Sum(nil)))
}

// decode reads the frames of a message.
func (s *signer) decode(frames [][]byte) (request, error) {
	for len(frames) > 0 && !bytes.Equal(frames[0], delimiter) {
		frames = frames[1:]
	}
	if len(frames) < 6 {
		return request{}, fmt.Errorf("a message of %d parts", len(frames))
	}
	if want := s.sign(frames[2:6]); !hmac.Equal(want, frames[1]) {
		return request{}, errSignature
	}
	r := request{raw: frames[2], content: frames[5]}
	if err := json.Unmarshal(frames[2], &r.header); err != nil {
		return request{}, fmt.Errorf("read a header: %w", err)
	}
	return r, nil
}

// encode makes the frames of a message; parent is the header of the request it belongs to, or nil.
func (s *signer) encode(kind string, parent json.RawMessage, content any) ([][]byte, error) {
	head, err := json.Marshal(header{
		ID: newID(), Session: s.session, Username: "kernel", Type: kind, Version: protocolVersion,
		Date: time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
	})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(content); err != nil {
		return nil, fmt.Errorf("write a %s: %w", kind, err)
	}
	if parent == nil {
		parent = json.RawMessage("{}")
	}
	parts := [][]byte{head, parent, []byte("{}"), body.Bytes()}
	return append([][]byte{delimiter, s.sign(parts)}, parts...), nil
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
