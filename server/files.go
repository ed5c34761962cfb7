package server

import (
	"context"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/celld/celld/files"
	"github.com/celld/celld/openapi"
	"github.com/labstack/echo/v4"
)

func (s *Server) fileRoutes() {
	e := s.echo
	s.get("/files/info", s.fileInfo)
	e.DELETE("/files", s.removeFiles)
	e.POST("/files/permissions", s.setPermissions)
	e.POST("/files/mv", s.moveFiles)
	s.get("/files/search", s.searchFiles)
	e.POST("/files/replace", s.replaceInFiles)
	e.POST("/files/upload", s.uploadFiles)
	s.get("/files/download", s.downloadFile)
	e.GET("/files/watch", s.watchFiles)
	s.get("/directories/list", s.listDirectory)
	e.POST("/directories", s.makeDirectories)
	e.DELETE("/directories", s.removeDirectories)
}

// fileRefusal is the status and the code of what package files refuses.
func fileRefusal(e *files.Error) *problem {
	for _, k := range []struct {
		kind   error
		status int
		code   openapi.ErrorCode
	}{
		{files.ErrNotFound, http.StatusNotFound, openapi.ErrorCodeFileNotFound},
		{files.ErrForm, http.StatusBadRequest, openapi.ErrorCodeInvalidFile},
		{files.ErrMetadata, http.StatusBadRequest, openapi.ErrorCodeInvalidFileMetadata},
		{files.ErrContent, http.StatusBadRequest, openapi.ErrorCodeInvalidFileContent},
		{files.ErrIsDir, http.StatusBadRequest, openapi.ErrorCodeInvalidFile},
		{files.ErrNotDir, http.StatusBadRequest, openapi.ErrorCodeInvalidFile},
		{files.ErrNotRegular, http.StatusBadRequest, openapi.ErrorCodeInvalidFile},
		{files.ErrInvalid, http.StatusBadRequest, openapi.ErrorCodeInvalidRequestBody},
		{files.ErrConflict, http.StatusConflict, openapi.ErrorCodeConflict},
		{files.ErrTooLarge, http.StatusRequestEntityTooLarge, openapi.ErrorCodeTooLarge},
		{files.ErrPermission, http.StatusForbidden, openapi.ErrorCodeRuntimeError},
		{files.ErrNoSpace, http.StatusInsufficientStorage, openapi.ErrorCodeLimitExceeded},
	} {
		if errors.Is(e, k.kind) {
			return &problem{k.status, k.code, e.Error()}
		}
	}
	return &problem{http.StatusInternalServerError, openapi.ErrorCodeRuntimeError, e.Error()}
}

// unlessGone cuts the connection when err comes from its client having gone: there is nobody to answer to.
func unlessGone(c echo.Context, err error) error {
	if err != nil && errors.Is(err, c.Request().Context().Err()) {
		return abort(c)
	}
	return err
}

// queryPaths returns the values of path in the query, of which there must be one.
func queryPaths(q url.Values) ([]string, error) {
	paths := q["path"]
	if len(paths) == 0 || len(paths) == 1 && paths[0] == "" {
		return nil, badQuery("the query needs a path")
	}
	return paths, nil
}

// queryPath returns the one path in the query.
func queryPath(q url.Values) (string, error) {
	paths, err := queryPaths(q)
	if err != nil {
		return "", err
	}
	if len(paths) > 1 {
		return "", badQuery("only one path is taken here")
	}
	return paths[0], nil
}

// queryInt returns a number of the query; ok is false without one.
func queryInt(q url.Values, name string, least int64) (n int64, ok bool, err error) {
	text := q.Get(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < least {
		return 0, false, badQuery("%s must be a whole number from %d, not %q", name, least, text)
	}
	return n, true, nil
}

// fileInfo is GET /files/info.
func (s *Server) fileInfo(c echo.Context) error {
	paths, err := queryPaths(c.QueryParams())
	if err != nil {
		return err
	}
	infos, err := s.config.Files.Infos(paths)
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, files.AppendJSONMap(nil, paths, infos))
}

