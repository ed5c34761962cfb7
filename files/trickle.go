package files

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// trickle sends a file to disk while it is being written, so that the final sync has little left to do, and lets go of
// the pages of a large one: the page cache counts as the container's memory, and a large upload would push everything
// else out of it.
type trickle struct {
	file    *os.File
	written int64 // bytes of the file so far
	begun   int64 // of those, how many are on their way to disk
}

const (
	trickleStep = 8 << 20
	// cached is how much of a file stays in the page cache: most files are read again soon.
	cached = 64 << 20
)

// wrote takes note of n more bytes at the end of the file. An error is one of writing to disk, of which the final
// sync would no longer tell.
func (t *trickle) wrote(n int) error {
	t.written += int64(n)
	if t.written-t.begun < trickleStep {
		return nil
	}
	before := t.begun
	t.begun = t.written
	err := control(t.file, func(fd int) error {
		if err := unix.SyncFileRange(fd, before, t.written-before, unix.SYNC_FILE_RANGE_WRITE); err != nil {
			return err
		}
		from := before - trickleStep
		if from < cached {
			return nil
		}
		if err := unix.SyncFileRange(fd, from, before-from, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER); err != nil {
			return err
		}
		return unix.Fadvise(fd, from, before-from, unix.FADV_DONTNEED)
	})
	for _, no := range []unix.Errno{unix.ENOSYS, unix.EINVAL, unix.ESPIPE, unix.EOPNOTSUPP} {
		if errors.Is(err, no) {
			return nil // not every file system can
		}
	}
	return err
}
