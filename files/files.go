// Package files holds the operations on files and directories: describe, list, search, read, upload, edit, move,
// make and remove, and the mode and owner of each. It knows nothing of HTTP; whoever calls it turns its errors into
// statuses and its bytes into responses.
//
// # Invariants
//
//   - A path names bytes. Nothing in it is expanded but a leading "~/", and names needn't be UTF-8.
//   - A symbolic link is described, listed, moved and removed as the link it is. Reading, uploading, replacing and
//     setting a mode or owner go through it to what it points to, as every program does. No walk descends into one.
//   - FIFOs, sockets and devices are described, listed, moved and removed; they are never opened, so nothing blocks.
//   - An upload is visible whole or not at all. [FS.Replace] writes in place, so that links to the file stay.
//   - In a list or a search, an entry that can't be read or has vanished costs nobody else anything.
//   - Where a request names several paths, all of them are checked before the first is touched; what only fails in
//     the doing stops the request there.
//   - Memory doesn't grow with the size of a file.
//
// All methods may be called from any number of goroutines.
//
// # Names that are not UTF-8
//
// JSON can't hold them. Wherever a path is written as JSON, each byte that isn't part of a UTF-8 sequence becomes
// U+FFFD, and a field path_base64 (for a link's target target_base64) beside it carries the exact bytes in standard
// base64. It is there for such names only.
//
//	root := files.FS{Workspace: "/workspace", Home: "/root"}
//	info, err := root.Info("notes.txt")
//	if errors.Is(err, files.ErrNotFound) { … }
package files

import (
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FS is the file system as requests see it. The zero value resolves relative paths against "/".
type FS struct {
	Workspace string // absolute; what relative paths are relative to
	Home      string // absolute; what a leading "~/" stands for
}

// Abs returns the absolute, lexically cleaned path that path stands for: a leading "~/" is the home directory, a
// relative path is relative to the workspace, everything else is literal. The error is ErrInvalid for an empty path
// and one with a NUL.
func (f FS) Abs(path string) (string, error) {
	switch {
	case path == "":
		return "", &Error{Op: "resolve", Path: `""`, Kind: ErrInvalid, Err: errors.New("the path is empty")}
	case strings.IndexByte(path, 0) >= 0:
		return "", &Error{Op: "resolve", Path: strings.ReplaceAll(path, "\x00", `\0`), Kind: ErrInvalid, Err: errors.New("the path holds a NUL")}
	case strings.HasPrefix(path, "~/"):
		return filepath.Join("/", f.Home, path[2:]), nil
	case path[0] == '/':
		return filepath.Clean(path), nil
	}
	return filepath.Join("/", f.Workspace, path), nil
}

// follow returns the path that the last element of path leads to when it is a symbolic link, through any number of
// links, and path itself otherwise. The end of the chain needn't exist.
func follow(path string) (string, error) {
	for range maxLinks {
		target, err := readlink(unix.AT_FDCWD, path)
		if err == unix.EINVAL || err == unix.ENOENT {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(target) {
			// Neither Dir nor Join, which clean: ".." in a target counts from the real directory.
			dir, err := filepath.EvalSymlinks(path[:strings.LastIndexByte(path, '/')+1])
			if err != nil {
				return "", err
			}
			target = dir + "/" + target
		}
		path = target
	}
	return "", unix.ELOOP
}

// maxLinks is how many links in a row Linux follows (path_resolution(7)).
const maxLinks = 40

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := ignoringEINTR(func() (int, error) { return unix.Readlinkat(dir, name, buf) })
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// ignoringEINTR calls f again for as long as a signal interrupts it.
func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// regular says what is wrong with opening a file of this mode, or nil.
func regular(mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return ErrIsDir
	}
	return ErrNotRegular
}
