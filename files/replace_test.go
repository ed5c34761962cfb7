package files

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func replaceOne(t *testing.T, path, old, new string) int64 {
	t.Helper()
	counts, err := FS{}.Replace(t.Context(), map[string]Edit{path: {old, new}})
	check(t, err)
	if len(counts) != 1 {
		t.Fatalf("counts %v", counts)
	}
	return counts[path]
}

func TestReplaceKeepsModeOwnerAndLinks(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir+"/f", "a cat, a cat", 0o600)
	check(t, os.Link(path, dir+"/hard"))
	check(t, os.Symlink("f", dir+"/soft"))
	if os.Getuid() == 0 {
		check(t, os.Chown(path, nobody, 12345))
	}
	check(t, os.Chmod(path, 0o750|os.ModeSetuid))
	before, err := FS{}.Info(path)
	check(t, err)
	var id unix.Stat_t
	check(t, unix.Stat(path, &id))
	for i, c := range []struct{ path, old, new, want string }{
		{"soft", "cat", "elephant", "a elephant, a elephant"},
		{"hard", "elephant", "ox", "a ox, a ox"},
		{"f", "a ox", "", ", "},
		{"f", ", ", "", ""},
	} {
		if n := replaceOne(t, dir+"/"+c.path, c.old, c.new); n != []int64{2, 2, 2, 1}[i] {
			t.Errorf("%d replaced", n)
		}
		for _, name := range []string{"f", "hard", "soft"} {
			equal(t, content(t, dir+"/"+name), c.want)
		}
	}
	after, err := FS{}.Info(path)
	check(t, err)
	equal(t, []any{after.Mode, after.Owner, after.Group}, []any{before.Mode, before.Owner, before.Group})
	var now unix.Stat_t
	check(t, unix.Stat(path, &now))
	if now.Ino != id.Ino || now.Nlink != 2 {
		t.Errorf("it is another file: inode %d for %d, %d links", now.Ino, id.Ino, now.Nlink)
	}
	if target, _ := os.Readlink(dir + "/soft"); target != "f" {
		t.Errorf("the link leads to %q", target)
	}
	equal(t, namesIn(t, dir), []string{"f", "hard", "soft"})
}

func TestReplaceKeepsSetuidForItsOwner(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	path := write(t, dir+"/f", "abc", 0o755|os.ModeSetuid)
	replaceOne(t, path, "b", "xyz")
	if mode(t, path) != 0o4755 || content(t, path) != "axyzc" {
		t.Errorf("%o %q", mode(t, path), content(t, path))
	}
}

func TestReplaceWithoutAnOccurrenceTouchesNothing(t *testing.T) {
	path := write(t, t.TempDir()+"/f", "text", 0o600)
	at := time.Unix(1_000_000_000, 5)
	check(t, os.Chtimes(path, at, at))
	if n := replaceOne(t, path, "nothing", "x"); n != 0 {
		t.Errorf("%d replaced", n)
	}
	if n := replaceOne(t, path, "t", "t"); n != 2 {
		t.Errorf("%d replaced by the same", n)
	}
	i, err := FS{}.Info(path)
	check(t, err)
	if !i.Modified.Equal(at) || content(t, path) != "text" {
		t.Errorf("%+v", i)
	}
}

func TestReplaceIsLiteral(t *testing.T) {
	dir := t.TempDir()
	for _, c := range [][4]string{
		{"a.c abc", ".", "$1\\", "a$1\\c abc"},
		{"aaaa", "aa", "a", "aa"},
		{"x\x00y\xff", "\x00", "\xfe", "x\xfey\xff"},
		{"one\r\ntwo", "\r\n", "\n", "one\ntwo"},
		{"é漢", "漢", "é", "éé"},
	} {
		path := write(t, dir+"/f", c[0], 0o600)
		replaceOne(t, path, c[1], c[2])
		equal(t, content(t, path), c[3])
	}
}

func TestNoFileIsReplacedWhenOneRequestIsWrong(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", "old", 0o600)
	check(t, os.Mkdir(dir+"/d", 0o700))
	f := FS{Workspace: dir}
	for path, c := range map[string]struct {
		old  string
		kind error
	}{"b": {"old", ErrNotFound}, "d": {"old", ErrIsDir}, "c": {"", ErrInvalid}, "/proc/self/comm": {"files", ErrInvalid}} {
		_, err := f.Replace(t.Context(), map[string]Edit{"a": {"old", "new"}, path: {c.old, "new"}})
		wantKind(t, err, c.kind)
		equal(t, content(t, dir+"/a"), "old")
	}
	counts, err := f.Replace(t.Context(), nil)
	check(t, err)
	if counts == nil {
		t.Error("no counts are nil")
	}
}

