package ptyrun

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// lines makes n bytes of lines of 99 letters.
func lines(n int) string { return strings.Repeat(strings.Repeat("a", 99)+"\n", n/100) }

func TestLargePasteArrivesWhole(t *testing.T) {
	x := run(t, false, nil)
	x.send("stty -echo; echo ra''w; head -c 200000 | wc -c\r")
	x.until("raw\r\n")
	x.send(lines(200_000))
	x.until("200000\r\n")
	x.send("stty echo; echo ag''ain\r")
	x.until("again\r\n")
}

func TestLargePasteWithEchoArrivesWhole(t *testing.T) {
	x := run(t, false, nil)
	x.send("echo re''ady; cat | wc -c\r")
	x.until("ready\r\n")
	x.send(lines(200_000) + "\x04")
	x.until("200000\r\n")
}

func TestStuckInputHoldsNothingUp(t *testing.T) {
	x := run(t, false, nil)
	x.send(sleeper("97.90") + "\r")
	x.until(begun)
	x.send(lines(300_000))
	if err := x.Resize(70, 20); err != nil {
		t.Fatal(err)
	}
	if err := x.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	x.send("stty size; echo $((40 + 2))\r") // the paste is gone, as with the key
	if got := x.until("42\r\n"); !strings.Contains(got, "20 70\r\n") || strings.Contains(got, "not found") {
		t.Errorf("%.3000q", got)
	}
	x.send(sleeper("97.89") + "\r")
	x.until(begun)
	x.send(lines(300_000))
	x.stop()
	x.end()
}

func TestSignalKeepsInputWhereTheTerminalIsSetTo(t *testing.T) {
	x := run(t, false, nil)
	x.send("trap 'echo trap''ped' INT; stty -echo noflsh; " + sleeper("97.88") + "\r")
	x.until(begun)
	x.send("echo ke''pt\r")
	if err := x.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	x.until("kept\r\n")
}

func TestInputThatNobodyReadsIsRefusedAndTakenAgainLater(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	x := run(t, false, func(c *Config) {
		c.Command = "stty raw -echo; echo set; read x <" + gate + "; head -c 1000000 >/dev/null; echo read; grep -qx xyz; echo got it"
	})
	x.until("set")
	flood := []byte(lines(3 << 20))
	if err := x.Terminal.Write(t.Context(), flood); !errors.Is(err, ErrInputFull) {
		t.Fatalf("3 MiB: %v", err)
	}
	if err := x.Terminal.Write(t.Context(), flood); !errors.Is(err, ErrInputFull) {
		t.Fatalf("more: %v", err)
	}
	if err := os.WriteFile(gate, []byte("\n"), 0); err != nil { // now it reads
		t.Fatal(err)
	}
	x.until("read")
	x.send("\nxyz\n")
	x.until("got it")
	x.end()
}

func TestInputOfAUserWhoGoesDoesNotWait(t *testing.T) {
	var in input // before the start nobody reads
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if err := in.write(ctx, make([]byte, maxPending+1)); err != gone {
		t.Errorf("got %v", err)
	}
	in.close()
	if err := in.write(t.Context(), []byte("x")); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("after the end: %v", err)
	}
}

func TestUserWhoReadsIsWaitedForAndOneWhoDoesNotIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flow{taken: nobody}
		waits := func() time.Duration {
			began := time.Now()
			f.wait()
			return time.Since(began)
		}
		f.add(10 << 20)
		if d := waits(); d != 0 {
			t.Errorf("without a user it waited %v", d)
		}
		f.take(10 << 20)
		f.add(maxBehind)
		if d := waits(); d != 0 {
			t.Errorf("with a user who is a bit behind it waited %v", d)
		}
		f.add(1)
		go func() {
			time.Sleep(patience - 1)
			f.take(10<<20 + 1)
		}()
		if d := waits(); d != patience-1 {
			t.Errorf("with a user who gets on it waited %v", d)
		}
		f.add(1)
		if d := waits(); d != patience {
			t.Errorf("with a user who doesn't it waited %v", d)
		}
		f.add(1 << 20)
		f.take(10<<20 + 2) // a bit, but he hasn't caught up
		if d := waits(); d != 0 {
			t.Errorf("with a user who was given up it waited %v", d)
		}
		f.take(f.made)
		f.add(maxBehind + 1)
		if d := waits(); d != patience {
			t.Errorf("with a user who had caught up it waited %v", d)
		}
		f.take(nobody)
		f.pause(true)
		go func() {
			time.Sleep(time.Hour)
			f.pause(false)
		}()
		if d := waits(); d != time.Hour {
			t.Errorf("paused for an hour, it waited %v", d)
		}
		f.pause(true)
		go f.finish()
		if d := waits(); d != 0 {
			t.Errorf("at the end it waited %v", d)
		}
	})
}

func TestPausedProgramGoesOnWhenResumed(t *testing.T) {
	x := run(t, false, nil)
	x.Pause(true)
	x.send("seq 1 100000; exit 6\r")
	x.Pause(false)
	if code := x.end(); code != 6 || !strings.Contains(x.text(), "\r\n100000\r\n") {
		t.Errorf("%d", code)
	}
}

func TestPausedTerminalCanBeClosed(t *testing.T) {
	x := run(t, false, nil)
	x.Pause(true)
	x.send("yes\r")
	x.stop()
	x.end()
}
