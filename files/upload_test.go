package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUploadedFilesArriveWhole(t *testing.T) {
	dir := t.TempDir()
	var pairs []pair
	for i, size := range []int{0, 1, 18 << 10, uploadBuf, 3*uploadBuf + 1, 40 << 20} {
		data := bytes.Repeat([]byte(fmt.Sprintf("%d\r\n--b0undar", i)), size/12+1)[:size]
		pairs = append(pairs, pair{metaOf(fmt.Sprintf("%s/new/dir/%d", dir, i), `"mode":644`), string(data)})
	}
	underUmask(0o077, func() { check(t, send(t, pairs...)) })
	for i, p := range pairs {
		path := fmt.Sprintf("%s/new/dir/%d", dir, i)
		if sha256.Sum256([]byte(content(t, path))) != sha256.Sum256([]byte(p.data)) {
			t.Errorf("file %d differs", i)
		}
		if mode(t, path) != 0o644 {
			t.Errorf("file %d has mode %o", i, mode(t, path))
		}
	}
	if i, err := (FS{}).Info(dir + "/new/dir/0"); err != nil || i.Size != 0 {
		t.Errorf("the empty file: %+v %v", i, err)
	}
	if got := namesIn(t, dir+"/new/dir"); len(got) != len(pairs) {
		t.Errorf("left behind: %v", got)
	}
}

func TestUploadCountsFilesAndBytes(t *testing.T) {
	dir := t.TempDir()
	var body bytes.Buffer
	check(t, form(&body, "b", pair{metaOf("a"), "123"}, pair{metaOf("~/b"), "4567"}))
	n, size, err := FS{Workspace: dir, Home: dir}.Upload(t.Context(), multipart.NewReader(&body, "b"))
	check(t, err)
	if n != 2 || size != 7 || content(t, dir+"/a")+content(t, dir+"/b") != "1234567" {
		t.Errorf("%d files, %d bytes", n, size)
	}
}

func TestMetadataMayBeAPlainFieldAndComeBeforeAllFiles(t *testing.T) {
	dir := t.TempDir()
	var body bytes.Buffer
	m := multipart.NewWriter(&body)
	check(t, m.WriteField("ignored", "x"))
	check(t, m.WriteField("metadata", metaOf(dir+"/a", `"owner":null`, `"group":null`, `"mode":null`, `"more":[1]`)))
	check(t, m.WriteField("metadata", metaOf(dir+"/b")))
	for _, data := range []string{"A", "B"} {
		check(t, m.WriteField("file", data))
	}
	check(t, m.Close())
	_, _, err := FS{}.Upload(t.Context(), multipart.NewReader(&body, m.Boundary()))
	check(t, err)
	equal(t, content(t, dir+"/a")+content(t, dir+"/b"), "AB")
}

