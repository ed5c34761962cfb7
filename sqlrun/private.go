package sqlrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/celld/celld/internal/proctree"
)

const (
	startWithin = 2 * time.Minute  // a new data directory is made, and a server recovers, within this or not at all
	stopGrace   = 20 * time.Second // for a clean stop, as far as the caller has so much time
)

const maxSocketPath = 107 // unix(7)

// nobody is whom the server runs as when we are root.
const nobody = 65534

// PrivateConfig says how to run a server of our own.
type PrivateConfig struct {
	Dir      string   // where its data is kept; made at the first start, and not removed
	RunDir   string   // for its socket; made, and removed at the end. At most 80 bytes long
	Env      []string // of the server, with its PATH
	OOMScore *int     // oom_score_adj of its processes; nil: this process's; see [proctree.ChildOOMScore]
}

// Private is a server of our own: MariaDB or MySQL, whatever is installed. It is started at the first use on a unix socket,
// without a port, and started again when it has died. As root it runs as nobody, else as this process's user. Its
// methods may be called from any goroutine. Close ends it.
type Private struct {
	cfg  PrivateConfig
	dirs []string // where servers are that aren't in the PATH
	more []string // arguments of the server's beside the usual ones
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	now    *instance
}

// instance is one process of the server.
type instance struct {
	started chan struct{}      // closed when the start is over; socket, tree and err are valid then
	giveUp  context.CancelFunc // ends a start
	socket  string
	tree    *proctree.Tree
	err     error
}

// NewPrivate returns a server that isn't started yet.
func NewPrivate(cfg PrivateConfig) *Private { return &Private{cfg: cfg, dirs: serverDirs} }

// Start returns the socket of the running server and starts it if need be. Who calls meanwhile waits for the same
// start. A server whose socket has been removed, which nobody can reach any more, is replaced. The error wraps
// ErrNoServer; the next call tries again.
func (p *Private) Start(ctx context.Context) (socket string, err error) {
	for {
		in, err := p.instance(ctx)
		if err != nil {
			return "", err
		}
		select {
		case <-in.started:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if in.err != nil || in.over() || in.hasSocket() {
			return in.socket, in.err
		}
		if err := in.end(ctx); err != nil {
			return "", err
		}
	}
}

// hasSocket says whether the socket is still there.
func (in *instance) hasSocket() bool {
	_, err := os.Lstat(in.socket)
	return !errors.Is(err, os.ErrNotExist)
}

// end ends the server and returns when it has ended, or with the cause of ctx. Concurrent calls are fine.
func (in *instance) end(ctx context.Context) error {
	_ = in.tree.Signal(syscall.SIGTERM) // one that has ended needs none
	patience := time.NewTimer(stopGrace)
	defer patience.Stop()
	for {
		select {
		case <-in.tree.Done():
			return nil
		case <-patience.C:
			_ = in.tree.Signal(syscall.SIGKILL)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *Private) instance(ctx context.Context) (*instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("%w: celld shuts down", ErrNoServer)
	}
	if p.now != nil && !p.now.over() {
		return p.now, nil
	}
	in := &instance{started: make(chan struct{})}
	ctx, in.giveUp = context.WithTimeoutCause(context.WithoutCancel(ctx), startWithin, fmt.Errorf("not within %v", startWithin))
	p.now = in
	p.work.Go(func() {
		defer in.giveUp()
		if in.socket, in.tree, in.err = p.start(ctx); in.err != nil {
			in.err = fmt.Errorf("%w: %w", ErrNoServer, in.err)
		}
		close(in.started)
	})
	return in, nil
}

// over says whether the instance has ended or could not be started.
func (in *instance) over() bool {
	select {
	case <-in.started:
	default:
		return false
	}
	if in.err != nil {
		return true
	}
	select {
	case <-in.tree.Done():
		return true
	default:
		return false
	}
}

// start makes the data directory, if there is none yet, and returns when the server takes connections.
func (p *Private) start(ctx context.Context) (socket string, tree *proctree.Tree, err error) {
	found, err := p.locate()
	if err != nil {
		return "", nil, err
	}
	who, err := whom()
	if err != nil {
		return "", nil, err
	}
	dir := p.sockets(who)
	if socket = filepath.Join(dir, "s"); len(socket) > maxSocketPath {
		return "", nil, fmt.Errorf("the path is too long for a socket: %s", socket)
	}
	if err := p.makeDirs(dir, who); err != nil {
		return "", nil, err
	}
	if err := p.initialise(ctx, found, who); err != nil {
		return "", nil, fmt.Errorf("make a data directory for %s: %w", found.server, err)
	}
	os.Remove(socket) // of an earlier one that was killed
	os.Remove(socket + ".lock")
	args := append([]string{found.server}, p.arguments(p.dataDir(), who)...)
	args = append(args, "--socket="+socket, "--skip-networking", "--pid-file="+filepath.Join(dir, "pid"))
	if found.mysql {
		args = append(args, "--mysqlx=OFF")
	}
	args = append(args, p.more...)
	proc, err := p.spawn(found.server, args, who)
	if err != nil {
		return "", nil, err
	}
	if err := proc.until(ctx, "ready for connections"); err != nil {
		return "", nil, fmt.Errorf("start %s: %w", found.server, err)
	}
	p.work.Go(proc.drain)
	return socket, proc.tree, nil
}

// whom returns whom the server runs as; nil for this process's user.
func whom() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	id, err := proctree.Identify(nobody, nil)
	if errors.Is(err, proctree.ErrMayNotSwitch) { // a root without rights is as good as nobody
		return nil, nil
	}
	return id.Credential, err
}

// dataDir is where the database is, once it is whole.
func (p *Private) dataDir() string { return filepath.Join(p.cfg.Dir, "data") }

// makeDirs makes the directories that the server writes to, its own.
func (p *Private) makeDirs(sockets string, who *syscall.Credential) error {
	for _, dir := range []string{p.cfg.Dir, filepath.Join(p.cfg.Dir, "tmp"), sockets} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := own(dir, who); err != nil {
			return err
		}
	}
	if who == nil {
		return nil
	}
	// Whoever isn't root must be let through, to what is its own.
	parent := filepath.Dir(p.cfg.Dir)
	info, err := os.Stat(parent)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o001 == 0 {
		if err := os.Chmod(parent, mode|0o001); err != nil {
			return err
		}
	}
	if closed := closedAbove(p.cfg.Dir); closed != "" {
		return fmt.Errorf("the user nobody, whom the SQL server runs as, can't pass through %s: choose another --data-dir", closed)
	}
	return nil
}

