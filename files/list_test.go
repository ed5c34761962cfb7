package files

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// badTree makes the tree of the case of one bad entry in dir.
func badTree(t *testing.T, dir string) {
	t.Helper()
	write(t, dir+"/a.txt", "a", 0o644)
	write(t, dir+"/sub/b.txt", "b", 0o644)
	write(t, dir+"/locked/c.txt", "c", 0o644)
	check(t, os.Symlink("/nope", dir+"/dang"))
	check(t, os.Symlink(".", dir+"/loop"))
	fifo(t, dir+"/fifo")
	check(t, os.Chmod(dir+"/locked", 0))
	t.Cleanup(func() { os.Chmod(dir+"/locked", 0o700) })
}

func TestOneBadEntrySpoilsNothing(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	badTree(t, dir)
	infos := list(t, dir, 3)
	equal(t, below(dir, infos), []string{"a.txt", "dang", "fifo", "locked", "loop", "sub", "sub/b.txt"})
	for _, i := range infos {
		if want := map[string]string{"dang": TypeSymlink, "loop": TypeSymlink, "fifo": TypeOther, "locked": TypeDirectory}[filepath.Base(i.Path)]; want != "" && i.Type != want {
			t.Errorf("%s is listed as %s", i.Path, i.Type)
		}
	}
	equal(t, search(t, dir, "**/*.txt"), []string{dir + "/a.txt", dir + "/sub/b.txt"})
	if i, err := (FS{}).Info(dir + "/dang"); err != nil || i.Type != TypeSymlink {
		t.Errorf("info of a dangling link: %+v, %v", i, err)
	}
	check(t, FS{}.RemoveFiles(t.Context(), []string{dir + "/dang"}))
	if _, err := os.Lstat(dir + "/dang"); !errors.Is(err, os.ErrNotExist) {
		t.Error("the link is still there")
	}
}

func TestEntriesThatCannotBeExaminedAreListed(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	write(t, dir+"/names/f", "", 0o644)
	check(t, os.Mkdir(dir+"/names/d", 0o755))
	check(t, os.Chmod(dir+"/names", 0o444)) // names can be read, nothing else
	defer os.Chmod(dir+"/names", 0o755)
	infos := list(t, dir+"/names", 2)
	equal(t, below(dir, infos), []string{"names/d", "names/f"})
	for k, typ := range []string{TypeDirectory, TypeFile} {
		if infos[k].Type != typ || !errors.Is(infos[k].Err, unix.EACCES) {
			t.Errorf("%+v", infos[k])
		}
	}
	got := decodeArray(t, infos)[0]
	if got["error"] == nil || got["size"] != 0.0 || got["mode"] != 0.0 || got["modified_at"] == nil || got["owner"] == nil {
		t.Errorf("%v", got)
	}
	check(t, os.Chmod(dir+"/names", 0))
	wantKind(t, FS{}.List(t.Context(), dir+"/names", 1, nil), ErrPermission)
	wantKind(t, FS{}.Search(t.Context(), dir+"/names", "*", nil), ErrPermission)
}

func TestEntriesThatVanishAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c", "d/x", "e/y"} {
		write(t, dir+"/"+name, "", 0o600)
	}
	var got []string
	check(t, FS{}.List(t.Context(), dir, 2, func(i *Info) error {
		if len(got) == 0 { // the directory has been read by now
			os.Remove(dir + "/b")
			os.RemoveAll(dir + "/d")
		}
		got = append(got, strings.TrimPrefix(i.Path, dir+"/"))
		return nil
	}))
	equal(t, got, []string{"a", "c", "e", "e/y"})
}

func TestListIsLexicalAndBoundedByDepth(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a/z", "a/y/deep", "a.x", "B", "10", "9"} {
		write(t, dir+"/"+name, "", 0o600)
	}
	one := []string{"10", "9", "B", "a", "a.x", "b"}
	equal(t, below(dir, list(t, dir, 0)), []string(nil))
	equal(t, below(dir, list(t, dir, 1)), one)
	equal(t, below(dir, list(t, dir, 2)), []string{"10", "9", "B", "a", "a/y", "a/z", "a.x", "b"})
	equal(t, below(dir, list(t, dir, 99)), []string{"10", "9", "B", "a", "a/y", "a/y/deep", "a/z", "a.x", "b"})
}

func TestListRefusesWhatIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "", 0o600)
	check(t, os.Mkdir(dir+"/d", 0o700))
	check(t, os.Symlink("d", dir+"/link"))
	f := FS{Workspace: dir}
	for path, kind := range map[string]error{
		"f": ErrNotDir, "link": ErrNotDir, "link/": ErrNotDir, fifo(t, dir+"/fifo"): ErrNotDir, "missing": ErrNotFound, "f/x": ErrNotFound, "": ErrInvalid,
	} {
		for _, depth := range []int{0, 1} {
			err := f.List(t.Context(), path, depth, func(*Info) error { return errors.New("emitted") })
			wantKind(t, err, kind)
		}
	}
	wantKind(t, f.List(t.Context(), "d", -1, nil), ErrInvalid)
}

func TestPatternsMatchNameOrPath(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.txt", "sub/b.txt", "sub/deep/c.txt", "sub/.hid/d.txt", ".top.txt", "x.go", "txt", "[a]", "sub/{q}", "d.txt/inner"} {
		write(t, dir+"/"+name, "", 0o600)
	}
	check(t, os.Symlink("a.txt", dir+"/link.txt"))
	fifo(t, dir+"/fifo.txt")
	for pattern, want := range map[string]string{
		"*.txt":           ".top.txt a.txt fifo.txt link.txt sub/.hid/d.txt sub/b.txt sub/deep/c.txt",
		"**/*.txt":        ".top.txt a.txt fifo.txt link.txt sub/.hid/d.txt sub/b.txt sub/deep/c.txt",
		"b.txt":           "sub/b.txt",
		"sub/*.txt":       "sub/b.txt",
		"sub/**/*.txt":    "sub/.hid/d.txt sub/b.txt sub/deep/c.txt",
		"*/*/*":           "sub/.hid/d.txt sub/deep/c.txt",
		"**/deep/**":      "sub/deep/c.txt",
		"{a,b}.txt":       "a.txt sub/b.txt",
		"{x,sub/deep/c}*": "sub/deep/c.txt x.go",
		dir + "/*.go":     "x.go",
		"/nope/**":        "",
		"?.go":            "x.go",
		"[ab].txt":        "a.txt sub/b.txt",
		"[^a].txt":        "sub/.hid/d.txt sub/b.txt sub/deep/c.txt",
		`\[a\]`:           "[a]",
		`sub/\{q\}`:       "sub/{q}",
		"../*":            "",
		"deep":            "",
	} {
		var got []string
		for _, p := range search(t, dir, pattern) {
			got = append(got, strings.TrimPrefix(p, dir+"/"))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s finds %q, want %q", pattern, got, want)
		}
	}
	if all := search(t, dir, ""); len(all) != 12 || len(search(t, dir, "**")) != 12 {
		t.Errorf("an empty pattern finds %d entries: %q", len(all), all)
	}
}

