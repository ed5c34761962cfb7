package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimitIsTheSmallestOfTheCgroupsAbove(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/b/memory.max":                      "max\n",
		"a/memory.max":                        "1048576\n",
		"memory/x/memory.limit_in_bytes":      "2097152\n",
		"memory/memory.limit_in_bytes":        "9223372036854771712\n",
		"unlimited/memory.max":                "max\n",
		"memory/broken/memory.limit_in_bytes": "none",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for cgroups, want := range map[string]int64{
		"0::/a/b\n":                        1 << 20,
		"0::/unlimited\n":                  math.MaxInt64,
		"0::/\n":                           math.MaxInt64,
		"0::/not/visible/from/here\n":      math.MaxInt64,
		"5:cpu:/x\n4:memory:/x\n0::/a/b\n": 1 << 20,
		"5:cpu:/x\n4:memory:/x\n":          2 << 20,
		"4:memory:/x/below\n":              2 << 20,
		"4:memory:/broken\n":               9223372036854771712,
		"":                                 math.MaxInt64,
		"0::/../../a\n":                    1 << 20,
	} {
		if got := memoryLimit(root, cgroups); got != want {
			t.Errorf("%q: %d, want %d", cgroups, got, want)
		}
	}
}
