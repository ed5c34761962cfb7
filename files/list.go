package files

import (
	"context"
	"errors"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// List describes what is in the directory path, down to depth levels (1: its entries only; 0: nothing), each
// directory in lexical order and its content right after it. An entry that can't be examined comes with Info.Err; a
// directory that can't be read comes without its content. emit gets the same *Info each time.
//
// The error is emit's, ctx's, ErrNotFound, ErrInvalid for a negative depth, and ErrNotDir for a link too: the answer
// would be about another directory than the one named.
func (f FS) List(ctx context.Context, path string, depth int, emit func(*Info) error) error {
	abs, err := f.Abs(path)
	if err != nil {
		return err
	}
	if depth < 0 {
		return &Error{Op: "list", Path: path, Kind: ErrInvalid, Err: errors.New("the depth is negative")}
	}
	root, err := openDirAt(unix.AT_FDCWD, abs)
	if err != nil {
		return fail("list", path, notDir(abs, err))
	}
	if depth == 0 {
		return unix.Close(root)
	}
	var info Info
	w := walker{ctx: ctx, who: newNames()}
	w.visit = func(w *walker, dir int, path []byte, e entry, at int) (bool, error) {
		if !w.describe(&info, dir, path, e) {
			return false, nil
		}
		return at < depth, emit(&info)
	}
	return fail("list", path, w.walk(root, abs))
}

// notDir makes err, of opening a directory at path, ErrNotDir where something else is there.
func notDir(path string, err error) error {
	var i Info
	if (err == unix.ENOTDIR || err == unix.ELOOP) && i.stat(unix.AT_FDCWD, path, newNames()) == nil {
		if i.Type == TypeSymlink {
			return &Error{Op: "list", Path: path, Kind: ErrNotDir, Err: errors.New("is a symbolic link, which a list doesn't follow")}
		}
		return ErrNotDir
	}
	return err
}

// Search describes everything but directories below path whose name matches pattern, in the order of List. A pattern
// without "/" is about the base name, at any depth; one with "/" is about the path below the root, "**" standing for
// any number of directories; one that begins with "/" is about the absolute path. An empty pattern matches all. Names
// that begin with a dot are like any other. path itself may be a link to a directory, or a file, which is then all
// there is to match. emit gets the same *Info each time.
//
// The error is emit's, ctx's, ErrInvalid for a pattern that is none, and ErrNotFound.
func (f FS) Search(ctx context.Context, path, pattern string, emit func(*Info) error) error {
	abs, err := f.Abs(path)
	if err != nil {
		return err
	}
	g, err := newGlob(pattern, abs)
	if err != nil {
		return err
	}
	var info Info
	w := walker{ctx: ctx, who: newNames()}
	root, err := ignoringEINTR(func() (int, error) {
		return unix.Open(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err == unix.ENOTDIR {
		info.Path = abs
		if err := info.stat(unix.AT_FDCWD, abs, w.who); err != nil {
			return fail("search", path, err)
		}
		if name := abs[strings.LastIndexByte(abs, '/')+1:]; g.match(name, []byte(abs)) {
			return emit(&info)
		}
		return nil
	}
	if err != nil {
		return fail("search", path, err)
	}
	w.visit = func(w *walker, dir int, path []byte, e entry, depth int) (bool, error) {
		if e.typ == unix.DT_DIR {
			return depth < g.depth, nil
		}
		if !g.match(e.name, path) || !w.describe(&info, dir, path, e) || info.Type == TypeDirectory {
			return false, nil
		}
		return false, emit(&info)
	}
	return fail("search", path, w.walk(root, abs))
}

// glob is a checked pattern.
type glob struct {
	pattern string
	name    bool // about the base name only
	cut     int  // bytes of an absolute path that the pattern isn't about
	depth   int  // levels that can hold a match
}

// Limits of a pattern: matching tries every combination of a pattern's alternatives, and nothing can stop it.
const (
	maxPattern      = unix.PathMax
	maxAlternatives = 10_000
)

// alternatives returns how many patterns without braces pattern stands for, or more; it stops counting past the limit.
func alternatives(pattern string) int {
	total := 1
	var open []int // the alternatives so far of each brace that is open
	for i := 0; i < len(pattern) && total <= maxAlternatives; i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '{':
			open = append(open, 1)
		case len(open) == 0:
		case c == ',':
			open[len(open)-1]++
		case c == '}':
			total *= open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	return total
}

func newGlob(pattern, root string) (glob, error) {
	if pattern == "" {
		pattern = "**"
	}
	if len(pattern) > maxPattern || alternatives(pattern) > maxAlternatives {
		return glob{}, &Error{Op: "search for", Path: pattern[:min(len(pattern), 100)], Kind: ErrInvalid, Err: errors.New("the pattern is too large")}
	}
	if !doublestar.ValidatePattern(pattern) {
		return glob{}, &Error{Op: "search for", Path: pattern, Kind: ErrInvalid, Err: doublestar.ErrBadPattern}
	}
	g := glob{pattern: pattern, depth: 1<<31 - 1}
	switch {
	case pattern == "**" || !strings.Contains(pattern, "/"):
		g.name = true
	case pattern[0] != '/':
		g.cut = len(strings.TrimSuffix(root, "/")) + 1
		if !strings.Contains(pattern, "**") {
			g.depth = 1 + strings.Count(pattern, "/")
		}
	}
	return g, nil
}

func (g glob) match(name string, path []byte) bool {
	subject := name
	if !g.name {
		if len(path) < g.cut {
			return false // the root itself
		}
		subject = string(path[g.cut:])
	}
	return doublestar.MatchUnvalidated(g.pattern, subject)
}
