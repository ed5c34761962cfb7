package proctree

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func itoa(n int) string { return strconv.Itoa(n) }

// TestKillEndsTheWholeTree: each script says "up" when all of it runs. Everybody in it holds the output pipe, so that
// its EOF says that everybody is gone.
func TestKillEndsTheWholeTree(t *testing.T) {
	const body = ` bash -c 'echo up; exec sleep 98.2'`
	for name, text := range map[string]string{
		"leader only":                  `echo up; exec sleep 98.3`,
		"child":                        body + `; true`,
		"pipeline":                     body + ` | cat; true`,
		"process substitution":         `cat <(` + body + `)`,
		"background":                   body + ` & wait`,
		"new session":                  `setsid` + body + ` & wait`,
		"ignores TERM":                 `trap '' TERM INT HUP; echo up; while :; do sleep 98.4; done`,
		"stopped":                      `bash -c 'echo up; kill -STOP $$; :'; true`,
		"no environment":               `env -i bash -c 'env -i setsid bash -c "echo up; /bin/sleep 98.5; :"'; true`,
		"no environment, ignores TERM": `env -i bash -c 'env -i setsid bash -c "trap \"\" TERM; echo up; while :; do /bin/sleep 98.5; done"; true'; true`,
		"nested":                       `bash -c 'bash -c "echo up; sleep 98.6; :" & wait'`,
	} {
		for _, grace := range []int{0, 100} {
			t.Run(name+" "+itoa(grace), func(t *testing.T) {
				t.Parallel()
				s := start(t, text)
				s.waitUp()
				s.kill(grace)
				s.gone()
			})
		}
	}
}

// TestKillReachesSurvivors: the leader has ended and somebody it left behind says "up".
func TestKillReachesSurvivors(t *testing.T) {
	for name, text := range map[string]string{
		"background":                `bash -c 'echo up; exec sleep 98.2' &`,
		"nohup":                     `nohup bash -c 'echo up; exec sleep 98.2' &`,
		"double fork, new session":  `(setsid bash -c 'echo up; exec sleep 98.7' &)`,
		"no environment":            `env -i bash -c 'echo up; /bin/sleep 98.7; :' &`,
		"child of a new session":    `(setsid bash -c '(env -i bash -c "echo up; exec /bin/sleep 98.7"); :' &)`,
		"orphan of a new session":   `(setsid bash -c '(setsid bash -c "echo up; exec sleep 98.7" &)' &)`,
		"child without environment": `bash -c 'env -i bash -c "env -i bash -c \"echo up; exec /bin/sleep 98.7\"; :"; :' &`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, text)
			<-s.Done()
			s.waitUp()
			if len(s.Members()) == 0 {
				t.Error("no members")
			}
			s.kill(0)
			s.gone()
		})
	}
}

// TestKillCatchesProcessesThatKeepForking: they fork faster than anybody can look.
func TestKillCatchesProcessesThatKeepForking(t *testing.T) {
	for name, text := range map[string]string{
		"fork and exit":              `f() { f & }; echo up; f; exec sleep 98.8`,
		"fork and exit, leader gone": `f() { f & }; echo up; f`,
		"fork and stay":              `ulimit -u 5000; f() { f & sleep 98.8; }; echo up; f`,
		"new session each time":      `f() { setsid bash -c f & }; export -f f; echo up; f`,
	} {
		for _, grace := range []int{0, 20} {
			t.Run(name+" "+itoa(grace), func(t *testing.T) {
				s := start(t, text)
				s.waitUp()
				s.kill(grace)
				s.gone()
			})
		}
	}
}

