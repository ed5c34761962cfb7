package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/celld/celld/files"
	"github.com/celld/celld/openapi"
	"github.com/celld/celld/openapi/openapitest"
	"golang.org/x/sys/unix"
)

// fileClient talks to a Server whose workspace and home is dir. Each answer is checked against the description.
type fileClient struct {
	t    *testing.T
	srv  *httptest.Server
	dir  string
	url  string
	http *http.Client
}

func newFileClient(t *testing.T) *fileClient {
	t.Helper()
	dir := t.TempDir()
	spec, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(New(Config{AnyHost: true, Files: files.FS{Workspace: dir, Home: dir}}))
	t.Cleanup(srv.Close)
	client := srv.Client()
	client.Transport = spec.Transport(client.Transport, func(err error) { t.Error(err) })
	return &fileClient{t, srv, dir, srv.URL, client}
}

// answer is a response that has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (f *fileClient) do(method, target string, body io.Reader, header ...string) answer {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+target, body)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.http.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (f *fileClient) get(route string, query ...string) answer {
	f.t.Helper()
	return f.do("GET", route+pathQuery(query...), nil)
}

func pathQuery(query ...string) string {
	q := []string{}
	for i := 0; i < len(query); i += 2 {
		q = append(q, query[i]+"="+url.QueryEscape(query[i+1]))
	}
	return "?" + strings.Join(q, "&")
}

func (f *fileClient) post(route, body string) answer {
	f.t.Helper()
	return f.do("POST", route, strings.NewReader(body), "Content-Type", "application/json")
}

// upload sends pairs of metadata and content.
func (f *fileClient) upload(pairs ...string) answer {
	f.t.Helper()
	var body bytes.Buffer
	m := multipart.NewWriter(&body)
	for i := 0; i < len(pairs); i += 2 {
		for j, name := range []string{"metadata", "file"} {
			part, err := m.CreateFormFile(name, name)
			if err != nil {
				f.t.Fatal(err)
			}
			io.WriteString(part, pairs[i+j])
		}
	}
	m.Close()
	return f.do("POST", "/files/upload", &body, "Content-Type", m.FormDataContentType())
}

