package sqlrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/celld/celld/internal/proctree"
	"go.uber.org/goleak"
)

// shared is a server for all tests that don't harm it.
var shared *Private

func TestMain(m *testing.M) {
	root, err := os.MkdirTemp("/dev/shm", "sqlrun")
	if err == nil {
		err = os.Chmod(root, 0o711)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = NewPrivate(configIn(root))
	code := m.Run()
	err = errors.Join(shared.Close(context.Background()), os.RemoveAll(root), goleak.Find())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func configIn(root string) PrivateConfig {
	return PrivateConfig{Dir: filepath.Join(root, "data/sql"), RunDir: filepath.Join(root, "run"), Env: proctree.BaseEnv(os.Environ())}
}

// folder is a directory that any user can pass through.
func folder(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "sqlrun")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.Chmod(root, 0o711); err != nil {
		t.Fatal(err)
	}
	return root
}

// ownServer is a server that this test may harm.
func ownServer(t *testing.T, root string) *Private {
	t.Helper()
	p := NewPrivate(configIn(root))
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// connected is a session on a server of ours.
func connected(t *testing.T, p *Private) *Session {
	t.Helper()
	server, err := NewServer(Config{DSN: ModePrivate, Private: p})
	if err != nil {
		t.Fatal(err)
	}
	return sessionOn(t, server)
}

// sessionOn is a session on server, which may take its time to stop a statement: other packages' tests run at the same
// time.
func sessionOn(t *testing.T, server *Server) *Session {
	t.Helper()
	server.stopWithin = 3 * time.Minute
	s := server.Session()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// recorder is an Answer that remembers. A row is a list of strings, NULL is nil.
type recorder struct {
	columns [][]Column
	rows    [][]any // of all sets
	done    []Summary
	onRow   func() // called at each row
}

func (r *recorder) Columns(c []Column) { r.columns = append(r.columns, c) }

func (r *recorder) Row(values [][]byte) {
	row := make([]any, len(values))
	for i, v := range values {
		if v != nil {
			row[i] = string(v)
		}
	}
	r.rows = append(r.rows, row)
	if r.onRow != nil {
		r.onRow()
	}
}

func (r *recorder) Done(s Summary) { r.done = append(r.done, s) }

// rows runs text, which must succeed.
func rows(t *testing.T, s *Session, text string) [][]any {
	t.Helper()
	r := new(recorder)
	if err := s.Run(t.Context(), text, r); err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	return r.rows
}

// says runs text, which must answer with these rows.
func says(t *testing.T, s *Session, text string, want ...[]any) {
	t.Helper()
	if got := rows(t, s, text); !reflect.DeepEqual(got, want) {
		t.Errorf("%.200s: %.300q, want %.300q", text, got, want)
	}
}
