package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// note adds to the truth what a journal makes of o.
func (t *truth) note(o op) { t.add(o.kind, o.data) }

// finish adds to the truth what a journal makes of a terminal event.
func (t *truth) finish(k kind) {
	for _, stream := range []kind{kindStdout, kindStderr} {
		var all []byte
		for i, k := range t.kinds {
			if kind(k) == stream {
				all = append(all, t.bytes[i])
			}
		}
		if n := len(all); n > 0 && all[n-1] != '\n' && all[n-1] != '\r' {
			t.add(kindEnd, nil)
		}
	}
	t.add(k, nil)
}

func TestWhatBreaksTheOrderIsDropped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := NewJournal(Config{})
		x := &exact{truth: &truth{}}
		begun, ended := false, false
		for i, step := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 40).Draw(t, "steps") {
			open := begun && !ended
			switch step {
			case 0, 1:
				j.OnInit(Init{ID: fmt.Sprint(i)})
				begun = true
			case 2:
				if j.OnError(Failure{}); open {
					x.truth.finish(kindError)
					ended = true
				}
			case 3:
				if j.OnComplete(Complete{}); open {
					x.truth.finish(kindComplete)
					ended = true
				}
			default:
				o := op{kind: kind(step % 2), data: []byte(fmt.Sprint("line ", i, "\n")), name: fmt.Sprint(i)}
				if step > 7 {
					o = op{kind: kindResult + kind(step%2), name: o.name}
				}
				if o.apply(j); open {
					x.truth.note(o)
				}
			}
			select {
			case <-j.Done():
				if !ended {
					t.Fatalf("done before the end")
				}
			default:
				if ended {
					t.Fatalf("not done after the end")
				}
			}
			if rapid.Bool().Draw(t, "read") {
				if err := j.Replay(t.Context(), x.pos, x); err != nil {
					t.Fatalf("%v", err)
				}
			}
		}
		if err := j.Replay(t.Context(), x.pos, x); err != nil {
			t.Fatalf("%v", err)
		}
		pos, isEnd := j.Position()
		if want := int64(len(x.truth.kinds)) + 1; begun && (pos != want || x.pos != want) || !begun && pos != 0 || isEnd != ended || x.end != ended {
			t.Fatalf("position %d, ended %v, reader at %d, want %d, %v", pos, isEnd, x.pos, want, ended)
		}
	})
}

// smallStore makes a store that keeps little.
func smallStore(t *rapid.T, temp string) (s *Store, clean func()) {
	const k = segmentSize
	limits := Limits{Memory: rapid.SampledFrom([]int64{k, 2 * k, 5 * k}).Draw(t, "memory"), MemoryTotal: 1 << 30, LogTotal: 1 << 30}
	limits.Log = rapid.SampledFrom([]int64{0, k, 4 * k}).Draw(t, "log")
	dir, err := os.MkdirTemp(temp, "")
	if err != nil {
		t.Fatalf("%v", err)
	}
	s = NewBudget(dir, limits).Store("x")
	return s, func() {
		s.Close()
		os.RemoveAll(dir)
	}
}

func TestGapsTellExactlyWhatIsGone(t *testing.T) {
	temp := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		store, clean := smallStore(t, temp)
		defer clean()
		j := NewJournal(Config{Store: store})
		truth := &truth{}
		j.OnInit(Init{})
		gaps := 0
		readers := []*exact{{truth: truth}}
		for i := range rapid.IntRange(1, 40).Draw(t, "ops") {
			o := op{kind: kind(rapid.IntRange(0, 4).Draw(t, "kind")), name: strings.Repeat("r", i)}
			if o.kind == kindEnd {
				o.kind = kindStdout
			}
			if o.kind <= kindStderr {
				o.data = pattern(int64(i), 0, rapid.SampledFrom([]int64{1, 50, 5000, 40_000, 200_000}).Draw(t, "size"))
			}
			o.apply(j)
			truth.note(o)
			if rapid.IntRange(0, 2).Draw(t, "newcomer") == 0 {
				pos, _ := j.Position()
				readers = append(readers, &exact{truth: truth, pos: rapid.Int64Range(1, pos).Draw(t, "after")})
			}
			for _, x := range readers {
				if rapid.IntRange(0, 3).Draw(t, "read") > 0 {
					continue
				}
				before := len(x.gaps)
				if err := j.Replay(t.Context(), x.pos, x); err != nil {
					t.Fatalf("%v", err)
				}
				if n := len(x.gaps) - before; n > 1 {
					t.Fatalf("one read told of %d gaps", n)
				}
			}
		}
		j.OnError(Failure{})
		truth.finish(kindError)
		for _, x := range readers {
			if err := j.Follow(t.Context(), x.pos, x); err != nil {
				t.Fatalf("%v", err)
			}
			if end, _ := j.Position(); x.pos != end || !x.end {
				t.Fatalf("reader at %d of %d", x.pos, end)
			}
			for _, gap := range x.gaps {
				gaps++
				if kept := x.pos - gap.To; kept < store.holds()-FlushBytes-int64(len(truth.kinds)) {
					t.Fatalf("gap %v leaves %d", gap, kept)
				}
			}
		}
	})
}