func (f *fileClient) write(name, content string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// refused checks an answer's status and code.
func (a answer) refused(t *testing.T, status int, code openapi.ErrorCode) {
	t.Helper()
	var e openapi.Error
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != status || e.Code != code || e.Message == "" {
		t.Errorf("%d %s, want %d %s", a.status, a.body, status, code)
	}
}

func (a answer) ok(t *testing.T) answer {
	t.Helper()
	if a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
	return a
}

func paths(t *testing.T, a answer) []string {
	t.Helper()
	var infos []openapi.FileInfo
	if err := json.Unmarshal([]byte(a.ok(t).body), &infos); err != nil || infos == nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	all := []string{}
	for _, i := range infos {
		all = append(all, i.Path)
	}
	return all
}

func TestFilesAreDescribedUnderThePathsAskedFor(t *testing.T) {
	f := newFileClient(t)
	f.write("empty", "")
	os.Symlink("/nope", f.dir+"/dang")
	a := f.get("/files/info", "path", "empty", "path", "~/dang", "path", f.dir).ok(t)
	var got map[string]openapi.FileInfo
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || len(got) != 3 {
		t.Fatalf("%v %s", err, a.body)
	}
	if i := got["empty"]; i.Path != f.dir+"/empty" || i.Type != "file" || i.Mode != 644 || !strings.Contains(a.body, `"size":0`) {
		t.Errorf("%+v", i)
	}
	if i := got["~/dang"]; i.Type != "symlink" || *i.Target != "/nope" {
		t.Errorf("%+v", i)
	}
	f.get("/files/info", "path", "missing").refused(t, 404, openapi.ErrorCodeFileNotFound)
}

func TestAThousandPathsFitInOneRequest(t *testing.T) {
	f := newFileClient(t)
	query := []string{}
	for i := range 1000 {
		query = append(query, "path", f.write(fmt.Sprintf("a directory with a long name/%04d", i), ""))
	}
	var got map[string]openapi.FileInfo
	if err := json.Unmarshal([]byte(f.get("/files/info", query...).ok(t).body), &got); err != nil || len(got) != 1000 {
		t.Errorf("%d described, %v", len(got), err)
	}
}

func TestAMissingPathIsAMissingQuery(t *testing.T) {
	f := newFileClient(t)
	for _, c := range [][2]string{{"GET", "/files/info"}, {"DELETE", "/files"}, {"GET", "/files/search"}, {"GET", "/files/download"}, {"GET", "/directories/list"}, {"DELETE", "/directories"}} {
		for _, query := range []string{"", "?path=", "?other=1"} {
			f.do(c[0], c[1]+query, nil).refused(t, 400, openapi.ErrorCodeMissingQuery)
		}
	}
	for _, target := range []string{"/directories/list?path=.&depth=-1", "/directories/list?path=.&depth=x", "/directories/list?path=.&depth=1e3",
		"/files/download?path=x&offset=0", "/files/download?path=x&limit=0", "/files/download?path=x&limit=x", "/files/download?path=a&path=b"} {
		f.do("GET", target, nil).refused(t, 400, openapi.ErrorCodeMissingQuery)
	}
	f.do("PUT", "/files", nil).refused(t, 405, openapi.ErrorCodeMethodNotAllowed)
}

func TestListsAndSearchesAreArrays(t *testing.T) {
	f := newFileClient(t)
	if got := paths(t, f.get("/directories/list", "path", ".")); len(got) != 0 {
		t.Errorf("%q", got)
	}
	a, b := f.write("a.txt", ""), f.write("sub/b.txt", "")
	os.Symlink(".", f.dir+"/loop")
	unix.Mkfifo(f.dir+"/fifo", 0o600)
	for query, want := range map[string][]string{
		"/directories/list?path=.":                   {a, f.dir + "/fifo", f.dir + "/loop", f.dir + "/sub"},
		"/directories/list?path=.&depth=2":           {a, f.dir + "/fifo", f.dir + "/loop", f.dir + "/sub", b},
		"/directories/list?path=.&depth=99999999999": {a, f.dir + "/fifo", f.dir + "/loop", f.dir + "/sub", b},
		"/directories/list?path=.&depth=0":           {},
		"/files/search?path=.&pattern=**/*.txt":      {a, b},
		"/files/search?path=.&pattern=*.txt":         {a, b},
		"/files/search?path=.&pattern=*.go":          {},
		"/files/search?path=.":                       {a, f.dir + "/fifo", f.dir + "/loop", b},
	} {
		if got := paths(t, f.do("GET", query, nil)); !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", query, got, want)
		}
	}
	f.get("/files/search", "path", ".", "pattern", "[").refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	f.get("/files/search", "path", "missing").refused(t, 404, openapi.ErrorCodeFileNotFound)
	f.get("/directories/list", "path", "missing").refused(t, 404, openapi.ErrorCodeFileNotFound)
	f.get("/directories/list", "path", "a.txt").refused(t, 400, openapi.ErrorCodeInvalidFile)
	f.get("/directories/list", "path", "loop").refused(t, 400, openapi.ErrorCodeInvalidFile)
}

func TestListsLargerThanOneWriteArriveWhole(t *testing.T) {
	f := newFileClient(t)
	for i := range 3000 {
		f.write(fmt.Sprintf("%04d", i), "")
	}
	got := paths(t, f.get("/directories/list", "path", "."))
	if len(got) != 3000 || got[2999] != f.dir+"/2999" {
		t.Errorf("%d entries", len(got))
	}
}

func TestNamesThatAreNotUTF8AreListedReadAndMoved(t *testing.T) {
	f := newFileClient(t)
	name := "bad\xff \n&=+#%.txt"
	path := f.write(name, "content")
	var infos []openapi.FileInfo
	if err := json.Unmarshal([]byte(f.get("/directories/list", "path", ".").ok(t).body), &infos); err != nil || len(infos) != 1 || string(infos[0].PathBase64) != path {
		t.Fatalf("%v %+v", err, infos)
	}
	if a := f.get("/files/download", "path", path); a.ok(t).body != "content" {
		t.Errorf("%q", a.body)
	}
	f.post("/files/mv", fmt.Sprintf(`[{"src_base64":%q,"dest":"good"}]`, base64.StdEncoding.EncodeToString([]byte(path)))).ok(t)
	if a := f.get("/files/download", "path", "good"); a.ok(t).body != "content" {
		t.Errorf("%q", a.body)
	}
	f.do("DELETE", "/files"+pathQuery("path", "good"), nil).ok(t)
}