// TestKillOfManyAtOnce: each kill needs several looks at a table in which all the others are.
func TestKillOfManyAtOnce(t *testing.T) {
	const n = 300
	var census Census
	trees := make([]*Tree, n)
	ends := make([]*os.File, n)
	for i := range n {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		trees[i], err = Start(Spec{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "trap '' TERM; sleep 98.2; :"}, Env: []string{"PATH=/usr/bin:/bin"},
			Files: []*os.File{nil, w}, Marker: marker(t) + itoa(i), Census: &census,
		})
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = r
	}
	var wg sync.WaitGroup
	for i, tree := range trees {
		wg.Go(func() {
			if err := tree.Kill(t.Context(), ms(10)); err != nil {
				t.Error(err)
			}
			if _, err := ends[i].Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("tree %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// TestKillCatchesWhoIsForkedBehindItsBack: while the killer thinks about what it saw, a process forks a child that only
// its parent ties to the tree.
func TestKillCatchesWhoIsForkedBehindItsBack(t *testing.T) {
	for _, grace := range []int{0, 60_000} {
		fifo := t.TempDir() + "/fifo"
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		s := start(t, `echo up; read x <$FIFO; env -i setsid bash -c 'echo up; exec /bin/sleep 98.1'; :`, "FIFO="+fifo)
		s.waitUp()
		looks := 0
		err := Kill(t.Context(), ms(grace), func(table *Table) []int {
			switch looks++; looks {
			case 1:
				if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
					t.Error(err)
				}
				s.waitUp()
			case 2: // it must not fork again: wait until it is stopped, and take note of nothing else
				err := unix.Waitid(unix.P_PID, s.PID(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
				if err != nil {
					t.Errorf("the parent is not stopped at the second look: %v", err)
				}
			}
			if _, alive := table.Process(s.PID()); alive {
				return []int{s.PID()}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		s.gone()
	}
}

func TestKillLooksTwiceBeforeItIsSure(t *testing.T) {
	s := start(t, `echo up; exec sleep 98.1`)
	s.waitUp()
	looks := 0
	err := Kill(t.Context(), 0, func(table *Table) []int {
		if looks++; looks == 1 {
			return nil // as if it had been in the middle of something
		}
		return s.In(table)
	})
	if err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	s.gone()
}

func TestTermComesFirst(t *testing.T) {
	s := start(t, `trap 'echo cleaned up; exit 3' TERM; echo up; while :; do sleep 98.9 & wait $!; done`)
	s.waitUp()
	s.kill(60_000) // the test ends long before, since Kill returns when all are gone
	if got := s.rest(); got != "cleaned up\n" {
		t.Errorf("got %q", got)
	}
	if c := s.Status().Code; c != 3 {
		t.Errorf("status %d", c)
	}
}

func TestKillLeavesOthersAlone(t *testing.T) {
	other := start(t, `echo up; exec sleep 98.2`)
	other.waitUp()
	s := start(t, `setsid sleep 98.2 & echo up; wait`, MarkerEnv+"=x")
	s.marker = "another-" + s.marker
	s.waitUp()
	s.kill(0)
	if m := other.Members(); !slices.Equal(m, []int{other.PID()}) {
		t.Errorf("members of the other tree: %v", m)
	}
}

func TestKillOfAFinishedTreeSignalsNobody(t *testing.T) {
	s := start(t, `echo bye`)
	<-s.Done()
	s.kill(0)
	if m := s.Members(); len(m) != 0 {
		t.Errorf("members %v", m)
	}
}

func TestKillGivesUpWithItsContext(t *testing.T) {
	s := start(t, `trap '' TERM; echo up; exec sleep 98.2`)
	s.waitUp()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := s.Kill(ctx, time.Hour); !errors.Is(err, cause) {
		t.Errorf("kill: %v", err)
	}
	if m := s.Members(); len(m) != 1 {
		t.Errorf("members %v", m)
	}
}

// TestNobodyStaysStoppedWhenTimeRunsOut: the time for a kill ends while it still searches, as on a machine that is busy.
func TestNobodyStaysStoppedWhenTimeRunsOut(t *testing.T) {
	for _, grace := range []int{0, 60_000} {
		s := start(t, `trap 'echo cleaned up; exit 3' TERM; echo up; while :; do sleep 98.9 & wait $!; done`)
		s.waitUp()
		ctx, cancel := context.WithCancelCause(t.Context())
		late := errors.New("too late")
		err := Kill(ctx, ms(grace), func(table *Table) []int {
			cancel(late) // whom this look finds is stopped, and there is no time for another
			return s.In(table)
		})
		if !errors.Is(err, late) {
			t.Errorf("kill: %v", err)
		}
		select {
		case <-s.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("with a grace of %d ms: still there, and stopped", grace)
			s.kill(0)
		}
		s.kill(0)
		s.gone()
	}
}

func TestZombiesAreNoMembers(t *testing.T) {
	// bash forks a child and replaces itself by a program that never waits for it.
	dir := t.TempDir()
	fifo, file := dir+"/fifo", dir+"/file"
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(file, []byte("up\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := start(t, `(read x <$FIFO) & echo $!; exec tail -n 1 -f $FILE`, "FIFO="+fifo, "FILE="+file)
	zombie, err := strconv.Atoi(s.line())
	if err != nil {
		t.Fatal(err)
	}
	s.waitUp()
	if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(zombie, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := waitDead(t.Context(), fd); err != nil {
		t.Fatal(err)
	}
	if m := s.Members(); !slices.Equal(m, []int{s.PID()}) {
		t.Errorf("members %v, leader %d, zombie %d", m, s.PID(), zombie)
	}
}

// TestReusedSessionNumberIsNotOurs: a session with the number of ours, made after our leader had been reaped.
func TestReusedSessionNumberIsNotOurs(t *testing.T) {
	other := start(t, `echo up; exec sleep 98.2`)
	other.waitUp()
	p := func() Process {
		table, err := Look()
		if err != nil {
			t.Fatal(err)
		}
		p, ok := table.Process(other.PID())
		if !ok {
			t.Fatal("the other process is not in the table")
		}
		return p
	}()
	for _, c := range []struct {
		died uint64
		want int
	}{{p.Start - 1, 0}, {p.Start, 1}} {
		past := &Tree{census: new(Census), pid: other.PID(), marker: "past", retired: true, died: c.died}
		if m := past.Members(); len(m) != c.want {
			t.Errorf("leader reaped at %d, session from %d: members %v, want %d", c.died, p.Start, m, c.want)
		}
	}
}

func (s *script) waitUp() {
	s.t.Helper()
	if l := s.line(); l != "up" {
		s.t.Fatalf("got %q", l)
	}
}

// gone fails if anybody of the tree is there, and waits for the pipe's EOF.
func (s *script) gone() {
	s.t.Helper()
	s.rest()
	if m := s.Members(); len(m) != 0 {
		s.t.Errorf("members left: %v", m)
	}
	select {
	case <-s.Done():
	default:
		s.t.Error("the leader was not reaped")
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b) c) S 3 4 5 0 -1 6 7 8 9 0 1 2 3 4 20 0 1 0 777 8 9\n"))
	f.Add([]byte("12 (z) Z 3 4 5 0 -1 6 7 8 9 0 1 2 3 4 20 0 1 0 777 8 9\n"))
	f.Add([]byte(") X"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		if p, ok := parseStat(12, stat); ok && p.PID != 12 {
			t.Errorf("%+v", p)
		}
	})
}

func TestParseStatTakesTheLastParenthesis(t *testing.T) {
	p, ok := parseStat(12, []byte("12 (a) R 9 (b) S 3 4 5 0 -1 6 7 8 9 0 1 2 3 4 20 0 1 0 777 8 9\n"))
	if want := (Process{PID: 12, Parent: 3, Group: 4, Session: 5, Start: 777}); !ok || p != want {
		t.Errorf("got %+v %v, want %+v", p, ok, want)
	}
	for threads, alive := range map[string]bool{"1": false, "2": true} {
		_, ok := parseStat(12, []byte("12 (z) Z 3 4 5 0 -1 6 7 8 9 0 1 2 3 4 20 0 "+threads+" 0 777 8 9\n"))
		if ok != alive {
			t.Errorf("zombie leader with %s threads: alive %v", threads, ok)
		}
	}
}
