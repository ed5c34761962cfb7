package main

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What people do in terminals.
func TestTerminalPrograms(t *testing.T) {
	for _, name := range []string{"vim", "less", "top", "tmux", "python3", "tput"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: run make setup-tests first", err)
		}
	}
	d := start(t, launch{})
	run := func(t *testing.T, command string) *tty {
		d.t = t
		return d.attach(d.pty(m{"command": command}), "")
	}
	ends := func(t *testing.T, c *tty, want int) {
		t.Helper()
		if code := c.exit(); code != want {
			t.Errorf("exit code %d after %q", code, c.text()[max(0, len(c.text())-500):])
		}
	}

	t.Run("vim", func(t *testing.T) {
		c := run(t, "vim -u NONE -N f")
		c.until("\x1b[?1049h")
		c.until(`"f"`)
		c.typed("ihello \u00e9\u6f22\rthere\x1b")
		c.typed(":wq\r") // without a resize, which vim may not notice before the next key
		ends(t, c, 0)
		if text, err := os.ReadFile(filepath.Join(d.ws, "f")); err != nil || string(text) != "hello \u00e9\u6f22\nthere\n" {
			t.Errorf("%v %q", err, text)
		}
	})
	t.Run("less", func(t *testing.T) {
		c := run(t, "seq 1 1000 | less")
		c.until("\n23")
		c.typed("G")
		c.until("1000")
		c.until("END")
		c.typed("q")
		ends(t, c, 0)
	})
	t.Run("top", func(t *testing.T) {
		c := run(t, "top -d 0.2")
		c.until("load average")
		c.until("load average")
		c.typed("q")
		ends(t, c, 0)
	})
	t.Run("python", func(t *testing.T) {
		c := run(t, "exec python3 -q")
		c.until(">>> ")
		c.typed("import sys; print(sys.stdin.isatty(), 6 * 7)\r")
		c.until("True 42")
		// Between its prompt and what it runs Python may take note of the signal and then wait for a key.
		c.typed("print('in' + ' it') or any(0 for _ in iter(int, 1))\r")
		c.until("in it")
		c.typed("\x03")
		c.until("KeyboardInterrupt")
		c.typed("exit(5)\r")
		ends(t, c, 5)
	})
	t.Run("tmux", func(t *testing.T) {
		c := run(t, "exec env -u TMUX tmux -S "+d.ws+"/tmux -f /dev/null new-session 'PS1= bash --norc'") // the test may run in one itself
		c.until("\x1b[?1049h")
		c.typed("stty size; echo p''ane\r")
		if got := c.until("pane"); !strings.Contains(got, "23 80") {
			t.Errorf("%q", got)
		}
		c.say(m{"type": "resize", "cols": 100, "rows": 50})
		c.typed("until stty size | grep 49.100; do :; done\r")
		c.until("49 100")
		c.typed("exit\r")
		c.until("[exited]")
		ends(t, c, 0)
	})
	t.Run("colours", func(t *testing.T) {
		c := run(t, `tput colors; tput setaf 196; echo red`)
		ends(t, c, 0)
		if c.text() != "256\r\n\x1b[38;5;196mred\r\n" {
			t.Errorf("%q", c.text())
		}
	})
	t.Run("UTF-8", func(t *testing.T) {
		c := run(t, "")
		c.typed("PS1=; bind 'set enable-bracketed-paste off'; echo re''ady\r")
		c.until("ready\r\n")
		c.typed("echo '\u00e9\u6f22\U0001f600\u00e9\x7fx'\r")
		c.until("\r\n\u00e9\u6f22\U0001f600x\r\n")
		c.typed("exit\r")
		ends(t, c, 0)
	})
	t.Run("every byte", func(t *testing.T) {
		var all [256]byte
		for i := range all {
			all[i] = byte(i)
		}
		c := run(t, "stty raw -echo; printf ready; head -c 256 | tee copy; exit 3")
		c.until("ready")
		c.typed(string(all[:]))
		ends(t, c, 3)
		text, err := os.ReadFile(filepath.Join(d.ws, "copy"))
		if err != nil || string(text) != string(all[:]) {
			t.Errorf("in: %v %s", err, hex.EncodeToString(text))
		}
		if c.text() != "ready"+string(all[:]) {
			t.Errorf("out: %s", hex.EncodeToString([]byte(c.text())))
		}
	})
	t.Run("bracketed paste", func(t *testing.T) {
		c := run(t, "")
		c.until("\x1b[?2004h")
		c.typed("\x1b[200~echo $((40+2))\necho $((50+3))\x1b[201~")
		c.until("((50+3))")
		if strings.Contains(c.text(), "42") {
			t.Errorf("the pasted line was run at once: %q", c.text())
		}
		c.typed("\r")
		c.until("42\r\n53\r\n")
		c.typed("exit\r")
		ends(t, c, 0)
	})
}

