package gokernel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestCellsAreSplitIntoParts(t *testing.T) {
	names := map[partKind]string{statement: "s", declaration: "d", importing: "i"}
	for _, c := range []struct {
		code, want string
		program    bool
	}{
		{"", "", false},
		{"// nothing\n", "", false},
		{"x := 1", "s1:1 x := 1", false},
		{"x := 1; x", "s1:1 x := 1|s1:9 x", false},
		{"a()\nb()\n\n c()", "s1:1 a()\nb()|s4:2 c()", false},
		{"import \"fmt\"\nfmt.Println()", "i1:1 import \"fmt\"|s2:1 fmt.Println()", false},
		{"type T int\nfunc (t T) M() {\n}\nvar x T\nx.M()", "d1:1 type T int\nfunc (t T) M() {\n}\nvar x T|s5:1 x.M()", false},
		{"func(a int) int { return a }(1)", "s1:1 func(a int) int { return a }(1)", false},
		{"func() {}()", "s1:1 func() {}()", false},
		{"func f[T any](t T) {}", "d1:1 func f[T any](t T) {}", false},
		{"s := `a;\nfunc main() {}`", "s1:1 s := `a;\nfunc main() {}`", false},
		{"if x {\n} else {\n}\ny", "s1:1 if x {\n} else {\n}|s4:1 y", false},
		{"for i := 0; i < 3; i++ {\n\tf(i)\n}", "s1:1 for i := 0; i < 3; i++ {\n\tf(i)\n}", false},
		{"n := 0\nout: for ; n < 3; n++ {}; n", "s1:1 n := 0\nout: for ; n < 3; n++ {}|s2:27 n", false},
		{"if x := []int{1}; len(x) > 0 {\n} else if y := 2; y > x[0] {\n}\nz", "s1:1 if x := []int{1}; len(x) > 0 {\n} else if y := 2; y > x[0] {\n}|s4:1 z", false},
		{"switch x := f(); y := x.(type) {\ncase int:\n}", "s1:1 switch x := f(); y := x.(type) {\ncase int:\n}", false},
		{"if f := func() bool { return true }; f() {}; g()", "s1:1 if f := func() bool { return true }; f() {}|s1:46 g()", false},
		{"for i := 0; i < {\nx", "s1:1 for i := 0; i < {\nx", false},
		{"package main\nfunc main() {}", "s1:1 package main|d2:1 func main() {}", true},
		{"import \"os\"\nfunc main() {}", "i1:1 import \"os\"|d2:1 func main() {}", true},
		{"s := \"open", "s1:1 s := \"open", false},
	} {
		parts, program := split(c.code)
		var got []string
		for _, p := range parts {
			got = append(got, fmt.Sprintf("%s%d:%d %s", names[p.kind], p.line, p.col, strings.TrimSpace(c.code[p.from:p.to])))
		}
		if strings.Join(got, "|") != c.want || program != c.program {
			t.Errorf("%q is %q, program %v; want %q", c.code, got, program, c.want)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, code := range []string{"x := 1; x", "func (", "}{)(", "import (\"a\"", "\xff", "`", "/*", "package", "func main"} {
		f.Add(code)
	}
	f.Fuzz(func(t *testing.T, code string) {
		parts, _ := split(code)
		last := 0
		for _, p := range parts {
			if p.from < last || p.to < p.from || p.to > len(code) || p.line < 1 || p.col < 1 {
				t.Errorf("%q: %+v", code, parts)
			}
			last = p.to
		}
		isComplete(code)
		_, _ = importsIn(code)
		lasting(code)
	})
}

func TestIncompleteCodeIsTold(t *testing.T) {
	for code, want := range map[string]string{
		"": "complete", "x := 1": "complete", "f(1,\n2)": "complete", "if x {": "incomplete", "f(": "incomplete", "x :=": "incomplete",
		"a +": "incomplete", "`raw": "incomplete", "/* open": "incomplete", "}": "invalid", "f(]": "invalid", "x := 'ab": "invalid",
	} {
		if got := isComplete(code); got != want {
			t.Errorf("%q is %s, want %s", code, got, want)
		}
	}
}

func TestCharactersAreNotCut(t *testing.T) {
	const text = "aé漢🎉"
	for n := range len(text) + 1 {
		kept := unfinished([]byte(text[:n]))
		if whole := text[:n-kept]; !strings.HasPrefix(text, whole) || strings.ToValidUTF8(whole, "?") != whole || kept > 3 {
			t.Errorf("of %d bytes %d are kept back", n, kept)
		}
	}
	for _, bytes := range []string{"\xff", "a\xff", "\x80\x80\x80\x80"} {
		if n := unfinished([]byte(bytes)); n != 0 {
			t.Errorf("%q: %d bytes are kept back for nothing", bytes, n)
		}
	}
}

func TestNamesAreCompleted(t *testing.T) {
	e, err := newInterpreter(strings.NewReader(""), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, failed := e.run("myVariable := 1"); failed != nil {
		t.Fatal(failed)
	}
	for _, c := range []struct {
		code   string
		cursor int
		from   int
		want   string
	}{
		{"é := strings.ToUpp", 18, 13, "ToUpper"}, {"myVar", 5, 0, "myVariable"}, {"fallth", 6, 0, "fallthrough"}, {"x.y", 99, 2, ""},
	} {
		matches, from := e.complete(c.code, c.cursor)
		if from != c.from || c.want != "" && !slices.Contains(matches, c.want) || c.want == "" && len(matches) > 0 {
			t.Errorf("%q: %v from %d", c.code, matches, from)
		}
	}
}
