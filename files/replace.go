package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Edit is a text to look for and what to put in its place. Both are bytes, no pattern.
type Edit struct {
	Old string `json:"old"` // not empty
	New string `json:"new"`
}

// Replace carries out each edit on the file at its path, through links, in the order of the paths: every occurrence
// of Old, from the left and without overlap. It returns how many there were, under the paths as given. A file is
// written in place, so mode, owner and links to it stay; without an occurrence it isn't touched. The new content is
// complete, and its space reserved where the file system can do that, before the first byte changes.
//
// The error is ErrInvalid for an empty Old and a file made up by the kernel, ErrIsDir, ErrNotRegular, ErrNotFound, or
// ErrConflict when somebody else changed the file meanwhile.
func (f FS) Replace(ctx context.Context, edits map[string]Edit) (map[string]int64, error) {
	paths := slices.Sorted(maps.Keys(edits))
	for _, path := range paths {
		if edits[path].Old == "" {
			return nil, &Error{Op: "replace in", Path: path, Kind: ErrInvalid, Err: errors.New("the text to look for is empty")}
		}
		c, err := f.openToEdit(path)
		if err != nil {
			return nil, err
		}
		c.Close()
	}
	counts := make(map[string]int64, len(paths))
	for _, path := range paths {
		n, err := f.replace(ctx, path, edits[path])
		if err != nil {
			return counts, fail("replace in", path, err)
		}
		counts[path] = n
	}
	return counts, nil
}

func (f FS) openToEdit(path string) (*os.File, error) {
	abs, err := f.Abs(path)
	if err != nil {
		return nil, err
	}
	file, st, err := openRegular(abs, unix.O_RDWR)
	if err != nil {
		return nil, fail("replace in", path, err)
	}
	made, err := live(file, st.Size)
	if err == nil && made {
		err = ErrInvalid
	}
	if err != nil {
		file.Close()
		return nil, fail("replace in", path, err)
	}
	return file, nil
}

// inMemory is the size up to which an edited file is put together in memory, and past which in a temporary file.
const inMemory = 4 << 20

func (f FS) replace(ctx context.Context, path string, e Edit) (int64, error) {
	file, err := f.openToEdit(path)
	if err != nil {
		return 0, err
	}
	n, err := replaceIn(ctx, file, e)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return n, err
}

func replaceIn(ctx context.Context, file *os.File, e Edit) (int64, error) {
	before, err := file.Stat()
	if err != nil {
		return 0, err
	}
	src := &ctxReader{ctx, file}
	if before.Size() <= inMemory {
		var out bytes.Buffer
		count, first, err := replaceAll(&out, src, []byte(e.Old), []byte(e.New))
		if err != nil || count == 0 || e.Old == e.New {
			return count, err
		}
		return count, overwrite(file, before, bytes.NewReader(out.Bytes()), int64(out.Len()), first)
	}
	out, err := scratch()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	buffered := bufio.NewWriterSize(out, replaceBuf)
	count, first, err := replaceAll(buffered, src, []byte(e.Old), []byte(e.New))
	if err != nil || count == 0 || e.Old == e.New {
		return count, err
	}
	if err := buffered.Flush(); err != nil {
		return count, err
	}
	size, err := out.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	return count, overwrite(file, before, out, size, first)
}

// overwrite makes file hold the size bytes of content, which begins with the first same bytes as file. before is
// file's status when content was made from it.
func overwrite(file *os.File, before os.FileInfo, content io.ReaderAt, size, same int64) error {
	now, err := file.Stat()
	if err != nil {
		return err
	}
	if now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime()) {
		return ErrConflict
	}
	if size > before.Size() {
		// Find out about a full disk before the first byte changes, where the file system can say.
		if err := control(file, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) }); err != nil &&
			!errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
			// It may have grown by part of it.
			return errors.Join(err, file.Truncate(before.Size()))
		}
	}
	if _, err := io.Copy(io.NewOffsetWriter(file, same), io.NewSectionReader(content, same, size-same)); err != nil {
		return err
	}
	if err := file.Truncate(size); err != nil {
		return err
	}
	// Writing clears setuid and setgid for everybody but root.
	mode := before.Sys().(*syscall.Stat_t).Mode
	if mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		return file.Chmod(fileMode(mode & permBits))
	}
	return nil
}

// scratch returns a temporary file without a name: it is gone when it is closed.
func scratch() (*os.File, error) {
	file, err := os.CreateTemp("", ".celld-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

const replaceBuf = 256 << 10

// replaceAll copies r to w with each old replaced by new, as bytes.ReplaceAll does, and returns how often, and the
// offset of the first. It holds no more than a window of r.
func replaceAll(w io.Writer, r io.Reader, old, new []byte) (count, first int64, err error) {
	buf := make([]byte, 0, max(replaceBuf, 2*len(old)))
	var done int64 // bytes of r written so far, in one form or the other
	for atEnd := false; !atEnd; {
		n, readErr := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if atEnd = readErr == io.EOF; readErr != nil && !atEnd {
			return count, first, readErr
		}
		rest := buf
		for {
			i := bytes.Index(rest, old)
			if i < 0 {
				break
			}
			if count == 0 {
				first = done + int64(len(buf)-len(rest)+i)
			}
			count++
			if _, err := w.Write(rest[:i]); err != nil {
				return count, first, err
			}
			if _, err := w.Write(new); err != nil {
				return count, first, err
			}
			rest = rest[i+len(old):]
		}
		// What could be the beginning of another old waits for more.
		keep := 0
		if !atEnd {
			keep = min(len(rest), len(old)-1)
		}
		if _, err := w.Write(rest[:len(rest)-keep]); err != nil {
			return count, first, err
		}
		done += int64(len(buf) - keep)
		buf = append(buf[:0], rest[len(rest)-keep:]...)
	}
	return count, first, nil
}

// ctxReader fails once ctx is done.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
