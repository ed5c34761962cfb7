package hooks

import (
	"bytes"
	"context"
	"runtime"
	"testing"
)

// discard is a Writer that cuts output and throws it away.
type discard struct {
	out, err Text
	pieces   int
	emit     func([]byte, int64, bool)
}

func newDiscard(mode Mode) *discard {
	d := &discard{out: Text{Mode: mode}, err: Text{Mode: mode}}
	d.emit = func([]byte, int64, bool) { d.pieces++ }
	return d
}

func (d *discard) OnInit(Init)         {}
func (d *discard) OnStdout(o Output)   { d.out.Feed(o, d.emit) }
func (d *discard) OnStderr(o Output)   { d.err.Feed(o, d.emit) }
func (d *discard) OnResult(Result)     { d.pieces++ }
func (d *discard) OnStatus(Status)     { d.pieces++ }
func (d *discard) OnError(Failure)     {}
func (d *discard) OnComplete(Complete) {}
func (d *discard) Flush() error        { return nil }

// hundred is FlushBytes of lines of 100 bytes.
var hundred = bytes.Repeat(append(bytes.Repeat([]byte("x"), 99), '\n'), FlushBytes/100)

// followed runs b with a journal that a reader follows to its end.
func followed(b *testing.B, c Config, w Writer, body func(j *Journal)) {
	j := NewJournal(c)
	j.OnInit(Init{})
	done := make(chan error, 1)
	go func() { done <- j.Follow(context.Background(), 0, w) }()
	body(j)
	j.OnComplete(Complete{})
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	j.Store().Close()
}

func onDisk(b *testing.B) Config {
	return Config{Store: NewBudget(b.TempDir(), DefaultLimits).Store("x")}
}

func BenchmarkAppend(b *testing.B) {
	for name, data := range map[string][]byte{"chunks": hundred, "lines": hundred[:100]} {
		b.Run(name, func(b *testing.B) {
			j := NewJournal(Config{})
			j.OnInit(Init{})
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				j.OnStdout(Output{Data: data})
			}
		})
	}
}

func BenchmarkAppendAndFollow(b *testing.B) {
	for mode, name := range []string{"lines", "raw"} {
		for where, config := range map[string]func() Config{
			"memory": func() Config { return Config{} }, "disk": func() Config { return onDisk(b) },
		} {
			b.Run(name+"/"+where, func(b *testing.B) {
				b.SetBytes(int64(len(hundred)))
				b.ReportAllocs()
				w := newDiscard(Mode(mode))
				followed(b, config(), w, func(j *Journal) {
					for b.Loop() {
						j.OnStdout(Output{Data: hundred})
					}
				})
				b.ReportMetric(float64(w.pieces)/float64(b.N), "pieces/op")
			})
		}
	}
}

func BenchmarkTinyEventsFollowed(b *testing.B) {
	for name, event := range map[string]func(j *Journal){
		"status":   func(j *Journal) { j.OnStatus(Status{State: StateQueued}) },
		"one byte": func(j *Journal) { j.OnStdout(Output{Data: hundred[:1]}) },
		"two streams": func(j *Journal) {
			j.OnStdout(Output{Data: hundred[:10]})
			j.OnStderr(Output{Data: hundred[:10]})
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			followed(b, Config{}, newDiscard(Lines), func(j *Journal) {
				for b.Loop() {
					event(j)
				}
			})
		})
	}
}

func BenchmarkLateReplay(b *testing.B) {
	for name, size := range map[string]int{"memory": 4 << 20, "disk": 64 << 20} {
		b.Run(name, func(b *testing.B) {
			j := NewJournal(onDisk(b))
			j.OnInit(Init{})
			for range size/len(hundred) - 2 {
				j.OnStdout(Output{Data: hundred})
			}
			j.OnComplete(Complete{})
			pos, _ := j.Position()
			b.SetBytes(pos)
			b.ReportAllocs()
			for b.Loop() {
				if err := j.Follow(context.Background(), 0, newDiscard(Lines)); err != nil {
					b.Fatal(err)
				}
			}
			j.Store().Close()
		})
	}
}

func BenchmarkCutter(b *testing.B) {
	for name, unit := range map[string]string{
		"100 bytes": string(hundred[:100]), "10 bytes": "123456789\n", "progress": "  50%\r", "crlf": "some words here\r\n", "long": string(bytes.Repeat([]byte("é"), MaxLine)),
	} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(unit), max(1, FlushBytes/len(unit)))
			b.SetBytes(int64(len(data)))
			var c Cutter
			for b.Loop() {
				for rest := data; len(rest) > 0; {
					_, used, _ := c.Next(rest)
					rest = rest[used:]
				}
			}
		})
	}
}

// BenchmarkIdleJournal tells what a finished command that printed ten bytes costs.
func BenchmarkIdleJournal(b *testing.B) {
	budget := NewBudget(b.TempDir(), DefaultLimits)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var journals []*Journal
	for b.Loop() {
		j := NewJournal(Config{Store: budget.Store("x")})
		j.OnInit(Init{})
		j.OnStdout(Output{Data: []byte("0123456789")})
		j.OnComplete(Complete{})
		journals = append(journals, j)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N), "B/journal")
	runtime.KeepAlive(journals)
}
