package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is the uid and gid that tests of permissions run as when the test binary runs as root.
const nobody = 65534

// asNobody runs the calling test once more in a process of nobody's and reports true there. In the parent it waits,
// fails the test if the child failed, and reports false. The directory is the same in both and belongs to nobody.
func asNobody(t *testing.T) (dir string, inside bool) {
	t.Helper()
	if dir := os.Getenv("FILES_TEST_DIR"); dir != "" {
		return dir, true
	}
	dir = t.TempDir()
	if os.Getuid() != 0 {
		return dir, true
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chown(d, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	// The binary's directory may be closed to nobody; its descriptor isn't.
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Env = []string{"FILES_TEST_DIR=" + dir, "TMPDIR=" + dir, "HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	return dir, false
}

// otherDir returns a directory on another file system than t.TempDir's.
func otherDir(t *testing.T) string {
	t.Helper()
	var here, there unix.Stat_t
	if err := unix.Stat(t.TempDir(), &here); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"/dev/shm", "/run", "/var/tmp", "/tmp"} {
		if unix.Stat(base, &there) == nil && there.Dev != here.Dev && unix.Access(base, unix.W_OK) == nil {
			dir, err := os.MkdirTemp(base, "files-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		}
	}
	t.Fatal("there is no second file system to move to")
	return ""
}

func write(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, os.Chmod(path, mode))
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	check(t, err)
	return string(b)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v, want kind %v", err, kind)
	}
}

func mode(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st.Mode & permBits
}

func fifo(t *testing.T, path string) string {
	t.Helper()
	check(t, unix.Mkfifo(path, 0o600))
	return path
}

// underUmask runs f with the given umask. Tests that use it aren't parallel.
func underUmask(mask int, f func()) {
	defer unix.Umask(unix.Umask(mask))
	f()
}

func list(t *testing.T, dir string, depth int) []Info {
	t.Helper()
	var all []Info
	check(t, FS{}.List(t.Context(), dir, depth, func(i *Info) error { all = append(all, *i); return nil }))
	return all
}

func search(t *testing.T, dir, pattern string) []string {
	t.Helper()
	var all []string
	check(t, FS{}.Search(t.Context(), dir, pattern, func(i *Info) error { all = append(all, i.Path); return nil }))
	return all
}

// below returns paths relative to dir.
func below(dir string, infos []Info) []string {
	var all []string
	for _, i := range infos {
		all = append(all, strings.TrimPrefix(i.Path, dir+"/"))
	}
	return all
}

// names returns what is in dir, sorted.
func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	d, err := os.Open(dir)
	check(t, err)
	defer d.Close()
	all, err := d.Readdirnames(-1)
	check(t, err)
	sort.Strings(all)
	return all
}

// dirsOpen counts the directories that this process has open: other descriptors come and go with what earlier tests
// have left to end.
func dirsOpen(t *testing.T) (n int) {
	t.Helper()
	for _, fd := range namesIn(t, "/proc/self/fd") {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			n++
		}
	}
	return n
}

// pair is one file of an upload; fields of Meta's JSON in meta.
type pair struct {
	meta string
	data string
}

func metaOf(path string, rest ...string) string {
	quoted, _ := json.Marshal(path)
	return "{" + strings.Join(append([]string{`"path":` + string(quoted)}, rest...), ",") + "}"
}

// form writes pairs as a multipart body.
func form(w io.Writer, boundary string, pairs ...pair) error {
	m := multipart.NewWriter(w)
	if err := m.SetBoundary(boundary); err != nil {
		return err
	}
	for _, p := range pairs {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="metadata"; filename="metadata"`)
		h.Set("Content-Type", "application/json")
		part, err := m.CreatePart(h)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(part, p.meta); err != nil {
			return err
		}
		if part, err = m.CreateFormFile("file", "any"); err != nil {
			return err
		}
		if _, err := io.WriteString(part, p.data); err != nil {
			return err
		}
	}
	return m.Close()
}

func send(t *testing.T, pairs ...pair) error {
	t.Helper()
	var body bytes.Buffer
	check(t, form(&body, "b0undary", pairs...))
	_, _, err := FS{}.Upload(t.Context(), multipart.NewReader(&body, "b0undary"))
	return err
}

func decodeArray(t *testing.T, infos []Info) []map[string]any {
	t.Helper()
	var b bytes.Buffer
	a := NewArrayWriter(&b)
	for i := range infos {
		check(t, a.Add(&infos[i]))
	}
	check(t, a.Close())
	var got []map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	return got
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%q", got), fmt.Sprintf("%q", want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}
