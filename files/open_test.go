package files

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string) *Content {
	t.Helper()
	c, err := FS{}.Open(path)
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestNothingButFilesIsOpened(t *testing.T) {
	dir := t.TempDir()
	sock, err := net.Listen("unix", dir+"/sock")
	check(t, err)
	defer sock.Close()
	check(t, os.Symlink("fifo", dir+"/link"))
	check(t, os.Symlink("loop", dir+"/loop"))
	f := FS{Workspace: dir}
	for path, kind := range map[string]error{
		fifo(t, dir+"/fifo"): ErrNotRegular, "link": ErrNotRegular, "sock": ErrNotRegular, "/dev/zero": ErrNotRegular,
		"/dev/tty": ErrNotRegular, ".": ErrIsDir, "missing": ErrNotFound, "loop": ErrInvalid, "": ErrInvalid,
	} {
		_, err := f.Open(path)
		wantKind(t, err, kind)
		_, err = f.Replace(t.Context(), map[string]Edit{path: {"a", "b"}})
		wantKind(t, err, kind)
	}
	wantKind(t, ErrIsDir, ErrInvalid)
}

func TestContentOfMadeUpFilesIsReadThoughTheirSizeSaysOtherwise(t *testing.T) {
	for path, part := range map[string]string{"/proc/cpuinfo": "processor", "/proc/self/status": "Name:", "/sys/kernel/mm/transparent_hugepage/enabled": "never"} {
		c := open(t, path)
		b, err := io.ReadAll(c.Reader())
		check(t, err)
		if !c.Live || c.ETag != "" || !strings.Contains(string(b), part) {
			t.Errorf("%s: live %v, etag %q, %d bytes", path, c.Live, c.ETag, len(b))
		}
	}
	empty := open(t, write(t, t.TempDir()+"/empty", "", 0o600))
	if empty.Live || empty.Size != 0 {
		t.Errorf("%+v", empty)
	}
}

func TestReadsThatWouldWaitEndInstead(t *testing.T) {
	var fds [2]int
	check(t, unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	r, w := os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")
	defer r.Close()
	defer w.Close()
	_, err := w.WriteString("so far")
	check(t, err)
	b, err := io.ReadAll((&Content{File: r, Live: true}).Reader())
	check(t, err)
	if string(b) != "so far" {
		t.Errorf("%q", b)
	}
}

func TestContentIsServedByNetHTTPWithRangesAndConditions(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir+"/f", "0123456789", 0o600)
	check(t, os.Symlink("f", dir+"/link"))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := FS{}.Open(dir + "/link")
		if err != nil {
			panic(err)
		}
		defer c.Close()
		w.Header().Set("Etag", c.ETag)
		http.ServeContent(w, r, "", c.Modified, c.File)
	}))
	defer srv.Close()
	get := func(header ...string) (int, string, http.Header) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL, nil)
		check(t, err)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := srv.Client().Do(req)
		check(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		check(t, err)
		return resp.StatusCode, string(b), resp.Header
	}
	code, body, header := get()
	tag := header.Get("Etag")
	if code != 200 || body != "0123456789" || tag == "" {
		t.Errorf("%d %q %q", code, body, tag)
	}
	if code, body, _ := get("Range", "bytes=2-4"); code != 206 || body != "234" {
		t.Errorf("%d %q", code, body)
	}
	if code, _, _ := get("Range", "bytes=10-"); code != 416 {
		t.Error(code)
	}
	if code, _, _ := get("If-None-Match", tag); code != 304 {
		t.Error(code)
	}
	check(t, os.WriteFile(path, []byte("abcdefghijk"), 0o600))
	if code, body, h := get("If-None-Match", tag); code != 200 || body != "abcdefghijk" || h.Get("Etag") == tag {
		t.Errorf("%d %q after a change", code, body)
	}
	if code, body, _ := get("Range", "bytes=2-4", "If-Range", tag); code != 200 || body != "abcdefghijk" {
		t.Errorf("%d %q: a range of two versions", code, body)
	}
}

func lines(t *testing.T, path string, offset, limit int64) string {
	t.Helper()
	var b bytes.Buffer
	n, err := open(t, path).Lines(t.Context(), &b, offset, limit)
	check(t, err)
	if n != int64(b.Len()) {
		t.Errorf("%d bytes counted as %d", b.Len(), n)
	}
	return b.String()
}

func TestLinesAreCountedFromOne(t *testing.T) {
	path := write(t, t.TempDir()+"/f", "one\ntwo\r\n\n\xff\x00four\nfive", 0o600)
	for _, c := range []struct {
		offset, limit int64
		want          string
	}{
		{1, 1, "one\n"}, {1, 2, "one\ntwo\r\n"}, {2, 2, "two\r\n\n"}, {4, 1, "\xff\x00four\n"}, {5, 1, "five"}, {5, 9, "five"},
		{6, 1, ""}, {99, 1, ""}, {3, -1, "\n\xff\x00four\nfive"}, {1, 1 << 62, "one\ntwo\r\n\n\xff\x00four\nfive"},
	} {
		if got := lines(t, path, c.offset, c.limit); got != c.want {
			t.Errorf("lines %d+%d are %q, want %q", c.offset, c.limit, got, c.want)
		}
	}
	if got := lines(t, "/proc/self/status", 1, 1); got != "Name:\tfiles.test\n" {
		t.Errorf("the first line of a made-up file is %q", got)
	}
	for _, c := range [][2]int64{{0, 1}, {-1, 1}, {1, 0}} {
		_, err := open(t, path).Lines(t.Context(), io.Discard, c[0], c[1])
		wantKind(t, err, ErrInvalid)
	}
}

func TestALineOfAnyLengthIsALine(t *testing.T) {
	long := strings.Repeat("x", 3*lineBuf+1)
	path := write(t, t.TempDir()+"/f", "a\n"+long+"\nb\n", 0o600)
	if got := lines(t, path, 2, 1); got != long+"\n" {
		t.Errorf("%d bytes", len(got))
	}
	if got := lines(t, path, 3, 1); got != "b\n" {
		t.Errorf("%.20q", got)
	}
}

func TestReadingLinesEndsWhenNobodyWantsThem(t *testing.T) {
	c := open(t, write(t, t.TempDir()+"/f", "a\n", 0o600))
	if _, err := c.Lines(canceled(t), io.Discard, 1, 1); err != canceled(t).Err() {
		t.Error(err)
	}
}
