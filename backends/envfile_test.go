package backends

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestEnvFileEntries(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                                 {},
		"A='1'\n":                          {"A": "1"},
		"A='1'":                            {"A": "1"},
		"A=''\nB=\"\"\n":                   {"A": "", "B": ""},
		"A='old'\nA='new'\n":               {"A": "new"},
		"A='one\ntwo'\nB='x'\n":            {"A": "one\ntwo", "B": "x"},
		"A='$HOME \\n \"q\" `x`'\n":        {"A": "$HOME \\n \"q\" `x`"},
		`A="it's \"so\"\n\r\t\\n \$x"`:     {"A": "it's \"so\"\n\r\t\\n \\$x"},
		"A='1' \t\r\nB='2'\n":              {"A": "1", "B": "2"},
		"# no\n\nA=1\nexport B='2'\nC='3'": {"C": "3"},
		"A='1' x\nB='2'":                   {"B": "2"},
		"1A='1'\nA B='2'\n='3'\n":          {},
		"A='1\n":                           {},
		"A=\"1\\":                          {},
		"A='1\x002'\n":                     {},
	} {
		if got := parseEnv(text); !maps.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// What clients write is read back as it was, whatever the values.
func TestEnvFileRoundTrip(t *testing.T) {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,3}`), rapid.StringMatching(`['"\\\n\r\t$a é=#]{0,8}`)).Draw(t, "env")
		var b strings.Builder
		for k, v := range want {
			if strings.Contains(v, "'") {
				b.WriteString(k + `="` + escape.Replace(v) + "\"\n")
			} else {
				b.WriteString(k + "='" + v + "'\n")
			}
		}
		if got := parseEnv(b.String()); !maps.Equal(got, want) {
			t.Fatalf("%q: %q, want %q", b.String(), got, want)
		}
	})
}

func TestEnvFileIsReadEachTimeAndTheRequestWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "envs")
	f := EnvFile(path)
	check := func(want map[string]string) {
		t.Helper()
		got, err := f.under(map[string]string{"B": "mine"})
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	check(map[string]string{"B": "mine"})
	if err := os.WriteFile(path, []byte("A='1'\nB='2'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(map[string]string{"A": "1", "B": "mine"})
	if err := os.WriteFile(path, []byte("A='3'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(map[string]string{"A": "3", "B": "mine"})
}

func TestEnvFileThatCantBeReadIsTheClientsToMend(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, make([]byte, maxEnvFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe, large} {
		var refused *Error
		if _, err := EnvFile(path).under(nil); !errors.As(err, &refused) || refused.Fault != Invalid {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A='1'\nB=\"2\\n\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, value := range parseEnv(text) {
			if !validName(name) || strings.IndexByte(value, 0) >= 0 {
				t.Errorf("%q: %q=%q", text, name, value)
			}
		}
	})
}
