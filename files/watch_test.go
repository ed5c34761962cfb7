package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// seen is a watch under test; what it tells is told by paths below its root.
type seen struct {
	t    *testing.T
	w    *Watch
	root string
	all  []string
}

func watch(t *testing.T, path string, recursive bool) *seen {
	t.Helper()
	w, err := FS{}.Watch(t.Context(), path, recursive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return &seen{t: t, w: w, root: path}
}

// until reads changes up to one, and returns what came before it and after the one before.
func (s *seen) until(last string) string {
	s.t.Helper()
	var before []string
	for {
		for n, one := range s.all {
			if one == last {
				s.all = s.all[n+1:]
				return strings.Join(before, ", ")
			}
			if len(before) == 0 || before[len(before)-1] != one { // repeated over batches
				before = append(before, one)
			}
		}
		changes, err := s.w.Next(s.t.Context())
		if err != nil {
			s.t.Fatalf("%v before %q; came: %q", err, last, before)
		}
		s.all = nil
		for _, c := range changes {
			rel, err := filepath.Rel(s.root, c.Path)
			if err != nil {
				s.t.Fatal(err)
			}
			s.all = append(s.all, string(c.Type)+" "+rel)
		}
	}
}

// mark makes a file whose creation ends what is looked at, and returns what came before it.
func (s *seen) mark(n int) string {
	s.t.Helper()
	name := fmt.Sprint("mark", n)
	must(s.t, os.WriteFile(filepath.Join(s.root, name), nil, 0o644))
	return s.until("created " + name)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchTellsEachKindOfChange(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "a b\xff")
	s := watch(t, root, false)
	for n, c := range []struct {
		do   func() error
		want string
	}{
		{func() error { return os.WriteFile(file, nil, 0o644) }, "created a b\xff"},
		{func() error { return os.WriteFile(file, []byte("x"), 0o644) }, "written a b\xff"},
		{func() error { return os.Chmod(file, 0o600) }, "chmod a b\xff"},
		{func() error { return os.Rename(file, file+"2") }, "renamed a b\xff, created a b\xff2"},
		{func() error { return os.Remove(file + "2") }, "removed a b\xff2"},
		{func() error { return os.Mkdir(file, 0o755) }, "created a b\xff"},
		{func() error { return os.WriteFile(file+"/inside", nil, 0o644) }, ""}, // not recursive
		{func() error { return os.RemoveAll(file) }, "removed a b\xff"},
		{func() error { return os.Symlink("/", file) }, "created a b\xff"},
	} {
		must(t, c.do())
		if got := s.mark(n); got != c.want {
			t.Errorf("%d: %q, want %q", n, got, c.want)
		}
	}
}

func TestWatchGoesIntoNewDirectories(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(root+"/old/deep", 0o755))
	must(t, os.Symlink("/", root+"/old/out"))
	s := watch(t, root, true)
	must(t, os.WriteFile(root+"/old/deep/f", nil, 0o644))
	s.until("created old/deep/f")
	must(t, os.MkdirAll(root+"/new/a/b/c", 0o755))
	must(t, os.WriteFile(root+"/new/a/b/c/f", []byte("x"), 0o644))
	got := s.until("created new/a/b/c/f")
	for _, dir := range []string{"new", "new/a", "new/a/b", "new/a/b/c"} {
		if strings.Count(got+",", "created "+dir+",") != 1 {
			t.Errorf("%s isn't created once in %q", dir, got)
		}
	}
	s.mark(0)
	must(t, os.WriteFile(root+"/new/a/b/c/f", []byte("y"), 0o644))
	s.until("written new/a/b/c/f")

	must(t, os.Rename(root+"/new", root+"/other"))
	must(t, os.WriteFile(root+"/other/a/b/c/g", nil, 0o644))
	got = s.until("created other/a/b/c/g") // under the new name
	if strings.Count(got, "renamed new") != 1 || !strings.Contains(got, "created other") || !strings.Contains(got, "created other/a/b/c/f") {
		t.Errorf("renamed: %q", got)
	}
	if got = s.mark(1); strings.Contains(got, "renamed") || strings.Contains(got, "new") {
		t.Errorf("renamed again: %q", got)
	}
	must(t, os.RemoveAll(root+"/other"))
	must(t, os.MkdirAll(root+"/other/a", 0o755))
	must(t, os.WriteFile(root+"/other/a/h", nil, 0o644))
	if got = s.until("created other/a/h"); strings.Count(got, "removed other/a/b/c/f") != 1 {
		t.Errorf("made anew: %q", got)
	}
	moved := t.TempDir() // out of the tree: what happens there is nobody's business
	must(t, os.Rename(root+"/other", moved+"/other"))
	s.until("renamed other")
	must(t, os.WriteFile(moved+"/other/a/i", nil, 0o644))
	if got = s.mark(2); strings.Contains(got, "/i") {
		t.Errorf("moved away: %q", got)
	}
}

