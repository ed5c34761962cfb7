package files

import (
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Types of an entry.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeOther     = "other" // FIFO, socket, device
)

// Info describes one entry; a link is described itself.
type Info struct {
	Path     string // absolute, any bytes
	Type     string // one of the Type constants
	Size     int64  // bytes; 0 for a directory; for a link the length of its target
	Mode     uint32 // permission bits with setuid, setgid and sticky, as chmod(2) takes them
	Owner    string // user name, or the number where it has none
	Group    string // group name, or the number where it has none
	Modified time.Time
	Created  time.Time // birth time; where the file system keeps none, the earlier of last change and modification
	Target   string    // a link's target as it is written in the link
	Err      error     // in lists only: why there is no more than Path and Type; the rest is zero then
}

// Info describes path.
func (f FS) Info(path string) (Info, error) {
	infos, err := f.Infos([]string{path})
	if err != nil {
		return Info{}, err
	}
	return infos[0], nil
}

// Infos describes each of paths, in that order, or fails with the first error.
func (f FS) Infos(paths []string) ([]Info, error) {
	who := newNames()
	infos := make([]Info, len(paths))
	for i, path := range paths {
		abs, err := f.Abs(path)
		if err == nil {
			infos[i].Path = abs
			err = infos[i].stat(unix.AT_FDCWD, abs, who)
		}
		if err != nil {
			return nil, fail("describe", path, err)
		}
	}
	return infos, nil
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// stat fills everything but Path from name, relative to the directory dir.
func (i *Info) stat(dir int, name string, who *names) error {
	var st unix.Statx_t
	_, err := ignoringEINTR(func() (int, error) {
		return 0, unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, &st)
	})
	if err != nil {
		return err
	}
	i.Type = typeOf(uint32(st.Mode))
	i.Size = int64(st.Size)
	i.Mode = uint32(st.Mode) & permBits
	i.Owner, i.Group = who.user(st.Uid), who.group(st.Gid)
	i.Modified = statxTime(st.Mtime)
	i.Target, i.Err = "", nil
	if st.Mask&unix.STATX_BTIME != 0 {
		i.Created = statxTime(st.Btime)
	} else if i.Created = statxTime(st.Ctime); i.Modified.Before(i.Created) {
		i.Created = i.Modified
	}
	switch i.Type {
	case TypeDirectory:
		i.Size = 0
	case TypeSymlink:
		// It may have been replaced since: then there is no target to tell.
		i.Target, _ = readlink(dir, name)
	}
	return nil
}

// permBits are the bits of a mode that chmod(2) sets.
const permBits = 0o7777

func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDirectory
	case unix.S_IFLNK:
		return TypeSymlink
	}
	return TypeOther
}

func statxTime(t unix.StatxTimestamp) time.Time { return time.Unix(t.Sec, int64(t.Nsec)).UTC() }

// names turns ids into names, each looked up once. It serves one request: accounts may change between two.
type names struct{ users, groups map[uint32]string }

func newNames() *names { return &names{map[uint32]string{}, map[uint32]string{}} }

func (n *names) user(id uint32) string {
	name, ok := n.users[id]
	if !ok {
		name = strconv.FormatUint(uint64(id), 10)
		if u, err := user.LookupId(name); err == nil && u.Username != "" {
			name = u.Username
		}
		n.users[id] = name
	}
	return name
}

func (n *names) group(id uint32) string {
	name, ok := n.groups[id]
	if !ok {
		name = strconv.FormatUint(uint64(id), 10)
		if g, err := user.LookupGroupId(name); err == nil && g.Name != "" {
			name = g.Name
		}
		n.groups[id] = name
	}
	return name
}
