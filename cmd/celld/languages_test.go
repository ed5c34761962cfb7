package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/celld/celld/openapi"
)

// language is a row of the table: what a person would type to see a behaviour, and what comes of it.
type language struct {
	name    string
	aliases []string

	hello   string // prints "hello"
	set     string // sets x to 41
	get     string // prints x + 1
	value   string // shows 42 as the value of its last line; empty: the kernel shows none
	unicode string // prints "é 漢 🎉" with its line end
	million string // prints a million x, perhaps in lines
	lines   string // prints the numbers below 8000, a line each
	cwd     string // prints the directory
	env     string // prints the variable OWN
	endless string // prints "go", then never ends

	fails  string // fails with the message "bad é"
	ename  string // of what that ends with
	evalue string
	trace  string // in its traceback

	wrong      string // no program at all
	wrongEname string
	wrongTrace string

	interrupted string // ename of what is interrupted
}

var languages = []language{
	{
		name: "python", aliases: []string{"py", "Python3"},
		hello: `print("hello")`, set: "x = 41", get: "print(x + 1)", value: "x + 1",
		unicode: `print("é 漢 🎉")`, million: `print("x" * 1000000, end="")`,
		lines: "for i in range(8000): print(i, flush=True)",
		cwd:   "import os; print(os.getcwd())", env: "import os; print(os.environ['OWN'])",
		endless: "print('go', flush=True)\nwhile True: pass",
		fails:   `raise ValueError("bad é")`, ename: "ValueError", evalue: "bad é", trace: "ValueError",
		wrong: "1 +", wrongEname: "SyntaxError", wrongTrace: "invalid syntax",
		interrupted: "KeyboardInterrupt",
	},
	{
		name: "javascript", aliases: []string{"js", "node"},
		hello: `console.log("hello")`, set: "let x = 41", get: "console.log(x + 1)",
		unicode: `console.log("é 漢 🎉")`, million: `const all = process.stdout.write("x".repeat(1000000))`,
		lines: "for (let i = 0; i < 8000; i++) console.log(i)",
		cwd:   "console.log(process.cwd())", env: "console.log(process.env.OWN)",
		endless: "console.log('go'); while (true) {}",
		fails:   `throw new TypeError("bad é")`, ename: "TypeError", evalue: "bad é", trace: "at ",
		wrong: "1 +", wrongEname: "CompileError", wrongTrace: "Expression expected",
		interrupted: "KeyboardInterrupt",
	},
	{
		name: "typescript", aliases: []string{"ts"},
		hello: `console.log("hello")`, set: "let x: number = 41", get: "console.log(x + 1)",
		unicode: `console.log("é 漢 🎉")`, million: `const all = process.stdout.write("x".repeat(1000000))`,
		lines: "for (let i = 0; i < 8000; i++) console.log(i)",
		cwd:   "console.log(process.cwd())", env: "console.log(process.env.OWN)",
		endless: "console.log('go'); await new Promise(() => setInterval(() => {}, 1000))",
		fails:   `class Boom extends Error { name = "Boom" }` + "\n" + `throw new Boom("bad é")`, ename: "Boom", evalue: "bad é", trace: "at ",
		wrong: `const y: number = "text"`, wrongEname: "CompileError", wrongTrace: "not assignable",
		interrupted: "KeyboardInterrupt",
	},
	{
		name: "go", aliases: []string{"golang"},
		hello: "import \"fmt\"\nfmt.Println(\"hello\")", set: "x := 41", get: "import \"fmt\"\nfmt.Println(x + 1)", value: "x + 1",
		unicode: `fmt.Println("é 漢 🎉")`, million: "import \"strings\"\nfmt.Print(strings.Repeat(\"x\", 1000000))",
		lines: "for i := 0; i < 8000; i++ {\n\tfmt.Println(i)\n}",
		cwd:   "import \"os\"\nwd, _ := os.Getwd()\nfmt.Println(wd)", env: "import \"os\"\nfmt.Println(os.Getenv(\"OWN\"))",
		endless: "fmt.Println(\"go\")\nfor {}",
		fails:   `panic("bad é")`, ename: "Panic", evalue: "bad é", trace: "panic: bad é",
		wrong: "x = 41\nundeclared + 1", wrongEname: "CompileError", wrongTrace: "2:1: undefined: undeclared",
		interrupted: "KeyboardInterrupt",
	},
	{
		name:  "java",
		hello: `System.out.println("hello");`, set: "int x = 41;", get: "System.out.println(x + 1);", value: "x + 1",
		unicode: `System.out.println("é 漢 🎉");`, million: `System.out.print("x".repeat(1000000));`,
		lines: "for (int i = 0; i < 8000; i++) System.out.println(i);",
		cwd:   `System.out.println(System.getProperty("user.dir"));`, env: `System.out.println(System.getenv("OWN"));`,
		endless: `System.out.println("go"); while (true) {}`,
		fails:   `throw new IllegalStateException("bad é");`, ename: "java.lang.IllegalStateException", evalue: "bad é", trace: "at ",
		wrong: `int y = "text";`, wrongEname: "CompilationException", wrongTrace: "incompatible types",
		interrupted: "EvaluationInterruptedException",
	},
	bash,
}

