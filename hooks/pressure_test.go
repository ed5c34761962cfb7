package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
		synctest.Wait()
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

// pacer is a gate whose client takes what it is sent bit by bit.
type pacer struct {
	*gate
	accepted atomic.Int64
}

func (p *pacer) Accepted() time.Time { return time.Unix(0, p.accepted.Load()) }

func TestAReaderThatTakesOneBatchBitByBitIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		p := &pacer{gate: newGate()}
		result := follow(t.Context(), j, 0, p)
		synctest.Wait() // it is attached: what is written before is nothing to wait for
		_, done := program(j, 60)
		for range 5 {
			time.Sleep(StallTimeout - time.Second)
			p.accepted.Store(time.Now().UnixNano())
		}
		start := time.Now()
		<-done
		if took := time.Since(start); took != StallTimeout {
			t.Errorf("given up %v after it last took something", took)
		}
		close(p.pass)
		if err := <-result; !errors.Is(err, ErrStalled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A quiet program doesn't wait for anybody, so that nobody is given up, however long it takes.
func TestAReaderIsGivenUpOnlyWhenTheProgramWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		g := newGate()
		result := follow(t.Context(), j, 0, g)
		synctest.Wait()
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
