package files

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// MakeDirs makes each directory that isn't there, with the parents that are missing. The named directory gets
// exactly the mode given, 0755 without one, whatever the umask; a parent gets 0777 less the umask, as with mkdir -p.
// Owner and group go to every directory made. A directory that exists already is left alone. ctx ends it between two
// paths.
//
// The error is ErrInvalid as for SetPerms, ErrNotDir where a parent is a file, and ErrConflict where the path itself
// is something else than a directory.
func (f FS) MakeDirs(ctx context.Context, dirs map[string]Perm) error {
	type wanted struct {
		path, abs string
		to        access
	}
	var all []wanted
	for _, path := range slices.Sorted(maps.Keys(dirs)) {
		abs, err := f.Abs(path)
		if err != nil {
			return err
		}
		to, err := dirs[path].resolve()
		if err != nil {
			return err
		}
		if to.mode < 0 {
			to.mode = 0o755
		}
		all = append(all, wanted{path, abs, to})
	}
	for _, d := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		made, err := makeAll(d.abs, d.to)
		if err == nil && made {
			err = d.to.apply(d.abs)
		}
		if err != nil {
			return failCreate("make directory", d.path, err)
		}
	}
	return nil
}

// makeAll makes the directory path and its missing parents, and says whether it had to make path itself. Each gets
// to's owner and group, and 0777 less the umask.
func makeAll(path string, to access) (made bool, err error) {
	var missing []string
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.IsDir() {
			break
		}
		if err == nil && dir == path {
			return false, kind{ErrConflict, "there is something that is not a directory"}
		}
		if err == nil {
			return false, ErrNotDir
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	owner := access{mode: -1, uid: to.uid, gid: to.gid}
	for _, dir := range missing {
		switch err := os.Mkdir(dir, 0o777); {
		case errors.Is(err, fs.ErrExist):
			// Made by somebody else meanwhile, or a dangling link.
			if info, statErr := os.Stat(dir); statErr != nil || !info.IsDir() {
				return false, err
			}
			continue
		case err != nil:
			return false, err
		}
		made = dir == path
		if err := owner.apply(dir); err != nil {
			return made, err
		}
	}
	return made, nil
}

// makeParents is makeAll for the directory that path is in.
func makeParents(path string, to access) error {
	_, err := makeAll(filepath.Dir(path), to)
	if errors.Is(err, ErrConflict) {
		return ErrNotDir
	}
	return err
}

// keptDirs are directories that RemoveDirs refuses: no call that means one of them means well.
var keptDirs = []string{"/", "/dev", "/proc", "/sys"}

// RemoveDirs removes each directory with all that is in it. One that isn't there counts as removed. Nothing is
// removed and the error is ErrNotDir when one of the paths is something else, a link to a directory included, and
// ErrInvalid for "/", "/dev", "/proc" and "/sys". ctx ends it between two paths.
func (f FS) RemoveDirs(ctx context.Context, paths []string) error {
	return f.remove(ctx, "remove directory", paths, func(abs string, mode fs.FileMode) error {
		switch {
		case slices.Contains(keptDirs, abs):
			return kind{ErrInvalid, "this directory is never removed"}
		case !mode.IsDir():
			return ErrNotDir
		}
		return nil
	}, os.RemoveAll)
}

// RemoveFiles removes each file, link, FIFO, socket or device node. One that isn't there counts as removed. Nothing
// is removed and the error is ErrIsDir when one of the paths is a directory.
func (f FS) RemoveFiles(ctx context.Context, paths []string) error {
	return f.remove(ctx, "remove", paths, func(_ string, mode fs.FileMode) error {
		if mode.IsDir() {
			return ErrIsDir
		}
		return nil
	}, os.Remove)
}

func (f FS) remove(ctx context.Context, op string, paths []string, check func(string, fs.FileMode) error, remove func(string) error) error {
	all := make([]string, len(paths))
	for i, path := range paths {
		abs, err := f.Abs(path)
		if err != nil {
			return err
		}
		info, err := os.Lstat(abs)
		if gone(err) {
			continue
		}
		if err == nil {
			err = check(abs, info.Mode())
		}
		if err != nil {
			return fail(op, path, err)
		}
		all[i] = abs
	}
	for i, abs := range all {
		if abs == "" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := remove(abs); err != nil && !gone(err) {
			return fail(op, paths[i], err)
		}
	}
	return nil
}

// gone tells whether err says that there is nothing at the path.
func gone(err error) bool { return kindOf(err) == ErrNotFound && err != nil }
