package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// idler is a Writer that counts how often it is called in silence.
type idler struct {
	Recorder
	idle []time.Duration
	from time.Time
	fail error
}

func (i *idler) Idle() error {
	i.idle = append(i.idle, time.Since(i.from))
	return i.fail
}

func TestSilenceIsReportedEveryTenSecondsUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		i := &idler{from: time.Now()}
		result := follow(t.Context(), j, 0, i)
		time.Sleep(2*IdleInterval + 4*time.Second)
		j.OnStdout(Output{Data: []byte("a")})
		time.Sleep(IdleInterval + time.Second)
		j.OnComplete(Complete{})
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * IdleInterval)
		if got := fmt.Sprint(i.idle); got != "[10s 20s 34s]" {
			t.Fatal(got)
		}
	})
}

func TestAnIdlersErrorEndsItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		i := &idler{fail: errors.New("gone")}
		if err := j.Follow(t.Context(), 0, i); err != i.fail {
			t.Fatal(err)
		}
	})
}

func TestFollowEndsWithTheCauseOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		cause := errors.New("client gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		var r, other Recorder
		result, fine := follow(ctx, j, 0, &r), follow(t.Context(), j, 0, &other)
		synctest.Wait()
		cancel(cause)
		if err := <-result; err != cause {
			t.Fatal(err)
		}
		j.OnStdout(Output{Data: []byte("a")})
		j.OnComplete(Complete{})
		if err := <-fine; err != nil || other.Stdout.String() != "a" || r.Stdout.Len() != 0 {
			t.Fatalf("the other reader: %v, %q", err, other.Stdout.String())
		}
	})
}

func TestWaitReturnsWhenThereIsMoreOrNothingEverWillBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		wait := func(ctx context.Context, after int64) chan error {
			result := make(chan error, 1)
			go func() { result <- j.Wait(ctx, after) }()
			synctest.Wait()
			return result
		}
		if err := <-wait(t.Context(), 0); err != nil {
			t.Error(err)
		}
		cause := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		gone, two, late := wait(ctx, 1), wait(t.Context(), 2), wait(t.Context(), 99)
		cancel(cause)
		if err := <-gone; err != cause {
			t.Error(err)
		}
		j.OnStdout(Output{Data: []byte("a")})
		synctest.Wait()
		if len(two) > 0 {
			t.Error("it returned before there was more")
		}
		j.OnStdout(Output{Data: []byte("b")})
		if err := <-two; err != nil {
			t.Error(err)
		}
		j.OnComplete(Complete{})
		if err := <-late; err != nil {
			t.Error(err)
		}
	})
}

func TestWhatIsThereIsFlushedOnce(t *testing.T) {
	j := begin(Config{})
	for range 100 {
		j.OnStderr(Output{Data: []byte("a\n")})
		j.OnStdout(Output{Data: []byte("b\n")})
	}
	j.OnComplete(Complete{})
	var r Recorder
	if err := j.Follow(t.Context(), 0, &r); err != nil || r.Flushes != 1 || r.Stdout.Len() != 200 || r.Stderr.Len() != 200 {
		t.Fatalf("%v, %d flushes", err, r.Flushes)
	}
}

