package proctree

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestMembersAreThoseInTheMiddleOfAnExecToo: all that ties the process to the tree is its environment, and it has none
// each time it replaces itself, which it does all the time.
func TestMembersAreThoseInTheMiddleOfAnExecToo(t *testing.T) {
	s := start(t, `export S='exec bash -c "$S"'; (setsid bash -c 'echo up; eval "$S"' &)`)
	<-s.Done()
	s.waitUp()
	for range 100 {
		if m := s.Members(); len(m) != 1 {
			t.Fatalf("members %v", m)
		}
	}
	s.kill(0)
	s.gone()
}

func TestAnExecIsWaitedForWithPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, reads := time.Now(), 0
		until := func(end time.Duration) func() ([]byte, error) {
			began = time.Now()
			return func() ([]byte, error) {
				if reads++; time.Since(began) < end {
					return nil, errExec
				}
				return []byte("A=1"), nil
			}
		}
		if env, err := awaitExec(execPatience, until(2*time.Second)); string(env) != "A=1" || err != nil || time.Since(began) > 2*time.Second+10*time.Millisecond {
			t.Errorf("held for two seconds: %q, %v, after %v", env, err, time.Since(began))
		}
		if reads > 300 {
			t.Errorf("%d reads", reads)
		}
		if _, err := awaitExec(execPatience, until(time.Hour)); !errors.Is(err, errExec) || time.Since(began) != execPatience {
			t.Errorf("held for an hour: %v, after %v", err, time.Since(began))
		}
		if _, err := awaitExec(0, until(time.Hour)); !errors.Is(err, errExec) || time.Since(began) != 0 {
			t.Errorf("the next time: %v, after %v", err, time.Since(began))
		}
	})
}
