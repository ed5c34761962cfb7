package files

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func perms(mode int) Perm { return Perm{Mode: &mode} }

func TestDirectoriesGetTheirModeWhateverTheUmask(t *testing.T) {
	dir := t.TempDir()
	f := FS{Workspace: dir}
	underUmask(0o022, func() {
		check(t, f.MakeDirs(t.Context(), map[string]Perm{"a/b/c": perms(777), "s": perms(1777), "p/q": perms(700), "d": {}}))
	})
	for path, want := range map[string]uint32{"a/b/c": 0o777, "a/b": 0o755, "a": 0o755, "s": 0o1777, "p/q": 0o700, "p": 0o755, "d": 0o755} {
		i, err := f.Info(path)
		check(t, err)
		if i.Type != TypeDirectory || i.Mode != want {
			t.Errorf("%s is a %s with %o", path, i.Type, i.Mode)
		}
	}
}

func TestAParentNamedTooGetsItsOwnMode(t *testing.T) {
	dir := t.TempDir()
	check(t, FS{Workspace: dir}.MakeDirs(t.Context(), map[string]Perm{"a/b": perms(711), "a": perms(750)}))
	if mode(t, dir+"/a") != 0o750 || mode(t, dir+"/a/b") != 0o711 {
		t.Errorf("%o and %o", mode(t, dir+"/a"), mode(t, dir+"/a/b"))
	}
}

func TestExistingDirectoriesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/d", 0o700))
	check(t, os.Symlink("d", dir+"/link"))
	check(t, FS{Workspace: dir}.MakeDirs(t.Context(), map[string]Perm{"d": perms(777), "link": perms(777), "d/": perms(777), "link/e": perms(750)}))
	if mode(t, dir+"/d") != 0o700 || mode(t, dir+"/d/e") != 0o750 {
		t.Errorf("%o and %o", mode(t, dir+"/d"), mode(t, dir+"/d/e"))
	}
}

func TestOwnersGoToEveryDirectoryMade(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/old", 0o755))
	check(t, FS{Workspace: dir}.MakeDirs(t.Context(), map[string]Perm{"old/a/b": {Owner: "nobody", Group: "12345"}}))
	for path, want := range map[string]string{"old": "root:root", "old/a": "nobody:12345", "old/a/b": "nobody:12345"} {
		i, err := FS{}.Info(dir + "/" + path)
		check(t, err)
		if got := i.Owner + ":" + i.Group; got != want {
			t.Errorf("%s belongs to %s", path, got)
		}
	}
}

func TestDirectoriesOfOddNamesAreMade(t *testing.T) {
	dir := t.TempDir()
	f := FS{Workspace: dir}
	for _, name := range []string{"-p", " x", "$HOME", "~", "a\nb", "\xff", "*"} {
		check(t, f.MakeDirs(t.Context(), map[string]Perm{name: {}}))
		if i, err := os.Lstat(dir + "/" + name); err != nil || !i.IsDir() {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestMakingADirectoryWhereAFileIsFails(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "", 0o600)
	check(t, os.Symlink("nope", dir+"/dang"))
	f := FS{Workspace: dir}
	for path, kind := range map[string]error{
		"f": ErrConflict, "f/x": ErrNotDir, "f/x/y": ErrNotDir, "dang": ErrConflict, "": ErrInvalid, strings.Repeat("n", 300): ErrInvalid, "/proc/x": ErrNotFound,
	} {
		wantKind(t, f.MakeDirs(t.Context(), map[string]Perm{path: {}}), kind)
	}
	// Nothing is made when one of several is absurd.
	wantKind(t, f.MakeDirs(t.Context(), map[string]Perm{"new": {}, "other": perms(888)}), ErrInvalid)
	wantKind(t, f.MakeDirs(t.Context(), map[string]Perm{"new": {}, "other": {Owner: "nosuchuser_x"}}), ErrInvalid)
	equal(t, namesIn(t, dir), []string{"dang", "f"})
}

func TestRemovingFilesSparesDirectoriesAndTargets(t *testing.T) {
	dir := t.TempDir()
	f := FS{Workspace: dir}
	write(t, dir+"/a", "", 0o400)
	write(t, dir+"/d/kept", "", 0o600)
	check(t, os.Symlink("d", dir+"/link"))
	check(t, os.Symlink("nope", dir+"/dang"))
	fifo(t, dir+"/fifo")
	wantKind(t, f.RemoveFiles(t.Context(), []string{"a", "d"}), ErrIsDir)
	equal(t, namesIn(t, dir), []string{"a", "d", "dang", "fifo", "link"})
	check(t, f.RemoveFiles(t.Context(), []string{"a", "link", "dang", "fifo", "missing", "a"}))
	equal(t, namesIn(t, dir), []string{"d"})
	equal(t, namesIn(t, dir+"/d"), []string{"kept"})
	wantKind(t, f.RemoveFiles(t.Context(), []string{""}), ErrInvalid)
}

func TestRemovingDirectoriesIsRecursiveAndFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	f := FS{Workspace: dir}
	write(t, dir+"/d/e/f", "", 0o400)
	write(t, dir+"/other/kept", "", 0o600)
	check(t, os.Symlink("../other", dir+"/d/link"))
	check(t, os.Symlink("other", dir+"/link"))
	write(t, dir+"/file", "", 0o600)
	wantKind(t, f.RemoveDirs(t.Context(), []string{"d", "link"}), ErrNotDir)
	wantKind(t, f.RemoveDirs(t.Context(), []string{"d", "file"}), ErrNotDir)
	equal(t, namesIn(t, dir), []string{"d", "file", "link", "other"})
	check(t, f.RemoveDirs(t.Context(), []string{"d", "missing", "d/e"}))
	equal(t, namesIn(t, dir), []string{"file", "link", "other"})
	equal(t, namesIn(t, dir+"/other"), []string{"kept"})
}

func TestSomeDirectoriesAreNeverRemoved(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Mkdir(dir+"/d", 0o700))
	for _, path := range []string{"/", "//", "/.", "/..", "/proc", "/proc/", "/dev", "/sys/.", dir + "/../../../../../../..", ""} {
		wantKind(t, FS{}.RemoveDirs(t.Context(), []string{dir + "/d", path}), ErrInvalid)
	}
	equal(t, namesIn(t, dir), []string{"d"})
}

func TestDeepTreesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	check(t, err)
	for range 300 {
		check(t, unix.Mkdirat(fd, "0123456789abcdef0123456789abcdef", 0o755))
		next, err := unix.Openat(fd, "0123456789abcdef0123456789abcdef", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		check(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	check(t, FS{}.RemoveDirs(t.Context(), []string{dir + "/0123456789abcdef0123456789abcdef"}))
	equal(t, namesIn(t, dir), []string(nil))
}

func TestRemovingWhatMayNotBeRemovedSaysSo(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	write(t, dir+"/d/e/f", "", 0o600)
	check(t, os.Chmod(dir+"/d/e", 0o500))
	defer os.Chmod(dir+"/d/e", 0o700)
	wantKind(t, FS{}.RemoveDirs(t.Context(), []string{dir + "/d"}), ErrPermission)
	if _, err := os.Lstat(dir + "/d/e/f"); errors.Is(err, os.ErrNotExist) {
		t.Error("removed all the same")
	}
}
