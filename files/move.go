package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Move is one entry to rename.
type Move struct {
	Src  string `json:"src"`
	Dest string `json:"dest"`
}

// Move renames each Src to its Dest, one after the other, links as links, and makes missing parents of Dest with
// 0777 less the umask. The first failure ends it; what was moved before stays moved.
//
// Between two file systems it copies to a temporary name beside Dest, with modes, owners, times, extended attributes,
// links and hard links, syncs, renames, and only then removes Src. Nothing is opened but regular files and
// directories; FIFOs, sockets and devices are made anew.
//
// The error is ErrNotFound for Src, ErrConflict when Dest exists, be it a directory or a dangling link, and
// ErrInvalid when Dest is inside Src.
func (f FS) Move(ctx context.Context, moves []Move) error {
	for _, m := range moves {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.move(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (f FS) move(ctx context.Context, m Move) error {
	src, err := f.Abs(m.Src)
	if err != nil {
		return err
	}
	dest, err := f.Abs(m.Dest)
	if err != nil {
		return err
	}
	info, err := os.Lstat(src)
	if err != nil {
		return fail("move", m.Src, err)
	}
	switch {
	case strings.HasPrefix(dest, strings.TrimSuffix(src, "/")+"/"):
		return &Error{Op: "move to", Path: m.Dest, Kind: ErrInvalid, Err: errors.New("that is inside " + m.Src)}
	case strings.HasSuffix(m.Dest, "/") && !info.IsDir():
		return &Error{Op: "move to", Path: m.Dest, Kind: ErrNotDir}
	}
	if err := makeParents(dest, access{-1, -1, -1}); err != nil {
		return failCreate("move to", m.Dest, err)
	}
	err = rename(src, dest)
	if errors.Is(err, unix.EXDEV) {
		err = moveAcross(ctx, src, dest)
	}
	if errors.Is(err, unix.ENOENT) {
		if _, lost := os.Lstat(src); lost != nil {
			return fail("move", m.Src, lost)
		}
	}
	return failCreate("move to", m.Dest, err)
}

// rename is rename(2) that fails with EEXIST instead of replacing anything.
func rename(src, dest string) error {
	_, err := ignoringEINTR(func() (int, error) {
		return 0, unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dest, unix.RENAME_NOREPLACE)
	})
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	// The file system doesn't know RENAME_NOREPLACE, or the rename itself is absurd.
	if _, err := os.Lstat(dest); err == nil {
		return unix.EEXIST
	}
	_, err = ignoringEINTR(func() (int, error) { return 0, unix.Rename(src, dest) })
	return err
}

// moveAcross moves src to another file system.
func moveAcross(ctx context.Context, src, dest string) (err error) {
	if _, err := os.Lstat(dest); err == nil {
		return unix.EEXIST
	}
	// What can't be removed afterwards must not be there twice.
	if err := unix.Faccessat(unix.AT_FDCWD, filepath.Dir(src), unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(dest), tempName())
	defer func() {
		if err != nil {
			os.RemoveAll(temp)
		}
	}()
	c := copier{ctx: ctx, links: map[fileID]string{}}
	if err := c.copy(src, temp); err != nil {
		return err
	}
	if err := c.sync(temp); err != nil {
		return err
	}
	if err := rename(temp, dest); err != nil {
		return err
	}
	// The new name must be on disk before the old one goes: they are in different journals.
	if err := syncDir(filepath.Dir(dest)); err != nil {
		return err
	}
	if err := os.RemoveAll(src); err != nil {
		if file, lost := os.Lstat(src); lost == nil && !file.IsDir() { // it is whole; of a tree parts may be gone
			return errors.Join(err, os.Remove(dest))
		}
		return err
	}
	return nil
}

// syncDir syncs a directory's entries, if it may be opened and its file system can.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}