func TestDownloadsHaveRangesConditionsAndANameToSaveUnder(t *testing.T) {
	f := newFileClient(t)
	f.write("日本 \".txt", "0123456789")
	target := "/files/download" + pathQuery("path", "日本 \".txt")
	a := f.do("GET", target, nil).ok(t)
	tag := a.header.Get("Etag")
	if a.body != "0123456789" || a.header.Get("Content-Type") != "application/octet-stream" || a.header.Get("Content-Length") != "10" ||
		!strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment; filename") || tag == "" || a.header.Get("Last-Modified") == "" {
		t.Errorf("%q %v", a.body, a.header)
	}
	if a := f.do("GET", target, nil, "Range", "bytes=2-4"); a.status != 206 || a.body != "234" || a.header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	if a := f.do("GET", target, nil, "Range", "bytes=-1,0-0"); a.status != 206 || !strings.HasPrefix(a.header.Get("Content-Type"), "multipart/byteranges") {
		t.Errorf("%d %v", a.status, a.header)
	}
	if a := f.do("GET", target, nil, "If-None-Match", tag); a.status != 304 || a.body != "" {
		t.Errorf("%d %q", a.status, a.body)
	}
	if a := f.do("HEAD", target, nil); a.status != 200 || a.header.Get("Content-Length") != "10" || a.header.Get("Etag") != tag {
		t.Errorf("%d %v", a.status, a.header)
	}
	f.do("GET", target, nil, "If-Match", `"other"`).refused(t, 412, openapi.ErrorCodeConflict)
	out := f.do("GET", target, nil, "Range", "bytes=10-20")
	out.refused(t, 416, openapi.ErrorCodeRangeNotSatisfiable)
	if out.header.Get("Content-Range") != "bytes */10" || out.header.Get("Content-Disposition") != "" {
		t.Errorf("%v", out.header)
	}
	f.do("GET", target, nil, "Range", "bytes=x").refused(t, 416, openapi.ErrorCodeRangeNotSatisfiable)
	f.get("/files/download", "path", "missing").refused(t, 404, openapi.ErrorCodeFileNotFound)
}

func TestDownloadsByLine(t *testing.T) {
	f := newFileClient(t)
	f.write("f", "one\ntwo\nthree")
	for query, want := range map[string]string{"&offset=2&limit=1": "two\n", "&offset=2": "two\nthree", "&limit=2": "one\ntwo\n", "&offset=9&limit=1": "", "&offset=3&limit=9": "three"} {
		a := f.do("GET", "/files/download?path=f"+query, nil).ok(t)
		if a.body != want || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s is %q, %v", query, a.body, a.header)
		}
	}
	f.do("HEAD", "/files/download?path=f&offset=1", nil).ok(t)
	f.do("GET", "/files/download?path=f&offset=1", nil, "Range", "bytes=0-1").refused(t, 400, openapi.ErrorCodeMissingQuery)
}

func TestWhatMightBlockIsRefusedAtOnce(t *testing.T) {
	f := newFileClient(t)
	unix.Mkfifo(f.dir+"/fifo", 0o600)
	l, err := net.Listen("unix", f.dir+"/sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{"fifo", "sock", "/dev/zero", "."} {
		f.get("/files/download", "path", path).refused(t, 400, openapi.ErrorCodeInvalidFile)
		f.get("/files/download", "path", path, "offset", "1").refused(t, 400, openapi.ErrorCodeInvalidFile)
		f.upload(fmt.Sprintf(`{"path":%q}`, path), "x").refused(t, 400, openapi.ErrorCodeInvalidFile)
		f.post("/files/replace", fmt.Sprintf(`{%q:{"old":"a","new":"b"}}`, path)).refused(t, 400, openapi.ErrorCodeInvalidFile)
	}
}

func TestMadeUpFilesAreSentThoughTheirSizeIsZero(t *testing.T) {
	f := newFileClient(t)
	a := f.get("/files/download", "path", "/proc/cpuinfo").ok(t)
	if !strings.Contains(a.body, "processor") || a.header.Get("Etag") != "" {
		t.Errorf("%d bytes, %v", len(a.body), a.header)
	}
	f.do("HEAD", "/files/download?path=/proc/cpuinfo", nil).ok(t)
}

func TestUploadsArriveWithTheirMode(t *testing.T) {
	f := newFileClient(t)
	f.upload(`{"path":"new/dir/a","mode":755,"owner":null,"group":null}`, "A", `{"path":"~/b"}`, "").ok(t)
	for name, want := range map[string]float64{"new/dir/a": 755, "b": 644} {
		var got map[string]map[string]any
		if err := json.Unmarshal([]byte(f.get("/files/info", "path", name).ok(t).body), &got); err != nil || got[name]["mode"] != want {
			t.Errorf("%s: %v %v", name, err, got)
		}
	}
	for meta, code := range map[string]openapi.ErrorCode{
		`{"path":"x","mode":888}`: openapi.ErrorCodeInvalidFileMetadata, `{"path":"x","owner":"nosuchuser_x"}`: openapi.ErrorCodeInvalidFileMetadata,
		`{}`: openapi.ErrorCodeInvalidFileMetadata, `no`: openapi.ErrorCodeInvalidFileMetadata, `{"path":"new"}`: openapi.ErrorCodeInvalidFile,
	} {
		f.upload(meta, "x").refused(t, 400, code)
	}
	f.upload().refused(t, 400, openapi.ErrorCodeInvalidFile)
	f.post("/files/upload", "{}").refused(t, 400, openapi.ErrorCodeInvalidFile)
	f.upload(`{"path":"/proc/x"}`, "x").refused(t, 404, openapi.ErrorCodeFileNotFound)
}

