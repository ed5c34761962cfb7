package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestExamplesOfTheReadme runs the README's shell examples as they are written, but for the address.
func TestExamplesOfTheReadme(t *testing.T) {
	d := start(t, launch{raw: true, env: []string{withGoKernel(t)}})
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```sh\n")
	script, _, ok := strings.Cut(rest, "```")
	if !ok || !strings.Contains(script, "localhost:44772") {
		t.Fatal("README.md has no examples")
	}
	script = strings.ReplaceAll(script, "localhost:44772", strings.TrimPrefix(d.url, "http://"))
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -eo pipefail\ncurl() { command curl -sS --fail-with-body \"$@\"; echo; }\n"+script)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		`"text":"hello"`, `"evalue":"2"`, `"running":`, `"event":"exit"`, "done", `"session_id":"main"`, `"text":"/tmp 42"`,
		"3.141592653589793", `2.718281828459045`, `[ 1, 4, 9 ]`, `"text":"\"linux\""`, `"stdout":"Linux\n"`, "# celld", `upper"],"metadata"`, `"nbformat":4`, "/tmp/hello.txt", `"text":"done"`,
		`"text":"{\"columns\":[\"answer\",\"VERSION()\"],\"rows\":[[\"42\",`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output has no %s:\n%s", want, out)
		}
	}
}