func TestTerminalClientOfTheDocs(t *testing.T) {
	d := start(t, launch{env: []string{"HOME=" + t.TempDir()}}) // the client's shell reads nobody's .bashrc either
	script, err := filepath.Abs("../../docs/terminal.py")
	if err != nil {
		t.Fatal(err)
	}
	client := "exec " + filepath.Join(prefixDir(t), "python/bin/python") + " " + script + " " + d.url
	// The client runs in a terminal as well, one of celld's.
	c := d.attach(d.pty(m{"command": client, "cols": 91, "rows": 37}), "")
	c.until("\x1b[?2004h")
	c.typed("stty size; echo p''id $$.\r")
	if got := c.until("\npid "); !strings.HasSuffix(got, "\r37 91\r") {
		t.Errorf("%q", got)
	}
	shell := c.until(".")
	c.say(m{"type": "resize", "cols": 100, "rows": 50})
	c.typed("until stty size | grep 50.100; do :; done\r")
	c.until("50 100\r\n")
	c.typed("\x1d")
	c.until("left; the terminal is ")
	id := c.until("\r\n")
	if code := c.exit(); code != 1 {
		t.Errorf("left with %d", code)
	}

	c = d.attach(d.pty(m{"command": client + " " + id}), "")
	c.until("\npid " + shell) // from before
	c.typed("echo ag''ain $$.; exit 9\r")
	c.until("again " + shell + ".")
	if code := c.exit(); code != 9 {
		t.Errorf("exit code %d", code)
	}
}

// TestClientsOfTheDocsTellWhatIsWrong starts them where they can't work: one line says why.
func TestClientsOfTheDocsTellWhatIsWrong(t *testing.T) {
	const secret = "not theirs"
	d := start(t, launch{})
	guarded := start(t, launch{args: []string{"--access-token=" + secret}})
	docs, err := filepath.Abs("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(prefixDir(t), "python/bin/python") + " " + docs + "/"
	nobody := "http://127.0.0.1:9"
	one := func(text, word string) {
		t.Helper()
		if text = strings.TrimSpace(text); strings.Count(text, "\n") > 0 || !strings.Contains(text, word) {
			t.Errorf("%q, want a line with %q", text, word)
		}
	}
	for command, word := range map[string]string{
		"notebook.py " + nobody + " </dev/null":      "refused",
		"notebook.py " + guarded.url + " </dev/null": "token",
		"notebook.py nonsense </dev/null":            "nonsense",
		"terminal.py " + d.url + " </dev/null":       "terminal",
	} {
		o := d.command(python + command)
		if o.failed() != "CommandExecError" || len(o.stdout) > 0 {
			t.Errorf("%s: %+v", command, o)
		}
		one(strings.Join(o.stderr, "\n"), word)
	}
	for args, word := range map[string]string{
		nobody:          "refused",
		guarded.url:     "token",
		d.url + " none": "none",
		"nonsense":      "nonsense",
	} {
		c := d.attach(d.pty(m{"command": "exec " + python + "terminal.py " + args}), "")
		code := c.exit()
		if one(c.text(), word); code != 1 {
			t.Errorf("%s: exit code %d", args, code)
		}
	}
}
