package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

const (
	// maxWatches is how many directories may be watched at once: the system has 128 for each user, and others need some.
	maxWatches = 32
	// feedSilence is after how long without a change a ping is sent.
	feedSilence = 10 * time.Second
)

// watchFiles is GET /files/watch. The header goes out when the watch is set up.
func (s *Server) watchFiles(c echo.Context) error {
	path, err := queryPath(c.QueryParams())
	if err != nil {
		return err
	}
	recursive, err := queryFlag(c.QueryParams(), "recursive")
	if err != nil {
		return err
	}
	if s.watches.Add(1) > maxWatches {
		s.watches.Add(-1)
		return &problem{http.StatusTooManyRequests, openapi.ErrorCodeLimitExceeded, fmt.Sprintf("there are %d watches already, which is the limit", maxWatches)}
	}
	defer s.watches.Add(-1)
	ctx, done := s.during(c.Request().Context())
	defer done()
	w, err := s.config.Files.Watch(ctx, path, recursive)
	if err != nil {
		return unlessGone(c, err)
	}
	defer w.Close()
	feed := newFeed(c)
	for {
		waiting, cancel := context.WithTimeout(ctx, feedSilence)
		changes, err := w.Next(waiting)
		cancel()
		switch {
		case c.Request().Context().Err() != nil:
			return abort(c)
		case ctx.Err() != nil, errors.Is(err, fs.ErrClosed): // celld stops, or the directory is gone: there is no more
			return nil
		case err != nil:
			w.Idle()
			err = feed.send("ping", fmt.Appendf(nil, `{"type":"ping","timestamp":%d}`, time.Now().UnixMilli()))
		}
		for i := range changes {
			feed.add(string(changes[i].Type), changes[i].AppendJSON(nil, time.Now()))
		}
		if err == nil && len(changes) > 0 {
			err = feed.flush()
		}
		if err != nil {
			return abort(c)
		}
	}
}