// listDirectory is GET /directories/list.
func (s *Server) listDirectory(c echo.Context) error {
	q := c.QueryParams()
	dir, err := queryPath(q)
	if err != nil {
		return err
	}
	depth, ok, err := queryInt(q, "depth", 0)
	if err != nil {
		return err
	}
	if !ok {
		depth = 1
	}
	return s.sendInfos(c, func(ctx context.Context, emit func(*files.Info) error) error {
		return s.config.Files.List(ctx, dir, int(min(depth, maxDepth)), emit)
	})
}

// maxDepth is deeper than any tree.
const maxDepth = 1 << 30

// searchFiles is GET /files/search.
func (s *Server) searchFiles(c echo.Context) error {
	q := c.QueryParams()
	dir, err := queryPath(q)
	if err != nil {
		return err
	}
	return s.sendInfos(c, func(ctx context.Context, emit func(*files.Info) error) error {
		return s.config.Files.Search(ctx, dir, q.Get("pattern"), emit)
	})
}

// sendInfos answers with what produce emits as an array, while it emits it.
func (s *Server) sendInfos(c echo.Context, produce func(context.Context, func(*files.Info) error) error) error {
	c.Response().Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	a := files.NewArrayWriter(newBodyWriter(c))
	err := produce(c.Request().Context(), a.Add)
	if err == nil {
		err = a.Close()
	}
	if err != nil && c.Response().Committed {
		return abort(c)
	}
	return unlessGone(c, err)
}

// removeFiles is DELETE /files.
func (s *Server) removeFiles(c echo.Context) error {
	return s.remove(c, s.config.Files.RemoveFiles)
}

// removeDirectories is DELETE /directories.
func (s *Server) removeDirectories(c echo.Context) error {
	return s.remove(c, s.config.Files.RemoveDirs)
}

func (s *Server) remove(c echo.Context, remove func(context.Context, []string) error) error {
	paths, err := queryPaths(c.QueryParams())
	if err != nil {
		return err
	}
	return done(c, remove(c.Request().Context(), paths))
}

// done answers what has no answer but that it is done.
func done(c echo.Context, err error) error {
	if err != nil {
		return unlessGone(c, err)
	}
	return c.NoContent(http.StatusOK)
}

// setPermissions is POST /files/permissions. Bodies are decoded into the types of package files, which take a user or
// group by number too.
func (s *Server) setPermissions(c echo.Context) error {
	var perms map[string]files.Perm
	if err := s.decode(c, &perms, false); err != nil {
		return err
	}
	return done(c, s.config.Files.SetPerms(c.Request().Context(), perms))
}

// makeDirectories is POST /directories.
func (s *Server) makeDirectories(c echo.Context) error {
	var dirs map[string]files.Perm
	if err := s.decode(c, &dirs, false); err != nil {
		return err
	}
	return done(c, s.config.Files.MakeDirs(c.Request().Context(), dirs))
}

// moveFiles is POST /files/mv.
func (s *Server) moveFiles(c echo.Context) error {
	var items []openapi.MoveItem
	if err := s.decode(c, &items, false); err != nil {
		return err
	}
	moves := make([]files.Move, len(items))
	for i, item := range items {
		if (item.Src == nil) == (item.SrcBase64 == nil) || (item.Dest == nil) == (item.DestBase64 == nil) {
			return badRequest("[%d] must have one of src and src_base64, and one of dest and dest_base64", i)
		}
		moves[i] = files.Move{Src: exactName(item.Src, item.SrcBase64), Dest: exactName(item.Dest, item.DestBase64)}
	}
	return done(c, s.config.Files.Move(c.Request().Context(), moves))
}

// exactName is a path of a JSON body: as text, or, for one that JSON can't hold, as its bytes.
func exactName(text *string, exact []byte) string {
	if len(exact) > 0 {
		return string(exact)
	}
	return value(text)
}

