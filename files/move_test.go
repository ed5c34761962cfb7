package files

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func move(t *testing.T, src, dest string) error {
	t.Helper()
	return FS{}.Move(t.Context(), []Move{{src, dest}})
}

func TestMoveRenamesAndMakesParents(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", "A", 0o640)
	write(t, dir+"/d/x", "X", 0o600)
	check(t, os.Symlink("nope", dir+"/dang"))
	fifo(t, dir+"/fifo")
	check(t, FS{Workspace: dir}.Move(t.Context(), []Move{{"a", "p/q/a"}, {"d", "p/d"}, {"dang", "p/dang"}, {"fifo", "p/f\nifo"}, {"p/q/a", "b"}}))
	equal(t, namesIn(t, dir), []string{"b", "p"})
	equal(t, namesIn(t, dir+"/p"), []string{"d", "dang", "f\nifo", "q"})
	equal(t, content(t, dir+"/b")+content(t, dir+"/p/d/x"), "AX")
	if target, err := os.Readlink(dir + "/p/dang"); target != "nope" {
		t.Error(target, err)
	}
}

func TestMoveNeverReplacesOrMergesAnything(t *testing.T) {
	for where, base := range map[string]func(*testing.T) string{"one file system": (*testing.T).TempDir, "two": otherDir} {
		t.Run(where, func(t *testing.T) {
			dir, dest := t.TempDir(), base(t)
			write(t, dir+"/a", "A", 0o600)
			write(t, dir+"/d/x", "X", 0o600)
			write(t, dest+"/f", "F", 0o600)
			check(t, os.Mkdir(dest+"/empty", 0o700))
			check(t, os.Symlink("nope", dest+"/dang"))
			for _, name := range []string{"f", "empty", "empty/", "dang"} {
				for _, src := range []string{"a", "d"} {
					err := move(t, dir+"/"+src, dest+"/"+name)
					if src == "a" && name == "empty/" {
						wantKind(t, err, ErrNotDir)
					} else {
						wantKind(t, err, ErrConflict)
					}
				}
			}
			equal(t, namesIn(t, dest), []string{"dang", "empty", "f"})
			equal(t, namesIn(t, dest+"/empty"), []string(nil))
			equal(t, content(t, dir+"/a")+content(t, dir+"/d/x")+content(t, dest+"/f"), "AXF")
		})
	}
}

func TestMovesThatCannotBeMeantAreRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", "A", 0o600)
	write(t, dir+"/d/x", "X", 0o600)
	for _, c := range []struct {
		src, dest string
		kind      error
	}{
		{dir + "/a", dir + "/a", ErrConflict},
		{dir + "/d", dir + "/d/new/y", ErrInvalid},
		{"/", dir + "/root", ErrInvalid},
		{dir + "/missing", dir + "/p/q", ErrNotFound},
		{dir + "/a/b", dir + "/p/q", ErrNotFound},
		{dir + "/a", dir + "/d/x/y", ErrNotDir},
		{dir + "/a", dir + "/b/", ErrNotDir},
		{"", dir + "/b", ErrInvalid},
		{dir + "/a", "", ErrInvalid},
		{dir + "/a", dir + "/" + strings.Repeat("n", 300), ErrInvalid},
		{dir + "/a", "/proc/x", ErrNotFound},
	} {
		wantKind(t, move(t, c.src, c.dest), c.kind)
	}
	equal(t, namesIn(t, dir), []string{"a", "d"})
	equal(t, namesIn(t, dir+"/d"), []string{"x"})
}

func TestMoveStopsAtTheFirstFailure(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		write(t, dir+"/"+name, name, 0o600)
	}
	err := FS{Workspace: dir}.Move(t.Context(), []Move{{"a", "A"}, {"b", "A"}, {"c", "C"}})
	wantKind(t, err, ErrConflict)
	equal(t, namesIn(t, dir), []string{"A", "b", "c"})
	if err := (FS{Workspace: dir}).Move(canceled(t), []Move{{"b", "B"}}); !errors.Is(err, canceled(t).Err()) {
		t.Error(err)
	}
}

