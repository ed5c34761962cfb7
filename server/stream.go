package server

import (
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/celld/celld/backends"
	"github.com/celld/celld/hooks"
	"github.com/labstack/echo/v4"
)

// writeTimeout is how long a client may accept nothing before it counts as gone.
const writeTimeout = hooks.StallTimeout

// maxKeptBuffer is the largest buffer that a stream keeps from one batch to the next, in bytes.
const maxKeptBuffer = 1 << 20

// stream sends events over HTTP: what the journal gives is encoded into one buffer, which is written and flushed when
// the journal has nothing more. The header goes out with the first event. It implements hooks.Writer, hooks.Idler and
// hooks.Pacer.
type stream struct {
	*encoder
	w        http.ResponseWriter
	control  *http.ResponseController
	started  bool
	over     bool         // the terminal event is in buf
	accepted atomic.Int64 // when the client last took something, in Unix nanoseconds
}

// format is the form in which a client wants events.
type format uint8

const (
	formatSSE format = iota
	formatNDJSON
	formatJSON // one answer at the end
)

const (
	typeSSE    = "text/event-stream"
	typeNDJSON = "application/x-ndjson"
	typeJSON   = "application/json"
)

// accepted returns the form that an Accept header asks for. One JSON answer is for who asks for JSON and would not take
// a stream: clients that take anything get the stream.
func accepted(header string) format {
	asksJSON, takesStream := false, false
	for part := range strings.SplitSeq(header, ",") {
		t, _, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		switch t {
		case typeNDJSON:
			return formatNDJSON
		case typeJSON:
			asksJSON = true
		case typeSSE, "*/*", "text/*":
			takesStream = true
		}
	}
	if asksJSON && !takesStream {
		return formatJSON
	}
	return formatSSE
}

// reply is a writer that owns the answer to a request. finish is called after the last event.
type reply interface {
	hooks.Writer
	finish() error
}

// newReply makes the writer that the client asks for.
func (s *Server) newReply(c echo.Context, e *backends.Execution, mode hooks.Mode, after int64) reply {
	if accepted(c.Request().Header.Get("Accept")) == formatJSON {
		return newAnswer(c, e, mode, after)
	}
	return s.newStream(c, mode, after)
}

func newStream(w http.ResponseWriter, r *http.Request, mode hooks.Mode, after int64) *stream {
	lines := accepted(r.Header.Get("Accept")) == formatNDJSON
	return &stream{encoder: newEncoder(mode, after, lines), w: w, control: http.NewResponseController(w)}
}

func (s *stream) start() {
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", typeSSE)
	if s.lines {
		h.Set("Content-Type", typeNDJSON)
	}
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

// Flush implements hooks.Writer.
func (s *stream) Flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	if !s.started {
		s.start()
	}
	if err := send(s.w, s.control, s.buf, &s.accepted); err != nil {
		return err
	}
	if s.buf = s.buf[:0]; cap(s.buf) > maxKeptBuffer {
		s.buf = nil
	}
	if s.over {
		return nil // net/http sends it with the end of the answer, in one write
	}
	return s.control.Flush()
}

// send writes b in parts, each of which the client has to take within writeTimeout. accepted, if not nil, is told when it
// did.
func send(w http.ResponseWriter, control *http.ResponseController, b []byte, accepted *atomic.Int64) error {
	for len(b) > 0 {
		part := b[:min(len(b), 4*hooks.FlushBytes)]
		b = b[len(part):]
		control.SetWriteDeadline(time.Now().Add(writeTimeout)) // no deadlines on this writer: nothing to set
		if _, err := w.Write(part); err != nil {
			return err
		}
		if accepted != nil {
			accepted.Store(time.Now().UnixNano())
		}
	}
	return nil
}

// Accepted implements hooks.Pacer.
func (s *stream) Accepted() time.Time { return time.Unix(0, s.accepted.Load()) }

// OnError implements hooks.Hooks.
func (s *stream) OnError(e hooks.Failure) {
	s.over = true
	s.encoder.OnError(e)
}

// OnComplete implements hooks.Hooks.
func (s *stream) OnComplete(e hooks.Complete) {
	s.over = true
	s.encoder.OnComplete(e)
}

// Idle implements hooks.Idler.
func (s *stream) Idle() error {
	s.ping(hooks.Stamp{Time: time.Now()})
	return s.Flush()
}

// finish implements reply. Where nothing followed the position that was asked for, that is the answer. The deadline stays
// for the end of the answer; the connection's next request clears it.
func (s *stream) finish() error {
	if !s.started {
		s.w.WriteHeader(http.StatusNoContent)
	}
	return nil
}