// replaceInFiles is POST /files/replace.
func (s *Server) replaceInFiles(c echo.Context) error {
	verbose, err := queryFlag(c.QueryParams(), "verbose")
	if err != nil {
		return err
	}
	var edits map[string]files.Edit
	if err := s.decode(c, &edits, false); err != nil {
		return err
	}
	counts, err := s.config.Files.Replace(c.Request().Context(), edits)
	if err != nil || !verbose {
		return done(c, err)
	}
	results := make(map[string]openapi.ReplaceResult, len(counts))
	for name, n := range counts {
		results[name] = openapi.ReplaceResult{ReplacedCount: n}
	}
	return c.JSON(http.StatusOK, results)
}

// queryFlag reads a yes or no of the query; absent means no.
func queryFlag(q url.Values, name string) (bool, error) {
	text := q.Get(name)
	if text == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, badQuery("%s must be true or false, not %q", name, text)
	}
	return yes, nil
}

// maxDrain is how much of a refused upload is read, in bytes: a client that is still sending would miss the answer.
const maxDrain = 64 << 20

// uploadFiles is POST /files/upload. Its body has no limit but the disk's.
func (s *Server) uploadFiles(c echo.Context) error {
	r := c.Request()
	form, err := r.MultipartReader()
	if err != nil {
		return &problem{http.StatusBadRequest, openapi.ErrorCodeInvalidFile, "the body is not a multipart form: " + err.Error()}
	}
	_, _, err = s.config.Files.Upload(r.Context(), form)
	if err != nil && r.Context().Err() == nil {
		http.NewResponseController(c.Response().Writer).SetReadDeadline(time.Now().Add(writeTimeout))
		io.CopyN(io.Discard, r.Body, maxDrain)
	}
	return done(c, err)
}

// downloadFile is GET and HEAD /files/download: the file, ranges of it, or with offset and limit some of its lines.
func (s *Server) downloadFile(c echo.Context) error {
	q := c.QueryParams()
	name, err := queryPath(q)
	if err != nil {
		return err
	}
	offset, hasOffset, err := queryInt(q, "offset", 1)
	if err != nil {
		return err
	}
	limit, hasLimit, err := queryInt(q, "limit", 1)
	if err != nil {
		return err
	}
	exactRange(c.Request().Header)
	inLines := hasOffset || hasLimit
	if inLines && c.Request().Header.Get("Range") != "" {
		return badQuery("offset and limit count lines; they exclude a range of bytes")
	}
	content, err := s.config.Files.Open(name)
	if err != nil {
		return err
	}
	defer content.Close()
	c.Response().Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case inLines:
		if !hasOffset {
			offset = 1
		}
		if !hasLimit {
			limit = -1
		}
		return sendLines(c, content, offset, limit)
	case content.Live:
		setAttachment(c, content)
		return sendBody(c, func(w io.Writer) error { _, err := io.Copy(w, content.Reader()); return err })
	}
	return sendFile(c, content)
}

func setAttachment(c echo.Context, content *files.Content) {
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, echo.MIMEOctetStream)
	h.Set(echo.HeaderContentDisposition, mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(content.Path)}))
}

func sendLines(c echo.Context, content *files.Content, offset, limit int64) error {
	c.Response().Header().Set(echo.HeaderContentType, "text/plain; charset=utf-8")
	return sendBody(c, func(w io.Writer) error {
		_, err := content.Lines(c.Request().Context(), w, offset, limit)
		return err
	})
}

// sendBody answers with what write writes. A failure before the first byte is an error with its status, one after it
// cuts the connection.
func sendBody(c echo.Context, write func(io.Writer) error) error {
	if headOnly(c) {
		return c.NoContent(http.StatusOK)
	}
	err := write(newBodyWriter(c))
	switch {
	case err == nil && !c.Response().Committed:
		c.Response().WriteHeader(http.StatusOK)
	case err != nil && c.Response().Committed:
		return abort(c)
	}
	return unlessGone(c, err)
}

