package sqlrun

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// running returns when a statement that begins with text is under way. The server raises no event for that.
func running(ctx context.Context, s *Session, text string) error {
	for {
		r := new(recorder)
		err := s.Run(ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '"+text+"%'", r)
		if err != nil || r.rows[0][0] != "0" {
			return err
		}
	}
}

func TestStoppedStatementEndsAtTheServer(t *testing.T) {
	s, other, watcher := connected(t, shared), connected(t, shared), connected(t, shared)
	var watch sync.WaitGroup
	rows(t, s, "SET @v = 1; CREATE TEMPORARY TABLE mine (n INT); CREATE TABLE IF NOT EXISTS locked (n INT)")
	rows(t, other, "LOCK TABLES locked WRITE, locked AS l WRITE")
	for _, text := range []string{
		"SELECT BENCHMARK(2000000000, SHA2('x',512))",
		"SELECT SLEEP(600)",
		"SELECT SLEEP(600); SELECT 'went on'",
		"SELECT a.seq FROM seq_1_to_1000000 a, seq_1_to_1000000 b",
		"DO SLEEP(600)",
		"INSERT INTO locked VALUES (1)",
	} {
		like := strings.ReplaceAll(text[:12], "'", "_")
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		r := new(recorder)
		if strings.Contains(text, "seq") {
			n := 0
			r.onRow = func() {
				if n++; n == 1000 {
					cancel(why)
				}
			}
		} else {
			watching, over := context.WithTimeout(t.Context(), 3*time.Minute)
			defer over()
			watch.Go(func() {
				if err := running(watching, watcher, like); err != nil {
					t.Errorf("%s: %v", text, err)
				}
				cancel(why)
			})
		}
		err := s.Run(ctx, text, r)
		watch.Wait()
		if !errors.Is(err, why) || errors.Is(err, ErrLost) || len(r.done) > 0 {
			t.Errorf("%s: %v, and %v", text, err, r.done)
		}
		says(t, s, "SELECT @v, (SELECT COUNT(*) FROM mine)", []any{"1", "0"})
		says(t, other, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '"+like+"%'", []any{"0"})
	}
	rows(t, other, "UNLOCK TABLES")
	for range 200 { // a stop that comes with the end doesn't hit what follows
		ctx, cancel := context.WithCancel(t.Context())
		r := new(recorder)
		r.onRow = cancel
		if err := s.Run(ctx, "SELECT 1", r); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		says(t, s, "SELECT @v", []any{"1"})
	}
}

func TestServerThatDoesNotStopAStatement(t *testing.T) {
	p := ownServer(t, folder(t))
	s := connected(t, p)
	s.server.stopWithin = stopWithin
	rows(t, s, "SET @v = 1")
	ctx, cancel := context.WithCancel(t.Context())
	r := new(recorder)
	r.onRow = func() {
		if err := p.now.tree.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		cancel()
	}
	err := s.Run(ctx, "SELECT 1; SELECT SLEEP(600)", r)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrLost) {
		t.Errorf("ended with %v", err)
	}
	if err := p.now.tree.Signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	says(t, s, "SELECT @v", []any{nil})
}

func TestLongValuesAndTexts(t *testing.T) {
	s := connected(t, shared)
	rows(t, s, "SET @v = 1; SET GLOBAL local_infile = 0")
	for _, n := range []int{0, 250, 251, 252, 65535, 65536, readBuffer - 4, readBuffer - 3, readBuffer + 1, 1 << 20, maxPacket - 4, maxPacket - 3} {
		got := rows(t, s, "SELECT REPEAT('x', "+itoa(n)+")")[0][0].(string)
		if len(got) != n || strings.Trim(got, "x") != "" {
			t.Errorf("%d of %d bytes", len(got), n)
		}
	}
	for _, n := range []int{MaxRow + 1, 2 * maxPacket} {
		r := new(recorder)
		err := s.Run(t.Context(), "SELECT 1; SELECT 2 UNION ALL SELECT REPEAT('x', "+itoa(n)+") UNION ALL SELECT 3; SELECT 4", r)
		if !errors.Is(err, errRow) || len(r.done) != 1 {
			t.Errorf("a row of %d bytes: %v, %d sets", n, err, len(r.done))
		}
	}
	for _, n := range []int{maxPacket - 18, maxPacket - 17, maxPacket, 2*maxPacket - 17} {
		text := strings.Repeat("y", n)
		says(t, s, "SELECT LENGTH('"+text+"')", []any{itoa(n)})
	}
	says(t, s, "SELECT @v", []any{"1"})
}

func TestLocalFilesAreRefused(t *testing.T) {
	p := ownServer(t, folder(t))
	s := connected(t, p)
	rows(t, s, "CREATE TABLE names (s TEXT); SET GLOBAL local_infile = 1; SET @v = 1")
	var refused *Error
	if err := s.Run(t.Context(), "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE names", new(recorder)); !errors.As(err, &refused) || refused.Code != codeLocalRefused {
		t.Errorf("asked for a file: %v", err)
	}
	says(t, s, "SELECT @v, COUNT(*) FROM names", []any{"1", "0"})
}

// proxy is a TCP port in front of a server's socket. old makes servers look like ones from before OK packets ended results.
func proxy(t *testing.T, socket string, old bool) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() { l.Close(); work.Wait() })
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			if err != nil {
				client.Close()
				continue
			}
			work.Go(func() { io.Copy(server, client); server.Close() })
			work.Go(func() {
				defer client.Close()
				if old {
					b := make([]byte, 512)
					n, _ := io.ReadAtLeast(server, b, 40)
					at := 5 + strings.IndexByte(string(b[5:]), 0) + 1 // after the version
					b[at+4+8+1+2+1+2+1] &^= 1                         // CLIENT_DEPRECATE_EOF
					client.Write(b[:n])
				}
				io.Copy(client, server)
			})
		}
	})
	return l.Addr().String()
}

