package proctree

import (
	"os"
	"os/exec"
	"testing"
)

func BenchmarkLook(b *testing.B) {
	for b.Loop() {
		if _, err := Look(); err != nil {
			b.Fatal(err)
		}
	}
	table, err := Look()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(table.Processes)), "processes")
}

// BenchmarkStart is from the start of a program that does nothing until its status is known. The floor is os/exec.
func BenchmarkStart(b *testing.B) {
	b.Run("proctree", func(b *testing.B) {
		spec := Spec{Path: "/bin/true", Argv: []string{"true"}, Files: make([]*os.File, 3), Marker: "bench"}
		for b.Loop() {
			t, err := Start(spec)
			if err != nil {
				b.Fatal(err)
			}
			<-t.Done()
		}
	})
	b.Run("limits", func(b *testing.B) {
		spec := Spec{Path: "/bin/true", Argv: []string{"true"}, Files: make([]*os.File, 3), Limits: []Limit{{Resource: 7, Soft: 99, Hard: 99}}}
		for b.Loop() {
			t, err := Start(spec)
			if err != nil {
				b.Fatal(err)
			}
			<-t.Done()
		}
	})
	b.Run("os/exec", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("/bin/true")
			cmd.Env = []string{MarkerEnv + "=bench"}
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkKill ends a running shell and its child.
func BenchmarkKill(b *testing.B) {
	for b.Loop() {
		s := start(b, "echo up; sleep 98.1; :")
		s.waitUp()
		if err := s.Kill(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
	}
}
