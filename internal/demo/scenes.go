package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/celld/celld/openapi"
)

const chartFile = "demo-out/chart.png"

// scene is one thing that celld does, and what must come of it.
type scene struct {
	title     string
	path      string
	body      object
	interrupt string // as soon as it prints: DELETE this
	good      func(o outcome) bool
}

func scenes(python string) []scene {
	cell := func(code string) object { return object{"context": object{"id": python}, "code": code} }
	run := "/session/demo/run"
	return []scene{
		{title: "a command", path: "/command", body: object{"command": "echo hello; echo to stderr >&2"},
			good: func(o outcome) bool { return o.failed == "" && o.stdout == "hello\n" && o.stderr == "to stderr\n" }},
		{title: "a command that fails", path: "/command", body: object{"command": "ls /does/not/exist"},
			good: func(o outcome) bool {
				return o.failed == "CommandExecError: 2" && strings.Contains(o.stderr, "not/exist")
			}},
		{title: "a Python cell that prints", path: "/code", body: cell("x = 6 * 7\nprint('x is', x)"),
			good: func(o outcome) bool { return o.failed == "" && o.stdout == "x is 42\n" }},
		{title: "a cell that returns a table", path: "/code",
			body: cell("import pandas as pd\npd.DataFrame({'city': ['Bern', 'Oslo'], 'people': [134_000, 717_000]})"),
			good: func(o outcome) bool { return o.failed == "" && strings.Contains(o.result["text/html"], "<table") }},
		{title: "a cell that draws a chart", path: "/code",
			body: cell("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.title('squares')\nplt.show()"),
			good: func(o outcome) bool { return o.failed == "" && saveChart(o.result["image/png"]) }},
		{title: "a loop that is interrupted", path: "/code", interrupt: "/code?id=" + python,
			body: cell("print('looping', flush=True)\nwhile True: pass"),
			good: func(o outcome) bool { return strings.HasPrefix(o.failed, "KeyboardInterrupt") }},
		{title: "the same context afterwards", path: "/code", body: cell("x"),
			good: func(o outcome) bool { return o.failed == "" && o.result["text/plain"] == "42" }},
		{title: "a bash session", path: run,
			body: object{"command": "cd /usr; K=7; f() { echo K is $K; }", "create": true},
			good: func(o outcome) bool { return o.failed == "" }},
		{title: "the same session afterwards", path: run, body: object{"command": "f; pwd"},
			good: func(o outcome) bool { return o.failed == "" && o.stdout == "K is 7\n/usr\n" }},
		in("javascript", "[1, 2, 3].map(x => x * x)", "[ 1, 4, 9 ]"),
		in("typescript", "const n: number = 6; n * 7", "42"),
		in("java", "6 * 7", "42"),
		in("go", "import \"strings\"\nstrings.Repeat(\"go\", 3)", "gogogo"),
		in("bash", "echo $((6 * 7))", "42"),
		{title: "SQL", path: "/code",
			body: object{"context": object{"language": "sql"}, "code": "SELECT 6 * 7 AS answer"},
			good: func(o outcome) bool { return o.failed == "" && strings.Contains(o.result["text/plain"], "42") }},
	}
}

// in is a cell in the default context of a language, and something that it has to show.
func in(language, code, want string) scene {
	return scene{title: "a cell in " + language, path: "/code", body: object{"context": object{"language": language}, "code": code},
		good: func(o outcome) bool {
			return o.failed == "" && strings.Contains(o.stdout+o.result["text/plain"], want)
		}}
}

// show goes through the scenes, up to the first whose outcome is wrong.
func (d *daemon) show(ctx context.Context) error {
	if d.base == "" {
		return errors.New("celld ended at once")
	}
	var version openapi.VersionInfo
	if err := d.ask(ctx, http.MethodGet, "/version", nil, &version); err != nil {
		return err
	}
	fmt.Printf("  celld %s listens on %s\n", version.Version, d.base)
	var python openapi.CodeContext
	if err := d.ask(ctx, http.MethodPost, "/code/context", object{"language": "python"}, &python); err != nil {
		return err
	}
	for _, s := range scenes(python.ID) {
		fmt.Printf("\n# %s: POST %s\n", s.title, s.path)
		o, err := d.run(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		if !s.good(o) {
			return fmt.Errorf("%s: not the outcome there should be: %+v", s.title, o)
		}
	}
	return nil
}

// saveChart writes a PNG to chartFile if it is one.
func saveChart(text string) bool {
	image, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return false
	}
	size, err := png.DecodeConfig(bytes.NewReader(image))
	if err != nil || os.MkdirAll(filepath.Dir(chartFile), 0o755) != nil || os.WriteFile(chartFile, image, 0o644) != nil {
		return false
	}
	fmt.Printf("  saved %s, %d × %d pixels\n", chartFile, size.Width, size.Height)
	return true
}