func TestALateReaderIsToldOfTheGapOnceAndGoesOn(t *testing.T) {
	budget := NewBudget("", Limits{Memory: 4 * segmentSize, MemoryTotal: 1 << 30})
	j := NewJournal(Config{Store: budget.Store("")})
	j.OnInit(Init{ID: "x"})
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 10_000 {
		j.OnStdout(Output{Data: line})
	}
	j.OnComplete(Complete{})
	c := newClient(Lines, 0)
	if err := j.Follow(t.Context(), 0, c); err != nil || c.fault != nil {
		t.Fatal(err, c.fault)
	}
	if len(c.gaps) != 1 || c.got[0].kind != "init" || c.got[1].kind != StateGap || c.gaps[0].From != 2 || c.gaps[0].EID != 0 {
		t.Fatalf("gaps %+v, first %+v", c.gaps, c.got[:2])
	}
	text := joined(c.got, "stdout")
	if kept := 1_000_001 - c.gaps[0].To; int64(len(text))+int64(len(of(c.got, "stdout"))) != kept || kept < 3*segmentSize-FlushBytes {
		t.Fatalf("%d bytes of text in %d lines after a gap to %d", len(text), len(of(c.got, "stdout")), c.gaps[0].To)
	}
	// Who comes back after the gap, or inside it, gets what that reader got.
	for _, after := range []int64{c.gaps[0].From, c.gaps[0].To - 1, c.gaps[0].To, c.got[10].eid} {
		again := newClient(Lines, after)
		if err := j.Follow(t.Context(), after, again); err != nil || again.fault != nil {
			t.Fatal(err, again.fault)
		}
		if inside := after < c.gaps[0].To; inside != (len(again.gaps) == 1) || inside && (again.gaps[0].From != after+1 || again.gaps[0].To != c.gaps[0].To) {
			t.Fatalf("after %d: gaps %+v, want one to %d", after, again.gaps, c.gaps[0].To)
		}
		if got := joined(again.got, "stdout"); !strings.HasSuffix(text, got) || after <= c.gaps[0].To && got != text {
			t.Fatalf("after %d: %d bytes, want %d", after, len(got), len(text))
		}
	}
}

func TestRecordsAreBounded(t *testing.T) {
	j := NewJournal(Config{})
	j.OnInit(Init{})
	x := &exact{truth: &truth{}}
	for range MaxRecords + 500 {
		j.OnStatus(Status{State: StateQueued})
		x.truth.add(kindStatus, nil)
	}
	j.OnStdout(Output{Data: []byte("a")})
	x.truth.add(kindStdout, []byte("a"))
	j.OnStderr(Output{Data: []byte("b")})
	x.truth.add(kindStderr, []byte("b"))
	kept := len(j.records)
	j.OnComplete(Complete{})
	x.truth.finish(kindComplete)
	if err := j.Follow(t.Context(), 0, x); err != nil {
		t.Fatal(err)
	}
	if kept != MaxRecords || len(j.records) != MaxRecords+3 || len(x.gaps) != 1 || x.gaps[0].To != 1+502 {
		t.Fatalf("%d and %d records, gaps %+v", kept, len(j.records), x.gaps)
	}
}

// Alternating single bytes make a record each; when there are many, output of one stream is joined whatever its age.
func TestTinyOutputOfOneStreamIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := NewJournal(Config{})
		j.OnInit(Init{})
		records := func() int { return len(j.records) }
		for range 10 {
			j.OnStdout(Output{Data: []byte("a")})
			time.Sleep(mergeWithin / 20)
		}
		if records() != 1 {
			t.Fatalf("%d records within %v", records(), mergeWithin)
		}
		for range windowEvents + 100 {
			time.Sleep(mergeWithin + 1)
			j.OnStdout(Output{Data: []byte("a")})
		}
		if records() != windowEvents {
			t.Fatalf("%d records", records())
		}
		var r Recorder
		if err := j.Replay(t.Context(), 0, &r); err != nil {
			t.Fatal(err)
		}
		if got := r.Stdout.Len(); got != windowEvents+110 {
			t.Fatalf("%d bytes", got)
		}
	})
}

