package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is special about Go: a kernel of celld's own, and others in its place.
func TestGoKernel(t *testing.T) {
	t.Parallel()
	path := withGoKernel(t)
	prefix := t.TempDir()
	if err := os.Symlink(filepath.Join(prefixDir(t), "python"), filepath.Join(prefix, "python")); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(strings.TrimPrefix(strings.Split(path, ":")[0], "PATH="), goKernel)
	spec := func(name, language string) {
		text, err := json.Marshal(m{"argv": []string{program, "{connection_file}"}, "display_name": name, "language": language})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(prefix, "kernels", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec("another", "Other-Language") // before the start
	shared := start(t, launch{args: []string{"--prefix=" + prefix}, env: []string{path}})
	shared.python()
	id := shared.context(m{"language": "go"}).ID
	for _, c := range []struct{ name, code, out, ename, evalue string }{
		{"a program", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"program\") }", "program\n", "", ""},
		{"a program without its clause", "import \"fmt\"\nvar n = 3\nfunc main() { fmt.Println(n) }", "3\n", "", ""},
		{"which leaves nothing", "n", "", "CompileError", "1:1: undefined: n"},
		{"imports may be repeated", "import \"fmt\"\nimport (\n\"fmt\"\n\"time\"\n)\nfmt.Println(time.Second)", "1s\n", "", ""},
		{"a function may be changed", "func f() int { return 1 }\nfmt.Print(f(), \" \")", "1 ", "", ""},
		{"and has", "func f() int { return 2 }\nfmt.Print(f())", "2", "", ""},
		{"a type is declared", "type T struct{ A int }\nfunc (t T) M() int { return t.A }\nfmt.Print(T{4}.M())", "4", "", ""},
		{"and declared again", "type T struct{ A int }\nfmt.Print(T{5}.M())", "5", "", ""},
		{"but not changed", "\ntype T struct{ B int }", "", "CompileError", "2:1: type T was declared otherwise before: restart the context to change it"},
		{"nor is its method", "func (t T) M() int { return 0 }", "", "CompileError", "1:1: method T.M was declared otherwise before: restart the context to change it"},
		{"a panic in a function", "func fail(i int) int { return []int{}[i] }\nfail(3)", "", "Panic", "reflect: slice index out of range"},
		{"an exit", "import \"os\"\nfmt.Print(\"before\")\nos.Exit(3)\nfmt.Print(\"after\")", "before", "ExitError", "exit status 3"},
		{"an exit with 0", "os.Exit(0)\nfmt.Print(\"after\")", "", "", ""},
		{"a child's output", "import \"os/exec\"\nc := exec.Command(\"echo\", \"child\")\nc.Stdout = os.Stdout\nc.Run()", "child\n", "", ""},
		{"goroutines", "done := make(chan int)\ngo func() { fmt.Print(\"beside\"); close(done) }()\n<-done", "beside", "", ""},
		{"no input unless allowed", "var s string\n_, err := fmt.Scanln(&s)\nfmt.Print(err)", "there is no input: the request did not allow it", "", ""},
		{"nothing", "// a comment", "", "", ""},
		{"not Go", "}", "", "CompileError", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := shared.in(t)
			o := d.cell(id, c.code)
			switch {
			case o.out() != c.out || o.failed() != c.ename:
				t.Errorf("printed %q and ended with %+v %+v", o.out(), o.end.Type, o.end.Error)
			case c.ename != "" && !strings.HasPrefix(o.end.Error.Evalue, c.evalue):
				t.Errorf("failed with %+v", o.end.Error)
			}
		})
	}
	for _, c := range []struct{ name, code, last string }{
		{"a sleep", "fmt.Println(\"go\")\ntime.Sleep(time.Hour)", "kept"},
		{"a channel", "fmt.Println(\"go\")\n<-make(chan int)", "kept"},
		{"a function", "func endless() { for { time.Sleep(time.Millisecond) } }\nfmt.Println(\"go\")\nendless()", "kept"},
		{"a child", "fmt.Println(\"go\")\nexec.Command(\"sleep\", \"1000\").Run()", "kept"},
		{"what can't be, which costs the state", "import \"sync\"\nvar mu sync.Mutex\nmu.Lock()\nfmt.Println(\"go\")\nmu.Lock()", ""},
	} {
		t.Run("interrupted: "+c.name, func(t *testing.T) {
			d := shared.in(t)
			d.says(id, "import (\"fmt\"; \"time\")\nkept := \"kept\"\nfmt.Print(time.Now().IsZero())", "false")
			running := d.begin(id, c.code)
			running.until(prints("go"))
			if status := d.call("DELETE", "/code?id="+id, nil, nil); status != http.StatusOK {
				t.Errorf("interrupt: %d", status)
			}
			if o := running.rest(); o.end.Type == "error" && o.failed() != "KeyboardInterrupt" {
				t.Errorf("ended with %+v", o.end.Error)
			}
			if o := d.cell(id, "fmt.Print(kept)"); o.out() != c.last {
				t.Errorf("then the state is %q", o.out())
			}
		})
	}
	t.Run("input", func(t *testing.T) {
		d := shared.in(t)
		d.says(id, "import \"fmt\"", "")
		asking := d.begin(id, "var name string\nfmt.Print(\"name? \")\nfmt.Scanln(&name)\nfmt.Print(name)", m{"stdin": true})
		asking.until(func(e event) bool { return e.Type == "input_request" })
		if status := d.call("POST", "/code/input", m{"id": id, "value": "Zoë"}, nil); status != http.StatusOK {
			t.Errorf("input: %d", status)
		}
		if o := asking.rest(); !strings.HasSuffix(o.out(), "Zoë") {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end.Error)
		}
	})
	t.Run("names are completed", func(t *testing.T) {
		d := shared.in(t)
		var c struct{ Matches []string }
		d.call("POST", "/code/contexts/"+id+"/complete", m{"code": "strings.ToUpp"}, &c)
		if len(c.Matches) != 2 || c.Matches[0] != "ToUpper" {
			t.Errorf("matches %v", c.Matches)
		}
	})
	t.Run("other kernels by name and language, as soon as they are there", func(t *testing.T) {
		d := shared.in(t)
		for _, language := range []string{"another", "other-language"} {
			if o := d.code(language, "import \"fmt\"\nfmt.Print(1)"); o.out() != "1" {
				t.Errorf("%s printed %q", language, o.out())
			}
		}
		d.refused(http.StatusBadRequest, "POST", "/code", m{"context": m{"language": "latecomer"}, "code": "1"})
		spec("latecomer", "x")
		if o := d.code("latecomer", "import \"fmt\"\nfmt.Print(2)"); o.out() != "2" {
			t.Errorf("a new one printed %q", o.out())
		}
	})
	t.Run("gonb goes before", func(t *testing.T) {
		d := shared.in(t)
		spec("gonb", "go")
		var v struct {
			Languages []struct{ Name, Kernel string }
		}
		d.call("GET", "/version", nil, &v)
		for _, l := range v.Languages {
			if l.Name == "go" && l.Kernel != "gonb" {
				t.Errorf("go runs in %s", l.Kernel)
			}
		}
	})
}
