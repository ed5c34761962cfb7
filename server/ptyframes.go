package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/celld/celld/internal/exactjson"
	"github.com/celld/celld/openapi"
	"github.com/gorilla/websocket"
)

// First bytes of a terminal's binary messages.
const (
	frameStdin  = 0x00
	frameStdout = 0x01
	frameStderr = 0x02
	frameReplay = 0x03 // then 8 bytes of offset
)

const (
	maxPTYText = 8 << 20 // bytes of a text message

	// replayTries is how often a replay begins again that was overtaken by new output before any of it was sent.
	replayTries = 16
)

// replayAndFollow sends what was printed from since on, then what is printed, until the end.
func (k *ptySocket) replayAndFollow() error {
	for try := 1; ; try++ {
		w := newTerminalWriter(k)
		if w.pos >= w.until {
			if err := w.goLive(); err != nil {
				return err
			}
		}
		err := k.e.Journal.Follow(k.ctx, w.pos, w)
		w.drop()
		if !errors.Is(err, hooks.ErrLagged) || w.live || try == replayTries {
			return err
		}
	}
}

// terminalWriter makes a terminal's frames of its events. Before it goes live it collects what is to be replayed; then
// each batch of output is a message, or one for each change between stdout and stderr. It implements hooks.Writer.
//
// Positions and offsets: a terminal's journal has nothing but OnInit before the end of its output, so that the byte
// after position p is the one at offset p-1.
type terminalWriter struct {
	k     *ptySocket
	pos   int64 // position of the last byte that was taken
	until int64 // the replay goes to here
	live  bool
	frame *[]byte // under construction; nil when there is none
	fault error
	exit  *openapi.PTYServerMessage
}

func newTerminalWriter(k *ptySocket) *terminalWriter {
	until, _ := k.e.Journal.Position()
	_, end := k.e.Log().Bounds() // after Position, so not before it
	from := max(min(k.since, end), end-backends.MaxReplay)
	if k.holder != nil {
		k.holder.Taken(from)
	}
	return &terminalWriter{k: k, pos: from + 1, until: until}
}

// OnInit implements hooks.Hooks.
func (w *terminalWriter) OnInit(hooks.Init) {}

// OnResult implements hooks.Hooks. Terminals have no results.
func (w *terminalWriter) OnResult(hooks.Result) {}

// OnStatus implements hooks.Hooks.
func (w *terminalWriter) OnStatus(e hooks.Status) {
	if e.State != hooks.StateGap {
		return
	}
	if w.live || w.frame != nil {
		w.fault = hooks.ErrLagged
		return
	}
	w.pos = max(w.pos, e.To) // the replay begins there
}

// OnStdout implements hooks.Hooks.
func (w *terminalWriter) OnStdout(o hooks.Output) { w.output(frameStdout, o) }

// OnStderr implements hooks.Hooks.
func (w *terminalWriter) OnStderr(o hooks.Output) { w.output(frameStderr, o) }

func (w *terminalWriter) output(kind byte, o hooks.Output) {
	if o.EID <= w.pos || o.End { // given again since a line begins there
		return
	}
	from := max(w.pos, o.EID-int64(len(o.Data)))
	data := o.Data[int64(len(o.Data))-(o.EID-from):]
	if !w.live {
		kind = frameReplay
	}
	if w.frame != nil && (*w.frame)[0] != kind {
		w.send()
	}
	if w.frame == nil {
		w.frame = w.k.s.frames.Get().(*[]byte)
		*w.frame = append((*w.frame)[:0], kind)
		if kind == frameReplay {
			*w.frame = binary.BigEndian.AppendUint64(*w.frame, uint64(from-1))
		}
	}
	*w.frame = append(*w.frame, data...)
	w.pos = o.EID
}

// OnError implements hooks.Hooks.
func (w *terminalWriter) OnError(e hooks.Failure) {
	switch {
	case e.ExitCode != nil:
		w.exit = &openapi.PTYServerMessage{Type: openapi.PTYServerMessageTypeExit, ExitCode: e.ExitCode}
	case w.k.t.Failed():
		w.exit = failure(openapi.PTYServerMessageCodeStartFailed, e.Value)
	default:
		w.exit = failure(openapi.PTYServerMessageCodeRuntimeError, e.Value)
	}
}

// OnComplete implements hooks.Hooks.
func (w *terminalWriter) OnComplete(e hooks.Complete) {
	w.exit = &openapi.PTYServerMessage{Type: openapi.PTYServerMessageTypeExit, ExitCode: e.ExitCode}
}

// Flush implements hooks.Writer.
func (w *terminalWriter) Flush() error {
	if !w.live && w.fault == nil && (w.pos >= w.until || w.exit != nil) {
		w.fault = w.goLive()
	}
	if !w.live {
		return w.fault
	}
	w.send()
	if w.fault == nil && w.exit != nil {
		w.fault = w.k.tell(w.exit)
	}
	if w.fault == nil && w.k.holder != nil {
		w.k.holder.Taken(w.pos - 1)
	}
	return w.fault
}

// goLive sends the replay, if there is any, and that the client is connected.
func (w *terminalWriter) goLive() error {
	if w.send(); w.fault != nil {
		return w.fault
	}
	w.live = true
	mode, role, offset := terminalMode(w.k.t), openapi.PTYServerMessageRoleViewer, w.pos-1
	if w.k.holder != nil {
		role = openapi.PTYServerMessageRoleHolder
	}
	return w.k.tell(&openapi.PTYServerMessage{
		Type: openapi.PTYServerMessageTypeConnected, SessionID: &w.k.e.ID, Mode: &mode, Role: &role, Offset: &offset,
	})
}

