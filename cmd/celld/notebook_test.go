package main

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestNotebookExample does with docs/notebook.py what its reader would.
func TestNotebookExample(t *testing.T) {
	d := start(t, launch{raw: true})
	d.python()
	ctx, cancel := context.WithTimeout(t.Context(), patience) // a notebook that waits for ever is told by its EOF
	defer cancel()
	cmd := exec.CommandContext(ctx, prefixDir(t)+"/python/bin/python", "../../docs/notebook.py", d.url)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	wait := func(want string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if strings.Contains(line, want) {
				return
			}
			if err != nil {
				t.Fatalf("%v before %q; stderr:\n%s", err, want, stderr.String())
			}
		}
	}
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(stdin, text); err != nil {
			t.Fatal(err)
		}
	}
	say("x = 20\nprint('hello')\nx + 1\n\n")
	wait("hello")
	wait("]:  21") // d.python ran one in the same context
	say("name = input('who? ')\nprint('hi ' + name)\n\nada\n")
	wait("hi ada")
	say("import time\nprint('looping', flush=True)\nwhile True: time.sleep(0.1)\n\n")
	wait("looping")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	say("print('after', x)\n\n")
	wait("after 20")
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	if !strings.Contains(stderr.String(), "KeyboardInterrupt") {
		t.Errorf("stderr: %s", stderr.String())
	}
}