func TestAStreamsUnfinishedRestComesBeforeTheEnd(t *testing.T) {
	for mode, want := range map[Mode]string{
		Lines:  "[{init x 1 false} {stdout a 3 false} {stdout b\xf0\x9f 12 false} {stderr c\xc3 13 false} {complete  14 false}]",
		Raw:    "[{init x 1 false} {stdout a\nb 5 false} {stderr c 8 false} {stdout \xf0\x9f 12 false} {stderr \xc3 13 false} {complete  14 false}]",
		Base64: "[{init x 1 false} {stdout a\nb\xf0\x9f 6 false} {stderr c\xc3 8 false} {complete  14 false}]",
	} {
		synctest.Test(t, func(t *testing.T) { // by its clock the two pieces of stderr come together, and are one record
			j := NewJournal(Config{})
			j.OnInit(Init{ID: "x"})
			j.OnStdout(Output{Data: []byte("a\nb\xf0\x9f")})
			j.OnStderr(Output{Data: []byte("c")})
			j.OnStderr(Output{Data: []byte("\xc3")})
			j.OnStatus(Status{State: StateQueued})
			j.OnStatus(Status{State: StateQueued})
			j.OnStatus(Status{State: StateQueued})
			j.OnComplete(Complete{})
			c := newClient(mode, 0)
			if err := j.Follow(t.Context(), 0, c); err != nil || c.fault != nil {
				t.Fatal(err, c.fault)
			}
			var got []piece
			for _, p := range c.got {
				if p.kind != StateQueued {
					got = append(got, p)
				}
			}
			if text := fmt.Sprint(got); text != want {
				t.Fatalf("mode %d:\n%q, want\n%q", mode, text, want)
			}
		})
	}
}

func TestFinishedLinesLeaveNothingToReport(t *testing.T) {
	j := NewJournal(Config{})
	j.OnInit(Init{})
	j.OnStdout(Output{Data: []byte("a\r")})
	j.OnStderr(Output{Data: []byte("b\n")})
	j.OnComplete(Complete{})
	var r Recorder
	if err := j.Follow(t.Context(), 0, &r); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.Calls); got != "[init stdout stderr complete]" || r.LastEID != 6 {
		t.Fatalf("%s, last %d", got, r.LastEID)
	}
}

func TestWhatIsPassedInMayBeUsedAgain(t *testing.T) {
	j := NewJournal(Config{})
	j.OnInit(Init{})
	data, value, meta, trace := []byte("out\n"), []byte(`"value"`), []byte(`{"a":1}`), []string{"line"}
	j.OnStdout(Output{Data: data})
	j.OnResult(Result{Data: map[string]json.RawMessage{"text/plain": value, "text/html": nil}, Metadata: meta, DisplayID: "d"})
	j.OnError(Failure{ExecError: ExecError{Name: "E", Traceback: trace}})
	for _, p := range [][]byte{data, value, meta} {
		clear(p)
	}
	trace[0] = ""
	for range 2 {
		var r Recorder
		if err := j.Follow(t.Context(), 0, &r); err != nil {
			t.Fatal(err)
		}
		e := r.Results[0]
		if r.Stdout.String() != "out\n" || string(e.Data["text/plain"]) != `"value"` || len(e.Data) != 2 || e.DisplayID != "d" ||
			string(e.Metadata) != `{"a":1}` || r.Failure.Traceback[0] != "line" {
			t.Fatalf("%q %+v %+v", r.Stdout.String(), e, r.Failure)
		}
	}
}

func TestEachPartOfAResultHasAPosition(t *testing.T) {
	j := NewJournal(Config{})
	j.OnInit(Init{})
	large := append(append([]byte{'"'}, bytes.Repeat([]byte("x"), maxPart)...), '"')
	j.OnResult(Result{Data: map[string]json.RawMessage{"b/b": large, "a/a": large, "c/c": []byte("1"), "d/d": []byte("2")}})
	j.OnResult(Result{})
	j.OnComplete(Complete{})
	for after := range int64(7) {
		var r Recorder
		if err := j.Follow(t.Context(), after, &r); err != nil {
			t.Fatal(err)
		}
		want := slices.DeleteFunc([]int64{4, 5}, func(eid int64) bool { return eid <= after }) // init is at 1, the parts at 2, 3 and 4
		var got []int64
		for _, e := range r.Results {
			if got = append(got, e.EID); e.EID == 4 && fmt.Sprint(e.Parts()) != "[[a/a] [b/b] [c/c d/d]]" {
				t.Errorf("%v", e.Parts())
			}
		}
		if !slices.Equal(got, want) || (r.Complete == nil) != (after >= 6) {
			t.Errorf("after %d: %v, want %v; complete %+v", after, got, want, r.Complete)
		}
	}
}