func TestSearchRefusesBadPatterns(t *testing.T) {
	dir := t.TempDir()
	for _, pattern := range []string{"[", "a[", "[]a", "{a", "x/[a-", `a\`, "{a,b}}{", strings.Repeat("x", 5000), strings.Repeat("{a,aa}", 40)} {
		err := FS{}.Search(t.Context(), dir, pattern, nil)
		wantKind(t, err, ErrInvalid)
	}
	wantKind(t, FS{}.Search(t.Context(), dir+"/missing", "*", nil), ErrNotFound)
	wantKind(t, FS{}.Search(t.Context(), "", "*", nil), ErrInvalid)
}

func TestSearchTakesALinkOrAFileAsItsRoot(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/real/a.txt", "", 0o600)
	check(t, os.Symlink("real", dir+"/link"))
	equal(t, search(t, dir+"/link", "*.txt"), []string{dir + "/link/a.txt"})
	equal(t, search(t, dir+"/real/a.txt", "*.txt"), []string{dir + "/real/a.txt"})
	equal(t, search(t, dir+"/real/a.txt", "*.go"), []string(nil))
	equal(t, search(t, fifo(t, dir+"/fifo"), "**"), []string{dir + "/fifo"})
	check(t, os.Symlink("nowhere", dir+"/dang"))
	wantKind(t, FS{}.Search(t.Context(), dir+"/dang", "*", nil), ErrNotFound)
}

func TestSearchFromTheRootDirectoryWritesSinglePaths(t *testing.T) {
	enough := errors.New("enough")
	err := FS{}.List(t.Context(), "/", 1, func(i *Info) error {
		if strings.Count(i.Path, "/") != 1 {
			t.Errorf("listed as %s", i.Path)
		}
		return nil
	})
	check(t, err)
	err = FS{}.Search(t.Context(), "/etc", "/etc/passwd", func(i *Info) error {
		if i.Path != "/etc/passwd" {
			t.Errorf("found %s", i.Path)
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Error("not found, or emit's error lost:", err)
	}
}

// The path at the bottom is longer than PATH_MAX, and the tree deeper than a walk holds directories open.
func TestDeepTreesAreWalkedWithoutHoldingThemOpen(t *testing.T) {
	const depth, name = 300, "0123456789abcdef0123456789abcdef"
	root := t.TempDir()
	fd, err := unix.Open(root, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	check(t, err)
	for range depth {
		// Something after the way down, to see that the walk comes back to the right place.
		check(t, unix.Mkdirat(fd, "zz", 0o755))
		check(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		check(t, err)
		unix.Close(fd)
		fd = next
	}
	check(t, unix.Symlinkat("x", fd, "bottom"))
	unix.Close(fd)
	held := dirsOpen(t)
	most := 0
	infos := []Info{}
	check(t, FS{}.List(t.Context(), root, 1<<30, func(i *Info) error {
		infos = append(infos, *i)
		if len(infos)%100 == 0 {
			most = max(most, dirsOpen(t))
		}
		return nil
	}))
	if len(infos) != 2*depth+1 {
		t.Fatalf("%d entries", len(infos))
	}
	last := infos[len(infos)-1].Path
	if last != root+"/zz" {
		t.Errorf("the last one is %.200s", last)
	}
	if found := search(t, root, "bottom"); len(found) != 1 || len(found[0]) < depth*len(name) {
		t.Errorf("found %d", len(found))
	}
	if most > held+heldDirs+3 {
		t.Errorf("%d directories open at once, %d before", most, held)
	}
	if now := dirsOpen(t); now != held {
		t.Errorf("%d directories left open", now-held)
	}
}

func TestWalkSurvivesADirectoryMovedAwayFromUnderIt(t *testing.T) {
	root := t.TempDir()
	path := root
	for range heldDirs + 5 {
		path += "/d"
	}
	check(t, os.MkdirAll(path+"/x", 0o755))
	write(t, filepath.Dir(path)+"/zz", "", 0o600)
	write(t, root+"/zz", "", 0o600)
	held := dirsOpen(t)
	var seen []string
	check(t, FS{}.List(t.Context(), root, 1<<30, func(i *Info) error {
		if strings.HasSuffix(i.Path, "/x") {
			check(t, os.Rename(path, root+"/moved"))
		}
		seen = append(seen, i.Path)
		return nil
	}))
	if last := seen[len(seen)-1]; last != root+"/zz" {
		t.Errorf("the walk ended at %s", last)
	}
	if now := dirsOpen(t); now != held {
		t.Errorf("%d directories left open", now-held)
	}
}

func TestWalksEndWhenNobodyWantsThem(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", "", 0o600)
	emit := func(*Info) error { return errors.New("emitted") }
	for _, err := range []error{FS{}.List(canceled(t), dir, 1, emit), FS{}.Search(canceled(t), dir, "*", emit)} {
		if !errors.Is(err, canceled(t).Err()) {
			t.Errorf("error is %v", err)
		}
	}
}

func TestWideDirectoriesAreStreamed(t *testing.T) {
	dir := t.TempDir()
	const n = 20_000
	for i := range n {
		check(t, unix.Mknod(fmt.Sprintf("%s/file-%06d", dir, i), unix.S_IFREG|0o600, 0))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	count, bytes := 0, 0
	w := NewArrayWriter(writerFunc(func(p []byte) (int, error) { bytes += len(p); return len(p), nil }))
	check(t, FS{}.List(t.Context(), dir, 1, func(i *Info) error {
		if want := fmt.Sprintf("%s/file-%06d", dir, count); i.Path != want {
			t.Fatalf("%s where %s should be", i.Path, want)
		}
		count++
		if count == n {
			runtime.GC()
			runtime.ReadMemStats(&after)
		}
		return w.Add(i)
	}))
	check(t, w.Close())
	if count != n {
		t.Errorf("%d entries", count)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > int64(bytes) {
		t.Errorf("the heap holds %d bytes at the end of %d bytes of JSON", grown, bytes)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestSocketsAndFIFOsAreListedWithoutBeingOpened(t *testing.T) {
	dir := t.TempDir()
	fifo(t, dir+"/fifo")
	sock, err := net.Listen("unix", dir+"/sock")
	check(t, err)
	defer sock.Close()
	equal(t, below(dir, list(t, dir, 5)), []string{"fifo", "sock"})
	equal(t, search(t, dir, "*"), []string{dir + "/fifo", dir + "/sock"})
}