func TestUploadsToOddNames(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a\nb", " x", "$HOME", "[a]", "é漢", `q"\`, "-f"}
	for _, name := range names {
		check(t, send(t, pair{metaOf(dir + "/" + name), name}))
	}
	for _, name := range names {
		equal(t, content(t, dir+"/"+name), name)
	}
}

func TestUploadOverAFileKeepsWhatWasNotAskedFor(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir+"/f", "old", 0o4750)
	check(t, os.Chmod(path, 0o750|os.ModeSetgid))
	check(t, os.Link(path, dir+"/hard"))
	root := os.Getuid() == 0
	if root {
		check(t, os.Chown(path, nobody, 12345))
		check(t, os.Chmod(path, 0o750|os.ModeSetgid))
	}
	check(t, send(t, pair{metaOf(path), "new"}))
	i, err := FS{}.Info(path)
	check(t, err)
	if content(t, path) != "new" || i.Mode != 0o2750 || root && (i.Owner != "nobody" || i.Group != "12345") {
		t.Errorf("%q %+v", content(t, path), i)
	}
	equal(t, content(t, dir+"/hard"), "old") // it was replaced, not written
	check(t, send(t, pair{metaOf(path, `"mode":600`), "newer"}))
	if mode(t, path) != 0o600 {
		t.Errorf("%o", mode(t, path))
	}
	check(t, send(t, pair{metaOf(dir + "/fresh"), ""}))
	if mode(t, dir+"/fresh") != 0o644 {
		t.Errorf("a new file gets %o", mode(t, dir+"/fresh"))
	}
}

func TestUploadSetsOwnersAlsoOfParentsMade(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	dir := t.TempDir()
	check(t, send(t, pair{metaOf(dir+"/a/b/f", `"owner":"nobody"`, `"group":12345`, `"mode":4755`), "x"}))
	for path, want := range map[string]uint32{"a": 0o755, "a/b": 0o755, "a/b/f": 0o4755} {
		i, err := FS{}.Info(dir + "/" + path)
		check(t, err)
		if i.Owner != "nobody" || i.Group != "12345" || i.Mode != want {
			t.Errorf("%+v", i)
		}
	}
}

func TestUploadGoesThroughLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/real/f", "old", 0o600)
	check(t, os.Symlink("real/f", dir+"/link"))
	check(t, os.Symlink("real/new", dir+"/dang"))
	check(t, os.Symlink("loop", dir+"/loop"))
	check(t, send(t, pair{metaOf(dir + "/link"), "1"}, pair{metaOf(dir + "/dang"), "2"}))
	equal(t, content(t, dir+"/real/f")+content(t, dir+"/real/new"), "12")
	for _, name := range []string{"link", "dang"} {
		if i, err := (FS{}).Info(dir + "/" + name); err != nil || i.Type != TypeSymlink {
			t.Errorf("%s is %+v", name, i)
		}
	}
	wantKind(t, send(t, pair{metaOf(dir + "/loop"), "1"}), ErrInvalid)
}

func TestARefusedFileMeansNoFileAtAll(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/d", 0o700))
	write(t, dir+"/f", "", 0o600)
	sock, err := net.Listen("unix", dir+"/sock")
	check(t, err)
	defer sock.Close()
	fifo(t, dir+"/fifo")
	before := namesIn(t, dir)
	for meta, kind := range map[string]error{
		metaOf(dir + "/d"):                           ErrIsDir,
		metaOf(dir + "/nothing/"):                    ErrIsDir,
		metaOf(dir + "/fifo"):                        ErrNotRegular,
		metaOf(dir + "/sock"):                        ErrNotRegular,
		metaOf("/dev/null"):                          ErrNotRegular,
		metaOf(dir + "/f/x"):                         ErrNotDir,
		metaOf("/proc/x"):                            ErrNotFound,
		metaOf(dir+"/x", `"mode":888`):               ErrInvalid,
		metaOf(dir+"/x", `"owner":"nosuchuser_x"`):   ErrInvalid,
		metaOf(dir+"/x", `"group":"nosuchgrp_x"`):    ErrInvalid,
		metaOf(dir+"/x", `"mode":"rw"`):              ErrMetadata,
		metaOf(dir + "/" + strings.Repeat("x", 300)): ErrInvalid,
		metaOf(dir + "/\x00"):                        ErrInvalid,
		metaOf(""):                                   ErrMetadata,
		`{}`:                                         ErrMetadata,
		`no JSON`:                                    ErrMetadata,
		``:                                           ErrMetadata,
		`{"path":"` + strings.Repeat("x", maxMeta) + `"}`: ErrTooLarge,
	} {
		err := send(t, pair{metaOf(dir + "/good"), "x"}, pair{meta, "data"})
		if !errors.Is(err, kind) {
			t.Errorf("%.60s: %v, want %v", meta, err, kind)
		}
		equal(t, namesIn(t, dir), before)
	}
}

func TestBrokenFormsAreToldApart(t *testing.T) {
	dir := t.TempDir()
	part := func(name, data string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + data + "\r\n"
	}
	meta := part("metadata", metaOf(dir+"/f"))
	for body, kind := range map[string]error{
		"":                               ErrForm,
		"--b--\r\n":                      ErrForm,
		part("other", "x") + "--b--\r\n": ErrForm,
		meta + "--b--\r\n":               ErrContent,
		part("file", "x") + "--b--\r\n":  ErrMetadata,
		meta + part("file", "x"):         ErrForm, // no end
		meta + part("file", "x") + part("file", "y") + "--b--\r\n": ErrMetadata,
		meta + "--b\r\nbroken header\r\n\r\nx\r\n--b--\r\n":        ErrForm,
		"no multipart at all": ErrForm,
	} {
		_, _, err := FS{}.Upload(t.Context(), multipart.NewReader(strings.NewReader(body), "b"))
		if !errors.Is(err, kind) || !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, want %v", body, err, kind)
		}
		equal(t, namesIn(t, dir), []string(nil))
	}
}

func TestABodyCutAnywhereLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir+"/f", "old", 0o600)
	var whole bytes.Buffer
	check(t, form(&whole, "b0undary", pair{metaOf(path), strings.Repeat("new", 2*uploadBuf)}, pair{metaOf(dir + "/g"), "x"}))
	for _, at := range []int{0, 1, 100, 200, 400, uploadBuf, whole.Len() / 2, whole.Len() - 300, whole.Len() - 20, whole.Len() - 5} {
		_, _, err := FS{}.Upload(t.Context(), multipart.NewReader(bytes.NewReader(whole.Bytes()[:at]), "b0undary"))
		wantKind(t, err, ErrForm)
		equal(t, content(t, path), "old")
		equal(t, namesIn(t, dir), []string{"f"})
	}
}

// A reader of the target sees the old content or the new, while uploads go on.
func TestNothingHalfWrittenIsEverSeen(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir+"/f", strings.Repeat("0", 1<<20), 0o600)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				b, err := os.ReadFile(path)
				if err != nil || len(b) != 1<<20 || bytes.Count(b, b[:1]) != len(b) {
					t.Errorf("half a file: %d bytes, %v", len(b), err)
					return
				}
			}
		})
	}
	for i := range 20 {
		check(t, send(t, pair{metaOf(path), strings.Repeat(fmt.Sprint(i%10), 1<<20)}))
	}
	close(done)
	readers.Wait()
}

func TestUploadsSideBySideIntoOneNewTree(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			var body bytes.Buffer
			if err := form(&body, "b", pair{metaOf(fmt.Sprintf("%s/a/b/c/%d", dir, i)), "x"}); err != nil {
				t.Error(err)
			}
			if _, _, err := (FS{}).Upload(t.Context(), multipart.NewReader(&body, "b")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := namesIn(t, dir+"/a/b/c"); len(got) != 8 {
		t.Errorf("%v", got)
	}
}

func TestAnUploadEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	sent := make(chan error)
	go func() {
		_ = form(w, "b", pair{metaOf(dir + "/f"), strings.Repeat("x", 4*uploadBuf)})
		cancel()
		w.CloseWithError(errors.New("connection reset"))
		close(sent)
	}()
	// Two files, so that the context ends after the first.
	_, _, err := FS{}.Upload(ctx, multipart.NewReader(io.MultiReader(struct{ io.Reader }{io.LimitReader(r, 3*uploadBuf)}, readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, errors.New("connection reset")
	})), "b"))
	r.Close()
	<-sent
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	equal(t, namesIn(t, dir), []string(nil))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestMemoryDoesNotGrowWithTheFile(t *testing.T) {
	dir := t.TempDir()
	const size = 64 << 20
	r, w := io.Pipe()
	go func() {
		m := multipart.NewWriter(w)
		_ = m.SetBoundary("b")
		_ = m.WriteField("metadata", metaOf(dir+"/f"))
		part, _ := m.CreateFormFile("file", "f")
		_, _ = io.CopyN(part, zeros{}, size)
		_ = m.Close()
		w.Close()
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, n, err := FS{}.Upload(t.Context(), multipart.NewReader(r, "b"))
	check(t, err)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; n != size || grown > size/8 {
		t.Errorf("%d bytes allocated for %d", grown, n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTooManyFilesInOneRequestAreRefused(t *testing.T) {
	dir := t.TempDir()
	var body bytes.Buffer
	m := multipart.NewWriter(&body)
	for range maxPairs + 1 {
		check(t, m.WriteField("metadata", metaOf(dir+"/f")))
	}
	check(t, m.Close())
	_, _, err := FS{}.Upload(t.Context(), multipart.NewReader(&body, m.Boundary()))
	wantKind(t, err, ErrTooLarge)
}

// A limit on the size of files stands for a full disk.
func TestAFailedWriteLeavesNothing(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	path := write(t, dir+"/f", "old", 0o600)
	var was syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was))
	check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1000, Max: was.Max}))
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was)
	wantKind(t, send(t, pair{metaOf(path), strings.Repeat("x", 2000)}), ErrTooLarge)
	equal(t, content(t, path), "old")
	equal(t, namesIn(t, dir), []string{"f"})
}

func TestAWritableFileInAReadOnlyDirectoryIsWrittenInPlace(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	path := write(t, dir+"/ro/f", "much older", 0o600)
	check(t, os.Chmod(dir+"/ro", 0o500))
	defer os.Chmod(dir+"/ro", 0o700)
	wantKind(t, send(t, pair{metaOf(dir + "/ro/new"), "x"}), ErrPermission)
	check(t, send(t, pair{metaOf(path, `"mode":640`), "new"}))
	if content(t, path) != "new" || mode(t, path) != 0o640 {
		t.Errorf("%q %o", content(t, path), mode(t, path))
	}
	var whole bytes.Buffer
	check(t, form(&whole, "b0undary", pair{metaOf(path), "newest"}))
	_, _, err := FS{}.Upload(t.Context(), multipart.NewReader(bytes.NewReader(whole.Bytes()[:whole.Len()-20]), "b0undary"))
	wantKind(t, err, ErrForm)
	equal(t, content(t, path), "new")
	equal(t, namesIn(t, dir), []string{"ro"})
}

func TestAMountPointIsWrittenInPlace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	dir := t.TempDir()
	path := write(t, dir+"/hosts", "", 0o600)
	under := write(t, dir+"/elsewhere/hosts", "mounted, and longer", 0o600)
	check(t, unix.Mount(under, path, "", unix.MS_BIND, ""))
	defer unix.Unmount(path, unix.MNT_DETACH)
	check(t, send(t, pair{metaOf(path, `"mode":644`), "new"}))
	if content(t, under) != "new" || mode(t, under) != 0o644 {
		t.Errorf("%q %o", content(t, under), mode(t, under))
	}
	equal(t, namesIn(t, dir), []string{"elsewhere", "hosts"})
}

func FuzzUpload(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{\"path\":\"f\",\"mode\":644}\r\n--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		dir := t.TempDir()
		if bytes.ContainsAny(body, `/\`) {
			t.Skip() // stay in dir
		}
		n, _, err := FS{Workspace: dir, Home: dir}.Upload(t.Context(), multipart.NewReader(bytes.NewReader(body), "b"))
		for _, i := range list(t, dir, 99) {
			if strings.Contains(i.Path, "/.celld-") {
				t.Errorf("%s was left behind", i.Path)
			}
		}
		if (err == nil) != (n > 0) {
			t.Errorf("%d files, %v", n, err)
		}
	})
}