func TestFilesOfAnySizeAreReplaced(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	line := "a line of text that ends here.\n"
	for _, size := range []int{inMemory, inMemory + 5, 2 * inMemory} {
		data := strings.Repeat(line, size/len(line)+1)[:size]
		for _, new := range []string{"stops after a while", ""} {
			path := write(t, dir+"/f", data, 0o600)
			n := replaceOne(t, path, "ends", new)
			if want := strings.ReplaceAll(data, "ends", new); content(t, path) != want || n != int64(strings.Count(data, "ends")) {
				t.Errorf("%d bytes with %q are wrong", size, new)
			}
		}
	}
	equal(t, namesIn(t, os.Getenv("TMPDIR")), []string(nil))
}

func TestAChangeMeanwhileIsAConflict(t *testing.T) {
	path := write(t, t.TempDir()+"/f", "before", 0o600)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer file.Close()
	before, err := file.Stat()
	check(t, err)
	check(t, os.WriteFile(path, []byte("before and more"), 0o600))
	err = overwrite(file, before, strings.NewReader("after"), 5, 0)
	wantKind(t, err, ErrConflict)
	equal(t, content(t, path), "before and more")
}

// A limit on the size of files stands for a full disk.
func TestAFailedReplaceLeavesTheOldContent(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	path := write(t, dir+"/f", "aaaa", 0o600)
	var was syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was))
	check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1000, Max: was.Max}))
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was)
	_, err := FS{}.Replace(t.Context(), map[string]Edit{path: {"a", strings.Repeat("b", 1000)}})
	if err == nil {
		t.Error("no error")
	}
	equal(t, content(t, path), "aaaa")
}

func TestReplaceEndsWhenNobodyWantsIt(t *testing.T) {
	path := write(t, t.TempDir()+"/f", "old", 0o600)
	_, err := FS{}.Replace(canceled(t), map[string]Edit{path: {"old", "new"}})
	if !errors.Is(err, canceled(t).Err()) || content(t, path) != "old" {
		t.Errorf("%v, %q", err, content(t, path))
	}
}

func FuzzReplaceAll(f *testing.F) {
	f.Add([]byte("hello hello"), []byte("ell"), []byte("ipp"), byte(0))
	f.Add([]byte("aaaaab"), []byte("aab"), []byte(""), byte(1))
	f.Fuzz(func(t *testing.T, data, old, new []byte, how byte) {
		if len(old) == 0 {
			t.Skip()
		}
		checkReplaceAll(t, data, old, new, how)
	})
}

type failer interface{ Fatalf(string, ...any) }

func checkReplaceAll(t failer, data, old, new []byte, how byte) {
	var out bytes.Buffer
	count, first, err := replaceAll(&out, readers(data, how), old, new)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if want := bytes.ReplaceAll(data, old, new); !bytes.Equal(out.Bytes(), want) {
		t.Fatalf("%q with %q for %q is %q, want %q", data, new, old, out.Bytes(), want)
	}
	if count != int64(bytes.Count(data, old)) {
		t.Fatalf("%d found", count)
	}
	if at := int64(bytes.Index(data, old)); count > 0 && first != at {
		t.Fatalf("the first is at %d, not %d", at, first)
	}
}

func TestReplaceAllIsBytesReplaceAllWhateverTheChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 0, 60)
		checkReplaceAll(t, letters.Draw(t, "data"), rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 1, 5).Draw(t, "old"),
			letters.Draw(t, "new"), rapid.Byte().Draw(t, "how"))
	})
	// Across the window's edge.
	for shift := range 12 {
		data := append(bytes.Repeat([]byte("x"), replaceBuf-shift), "needle and needle"...)
		checkReplaceAll(t, data, []byte("needle"), []byte("pin"), byte(shift))
	}
	big := bytes.Repeat([]byte("y"), replaceBuf)
	checkReplaceAll(t, append(append([]byte("z"), big...), 'z'), big, []byte("small"), 0)
}