// Many write, many read; some readers die or come back. Each good one gets every line of each writer once, in order.
func TestManyReadersAndWriters(t *testing.T) {
	const writers, lines = 4, 2400 // fewer records than are kept, so that who comes back late misses none
	store := NewBudget(t.TempDir(), DefaultLimits).Store("x")
	defer store.Close()
	j := begin(Config{Store: store})
	var reading, writing sync.WaitGroup
	for mode := range Base64 + 1 {
		for limit := range 3 {
			reading.Go(func() {
				var all []piece
				for after := int64(0); len(of(all, "complete")) == 0; {
					c := newClient(mode, after)
					c.limit = limit * 700
					if err := j.Follow(t.Context(), after, c); err != nil && err != errCut || c.fault != nil || len(c.gaps) > 0 {
						t.Errorf("mode %d: %v, %v, gaps %v", mode, err, c.fault, c.gaps)
						return
					}
					all, after = append(all, c.got...), c.last
				}
				if err := checkLines(mode, all, writers, lines); err != nil {
					t.Errorf("mode %d, cut after %d: %v", mode, limit*700, err)
				}
			})
		}
	}
	broken := errors.New("broken")
	for range 5 {
		reading.Go(func() {
			if err := j.Follow(t.Context(), 0, &Recorder{Err: broken}); err != broken {
				t.Errorf("a broken reader ended with %v", err)
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			stream := j.OnStdout
			if w%2 == 1 {
				stream = j.OnStderr
			}
			for i := range lines {
				stream(Output{Data: fmt.Appendf(nil, "%d %d %s\n", w, i, strings.Repeat("é", i%100))})
				if i%500 == 0 {
					j.OnStatus(Status{State: StateQueued})
				}
			}
		})
	}
	writing.Wait()
	j.OnComplete(Complete{})
	reading.Wait()
	if len(j.readers) > 0 {
		t.Errorf("%d readers left", len(j.readers))
	}
}

// verifier is a Writer that checks that its output is pattern(seed) without a gap.
type verifier struct {
	discard
	seed, next int64
	attached   chan struct{}
	fault      error
}

func (v *verifier) OnInit(Init) { close(v.attached) }

func (v *verifier) OnStdout(o Output) {
	to := v.next + int64(len(o.Data))
	if v.fault == nil && !bytes.Equal(o.Data, pattern(v.seed, v.next, to)) {
		v.fault = fmt.Errorf("%d wrong bytes at %d", len(o.Data), v.next)
	}
	v.next = to
}

func (v *verifier) OnStatus(e Status) { v.fault = fmt.Errorf("status %+v", e) }
func (v *verifier) Flush() error      { return v.fault }

// However little a store may keep, and whatever others demand, a reader that stays attached gets everything.
func TestAttachedReadersLoseNothing(t *testing.T) {
	const k = segmentSize
	for name, test := range map[string]struct {
		limits Limits
		dir    string
	}{
		"one segment":             {Limits{Memory: k, MemoryTotal: 1 << 30}, ""},
		"little memory":           {Limits{Memory: 3 * k, MemoryTotal: 1 << 30}, ""},
		"memory needed by others": {Limits{Memory: 4 << 20, MemoryTotal: k}, ""},
		"a small file":            {Limits{Memory: k, MemoryTotal: k, Log: k, LogTotal: 1 << 30}, t.TempDir()},
		"files needed by others":  {Limits{Memory: k, MemoryTotal: k, Log: 8 << 20, LogTotal: k}, t.TempDir()},
		"what is usual":           {DefaultLimits, t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			budget := NewBudget(test.dir, test.limits)
			var group sync.WaitGroup
			for seed := range int64(3) {
				store := budget.Store(strconv.Itoa(int(seed)))
				defer store.Close()
				j := begin(Config{Store: store})
				for range 2 {
					v := &verifier{seed: seed, attached: make(chan struct{})}
					group.Go(func() {
						if err := j.Follow(t.Context(), 0, v); err != nil || v.next != 4<<20 {
							t.Errorf("%v, %d bytes", err, v.next)
						}
					})
					<-v.attached
				}
				group.Go(func() {
					random := rand.New(rand.NewPCG(uint64(seed), 3))
					for at := int64(0); at < 4<<20; {
						n := min(4<<20-at, 1+random.Int64N(3*k))
						j.OnStdout(Output{Data: pattern(seed, at, at+n)})
						at += n
					}
					j.OnComplete(Complete{})
				})
			}
			group.Wait()
		})
	}
}

// checkLines checks that got has each writer's lines once and in order.
func checkLines(mode Mode, got []piece, writers, lines int) error {
	next := make([]int, writers)
	for _, stream := range []string{"stdout", "stderr"} {
		var all []string
		if mode == Lines {
			for _, p := range of(got, stream) {
				all = append(all, p.text)
			}
		} else {
			text := strings.TrimSuffix(joined(got, stream), "\n")
			all = strings.Split(text, "\n")
		}
		for _, line := range all {
			fields := strings.SplitN(line, " ", 3)
			w, err := strconv.Atoi(fields[0])
			if err != nil || fields[1] != strconv.Itoa(next[w]) || fields[2] != strings.Repeat("é", next[w]%100) {
				return fmt.Errorf("line %q of %s, want number %v", line, stream, next)
			}
			next[w]++
		}
	}
	for _, n := range next {
		if n != lines {
			return fmt.Errorf("lines %v, want %d each", next, lines)
		}
	}
	return nil
}