func TestAResultLargerThanTheStoreIsAGap(t *testing.T) {
	j := NewJournal(Config{Store: NewBudget("", Limits{Memory: 2 * segmentSize, MemoryTotal: 1 << 30}).Store("")})
	j.OnInit(Init{})
	big := append(append([]byte{'"'}, bytes.Repeat([]byte("x"), 1<<20)...), '"')
	j.OnResult(Result{Data: map[string]json.RawMessage{"text/html": big}})
	c := newClient(Lines, 0)
	if err := j.Replay(t.Context(), 0, c); err != nil || len(c.gaps) != 1 || c.gaps[0].From != 2 || c.gaps[0].To != 2 {
		t.Fatalf("%v, gaps %+v", err, c.gaps)
	}
	j.OnStdout(Output{Data: []byte("after\n")})
	j.OnComplete(Complete{})
	if err := j.Follow(t.Context(), 2, c); err != nil || joined(c.got, "stdout") != "after" || len(c.gaps) != 1 {
		t.Fatalf("%v, %+v", err, c.got)
	}
}

// A gap that begins while a reader is in the middle of a line reports the line's beginning, without an id.
func TestAGapBreaksOffUnfinishedLines(t *testing.T) {
	j := NewJournal(Config{Store: NewBudget("", Limits{Memory: 2 * segmentSize, MemoryTotal: 1 << 30}).Store("")})
	j.OnInit(Init{})
	j.OnStdout(Output{Data: []byte("begun")})
	j.OnStderr(Output{Data: []byte("whole\n")})
	c := newClient(Lines, 0)
	flushed := 0
	w := &onFlush{Writer: c, flush: func() {
		if flushed++; flushed == 1 { // it is read, and attached, and lags now
			j.Release()
			for range 10 {
				j.OnStdout(Output{Data: []byte(strings.Repeat("lost\n", segmentSize/5))})
			}
			j.OnStdout(Output{Data: []byte("tail\n")})
			j.OnComplete(Complete{})
		}
	}}
	if err := j.Follow(t.Context(), 0, w); err != nil || c.fault != nil {
		t.Fatal(err, c.fault)
	}
	if got := fmt.Sprint(c.got[:4]); got != "[{init  1 false} {stderr whole 12 false} {stdout begun 0 true} {gap  0 false}]" {
		t.Fatal(got)
	}
	if last := c.got[len(c.got)-2]; last.text != "tail" {
		t.Fatalf("in the end %+v", last)
	}
}

// After a gap lines are cut as the bytes before the gap, not those before the reader's last event, ask for.
func TestAfterAGapLinesAreCutByWhatWasBeforeThem(t *testing.T) {
	j := NewJournal(Config{Store: NewBudget("", Limits{Memory: 2 * segmentSize, MemoryTotal: 1 << 30}).Store("")})
	j.OnInit(Init{})
	j.OnStdout(Output{Data: []byte("50%\r")}) // a line feed here would be swallowed
	c := newClient(Lines, 0)
	flushed := 0
	w := &onFlush{Writer: c, flush: func() {
		if flushed++; flushed == 1 {
			j.Release()
			for range 10 {
				j.OnStdout(Output{Data: bytes.Repeat([]byte("\n"), FlushBytes)})
			}
			j.OnComplete(Complete{})
		}
	}}
	if err := j.Follow(t.Context(), 0, w); err != nil || c.fault != nil || len(c.gaps) != 1 {
		t.Fatal(err, c.fault, c.gaps)
	}
	pos, _ := j.Position()
	if got, want := len(of(c.got, "stdout")), int(pos-1-c.gaps[0].To); got != 1+want {
		t.Fatalf("%d lines after the gap, want %d", got-1, want)
	}
}

