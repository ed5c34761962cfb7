package shellrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/celld/celld/internal/proctree"
)

// Sessions makes sessions and sees the records by which their shells say that a run has ended. One inotify instance
// serves them all: the kernel gives a user 128 of them. Its methods may be called from any goroutine.
type Sessions struct {
	dir      string
	patience patience
	file     *os.File // inotify
	bufs     buffers
	census   proctree.Census
	done     chan struct{}

	mu      sync.Mutex
	next    int
	watches map[int32]*Session // by watch descriptor
}

// NewSessions returns a maker of sessions that keeps their folders in dir, best a tmpfs. dir is made if it is missing;
// it must be reachable by the users that sessions run as, and short: at most 80 bytes.
func NewSessions(dir string) (*Sessions, error) {
	if len(dir) > maxRunDir || !runDir.MatchString(dir) {
		return nil, fmt.Errorf("sessions' folder %q: want an absolute path of at most %d bytes, of letters, digits and /._+-", dir, maxRunDir)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make sessions' folder: %w", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch sessions: %w", os.NewSyscallError("inotify_init1", err))
	}
	h := &Sessions{
		dir: dir, patience: usualPatience(),
		file:    os.NewFile(uintptr(fd), "inotify"),
		done:    make(chan struct{}),
		watches: make(map[int32]*Session),
	}
	go h.read()
	return h, nil
}

const maxRunDir = 80

// runDir is what bash and our scripts read as it stands.
var runDir = regexp.MustCompile(`^/[A-Za-z0-9/._+-]+$`)

// Close stops watching. The sessions must have been closed.
func (h *Sessions) Close() error {
	err := h.file.Close()
	<-h.done
	return err
}

// folder returns a path that nobody has used.
func (h *Sessions) folder() (string, error) {
	for {
		h.mu.Lock()
		h.next++
		n := h.next
		h.mu.Unlock()
		dir := filepath.Join(h.dir, fmt.Sprintf("s%d", n))
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, os.ErrNotExist) { // the whole folder was removed
			if err = os.MkdirAll(h.dir, 0o711); err == nil {
				continue
			}
		}
		if errors.Is(err, os.ErrExist) {
			continue
		}
		return dir, err
	}
}

// watch sends the names of what appears in dir to s.recorded.
func (h *Sessions) watch(dir string, s *Session) error {
	wd, err := h.add(dir)
	if err != nil {
		return fmt.Errorf("watch session %s: %w", s.id, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches[wd] = s
	return nil
}

func (h *Sessions) add(dir string) (wd int32, err error) {
	rc, err := h.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := rc.Control(func(fd uintptr) {
		var n int
		n, err = unix.InotifyAddWatch(int(fd), dir, unix.IN_CREATE|unix.IN_ONLYDIR)
		wd = int32(n)
	})
	if cerr != nil {
		return 0, cerr
	}
	return wd, os.NewSyscallError("inotify_add_watch", err)
}

// unwatch forgets s. Its folder is about to go, and the kernel's watch with it.
func (h *Sessions) unwatch(s *Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for wd, owner := range h.watches {
		if owner == s {
			delete(h.watches, wd)
		}
	}
}

func (h *Sessions) read() {
	defer close(h.done)
	buf := make([]byte, 16<<10)
	for {
		n, err := h.file.Read(buf)
		if err != nil {
			return
		}
		h.dispatch(buf[:n])
	}
}

// dispatch takes whole events (inotify(7)): watch, mask, cookie, length of the name, name padded with zeros.
func (h *Sessions) dispatch(events []byte) {
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events[0:]))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		events = events[end:]

		if mask&unix.IN_Q_OVERFLOW != 0 {
			for _, s := range h.all() {
				s.look()
			}
			continue
		}
		h.mu.Lock()
		s := h.watches[wd]
		if mask&unix.IN_IGNORED != 0 {
			delete(h.watches, wd)
		}
		h.mu.Unlock()
		if s != nil && mask&unix.IN_CREATE != 0 {
			s.recorded(name)
		}
	}
}

func (h *Sessions) all() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*Session, 0, len(h.watches))
	for _, s := range h.watches {
		all = append(all, s)
	}
	return all
}