// closedAbove returns the nearest directory above dir that not everybody may pass through; empty: there is none.
func closedAbove(dir string) string {
	for dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return dir
		}
	}
	return ""
}

// sockets returns where the socket goes: the run directory, unless that is root's alone, as a user's usual one is.
func (p *Private) sockets(who *syscall.Credential) string {
	if who != nil && closedAbove(p.cfg.RunDir) != "" {
		return filepath.Join(p.cfg.Dir, "run")
	}
	return p.cfg.RunDir
}

func own(dir string, who *syscall.Credential) error {
	if who == nil {
		return nil
	}
	return os.Chown(dir, int(who.Uid), int(who.Gid))
}

// arguments are what a server gets, also when it makes its data directory: small buffers, no files from clients.
func (p *Private) arguments(dataDir string, who *syscall.Credential) []string {
	args := []string{
		"--no-defaults", "--datadir=" + dataDir, "--tmpdir=" + filepath.Join(p.cfg.Dir, "tmp"),
		"--innodb-buffer-pool-size=16M", "--innodb-log-buffer-size=2M", "--innodb-log-file-size=16M", "--key-buffer-size=1M",
		"--performance-schema=OFF", "--skip-log-bin", "--skip-name-resolve", "--character-set-server=utf8mb4",
		"--local-infile=0", "--max-allowed-packet=64M",
		"--innodb-flush-log-at-trx-commit=2", // a killed server loses nothing, a machine without power its last second
	}
	if who == nil && os.Geteuid() == 0 {
		args = append(args, "--user=root") // nobody can't be had here, and it wants to be told so
	}
	return args
}

// Describe says in words what it is, and why it can't be started, if that is known beforehand.
func (p *Private) Describe() (string, error) {
	found, err := p.locate()
	if err != nil {
		return "a server of celld's own", err
	}
	return "a server of celld's own (" + found.server + ")", nil
}

// Close stops the server cleanly, or by force once ctx is done, and removes its socket.
func (p *Private) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	in := p.now
	p.mu.Unlock()
	if in == nil {
		return nil
	}
	in.giveUp()
	<-in.started // at once: giving up kills
	var err error
	if in.err == nil {
		err = stop(ctx, in.tree)
	}
	p.work.Wait()
	return errors.Join(err, os.RemoveAll(p.cfg.RunDir), os.RemoveAll(filepath.Join(p.cfg.Dir, "run")))
}

// stop ends a server: SIGTERM, then SIGKILL.
func stop(ctx context.Context, tree *proctree.Tree) error {
	end, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	_ = tree.Signal(syscall.SIGTERM) // one that has ended needs none
	select {
	case <-tree.Done():
		return nil
	case <-end.Done():
	}
	_ = tree.Signal(syscall.SIGKILL)
	<-tree.Done()
	return fmt.Errorf("the SQL server was killed: it did not stop in time")
}

// installation is what is installed.
type installation struct {
	server  string // mariadbd or mysqld
	install string // mariadb-install-db; empty for MySQL
	mysql   bool   // Oracle's
}

// serverDirs are where packages put servers.
var serverDirs = []string{"/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/mysql/bin"}

// locate finds a server.
func (p *Private) locate() (installation, error) {
	path, _ := proctree.Lookup(p.cfg.Env, "PATH")
	dirs := append(filepath.SplitList(path), p.dirs...)
	find := func(names ...string) string {
		for _, name := range names {
			for _, dir := range dirs {
				file := filepath.Join(dir, name)
				if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(file) {
					return file
				}
			}
		}
		return ""
	}
	in := installation{server: find("mariadbd", "mysqld"), install: find("mariadb-install-db", "mysql_install_db")}
	if in.server == "" {
		return in, errors.New("no SQL server is installed here: install mariadb-server-core and mariadb-client-core (images/setup-mariadb.sh does), or name a server with --sql")
	}
	if in.mysql = in.install == "" || strings.HasSuffix(in.server, "mysqld") && find("mariadbd", "mariadb-install-db") == ""; in.mysql {
		in.install = ""
	}
	return in, nil
}
