package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Content is a regular file open for reading. Close closes it. One goroutine uses it.
type Content struct {
	File     *os.File  // for http.ServeContent, which sends it without copying, unless Live
	Path     string    // absolute
	Modified time.Time // of the content
	Size     int64     // bytes when it was opened; meaningless if Live
	ETag     string    // a strong validator with its quotes; empty if Live
	// Live says that the file is made up while it is read, as in /proc: its size is not what reading gives, and
	// there is nothing to seek in. Read it through Reader.
	Live bool
}

// Open opens the file that path leads to. It never blocks: the error is ErrIsDir for a directory and ErrNotRegular
// for a FIFO, socket or device, which are not opened at all.
func (f FS) Open(path string) (*Content, error) {
	abs, err := f.Abs(path)
	if err != nil {
		return nil, err
	}
	file, st, err := openRegular(abs, unix.O_RDONLY)
	if err != nil {
		return nil, fail("read", path, err)
	}
	c := &Content{File: file, Path: abs, Size: st.Size, Modified: time.Unix(st.Mtim.Unix()).UTC()}
	if c.Live, err = live(file, st.Size); err != nil {
		file.Close()
		return nil, fail("read", path, err)
	}
	if !c.Live {
		c.ETag = fmt.Sprintf(`"%x-%x-%x"`, st.Ino, st.Size, st.Mtim.Nano())
	}
	return c, nil
}

// Close closes the file.
func (c *Content) Close() error { return c.File.Close() }

// Reader returns a reader of the content from where the file stands. It ends where a read would have to wait, as
// reads of some files in /proc do.
func (c *Content) Reader() io.Reader {
	if !c.Live {
		return c.File
	}
	return &liveReader{file: c.File}
}

// openRegular opens what path leads to with flags and returns its status. Nothing but a regular file is opened:
// opening some devices alone does something.
func openRegular(path string, flags int) (*os.File, *syscall.Stat_t, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	if err := regular(st.Mode); err != nil {
		return nil, nil, err
	}
	// It may be another file by now: hence O_NONBLOCK, and the second look.
	file, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = file.Stat(); err == nil {
		st = info.Sys().(*syscall.Stat_t)
		err = regular(st.Mode)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, st, nil
}

// liveSystems are the file systems whose files have a size of no meaning (statfs(2)).
var liveSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
	unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.EFIVARFS_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC,
}

func live(file *os.File, size int64) (bool, error) {
	var fs unix.Statfs_t
	if err := control(file, func(fd int) error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return false, err
	}
	if slices.Contains(liveSystems, int64(fs.Type)) {
		return true, nil
	}
	if size > 0 {
		return false, nil
	}
	// Some file systems in user space know no sizes either.
	n, err := file.ReadAt(make([]byte, 1), 0)
	return n > 0, ignoreEOF(err)
}

// control calls f with file's descriptor, again for as long as a signal interrupts it. File.Fd would make the
// descriptor a blocking one.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	err = raw.Control(func(fd uintptr) {
		_, callErr = ignoringEINTR(func() (int, error) { return 0, f(int(fd)) })
	})
	return errors.Join(err, callErr)
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// liveReader reads without ever waiting, which os.File would do for us.
type liveReader struct{ file *os.File }

func (r *liveReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	raw, err := r.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		n, readErr = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), p) })
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case readErr == unix.EAGAIN:
		return 0, io.EOF
	case readErr != nil:
		return 0, readErr
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
