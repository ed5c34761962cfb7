package files

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPathsExpandALeadingTildeSlashOnly(t *testing.T) {
	f := FS{Workspace: "/ws", Home: "/home/u"}
	for path, want := range map[string]string{
		"~/a":         "/home/u/a",
		"~":           "/ws/~",
		"~root/a":     "/ws/~root/a",
		"a/~/b":       "/ws/a/~/b",
		"$HOME/${X}a": "/ws/$HOME/${X}a",
		"/x/$HOME":    "/x/$HOME",
		" a":          "/ws/ a",
		"-p":          "/ws/-p",
		"/a//b/../c/": "/a/c",
		"../../..":    "/",
		"/\xff\n":     "/\xff\n",
	} {
		got, err := f.Abs(path)
		check(t, err)
		if got != want {
			t.Errorf("%q becomes %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"", "/a\x00b"} {
		_, err := f.Abs(path)
		wantKind(t, err, ErrInvalid)
	}
	if got, _ := (FS{}).Abs("x"); got != "/x" {
		t.Errorf("without a workspace x is %s", got)
	}
}

func TestInfoDescribesEveryTypeItself(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/empty", "", 0o640)
	write(t, dir+"/file", "12345", 0o755)
	check(t, os.Mkdir(dir+"/sub", 0o700))
	check(t, os.Chmod(dir+"/sub", 0o777|os.ModeSticky))
	check(t, os.Symlink("/nope", dir+"/dang"))
	check(t, os.Symlink("sub", dir+"/link"))
	fifo(t, dir+"/fifo")
	sock, err := net.Listen("unix", dir+"/sock")
	check(t, err)
	defer sock.Close()
	for _, c := range []struct {
		name, typ string
		size      int64
		mode      uint32
		target    string
	}{
		{"empty", TypeFile, 0, 0o640, ""},
		{"file", TypeFile, 5, 0o755, ""},
		{"sub", TypeDirectory, 0, 0o1777, ""},
		{"dang", TypeSymlink, 5, 0o777, "/nope"},
		{"link", TypeSymlink, 3, 0o777, "sub"},
		{"fifo", TypeOther, 0, 0o600, ""},
		{"sock", TypeOther, 0, mode(t, dir+"/sock"), ""},
	} {
		i, err := FS{Workspace: dir}.Info(c.name)
		check(t, err)
		if i.Path != dir+"/"+c.name || i.Type != c.typ || i.Size != c.size || i.Mode != c.mode || i.Target != c.target {
			t.Errorf("%s is %+v", c.name, i)
		}
	}
}

func TestInfoKnowsTimesAndOwner(t *testing.T) {
	path := write(t, t.TempDir()+"/f", "x", 0o600)
	at := time.Date(2001, 2, 3, 4, 5, 6, 789012345, time.UTC)
	check(t, os.Chtimes(path, at, at))
	if os.Getuid() == 0 {
		check(t, os.Chown(path, 0, 54321))
	}
	i, err := FS{}.Info(path)
	check(t, err)
	if !i.Modified.Equal(at) {
		t.Errorf("modified at %v", i.Modified)
	}
	if i.Created.IsZero() {
		t.Error("no creation time")
	}
	if os.Getuid() == 0 && (i.Owner != "root" || i.Group != "54321") {
		t.Errorf("belongs to %s:%s", i.Owner, i.Group)
	}
}

func TestInfoOfSeveralPathsFailsAsAWhole(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", "", 0o600)
	f := FS{Workspace: dir}
	infos, err := f.Infos([]string{"a", dir})
	check(t, err)
	equal(t, below(dir, infos), []string{"a", dir})
	_, err = f.Infos([]string{"a", "missing"})
	wantKind(t, err, ErrNotFound)
	if !strings.Contains(err.Error(), "missing") {
		t.Errorf("%q doesn't name the path", err)
	}
	for path, kind := range map[string]error{
		"a/below":                 ErrNotFound,
		strings.Repeat("n", 300):  ErrInvalid,
		strings.Repeat("a/", 3e3): ErrInvalid,
		"":                        ErrInvalid,
	} {
		_, err := f.Info(path)
		wantKind(t, err, kind)
	}
}

func TestInfoAsJSONHasEveryFieldTheClientsNeed(t *testing.T) {
	path := write(t, t.TempDir()+"/empty", "", 0o644)
	i, err := FS{}.Info(path)
	check(t, err)
	got := decodeArray(t, []Info{i})[0]
	if got["path"] != path || got["type"] != "file" || got["size"] != 0.0 || got["mode"] != 644.0 {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"modified_at", "created_at"} {
		if at, err := time.Parse(time.RFC3339, got[name].(string)); err != nil || at.Location() != time.UTC {
			t.Errorf("%s: %v %v", name, at, err)
		}
	}
	for _, name := range []string{"owner", "group"} {
		if got[name] == "" || got[name] == nil {
			t.Errorf("no %s in %v", name, got)
		}
	}
	for _, name := range []string{"target", "path_base64", "error"} {
		if _, there := got[name]; there {
			t.Errorf("%s in %v", name, got)
		}
	}
}

func TestModesAreOctalDigitsInJSON(t *testing.T) {
	for bits, want := range map[uint32]float64{0: 0, 0o7: 7, 0o44: 44, 0o755: 755, 0o1777: 1777, 0o7777: 7777} {
		if got := decodeArray(t, []Info{{Type: TypeFile, Mode: bits}})[0]["mode"]; got != want {
			t.Errorf("%o is written %v", bits, got)
		}
	}
}

func TestNamesOfAnyBytesGoThroughJSON(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a\nb", "t\tab", "[a]", " blank", "-rf", `quo"te\`, "é漢😀", "\u2028", "bad\xff\xfeend", "\x01", "~", "$HOME", "a'b", "<&>", "{x,y}"}
	for _, name := range names {
		write(t, dir+"/"+name, "", 0o600)
	}
	check(t, os.Symlink("to\xff", dir+"/zlink"))
	infos := list(t, dir, 1)
	decoded := decodeArray(t, infos)
	if len(decoded) != len(names)+1 {
		t.Fatalf("%d entries of %d", len(decoded), len(names)+1)
	}
	seen := map[string]bool{}
	for _, d := range decoded {
		path := d["path"].(string)
		if exact, ok := d["path_base64"]; ok {
			b, err := base64.StdEncoding.DecodeString(exact.(string))
			check(t, err)
			if path != dir+"/bad\ufffd\ufffdend" {
				t.Errorf("repaired to %q", path)
			}
			path = string(b)
		}
		seen[filepath.Base(path)] = true
		if d["type"] == "symlink" {
			b, err := base64.StdEncoding.DecodeString(d["target_base64"].(string))
			check(t, err)
			equal(t, []string{d["target"].(string), string(b)}, []string{"to\ufffd", "to\xff"})
		}
	}
	for _, name := range names {
		if !seen[name] {
			t.Errorf("%q is missing", name)
		}
		if _, err := (FS{}).Info(dir + "/" + name); err != nil {
			t.Errorf("info of %q: %v", name, err)
		}
	}
}

func TestMapOfInfosHasEachKeyOnce(t *testing.T) {
	infos := []Info{{Path: "/1"}, {Path: "/2"}, {Path: "/3"}, {Path: "/4"}}
	b := AppendJSONMap(nil, []string{"a", "x\xff", "a", "x\xfe"}, infos)
	want := strings.Count(string(b), `":{"path"`)
	var got map[string]map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if len(got) != 2 || want != 2 || got["a"]["path"] != "/3" || got["x\ufffd"]["path"] != "/4" {
		t.Errorf("%s", b)
	}
	if got := string(AppendJSONMap(nil, nil, nil)); got != "{}" {
		t.Errorf("nothing is %s", got)
	}
}

func TestEmptyArrayIsNotNull(t *testing.T) {
	var b strings.Builder
	check(t, NewArrayWriter(&b).Close())
	if b.String() != "[]" {
		t.Error(b.String())
	}
}

func TestTimesOutsideRFC3339DoNotSpoilTheJSON(t *testing.T) {
	i := Info{Type: TypeFile, Modified: time.Unix(1<<40, 0), Created: time.Unix(-1<<40, 0)}
	got := decodeArray(t, []Info{i})[0]
	equal(t, []any{got["modified_at"], got["created_at"]}, []any{"1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"})
}

func FuzzStringsAsJSON(f *testing.F) {
	for _, s := range []string{"", "a", "\"\\/", "\xff", "é\u2028\x00", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToValidUTF8(s, ""); strings.ReplaceAll(got, "\ufffd", "") != strings.ReplaceAll(want, "\ufffd", "") {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func TestLinksAreFollowedAsTheKernelDoes(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	check(t, os.MkdirAll(dir+"/real/deep", 0o755))
	check(t, os.Symlink("real/deep", dir+"/into"))
	check(t, os.Symlink("../x", dir+"/real/deep/up"))
	check(t, os.Symlink("into/up", dir+"/a"))
	check(t, os.Symlink(dir+"/a", dir+"/b"))
	check(t, os.Symlink("self", dir+"/self"))
	got, err := follow(dir + "/b")
	check(t, err)
	write(t, dir+"/b", "through", 0o600) // the kernel's own opinion
	if content(t, got) != "through" {
		t.Errorf("b leads to %s", got)
	}
	if _, err := follow(dir + "/self"); err != unix.ELOOP {
		t.Errorf("a link to itself: %v", err)
	}
}
