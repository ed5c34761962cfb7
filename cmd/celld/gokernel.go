package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// goKernel is the program that is celld's own kernel for Go, and goKernelspec its kernelspec.
const (
	goKernel     = "celld-gokernel"
	goKernelspec = "celld-go"
)

// findGoKernel looks for it beside celld, below the prefix and on PATH.
func findGoKernel(prefix string) (path string, found bool) {
	var dirs []string
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	for _, dir := range append(dirs, filepath.Join(prefix, "bin")) {
		if path, err := exec.LookPath(filepath.Join(dir, goKernel)); err == nil {
			return path, true
		}
	}
	path, err := exec.LookPath(goKernel)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	return path, err == nil
}

// writeGoKernelspec lets a Jupyter Server that looks into dir find celld's own kernel for Go, if it is there.
func writeGoKernelspec(dir, prefix string) error {
	path, found := findGoKernel(prefix)
	if !found {
		return nil
	}
	spec, err := json.MarshalIndent(map[string]any{
		"argv":         []string{path, "{connection_file}"},
		"display_name": "Go (yaegi)",
		"language":     "go",
		"metadata":     map[string]any{"celld": map[string]string{"kernel": goKernel + " " + version + ", yaegi", "version": "1.21"}},
	}, "", " ")
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, "kernels", goKernelspec)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the kernelspec for Go: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), spec, 0o644); err != nil {
		return fmt.Errorf("write the kernelspec for Go: %w", err)
	}
	return nil
}
