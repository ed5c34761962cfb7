package shellrun

import (
	"context"
	"os"
	"os/exec"
	"testing"
)


func benchSessions(b *testing.B) *Sessions {
	dir, _ := os.MkdirTemp("/dev/shm", "celldtest")
	b.Cleanup(func() { os.RemoveAll(dir) })
	h, err := NewSessions(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close() })
	return h
}

func BenchmarkRun(b *testing.B) {
	h := benchSessions(b)
	s, err := h.Open(b.Context(), SessionConfig{ID: "x", Bash: "/bin/bash", Dir: "/", BaseEnv: os.Environ()})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.Run(b.Context(), SessionRun{ID: "abc", Text: ":"})
	}
	s.Close(context.Background())
}

func BenchmarkExec(b *testing.B) {
	for b.Loop() {
		exec.Command("/bin/bash", "-c", "true").Run()
	}
}
func BenchmarkOpen(b *testing.B) {
	h := benchSessions(b)
	for b.Loop() {
		s, err := h.Open(b.Context(), SessionConfig{ID: "x", Bash: "/bin/bash", Dir: "/", BaseEnv: os.Environ()})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		s.Close(context.Background())
		b.StartTimer()
	}
}
