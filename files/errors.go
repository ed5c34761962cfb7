package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// What an error of this package is, for errors.Is. Each is about the request or the state of the file system;
// an error that is none of them is a fault of the machine.
var (
	ErrNotFound   = errors.New("not found")                   // the path, or a directory on the way to it, isn't there
	ErrInvalid    = errors.New("invalid")                     // the request can't be meant: a bad path, mode, name or pattern, or a file of the wrong type
	ErrConflict   = errors.New("conflict")                    // something is in the way, or changed meanwhile
	ErrTooLarge   = errors.New("too large")                   // more than the limits of this package or of the file system
	ErrPermission = errors.New("not permitted")               // refused by the operating system
	ErrNoSpace    = errors.New("no space left")               // disk or quota full
	ErrIsDir      = kind{ErrInvalid, "is a directory"}        // a file was expected
	ErrNotDir     = kind{ErrInvalid, "not a directory"}       // a directory was expected
	ErrNotRegular = kind{ErrInvalid, "not a regular file"}    // a FIFO, socket or device, which might block for ever
	ErrForm       = kind{ErrInvalid, "invalid upload form"}   // the multipart body is broken or holds no file
	ErrMetadata   = kind{ErrInvalid, "invalid file metadata"} // a metadata part is missing, broken or can't be carried out
	ErrContent    = kind{ErrInvalid, "missing file content"}  // metadata without a file
)

// kind is a special case of another kind of error: errors.Is finds both.
type kind struct {
	of   error
	text string
}

func (k kind) Error() string { return k.text }
func (k kind) Unwrap() error { return k.of }

// Error says what was being done to which path. errors.Is and errors.As find its kind and its cause.
type Error struct {
	Op   string // what was being done, as "read" or "make directory"
	Path string // as the request wrote it
	Kind error  // one of the Err variables, or nil
	Err  error  // the cause; nil when Kind says it all
}

// Error says all of it in one line.
func (e *Error) Error() string {
	cause := e.Err
	if cause == nil {
		cause = e.Kind
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.Path, cause)
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// fail wraps err, which may be nil. The kind of a system error follows from its number; an error that already has
// a kind keeps it.
func fail(op, path string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	// The path is said once, as the request wrote it.
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	if k, ok := asKind(err); ok {
		return &Error{Op: op, Path: path, Kind: k}
	}
	return &Error{Op: op, Path: path, Kind: kindOf(err), Err: err}
}

// failCreate is fail where something is being made: a file where a directory is needed is a wrong request there,
// and what exists already is in the way.
func failCreate(op, path string, err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		return &Error{Op: op, Path: path, Kind: ErrNotDir, Err: errors.New("a parent is not a directory")}
	}
	return fail(op, path, err)
}

func asKind(err error) (error, bool) {
	switch err {
	case ErrNotFound, ErrInvalid, ErrConflict, ErrTooLarge, ErrPermission, ErrNoSpace:
		return err, true
	}
	k, ok := err.(kind)
	return k, ok
}

func kindOf(err error) error {
	var no unix.Errno
	if !errors.As(err, &no) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return ErrNotFound
		case errors.Is(err, io.ErrUnexpectedEOF):
			return ErrInvalid
		}
		return nil
	}
	switch no {
	case unix.ENOENT, unix.ENOTDIR:
		return ErrNotFound
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return ErrPermission
	case unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY:
		return ErrConflict
	case unix.EISDIR:
		return ErrIsDir
	case unix.EINVAL, unix.ELOOP, unix.ENAMETOOLONG, unix.ENXIO, unix.ENODEV, unix.EOPNOTSUPP:
		return ErrInvalid
	case unix.EFBIG:
		return ErrTooLarge
	case unix.ENOSPC, unix.EDQUOT:
		return ErrNoSpace
	}
	return nil
}
