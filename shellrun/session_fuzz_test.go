package shellrun

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fuzzer is a user who owns nothing: what random bytes may do, they do to nobody.
const fuzzer = 64321

// FuzzSession runs bytes as a command. Whatever they are, the run ends in time and the session answers.
func FuzzSession(f *testing.F) {
	for _, seed := range []string{
		"echo hi", "exit 3", "exec true", "set -e; false", "kill -9 $$", "return 5", "echo 'oops", "cat <<EOF\nhi",
		"if true; then echo x", "echo a; )", "set -n", "exec 1>&- 2>&-", "builtin(){ :; }", "alias !=x {=y",
		"trap 'echo $BASH_COMMAND' DEBUG; trap : ERR RETURN", "declare -A m=([a]=b); readonly m", "set -x; echo $((1/0))",
		"f() { f; }; f", "while :; do :; done", "sleep 9 & disown", "echo ${x:?no}", "unset BASH_SOURCE; IFS=x", "read x <>/dev/zero",
		"set -o posix; . /nosuch", "shopt -s extdebug; set -T; trap 'return 2' DEBUG", "exec {fd}>&1; echo >&$fd", "coproc cat",
		"$'\\x00\\xff'", "\xff\xfe;\x80", "((", "case x in", "a=(", "${", "$(", "`", "\\", "enable -n . builtin", "PS4='$(echo x)'; set -xv",
		"trap '' {1..64}", "for i in {0..255}; do eval \"exec $i>&-\"; done", "BASH_XTRACEFD=9; set -x", "ulimit -n 5", "PATH=; ls",
		"cd /proc/self; exec 5<.", "printf -v CELLD_S 7; CELLD_I=1", "kill -62 $$", "set -k -t; x", "LINENO=7; OPTIND=x; RANDOM=;",
	} {
		f.Add([]byte(seed))
	}
	h := testSessions(f)
	h.patience = usualPatience()
	root := os.Geteuid() == 0
	f.Fuzz(func(t *testing.T, text []byte) {
		if !root && strings.Contains(string(text), "kill") {
			return // as ourselves, it could end the test
		}
		s := openLoose(t, h, func(c *SessionConfig) {
			c.BaseEnv = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
			if root {
				c.Credential = &syscall.Credential{Uid: fuzzer, Gid: fuzzer}
			}
		})
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
		}()
		s.run("ulimit -f 2000 -u 300 -v 4000000")
		const limit, patience = 300 * time.Millisecond, 30 * time.Second
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		res, err := s.try(ctx, string(text))
		cancel()
		var bad *RequestError
		if errors.As(err, &bad) && (len(text) == 0 || strings.ContainsRune(string(text), 0)) {
			return
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return // its turn came too late
		}
		if took := time.Since(start); err != nil || res.Code < 0 || res.Code > 255 || took > limit+patience {
			t.Fatalf("%v, %v, after %v", res, err, took)
		}
		for _, text := range []string{"return 42", "\\command /bin/sh -c 'exit 42'"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			res, err = s.try(ctx, text)
			cancel()
			if err == nil && res.Code == 42 {
				return
			}
		}
		t.Errorf("afterwards: %v, %v", res, err)
	})
}
