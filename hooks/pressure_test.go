package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a Writer that blocks in Flush until it is let through, once for each value sent.
type gate struct {
	Recorder
	pass chan error
}

func newGate() *gate { return &gate{pass: make(chan error)} }

func (g *gate) Flush() error { return <-g.pass }

// program writes n chunks of FlushBytes in a goroutine, and counts them.
func program(j *Journal, n int) (written *atomic.Int64, done chan struct{}) {
	written, done = new(atomic.Int64), make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			j.OnStdout(Output{Data: bytes.Repeat([]byte("x"), FlushBytes)})
			written.Add(1)
		}
	}()
	return written, done
}

func begin(c Config) *Journal {
	j := NewJournal(c)
	j.OnInit(Init{ID: "x"})
	return j
}

// follow runs Follow in a goroutine.
func follow(ctx context.Context, j *Journal, after int64, w Writer) (result chan error) {
	result = make(chan error, 1)
	go func() { result <- j.Follow(ctx, after, w) }()
	return result
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestASlowReaderSlowsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		synctest.Wait() // it is attached, and flushes OnInit
		written, done := program(j, 100)
		for read := range int64(40) {
			synctest.Wait()
			if n := written.Load(); n > window/FlushBytes+read || n < window/FlushBytes || isDone(done) {
				t.Fatalf("%d chunks written, %d read", n, read)
			}
			g.pass <- nil
		}
		close(g.pass)
		<-done
		j.OnComplete(Complete{})
		if err := <-result; err != nil || g.Stdout.Len() != 100*FlushBytes {
			t.Fatalf("%v, %d bytes", err, g.Stdout.Len())
		}
	})
}

func TestASlowReaderOfEventsSlowsTheProgram(t *testing.T) {
	big := Result{Data: map[string]json.RawMessage{"text/plain": bytes.Repeat([]byte("1"), window)}}
	for name, test := range map[string]struct {
		event  func(j *Journal)
		before int64 // it waits
	}{
		"statuses":      {func(j *Journal) { j.OnStatus(Status{State: StateQueued}) }, windowEvents},
		"large results": {func(j *Journal) { j.OnResult(big) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := begin(Config{})
				g := newGate()
				result := follow(t.Context(), j, 0, g)
				synctest.Wait()
				var n atomic.Int64
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range test.before + 10 {
						test.event(j)
						n.Add(1)
					}
				}()
				synctest.Wait()
				if n := n.Load(); n != test.before {
					t.Errorf("%d events before the program waits, want %d", n, test.before)
				}
				close(g.pass)
				<-done
				j.OnComplete(Complete{})
				if err := <-result; err != nil || len(g.Results)+len(g.Statuses) != int(test.before)+10 {
					t.Fatalf("%v, %d results, %d statuses", err, len(g.Results), len(g.Statuses))
				}
			})
		})
	}
}

func TestReleaseLetsTheProgramGoOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		j := begin(Config{})
		stop := j.ReleaseWith(ctx)
		defer stop()
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		synctest.Wait()
		start := time.Now()
		written, done := program(j, 200) // more than is kept
		synctest.Wait()
		if isDone(done) {
			t.Fatal("the program didn't wait")
		}
		cancel()
		<-done
		j.OnError(Failure{})
		if took := time.Since(start); took != 0 || written.Load() != 200 {
			t.Fatalf("it took %v", took)
		}
		close(g.pass)
		if err := <-result; err != nil || g.Failure == nil || len(g.Statuses) != 1 || g.Statuses[0].State != StateGap {
			t.Fatalf("%v, %+v", err, g.Statuses)
		}
		j.Release() // a second time
	})
}

func TestReadersThatAcceptNothingAreGivenUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		var stuck []*gate
		var results []chan error
		for range 3 {
			g := newGate()
			stuck = append(stuck, g)
			results = append(results, follow(t.Context(), j, 0, g))
		}
		var good Recorder
		fine := follow(t.Context(), j, 0, &good)
		synctest.Wait()
		start := time.Now()
		_, done := program(j, 100)
		<-done
		if took := time.Since(start); took != StallTimeout {
			t.Errorf("the program went on after %v", took)
		}
		j.OnComplete(Complete{})
		if err := <-fine; err != nil || good.Stdout.Len() != 100*FlushBytes {
			t.Errorf("the good reader: %v, %d bytes", err, good.Stdout.Len())
		}
		for i, g := range stuck {
			close(g.pass)
			if err := <-results[i]; !errors.Is(err, ErrStalled) {
				t.Errorf("a stuck reader ended with %v", err)
			}
		}
	})
}

func TestAReaderThatAcceptsALittleIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		_, done := program(j, 60)
		for range 40 {
			time.Sleep(StallTimeout - time.Second)
			g.pass <- nil
		}
		close(g.pass)
		<-done
		j.OnComplete(Complete{})
		if err := <-result; err != nil || g.Stdout.Len() != 60*FlushBytes {
			t.Fatalf("%v, %d bytes", err, g.Stdout.Len())
		}
	})
}

