package sqlrun

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/celld/celld/internal/proctree"
)

func TestPrivateServerKeepsItsData(t *testing.T) {
	root := folder(t)
	for i, before := range []func(p *Private) error{
		func(p *Private) error { // a data directory that was being made when everything died
			if err := os.MkdirAll(filepath.Join(p.cfg.Dir, "new/mysql"), 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(p.cfg.Dir, "new/ibdata1"), []byte("half"), 0o600)
		},
		func(*Private) error { return nil },
		func(p *Private) error { // a socket that nobody listens on
			if err := os.MkdirAll(p.cfg.RunDir, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(p.cfg.RunDir, "s"), nil, 0o600)
		},
	} {
		p := NewPrivate(configIn(root))
		if err := before(p); err != nil {
			t.Fatal(err)
		}
		s := connected(t, p)
		rows(t, s, "CREATE TABLE IF NOT EXISTS kept (n INT); INSERT INTO kept VALUES (1)")
		says(t, s, "SELECT COUNT(*), DATABASE() FROM kept", []any{[]string{"1", "2", "3"}[i], Database})
		says(t, s, "SELECT @@port, @@skip_networking", []any{"0", "1"})
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		tree := p.now.tree
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if code := tree.Status().Code; code != 0 {
			t.Errorf("it ended with status %d", code)
		}
		if _, err := os.Stat(p.cfg.RunDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its run directory: %v", err)
		}
		if _, err := p.Start(t.Context()); !errors.Is(err, ErrNoServer) {
			t.Errorf("started after the end: %v", err)
		}
	}
}

func TestKilledServerIsToldAndStartedAgain(t *testing.T) {
	p := ownServer(t, folder(t))
	s, idle, fresh := connected(t, p), connected(t, p), connected(t, p)
	rows(t, s, "CREATE TABLE kept (n INT); INSERT INTO kept VALUES (1); SET @v = 1")
	rows(t, idle, "SET @v = 1")
	r := new(recorder)
	r.onRow = func() { p.now.tree.Signal(syscall.SIGKILL) }
	if err := s.Run(t.Context(), "SELECT 1; SELECT SLEEP(600)", r); !errors.Is(err, ErrLost) {
		t.Errorf("the statement under way: %v", err)
	}
	<-p.now.tree.Done()
	if err := idle.Run(t.Context(), "SELECT 1", new(recorder)); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "before the statement was sent") {
		t.Errorf("the next statement of an idle context: %v", err)
	}
	for _, s := range []*Session{s, idle, fresh} {
		says(t, s, "SELECT n, @v, DATABASE() FROM kept", []any{"1", nil, Database})
	}
}

func TestServerWhoseSocketIsGoneIsStartedAgain(t *testing.T) {
	p := ownServer(t, folder(t))
	s := connected(t, p)
	rows(t, s, "CREATE TABLE kept (n INT); INSERT INTO kept VALUES (1)")
	if err := os.RemoveAll(p.cfg.RunDir); err != nil {
		t.Fatal(err)
	}
	says(t, s, "SELECT n FROM kept", []any{"1"}) // who is connected needs no socket
	old := p.now.tree
	fresh := make([]*Session, 3)
	var all sync.WaitGroup
	for i := range fresh {
		all.Go(func() { fresh[i] = connected(t, p) })
	}
	all.Wait()
	for _, s := range fresh {
		says(t, s, "SELECT n FROM kept", []any{"1"})
	}
	if code := old.Status().Code; code != 0 {
		t.Errorf("the old one ended with status %d", code)
	}
}

func TestPrivateServerRunsAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test is for root")
	}
	s := connected(t, shared)
	rows(t, s, "SELECT 1")
	info, err := os.Stat("/proc/" + itoa(shared.now.tree.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != nobody {
		t.Errorf("it runs as %d", uid)
	}
	hidden := ownServer(t, folder(t))
	hidden.cfg.RunDir = filepath.Join(hidden.cfg.RunDir, "of-root-alone/m") // as XDG_RUNTIME_DIR is
	if err := os.MkdirAll(filepath.Dir(hidden.cfg.RunDir), 0o700); err != nil {
		t.Fatal(err)
	}
	says(t, connected(t, hidden), "SELECT 1", []any{"1"})

	p := ownServer(t, folder(t))
	closed := filepath.Dir(filepath.Dir(p.cfg.Dir))
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Start(t.Context()); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), closed) {
		t.Errorf("where nobody can't pass: %v", err)
	}
}

func TestServerThatCannotBeHad(t *testing.T) {
	p := ownServer(t, folder(t))
	p.dirs, p.cfg.Env = nil, []string{"PATH=/nowhere"}
	s := connected(t, p)
	if err := s.Run(t.Context(), "SELECT 1", new(recorder)); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "mariadb-server-core") {
		t.Errorf("where none is installed: %v", err)
	}
	if _, err := p.Describe(); err == nil {
		t.Error("described as if it were there")
	}
	p.dirs, p.cfg.Env = serverDirs, configIn("").Env
	data := p.dataDir()
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), "SELECT 1", new(recorder)); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "exit status") {
		t.Errorf("with a data directory that is empty: %v", err)
	}
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	says(t, s, "SELECT 1", []any{"1"}) // tried again
}

func TestServerThatFailsToStartSaysWhyWhoeverHoldsItsOutput(t *testing.T) {
	root := folder(t)
	p := ownServer(t, root)
	away := filepath.Join(p.cfg.Dir, "tmp", "away")
	// The one that gets away has left its session, its environment and its parents when the server ends.
	script := `#!/bin/sh
(env -i setsid sh -c 'echo $$ >` + away + `; exec sleep 9797' &)
while ! [ -s ` + away + ` ]; do :; done
echo "the disk is full" >&2; exit 7
`
	bin := filepath.Join(root, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"mariadbd": script, "mariadb-install-db": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.cfg.Env = proctree.Overlay(p.cfg.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), startWithin/2)
	defer cancel()
	_, err := p.Start(ctx)
	if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "exit status 7: the disk is full") {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(away)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // else it proves nothing
		t.Error(err)
	}
}

func TestManyFirstUsesStartOneServer(t *testing.T) {
	p := ownServer(t, folder(t))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := connected(t, p).Run(gone, "SELECT 1", new(recorder)); !errors.Is(err, context.Canceled) {
		t.Errorf("who doesn't wait: %v", err)
	}
	var all sync.WaitGroup
	ids := make([]any, 8)
	for i := range ids {
		s := connected(t, p)
		all.Go(func() {
			r := new(recorder)
			if err := s.Run(t.Context(), "SELECT @@pid_file, @@hostname, CONNECTION_ID()", r); err != nil {
				t.Error(err)
				return
			}
			ids[i] = r.rows[0][2]
		})
	}
	all.Wait()
	seen := map[any]bool{}
	for _, id := range ids {
		seen[id] = true
	}
	if len(seen) != len(ids) {
		t.Errorf("connections %v", ids)
	}
}

func TestCloseDuringTheStart(t *testing.T) {
	p := NewPrivate(configIn(folder(t)))
	in, err := p.instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if in.err == nil {
		select {
		case <-in.tree.Done():
		default:
			t.Error("it runs on")
		}
	}
}
