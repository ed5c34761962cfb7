package hooks

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// tell calls every hook of j.
func tell(j *Journal) {
	code := 0
	j.OnInit(Init{ID: "c1"})
	j.OnStatus(Status{State: StateQueued, Detail: "2 before"})
	j.OnStatus(Status{State: StateCount, Count: 7})
	j.OnStdout(Output{Data: []byte("a\n\nb\xff\r")})
	j.OnStderr(Output{Data: []byte("no end")})
	j.OnResult(Result{Data: map[string]json.RawMessage{
		"text/plain": []byte(`"x\ny\n"`), "image/png": []byte(`"iVBO"`), "application/json": []byte(`{"a":1}`),
	}})
	j.OnResult(Result{Update: true, Data: map[string]json.RawMessage{"text/html": []byte(`"<b>"`)}})
	j.OnStatus(Status{State: StateInput, Prompt: "name? "})
	j.OnComplete(Complete{Duration: 1500 * time.Microsecond, ExitCode: &code})
}

func TestPrintShowsEveryEventOnALine(t *testing.T) {
	j := NewJournal(Config{})
	tell(j)
	var text strings.Builder
	if err := j.Follow(t.Context(), 0, Print(&text)); err != nil {
		t.Fatal(err)
	}
	want := `init      c1
status    queued 2 before
status    cell 7
stdout    a
stdout    
stdout    b` + "\uFFFD" + `
result    application/json: {"a":1}
result    image/png: (4 characters)
result    text/plain: x
          y
update    text/html: <b>
status    input_request name?
stderr    no end
complete  1 ms, exit 0
`
	if text.String() != want {
		t.Fatalf("got\n%swant\n%s", text.String(), want)
	}
}

func TestPrintShowsGapsAndFailures(t *testing.T) {
	var text strings.Builder
	p := Print(&text)
	p.OnStdout(Output{Stamp: Stamp{EID: 3}, Data: []byte("ab")})
	p.OnStatus(Status{State: StateGap, From: 4, To: 9})
	p.OnError(Failure{ExecError: ExecError{Name: "CommandExecError", Value: "3"}})
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "stdout    ab\ngap       4..9\nerror     CommandExecError: 3\n"; text.String() != want {
		t.Fatalf("got\n%swant\n%s", text.String(), want)
	}
}

func TestPrintReportsItsWritersError(t *testing.T) {
	r, w := io.Pipe()
	broken := errors.New("broken")
	r.CloseWithError(broken)
	j := NewJournal(Config{})
	tell(j)
	if err := j.Follow(t.Context(), 0, Print(w)); err != broken {
		t.Fatal(err)
	}
}

func TestARecorderRemembersEverything(t *testing.T) {
	j := NewJournal(Config{})
	tell(j)
	var r Recorder
	if err := j.Follow(t.Context(), 0, &r); err != nil {
		t.Fatal(err)
	}
	calls := "init queued execution_count stdout stderr result result input_request complete"
	pos, _ := j.Position()
	if got := strings.Join(r.Calls, " "); got != calls || r.LastEID != pos || r.Init.ID != "c1" || r.Stderr.String() != "no end" ||
		len(r.Results) != 2 || len(r.Statuses) != 3 || r.Complete == nil || r.Failure != nil || r.Flushes != 1 {
		t.Fatalf("%s, last %d of %d, %+v", got, r.LastEID, pos, &r)
	}
	if time.Since(r.Init.Time) > time.Hour || r.Complete.Time.Before(r.Init.Time) {
		t.Fatalf("init at %v, complete at %v", r.Init.Time, r.Complete.Time)
	}
}

// TestPrintToBadReaders: one that goes away inside a line, one that takes nothing and one that is flooded; none of them
// is another's affair.
func TestPrintToBadReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := begin(Config{})
		ends := make([]chan error, 3)
		reads, writes := make([]*io.PipeReader, 3), make([]*io.PipeWriter, 3)
		for i := range ends {
			reads[i], writes[i] = io.Pipe()
			ends[i] = follow(t.Context(), j, 0, Print(writes[i]))
		}
		all := make(chan string, 1)
		go func() {
			text, err := io.ReadAll(reads[0])
			if err != nil {
				t.Error(err)
			}
			all <- string(text)
		}()
		if _, err := io.ReadFull(reads[1], make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		reads[1].Close()
		if err := <-ends[1]; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the one that went away: %v", err)
		}
		synctest.Wait() // the others are attached
		line := strings.Repeat("x", 99)
		const lines = 100_000
		began := time.Now()
		for range lines {
			j.OnStdout(Output{Data: []byte(line + "\n")})
		}
		j.OnComplete(Complete{})
		if took := time.Since(began); took != StallTimeout {
			t.Errorf("the program waited %v", took)
		}
		reads[2].Close()
		if err := <-ends[2]; !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, ErrStalled) {
			t.Errorf("the one that took nothing: %v", err)
		}
		if err := <-ends[0]; err != nil {
			t.Error(err)
		}
		writes[0].Close()
		if n := strings.Count(<-all, "stdout    "+line+"\n"); n != lines {
			t.Errorf("%d lines of %d", n, lines)
		}
	})
}
