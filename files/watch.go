package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// ChangeType is what happened to a path.
type ChangeType string

// The types of changes. Whatever changes its name is renamed under the old one and created under the new one.
const (
	Created  ChangeType = "created"
	Written  ChangeType = "written"
	Removed  ChangeType = "removed"
	Renamed  ChangeType = "renamed"
	Chmod    ChangeType = "chmod"    // mode, owner or times
	Overflow ChangeType = "overflow" // changes were lost: look anew at what is there
)

// Change is one change below what is watched.
type Change struct {
	Type ChangeType
	Path string // absolute
}

// AppendJSON appends c to b as the wire has it: type, path, timestamp (Unix time in milliseconds) and where it applies
// path_base64.
func (c *Change) AppendJSON(b []byte, at time.Time) []byte {
	b = append(append(append(b, `{"type":"`...), c.Type...), '"')
	b = appendString(append(b, `,"path":`...), c.Path)
	b = appendBase64(b, `,"path_base64":`, c.Path)
	return append(strconv.AppendInt(append(b, `,"timestamp":`...), at.UnixMilli(), 10), '}')
}

const (
	maxWatchedDirs = 32 << 10
	watchBuffer    = 4096 // events that wait for Next, beside the kernel's own queue
	maxBatch       = 1024 // changes that Next returns at once, about
)

// Watch tells of changes below a path (inotify(7)). One goroutine may call Next; Close has to be called.
type Watch struct {
	root      string
	only      string // the path that alone matters; "" for all
	recursive bool
	fs        *fsnotify.Watcher
	dirs      map[string]bool // that are watched
	found     map[string]bool // told as created when their directory was found, which inotify may tell once more
	moved     map[string]bool // directories told as renamed, which inotify tells twice
	overflow  chan struct{}
	drained   chan struct{} // closed when nobody reads errors any more
}

// Watch begins to watch path, which must be there: a directory's entries, with recursive all below it, or one other file. What
// is made in it later is watched as well. Symbolic links below path are not followed. What happens after Watch has
// returned is told.
//
// The error is ctx's, ErrNotFound, ErrPermission, ErrTooLarge for too many directories, or ErrNoSpace when the system
// has no room for more watches.
func (f FS) Watch(ctx context.Context, path string, recursive bool) (*Watch, error) {
	abs, err := f.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, fail("watch", path, err)
	}
	w := &Watch{
		root: abs, recursive: recursive && info.IsDir(), dirs: map[string]bool{}, found: map[string]bool{}, moved: map[string]bool{},
		overflow: make(chan struct{}, 1), drained: make(chan struct{}),
	}
	if !info.IsDir() { // by its directory, so that it may be replaced
		w.only, w.root = abs, filepath.Dir(abs)
	}
	if w.fs, err = fsnotify.NewBufferedWatcher(watchBuffer); err != nil {
		return nil, fail("watch", path, noRoom(err))
	}
	go w.drainErrors()
	if err = w.add(w.root); err == nil && w.recursive {
		err = w.scan(ctx, w.root, nil)
	}
	if err != nil {
		w.Close()
		return nil, fail("watch", path, noRoom(err))
	}
	return w, nil
}

// noRoom names the system's limits, whose errors speak of disks and files.
func noRoom(err error) error {
	for no, limit := range map[unix.Errno]string{unix.ENOSPC: "max_user_watches", unix.EMFILE: "max_user_instances"} {
		if errors.Is(err, no) {
			return &Error{Op: "watch", Path: "more", Kind: ErrNoSpace, Err: fmt.Errorf("the system's limit fs.inotify.%s is reached", limit)}
		}
	}
	return err
}

// Close ends the watch and returns when its goroutines have ended.
func (w *Watch) Close() error {
	err := w.fs.Close()
	<-w.drained
	return err
}

// drainErrors keeps the watcher going, which waits, and holds its lock, until its errors have been read. All but an overflow
// are about directories that are gone.
func (w *Watch) drainErrors() {
	defer close(w.drained)
	for err := range w.fs.Errors {
		if errors.Is(err, fsnotify.ErrEventOverflow) {
			select {
			case w.overflow <- struct{}{}:
			default:
			}
		}
	}
}

