package shellrun

import (
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkSessionRun measures a run of a builtin from the call to the record, with the session at rest before it, and
// bash started by os/exec beside it. The medians are what counts.
func BenchmarkSessionRun(b *testing.B) {
	s := open(b, testSessions(b))
	var runs, floor []time.Duration
	for b.Loop() {
		<-s.turns.ask() // until the last run has been settled
		s.turns.pass()
		start := time.Now()
		if _, err := s.Run(b.Context(), SessionRun{ID: "0123456789abcdef0123456789abcdef", Text: ":"}); err != nil {
			b.Fatal(err)
		}
		runs = append(runs, time.Since(start))
		start = time.Now()
		if err := exec.Command("/bin/bash", "-c", "true").Run(); err != nil {
			b.Fatal(err)
		}
		floor = append(floor, time.Since(start))
	}
	report(b, runs, floor)
}

func report(b *testing.B, runs, floor []time.Duration) {
	slices.Sort(runs)
	slices.Sort(floor)
	at := func(ds []time.Duration, q float64) float64 { return float64(ds[int(q*float64(len(ds)-1))]) }
	b.ReportMetric(at(runs, .5)/at(floor, .5), "p50/floor")
	b.ReportMetric(at(runs, .99)/at(floor, .99), "p99/floor")
	b.ReportMetric(at(runs, .5)/1e3, "p50-µs")
	b.ReportMetric(at(floor, .5)/1e3, "floor-µs")
}

// BenchmarkSessionBackToBack also counts the snapshot in between.
func BenchmarkSessionBackToBack(b *testing.B) {
	s := open(b, testSessions(b))
	for b.Loop() {
		s.Run(b.Context(), SessionRun{ID: "0123456789abcdef0123456789abcdef", Text: ":"})
	}
}

// BenchmarkSessionOpen measures a session from nothing to its first answer, and a bare bash that answers.
func BenchmarkSessionOpen(b *testing.B) {
	h := testSessions(b)
	var opens, floor []time.Duration
	for b.Loop() {
		start := time.Now()
		s := open(b, h)
		opens = append(opens, time.Since(start))
		s.Close(b.Context())
		start = time.Now()
		cmd := exec.Command("/bin/bash", "--norc", "--noprofile")
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		in.Write([]byte("echo\n"))
		out.Read(make([]byte, 1))
		floor = append(floor, time.Since(start))
		in.Close()
		cmd.Wait()
	}
	report(b, opens, floor)
}

// BenchmarkSessionHundredMegabytes measures output against os/exec with a reader that does nothing else.
func BenchmarkSessionHundredMegabytes(b *testing.B) {
	s := open(b, testSessions(b))
	const text = "head -c 100000000 /dev/zero"
	var runs, floor []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := s.Run(b.Context(), SessionRun{ID: "0123456789abcdef0123456789abcdef", Text: text}); err != nil {
			b.Fatal(err)
		}
		runs = append(runs, time.Since(start))
		start = time.Now()
		cmd := exec.Command("/bin/bash", "-c", text)
		cmd.Stdout = struct{ io.Writer }{io.Discard}
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		floor = append(floor, time.Since(start))
	}
	report(b, runs, floor)
}