// What goes straight into the store is in no event.
func TestLateOutputIsNotInTheStream(t *testing.T) {
	store := NewBudget(t.TempDir(), Limits{Memory: segmentSize, MemoryTotal: 1 << 30, Log: segmentSize, LogTotal: 1 << 30}).Store("x")
	defer store.Close()
	j := NewJournal(Config{Store: store})
	j.OnInit(Init{})
	j.OnStdout(Output{Data: []byte("a")})
	store.Append([]byte("late"))
	j.OnStdout(Output{Data: []byte("b\n")})
	j.OnStatus(Status{State: StateUnwound})
	j.OnComplete(Complete{})
	store.Append([]byte("later"))
	var r Recorder
	if err := j.Follow(t.Context(), 0, &r); err != nil || r.Stdout.String() != "ab\n" {
		t.Fatalf("%v, %q", err, r.Stdout.String())
	}
	store.Append(make([]byte, 10*segmentSize)) // nothing of the execution is left
	r = Recorder{}
	if err := j.Follow(t.Context(), 0, &r); err != nil || fmt.Sprint(r.Calls) != "[init gap unwound complete]" || r.Statuses[0].To != 4 {
		t.Fatalf("%v, %v, %+v", err, r.Calls, r.Statuses)
	}
}

// onFlush calls flush at each Flush of a Writer.
type onFlush struct {
	Writer
	flush func()
}

func (w *onFlush) Flush() error {
	w.flush()
	return w.Writer.Flush()
}

func TestAStoreThatCantBeReadEndsTheReaderAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	store := NewBudget(dir, Limits{Memory: segmentSize, MemoryTotal: 1 << 30, Log: 1 << 20, LogTotal: 1 << 30}).Store("x")
	defer store.Close()
	j := NewJournal(Config{Store: store})
	j.OnInit(Init{})
	j.OnStdout(Output{Data: bytes.Repeat([]byte("line\n"), 60_000)})
	j.OnComplete(Complete{})
	path := dir + "/x.log"
	for _, err := range []error{os.Rename(path, path+".away"), os.Mkdir(path, 0o700)} { // a folder can't be read
		if err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(Lines, 0)
	if err := j.Follow(t.Context(), 0, c); err == nil || errors.Is(err, ErrDropped) {
		t.Fatalf("%v, gaps %+v", err, c.gaps)
	}
	for _, err := range []error{os.Remove(path), os.Rename(path+".away", path)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c = newClient(Lines, 0)
	if err := j.Follow(t.Context(), 0, c); err != nil || len(of(c.got, "stdout")) != 60_000 || len(c.gaps) > 0 {
		t.Fatalf("%v, %d lines, gaps %+v", err, len(of(c.got, "stdout")), c.gaps)
	}
	if err := os.Remove(path); err != nil { // and now it is gone
		t.Fatal(err)
	}
	c = newClient(Lines, 0)
	if err := j.Follow(t.Context(), 0, c); err != nil || len(c.gaps) != 1 || c.got[len(c.got)-1].kind != "complete" {
		t.Fatalf("%v, gaps %+v", err, c.gaps)
	}
}

func TestSectionsAreOfOneStream(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		j := NewJournal(Config{})
		j.OnInit(Init{})
		var want [2]string
		for i := range 100 {
			k, stream := 0, j.OnStdout
			if i%3 == 0 {
				k, stream = 1, j.OnStderr
			}
			text := fmt.Sprintf("%d\n", i)
			want[k] += text
			stream(Output{Data: []byte(text)})
			j.OnResult(Result{Data: map[string]json.RawMessage{"text/plain": []byte(`"noise"`)}})
		}
		j.OnComplete(Complete{})
		j.Store().Append([]byte("late"))
		if dropped {
			j.mu.Lock()
			j.drop(60)
			j.mu.Unlock()
		}
		for k, stderr := range []bool{false, true} {
			gone := j.gone[k]
			if dropped != (gone > 0) {
				t.Fatalf("stream %d: %d bytes gone", k, gone)
			}
			var got []byte
			for cursor := int64(0); ; {
				ranges, next := j.Section(stderr, cursor, 7)
				before := len(got)
				for _, r := range ranges {
					p := make([]byte, r.To-r.From)
					if n, err := j.Store().ReadAt(p, r.From); err != nil || n != len(p) {
						t.Fatal(n, err)
					}
					got = append(got, p...)
				}
				if len(got) == before {
					break
				}
				if n := len(got) - before; next != max(cursor, gone)+int64(n) || n > 7 {
					t.Fatalf("stream %d: %d bytes from %d, then %d", k, n, cursor, next)
				}
				cursor = next
			}
			if string(got) != want[k][gone:] {
				t.Errorf("stream %d: %q, want %q", k, got, want[k][gone:])
			}
			if r, next := j.Section(stderr, 1<<40, 7); r != nil || next != int64(len(want[k])) {
				t.Errorf("stream %d: past its end %v, %d", k, r, next)
			}
		}
	}
}