// Next waits for changes and returns those that are there, in order; what is repeated within them is told once. The error
// is ctx's, or io/fs.ErrClosed when the watched directory is gone itself.
func (w *Watch) Next(ctx context.Context) ([]Change, error) {
	for {
		if !w.dirs[w.root] {
			return nil, fs.ErrClosed
		}
		var all []Change
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.overflow:
			all = append(all, Change{Overflow, w.root})
			if w.recursive {
				w.scan(ctx, w.root, nil) // what can't be watched now is not there, or not for long
			}
		case e, ok := <-w.fs.Events:
			if !ok {
				return nil, fs.ErrClosed
			}
			all = w.more(ctx, w.take(ctx, all, e))
		}
		if len(all) > 0 {
			return all, nil
		}
	}
}

// more takes the events that are there.
func (w *Watch) more(ctx context.Context, all []Change) []Change {
	for len(all) < maxBatch {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return all
			}
			all = w.take(ctx, all, e)
		default:
			return all
		}
	}
	return all
}

// Idle forgets what is only kept to recognize repetitions. It is called when nothing has happened for a while.
func (w *Watch) Idle() {
	clear(w.found)
	clear(w.moved)
}

// take appends what an event tells.
func (w *Watch) take(ctx context.Context, all []Change, e fsnotify.Event) []Change {
	path := e.Name
	if path != w.root && !w.dirs[filepath.Dir(path)] { // under a name that its directory had before
		return all
	}
	told := func(t ChangeType) {
		c := Change{t, path}
		if n := len(all); (w.only == "" || w.only == path || path == w.root) && (n == 0 || all[n-1] != c) {
			all = append(all, c)
		}
	}
	switch {
	case e.Has(fsnotify.Create):
		delete(w.moved, path)
		if w.found[path] {
			delete(w.found, path)
			return all
		}
		told(Created)
		if w.recursive {
			all = w.enter(ctx, all, path)
		}
	case e.Has(fsnotify.Write):
		told(Written)
	case e.Has(fsnotify.Remove):
		w.leave(path)
		told(Removed)
	case e.Has(fsnotify.Rename):
		if w.moved[path] {
			delete(w.moved, path)
			return all
		}
		if w.leave(path) {
			w.moved[path] = true
		}
		told(Renamed)
	case e.Has(fsnotify.Chmod):
		told(Chmod)
	}
	return all
}

// enter watches a path that is new, if it is a directory, and tells of what is in it already.
func (w *Watch) enter(ctx context.Context, all []Change, path string) []Change {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || w.add(path) != nil {
		return all // gone again; or there is no room, and its content is unknown
	}
	w.scan(ctx, path, func(found string) {
		w.found[found] = true
		all = append(all, Change{Created, found})
	})
	return all
}

// leave forgets a path that is gone and all below it, and says whether it was a directory that is watched.
func (w *Watch) leave(path string) bool {
	delete(w.found, path)
	if !w.dirs[path] {
		return false
	}
	for dir := range w.dirs {
		if dir == path || strings.HasPrefix(dir, path+"/") {
			delete(w.dirs, dir)
			w.fs.Remove(dir) // which may know already
		}
	}
	return true
}

// add watches one directory.
func (w *Watch) add(dir string) error {
	if w.dirs[dir] {
		return nil
	}
	if len(w.dirs) >= maxWatchedDirs {
		return &Error{Op: "watch", Path: dir, Kind: ErrTooLarge, Err: fmt.Errorf("there are more than %d directories", maxWatchedDirs)}
	}
	if err := w.fs.Add(dir); err != nil {
		return err
	}
	w.dirs[dir] = true
	return nil
}

// scan watches the directories below root, each before its entries are read, so that nothing is missed, and calls found with
// every entry. What can't be read or has vanished is passed over.
func (w *Watch) scan(ctx context.Context, root string, found func(path string)) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil
		}
		if path != root && found != nil {
			found(path)
		}
		if !e.IsDir() {
			return nil
		}
		err = w.add(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return fs.SkipDir
		}
		return err
	})
}
