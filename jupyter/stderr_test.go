package jupyter

import (
	"strings"
	"testing"
)

func TestFailuresAreReadFromStderr(t *testing.T) {
	for _, c := range []struct{ name, stderr, ename, evalue, trace string }{
		{"a stack", "evalmachine.<anonymous>:2\nthrow new TypeError(\"bad é\");\n^\n\nTypeError: bad é\n    at evalmachine.<anonymous>:2:7\n    at x\n",
			"TypeError", "bad é", "TypeError: bad é"},
		{"a class of one's own", "noise\nMyError: custom\n    at a:1\n", "MyError", "custom", "    at a:1"},
		{"a class with another name", "Boom: custom\n    at a:1\n", "Boom", "custom", "    at a:1"},
		{"a dotted name", "java.lang.IllegalStateException: no\n\tat a.b(C.java:1)\n", "java.lang.IllegalStateException", "no", "\tat a.b(C.java:1)"},
		{"several lines", "RangeError: one\ntwo\n    at a\n", "RangeError", "one\ntwo", "two"},
		{"the last one", "TypeError: printed\n    at a\nRangeError: thrown\n    at b\n", "RangeError", "thrown", "    at b"},
		{"diagnostics", "before\n1:1 - Cannot find name 'a'.\n1:5 - ')' expected.\n", "CompileError", "1:1 - Cannot find name 'a'.", "1:5 - ')' expected."},
		{"colours", "\x1b[31mError: x\x1b[0m\n", "Error", "x", "Error: x"},
		{"a bare value", "out\nstr\n", "Error", "str", "str"},
		{"nothing", "", "Error", "the cell failed; the kernel doesn't say how", "the cell failed"},
		{"invalid bytes", "Error: \xff\n", "Error", "\uFFFD", "Error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := failureIn([]byte(c.stderr))
			if e.Name != c.ename || e.Value != c.evalue || !strings.Contains(strings.Join(e.Traceback, "\n"), c.trace) {
				t.Errorf("read %+v", e)
			}
		})
	}
}

func TestStderrIsKeptToALimit(t *testing.T) {
	kept := []byte(nil)
	for range 10 {
		kept = keepStderr(kept, strings.Repeat("x", keptStderr/3))
	}
	kept = keepStderr(kept, "\nTypeError: last\n")
	if len(kept) != keptStderr || failureIn(kept).Name != "TypeError" {
		t.Errorf("%d bytes, %+v", len(kept), failureIn(kept))
	}
}