func TestServersThatAreNamed(t *testing.T) {
	socket, err := shared.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin := connected(t, shared)
	rows(t, admin, "CREATE DATABASE IF NOT EXISTS theirs; CREATE USER IF NOT EXISTS low@localhost IDENTIFIED BY 'secret'")
	for dsn, want := range map[string]any{
		"root@unix(" + socket + ")/":                       Database,
		"root@unix(" + socket + ")/theirs?timeout=5s":      "theirs",
		"root@tcp(" + proxy(t, socket, true) + ")/":        Database,
		"low:secret@tcp(" + proxy(t, socket, false) + ")/": nil, // may make no database
	} {
		server, err := NewServer(Config{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		s := sessionOn(t, server)
		says(t, s, "SELECT DATABASE(), 'é', NULL", []any{want, "é", nil})
		r := new(recorder)
		err = s.Run(t.Context(), "SELECT 1 AS a WHERE FALSE; SELECT 2 UNION SELECT 3; SET @v = 4; SELECT @v; SELECT nope", r)
		var refused *Error
		if !errors.As(err, &refused) || refused.Code != 1054 || len(r.columns) != 3 || len(r.rows) != 3 || len(r.done) != 4 {
			t.Errorf("%s: %v, %q, %v", dsn, err, r.rows, r.done)
		}
		if what, err := server.Describe(t.Context()); err != nil || strings.Contains(what, "secret") {
			t.Errorf("%s is described as %q, %v", dsn, what, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := s.Run(ctx, "SELECT SLEEP(600)", new(recorder)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLost) {
			t.Errorf("%s: stopped: %v", dsn, err)
		}
		cancel()
		says(t, s, "SELECT 5", []any{"5"})
	}
	for _, dsn := range []string{"nonsense", "root@tcp(127.0.0.1", "low:wrong@unix(" + socket + ")/", "root@unix(/nowhere)/"} {
		server, err := NewServer(Config{DSN: dsn})
		if err == nil {
			err = sessionOn(t, server).Run(t.Context(), "SELECT 1", new(recorder))
			if !errors.Is(err, ErrNoServer) {
				t.Errorf("%s: %v", dsn, err)
			}
		}
		if err == nil || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestAutoTakesTheServerThatIsThere(t *testing.T) {
	socket, err := shared.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for address, want := range map[string]string{proxy(t, socket, false): "the server at", free.Addr().String(): "a server of celld's own"} {
		server, err := NewServer(Config{DSN: ModeAuto, Private: shared})
		if err != nil {
			t.Fatal(err)
		}
		server.auto = address
		says(t, sessionOn(t, server), "SELECT 1, DATABASE()", []any{"1", Database})
		if what, err := server.Describe(t.Context()); err != nil || !strings.HasPrefix(what, want) {
			t.Errorf("it says %q, %v", what, err)
		}
	}
}
