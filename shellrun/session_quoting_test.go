package shellrun

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExportedReadsWhatBashPrints(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.StringMatching(`[a-z\n'"$\\`+"`"+` ]*`),
		)
		env := []string{"LANG=" + rapid.SampledFrom([]string{"C", "C.UTF-8"}).Draw(rt, "locale")}
		for _, name := range []string{"A", "B_1", "zz"} {
			env = append(env, name+"="+strings.ReplaceAll(value.Draw(rt, name), "\x00", ""))
		}
		cmd := exec.Command("/bin/bash", "--norc", "--noprofile", "-c", "declare -a arr=(1 2); declare -xi n=5; declare -p")
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil {
			rt.Fatal(err)
		}
		got := exported(out)
		for _, entry := range append(env, "n=5") {
			if !slices.Contains(got, entry) {
				rt.Fatalf("%q is not in %q", entry, got)
			}
		}
		var together []byte
		for c := range commands(out) {
			if _, _, ok := declared(c); !ok {
				rt.Fatalf("%q is no declaration", c)
			}
			together = append(together, c...)
		}
		if !bytes.Equal(together, out) {
			rt.Fatal("commands lose bytes")
		}
	})
}

func TestUntraceTakesTheDepthOfOurFiles(t *testing.T) {
	for _, c := range []struct{ start, in, want string }{
		{"+", "+++ echo a\n", "+ echo a\n"},
		{"+", "++++ date\n+++ echo b", "++ date\n+ echo b"},
		{"+", "++ of a child\n+ too\nx +++ y\n", "++ of a child\n+ too\nx +++ y\n"},
		{"+", "+", "+"},
		{"+", "\n\n+++ x\n", "\n\n+ x\n"},
		{"é", "ééé x\né", "é x\né"},
	} {
		for size := 1; size <= len(c.in); size++ {
			var out bytes.Buffer
			u := newUntrace(&out, c.start)
			for chunk := range slices.Chunk([]byte(c.in), size) {
				if n, err := u.Write(chunk); n != len(chunk) || err != nil {
					t.Fatal(n, err)
				}
			}
			u.(*untrace).Flush()
			if out.String() != c.want {
				t.Errorf("%q in chunks of %d became %q, not %q", c.in, size, out.String(), c.want)
			}
		}
	}
}

func TestTurnsTraceOn(t *testing.T) {
	for text, want := range map[string]bool{
		"set -x": true, "set -eux": true, "set  -o xtrace": true, "echo a; set -vx": true,
		"set -e": false, "test -x f": false, "reset -x": false,
	} {
		if got := turnsTraceOn.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
