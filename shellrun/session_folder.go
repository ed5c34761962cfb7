package shellrun

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A session's folder belongs to its user and holds
//
//	w       what to do for this run
//	bash    its text: the name is what error messages begin with
//	r/      the records; watched
//	s       a named pipe: the snapshots
//	o1 e1 … named pipes: output of runs
//	tail, interrupt, unwind, mend: scripts
//
// Whoever runs in the session may remove it. What is needed is made again.

// nonce is 32 hexadecimal digits that nobody can guess.
func nonce() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// mark begins the lines that cut a snapshot into parts.
func (s *Session) mark() string { return "celld:" + s.token }

// furnish makes what is missing in the session's folder.
func (s *Session) furnish() error {
	if err := os.MkdirAll(s.hub.dir, 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Mkdir(s.dir+"/r", 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := s.hub.watch(s.dir+"/r", s); err != nil {
		return err
	}
	trap := trapCommand(s.dir)
	for name, script := range map[string]string{
		"tail": tailScript, "interrupt": interruptScript, "unwind": unwindScript, "mend": mendScript,
	} {
		if err := s.write(name, fill(script, "@DIR@", s.dir, "@MARK@", s.mark(), "@TRAP@", trap)); err != nil {
			return err
		}
	}
	if c := s.cfg.Credential; c != nil {
		for _, dir := range []string{s.dir + "/r", s.dir} {
			if err := os.Lchown(dir, int(c.Uid), int(c.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

// write makes the file name in the session's folder, which belongs to somebody we don't trust: never through a link,
// never into a file that was there.
func (s *Session) write(name, content string) error {
	path := s.dir + "/" + name
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0o600)
	if err == unix.EEXIST {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		fd, err = unix.Open(path, flags, 0o600)
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := s.own(fd); err != nil {
		return &os.PathError{Op: "chown", Path: path, Err: err}
	}
	for len(content) > 0 {
		n, err := unix.Write(fd, []byte(content))
		if err != nil {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
		content = content[n:]
	}
	return nil
}

// own gives an open file to the session's user.
func (s *Session) own(fd int) error {
	c := s.cfg.Credential
	if c == nil {
		return nil
	}
	return unix.Fchown(fd, int(c.Uid), int(c.Gid))
}

// fifo makes the named pipe name and opens it, with flags.
func (s *Session) fifo(name string, flags int) (int, error) {
	path := s.dir + "/" + name
	err := unix.Mkfifo(path, 0o600)
	if err == unix.EEXIST {
		os.RemoveAll(path)
		err = unix.Mkfifo(path, 0o600)
	}
	if err != nil {
		return -1, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return -1, fmt.Errorf("%s has been replaced", path)
	}
	if err := s.own(fd); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "chown", Path: path, Err: err}
	}
	return fd, nil
}

// clear removes what is needed once only.
func (s *Session) clear(names ...string) {
	for _, name := range names {
		unix.Unlink(s.dir + "/" + name)
	}
}
