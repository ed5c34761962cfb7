package proctree

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIdentityComesFromPasswdAndGroup(t *testing.T) {
	dir := t.TempDir()
	passwd, group := dir+"/passwd", dir+"/group"
	write(t, passwd, "# comment\nroot:x:0:0:root:/root:/bin/sh\nann:x:1000:1001:Ann,,,:/home/ann:/bin/sh\nbad:x:y:1:::\n+::::::")
	write(t, group, "root:x:0:\nann:x:1001:\nwheel:x:10:root,ann\nbob:x:12:bob\nann:x:1001:ann\nann2:x:13:anna,ann")
	seven := uint32(7)
	for _, c := range []struct {
		uid    uint32
		gid    *uint32
		name   string
		home   string
		groups []uint32 // the first is the gid
	}{
		{1000, nil, "ann", "/home/ann", []uint32{1001, 10, 13}},
		{1000, &seven, "ann", "/home/ann", []uint32{7, 10, 1001, 13}},
		{0, nil, "root", "/root", []uint32{0, 10}},
		{4242, nil, "", "/", []uint32{4242}},
		{4242, &seven, "", "/", []uint32{7}},
	} {
		id, cred, err := identify(passwd, group, c.uid, c.gid)
		if err != nil || id.Name != c.name || id.Home != c.home ||
			cred.Uid != c.uid || cred.Gid != c.groups[0] || !slices.Equal(cred.Groups, c.groups) {
			t.Errorf("%d: %+v %+v %v, want %+v", c.uid, id, cred, err, c)
		}
	}
	if id, _, err := identify(dir+"/none", dir+"/none", 0, nil); err != nil || id.Name != "" {
		t.Errorf("without files: %+v, %v", id, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBaseEnvKeepsTheDaemonsOwnToItself(t *testing.T) {
	got := BaseEnv([]string{"A=1", "CELLD_ACCESS_TOKEN=x", "EXECD_Y=x", "JUPYTER_TOKEN=x", "OTEL_Z=x", "PWD=/", "OLDPWD=/", "_=x", "PATH=/p", "HOME=/h", "odd"})
	if want := []string{"A=1", "PATH=/p", "HOME=/h", "LANG=C.UTF-8"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if home, ok := Lookup(BaseEnv(nil), "HOME"); !ok || home == "" {
		t.Errorf("HOME is %q", home)
	}
}

func TestOverlayReplacesByName(t *testing.T) {
	got := Overlay([]string{"A=1", "AB=2", "A=3", "C=4"}, "A=5", "D=6")
	if want := []string{"AB=2", "C=4", "A=5", "D=6"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestResolveDirExpandsAndChecks(t *testing.T) {
	base := t.TempDir()
	for _, d := range []string{"sub", "a$", "a$b c", "x{y"} {
		if err := os.Mkdir(base+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, base+"/file", "")
	env := []string{"HOME=/wrong", "HOME=" + base, "S=sub", "E="}
	for dir, want := range map[string]string{
		"": base, "sub": base + "/sub", "~": base, "~/sub": base + "/sub", "$HOME/$S": base + "/sub", "${HOME}/${S}": base + "/sub",
		"$E": base, "a$": base + "/a$", "x{y": base + "/x{y", "./sub/../sub": base + "/sub", "/": "/",
	} {
		if got, err := ResolveDir(dir, base, env); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", dir, got, err, want)
		}
	}
	for dir, want := range map[string]error{
		"none": unix.ENOENT, "file": unix.ENOTDIR, "file/x": unix.ENOTDIR, "~other": unix.ENOENT, "$NONE": nil, "${NONE}/x": nil, "a$b c": nil, "\x00": nil,
	} {
		got, err := ResolveDir(dir, base, env)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%q: %q, %v; want %v", dir, got, err, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "~", "~/x", "$A", "${A}", "${A", "$", "$$A", "${}", "a${A}b$A_", "$1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := expand(s, []string{"A=v", "HOME=h"})
		if !strings.ContainsAny(s, "~$") && (got != s || err != nil) {
			t.Errorf("%q became %q, %v", s, got, err)
		}
		if _, err := expand(s, nil); err == nil && got != s {
			t.Errorf("%q means something without variables, and became %q", s, got)
		}
	})
}

func FuzzEntries(f *testing.F) {
	f.Add("root:x:0:0::/:\nx")
	f.Fuzz(func(t *testing.T, text string) {
		err := scanEntries(strings.NewReader(text), 7, func(fields []string) bool { return len(fields) == 7 })
		if err != nil {
			t.Error(err)
		}
	})
}
