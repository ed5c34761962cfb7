package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestShortSoakLosesAndLeavesNothing(t *testing.T) {
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	celld := filepath.Join(t.TempDir(), "celld")
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", celld, "./cmd/celld")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		t.Fatalf("build celld: %v", err)
	}
	rep := &report{w: t.Output()}
	for _, b := range soakBenchmarks() {
		if b.name != "soak" {
			continue
		}
		r := &run{options: &options{rounds: 1, short: true}, bench: b, root: root, binary: celld, report: rep}
		if err := r.do(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(rep.lines) == 0 {
		t.Error("the soak has reported nothing")
	}
	for _, l := range rep.unmet() {
		t.Error(l.String())
	}
}
