package server

import (
	"context"
	_ "embed"
	"net/http"
	"strconv"

	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

// Version tells what this celld is and has. It may be slow at the first call, and is asked for at each request.
type Version func(ctx context.Context) openapi.VersionInfo

//go:embed docs.html
var docsPage []byte

// ping is GET /ping and /healthz: alive.
func (s *Server) ping(c echo.Context) error { return c.NoContent(http.StatusOK) }

// ready is GET /readyz: wants work.
func (s *Server) ready(c echo.Context) error {
	if s.draining.Load() {
		return &problem{http.StatusServiceUnavailable, openapi.ErrorCodeUnavailable, "shutting down"}
	}
	return c.NoContent(http.StatusOK)
}

// version is GET /version.
func (s *Server) version(c echo.Context) error {
	if headOnly(c) {
		c.Response().Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		return c.NoContent(http.StatusOK)
	}
	return c.JSON(http.StatusOK, s.config.Version(c.Request().Context()))
}

func (s *Server) openapiYAML(c echo.Context) error {
	return document(c, "application/yaml", openapi.YAML)
}

func (s *Server) openapiJSON(c echo.Context) error {
	return document(c, echo.MIMEApplicationJSON, openapi.JSON())
}

// docs is GET /docs: a page that shows openapi.json. It loads nothing from elsewhere.
func (s *Server) docs(c echo.Context) error {
	return document(c, echo.MIMETextHTMLCharsetUTF8, docsPage)
}

// document answers with text whose length is known, to HEAD too.
func document(c echo.Context, mediaType string, text []byte) error {
	c.Response().Header().Set(echo.HeaderContentLength, strconv.Itoa(len(text)))
	return c.Blob(http.StatusOK, mediaType, text)
}
