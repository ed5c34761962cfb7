package shellrun

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestCommandReadsNothingUnlessGivenSomething(t *testing.T) {
	tt := newCommandTest(t)
	tt.sh(`cat; echo "rc=$?"`).want("rc=0\n", 0)
	tt.sh(`read -r x; echo "got:[$x] $?"`).want("got:[] 1\n", 0)
	s := tt.sh(`python3 -c "print(repr(input()))"`).want("", 1)
	if errs := s.errs.String(); !strings.Contains(errs, "EOFError") {
		t.Errorf("stderr %q", errs)
	}
	tt.run(Command{Argv: []string{"cat"}}).want("", 0)
}

func TestCommandGivenInput(t *testing.T) {
	tt := newCommandTest(t)
	big := seq(200000)
	for _, in := range []string{"", "x", "a\nb\n\x00\xff", big} {
		tt.run(Command{Text: "cat", Stdin: &in}).want(in, 0)
	}
	tt.run(Command{Text: "read -r x; echo $x", Stdin: &big}).want("1\n", 0)
	tt.run(Command{Text: "exec <&-; echo hi", Stdin: &big}).want("hi\n", 0)
	tt.run(Command{Text: "true", Stdin: &big}).want("", 0)
	tt.run(Command{Text: "cat; cat; cat >&2", Stdin: &big, StdinOpen: false}).want(big, 0)
}

func TestCommandGivenInputReachesASurvivor(t *testing.T) {
	tt := newCommandTest(t)
	big := seq(200000)
	fifo := tt.fifo()
	s := tt.run(Command{Text: `(read x <$FIFO; cat) <&0 & echo over`, Env: map[string]string{"FIFO": fifo}, Stdin: &big}).want("over\n", 0)
	tt.release(fifo)
	s.late.await("\n200000\n")
	if got := s.late.String(); got != big {
		t.Errorf("%d bytes, want %d", len(got), len(big))
	}
}

func TestCommandThatHasEndedTakesNoMoreInputThoughASurvivorIsStillFed(t *testing.T) {
	tt := newCommandTest(t)
	big := seq(200000)
	fifo := tt.fifo()
	s := tt.begin(Command{Text: `(read x <$FIFO; cat) <&0 & echo over`, Env: map[string]string{"FIFO": fifo}, Stdin: &big, StdinOpen: true})
	waiting := make(chan error, 1)
	go func() { waiting <- s.Prepared.Stdin(t.Context(), []byte("more"), false) }()
	s.end().want("over\n", 0)
	if err := <-waiting; !errors.Is(err, ErrStdinClosed) {
		t.Errorf("before the end: %v", err)
	}
	if err := s.Prepared.Stdin(t.Context(), []byte("more"), false); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("after the end: %v", err)
	}
	tt.release(fifo)
	s.late.await("\n200000\n")
	if got := s.late.String(); got != big {
		t.Errorf("%d bytes, want %d", len(got), len(big))
	}
}

func (t *commandTest) fifo() string {
	t.Helper()
	fifo := t.TempDir() + "/fifo"
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	return fifo
}

// release lets a read from fifo go on.
func (t *commandTest) release(fifo string) {
	t.Helper()
	if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
}

func TestCommandOpenInput(t *testing.T) {
	tt := newCommandTest(t)
	given := seq(50000)
	s := tt.begin(Command{Text: "cat; echo end", Stdin: &given, StdinOpen: true})
	for _, line := range []string{"a\n", "b\n"} {
		if err := s.Prepared.Stdin(t.Context(), []byte(line), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Prepared.Stdin(t.Context(), []byte("c\n"), true); err != nil {
		t.Fatal(err)
	}
	if err := s.Prepared.Stdin(t.Context(), []byte("d\n"), false); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("after eof: %v", err)
	}
	s.end().want(given+"a\nb\nc\nend\n", 0)

	for _, c := range []Command{{Text: "true"}, {Text: "true", StdinOpen: true}, {Text: "true", Stdin: &given}} {
		s := tt.run(c)
		if err := s.Prepared.Stdin(t.Context(), []byte(given), false); !errors.Is(err, ErrStdinClosed) {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestCommandOpenInputGivesUpWithTheContext(t *testing.T) {
	tt := newCommandTest(t)
	fifo := tt.fifo()
	s := tt.begin(Command{Text: "echo up; read x <$FIFO; wc -c", Env: map[string]string{"FIFO": fifo}, StdinOpen: true})
	s.out.await("up\n")
	cause := errors.New("enough")
	for range 3 { // the pipe is full, and stays usable
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() { failed <- s.Prepared.Stdin(ctx, make([]byte, 1<<20), false) }()
		cancel(cause)
		if err := <-failed; err != nil && !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
	}
	wrote := make(chan error)
	go func() { wrote <- s.Prepared.Stdin(t.Context(), []byte("tail"), true) }()
	tt.release(fifo)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	s.end()
	if s.status.Code != 0 {
		t.Errorf("status %d", s.status.Code)
	}
}

// TestCommandOpenInputEndsWithTheCommand: a write that waits for room ends when nobody will read any more.
func TestCommandOpenInputEndsWithTheCommand(t *testing.T) {
	tt := newCommandTest(t)
	s := tt.begin(Command{Text: "echo up; exec sleep 98.33", StdinOpen: true})
	s.out.await("up\n")
	wrote := make(chan error)
	go func() { wrote <- s.Prepared.Stdin(t.Context(), make([]byte, 1<<20), false) }()
	s.stop(errors.New("enough"))
	if err := <-wrote; !errors.Is(err, ErrStdinClosed) {
		t.Errorf("error %v", err)
	}
	s.end().want("up\n", 143)
}

// The command ends at the moment at which the last of its input is through.
func TestCommandInputIsClosedWhenItIsFedAtTheEnd(t *testing.T) {
	for range 2000 {
		child, in, err := newInput(nil, true)
		if err != nil {
			t.Fatal(err)
		}
		go in.feed()
		<-in.turn
		in.end()
		<-in.fed
		if _, err := in.file.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Fatalf("it is still open: %v", err)
		}
		child.Close()
	}
}