// A quiet program doesn't wait for anybody, so that nobody is given up, however long it takes.
func TestAReaderIsGivenUpOnlyWhenTheProgramWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		j.OnStdout(Output{Data: []byte("a")})
		time.Sleep(100 * StallTimeout)
		j.OnComplete(Complete{})
		close(g.pass)
		if err := <-result; err != nil || g.Stdout.String() != "a" {
			t.Fatalf("%v, %q", err, g.Stdout.String())
		}
	})
}

func TestAReaderThatLeavesLetsTheProgramGoOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		synctest.Wait()
		start := time.Now()
		_, done := program(j, 100)
		synctest.Wait()
		broken := errors.New("broken pipe")
		g.pass <- broken
		if err := <-result; err != broken {
			t.Errorf("the reader ended with %v", err)
		}
		<-done
		if took := time.Since(start); took != 0 {
			t.Errorf("the program went on after %v", took)
		}
	})
}

// Who comes late may be further behind than the window: the program then waits until it has caught up.
func TestALateReaderHoldsTheProgramUntilItHasCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		_, done := program(j, 60) // nearly all that is kept
		<-done
		g := newGate()
		result := follow(t.Context(), j, 1, g)
		synctest.Wait()
		written, done := program(j, 100)
		for read := range int64(60 - window/FlushBytes + 1) {
			synctest.Wait()
			if n := written.Load(); n != 0 {
				t.Fatalf("%d chunks written, %d of 60 read", n, read)
			}
			g.pass <- nil
		}
		synctest.Wait()
		if written.Load() == 0 {
			t.Error("the reader has caught up, the program still waits")
		}
		close(g.pass)
		<-done
		j.OnComplete(Complete{})
		if err := <-result; err != nil || g.Stdout.Len() != 160*FlushBytes || len(g.Statuses) > 0 {
			t.Fatalf("%v, %d bytes, %+v", err, g.Stdout.Len(), g.Statuses)
		}
	})
}

func TestTheEndDoesntWaitForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		synctest.Wait()
		_, done := program(j, window/FlushBytes)
		<-done // one more would wait
		j.OnComplete(Complete{})
		<-j.Done()
		close(g.pass)
		if err := <-result; err != nil || g.Stdout.Len() != window || g.Complete == nil {
			t.Fatalf("%v, %d bytes", err, g.Stdout.Len())
		}
	})
}

func TestTheFileStaysUntilTheLastAttachedReaderHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		budget := NewBudget(dir, Limits{Memory: segmentSize, MemoryTotal: segmentSize, Log: 1 << 20, LogTotal: segmentSize})
		j := begin(Config{Store: budget.Store("x")})
		defer j.Store().Close()
		_, done := program(j, 8)
		<-done
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		synctest.Wait()
		j.OnComplete(Complete{})
		other := budget.Store("other") // demands that the oldest finished one goes
		defer other.Close()
		other.Append(make([]byte, 3*segmentSize))
		if open := descriptors(t, dir); len(open) != 2 {
			t.Errorf("while it reads: open are %v", open)
		}
		close(g.pass)
		if err := <-result; err != nil || g.Stdout.Len() != 8*FlushBytes || len(g.Statuses) > 0 {
			t.Fatalf("%v, %d bytes, %+v", err, g.Stdout.Len(), g.Statuses)
		}
		if open := descriptors(t, dir); len(open) != 1 {
			t.Errorf("afterwards: open are %v", open)
		}
		other.Append(make([]byte, 3*segmentSize))
		if base, end := j.Store().Bounds(); base != end {
			t.Errorf("afterwards: %d..%d are kept", base, end)
		}
	})
}

func TestARingNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{Policy: Ring, Store: NewBudget("", Limits{Memory: 4 * segmentSize, MemoryTotal: 1 << 30}).Store("")})
		g := newGate()
		lagging := follow(t.Context(), j, 0, g)
		synctest.Wait()
		start := time.Now()
		_, done := program(j, 100)
		<-done
		if took := time.Since(start); took != 0 {
			t.Errorf("the program took %v", took)
		}
		var newcomer Recorder
		if err := j.Replay(t.Context(), 0, &newcomer); err != nil || newcomer.Calls[1] != StateGap || newcomer.Stdout.Len() < 3*FlushBytes {
			t.Errorf("a newcomer: %v, %v, %d bytes", err, newcomer.Calls, newcomer.Stdout.Len())
		}
		close(g.pass)
		if err := <-lagging; !errors.Is(err, ErrLagged) {
			t.Errorf("the lagging reader ended with %v", err)
		}
		again := &Recorder{}
		if err := j.Replay(t.Context(), g.LastEID, again); err != nil || again.Calls[0] != StateGap || again.Statuses[0].From != g.LastEID+1 {
			t.Errorf("it came back: %v, %v", err, again.Calls)
		}
	})
}

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
	const writers, lines = 4, 3000
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
					j.OnStatus(Status{State: StateRunning})
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