// TestWatchMissesNothing makes directories and files as fast as it can, and looks whether each is told of exactly once.
func TestWatchMissesNothing(t *testing.T) {
	root := t.TempDir()
	s := watch(t, root, true)
	const dirs, names = 60, 20
	made := make(chan error, 1)
	go func() {
		for d := range dirs {
			dir := fmt.Sprintf("%s/%d/x/y", root, d)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				made <- err
				return
			}
			for n := range names {
				if err := os.WriteFile(fmt.Sprint(dir, "/", n), nil, 0o644); err != nil {
					made <- err
					return
				}
			}
		}
		made <- os.WriteFile(root+"/end", nil, 0o644)
	}()
	all := s.until("created end")
	must(t, <-made)
	got := map[string]int{}
	for one := range strings.SplitSeq(all+", "+s.mark(0), ", ") {
		got[one]++
	}
	for d := range dirs {
		for n := range names {
			if one := fmt.Sprintf("created %d/x/y/%d", d, n); got[one] != 1 {
				t.Errorf("%s: %d times", one, got[one])
			}
		}
	}
}

func TestWatchOfOneFileSurvivesItsReplacement(t *testing.T) {
	root := t.TempDir()
	file := root + "/conf"
	must(t, os.WriteFile(file, nil, 0o644))
	s := watch(t, file, true)
	s.root = root
	must(t, os.WriteFile(root+"/conf.new", []byte("x"), 0o644))
	must(t, os.Rename(root+"/conf.new", file)) // as editors do
	if got := s.until("created conf"); got != "" {
		t.Errorf("told of others: %q", got)
	}
	must(t, os.WriteFile(file, []byte("y"), 0o644))
	s.until("written conf")
	must(t, os.Remove(file))
	s.until("removed conf")
	must(t, os.WriteFile(file, nil, 0o644))
	s.until("created conf")
}

func TestWatchEndsWithItsDirectory(t *testing.T) {
	for name, end := range map[string]func(string) error{"removed": os.RemoveAll, "renamed": func(dir string) error { return os.Rename(dir, dir+"2") }} {
		root := t.TempDir() + "/it"
		must(t, os.MkdirAll(root+"/below", 0o755))
		s := watch(t, root, true)
		must(t, end(root))
		s.until(name + " .")
		if _, err := s.w.Next(t.Context()); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWatchTellsThatChangesWereLost(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	var queue int
	fmt.Sscan(string(text), &queue)
	root := t.TempDir()
	s := watch(t, root, true)
	a, b := root+"/a", root+"/b"
	must(t, os.WriteFile(a, nil, 0o644))
	for range (queue + watchBuffer + 8192) / 2 { // two names by turns, since the kernel joins repetitions
		must(t, os.Rename(a, b))
		must(t, os.Rename(b, a))
	}
	must(t, os.MkdirAll(root+"/lost/dir", 0o755)) // nobody is told of it
	s.until("overflow .")
	must(t, os.WriteFile(root+"/lost/dir/f", nil, 0o644)) // but it is watched
	s.until("created lost/dir/f")
}

func TestWatchRefuses(t *testing.T) {
	root := t.TempDir()
	for path, want := range map[string]error{root + "/nothing": ErrNotFound, "": ErrInvalid, "a\x00": ErrInvalid} {
		if _, err := (FS{}).Watch(t.Context(), path, true); !errors.Is(err, want) {
			t.Errorf("%q: %v", path, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (FS{}).Watch(ctx, root, true); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	w := watch(t, root, true).w
	if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