// sendFile lets net/http answer ranges and conditions (RFC 9110 sections 13 and 14) and send the bytes from file to
// socket within the kernel.
func sendFile(c echo.Context, content *files.Content) error {
	setAttachment(c, content)
	h := c.Response().Header()
	h.Set("ETag", content.ETag)
	w := &fileWriter{bodyWriter: newBodyWriter(c)}
	http.ServeContent(w, c.Request(), "", content.Modified, content.File)
	if w.refused == 0 {
		return nil
	}
	h.Del(echo.HeaderContentDisposition)
	h.Del(echo.HeaderContentLength)
	switch w.refused {
	case http.StatusPreconditionFailed:
		return &problem{w.refused, openapi.ErrorCodeConflict, "the file is not the version asked for"}
	case http.StatusRequestedRangeNotSatisfiable:
		return &problem{w.refused, openapi.ErrorCodeRangeNotSatisfiable, "the range is not within the file's " + strconv.FormatInt(content.Size, 10) + " bytes"}
	}
	return &problem{w.refused, openapi.ErrorCodeRuntimeError, "the file can't be read"}
}

var hugeNumber = regexp.MustCompile(`\d{19,}`)

// exactRange rewrites what net/http reads otherwise than RFC 9110 section 14 has it: a unit that isn't bytes, numbers
// of any size, and the last 0 bytes, which no file has.
func exactRange(h http.Header) {
	unit, specs, _ := strings.Cut(h.Get("Range"), "=")
	if !strings.EqualFold(unit, "bytes") {
		h.Del("Range")
		return
	}
	most := strconv.FormatInt(math.MaxInt64, 10)
	all := strings.Split(hugeNumber.ReplaceAllString(specs, most), ",")
	for i, spec := range all {
		if last, ok := strings.CutPrefix(strings.TrimSpace(spec), "-"); ok && last != "" && strings.Trim(last, "0") == "" {
			all[i] = most + "-"
		}
	}
	h.Set("Range", "bytes="+strings.Join(all, ","))
}

// bodyWriter writes a response's body and gives up on a client that accepts nothing for writeTimeout.
type bodyWriter struct {
	*echo.Response
	control *http.ResponseController
}

func newBodyWriter(c echo.Context) bodyWriter {
	return bodyWriter{c.Response(), http.NewResponseController(c.Response().Writer)}
}

func (w bodyWriter) Write(p []byte) (int, error) {
	w.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // no deadlines on this writer: nothing to set
	defer w.control.SetWriteDeadline(time.Time{})
	return w.Response.Write(p)
}

// fileWriter keeps the way from file to socket open that echo's Response closes, and holds back what net/http says
// about an error.
type fileWriter struct {
	bodyWriter
	refused int // the status of that error
}

func (w *fileWriter) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.refused = status
		return
	}
	w.bodyWriter.WriteHeader(status)
}

func (w *fileWriter) Write(p []byte) (int, error) {
	if w.refused != 0 {
		return len(p), nil
	}
	return w.bodyWriter.Write(p)
}

// filePiece is how much is handed to the kernel at a time, in bytes; a piece has writeTimeout to get through.
const filePiece = 512 << 10

// ReadFrom implements io.ReaderFrom.
func (w *fileWriter) ReadFrom(r io.Reader) (written int64, err error) {
	if w.refused != 0 {
		return io.Copy(io.Discard, r)
	}
	limited, ok := r.(*io.LimitedReader)
	if !ok {
		return io.Copy(w.bodyWriter, r)
	}
	if !w.Committed {
		w.WriteHeader(http.StatusOK)
	}
	defer w.control.SetWriteDeadline(time.Time{})
	for limited.N > 0 {
		w.control.SetWriteDeadline(time.Now().Add(writeTimeout))
		// Only a LimitedReader right around the file is recognised.
		n, err := io.CopyN(w.Response.Writer, limited.R, min(limited.N, filePiece))
		written += n
		limited.N -= n
		w.Size += n
		if err == io.EOF {
			return written, nil // the file has shrunk: net/http cuts the connection
		}
		if err != nil {
			return written, err
		}
	}
	return written, nil
}
