package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// copier copies a tree to another file system as faithfully as that and our rights allow.
type copier struct {
	ctx   context.Context
	links map[fileID]string // where files with several names have been copied to
	trees int               // directories copied
}

type fileID struct{ dev, ino uint64 }

// copy copies what is at src, a link as a link, to dest, where nothing is.
func (c *copier) copy(src, dest string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	info, err := os.Lstat(src)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	id := fileID{st.Dev, st.Ino}
	if st.Nlink > 1 && !info.IsDir() {
		if first, ok := c.links[id]; ok {
			return os.Link(first, dest)
		}
		c.links[id] = dest
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = c.file(src, dest)
	case unix.S_IFDIR:
		err = c.dir(src, dest)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(src); err == nil {
			err = os.Symlink(target, dest)
		}
	default:
		err = unix.Mknod(dest, st.Mode&unix.S_IFMT|0o600, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	return attributes(src, dest, st)
}

func (c *copier) dir(src, dest string) error {
	if err := os.Mkdir(dest, 0o700); err != nil {
		return err
	}
	c.trees++
	dir, err := os.Open(src)
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.copy(filepath.Join(src, name), filepath.Join(dest, name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) file(src, dest string) (err error) {
	in, st, err := openRegular(src, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dest, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if st.Blocks*512 < st.Size {
		err = c.sparse(in, out, st.Size)
	} else {
		err = c.span(in, out, -1)
	}
	if err != nil || c.trees > 0 {
		return err // a tree is synced as a whole
	}
	return out.Sync()
}

// sparse copies the parts of in that hold data, and leaves holes as holes.
func (c *copier) sparse(in, out *os.File, size int64) error {
	for at := int64(0); ; {
		data, err := in.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return out.Truncate(size) // nothing but a hole follows
		}
		if err != nil {
			return err
		}
		hole, err := in.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for _, file := range []*os.File{in, out} {
			if _, err := file.Seek(data, io.SeekStart); err != nil {
				return err
			}
		}
		if err := c.span(in, out, hole-data); err != nil {
			return err
		}
		at = hole
	}
}

// span copies n bytes, or all that follow if n < 0, in pieces that ctx can interrupt.
func (c *copier) span(in, out *os.File, n int64) error {
	const piece = 16 << 20
	for n != 0 {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		want := int64(piece)
		if n > 0 {
			want = min(want, n)
		}
		got, err := io.CopyN(out, in, want) // in the kernel where it can
		if n > 0 {
			n -= got
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sync puts what was copied to temp on disk: one file has been synced already, for a tree the file system is.
func (c *copier) sync(temp string) error {
	if c.trees == 0 {
		return nil
	}
	dir, err := os.Open(temp)
	if errors.Is(err, os.ErrPermission) {
		dir, err = os.Open(filepath.Dir(temp)) // its mode forbids it to us
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return control(dir, unix.Syncfs)
}

// attributes gives dest src's owner, extended attributes, mode and times. Owners and attributes that we may not set,
// or that the file system can't hold, are left out.
func attributes(src, dest string, st *syscall.Stat_t) error {
	if err := os.Lchown(dest, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	copyXattrs(src, dest)
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := os.Chmod(dest, fileMode(st.Mode&permBits)); err != nil {
			return err
		}
	}
	times := []unix.Timespec{unix.NsecToTimespec(st.Atim.Nano()), unix.NsecToTimespec(st.Mtim.Nano())}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dest, times, unix.AT_SYMLINK_NOFOLLOW)
}

func copyXattrs(src, dest string) {
	list := make([]byte, 64<<10) // the kernel's limit, as for a value
	n, err := unix.Llistxattr(src, list)
	if err != nil || n == 0 {
		return
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if n, err := unix.Lgetxattr(src, name, value); err == nil {
			_ = unix.Lsetxattr(dest, name, value[:n], 0)
		}
	}
}