// tree makes one of everything below dir.
func tree(t *testing.T, dir string) {
	t.Helper()
	write(t, dir+"/file", "content", 0o640)
	write(t, dir+"/sub/read\xffonly", "ro", 0o400)
	write(t, dir+"/empty", "", 0o600)
	check(t, os.Chmod(dir+"/empty", 0o750|fs.ModeSetuid))
	check(t, os.Symlink("/nope", dir+"/dang"))
	check(t, os.Symlink(".", dir+"/sub/loop"))
	check(t, os.Link(dir+"/file", dir+"/sub/hard"))
	fifo(t, dir+"/fifo")
	sock, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/sock", Net: "unix"})
	check(t, err)
	sock.SetUnlinkOnClose(false)
	check(t, sock.Close())
	_ = unix.Setxattr(dir+"/file", "user.note", []byte("kept"), 0)
	if os.Getuid() == 0 {
		check(t, unix.Mknod(dir+"/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		check(t, os.Chown(dir+"/file", nobody, 12345))
		check(t, os.Lchown(dir+"/dang", nobody, 12345))
		check(t, os.Chown(dir+"/sub", nobody, 12345))
	}
	at := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	check(t, os.Chtimes(dir+"/file", at, at))
	check(t, os.Chmod(dir+"/sub", 0o555))
	check(t, os.Chtimes(dir+"/sub", at, at))
	t.Cleanup(func() { os.Chmod(dir+"/sub", 0o755) })
}

// signature describes a tree without its place and without what a copy can't keep.
func signature(t *testing.T, dir string) []string {
	var all []string
	for _, i := range list(t, dir, 99) {
		modified := i.Modified
		if i.Type == TypeSymlink {
			modified = time.Time{}
		}
		all = append(all, strings.TrimPrefix(i.Path, dir)+" "+i.Type+" "+i.Owner+" "+i.Group+" "+i.Target+" "+modified.String()+" "+
			strings.Join([]string{itoa(i.Size), itoa(int64(i.Mode))}, " "))
	}
	return all
}

func itoa(n int64) string { return time.Duration(n).String() }

func TestMoveAcrossFileSystemsKeepsEverything(t *testing.T) {
	src, other := t.TempDir(), otherDir(t)
	tree(t, src+"/t")
	before := signature(t, src+"/t")
	check(t, move(t, src+"/t", other+"/made/t"))
	t.Cleanup(func() { os.Chmod(other+"/made/t/sub", 0o755) })
	equal(t, signature(t, other+"/made/t"), before)
	equal(t, namesIn(t, src), []string(nil))
	equal(t, namesIn(t, other+"/made"), []string{"t"})
	equal(t, content(t, other+"/made/t/file")+content(t, other+"/made/t/sub/read\xffonly"), "contentro")
	var a, b, null unix.Stat_t
	check(t, unix.Lstat(other+"/made/t/file", &a))
	check(t, unix.Lstat(other+"/made/t/sub/hard", &b))
	if a.Ino != b.Ino {
		t.Error("the hard link is a copy")
	}
	if os.Getuid() == 0 {
		check(t, unix.Lstat(other+"/made/t/null", &null))
		if null.Mode&unix.S_IFMT != unix.S_IFCHR || null.Rdev != unix.Mkdev(1, 3) {
			t.Errorf("the device is %o %x", null.Mode, null.Rdev)
		}
	}
	// And a single file of each type, back again.
	for _, name := range []string{"file", "dang", "fifo", "empty"} {
		check(t, move(t, other+"/made/t/"+name, src+"/"+name))
	}
	equal(t, namesIn(t, src), []string{"dang", "empty", "fifo", "file"})
	if content(t, src+"/file") != "content" || mode(t, src+"/empty") != 0o4750 {
		t.Errorf("%q %o", content(t, src+"/file"), mode(t, src+"/empty"))
	}
}

func TestMoveAcrossFileSystemsKeepsHoles(t *testing.T) {
	src, other := t.TempDir(), otherDir(t)
	path := write(t, src+"/sparse", "begin", 0o600)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	check(t, err)
	_, err = file.WriteAt([]byte("middle"), 40<<20)
	check(t, err)
	check(t, file.Truncate(80<<20))
	check(t, file.Close())
	check(t, move(t, path, other+"/sparse"))
	var st unix.Stat_t
	check(t, unix.Stat(other+"/sparse", &st))
	if st.Size != 80<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes in %d", st.Size, st.Blocks*512)
	}
	got := content(t, other+"/sparse")
	if got[:5] != "begin" || got[40<<20:40<<20+6] != "middle" || strings.Trim(got, "\x00") == "" {
		t.Error("content differs")
	}
	if n := strings.Count(got, "\x00"); n != 80<<20-11 {
		t.Errorf("%d zeros", n)
	}
}

func TestAFailedMoveAcrossFileSystemsLeavesBothSidesAsTheyWere(t *testing.T) {
	_, inside := asNobody(t)
	if !inside {
		return
	}
	src, other := t.TempDir(), otherDir(t)
	write(t, src+"/t/a", "A", 0o600)
	write(t, src+"/t/secret", "S", 0)
	wantKind(t, move(t, src+"/t", other+"/t"), ErrPermission)
	equal(t, namesIn(t, src+"/t"), []string{"a", "secret"})
	equal(t, namesIn(t, other), []string(nil))
	// What can't be removed isn't copied either.
	check(t, os.Chmod(src, 0o500))
	wantKind(t, move(t, src+"/t", other+"/t"), ErrPermission)
	check(t, os.Chmod(src, 0o700))
	equal(t, namesIn(t, other), []string(nil))
}

func TestRenameWithoutTheFlagIsAsCareful(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/d", 0o700))
	// The kernel answers EINVAL here, as for a file system without the flag.
	if err := rename(dir+"/d", dir+"/d/x"); err != unix.EINVAL {
		t.Error(err)
	}
	write(t, dir+"/d/x/y", "", 0o600)
	if err := rename(dir+"/d", dir+"/d/x"); err != unix.EEXIST && err != unix.EINVAL {
		t.Error(err)
	}
}

func TestWhatCannotBeRemovedIsNotLeftTwice(t *testing.T) {
	other := otherDir(t)
	wantKind(t, move(t, "/proc/version", other+"/version"), ErrPermission)
	equal(t, namesIn(t, other), []string(nil))
}
