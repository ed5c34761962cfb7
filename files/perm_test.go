package files

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestModeIsOctalDigitsWrittenInDecimal(t *testing.T) {
	for mode, want := range map[int]uint32{0: 0, 7: 7, 10: 0o10, 644: 0o644, 755: 0o755, 1777: 0o1777, 7777: 0o7777} {
		if got, err := ParseMode(mode); err != nil || got != want {
			t.Errorf("%d is %o, %v", mode, got, err)
		}
	}
	for _, mode := range []int{8, 888, 493, 758, 10000, -1, -755, 1 << 40} {
		_, err := ParseMode(mode)
		wantKind(t, err, ErrInvalid)
	}
}

func TestPermsAreSetWhateverTheUmask(t *testing.T) {
	dir := t.TempDir()
	f := FS{Workspace: dir}
	for _, m := range []int{755, 644, 777, 0, 1777, 4711} {
		underUmask(0o077, func() {
			write(t, dir+"/f", "", 0o600)
			check(t, f.SetPerms(t.Context(), map[string]Perm{"f": {Mode: &m}}))
		})
		i, err := f.Info("f")
		check(t, err)
		if want, _ := ParseMode(m); i.Mode != want || mode(t, dir+"/f") != want {
			t.Errorf("mode %d became %o", m, i.Mode)
		}
		os.Chmod(dir+"/f", 0o600)
	}
}

func TestAbsentFieldsStayAsTheyAre(t *testing.T) {
	path := write(t, t.TempDir()+"/f", "", 0o640)
	var p Perm
	check(t, json.Unmarshal([]byte(`{"mode":null,"owner":null,"group":""}`), &p))
	check(t, FS{}.SetPerms(t.Context(), map[string]Perm{path: p}))
	if mode(t, path) != 0o640 {
		t.Errorf("mode is %o", mode(t, path))
	}
}

func TestOwnersAreNamesOrNumbers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("changing owners takes root; only errors are looked at")
	}
	path := write(t, t.TempDir()+"/f", "", 0o640)
	set := func(j string) error {
		var p Perm
		check(t, json.Unmarshal([]byte(j), &p))
		return FS{}.SetPerms(t.Context(), map[string]Perm{path: p})
	}
	for _, j := range []string{`{"owner":"no such user"}`, `{"group":"nosuchgroup_x"}`, `{"owner":"-1"}`, `{"owner":"4294967295"}`, `{"owner":"99999999999"}`, `{"mode":888}`} {
		wantKind(t, set(j), ErrInvalid)
	}
	for _, j := range []string{`{"owner":1.5}`, `{"owner":true}`, `{"group":-1}`, `{"mode":"x"}`} {
		if err := json.Unmarshal([]byte(j), new(Perm)); err == nil {
			t.Errorf("%s is accepted", j)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	for _, c := range [][3]string{
		{`{"owner":"nobody","group":"daemon"}`, "nobody", "daemon"},
		{`{"owner":12345}`, "12345", "daemon"},
		{`{"group":"54321"}`, "12345", "54321"},
		{`{"owner":"0","group":0}`, "root", "root"},
	} {
		check(t, set(c[0]))
		i, err := FS{}.Info(path)
		check(t, err)
		equal(t, []string{i.Owner, i.Group}, []string{c[1], c[2]})
	}
	// Changing the owner clears setuid, so the mode must come last.
	check(t, set(`{"owner":"nobody","mode":4755}`))
	if mode(t, path) != 0o4755 {
		t.Errorf("mode is %o", mode(t, path))
	}
}

func TestNothingChangesWhenOnePathIsWrong(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", "", 0o600)
	m, bad := 644, 888
	for _, perms := range []map[string]Perm{
		{"a": {Mode: &m}, "b": {Mode: &m}},
		{"a": {Mode: &m}, "/": {Mode: &bad}},
		{"a": {Mode: &m}, "": {}},
	} {
		if err := (FS{Workspace: dir}).SetPerms(t.Context(), perms); err == nil {
			t.Error("no error")
		}
		if mode(t, dir+"/a") != 0o600 {
			t.Errorf("changed to %o", mode(t, dir+"/a"))
		}
	}
	check(t, os.Symlink("nope", dir+"/dang"))
	wantKind(t, FS{}.SetPerms(t.Context(), map[string]Perm{dir + "/dang": {Mode: &m}}), ErrNotFound)
}

func TestPermsGoThroughLinksAndToAnyType(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "", 0o600)
	check(t, os.Symlink("f", dir+"/link"))
	fifo(t, dir+"/fifo")
	m := 640
	check(t, FS{Workspace: dir}.SetPerms(t.Context(), map[string]Perm{"link": {Mode: &m}, "fifo": {Mode: &m}, ".": {Mode: &m}}))
	for _, name := range []string{"f", "fifo", ""} {
		if got := mode(t, dir+"/"+name); got != 0o640 {
			t.Errorf("%s has %o", name, got)
		}
	}
	check(t, os.Chmod(dir, 0o700))
}

func TestOthersFilesAreNotPermittedToNobody(t *testing.T) {
	dir, inside := asNobody(t)
	if !inside {
		return
	}
	m := 777
	wantKind(t, FS{}.SetPerms(t.Context(), map[string]Perm{"/etc/passwd": {Mode: &m}}), ErrPermission)
	path := write(t, dir+"/f", "", 0o600)
	err := FS{}.SetPerms(t.Context(), map[string]Perm{path: {Owner: "root"}})
	wantKind(t, err, ErrPermission)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v doesn't name the path", err)
	}
	wantKind(t, FS{}.MakeDirs(t.Context(), map[string]Perm{"/etc/x": {}}), ErrPermission)
	wantKind(t, FS{}.RemoveFiles(t.Context(), []string{"/etc/passwd"}), ErrPermission)
	_, err = FS{}.Open("/etc/shadow")
	wantKind(t, err, ErrPermission)
	_, err = FS{}.Replace(t.Context(), map[string]Edit{"/etc/passwd": {"root", "toor"}})
	wantKind(t, err, ErrPermission)
	wantKind(t, FS{}.Move(t.Context(), []Move{{"/etc/passwd", dir + "/p"}}), ErrPermission)
	wantKind(t, send(t, pair{metaOf("/etc/new"), "x"}), ErrPermission)
	equal(t, namesIn(t, dir), []string{"f"})
}
