package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// op is one call of a hook; name is the text of a status or a result.
type op struct {
	kind kind
	data []byte
	name string
}

func (o op) apply(j *Journal) {
	switch o.kind {
	case kindStdout:
		j.OnStdout(Output{Data: o.data})
	case kindStderr:
		j.OnStderr(Output{Data: o.data})
	case kindResult:
		value, _ := json.Marshal(o.name)
		j.OnResult(Result{Data: map[string]json.RawMessage{"text/plain": value, "text/html": []byte(`"<b>"`)}})
	case kindStatus:
		j.OnStatus(Status{State: StateQueued, Detail: o.name})
	}
}

// script generates what an execution reports: two streams in random chunks, mixed with other events.
func script(valid bool) *rapid.Generator[[]op] {
	return rapid.Custom(func(t *rapid.T) []op {
		var streams [2][][]byte
		for k := range streams {
			streams[k] = chop(t, text(valid).Draw(t, "text"))
		}
		var ops []op
		for len(streams[0])+len(streams[1]) > 0 {
			switch k := rapid.IntRange(0, 9).Draw(t, "what"); {
			case k == 9:
				ops = append(ops, op{kind: kindStatus, name: fmt.Sprint(len(ops))})
			case k == 8:
				ops = append(ops, op{kind: kindResult, name: fmt.Sprint(len(ops))})
			case len(streams[k%2]) > 0:
				ops = append(ops, op{kind: kind(k % 2), data: streams[k%2][0]})
				streams[k%2] = streams[k%2][1:]
			}
		}
		return ops
	})
}

// checkResume reports ops to a journal, while a reader reads it, is cut off after any number of events, and comes back.
// pick(n) chooses a number below n.
func checkResume(t interface{ Fatalf(string, ...any) }, mode Mode, ops []op, pick func(n int) int) {
	j := NewJournal(Config{})
	var got []piece
	after := int64(0)
	read := func(limit int) {
		c := newClient(mode, after)
		c.limit = limit
		err := j.Replay(context.Background(), after, c)
		if err != nil && !errors.Is(err, errCut) || c.fault != nil || len(c.gaps) > 0 {
			t.Fatalf("after %d: %v, %v, gaps %v", after, err, c.fault, c.gaps)
		}
		got, after = append(got, c.got...), c.last
	}
	j.OnInit(Init{ID: "x"})
	for _, o := range ops {
		o.apply(j)
		for pick(3) == 0 {
			read(pick(4))
		}
	}
	j.OnComplete(Complete{})
	for len(of(got, "complete")) == 0 {
		read(pick(6))
	}
	checkJoined(t, mode, ops, got)
}

// checkJoined checks that got is exactly what ops report.
func checkJoined(t interface{ Fatalf(string, ...any) }, mode Mode, ops []op, got []piece) {
	for k, name := range []string{"stdout", "stderr"} {
		var all []byte
		for _, o := range ops {
			if o.kind == kind(k) {
				all = append(all, o.data...)
			}
		}
		if mode == Lines {
			want, _ := cutAll(all)
			diff(t, of(got, name), want)
			continue
		}
		if text := joined(got, name); text != string(all) {
			t.Fatalf("%s: %d bytes %.60q\nwant %d bytes %.60q", name, len(text), text, len(all), all)
		}
		for i, p := range of(got, name) {
			if mode == Raw && utf8.Valid(all) && !utf8.ValidString(p.text) {
				t.Fatalf("%s: chunk %d cuts a character: %q", name, i, p.text)
			}
		}
	}
	var want []string
	for _, o := range ops {
		if o.kind > kindStderr {
			want = append(want, o.name)
		}
	}
	var others []string
	for _, p := range got[1 : len(got)-1] {
		if p.kind != "stdout" && p.kind != "stderr" {
			others = append(others, strings.Trim(p.text, `"`))
		}
	}
	if fmt.Sprint(others) != fmt.Sprint(want) {
		t.Fatalf("other events %v, want %v", others, want)
	}
	if got[0].kind != "init" || len(of(got, "init")) != 1 || len(of(got, "complete")) != 1 || got[len(got)-1].kind != "complete" {
		t.Fatalf("first %v, last %v", got[0].kind, got[len(got)-1].kind)
	}
}

func TestResumingAnywhereJoinsToTheUncutStream(t *testing.T) {
	for mode, name := range []string{"lines", "raw", "base64"} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				ops := script(rapid.Bool().Draw(t, "valid")).Draw(t, "script")
				random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				checkResume(t, Mode(mode), ops, random.IntN)
			})
		})
	}
}

func TestResumingInWhatLooksLikeACharacterLosesNothing(t *testing.T) {
	all := "\xff\x80\xc3" + strings.Repeat("\xf0\x9f", MaxLine/2+8) // a record ends where a piece begins, in f0 9f
	for cut := MaxLine - 6; cut < MaxLine+8; cut++ {
		j := NewJournal(Config{})
		j.OnInit(Init{})
		j.OnStdout(Output{Data: []byte(all[:cut])})
		j.OnStatus(Status{State: StateQueued})
		c := newClient(Raw, 0)
		err := j.Replay(t.Context(), 0, c)
		j.OnStdout(Output{Data: []byte(all[cut:])})
		j.OnComplete(Complete{})
		rest := newClient(Raw, c.last)
		if err = errors.Join(err, j.Follow(t.Context(), c.last, rest)); err != nil {
			t.Fatal(err)
		}
		if got := joined(c.got, "stdout") + joined(rest.got, "stdout"); got != all {
			t.Errorf("cut after %d bytes: %d, want %d", cut, len(got), len(all))
		}
	}
}