// The client is still sending when the answer is known.
func TestARefusedUploadIsAnsweredThoughMoreIsOnItsWay(t *testing.T) {
	f := newFileClient(t)
	f.upload(`{"path":"."}`, strings.Repeat("x", 8<<20)).refused(t, 400, openapi.ErrorCodeInvalidFile)
}

func TestAnUploadWhoseClientGoesAwayLeavesNothing(t *testing.T) {
	f := newFileClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	body, send := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "POST", f.url+"/files/upload", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	ended := make(chan error, 1)
	go func() {
		resp, err := f.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	io.WriteString(send, "--b\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{\"path\":\"d/f\"}\r\n--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n")
	io.WriteString(send, strings.Repeat("x", 1<<20))
	cancel()
	send.CloseWithError(context.Canceled)
	if err := <-ended; err == nil {
		t.Error("the request succeeded")
	}
	f.srv.Close() // returns after the last handler
	filepath.WalkDir(f.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("%s was left behind", path)
		}
		return nil
	})
}

func TestChangesAreMadeAndRefused(t *testing.T) {
	f := newFileClient(t)
	a := f.write("a", "old old")
	f.post("/files/permissions", `{"a":{"mode":640,"owner":null}}`).ok(t)
	f.post("/files/permissions", `{"a":{"mode":888}}`).refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	f.post("/files/permissions", `{"a":{"mode":"x"}}`).refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	f.post("/files/permissions", `{"missing":{"mode":644}}`).refused(t, 404, openapi.ErrorCodeFileNotFound)
	f.post("/directories", `{"d/e":{"mode":1777},"g":{}}`).ok(t)
	f.post("/directories", `{"a":{}}`).refused(t, 409, openapi.ErrorCodeConflict)
	f.post("/files/mv", `[{"src":"a","dest":"d/e/f/a"}]`).ok(t)
	f.post("/files/mv", `[{"src":"d/e/f/a","dest":"g"}]`).refused(t, 409, openapi.ErrorCodeConflict)
	f.post("/files/mv", `[{"src":"a","dest":"b"}]`).refused(t, 404, openapi.ErrorCodeFileNotFound)
	f.post("/files/mv", `[{"dest":"b"}]`).refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	f.post("/files/mv", `{}`).refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	if got := f.post("/files/replace?verbose=true", `{"d/e/f/a":{"old":"old","new":"new"}}`).ok(t).body; strings.TrimSpace(got) != `{"d/e/f/a":{"replacedCount":2}}` {
		t.Error(got)
	}
	f.post("/files/replace", `{"d/e/f/a":{"old":"","new":"new"}}`).refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	f.post("/files/replace?verbose=maybe", `{}`).refused(t, 400, openapi.ErrorCodeMissingQuery)
	if b, err := os.ReadFile(f.dir + "/d/e/f/a"); string(b) != "new new" {
		t.Errorf("%q %v", b, err)
	}
	f.do("DELETE", "/files?path=d", nil).refused(t, 400, openapi.ErrorCodeInvalidFile)
	f.do("DELETE", "/directories?path=d/e/f/a", nil).refused(t, 400, openapi.ErrorCodeInvalidFile)
	f.do("DELETE", "/directories?path=/", nil).refused(t, 400, openapi.ErrorCodeInvalidRequestBody)
	f.do("DELETE", "/directories?path=d&path=g", nil).ok(t)
	f.do("DELETE", "/files?path=missing", nil).ok(t)
	if _, err := os.Lstat(a); err == nil {
		t.Error("a is still there")
	}
	if left, _ := os.ReadDir(f.dir); len(left) != 0 {
		t.Errorf("%v", left)
	}
}

func TestReplaceAnswersNothingUnlessAsked(t *testing.T) {
	f := newFileClient(t)
	f.write("a", "old")
	f.http.Transport = nil // the description can't say that this body is optional
	for _, query := range []string{"", "?verbose=false"} {
		if a := f.post("/files/replace"+query, `{"a":{"old":"old","new":"new"}}`).ok(t); a.body != "" {
			t.Errorf("%q", a.body)
		}
	}
}