// bash runs in a session of celld's own.
var bash = language{
	name: "bash", aliases: []string{"sh", "shell"},
	hello: "echo hello", set: "x=41", get: "echo $((x + 1))",
	unicode: `echo "é 漢 🎉"`, million: `head -c 1000000 /dev/zero | tr '\0' x | fold -w 1000`,
	lines: "for ((i = 0; i < 8000; i++)); do echo $i; done",
	cwd:   "pwd", env: `echo "$OWN"`, endless: "echo go; while :; do :; done",
	fails: "(exit 3)", ename: "CommandExecError", evalue: "3", trace: "exit status 3",
	wrong: "if true; then", wrongEname: "CommandExecError", wrongTrace: "exit status 2",
	interrupted: "CommandInterrupted",
}

// withGoKernel is a PATH that begins with a folder in which the kernel for Go has been built.
func withGoKernel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "../celld-gokernel")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the kernel for Go: %v\n%s", err, out)
	}
	return "PATH=" + dir + ":" + os.Getenv("PATH")
}

// The table: every language behaves the same.
func TestLanguages(t *testing.T) {
	t.Parallel()
	d := start(t, launch{env: []string{withGoKernel(t)}})
	d.python()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) { testLanguage(t, d, l) })
	}
	t.Run("none of that name", func(t *testing.T) {
		var e struct{ Code, Message string }
		status := d.in(t).call("POST", "/code", m{"context": m{"language": "cobol"}, "code": "1"}, &e)
		if status != http.StatusBadRequest || !strings.HasSuffix(e.Message, "there are: bash, go, java, javascript, python, sql, typescript") {
			t.Errorf("%d %+v", status, e)
		}
	})
	t.Run("bash in detail", func(t *testing.T) { testBashCells(t, d) })
	t.Run("children with inherited outputs", func(t *testing.T) {
		d := d.in(t)
		id := d.context(m{"language": "javascript"}).ID
		o := d.cell(id, "const cp = require('child_process')\ncp.execSync('echo hi; echo err >&2', {stdio: 'inherit'})\n"+
			"await new Promise(done => cp.spawn('echo', ['later'], {stdio: 'inherit'}).on('close', done))\n"+
			"cp.execFileSync('sh', ['-c', 'echo last; exit 3'], {stdio: 'inherit'})")
		if o.out() != "hi\nlater\nlast\n" || !strings.HasPrefix(strings.Join(o.stderr, ""), "err\n") || o.failed() != "Error" {
			t.Errorf("printed %q and %q, ended with %+v", o.out(), o.stderr, o.end.Error)
		}
	})
	t.Run("a timer of an earlier cell pollutes no other", func(t *testing.T) {
		d := d.in(t)
		id := d.context(m{"language": "javascript"}).ID
		g := d.gate()
		d.says(id, fmt.Sprintf("const late = new Promise(done => require('fs').readFile(%q, () => setTimeout(() => { console.log('foreign'); done() }, 1)))", g.path), "")
		s := d.begin(id, "console.log('mine'); await late; console.log('still mine')")
		s.until(prints("mine\n"))
		g.open()
		if o := s.rest(); o.out() != "still mine\n" || o.end.Error != nil {
			t.Errorf("printed %q and ended with %+v", o.out(), o.end.Error)
		}
	})
}

