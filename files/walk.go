package files

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// walker goes through a tree in lexical order, parents before their children. It descends into directories by
// descriptor, so that neither a link put in its way nor a path longer than the kernel takes leads it astray.
type walker struct {
	ctx context.Context
	who *names
	// visit is called for each entry: dir is the directory it is in, path its absolute path, depth ≥ 1 the number
	// of names below the root. It says whether to descend, should the entry be a directory. Its error ends the walk.
	visit func(w *walker, dir int, path []byte, e entry, depth int) (descend bool, err error)

	buf  []byte // of getdents64(2)
	path []byte
	open int // directories held open below the root
}

// entry is what a directory says of one of its entries.
type entry struct {
	name string
	typ  uint8 // DT_REG etc.; DT_UNKNOWN where the file system doesn't say
}

const (
	// heldDirs is how many directories a walk keeps open on its way down. Below that it closes a directory before
	// it descends, and comes back to it by "..".
	heldDirs = 64
	// checkEvery is the number of entries after which a walk looks whether it is still wanted.
	checkEvery = 256
	direntBuf  = 64 << 10
)

// walk walks the open directory root, whose absolute path is path. It closes root.
func (w *walker) walk(root int, path string) error {
	w.buf = make([]byte, direntBuf)
	w.path = append(w.path[:0], strings.TrimSuffix(path, "/")...)
	entries, err := w.read(root)
	if err != nil {
		unix.Close(root)
		return err
	}
	root, err = w.entries(root, entries, 1)
	if root >= 0 {
		unix.Close(root)
	}
	return err
}

// entries visits entries of dir and what is below them. It owns dir, which it may have to close and open again: it
// returns the descriptor the directory has now, or -1 when the way back to it is lost because somebody moved it.
func (w *walker) entries(dir int, entries []entry, depth int) (int, error) {
	base := len(w.path)
	defer func() { w.path = w.path[:base] }()
	for i := range entries {
		e := &entries[i]
		if i%checkEvery == 0 {
			if err := w.ctx.Err(); err != nil {
				return dir, err
			}
		}
		if e.typ == unix.DT_UNKNOWN {
			e.typ = statType(dir, e.name)
		}
		w.path = append(append(w.path[:base], '/'), e.name...)
		descend, err := w.visit(w, dir, w.path, *e, depth)
		if err != nil {
			return dir, err
		}
		if !descend || e.typ != unix.DT_DIR {
			continue
		}
		if dir, err = w.descend(dir, e.name, depth); err != nil || dir < 0 {
			return dir, err
		}
	}
	return dir, nil
}

// descend visits what is in dir's directory name. A directory that can't be opened or read is passed over. It
// returns dir's descriptor as entries does.
func (w *walker) descend(dir int, name string, depth int) (int, error) {
	child, err := openDirAt(dir, name)
	if err != nil {
		return dir, nil
	}
	below, err := w.read(child)
	if err != nil || len(below) == 0 {
		unix.Close(child)
		return dir, nil
	}
	if w.open < heldDirs {
		w.open++
		child, err = w.entries(child, below, depth+1)
		w.open--
		if child >= 0 {
			unix.Close(child)
		}
		return dir, err
	}
	var was, is unix.Stat_t
	if err := unix.Fstat(dir, &was); err != nil {
		unix.Close(child)
		return dir, nil
	}
	unix.Close(dir)
	child, err = w.entries(child, below, depth+1)
	if child < 0 {
		return -1, err
	}
	defer unix.Close(child)
	if err != nil {
		return -1, err
	}
	dir, err = openDirAt(child, "..")
	if err != nil {
		return -1, nil
	}
	if err := unix.Fstat(dir, &is); err != nil || is.Dev != was.Dev || is.Ino != was.Ino {
		unix.Close(dir)
		return -1, nil
	}
	return dir, nil
}

// read returns the entries of dir in lexical order.
func (w *walker) read(dir int) ([]entry, error) {
	var all []entry
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(dir, w.buf) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		all = appendEntries(all, string(w.buf[:n]))
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// appendEntries cuts what getdents64(2) gave into entries. Their names share b's memory: one allocation serves a
// thousand of them.
func appendEntries(all []entry, b string) []entry {
	const header = 19 // ino 8, off 8, reclen 2, type 1
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint16([]byte(b[16:18])))
		if size < header || size > len(b) {
			break
		}
		name := b[header:size]
		if end := strings.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if name != "." && name != ".." {
			all = append(all, entry{name, b[18]})
		}
		b = b[size:]
	}
	return all
}

func openDirAt(dir int, name string) (int, error) {
	return ignoringEINTR(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

func statType(dir int, name string) uint8 {
	var st unix.Stat_t
	_, err := ignoringEINTR(func() (int, error) { return 0, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return unix.DT_UNKNOWN
	}
	return uint8(st.Mode & unix.S_IFMT >> 12) // DT_* are the type bits of a mode (readdir(3))
}

// describe fills i with the entry at path. When even that fails, i says why; ok is false if the entry has vanished.
func (w *walker) describe(i *Info, dir int, path []byte, e entry) (ok bool) {
	err := i.stat(dir, e.name, w.who)
	if err == unix.ENOENT {
		return false
	}
	if err != nil {
		*i = Info{Type: typeOf(uint32(e.typ) << 12), Err: err}
	}
	i.Path = string(path)
	return true
}