func TestReadersOfAFullPieceResumeWithoutLoss(t *testing.T) {
	long := strings.Repeat("x", MaxLine-3)
	for _, rest := range []string{"", "\n", "y", "y\n", "\r\nz"} {
		ops := []op{
			{kind: kindStdout, data: []byte(long)},
			{kind: kindStderr, data: []byte("e\n")},
			{kind: kindStdout, data: []byte(rest)},
			{kind: kindStderr, data: []byte("f\n")},
		}
		for mode := range Base64 + 1 {
			for seed := range uint64(20) {
				checkResume(t, mode, ops, rand.New(rand.NewPCG(seed, 1)).IntN)
			}
		}
	}
}

// A byte that begins no character after all is reported once, whether it and the byte that shows it came together, and
// whatever came between on the other stream.
func TestBrokenCharactersAreReportedOnce(t *testing.T) {
	for _, text := range []string{"\xe2\xf0\x9f\x98\x80", "\xf0\x9f\xf0", "\xe2\x82\xe2\x82\xe2\x82\xac", "\xf0\xf0\xf0x"} {
		for size := 1; size <= len(text); size++ {
			var ops []op
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				ops = append(ops, op{kind: kindStdout, data: []byte(rest[:n])}, op{kind: kindStderr, data: []byte("e")})
				rest = rest[n:]
			}
			for seed := range uint64(20) {
				checkResume(t, Raw, ops, rand.New(rand.NewPCG(seed, 2)).IntN)
			}
		}
	}
}

func TestOutputThatFollowsNothingBeginsAnew(t *testing.T) {
	for mode := range Base64 {
		c := newClient(mode, 0)
		c.OnStdout(Output{Stamp: Stamp{EID: 5}, Data: []byte("\xe2\x82"), Cut: &Cutter{}})
		c.OnStdout(Output{Stamp: Stamp{EID: 9}, Data: []byte("ab\n"), Cut: &Cutter{n: 7}})
		if got := strings.TrimSuffix(joined(c.got, "stdout"), "\n"); got != "ab" {
			t.Errorf("mode %d: %q", mode, got)
		}
	}
}

func TestRawChunksComeAtOnceButForUnfinishedCharacters(t *testing.T) {
	j := NewJournal(Config{})
	j.OnInit(Init{})
	c := newClient(Raw, 0)
	var want []string
	for _, step := range []struct{ data, want string }{{"Password: ", "Password: "}, {"\xf0\x9f", ""}, {"\x98", ""}, {"\x80!", "😀!"}, {"é\xc3", "é"}} {
		j.OnStdout(Output{Data: []byte(step.data)})
		if err := j.Replay(t.Context(), c.last, c); err != nil {
			t.Fatal(err)
		}
		if step.want != "" {
			want = append(want, step.want)
		}
		var got []string
		for _, p := range of(c.got, "stdout") {
			got = append(got, p.text)
		}
		c.out.pend = c.out.pend[:0] // the next Replay takes it back
		c.out.After = c.last
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	j.OnComplete(Complete{})
	if err := j.Replay(t.Context(), c.last, c); err != nil {
		t.Fatal(err)
	}
	if got := joined(c.got, "stdout"); got != "Password: 😀!é\xc3" {
		t.Fatalf("in the end %q", got)
	}
}

func FuzzJournalResume(f *testing.F) {
	f.Add([]byte("a\r\nb\xf0\x9f\x98\x80c\n"), []byte{1, 2, 3, 0x81, 0x42}, uint64(1), uint8(0))
	f.Add([]byte("\xe2\xf0\x9f\x98\x80"), []byte{0, 128, 0, 128}, uint64(2), uint8(1))
	f.Fuzz(func(t *testing.T, data, plan []byte, seed uint64, mode uint8) {
		if len(data) > 10_000 {
			return
		}
		var ops []op
		if mode&4 != 0 { // near the end of a piece
			ops = append(ops, op{kind: kindStdout, data: []byte(strings.Repeat("x", MaxLine-8))})
		}
		for _, p := range plan {
			if len(data) == 0 {
				break
			}
			switch {
			case p&0x7F == 0x7F:
				ops = append(ops, op{kind: kindStatus, name: "s"})
			case p&0x7F == 0x7E:
				ops = append(ops, op{kind: kindResult, name: "r"})
			default:
				n := min(len(data), int(p&0x3F)+1)
				ops = append(ops, op{kind: kind(p >> 7), data: data[:n]})
				data = data[n:]
			}
		}
		checkResume(t, Mode(mode&3%3), ops, rand.New(rand.NewPCG(seed, 0)).IntN)
	})
}