// testBashCells tries what a kernel behind a terminal gets wrong.
func testBashCells(t *testing.T, shared *daemon) {
	d := shared.in(t)
	id := d.context(m{"language": "bash"}).ID
	for _, test := range []struct {
		code, stdout, stderr string
		status               int
	}{
		{"printf %s 'x\ty' | od -An -c", "   x  \\t   y\n", "", 0},
		{"cat; read a; echo $?", "1\n", "", 0},
		{"echo 'oops", "", "unexpected EOF while looking for matching", 2},
		{"if true; then echo x", "", "syntax error: unexpected end of file", 2},
		{"cat <<EOF\nhi", "hi\n", "here-document", 0},
		{"kept=1", "", "", 0},
		{"exit 3", "", "", 3},
		{"PS1=foo; echo $kept", "1\n", "", 0},
		{"printf 'no nl'", "no nl", "", 0},
		{"echo out; echo err >&2", "out\n", "err\n", 0},
		{"(exit 5)", "", "", 5},
		{"echo $?", "5\n", "", 0},
	} {
		o := d.cell(id, test.code)
		stderr := strings.Join(o.stderr, "")
		if o.out() != test.stdout || o.code != test.status || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
			t.Errorf("%s: printed %q and %q, ended with %+v %+v", test.code, o.out(), stderr, o.end, o.end.Error)
		}
		if told := slices.Contains(o.states(), "session_replaced"); told != strings.HasPrefix(test.code, "exit") {
			t.Errorf("%s: was told %v", test.code, o.states())
		}
	}
}

// What is installed is told with its versions, what isn't with how to get it.
func TestVersionTellsOfTheLanguages(t *testing.T) {
	t.Parallel()
	versions := func(d *daemon) map[string]openapi.LanguageInfo {
		var v openapi.VersionInfo
		for range 20 { // the Jupyter Server may take longer to start than an answer may take
			if status := d.call("GET", "/version", nil, &v); status != http.StatusOK {
				t.Fatalf("version: %d", status)
			}
			if i := slices.IndexFunc(v.Backends, func(b openapi.BackendInfo) bool { return b.Name == "jupyter" }); v.Backends[i].Available {
				break
			}
		}
		all := map[string]openapi.LanguageInfo{}
		for _, l := range v.Languages {
			all[l.Name] = l
		}
		return all
	}
	t.Run("all there", func(t *testing.T) {
		there := versions(start(t, launch{env: []string{withGoKernel(t)}}))
		for _, l := range languages {
			v := there[l.name]
			if !v.Available || v.Kernel == nil || v.Version == nil || l.name != "bash" && v.KernelVersion == nil || v.Reason != nil {
				t.Errorf("%s: %+v", l.name, v)
			}
			for _, alias := range l.aliases {
				if !slices.Contains(v.Aliases, strings.ToLower(alias)) {
					t.Errorf("%s: aliases %v, without %s", l.name, v.Aliases, alias)
				}
			}
		}
	})
	t.Run("only Jupyter and Python", func(t *testing.T) {
		bare := t.TempDir()
		if err := os.Symlink(filepath.Join(prefixDir(t), "python"), filepath.Join(bare, "python")); err != nil {
			t.Fatal(err)
		}
		d := start(t, launch{args: []string{"--prefix=" + bare, "--bash=kernel"}})
		there := versions(d)
		for name, how := range map[string]string{
			"javascript": "tslab", "typescript": "tslab", "java": "jjava", "go": "celld-gokernel", "bash": "bash_kernel",
		} {
			v := there[name]
			if v.Available || v.Kernel != nil || v.Reason == nil || v.Hint == nil || !strings.Contains(*v.Hint, how) {
				t.Errorf("%s: %+v", name, v)
			}
			for _, path := range []string{"/code", "/code/context"} {
				var e struct{ Code, Message string }
				status := d.call("POST", path, m{"language": name, "context": m{"language": name}, "code": "1"}, &e)
				if status != http.StatusBadRequest || !strings.Contains(e.Message, how) || !strings.Contains(e.Message, "there are: python, sql.") {
					t.Errorf("%s %s: %d %+v", path, name, status, e)
				}
			}
		}
		if v := there["python"]; !v.Available {
			t.Errorf("python: %+v", v)
		}
	})
}

// bash runs in a Jupyter kernel where that is asked for.
func TestBashInAKernel(t *testing.T) {
	t.Parallel()
	d := start(t, launch{args: []string{"--bash=kernel"}})
	d.python()
	l := bash
	l.ename, l.trace = "Error", "3"
	l.wrong, l.wrongEname, l.wrongTrace = "fi", "Error", ""
	l.interrupted = "KeyboardInterrupt"
	testLanguage(t, d, l)
}