// send sends the frame, if there is one and the client wants it.
func (w *terminalWriter) send() {
	if w.frame == nil || w.fault != nil {
		return
	}
	if w.fault = w.k.unpaused(); w.fault == nil {
		w.fault = w.k.write(websocket.BinaryMessage, *w.frame)
	}
	w.drop()
}

// drop gives the frame's buffer back; that of a large replay is left to the garbage collector.
func (w *terminalWriter) drop() {
	if w.frame != nil && cap(*w.frame) <= 4*hooks.FlushBytes {
		w.k.s.frames.Put(w.frame)
	}
	w.frame = nil
}

func failure(code openapi.PTYServerMessageCode, text string) *openapi.PTYServerMessage {
	return &openapi.PTYServerMessage{Type: openapi.PTYServerMessageTypeError, Code: &code, Error: &text}
}

// tell sends a text message.
func (k *ptySocket) tell(m *openapi.PTYServerMessage) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return k.write(websocket.TextMessage, text)
}

// fault queues an error for the client.
func (k *ptySocket) fault(code openapi.PTYServerMessageCode, err error) {
	text, _ := json.Marshal(failure(code, err.Error())) // strings only: never fails
	k.reply(websocket.TextMessage, text)
}

// read takes what the client sends until the connection ends.
func (k *ptySocket) read() {
	k.conn.SetPingHandler(func(text string) error {
		k.alive()
		k.reply(websocket.PongMessage, []byte(text))
		return nil
	})
	closed := k.conn.CloseHandler()
	k.conn.SetCloseHandler(func(code int, text string) error {
		k.release() // before the client can know that we know
		return closed(code, text)
	})
	k.conn.SetPongHandler(func(string) error {
		k.alive()
		return nil
	})
	k.alive()
	buf := make([]byte, 4<<10)
	for {
		kind, r, err := k.conn.NextReader()
		if err != nil {
			return
		}
		k.alive()
		if kind == websocket.BinaryMessage {
			err = k.binary(r, buf)
		} else {
			err = k.text(r)
		}
		if err != nil {
			return
		}
	}
}

// binary takes a binary message, in pieces. What remains of a message that isn't wanted is passed over by the next
// NextReader. The error is the connection's.
func (k *ptySocket) binary(r io.Reader, buf []byte) error {
	n, err := r.Read(buf[:1])
	switch {
	case err == io.EOF:
		k.fault(openapi.PTYServerMessageCodeInvalidFrame, errors.New("the message is empty"))
		return nil
	case err != nil || n == 0:
		return err
	case buf[0] != frameStdin:
		k.fault(openapi.PTYServerMessageCodeInvalidFrame, errors.New("a binary message begins with a zero byte, then comes input"))
		return nil
	}
	for k.mayType() {
		n, err := r.Read(buf)
		if n > 0 && !k.took(k.holder.Write(k.ctx, buf[:n])) {
			return nil
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		k.alive()
	}
	return nil
}

func (k *ptySocket) mayType() bool {
	if k.holder == nil {
		k.fault(openapi.PTYServerMessageCodeReadOnly, errors.New("a viewer can't do this"))
	}
	return k.holder != nil
}

// took says whether the program has taken its input, with err, and more of the message is wanted.
func (k *ptySocket) took(err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, backends.ErrInputFull):
		k.fault(openapi.PTYServerMessageCodeInputFull, err)
	case errors.Is(err, backends.ErrInputClosed):
		k.fault(openapi.PTYServerMessageCodeInputClosed, err)
	}
	return false // the end has come: who sends it says so
}

// text takes a text message. The error is the connection's.
func (k *ptySocket) text(r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, maxPTYText+1))
	if err != nil {
		return err
	}
	var m openapi.PTYClientMessage
	if len(text) > maxPTYText {
		err = errors.New("the message is too long")
	} else if err = decodeJSON(text, &m, exactjson.Ignore); err == nil {
		err = k.handle(&m)
	}
	if err != nil {
		k.fault(openapi.PTYServerMessageCodeInvalidFrame, err)
	}
	return nil
}

// handle does what a text message asks for. Its error says what is wrong with the message.
func (k *ptySocket) handle(m *openapi.PTYClientMessage) error {
	switch m.Type {
	case openapi.PTYClientMessageTypePing:
		text, err := json.Marshal(openapi.PTYServerMessage{Type: openapi.PTYServerMessageTypePong})
		k.reply(websocket.TextMessage, text)
		return err
	case openapi.PTYClientMessageTypePause, openapi.PTYClientMessageTypeResume:
		k.pause(m.Type == openapi.PTYClientMessageTypePause)
		return nil
	case openapi.PTYClientMessageTypeStdin:
		if m.Data == nil && !value(m.EOF) {
			return errors.New("data is missing")
		}
		if k.mayType() && (m.Data == nil || k.took(k.holder.Write(k.ctx, []byte(*m.Data)))) && value(m.EOF) {
			k.took(k.holder.EndInput(k.ctx))
		}
		return nil
	case openapi.PTYClientMessageTypeResize:
		if m.Cols == nil || m.Rows == nil {
			return errors.New("cols or rows is missing")
		}
		if k.mayType() {
			return k.holder.Resize(*m.Cols, *m.Rows)
		}
		return nil
	case openapi.PTYClientMessageTypeSignal:
		return k.signal(string(value(m.Signal)))
	}
	return badRequest("unknown type %q: want stdin, resize, signal, ping, pause or resume", m.Type)
}

func (k *ptySocket) signal(name string) error {
	sig, err := signalNamed(name)
	if err != nil || !k.mayType() || !k.holder.Holds() {
		return err
	}
	if err := k.e.Handle().Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) && context.Cause(k.ctx) == nil {
		k.fault(openapi.PTYServerMessageCodeRuntimeError, err)
	}
	return nil
}
