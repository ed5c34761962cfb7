package server

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// feed sends what isn't an execution's events, one frame each.
type feed struct {
	w       http.ResponseWriter
	control *http.ResponseController
	lines   bool // bare JSON lines instead of SSE frames
	buf     []byte
}

// newFeed begins the answer and sends its header.
func newFeed(c echo.Context) *feed {
	f := &feed{w: c.Response(), control: http.NewResponseController(c.Response())}
	f.lines = accepted(c.Request().Header.Get("Accept")) == formatNDJSON
	h := f.w.Header()
	h.Set("Content-Type", typeSSE)
	if f.lines {
		h.Set("Content-Type", typeNDJSON)
	}
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	f.w.WriteHeader(http.StatusOK)
	f.control.Flush() // a client that is gone is found at the first event
	return f
}

// add appends one event, of JSON on one line, to what flush sends.
func (f *feed) add(event string, data []byte) {
	b := f.buf
	if !f.lines {
		if event != "" {
			b = append(append(append(b, "event: "...), event...), '\n')
		}
		b = append(b, "data: "...)
	}
	b = append(append(b, data...), '\n')
	if !f.lines {
		b = append(b, '\n')
	}
	f.buf = b
}

// flush sends what has been added. A client that accepts nothing for writeTimeout is an error.
func (f *feed) flush() error {
	f.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // none on this writer: nothing to set
	_, err := f.w.Write(f.buf)
	if f.buf = f.buf[:0]; cap(f.buf) > maxKeptBuffer {
		f.buf = nil
	}
	if err != nil {
		return err
	}
	return f.control.Flush()
}

// send sends one event.
func (f *feed) send(event string, data []byte) error {
	f.add(event, data)
	return f.flush()
}