func testLanguage(t *testing.T, shared *daemon, l language) {
	d := shared.in(t)
	dir := filepath.Join(d.ws, "of "+l.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const own = "a 'b' \"c\" $HOME é"
	c := d.context(m{"language": l.name, "cwd": dir, "envs": m{"OWN": own}})
	if c.Language != l.name || c.Cwd != dir {
		t.Errorf("made %+v", c)
	}
	for _, column := range []struct {
		name string
		run  func(*testing.T, *daemon)
	}{
		{"hello", func(_ *testing.T, d *daemon) { d.says(c.ID, l.hello, "hello\n") }},
		{"aliases", func(t *testing.T, d *daemon) {
			for _, name := range append(l.aliases, strings.ToUpper(l.name)) {
				if o := d.cell(c.ID, l.hello, m{"context": m{"id": c.ID, "language": name}}); o.out() != "hello\n" {
					t.Errorf("as %s it printed %q and ended with %+v", name, o.out(), o.end)
				}
			}
		}},
		{"state", func(t *testing.T, d *daemon) {
			d.says(c.ID, l.set, "")
			d.says(c.ID, l.get, "42\n")
		}},
		{"value", func(t *testing.T, d *daemon) {
			if l.value == "" {
				return
			}
			if o := d.cell(c.ID, l.value); len(o.results) != 1 || o.results[0].Results["text"] != "42" {
				t.Errorf("showed %+v and ended with %+v", o.results, o.end)
			}
		}},
		{"unicode", func(t *testing.T, d *daemon) { d.says(c.ID, l.unicode, "é 漢 🎉\n") }},
		{"directory", func(t *testing.T, d *daemon) { d.says(c.ID, l.cwd, dir+"\n") }},
		{"environment", func(t *testing.T, d *daemon) { d.says(c.ID, l.env, own+"\n") }},
		{"a million bytes", func(t *testing.T, d *daemon) {
			if o := d.cell(c.ID, l.million); o.end.Error != nil || strings.ReplaceAll(o.out(), "\n", "") != strings.Repeat("x", 1000000) {
				t.Errorf("printed %d bytes and ended with %+v", len(o.out()), o.end)
			}
		}},
		{"thousands of lines", func(t *testing.T, d *daemon) {
			o := d.cell(c.ID, l.lines)
			for i, line := range strings.Split(strings.TrimSuffix(o.out(), "\n"), "\n") {
				if line != strconv.Itoa(i) {
					t.Fatalf("line %d is %.40q, it ended with %+v", i, line, o.end.Error)
				}
			}
			if n := strings.Count(o.out(), "\n"); n != 8000 || o.end.Error != nil {
				t.Errorf("printed %d lines and ended with %+v", n, o.end)
			}
		}},
		{"an error, and a run that waits behind it", func(t *testing.T, d *daemon) {
			first, next := d.begin(c.ID, l.fails), d.begin(c.ID, l.get)
			l.failed(t, first.rest(), l.ename, l.evalue, l.trace)
			if o := next.rest(); o.end.Error != nil || o.out() != "42\n" {
				t.Errorf("the next run printed %q and ended with %+v", o.out(), o.end.Error)
			}
		}},
		{"not a program", func(t *testing.T, d *daemon) {
			l.failed(t, d.cell(c.ID, l.wrong), l.wrongEname, "", l.wrongTrace)
		}},
		{"interrupt", func(t *testing.T, d *daemon) {
			running := d.begin(c.ID, l.endless)
			running.until(prints("go"))
			if status := d.call("DELETE", "/code?id="+c.ID, nil, nil); status != http.StatusOK {
				t.Errorf("interrupt: %d", status)
			}
			if o := running.rest(); o.end.Type != "error" || o.end.Error.Ename != l.interrupted {
				t.Errorf("ended with %+v %+v", o.end, o.end.Error)
			}
			d.says(c.ID, l.get, "42\n") // the state is kept
		}},
		{"restart", func(t *testing.T, d *daemon) {
			if status := d.call("POST", "/code/contexts/"+c.ID+"/restart", nil, nil); status != http.StatusOK {
				t.Errorf("restart: %d", status)
			}
			d.says(c.ID, l.hello, "hello\n")
			d.says(c.ID, l.env, own+"\n")
			if o := d.cell(c.ID, l.get); o.out() == "42\n" {
				t.Error("the state outlived the restart")
			}
		}},
	} {
		t.Run(column.name, func(t *testing.T) { column.run(t, d.in(t)) })
	}
}

func (l language) failed(t *testing.T, o *outcome, ename, evalue, trace string) {
	t.Helper()
	if o.end.Error == nil {
		t.Errorf("ended well: %+v", o.events)
		return
	}
	e := o.end.Error
	if e.Ename != ename || evalue != "" && e.Evalue != evalue || !strings.Contains(strings.Join(e.Traceback, "\n"), trace) {
		t.Errorf("failed with %+v, want %s %q and %q in the trace", e, ename, evalue, trace)
	}
}
