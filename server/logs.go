package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/celld/celld/hooks"
	"github.com/labstack/echo/v4"
)

// maxLog is how much of a log one answer carries, in bytes.
const maxLog = 16 << 20

// commandLog is GET /command/{id}/logs: both streams merged, or one of them.
func (s *Server) commandLog(c echo.Context) error {
	e, err := s.controller.Execution(c.Param("id"))
	if err != nil {
		return err
	}
	switch stream := c.QueryParam("stream"); stream {
	case "":
		return sendLog(c, e.Log(), whole(e.Log()))
	case "stdout", "stderr":
		return sendLog(c, e.Log(), func(cursor int64) ([]hooks.Range, int64) {
			return e.Journal.Section(stream == "stderr", cursor, maxLog)
		})
	default:
		return badQuery("stream must be stdout or stderr, not %q", stream)
	}
}

// whole gives the bytes of a log that come after a cursor, as far as they fit into one answer, and the cursor after
// them. Bytes that are no longer kept are passed over.
func whole(log *hooks.Store) func(cursor int64) ([]hooks.Range, int64) {
	return func(cursor int64) ([]hooks.Range, int64) {
		base, end := log.Bounds()
		from := min(max(cursor, base), end)
		to := min(end, from+maxLog)
		return []hooks.Range{{From: from, To: to}}, to
	}
}

// sendLog answers with the bytes of a log that pick names for the cursor; the next cursor is in a header.
func sendLog(c echo.Context, log *hooks.Store, pick func(cursor int64) ([]hooks.Range, int64)) error {
	cursor := int64(0)
	if text := c.QueryParam("cursor"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return badQuery("cursor must be a number from 0, not %q", text)
		}
		cursor = n
	}
	base, _ := log.Bounds()
	ranges, next := pick(cursor)
	size := int64(0)
	for _, r := range ranges {
		size += r.To - r.From
	}
	h := c.Response().Header()
	h.Set(headerKeptFrom, strconv.FormatInt(base, 10))
	h.Set(headerCursor, strconv.FormatInt(next, 10))
	h.Set(echo.HeaderContentType, "text/plain; charset=utf-8")
	h.Set(echo.HeaderContentLength, strconv.FormatInt(size, 10))
	c.Response().WriteHeader(http.StatusOK)
	if headOnly(c) {
		return nil
	}
	control := http.NewResponseController(c.Response().Writer)
	defer control.SetWriteDeadline(time.Time{})
	buf := make([]byte, min(size, hooks.FlushBytes))
	for _, r := range ranges {
		for off := r.From; off < r.To; {
			n, err := log.ReadAt(buf[:min(int64(len(buf)), r.To-off)], off)
			if err != nil { // dropped since: the length that was promised can't be kept
				return abort(c)
			}
			control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := c.Response().Write(buf[:n]); err != nil {
				return abort(c)
			}
			off += int64(n)
		}
	}
	return nil
}
